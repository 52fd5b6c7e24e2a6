"""Events that come in pieces, in whatever sizes, to the windows of a grid.

A window ``[start, end)`` closes when an event at ``end`` or later comes, or when somebody who has a clock says that it
is over (``tick``). So the same events give the same windows however they were cut. Time does not always behave:

- an event of a window that has closed comes too late: it is dropped and counted;
- time that goes back by more than ``max_back_us`` is a source that began anew: windows do so too, from its time on;
- after a silence of more than ``max_gap_us`` nothing of what was seen before still holds: the windows in between are
  skipped and counted instead of being computed one by one, and memory begins anew. The grid stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window, clip_time
from fate.inference.stream_frames import StreamCounts

#: How far time may go back before it is taken for a new beginning, and how long it may be silent, µs.
MAX_BACK_US, MAX_GAP_US = 1_000_000, 10_000_000
#: Events that a window may hold: some 400 MB. More is no camera but a fault.
MAX_EVENTS = 1 << 25


class ClosedWindow(NamedTuple):
    """A window that nothing more will be added to."""

    window: Window
    events: Events
    restarted: str = ""  #: why memory begins anew with it; empty where it goes on


class Windower:
    """Give it events; it gives windows.

    Example:
        >>> windower = Windower((4, 4), 50)
        >>> events = Events([7, 60, 120], [0, 1, 2], [0, 0, 0], [1, 1, 1], (4, 4))
        >>> [closed.window.start_us for closed in windower.add(events)]
        [7, 57]
        >>> [len(closed.events) for closed in windower.close()]
        [1]
    """

    def __init__(
        self,
        sensor: Sequence[int],
        duration_us: int,
        *,
        start_us: int | None = None,
        max_back_us: int = MAX_BACK_US,
        max_gap_us: int = MAX_GAP_US,
        max_events: int = MAX_EVENTS,
        counts: StreamCounts | None = None,
    ) -> None:
        """Args:
        sensor: (height, width) of all events.
        duration_us: of a window; the next begins where it ends.
        start_us: of the first window; the first event unless given.
        max_back_us, max_gap_us, max_events: see above.
        counts: where to count.
        """
        if duration_us < 1 or max_back_us < 0 or max_gap_us < duration_us or max_events < 1:
            raise FateError(
                f"windows of {duration_us} µs, up to {max_back_us} µs back and {max_gap_us} µs forward, of up to"
                f" {max_events} events were asked for; expected at least 1 µs, 0, the length of a window, and 1"
            )
        self.sensor, self.duration_us = Sensor.of(sensor), int(duration_us)
        self.max_back_us, self.max_gap_us, self.max_events = int(max_back_us), int(max_gap_us), int(max_events)
        self.counts = StreamCounts() if counts is None else counts
        self._start = None if start_us is None else clip_time(start_us)  # of the open window
        self._last: int | None = None  # the latest time that came, of an event or a clock
        self._pieces: list[Events] = []  # of the open window
        self._held = 0
        self._restarted = ""
        self._closed = False

    def add(self, events: Events) -> list[ClosedWindow]:
        """Windows that these events close.

        Args:
            events: of this sensor; they may begin before those given earlier end.
        """
        self._check(events)
        if not len(events):
            return []
        first, last = int(events.t_us[0]), int(events.t_us[-1])
        closed: list[ClosedWindow] = []
        if self._start is None:
            self._start = first
        elif self._last is not None and (back := max(self._last, self._start) - first) > self.max_back_us:
            closed += self._open_part()
            self._start, self._last = first, None
            self._restarted = self.counts.restart(f"time went back by {back / 1e6:g} s, to {first} µs")
        late = int(events.t_us.searchsorted(self._start))
        self.counts.late_events += late
        rest = events[late:]
        while len(rest):
            t = int(rest.t_us[0])
            closed += self._closed_until(t, f"no events for {{}} s before {t} µs")
            end = int(rest.t_us.searchsorted(self._start + self.duration_us))
            self._hold(rest[:end])
            rest = rest[end:]
        if last >= self._start:  # before the start that was asked for, time has not begun
            self._last = last if self._last is None else max(self._last, last)
        return closed

    def tick(self, now_us: int) -> list[ClosedWindow]:
        """Windows that are over at ``now_us`` by a clock that runs with the events'; none before the first event."""
        if self._start is None or self._closed:
            return []
        now = clip_time(now_us)
        if now >= self._start:
            self._last = now if self._last is None else max(self._last, now)
        return self._closed_until(now, f"the clock went on by {{}} s, to {now} µs")

    def close(self) -> list[ClosedWindow]:
        """The window that was still open, if it holds events; nothing can be added afterwards."""
        closed = self._open_part()
        self._closed = True
        return closed

    def _check(self, events: Events) -> None:
        if self._closed:
            raise FateError("events were given to a stream that is closed; open another")
        if not isinstance(events, Events):
            raise FateError(f"a {type(events).__name__} was given to a stream; expected fate.Events")
        if events.sensor != self.sensor:
            raise FateError(f"events of a {events.sensor} sensor were given to a stream of a {self.sensor} one")

    def _hold(self, events: Events) -> None:
        """Add to the open window, as far as there is room."""
        taken = min(len(events), self.max_events - self._held)
        self.counts.excess_events += len(events) - taken
        self._held += taken
        if taken:
            self._pieces.append(events[:taken])

    def _closed_until(self, now: int, after_gap: str) -> list[ClosedWindow]:
        """Windows that end at ``now`` or before; of a long silence only the first.

        Args:
            after_gap: the reason for the restart after a silence, with a place for seconds.
        """
        closed: list[ClosedWindow] = []
        while self._start is not None and self._start + self.duration_us <= now:
            closed.append(self._finished(self._start))
            self._start += self.duration_us
            gap = now - self._start
            if gap > self.max_gap_us:
                skipped = gap // self.duration_us
                self.counts.skipped_windows += skipped
                self._start += skipped * self.duration_us
                self._restarted = self.counts.restart(after_gap.format(f"{gap / 1e6:g}"))
        return closed

    def _finished(self, start: int) -> ClosedWindow:
        """The window that was open since ``start``; nothing is held any more."""
        events = joined(self._pieces, self.sensor)
        closed = ClosedWindow(Window(start, start + self.duration_us), events, self._restarted)
        self._pieces, self._held, self._restarted = [], 0, ""
        return closed

    def _open_part(self) -> list[ClosedWindow]:
        return [self._finished(self._start)] if self._start is not None and self._pieces else []


class LookBack:
    """Windows longer than the hop: what the windows before held is kept as long as it is looked at.

    Example:
        >>> back = LookBack(100)
        >>> events = Events([60, 120], [0, 1], [0, 0], [1, 1], (4, 4))
        >>> [len(back.add(Window(50 * n, 50 * n + 50), events[n - 1 : n])[1]) for n in (1, 2, 3)]
        [1, 2, 1]
    """

    def __init__(self, span_us: int) -> None:
        """Args:
        span_us: of the windows that are looked at.
        """
        self.span_us = span_us
        self._pieces: list[Events] = []

    def add(self, window: Window, events: Events) -> tuple[Window, Events]:
        """The window of ``span_us`` that ends with this one, and its events.

        Args:
            window: the next one.
            events: those in it.
        """
        start = window.end_us - self.span_us
        self._pieces = [piece for piece in (*self._pieces, events) if len(piece) and int(piece.t_us[-1]) >= start]
        held = joined(self._pieces, events.sensor)
        return Window(start, window.end_us), held[int(held.t_us.searchsorted(start)) :]

    def forget(self) -> None:
        """Begin anew."""
        self._pieces = []


def joined(pieces: Sequence[Events], sensor: Sensor) -> Events:
    """Pieces one behind another; where they overlap, sorted by time."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else Events.empty(sensor)
    t_us, x, y, p = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("t_us", "x", "y", "p"))
    if any(int(late.t_us[0]) < int(early.t_us[-1]) for early, late in pairwise(pieces)):
        order = np.argsort(t_us, kind="stable")
        t_us, x, y, p = t_us[order], x[order], y[order], p[order]
    return Events.trusted(t_us, x, y, p, sensor)
