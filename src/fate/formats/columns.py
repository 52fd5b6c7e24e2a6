"""Raw columns as a decoder leaves them, and the one check that turns them into trusted events.

Decoders only decode. Whether coordinates lie on the sensor, times go forward and polarities are known
is decided here, for every format alike, so that no format can forget it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.events.events import MAX_SIDE, Sensor

NO_TIME = np.iinfo(np.int64).min
FINAL = (np.dtype(np.int64), np.dtype(np.uint16), np.dtype(np.uint16), np.dtype(np.uint8))


class Columns(NamedTuple):
    """Decoded, not yet checked: four columns of one length, of any integer type."""

    t: NDArray[Any]
    x: NDArray[Any]
    y: NDArray[Any]
    p: NDArray[Any]

    def slice(self, first: int, last: int) -> Columns:
        """Rows ``first`` to ``last`` (not included), as views."""
        return Columns(self.t[first:last], self.x[first:last], self.y[first:last], self.p[first:last])


def empty_columns() -> Columns:
    """No events."""
    return allocate_columns(0)


def allocate_columns(num_events: int) -> Columns:
    """Return columns of the final types, not yet filled."""
    return Columns(*(np.empty(num_events, dtype) for dtype in FINAL))


def concatenate(pieces: list[Columns]) -> Columns:
    """Concatenate pieces in order."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return empty_columns()
    return Columns(*(np.concatenate([piece[i] for piece in pieces]) for i in range(4)))


@dataclass
class Tally:
    """The results of the check of all blocks so far, in order. Indices count decoded events from 0."""

    events: int = 0  # decoded, before anything is dropped
    on: int = 0
    x_max: int = -1
    y_max: int = -1
    t_min: int = 0
    t_max: int = 0
    last_t: int = NO_TIME
    outside: int = 0
    outside_first: tuple[int, int, int] = (-1, 0, 0)  # index, x, y
    back: int = 0
    back_first: tuple[int, int, int] = (-1, 0, 0)  # index, time before, time
    bad_polarity: int = 0
    bad_polarity_first: tuple[int, int] = (-1, 0)  # index, value
    block: tuple[int, int] = (0, 0)  # t_min, t_max of the last block checked

    def add(self, later: Tally) -> None:
        """Add the counts of a later part that breaks no rule."""
        if later.events:
            self.t_min = min(self.t_min, later.t_min) if self.events else later.t_min
            self.t_max = max(self.t_max, later.t_max) if self.events else later.t_max
            self.last_t = later.last_t
        self.events += later.events
        self.on += later.on
        self.x_max, self.y_max = max(self.x_max, later.x_max), max(self.y_max, later.y_max)


@compiled
def _summarise_regular(t: Any, x: Any, y: Any, p: Any, out: Any) -> None:
    """Summarise columns of the final types, n > 0, in four loops that the compiler turns into vector code.

    ``out`` (int64): ON events, largest x, y and p, number of steps back in time.
    """
    n = t.shape[0]
    x_max = x[0]
    y_max = y[0]
    p_max = p[0]
    on = 0
    back = 0
    for i in range(n):
        x_max = max(x_max, x[i])
    for i in range(n):
        y_max = max(y_max, y[i])
    for i in range(n):
        p_max = max(p_max, p[i])
        on += p[i]
    for i in range(1, n):
        back += t[i] < t[i - 1]
    out[0] = on
    out[1] = x_max
    out[2] = y_max
    out[3] = p_max
    out[4] = back


@compiled
def _summarise_any(t: Any, x: Any, y: Any, p: Any, width: int, height: int, last_t: int, out: Any) -> None:
    """Summarise a block that breaks a rule, with the first event that does. :func:`check` reads ``out`` (int64)."""
    n = t.shape[0]
    on = 0
    x_max = np.int64(-1)
    y_max = np.int64(-1)
    outside = 0
    back = 0
    bad = 0
    t_min = np.int64(0)
    t_max = np.int64(0)
    previous = np.int64(last_t)
    for i in range(n):
        xi = np.int64(x[i])
        yi = np.int64(y[i])
        ti = np.int64(t[i])
        pi = np.int64(p[i])
        if xi < 0 or xi >= width or yi < 0 or yi >= height:
            if outside == 0:
                out[7] = i
                out[8] = xi
                out[9] = yi
            outside += 1
            continue
        if x_max < xi:
            x_max = xi
        if y_max < yi:
            y_max = yi
        if i == outside:  # the first event that is kept
            t_min = ti
            t_max = ti
        if ti < previous:
            if back == 0:
                out[10] = i
                out[11] = previous
                out[12] = ti
            back += 1
            t_min = min(t_min, ti)
        t_max = max(t_max, ti)
        previous = ti
        if pi == 1:
            on += 1
        elif pi != 0 and pi != -1:
            if bad == 0:
                out[13] = i
                out[14] = pi
            bad += 1
    out[0] = on
    out[1] = x_max
    out[2] = y_max
    out[3] = t_min
    out[4] = t_max
    out[5] = outside
    out[6] = back
    out[15] = bad
    out[16] = previous


def _as_checked_types(columns: Columns) -> Columns:
    """Return columns of the final types as they are and all others as int64, so that two compiled versions suffice."""
    if all(c.dtype == d and c.flags.c_contiguous for c, d in zip(columns, FINAL, strict=True)):
        return columns
    return Columns(*(np.ascontiguousarray(column, np.int64) for column in columns))


def _count_regular(columns: Columns, width: int, height: int, tally: Tally) -> bool:
    """Count a block that breaks no rule, the usual case; return False and count nothing for any other."""
    out = np.empty(5, np.int64)
    _summarise_regular(*columns, out)
    on, x_max, y_max, p_max, back = out.tolist()
    first, last = int(columns.t[0]), int(columns.t[-1])
    if x_max >= width or y_max >= height or p_max > 1 or back or first < tally.last_t:
        return False
    tally.t_min = first if tally.events == tally.outside else min(tally.t_min, first)
    tally.t_max = last if tally.events == tally.outside else max(tally.t_max, last)
    tally.last_t = last
    tally.events += len(columns.t)
    tally.on += on
    tally.x_max, tally.y_max = max(tally.x_max, x_max), max(tally.y_max, y_max)
    tally.block = (first, last)
    return True


def check(columns: Columns, sensor: Sensor | None, tally: Tally) -> Columns:
    """Return columns of the final types without events outside ``sensor``; count in ``tally`` what breaks a rule.

    Without a sensor every coordinate that fits 16 bits passes. Times that go back and unknown polarities
    are counted, not changed: the caller decides.
    """
    width, height = (sensor.width, sensor.height) if sensor else (MAX_SIDE, MAX_SIDE)
    n = len(columns.t)
    if n == 0:
        tally.block = (0, -1)
        return empty_columns()
    columns = _as_checked_types(columns)
    if columns.x.dtype == np.uint16 and _count_regular(columns, width, height, tally):
        return columns
    out = np.zeros(17, np.int64)
    _summarise_any(*columns, width, height, tally.last_t, out)
    on, x_max, y_max, t_min, t_max, outside, back = (int(value) for value in out[:7])
    kept = n - outside
    if outside and not tally.outside:
        tally.outside_first = (tally.events + int(out[7]), int(out[8]), int(out[9]))
    if back and not tally.back:
        tally.back_first = (tally.events + int(out[10]), int(out[11]), int(out[12]))
    if int(out[15]) and not tally.bad_polarity:
        tally.bad_polarity_first = (tally.events + int(out[13]), int(out[14]))
    tally.outside += outside
    tally.back += back
    tally.bad_polarity += int(out[15])
    tally.on += on
    tally.x_max, tally.y_max = max(tally.x_max, x_max), max(tally.y_max, y_max)
    if kept:
        first = tally.events == tally.outside - outside  # nothing kept before this block
        tally.t_min = t_min if first else min(tally.t_min, t_min)
        tally.t_max = t_max if first else max(tally.t_max, t_max)
        tally.last_t = int(out[16])
    tally.events += n
    tally.block = (t_min, t_max) if kept else (0, -1)
    if outside:
        inside = (columns.x >= 0) & (columns.x < width) & (columns.y >= 0) & (columns.y < height)
        columns = Columns(*(column[inside] for column in columns))
    p = columns.p if columns.p.dtype == np.uint8 else (columns.p > 0).astype(np.uint8)
    return Columns(
        np.ascontiguousarray(columns.t, np.int64),
        np.ascontiguousarray(columns.x, np.uint16),
        np.ascontiguousarray(columns.y, np.uint16),
        np.ascontiguousarray(p),
    )
