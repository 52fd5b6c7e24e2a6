"""Several runs of a study side by side, each in a process of its own.

A small detector does not keep a large GPU busy: six of them together do (docs/results/performance.md). A study is cut into
parts: a recipe is trained, makes labels, is evaluated. A part begins when those it builds on are done. One that fails
takes with it what builds on it, and nothing else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch

from fate.data.dataset import open_dataset
from fate.errors import FateError
from fate.processes import KILL_SIGNAL, STOP_SIGNALS
from fate.workflows.studies.tables import Recipe, study_named
from fate.workflows.studies.runner import SCALES, Runner, Say, StudyStoppedError

#: What a process answers that was asked to stop.
STOPPED = "stopped"


class Part(NamedTuple):
    """What one process does."""

    work: str  #: "train", "label" or "evaluate"
    recipe: Recipe
    seed: int

    @property
    def name(self) -> str:
        """To be shown."""
        return f"{self.recipe.slug}, seed {self.seed}"


@dataclass(frozen=True)
class Order:
    """What every process is told, so that it can make a runner of its own."""

    study: str
    dataset: str
    out: Path
    scale: str
    device: str
    workers: int
    settings: tuple[str, ...]
    threads: int  #: of the CPU

    def runner(self, say: Say) -> Runner:
        """Over the same folder."""
        return Runner(
            self.dataset, open_dataset(self.dataset), self.out, SCALES[self.scale], self.device, self.workers,
            self.settings, say,
        )  # fmt: skip


def parts_of(wanted: Iterable[tuple[Recipe, int]], rates: Sequence[float], runner: Runner) -> dict[Part, set[Part]]:
    """All parts that are not done yet, and for each those that it waits for.

    Args:
        wanted: recipes to be evaluated, and their seeds.
        rates: to evaluate at.
        runner: knows what is done.
    """
    parts: dict[Part, set[Part]] = {}

    def add(part: Part, after: Sequence[Part]) -> None:
        parts[part] = {before for before in after if before in parts}

    def train(recipe: Recipe, seed: int) -> Part:
        part = Part("train", recipe, seed)
        if part not in parts and not runner.is_trained(recipe, seed):
            before = [train(recipe.start, seed)] if recipe.start is not None else []
            if recipe.labels is not None:
                labels = Part("label", recipe.labels, seed)
                add(labels, [train(recipe.labels, seed)])
                before.append(labels)
            add(part, before)
        return part

    for recipe, seed in wanted:
        if not runner.known(recipe, seed).keys() >= set(rates):
            add(Part("evaluate", recipe, seed), [train(recipe, seed)])
    return parts


def side_by_side(
    parts: Mapping[Part, set[Part]],
    jobs: int,
    order: Order,
    do: Callable[[Order, Part, Connection], None] | None = None,
) -> bool:
    """Do all parts, up to ``jobs`` at a time; whether all were done, or somebody asked to stop.

    Ctrl-C and SIGTERM let what is being trained save and end; nothing new begins.
    """
    waiting, done, failed = dict(parts), set[Part](), dict[Part, str]()
    running: dict[int, tuple[Part, BaseProcess, Connection]] = {}
    asked: list[int] = []
    ended = False  # one of them was asked to stop, by somebody else
    with _listening(asked, lambda: [process for _, process, _ in running.values()]):
        while waiting or running:
            ready = [] if asked or ended else [part for part, before in waiting.items() if before <= done]
            ready.sort(key=lambda part: part.work == "evaluate")  # nothing waits for an evaluation
            for part in ready[: jobs - len(running)]:
                del waiting[part]
                process, answer = _begin(do or _do, order, part)
                running[process.sentinel] = (part, process, answer)
                if asked:  # while it was being started
                    _stop(process, signal.SIGTERM)
            if not running:
                break  # what is left waits for something that failed, or was not begun
            for sentinel in wait(list(running)):
                part, process, answer = running.pop(int(sentinel))  # type: ignore[arg-type]
                process.join()
                trouble = _answer(process, answer)
                if trouble is None:
                    done.add(part)
                elif trouble == STOPPED or asked:
                    ended = True
                else:
                    failed[part] = trouble
    if failed:
        told = "; ".join(f"{part.name} ({part.work}): {trouble}" for part, trouble in failed.items())
        left = f", and {len(waiting)} were not begun" if waiting else ""
        raise FateError(f"{len(failed)} of {len(parts)} parts failed{left}: {told}.")
    return not (asked or ended)


def _begin(do: Callable[..., None], order: Order, part: Part) -> tuple[BaseProcess, Connection]:
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_led, args=(do, order, part, theirs), name=part.name)
    if hasattr(signal, "pthread_sigmask"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process inherits this
        process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    else:  # Windows
        process.start()
    theirs.close()
    return process, ours


def _led(do: Callable[..., None], order: Order, part: Part, answer: Connection) -> None:
    """In the process: it leads a group of its own, with those that load for it.

    A terminal's Ctrl-C does not reach it: the study asks it, once. Where the study itself is gone, it stops too.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    else:  # Windows has no groups of processes: Ctrl-C reaches all of them, and only the study may react
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    study = parent_process()
    if study is not None:
        Thread(target=_follow, args=(study.sentinel,), daemon=True).start()
    do(order, part, answer)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _follow(study: int) -> None:
    wait([study])
    os.kill(os.getpid(), signal.SIGTERM)


def _do(order: Order, part: Part, answer: Connection) -> None:
    """One part, and an answer only where it did not come to its end."""
    torch.set_num_threads(order.threads)

    def say(text: str) -> None:
        print(text if text.startswith(part.name) else f"{part.name}: {text.strip()}", flush=True)

    try:
        runner = order.runner(say)
        if part.work == "train":
            runner.trained(part.recipe, part.seed)
        elif part.work == "label":
            runner.dense(part.recipe, part.seed)
        else:
            runner.figures(part.recipe, part.seed, study_named(order.study), may_run=True)
    except (StudyStoppedError, KeyboardInterrupt, BrokenPipeError):  # nobody listens any more
        answer.send(STOPPED)
    except FateError as error:
        answer.send(str(error))
    except torch.OutOfMemoryError as error:
        answer.send(f"{str(error).split('. ')[0]}; give fewer jobs=N")


def _answer(process: BaseProcess, answer: Connection) -> str | None:
    """What went wrong; None if nothing did."""
    with answer, suppress(EOFError):
        return str(answer.recv())
    if process.exitcode == 0:
        return None
    return f"its process ended with {process.exitcode}, see above; if nothing is there, memory may have run out"


@contextmanager
def _listening(asked: list[int], processes: Callable[[], list[BaseProcess]]) -> Iterator[None]:
    """At the first signal to stop every process is asked to save and end; at a second one all end at once."""

    def note(number: int, frame: Any) -> None:
        if not asked:
            os.write(2, b"\nstops when all have saved; again Ctrl-C: at once\n")
        passed_on = KILL_SIGNAL if asked else signal.SIGTERM
        asked.append(number)
        for process in processes():
            _stop(process, passed_on)

    before = {}
    with suppress(ValueError):  # signals can be listened to in the main thread alone
        for number in STOP_SIGNALS:
            before[number] = signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: BaseProcess, number: int) -> None:
    """Ask a process; at once means with all that load for it."""
    with suppress(ProcessLookupError):
        if process.pid is None:
            return
        if number == KILL_SIGNAL and hasattr(os, "killpg"):
            with suppress(ProcessLookupError):  # it leads no group yet
                os.killpg(process.pid, number)
        os.kill(process.pid, number)
