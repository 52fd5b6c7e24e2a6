"""Spread the work of a command over the GPUs of this machine, or over the jobs of a SLURM cluster.

The work is cut into parts that depend on nothing but the files they read, such as shards of a dataset. Each part is a
job of submitit, which starts processes on this machine and submits jobs to SLURM in the same way. A part that was
stopped continues from the files it has written, so the same command can always be run again.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from fate.errors import FateError, FateWarning, list_names, warn
from fate.processes import allowed_processors
from fate.progress import Progress

#: Seconds between two looks at the running jobs, and between two reports of one job.
POLL_S, REPORT_S = 0.2, 1.0
#: Time limit of a SLURM job in minutes, unless another one is given; jobs of this machine have none that matters.
DAY_MIN, YEAR_MIN = 24 * 60, 365 * 24 * 60
#: Jobs that failed whose problem and log an error names; it only lists the others.
MOST_NAMED = 5
#: Settings of SLURM by which a user asks for GPUs.
GPU_SETTINGS = ("gpus_per_node", "gpus_per_task", "gres")
_LISTED = re.compile(r"cpu(,cpu)*|cuda:\d{1,3}(,cuda:\d{1,3})*")


@dataclass(frozen=True)
class Spread:
    """Where the parts of some work run. Made by :func:`open_spread`."""

    device: str  #: "cpu" or "cuda"; each job sees one GPU, or what SLURM gives it
    slots: tuple[str, ...]  #: one for each job that may run at the same time: its CUDA_VISIBLE_DEVICES on this machine
    slurm: Mapping[str, Any] | None = None  #: settings of SLURM jobs; None for this machine

    def shards(self, items: int) -> list[tuple[int, int]]:
        """The shards (i, n) of a number of items: one for each job, but none without an item."""
        count = max(1, min(len(self.slots), items))
        return [(number, count) for number in range(1, count + 1)]

    @property
    def threads(self) -> int | None:
        """CPU threads of each job, so that jobs of this machine share its processors; None for all that a job has."""
        return max(1, allowed_processors() // len(self.slots)) if self.slurm is None else None


def check_devices(devices: str) -> str:
    """Refuse a text that names no devices. torch is not loaded, so a GPU may still be missing here."""
    if devices != "all" and not _LISTED.fullmatch(devices) and not re.fullmatch(r"slurm:[1-9]\d{0,3}", devices):
        raise FateError(
            f"{devices} was given; expected all (GPUs of this machine), some of them such as cuda:0,cuda:1, cpu,cpu for"
            " two processes on the CPU, or slurm:8 for eight jobs of a SLURM cluster"
        )
    return devices


def open_spread(devices: str, slurm: Mapping[str, Any] | None = None, jobs: int = 1) -> Spread:
    """Find the devices that a text names.

    Args:
        devices: ``"all"``, ``"cuda:0,cuda:1"``, ``"cpu,cpu"`` or ``"slurm:8"``; see :func:`check_devices`.
        slurm: options of ``sbatch`` by name, for SLURM only, such as ``{"partition": "gpu", "time": 600}``.
        jobs: number of jobs at the same time on each device.
    """
    kind, _, count = check_devices(devices).partition(":")
    if kind == "slurm":
        given = {name.replace("-", "_"): value for name, value in (slurm or {}).items()}
        for name in [name for name in given if name in ("nodes", "ntasks", "ntasks_per_node", "array")]:
            raise FateError(
                f"{name}={given[name]} was given for SLURM; each job is one process: give slurm:N for N jobs"
            )
        if not str(given.get("time", DAY_MIN)).isdigit():
            raise FateError(f"time={given['time']} was given for SLURM; expected whole minutes, such as time=600")
        usual = {} if any(name in given for name in GPU_SETTINGS) else {"gpus_per_node": 1}
        settings = {"time": DAY_MIN, **usual, **given}
        settings = {name: value for name, value in settings.items() if (name, str(value)) != ("gpus_per_node", "0")}
        has_gpu = any(name in settings for name in GPU_SETTINGS)
        return Spread("cuda" if has_gpu else "cpu", ("",) * (int(count) * jobs), settings)
    if slurm:
        raise FateError(
            f"settings of SLURM ({list_names(slurm)}) were given with the devices {devices}; they go with slurm:N"
        )
    if os.name == "nt":
        raise FateError(f"the devices {devices} were given; Windows cannot spread work; give one device")
    if kind == "cpu" or devices.startswith("cpu,"):
        return Spread("cpu", ("",) * (len(devices.split(",")) * jobs))
    import torch  # noqa: PLC0415  (it takes seconds to load)

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not there:
        raise FateError(f"the devices {devices} were given; torch finds no CUDA GPU on this machine; give cpu,cpu")
    numbers = range(there) if devices == "all" else [int(name.split(":")[1]) for name in devices.split(",")]
    if max(numbers) >= there:
        raise FateError(
            f"cuda:{max(numbers)} was given; this machine has cuda:0 to cuda:{there - 1}; give one of these"
        )
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(there)))).split(",")
    return Spread("cuda", tuple(visible[number] for number in numbers) * jobs)


def beside(out: str | os.PathLike[str]) -> Path:
    """The folder for logs of the jobs that write ``out``, which is a folder or a file: ``dense-jobs`` for ``dense``."""
    path = Path(out).absolute()
    return path.parent / f"{path.stem if path.suffix == '.json' else path.name}-jobs"


def run_jobs(
    parts: Mapping[str, Callable[..., Any]],
    spread: Spread,
    folder: Path,
    *,
    after: Mapping[str, set[str]] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run all parts, as many at the same time as there are slots, and return what they return, by name.

    Ctrl-C and SIGTERM ask running jobs to stop, wait for them, and raise KeyboardInterrupt. A part that fails stops
    only the parts that depend on it; at the end, one error names every part that failed and its log.

    Args:
        parts: functions by name, called with ``progress=``. They and what they return are pickled.
        spread: where they run.
        folder: of logs; jobs of SLURM need one on a disk that all nodes share.
        after: the parts that a part depends on, by name.
        progress: called with the number of parts that are done, with shares of those that run.
    """
    sorter = TopologicalSorter({name: (after or {}).get(name, set()) for name in parts})
    sorter.prepare()
    needed = set[str]().union(*(after or {}).values())
    ready: list[str] = []
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with _stopped_in_order(_Jobs(spread, folder)) as jobs:
        while sorter.is_active():
            ready += sorter.get_ready()
            ready.sort(key=lambda name: name not in needed)  # others wait for these
            while ready and jobs.free:
                jobs.start(ready[0], parts[ready.pop(0)])
            if not jobs.running:
                break  # the other parts depend on one that failed
            time.sleep(POLL_S)
            for name, result, problem in jobs.ended():
                if problem:
                    failed[name] = problem
                else:
                    results[name] = result
                    sorter.done(name)
            if progress is not None:
                share = len(results) + sum(jobs.share(name) for name in jobs.running)
                progress(share, len(parts), f"{len(results)} of {len(parts)} jobs done")
    if failed:
        left = len(parts) - len(results) - len(failed)
        waiting = f", and {left} that depend on them were not started" if left else ""
        named = [f"{name}: {problem}" for name, problem in failed.items()]
        more = f"; also {', '.join([*failed][MOST_NAMED:])}" if len(failed) > MOST_NAMED else ""
        raise FateError(
            f"{len(failed)} of {len(parts)} jobs failed{waiting}: {'; '.join(named[:MOST_NAMED])}{more}; the same"
            " command goes on with what is missing"
        )
    return results


class _Jobs:
    """The running jobs of one call of :func:`run_jobs`."""

    def __init__(self, spread: Spread, folder: Path) -> None:
        self.spread, self.folder = spread, folder
        self.free = list(spread.slots)
        self.running: dict[str, tuple[Any, str]] = {}  #: job and slot of each part
        self._executor = _make_executor(spread, folder)
        self._warned: set[str] = set()

    def start(self, name: str, function: Callable[..., Any]) -> None:
        """Start one part."""
        from submitit.core.utils import FailedJobError  # noqa: PLC0415

        slot = self.free.pop(0)
        local = None if self.spread.slurm is not None else (slot, os.getpid())
        if local is not None:  # torch may look for GPUs when it is imported, before the job sets its own
            gpus = (int(slot),) if slot.isdigit() else ()
            self._executor.update_parameters(gpus_per_node=len(gpus), visible_gpus=gpus)
        needs_gpu = local is None and self.spread.device == "cuda"
        job = _Job(name, function, self._share_file(name), self.spread.threads, needs_gpu, local)
        # Ctrl-C in a terminal reaches all of its processes: jobs ignore it and get one SIGTERM from this process
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.running[name] = self._executor.submit(job), slot
        except (FailedJobError, OSError) as error:  # sbatch refuses its options, or the disk is full
            reason = " ".join(str(error).split())
            raise FateError(f"{name}: cannot be started ({reason}); check the settings, and run this again") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ended(self) -> Iterator[tuple[str, Any, str]]:
        """The parts that have ended since the last call: name, result, and what went wrong, or an empty text."""
        for name, (job, slot) in list(self.running.items()):
            if not job.done():
                continue
            del self.running[name]
            self.free.append(slot)
            outcome = self._outcome(job)
            self._clear(name, job)
            yield name, *outcome

    def _outcome(self, job: Any) -> tuple[Any, str]:
        log = job.paths.stdout
        # a process of this machine that has ended writes nothing more; files of another machine may come later
        is_gone = self.spread.slurm is None and not job.paths.result_pickle.exists()
        if is_gone or job.exception() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            return None, f"it ended without a result, and the last line of its log is {last!r} (log: {log})"
        problem, warned, result = job.result()
        for text in warned:
            if text not in self._warned:
                self._warned.add(text)
                warn(text)
        return result, f"{problem} (log: {log})" if problem else ""

    def share(self, name: str) -> float:
        """The share of a running part that is done, 0 to 1."""
        try:
            return min(max(float(self._share_file(name).read_text()), 0.0), 1.0)
        except (OSError, ValueError):  # not reported yet, or being written
            return 0.0

    def stop(self) -> None:
        """Ask all jobs to stop, and wait until they have ended."""
        for job, _ in self.running.values():
            if self.spread.slurm is not None:
                job.cancel(check=False)
            else:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(int(job.job_id), signal.SIGTERM)  # submitit's process passes it on
        if self.spread.slurm is None:
            while not all(job.done() for job, _ in self.running.values()):
                time.sleep(POLL_S)
        for name, (job, _) in self.running.items():
            self._clear(name, job)

    def _clear(self, name: str, job: Any) -> None:
        """Remove the files of a job but its log."""
        for file in (job.paths.result_pickle, job.paths.submitted_pickle, self._share_file(name)):
            file.unlink(missing_ok=True)

    def _share_file(self, name: str) -> Path:
        return self.folder.absolute() / f".{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.share"


@contextmanager
def _stopped_in_order(jobs: _Jobs) -> Iterator[_Jobs]:
    """Stop all jobs if the block ends early, also by SIGTERM, which is then like Ctrl-C."""
    handler = None
    with suppress(ValueError):  # only the main thread can handle signals
        handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield jobs
    except BaseException:
        if jobs.running:
            os.write(2, b"\nstops when all jobs have ended; Ctrl-C again does not wait\n")
        jobs.stop()
        raise
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _make_executor(spread: Spread, folder: Path) -> Any:
    import submitit  # noqa: PLC0415  (most commands do not need it)
    from submitit.core.logger import get_logger  # noqa: PLC0415

    get_logger().handlers.clear()  # it writes to standard output, where results go; Python prints its warnings instead
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FateError(f"{folder}: no folder for logs can be there ({error.strerror}); give another output") from None
    if spread.slurm is None:
        local = submitit.LocalExecutor(folder)
        local.update_parameters(timeout_min=YEAR_MIN, stderr_to_stdout=True)
        return local
    try:
        executor = submitit.SlurmExecutor(folder)
    except RuntimeError:
        raise FateError(
            "jobs of SLURM were asked for, and this machine has no command srun; run this on a machine of the cluster"
        ) from None
    values = {name: int(value) if str(value).isdigit() else value for name, value in spread.slurm.items()}
    known = executor._valid_parameters() - {"setup", "teardown", "srun_args", "use_srun", "additional_parameters"}
    other = {name.replace("_", "-"): value for name, value in values.items() if name not in known}
    executor.update_parameters(
        **{"job_name": "fate", **{name: value for name, value in values.items() if name in known}},
        stderr_to_stdout=True, additional_parameters=other or None,
    )  # fmt: skip
    return executor


@dataclass(frozen=True)
class _Job:
    """A part as submitit calls it in its own process, with its name and where it reports its share."""

    name: str
    function: Callable[..., Any]
    share_file: Path
    threads: int | None
    needs_gpu: bool  #: whether SLURM should have given it a GPU
    local: tuple[str, int] | None  #: on this machine, CUDA_VISIBLE_DEVICES and the process that waits for the result

    def __call__(self) -> tuple[str, list[str], Any]:
        """Return what went wrong, or an empty text, then all warnings, and the result."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
        if self.local is not None:
            os.environ["CUDA_VISIBLE_DEVICES"], waiting = self.local
            os.setpgid(0, 0)  # together with the processes that load data for it
            threading.Thread(target=_stop_after, args=(waiting,), daemon=True).start()
        import torch  # noqa: PLC0415

        if self.threads is not None and not os.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(min(torch.get_num_threads(), self.threads))
        print(f"{self.name} begins", flush=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FateWarning)
            problem, result = "", None
            try:
                if self.needs_gpu and not torch.cuda.is_available():
                    raise FateError(f"torch finds no GPU on {platform.node()}; set gpus_per_node=0 for jobs on the CPU")
                result = self.function(progress=partial(self._report, [0.0]))
            except FateError as error:
                problem = str(error)
            except torch.OutOfMemoryError as error:
                problem = f"{str(error).split('. ')[0]}; give smaller batches, or fewer jobs at a time"
            except KeyboardInterrupt:
                problem = "it was stopped"
        for each in caught:
            print(f"{each.category.__name__}: {each.message}")
        warned = [str(each.message) for each in caught if issubclass(each.category, FateWarning)]
        print(f"error: {problem}" if problem else f"{self.name} is done", flush=True)
        return problem, warned, result

    def checkpoint(self) -> Any:
        """What submitit queues again if SLURM ends a job at its time limit: the same part, which continues."""
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415

        return DelayedSubmission(self)

    def _report(
        self, last: list[float], done: float, total: float | None = 1.0, text: str = "", part: str = "", /
    ) -> None:
        if text:
            print(text, flush=True)
        if time.monotonic() - last[0] >= REPORT_S:
            last[0] = time.monotonic()
            with suppress(OSError):  # a full disk is noticed where results are written
                self.share_file.write_text(f"{done / (total or 1.0):.4f}")


def _stop_after(process: int) -> None:
    """Stop this process when another one has ended; after half a minute, kill it and all processes of its group."""
    while True:
        time.sleep(1.0)
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30.0)
            os.killpg(0, signal.SIGKILL)


def run_shards(
    function: Callable[..., Any], shards: Sequence[tuple[int, int]], spread: Spread, folder: Path,
    progress: Progress | None = None,
) -> list[Any]:  # fmt: skip
    """Call a function with ``shard=(i, n)`` for each shard, in jobs of their own; returns the results in this order."""
    parts = {f"shard {number}/{count}": partial(function, shard=(number, count)) for number, count in shards}
    results = run_jobs(parts, spread, folder, progress=progress) if parts else {}
    return [results[name] for name in parts]
