"""The peak of main and GPU memory that the commands started by this process use, sampled while they run."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

#: Seconds between two samples.
INTERVAL_S = 0.5
PROC = Path("/proc")


class MemoryWatch:
    """``with MemoryWatch() as watch:`` samples memory inside the block; the peaks are None where they are unknown.

    Main memory is that of all processes below this one; memory that several of them share counts once. Only Linux
    reports it. GPU memory is what everybody uses on the current GPU, less what was in use before.
    """

    def __init__(self) -> None:
        self.main_gb: float | None = None
        self.gpu_gb: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._before = used_gpu_gb() or 0.0
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            main, gpu = memory_of_children_gb(), used_gpu_gb()
            if main is not None:
                self.main_gb = max(self.main_gb or 0.0, main)
            if gpu is not None:
                self.gpu_gb = max(self.gpu_gb or 0.0, gpu - self._before)


def used_gpu_gb() -> float | None:
    """Memory in use on the current GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def memory_of_children_gb() -> float | None:
    """Main memory of all processes below this one; None where the system does not report it."""
    parents: dict[int, int] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # processes end at any time
            # the name in brackets may hold spaces
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    if not parents:
        return None
    below, found = {os.getpid()}, 0
    while len(below) > found:
        found = len(below)
        below |= {process for process, parent in parents.items() if parent in below}
    total = 0
    for process in below - {os.getpid()}:
        with suppress(OSError, StopIteration):
            lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total * 1024 / 1e9
