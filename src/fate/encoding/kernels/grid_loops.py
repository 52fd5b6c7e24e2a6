"""The representations of the peers on the CPU: one pass over the events of each window.

Events come in time order, so those of one time bin lie in a row: a bisection finds where they end, and no event needs a
division to know its bin. What is only needed until its bin is over (sums in microseconds) lives in a buffer of one bin,
which stays in the cache and is cleared by walking over the bin's events again. The images are handed in as zeros (or
what stands for nothing): most cells are never touched.

All loops take the columns of an ``EventBatch`` (``t_us`` since the window's start, ``x``, ``y``, ``p``, ``offsets``).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled

Column = NDArray[Any]
Image = NDArray[np.float32]

# What the time bins of a window are laid over.
OVER_EVENTS = 0  #: first to last event; the last event itself is put into the last bin
OVER_EVENTS_INCLUDING_LAST = 1  #: first event to 1 µs after the last
OVER_WINDOW = 2  #: the window

NOT_KEPT = -(1 << 40)  # a place that stays below 0 whatever place of the other axis is added


@compiled
def _begin_and_span(over: int, t_us: Column, first: int, last: int, duration_us: int) -> Any:
    """What the bins of the window with the events ``first`` to ``last`` are laid over, two numbers in µs."""
    if over == OVER_WINDOW:
        return 0, duration_us
    begin = np.int64(t_us[first])
    span = np.int64(t_us[last - 1]) - begin
    if over == OVER_EVENTS_INCLUDING_LAST:
        return begin, span + 1
    return begin, max(span, 1)


@compiled
def _end_of_bin(number: int, bins: int, begin: int, span: int, t_us: Column, first: int, last: int) -> int:
    """Where the events of bin ``number`` end that begin at ``first``; the last bin takes all that are left."""
    if number == bins - 1:
        return last
    limit_us = begin + ((number + 1) * span + bins - 1) // bins
    return first + int(np.searchsorted(t_us[first:last], limit_us))


@compiled
def _kept(length: int, step: int, scale: int) -> Any:
    """[length] int64, of rows or columns: its place among every ``step``-th one, times ``scale``, or below 0 for none.

    Of each ``step`` the middle one is kept, or the one behind the middle; a last few that are not ``step`` give none.
    """
    kept_offsets = np.full(length, NOT_KEPT, np.int64)
    for i in range(length // step):
        kept_offsets[i * step + step // 2] = i * scale
    return kept_offsets


@compiled
def count_events(
    t_us: Column, x: Column, y: Column, p: Column, offsets: Column, duration_us: Column, image: Image,
    over: int, on_first: int, modulus: float, cutoff: float, step: int, height: int, width: int,
) -> None:  # fmt: skip
    """Events of each polarity, time bin and pixel.

    Args:
        image: [B, 2, bins, (height // step) · (width // step)], zeros.
        over: what the bins are laid over.
        on_first: 1 if channels of ON events come first, 0 if those of OFF events.
        modulus: a count that reaches it starts from 0 again.
        cutoff: larger counts become it.
        step: of ``step`` × ``step`` pixels only the middle one is looked at.
    """
    one, limit, largest = np.float32(1), np.float32(modulus), np.float32(cutoff)
    plain = min(limit - one, largest)  # counts up to here are values of the image
    bins = image.shape[2]
    row_offset, column_offset = _kept(height, step, width // step), _kept(width, step, 1)
    for window in range(offsets.size - 1):
        start, last = offsets[window], offsets[window + 1]
        if start == last:
            continue
        begin, span = _begin_and_span(over, t_us, start, last, duration_us[window])
        for number in range(bins):
            end = _end_of_bin(number, bins, begin, span, t_us, start, last)
            planes = image[window, :, number]
            most = np.float32(0)
            for e in range(start, end):
                pixel = row_offset[y[e]] + column_offset[x[e]]
                if pixel >= 0:
                    count = planes[p[e] ^ on_first, pixel] + one
                    planes[p[e] ^ on_first, pixel] = count
                    if count > most:
                        most = count
            if most > plain:  # seldom; a cell met again has its value already
                for e in range(start, end):
                    pixel = row_offset[y[e]] + column_offset[x[e]]
                    if pixel >= 0 and planes[p[e] ^ on_first, pixel] > plain:
                        count = planes[p[e] ^ on_first, pixel]
                        planes[p[e] ^ on_first, pixel] = min(count % limit, largest)
            start = end


@compiled
def spread_events(
    t_us: Column, x: Column, y: Column, p: Column, offsets: Column, duration_us: Column, image: Image,
    signed: bool, columns: int,
) -> None:  # fmt: skip
    """Every event shared between the two bins nearest in time; image [B, 1 or 2, bins, H × W], zeros.

    Bin k stands for the moment ``k · duration / (bins - 1)``. Shares are added up as whole numbers, in units of
    ``1 / duration``. A bin gets shares from the events on both sides of its moment, so two sums are open at a time, and
    lie side by side. If ``signed``, OFF events count -1, and there is one set of channels.
    """
    bins = image.shape[2]
    stretches = max(bins - 1, 1)
    sums = np.zeros((image.shape[1], image.shape[3], 2), np.int64)
    for window in range(offsets.size - 1):
        begin, start, last = offsets[window], offsets[window], offsets[window + 1]
        duration = duration_us[window]
        divisor = np.float32(duration)
        for number in range(stretches):
            end = _end_of_bin(number, stretches, 0, duration, t_us, start, last)
            near, far = number & 1, 1 - (number & 1)
            left, right = image[window, :, number], image[window, :, min(number + 1, bins - 1)]
            for e in range(start, end):
                pixel = np.int64(y[e]) * columns + x[e]
                plane = 0 if signed else np.int64(p[e])
                sign = -1 if signed and p[e] == 0 else 1
                late = np.int64(t_us[e]) * (bins - 1) - number * duration
                sums[plane, pixel, near] += sign * (duration - late)
                left[plane, pixel] = np.float32(sums[plane, pixel, near]) / divisor
                if late > 0:  # never with one bin
                    sums[plane, pixel, far] += sign * late
                    right[plane, pixel] = np.float32(sums[plane, pixel, far]) / divisor
            for e in range(begin, end):  # the near bin is over: its sums become those of the next far one
                sums[0 if signed else np.int64(p[e]), np.int64(y[e]) * columns + x[e], near] = 0
            begin, start = start, end
        for e in range(begin, last):
            sums[0 if signed else np.int64(p[e]), np.int64(y[e]) * columns + x[e]] = 0


@compiled
def decay_last_events(
    t_us: Column, x: Column, y: Column, p: Column, offsets: Column, duration_us: Column, image: Image,
    tau_us: float, columns: int,
) -> None:  # fmt: skip
    """exp(-age / tau) of the last event of each polarity and pixel at the window's end; image [B, 2, H × W], zeros.

    An age is ``high · 2^bits + low``, and the exponential of a sum a product: two short tables hold all of them.
    """
    for window in range(offsets.size - 1):
        duration = duration_us[window]
        bits = 1
        while (duration >> bits) > (1 << bits):
            bits += 1
        size = 1 << bits
        low, high = np.empty(size), np.empty((duration >> bits) + 1)
        for i in range(low.size):
            low[i] = math.exp(-i / tau_us)
        for i in range(high.size):
            high[i] = math.exp(-(i * size) / tau_us)
        planes = image[window]
        for e in range(offsets[window], offsets[window + 1]):
            age = duration - t_us[e]
            planes[p[e], np.int64(y[e]) * columns + x[e]] = np.float32(high[age >> bits] * low[age & (size - 1)])


@compiled
def queue_last_events(
    t_us: Column, x: Column, y: Column, p: Column, offsets: Column, duration_us: Column, image: Image,
    min_us: float, max_us: float, columns: int,
) -> None:  # fmt: skip
    """Log ages of the last events of each polarity and pixel, newest first, seen from the window's end.

    The image [B, 2, depth, H × W], ON first, has the value of ``max_us`` everywhere. Events are walked backwards in
    time, so that the first ones met are the ones wanted.
    """
    depth, pixels = image.shape[2], image.shape[3]
    floor = math.log(min_us + 1)
    for window in range(offsets.size - 1):
        found = np.zeros((2, pixels), np.int32)
        planes = image[window]
        value, value_us = np.float32(0), np.int64(-1)
        for e in range(offsets[window + 1] - 1, offsets[window] - 1, -1):
            pixel = np.int64(y[e]) * columns + x[e]
            rank = found[p[e], pixel]
            if rank < depth:
                if t_us[e] != value_us:  # events often share one time
                    value_us = np.int64(t_us[e])
                    age = min(float(duration_us[window] - value_us), max_us)
                    value = np.float32(max(math.log(age + 1) - floor, 0.0))
                planes[1 - p[e], rank, pixel] = value
                found[p[e], pixel] = rank + 1


@compiled
def count_tokens(
    t_us: Column, x: Column, y: Column, p: Column, offsets: Column, duration_us: Column, image: Image,
    patch: int, rows: int, columns: int,
) -> None:  # fmt: skip
    """Events and their relative times, added up for each time bin, polarity and pixel of a patch.

    The image [B, bins, 2 polarities, count and time, patch · patch · rows · columns] is zeros.
    """
    one, bins, cells = np.float32(1), image.shape[1], image.shape[4]
    row_offset, column_offset = np.empty(rows * patch, np.int64), np.empty(columns * patch, np.int64)
    for row in range(row_offset.size):
        row_offset[row] = ((row % patch) * patch * rows + row // patch) * columns
    for column in range(column_offset.size):
        column_offset[column] = (column % patch) * rows * columns + column // patch
    sums = np.zeros((2, cells), np.int64)
    for window in range(offsets.size - 1):
        start, last = offsets[window], offsets[window + 1]
        if start == last:
            continue
        begin, span = _begin_and_span(OVER_EVENTS_INCLUDING_LAST, t_us, start, last, duration_us[window])
        divisor = np.float32(span - 1) + np.float32(1e-4)
        for number in range(bins):
            end = _end_of_bin(number, bins, begin, span, t_us, start, last)
            counts, shares = image[window, number, :, 0], image[window, number, :, 1]
            for e in range(start, end):
                cell = row_offset[y[e]] + column_offset[x[e]]
                sums[p[e], cell] += t_us[e] - begin
                counts[p[e], cell] += one
                shares[p[e], cell] = np.float32(sums[p[e], cell]) / divisor
            for e in range(start, end):
                sums[p[e], row_offset[y[e]] + column_offset[x[e]]] = 0
            start = end
