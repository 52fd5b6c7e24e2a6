"""Functions that differ between operating systems: worker processes, file locks, signals and peak memory.

Windows has no ``fcntl``, ``resource`` and ``forkserver``, and few signals. Modules that need them use this module.
"""

from __future__ import annotations

import errno
import importlib
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fate.errors import FateError

#: Files in which Linux reports the limits of a container and the times of every processor.
CGROUP = Path("/sys/fs/cgroup")
STAT = Path("/proc/stat")


def worker_start_method() -> str:
    """The way to start worker processes: ``"forkserver"`` where the system has it, else ``"spawn"``.

    A fork server loads torch once for all workers. Plain ``fork`` is never used: it copies locks that threads hold.
    """
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def worker_context(preload: str | None = None) -> Any:
    """A ``multiprocessing`` context for workers; a fork server imports the module ``preload`` once for all of them."""
    context = multiprocessing.get_context(worker_start_method())
    if preload is not None and worker_start_method() == "forkserver":
        context.set_forkserver_preload([preload])
    return context


def own_rank() -> int:
    """The number of this process among those that torchrun, SLURM or Lightning has started together; 0 alone."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def lock_file(handle: int) -> None:
    """Lock an open file, by its descriptor, for this process until the file is closed or the process ends.

    Raises BlockingIOError if another process has locked the file, and another OSError if the system has no locks.
    """
    fcntl, msvcrt = _module("fcntl"), _module("msvcrt")
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt is not None:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # one byte; it may lie behind the end of the file
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process") from None
            raise
    else:
        raise OSError(errno.ENOTSUP, "this Python has no file locks")


@contextmanager
def lock_folder(folder: Path, wait_s: float = 60.0) -> Iterator[bool]:
    """Let one process at a time change files of a folder; others wait up to ``wait_s`` seconds and are then refused.

    POSIX systems lock the folder itself. Windows cannot open folders, so a file ``.lock`` in it is locked there. Yields
    whether the folder is locked: False if the disk has no locks.
    """
    try:
        if _module("fcntl") is not None:
            handle = os.open(folder, os.O_RDONLY)
        else:
            handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FateError(f"{folder}: cannot be opened ({error.strerror}); give another folder") from None
    end = time.monotonic() + wait_s
    try:
        while True:
            try:
                lock_file(handle)
                locked = True
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise FateError(
                        f"{folder}: another process writes to this folder; wait for it or end it, then run this again"
                    ) from None
                time.sleep(0.01)
            except OSError:
                locked = False
                break
        yield locked
    finally:
        os.close(handle)  # ends the lock


def peak_memory_mb() -> float | None:
    """Highest resident memory of this process so far, in MB of 10⁶ bytes; None if the system does not report it."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux; getrusage would report the parent's peak where that was higher
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1]) * 1024 / 1e6
    resource = _module("resource")
    if resource is None:
        return None
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # macOS counts bytes, others kilobytes


#: Numbers of the signals that ask a run to save and stop, as far as this operating system has them. SLURM announces the
#: end of a job's time with the last one.
STOP_SIGNALS = tuple(int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
#: Ends a process at once. Windows has only SIGTERM, which does the same there.
KILL_SIGNAL = int(getattr(signal, "SIGKILL", signal.SIGTERM))


def main_memory_mb() -> float | None:
    """Main memory of this machine, or the limit of its container, in MB; None if the system does not report it."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max" if the container has no limit
        size = min(size, int((CGROUP / "memory.max").read_text()))
    return size / 1e6


def _module(name: str) -> Any:
    """A module of the standard library that not every system has, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def allowed_processors() -> int:
    """Return the number of processors that this process may use: its affinity, and the quota of its container."""
    return max(1, math.ceil(min(len(_affinity()), _quota())))


def idle_seconds() -> float | None:
    """The idle time of the allowed processors in seconds since the machine started; None if it is not reported.

    The difference of two calls, divided by the time between them, is the number of processors that nobody used.
    """
    allowed = _affinity()
    ticks = 0
    try:
        for line in STAT.read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in allowed:
                ticks += int(fields[3]) + int(fields[4])  # idle, and waiting for a disk
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux, or the file is hidden
        return None


def _affinity() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on Windows and macOS
        return set(range(os.cpu_count() or 1))


def _quota() -> float:
    """Return the processors that the container's quota allows; infinity without one."""
    with suppress(OSError, ValueError):  # cgroup v2: "200000 100000" or "max 100000"
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):  # cgroup v1: -1 is no limit
        quota_us, period_us = (
            int((CGROUP / "cpu" / f"cpu.cfs_{what}_us").read_text(encoding="ascii")) for what in ("quota", "period")
        )
        return quota_us / period_us if quota_us > 0 else math.inf
    return math.inf
