"""Run the parts of a study in parallel, each in its own process, on one device or on several.

One small detector does not use a large GPU fully; six at the same time do (docs/results/performance.md). A study is
cut into parts: train a recipe, make its dense labels, evaluate it. A part starts when the parts it depends on are done.
A part that fails stops only the parts that depend on it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Self

import torch

from fate.errors import FateError
from fate.processes import STOP_SIGNALS
from fate.progress import Progress
from fate.workflows.spread import Spread, run_jobs
from fate.workflows.studies.declared import read_recipe
from fate.workflows.studies.runner import Runner, StudyStoppedError

#: The answer of a process that was asked to stop.
STOPPED = "stopped"


class Part(NamedTuple):
    """The work of one process."""

    work: str  #: "train", "label", "label as paper" or "evaluate"
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """The name that is printed."""
        return f"{self.recipe}, seed {self.seed}"

    @property
    def title(self) -> str:
        """The work and the name, which no other part has."""
        return f"{self.work} {self.name}"


#: The work of a process: it sends one answer if it did not finish its part.
Work = Callable[[Runner, Part, Connection], None]


def find_parts(recipes: Iterable[tuple[str, int]], runner: Runner) -> dict[Part, set[Part]]:
    """All parts of recipes and seeds that the runner has not done yet, each with the parts it depends on."""
    parts: dict[Part, set[Part]] = {}

    def add(part: Part, *dependencies: Part) -> Part:
        parts[part] = {each for each in dependencies if each in parts}
        return part

    def add_training(recipe: str, seed: int) -> Part:
        part = Part("train", recipe, seed)
        if part not in parts and not runner.is_trained(recipe, seed):
            _, _, start, labels, as_paper = read_recipe(recipe)
            before = [] if start is None else [add_training(start, seed)]
            if labels is not None:
                work = "label as paper" if as_paper else "label"
                before.append(add(Part(work, labels, seed), add_training(labels, seed)))
            add(part, *before)
        return part

    for recipe, seed in recipes:
        if not runner.is_measured(recipe, seed):
            add(Part("evaluate", recipe, seed), add_training(recipe, seed))
    return parts


def do_part(runner: Runner, part: Part, answer: Connection) -> None:
    """Do one part, and send an answer only if it was not finished."""
    torch.set_num_threads(runner.threads)
    try:
        work_on(runner, part)
    except (StudyStoppedError, KeyboardInterrupt, BrokenPipeError):  # BrokenPipeError: nobody reads the output
        answer.send(STOPPED)
    except FateError as error:
        answer.send(str(error))
    except torch.OutOfMemoryError as error:
        answer.send(f"{str(error).split('. ')[0]}; give fewer jobs=N")


def work_on(runner: Runner, part: Part) -> None:
    """Do one part in this process, and print each step."""

    def report(done: float, total: float | None = 1.0, text: str = "", name: str = "", /) -> None:
        print(text if text.startswith(part.name) else f"{part.name}: {text.strip()}", flush=True)

    runner = replace(runner, progress=report)
    if part.work == "train":
        runner.train(part.recipe, part.seed)
    elif part.work.startswith("label"):
        runner.make_labels(part.recipe, part.seed, as_paper=part.work == "label as paper")
    else:
        runner.figures(part.recipe, part.seed, may_run=True)


def run_on_devices(parts: Mapping[Part, set[Part]], spread: Spread, runner: Runner, folder: Path) -> None:
    """Run all parts as jobs; ``folder`` is for their logs. Each part is begun when the parts it depends on are done."""
    plain, steps = replace(runner, progress=None), [""]

    def report(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        if text != steps[-1]:
            steps.append(text)
            runner.report(f"{text}; logs are in {folder}")

    run_jobs(
        {part.title: partial(_work_as_job, plain, part) for part in parts}, spread, folder,
        after={part.title: {each.title for each in before} for part, before in parts.items()}, progress=report,
    )  # fmt: skip


def _work_as_job(runner: Runner, part: Part, progress: Progress) -> None:
    try:
        work_on(runner, part)
    except StudyStoppedError:
        raise KeyboardInterrupt from None


def run_parts(parts: Mapping[Part, set[Part]], jobs: int, runner: Runner, work: Work = do_part) -> bool:
    """Run all parts, at most ``jobs`` at a time, and return whether all of them were done.

    Ctrl-C and SIGTERM let running trainings save and end, and start nothing new; the result is then False. Each part
    has the parts it depends on; every process has a copy of the runner, and calls ``work``.
    """
    sorter = TopologicalSorter(parts)
    sorter.prepare()
    ready: list[Part] = []
    failed: dict[Part, str] = {}
    begun = 0
    with _Processes() as processes:
        while sorter.is_active():
            ready += sorter.get_ready()
            ready.sort(key=lambda part: part.work == "evaluate")  # no other part depends on an evaluation
            while ready and len(processes.running) < jobs and not processes.is_stopping:
                processes.start(work, runner, ready.pop(0))
                begun += 1
            if not processes.running:
                break  # the other parts depend on one that failed, or must not start any more
            for part, problem in processes.wait():
                if problem is None:
                    sorter.done(part)
                elif problem == STOPPED or processes.is_stopping:
                    processes.is_stopping = True
                else:
                    failed[part] = problem
    if failed:
        problems = "; ".join(f"{part.name} ({part.work}): {problem}" for part, problem in failed.items())
        left = f", and {len(parts) - begun} were not started" if begun < len(parts) else ""
        raise FateError(f"{len(failed)} of {len(parts)} parts failed{left}: {problems}.")
    return not processes.is_stopping


class _Processes:
    """The running processes. Inside its ``with`` block, signals to stop are passed on to them."""

    def __init__(self) -> None:
        self.is_stopping = False  #: whether no more processes may be started
        self.running: dict[BaseProcess, tuple[Part, Connection]] = {}
        self._signals = 0
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with suppress(ValueError):  # only the main thread can handle signals
            self._handlers = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def start(self, work: Work, runner: Runner, part: Part) -> None:
        """Start one part in a new process."""
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_start, args=(work, replace(runner, progress=None), part, theirs))
        if hasattr(signal, "pthread_sigmask"):  # the process inherits that SIGINT is blocked
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:  # Windows
            process.start()
        theirs.close()
        self.running[process] = part, ours
        if self.is_stopping:  # the signal came while the process was being started
            process.terminate()

    def wait(self) -> Iterator[tuple[Part, str | None]]:
        """Wait until a process ends; yield the part of each that has ended, and what went wrong, or None."""
        connection.wait([process.sentinel for process in self.running])
        for process in [process for process in self.running if process.exitcode is not None]:
            part, answer = self.running.pop(process)
            ended = (
                f"its process ended with {process.exitcode}, see above; if nothing is there, memory may have run out"
            )
            problem = ended if process.exitcode else None
            with answer, suppress(EOFError):
                problem = str(answer.recv())
            yield part, problem

    def _stop(self, number: int, frame: Any) -> None:
        """At the first signal every process is asked to save and end. At the second one it is killed, together with
        the processes that load data for it.
        """
        self.is_stopping, self._signals = True, self._signals + 1
        if self._signals == 1:
            os.write(2, b"\nstops when all have saved; again Ctrl-C: at once\n")
        for process in tuple(self.running):
            if self._signals == 1:
                process.terminate()
                continue
            if hasattr(os, "killpg") and process.pid is not None:
                with suppress(ProcessLookupError):  # it leads no group yet
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()


def _start(work: Work, runner: Runner, part: Part, answer: Connection) -> None:
    """Run in the new process, which leads its own process group together with the processes that load data for it.

    Ctrl-C in a terminal does not reach it: the study sends one signal. It also stops when the study has ended.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    else:  # Windows has no process groups: Ctrl-C reaches all processes, and only the study may react
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    study = parent_process()
    if study is not None:
        Thread(target=_stop_after, args=(study.sentinel,), daemon=True).start()
    work(runner, part, answer)


def _stop_after(study: int) -> None:
    connection.wait([study])
    os.kill(os.getpid(), signal.SIGTERM)
