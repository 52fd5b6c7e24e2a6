"""Copies the block of a batch into columns with room for more events, by one Triton kernel.

A CUDA graph has columns of fixed places. ``batch.copy_events`` copies a batch into them column by column. Starting
these eight copies takes longer than the copies themselves. With ``unpack_events`` inside of the graph, one copy of the
whole block is left.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.encoding.batch import EventBatch

EVENTS_PER_PROGRAM = 1024


def unpack_events(block: Tensor, target: EventBatch, windows: int) -> None:
    """Write the events of a batch to the beginning of the columns of a larger one.

    The number of events is read from the block, so that it may change between two replays of a graph.

    Args:
        block: [bytes] uint8 on the GPU, which begins with ``batch.block``.
        target: has ``windows`` or more windows, and room for the events. The times of its other events become zero, so
            that they do not decrease if one more window takes them.
        windows: B of the batch.
    """
    grid = (triton.cdiv(max(target.num_events, 1), EVENTS_PER_PROGRAM),)
    columns = (target.t_us, target.x, target.y, target.p, target.start_us, target.duration_us, target.offsets)
    with torch.cuda.device_of(block):
        _unpack[grid](
            block, *columns, target.num_events, windows, triton.next_power_of_2(windows + 1), EVENTS_PER_PROGRAM
        )


@triton.jit
def _end(begin, size):
    """Where the column behind one of ``size`` bytes begins: at a multiple of 16, as in ``batch``."""
    return begin + (size + 15) // 16 * 16


@triton.jit
def _unpack(
    block,
    t_us,
    x,
    y,
    p,
    start_us,
    duration_us,
    offsets,
    capacity,
    windows,
    ROWS: tl.constexpr,  # a power of two above the number of windows
    EVENTS: tl.constexpr,
):
    duration_at = _end(0, 8 * windows)
    offsets_at = _end(duration_at, 8 * windows)
    t_at = _end(offsets_at, 8 * windows + 8)
    given = tl.load((block + offsets_at).to(tl.pointer_type(tl.int64)) + windows)
    x_at = _end(t_at, 4 * given)
    y_at = _end(x_at, 2 * given)
    p_at = _end(y_at, 2 * given)
    event = tl.program_id(0) * EVENTS + tl.arange(0, EVENTS)
    there = event < given
    times = tl.load((block + t_at).to(tl.pointer_type(tl.int32)) + event, mask=there, other=0)
    tl.store(t_us + event, times, mask=event < capacity)
    tl.store(x + event, tl.load((block + x_at).to(tl.pointer_type(tl.int16)) + event, mask=there), mask=there)
    tl.store(y + event, tl.load((block + y_at).to(tl.pointer_type(tl.int16)) + event, mask=there), mask=there)
    tl.store(p + event, tl.load(block + p_at + event, mask=there), mask=there)
    if tl.program_id(0) == 0:
        row = tl.arange(0, ROWS)
        inside = row < windows
        starts = tl.load(block.to(tl.pointer_type(tl.int64)) + row, mask=inside)
        durations = tl.load((block + duration_at).to(tl.pointer_type(tl.int64)) + row, mask=inside)
        bounds = tl.load((block + offsets_at).to(tl.pointer_type(tl.int64)) + row, mask=row <= windows)
        tl.store(start_us + row, starts, mask=inside)
        tl.store(duration_us + row, durations, mask=inside)
        tl.store(offsets + row, bounds, mask=row <= windows)
