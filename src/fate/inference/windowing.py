"""Cuts events that arrive in pieces of any size into the windows of a grid.

A window ``[start, end)`` closes when an event at ``end`` or later arrives, or when a clock says that it is over
(``tick``). The same events therefore give the same windows, whatever the size of the pieces. Irregular times:

- an event of a window that has closed already is dropped and counted as late;
- if time goes back by more than ``max_back_us``, or the source says that it has restarted, a new grid begins at the new
  time;
- after more than ``max_gap_us`` without events, the empty windows in between are skipped and counted, and the state is
  reset. The grid stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.filters import EventFilters
from fate.events.window import Window, WindowGrid, clip_time
from fate.inference.stream_types import MAX_BACK_US, MAX_GAP_US, StreamCounts

#: The most events in a window, about 400 MB; no camera sends more.
MAX_EVENTS = 1 << 25


class ClosedWindow(NamedTuple):
    """A window with all its events."""

    window: Window
    events: Events
    restarted: str = ""  #: why the state is reset before this window; empty if it is not
    at: float = 0.0  #: live: when it closed, seconds


@dataclass(eq=False)
class Windower:
    """Takes events and returns the windows that they close.

    Example:
        >>> windower = Windower((4, 4), 50)
        >>> events = Events([7, 60, 120], [0, 1, 2], [0, 0, 0], [1, 1, 1], (4, 4))
        >>> [closed.window.start_us for closed in windower.add(events)]
        [7, 57]
        >>> [len(closed.events) for closed in windower.close()]
        [1]
    """

    sensor: Sequence[int]  #: (height, width)
    duration_us: int  #: of a window; windows follow each other without gaps
    _: KW_ONLY
    start_us: int | None = None  #: start of the first window; None for the first event
    max_back_us: int = MAX_BACK_US
    max_gap_us: int = MAX_GAP_US
    max_events: int = MAX_EVENTS  #: in a window; further ones are dropped
    counts: StreamCounts = field(default_factory=StreamCounts)  #: of what is dropped and skipped
    filters: EventFilters | None = None  #: of the events of each window that closes; windows do not depend on them

    def __post_init__(self) -> None:
        if self.duration_us < 1 or self.max_back_us < 0 or self.max_gap_us < self.duration_us or self.max_events < 1:
            raise FateError(
                f"windows of {self.duration_us} µs, up to {self.max_back_us} µs back and {self.max_gap_us} µs forward,"
                f" of up to {self.max_events} events were asked for; expected at least 1 µs, 0, the length of a window,"
                " and 1"
            )
        self._open: Window | None = None
        if self.start_us is not None:
            self._begin_grid(clip_time(self.start_us))
        self._last: int | None = None  # the latest time of an event or of the clock
        self._pieces: list[Events] = []  # events of the open window
        self._num_events = 0
        self._restarted = ""
        self._closed = False

    def add(self, events: Events, restarted: str = "") -> list[ClosedWindow]:
        """Windows that the next events close; they may begin before the last ones of the call before.

        ``restarted`` says why the source begins again with these events; it is empty if it does not.
        """
        if self._closed:
            raise FateError("events were given to a stream that is closed; open another")
        if not isinstance(events, Events):
            raise FateError(f"a {type(events).__name__} was given to a stream; expected fate.Events")
        if events.sensor != tuple(self.sensor):
            raise FateError(
                f"events of a {events.sensor} sensor were given to a stream of a {Sensor.of(self.sensor)} one"
            )
        if not len(events):
            return []
        first, last = int(events.t_us[0]), int(events.t_us[-1])
        closed: list[ClosedWindow] = []
        if self._open is None:
            self._open = self._begin_grid(first)
        elif self._last is not None and (back := max(self._last, self._open.start_us) - first) > self.max_back_us:
            restarted = restarted or f"time went back by {back / 1e6:g} s, to {first} µs"
        if restarted:
            closed += self._close_if_events()
            self._open, self._last = self._begin_grid(first), None
            self._restarted = self.counts.restart(restarted)
        begin = int(events.t_us.searchsorted(self._open.start_us))
        self.counts.late_events += begin
        while begin < len(events):
            t = int(events.t_us[begin])
            closed += self._close_until(t, f"no events for {{}} s before {t} µs")
            end = int(events.t_us.searchsorted(self._open.end_us))
            taken = min(end - begin, self.max_events - self._num_events)
            self.counts.excess_events += end - begin - taken
            self._num_events += taken
            if taken:
                self._pieces.append(events[begin : begin + taken] if taken < len(events) else events)
            begin = end
        if last >= self._open.start_us:  # times before the requested start do not count
            self._last = last if self._last is None else max(self._last, last)
        return closed

    def tick(self, now_us: int) -> list[ClosedWindow]:
        """Windows that are over at ``now_us``, by a clock that runs with the events; none before the first event."""
        if self._open is None or self._closed:
            return []
        now = clip_time(now_us)
        if now >= self._open.start_us:
            self._last = now if self._last is None else max(self._last, now)
        return self._close_until(now, f"the clock went on by {{}} s, to {now} µs")

    def close(self) -> list[ClosedWindow]:
        """The open window if it has events; nothing can be added afterwards."""
        closed = self._close_if_events()
        self._closed = True
        return closed

    def _begin_grid(self, start_us: int) -> Window:
        """Begin a new grid, and open its first window."""
        self._grid, self._index = WindowGrid(start_us, self.duration_us, self.duration_us), 0
        self._open = self._grid.window(0)
        return self._open

    def _close_until(self, now: int, reason: str) -> list[ClosedWindow]:
        """Close the windows that end at ``now`` or before; of a long gap only the first one.

        ``reason`` of the restart after a gap has ``{}`` for its seconds.
        """
        closed: list[ClosedWindow] = []
        while self._open is not None and self._open.end_us <= now:
            closed.append(self._close_window(self._open))
            gap = now - self._open.end_us
            self._index += 1
            if gap > self.max_gap_us:
                self._restarted = self.counts.restart(reason.format(f"{gap / 1e6:g}"))
                self._index += self.counts.skip(gap, self.duration_us)
            self._open = self._grid.window(self._index)
        return closed

    def _close_window(self, window: Window) -> ClosedWindow:
        events = concatenate(self._pieces, self.sensor)
        if self.filters is not None:
            events = self.filters.next_window(events, self._restarted)
        closed = ClosedWindow(window, events, self._restarted)
        self._pieces, self._num_events, self._restarted = [], 0, ""
        return closed

    def _close_if_events(self) -> list[ClosedWindow]:
        return [self._close_window(self._open)] if self._open is not None and self._pieces else []


class LookBack:
    """Extends each window to the past, to ``window_us``, for windows that are longer than the hop.

    Example:
        >>> back = LookBack(100)
        >>> events = Events([60, 120], [0, 1], [0, 0], [1, 1], (4, 4))
        >>> [len(back.add(Window(50 * n, 50 * n + 50), events[n - 1 : n])[1]) for n in (1, 2, 3)]
        [1, 2, 1]
    """

    def __init__(self, window_us: int) -> None:
        self.window_us = window_us
        self._pieces: list[Events] = []

    def add(self, window: Window, events: Events) -> tuple[Window, Events]:
        """The extended window that ends with the next one, and its events."""
        start = window.end_us - self.window_us
        self._pieces = [piece for piece in (*self._pieces, events) if len(piece) and int(piece.t_us[-1]) >= start]
        kept = concatenate(self._pieces, events.sensor)
        return Window(start, window.end_us), kept[int(kept.t_us.searchsorted(start)) :]

    def reset(self) -> None:
        """Forget all earlier events."""
        self._pieces = []


def concatenate(pieces: Sequence[Events], sensor: Sequence[int]) -> Events:
    """Concatenate pieces of events; if they overlap in time, sort them."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else Events.empty(sensor)
    if all(early.t_us[-1] <= late.t_us[0] for early, late in pairwise(pieces)):
        return Events.concatenate(pieces)
    t_us, x, y, p = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("t_us", "x", "y", "p"))
    order = np.argsort(t_us, kind="stable")
    return Events.trusted(t_us[order], x[order], y[order], p[order], Sensor.of(sensor))
