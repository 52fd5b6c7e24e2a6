"""How much memory a call takes above what lay there before, its output included."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fate.bench.encode_peers import make_encoder
from fate.encoding.batch import EventBatch
from fate.events.events import Events, Sensor
from fate.events.window import Window

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def peak_on_gpu(call: Callable[[], object]) -> float:
    """MB of GPU memory, by torch's own count."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def peak_in_process(name: str, batch: EventBatch) -> float | None:
    """MB of resident memory of a forward call on the CPU, in a process that does only this; None where not on Linux.

    Allocators keep what was freed, so a process that has measured something else would show too little.
    """
    if not CLEAR.exists():
        return None
    context = get_context("spawn")
    pipe, far_end = context.Pipe(duplex=False)
    work = (name, batch.block.numpy(), batch.counts, tuple(batch.sensor), torch.get_num_threads(), far_end)
    process = context.Process(target=_measure, args=work, daemon=True)
    process.start()
    far_end.close()
    try:
        peak: float | None = pipe.recv()
    except EOFError:  # the process ended, by lack of memory perhaps
        peak = None
    process.join()
    return peak


def _measure(name: str, block: NDArray[np.uint8], counts: tuple[int, ...], sensor: tuple[int, int], threads: int,
             pipe: Connection) -> None:  # fmt: skip
    torch.set_num_threads(threads)
    batch = EventBatch(torch.from_numpy(block.copy()), counts, Sensor(*sensor))
    encoder = make_encoder(name, batch).eval()
    with torch.no_grad():
        small = EventBatch.from_windows([(Window(0, 10), Events([1], [1], [1], [1], sensor=(16, 16)))])
        if not name.startswith(
            "dense"
        ):  # a first call loads compiled loops; on a small frame it leaves no memory behind
            make_encoder(name, small).eval()(small)
        _trim()
        CLEAR.write_text("5")  # the highest resident size begins anew
        before = _status_kb("VmRSS")
        kept = encoder(batch)
        pipe.send((_status_kb("VmHWM") - before) / 1000)
        del kept


def _trim() -> None:
    """Give freed memory back to the system, where the C library can."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        return


def _status_kb(name: str) -> int:
    return int(next(line for line in STATUS.read_text().splitlines() if line.startswith(name)).split()[1])
