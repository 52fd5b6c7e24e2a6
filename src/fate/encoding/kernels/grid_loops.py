"""The representations of other detectors on the CPU: one compiled pass over the events of each window.

Events are in time order, so the events of one time bin are contiguous: a bisection finds where they end, and no event
needs a division to find its bin. Sums in microseconds that are needed until the end of their bin are kept in a buffer
of one bin, which fits into the cache and is cleared by visiting the events of the bin again. Images are passed in
filled with the value of cells without events, since most cells are never touched.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled

Column = NDArray[Any]
#: t_us (since the window's start), x, y, p, offsets and duration_us of some windows of an ``EventBatch``.
Columns = tuple[Column, ...]
Image = NDArray[np.float32]

# The time of a window that its bins divide.
OVER_EVENTS = 0  #: first to last event; the last event itself is in the last bin
OVER_EVENTS_INCLUDING_LAST = 1  #: first event to 1 µs after the last
OVER_WINDOW = 2  #: the window

NOT_KEPT = -(1 << 40)  # an offset that stays below 0 after any offset of the other axis is added


@compiled
def _bin_limits(events: Columns, window: int, bins: int, over: int) -> Any:
    """Divide the events of a window into time bins; ``over`` is the time that the bins divide.

    Returns [bins + 1] int64 limits: bin k has the events ``limits[k]`` to ``limits[k + 1]``, and the last bin all that
    are left; and the start and the length in µs of the divided time.
    """
    t_us, _, _, _, offsets, duration_us = events
    first, last = offsets[window], offsets[window + 1]
    begin, span = np.int64(0), np.int64(duration_us[window])
    if over != OVER_WINDOW and first < last:
        begin = np.int64(t_us[first])
        span = np.int64(t_us[last - 1]) - begin
        span = span + 1 if over == OVER_EVENTS_INCLUDING_LAST else max(span, np.int64(1))
    limits = np.full(bins + 1, last, np.int64)
    limits[0] = first
    for k in range(1, bins):
        limits[k] = limits[k - 1] + np.searchsorted(t_us[limits[k - 1] : last], begin + (k * span + bins - 1) // bins)
    return limits, begin, span


@compiled
def _kept(length: int, step: int, scale: int) -> Any:
    """[length] int64 offsets of rows or columns in an image with every ``step``-th one, below 0 if it is not kept.

    Of each ``step`` rows the middle one is kept, or the one after the middle; an incomplete last group is dropped. The
    offset is the index of the group times ``scale``.
    """
    kept_offsets = np.full(length, NOT_KEPT, np.int64)
    for i in range(length // step):
        kept_offsets[i * step + step // 2] = i * scale
    return kept_offsets


@compiled
def count_events(
    events: Columns,
    image: Image,
    over: int,
    on_first: int,
    modulus: float,
    cutoff: float,
    step: int,
    height: int,
    width: int,
) -> None:
    """Count the events of each polarity, time bin and pixel.

    Args:
        image: [B, 2, bins, (height // step) · (width // step)], zeros.
        over: the time that the bins divide.
        on_first: 1 if the channels of ON events come first, else 0.
        modulus: a count that reaches this value starts from 0 again.
        cutoff: larger counts are set to this value.
        step: of ``step`` × ``step`` pixels only the middle one is counted.
    """
    _, x, y, p, offsets, _ = events
    one, limit, largest = np.float32(1), np.float32(modulus), np.float32(cutoff)
    plain = min(limit - one, largest)  # counts up to here are values of the image
    bins = image.shape[2]
    row_offset, column_offset = _kept(height, step, width // step), _kept(width, step, 1)
    for window in range(offsets.size - 1):
        limits, _, _ = _bin_limits(events, window, bins, over)
        for number in range(bins):
            start, end = limits[number], limits[number + 1]
            planes = image[window, :, number]
            most = np.float32(0)
            for e in range(start, end):
                pixel = row_offset[y[e]] + column_offset[x[e]]
                if pixel >= 0:
                    count = planes[p[e] ^ on_first, pixel] + one
                    planes[p[e] ^ on_first, pixel] = count
                    if count > most:
                        most = count
            if most > plain:  # rare; a cell that is visited again has its final value already
                for e in range(start, end):
                    pixel = row_offset[y[e]] + column_offset[x[e]]
                    if pixel >= 0 and planes[p[e] ^ on_first, pixel] > plain:
                        count = planes[p[e] ^ on_first, pixel]
                        planes[p[e] ^ on_first, pixel] = min(count % limit, largest)


@compiled
def spread_events(events: Columns, image: Image, signed: bool, width: int) -> None:
    """Share every event between the two nearest bins; image [B, 1 or 2, bins, H × W], zeros.

    Bin k represents the time ``k · duration / (bins - 1)``. Shares are integers in units of ``1 / duration``. A bin
    gets shares from events before and after its time, so the sums of two bins are needed at once; they are adjacent in
    memory. If ``signed``, OFF events count -1, and there is one set of channels.
    """
    t_us, x, y, p, offsets, _ = events
    bins = image.shape[2]
    stretches = max(bins - 1, 1)
    sums = np.zeros((image.shape[1], image.shape[3], 2), np.int64)
    for window in range(offsets.size - 1):
        limits, _, duration = _bin_limits(events, window, stretches, OVER_WINDOW)
        divisor = np.float32(duration)
        for number in range(stretches):
            near, far = number & 1, 1 - (number & 1)
            left, right = image[window, :, number], image[window, :, min(number + 1, bins - 1)]
            for e in range(limits[number], limits[number + 1]):
                pixel = np.int64(y[e]) * width + x[e]
                plane = 0 if signed else np.int64(p[e])
                sign = -1 if signed and p[e] == 0 else 1
                late = np.int64(t_us[e]) * (bins - 1) - number * duration
                sums[plane, pixel, near] += sign * (duration - late)
                left[plane, pixel] = np.float32(sums[plane, pixel, near]) / divisor
                if late > 0:  # never with one bin
                    sums[plane, pixel, far] += sign * late
                    right[plane, pixel] = np.float32(sums[plane, pixel, far]) / divisor
            # the near bin is complete: its sums are cleared for the next far bin
            for e in range(limits[max(number - 1, 0)], limits[number + 1]):
                sums[0 if signed else np.int64(p[e]), np.int64(y[e]) * width + x[e], near] = 0
        for e in range(limits[stretches - 1], limits[stretches]):
            sums[0 if signed else np.int64(p[e]), np.int64(y[e]) * width + x[e]] = 0


@compiled
def decay_last_events(events: Columns, image: Image, tau_us: float, width: int) -> None:
    """Write exp(-age / tau) of the last event of each polarity and pixel into the image [B, 2, H × W] of zeros.

    An age is ``high · 2^bits + low``, so its exponential is the product of one entry from each of two short tables.
    """
    t_us, x, y, p, offsets, duration_us = events
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
            planes[p[e], np.int64(y[e]) * width + x[e]] = np.float32(high[age >> bits] * low[age & (size - 1)])


@compiled
def queue_last_events(events: Columns, image: Image, min_us: float, max_us: float, width: int) -> None:
    """Write log ages of the last events of each polarity and pixel, newest first, measured at the window's end.

    The image [B, 2, depth, H × W], ON first, has the value of ``max_us`` everywhere. Events are visited backwards in
    time, so that the first ones of a pixel are its newest.
    """
    t_us, x, y, p, offsets, duration_us = events
    depth, pixels = image.shape[2], image.shape[3]
    floor = math.log(min_us + 1)
    for window in range(offsets.size - 1):
        found = np.zeros((2, pixels), np.int32)
        planes = image[window]
        value, value_us = np.float32(0), np.int64(-1)
        for e in range(offsets[window + 1] - 1, offsets[window] - 1, -1):
            pixel = np.int64(y[e]) * width + x[e]
            rank = found[p[e], pixel]
            if rank < depth:
                if t_us[e] != value_us:  # events often share one time
                    value_us = np.int64(t_us[e])
                    age = min(float(duration_us[window] - value_us), max_us)
                    value = np.float32(max(math.log(age + 1) - floor, 0.0))
                planes[1 - p[e], rank, pixel] = value
                found[p[e], pixel] = rank + 1


@compiled
def count_tokens(events: Columns, image: Image, patch: int, rows: int, columns: int) -> None:
    """Sum up events and their relative times for each time bin, polarity and pixel of a patch.

    The image [B, bins, 2 polarities, (count, time), patch · patch · rows · columns] is zeros.
    """
    t_us, x, y, p, offsets, _ = events
    one, bins, cells = np.float32(1), image.shape[1], image.shape[4]
    row_offset, column_offset = np.empty(rows * patch, np.int64), np.empty(columns * patch, np.int64)
    for row in range(row_offset.size):
        row_offset[row] = ((row % patch) * patch * rows + row // patch) * columns
    for column in range(column_offset.size):
        column_offset[column] = (column % patch) * rows * columns + column // patch
    sums = np.zeros((2, cells), np.int64)
    for window in range(offsets.size - 1):
        limits, begin, span = _bin_limits(events, window, bins, OVER_EVENTS_INCLUDING_LAST)
        divisor = np.float32(span - 1) + np.float32(1e-4)
        for number in range(bins):
            start, end = limits[number], limits[number + 1]
            counts, shares = image[window, number, :, 0], image[window, number, :, 1]
            for e in range(start, end):
                cell = row_offset[y[e]] + column_offset[x[e]]
                sums[p[e], cell] += t_us[e] - begin
                counts[p[e], cell] += one
                shares[p[e], cell] = np.float32(sums[p[e], cell]) / divisor
            for e in range(start, end):
                sums[p[e], row_offset[y[e]] + column_offset[x[e]]] = 0
