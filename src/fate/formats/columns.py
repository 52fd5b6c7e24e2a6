"""Raw columns as a decoder leaves them, and the one check that turns them into trusted events.

Decoders only decode. Whether coordinates lie on the sensor, times go forward and polarities are known
is decided here, for every format alike, so that no format can forget it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.events.events import MAX_SIDE, Sensor

NO_TIME = np.iinfo(np.int64).min
FINAL: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("i8", "u2", "u2", "u1"))


class Columns(NamedTuple):
    """Decoded, not yet checked: four columns of one length, of any integer type."""

    t: NDArray[Any]
    x: NDArray[Any]
    y: NDArray[Any]
    p: NDArray[Any]

    def slice(self, first: int, last: int) -> Columns:
        """Rows ``first`` to ``last`` (not included), as views."""
        return Columns(self.t[first:last], self.x[first:last], self.y[first:last], self.p[first:last])

    def take(self, rows: NDArray[Any]) -> Columns:
        """The rows of an index or of a mask, as copies."""
        return Columns(self.t[rows], self.x[rows], self.y[rows], self.p[rows])


def allocate_columns(num_events: int) -> Columns:
    """Return columns of the final types, not yet filled."""
    return Columns(*(np.empty(num_events, dtype) for dtype in FINAL))


def concatenate(pieces: list[Columns]) -> Columns:
    """Concatenate pieces in order."""
    if not pieces:
        return allocate_columns(0)
    return pieces[0] if len(pieces) == 1 else Columns(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


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
            self.add_times(later.t_min, later.t_max, later.last_t)
        self.events += later.events
        self.on += later.on
        self.x_max, self.y_max = max(self.x_max, later.x_max), max(self.y_max, later.y_max)

    def add_times(self, t_min: int, t_max: int, last_t: int) -> None:
        """Extend the span of time; call it before the events are counted."""
        is_first = self.events == self.outside
        self.t_min = t_min if is_first else min(self.t_min, t_min)
        self.t_max = t_max if is_first else max(self.t_max, t_max)
        self.last_t = last_t


@compiled
def _extremes(column: Any) -> Any:
    low = column[0]
    high = column[0]
    for i in range(column.shape[0]):  # no branches, so that it becomes vector code
        low = min(low, column[i])
        high = max(high, column[i])
    return np.int64(low), np.int64(high)


@compiled
def _summarise(t: Any, x: Any, y: Any, p: Any) -> Any:
    """Return, of at least one event, the sum of ``p``, the steps back in time, and the extremes of x, y and p."""
    sum_p = 0
    num_back = 0
    for i in range(p.shape[0]):  # eight times faster than a comparison
        sum_p += p[i]
    for i in range(1, t.shape[0]):
        num_back += t[i] < t[i - 1]
    return sum_p, num_back, _extremes(x), _extremes(y), _extremes(p)


def check(columns: Columns, sensor: Sensor | None, tally: Tally) -> Columns:
    """Return columns of the final types without events outside ``sensor``; count in ``tally`` what breaks a rule.

    Without a sensor every coordinate that fits 16 bits passes. Times that go back and unknown polarities
    are counted, not changed: the caller decides.
    """
    tally.block = (0, -1)
    num_events = len(columns.t)
    if num_events == 0:
        return allocate_columns(0)
    if not all(c.dtype == dtype and c.flags.c_contiguous for c, dtype in zip(columns, FINAL, strict=True)):
        columns = Columns(*(np.ascontiguousarray(column, np.int64) for column in columns))  # two compiled versions do
    width, height = (sensor.width, sensor.height) if sensor else (MAX_SIDE, MAX_SIDE)
    sum_p, num_back, (x_min, x_max), (y_min, y_max), (p_min, p_max) = _summarise(*columns)
    rows: Sequence[int] | NDArray[np.intp] = range(num_events)  # of the events that are kept
    if x_min < 0 or y_min < 0 or x_max >= width or y_max >= height:
        _, x, y, _ = columns
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        rows = np.flatnonzero(inside)
        if not tally.outside:
            first = int(np.argmin(inside))
            tally.outside_first = (tally.events + first, int(x[first]), int(y[first]))
        columns = columns.take(rows)
        if len(rows):
            sum_p, num_back, (_, x_max), (_, y_max), (p_min, p_max) = _summarise(*columns)
    if len(rows):
        t, p = columns.t, columns.p
        tally.block = (int(t[0]), int(t[-1]))
        if num_back or t[0] < tally.last_t:
            before = np.append(tally.last_t, t[:-1])
            back = np.flatnonzero(t < before)
            if not tally.back:
                tally.back_first = (tally.events + int(rows[back[0]]), int(before[back[0]]), int(t[back[0]]))
            tally.back += len(back)
            tally.block = (int(t.min()), int(t.max()))
        tally.add_times(*tally.block, int(t[-1]))
        if p_max > 1 or p_min < -1:
            bad = np.flatnonzero((p < -1) | (p > 1))
            if not tally.bad_polarity:
                tally.bad_polarity_first = (tally.events + int(rows[bad[0]]), int(p[bad[0]]))
            tally.bad_polarity += len(bad)
        is_binary = p_min >= 0 and p_max <= 1
        tally.on += sum_p if is_binary else int(np.count_nonzero(p == 1))
        tally.x_max, tally.y_max = max(tally.x_max, x_max), max(tally.y_max, y_max)
    tally.events += num_events
    tally.outside += num_events - len(rows)
    if columns.p.dtype != np.uint8:
        columns = columns._replace(p=columns.p > 0)
    return Columns(*(column.astype(dtype, copy=False) for column, dtype in zip(columns, FINAL, strict=True)))
