"""The number of CPU threads of torch: not more than there are free processors.

Threads that wait for a busy processor make every step of a detector several times slower.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fate.processes import allowed_processors, idle_seconds

if TYPE_CHECKING:
    import torch

#: Time for which idle processors are counted, in seconds.
MEASURE_S = 0.2


def free_threads(usual: int, idle_s: float | None, took_s: float) -> int:
    """The number of threads to use.

    Args:
        usual: the number that torch would use.
        idle_s: how long the allowed processors were idle while one thread of this process worked for ``took_s``, in
            seconds, added up over the processors; None if the system does not report it.
        took_s: length of the measurement in seconds; less than ``MEASURE_S`` is too short, and is not used.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return usual
    threads = min(usual, allowed_processors())
    if idle_s is not None and took_s >= MEASURE_S:
        threads = min(threads, round(idle_s / took_s) + 1)
    return max(1, threads)


@contextmanager
def limit_threads(device: str = "cpu") -> Iterator[None]:
    """Limit the threads of torch to the free processors while a block runs, unless OMP_NUM_THREADS is set.

    Processors are watched for 0.2 s. Nothing changes on a GPU, or if torch has one thread already.
    """
    import torch  # noqa: PLC0415  (it takes seconds to load)

    usual = torch.get_num_threads()
    before = idle_seconds()
    if device != "cpu" or usual == 1 or before is None or os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    began = time.perf_counter()
    time.sleep(MEASURE_S)
    took_s, after = time.perf_counter() - began, idle_seconds()
    # this thread slept, so the processor that it will use counted as idle
    idle_s = None if after is None else after - before - took_s
    torch.set_num_threads(free_threads(usual, idle_s, took_s))
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def leave_a_processor(device: str | torch.device = "cpu") -> Iterator[None]:
    """Leave one processor to others while a block runs, unless OMP_NUM_THREADS is set: the one that reads the source
    of a live run, or draws its page.

    With two threads on two processors, fate-s-nano takes 17 % less time than with one. But each time that another
    program needs a processor, one thread waits for the other, and the window takes more than twice as long. Nothing
    changes on a GPU.
    """
    import torch  # noqa: PLC0415  (it takes seconds to load)

    usual = torch.get_num_threads()
    if not str(device).startswith("cpu") or os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    torch.set_num_threads(max(1, min(usual, allowed_processors() - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(usual)
