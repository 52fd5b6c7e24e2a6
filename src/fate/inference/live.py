"""Live: a source that does not wait, a detector that may be slow, and boxes that are on time or not given at all.

A thread reads the source, closes windows and puts them where a few may wait. The caller's thread takes them out and
detects. Windows are detected in order as long as they are fresh; once the oldest has waited for longer than the budget,
all but the newest are dropped: **the newest window wins**, and a detector that is too slow sees fewer windows instead
of older ones. Every window and event that is not seen is counted.

While a source says nothing, its clock is taken to run on: windows close by it, empty. If the source ends, or fails in a
way that sources do (a broken pipe, a damaged stream), what is waiting is detected, the stream ends, and ``ended`` says
why.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, Self, runtime_checkable

from fate.errors import FateError, warn
from fate.events.events import Events, Sensor
from fate.inference.adapting import Adaptation
from fate.inference.stream_frames import StreamCounts, StreamFrame
from fate.inference.windowing import ClosedWindow, Windower

#: Silence of a source that counts as a stall, seconds.
STALL_S = 1.0
#: A wait that lasts so much longer than it should, seconds, says that the process stood still.
HALT_S = 0.02
#: How long the end of a reading thread is waited for, seconds; one that is blocked by its source ends with the process.
JOIN_S = 2.0


class Source(Protocol):
    """Where events come from: iterating gives them, in pieces."""

    @property
    def sensor(self) -> Sensor:
        """(height, width)."""

    @property
    def counts(self) -> dict[str, int]:
        """What the source itself lost or refused, in words."""

    def __iter__(self) -> Iterator[Events]: ...

    def close(self) -> None:
        """Ends the iteration, from any thread."""


@runtime_checkable
class Timed(Protocol):
    """A source that knows when something happened."""

    def age_s(self, t_us: int) -> float:
        """Seconds since this time of the events."""


class WindowDetecting(Protocol):
    """What detects a window."""

    @property
    def adaptation(self) -> Adaptation: ...

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame: ...


class Waiting(NamedTuple):
    """A window, and when it closed, seconds."""

    closed: ClosedWindow
    at: float


class NewestWins:
    """A short queue. Windows come out in order while they are fresh; later only the newest does."""

    def __init__(self, room: int, budget_s: float, counts: StreamCounts) -> None:
        """Args:
        room: windows that may wait; one more pushes the oldest out.
        budget_s: how long a window may wait while others do.
        counts: where what is dropped is counted.
        """
        if room < 1 or not budget_s > 0:
            raise FateError(
                f"room for {room} waiting windows and a budget of {1e3 * budget_s:g} ms were asked for; expected at"
                " least 1, and more than 0"
            )
        self.room, self.budget_s, self.counts = room, budget_s, counts
        self._queue: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, closed: ClosedWindow, now: float) -> None:
        """The next window waits."""
        self._queue.append(Waiting(closed, now))
        if len(self._queue) > self.room:
            self.drop_oldest()

    def take(self, now: float) -> Waiting | None:
        """The window to detect next; None where none waits."""
        if self._queue and now - self._queue[0].at > self.budget_s:
            while len(self._queue) > 1:
                self.drop_oldest()
        return self._queue.popleft() if self._queue else None

    def drop_oldest(self) -> None:
        """It is not detected, only counted; whatever it would have begun anew, the next one does."""
        dropped = self._queue.popleft().closed
        self.counts.windows_dropped += 1
        self.counts.events_in_dropped_windows += len(dropped.events)
        if dropped.restarted and self._queue:
            following = self._queue[0]
            reason = following.closed.restarted or dropped.restarted
            self._queue[0] = following._replace(closed=following.closed._replace(restarted=reason))


class LiveStream:
    """Frames of a source, as they become ready; made by ``StreamingDetector.live``. Use it in a ``with`` block."""

    def __init__(
        self,
        source: Source,
        windower: Windower,
        detect: WindowDetecting,
        *,
        budget_ms: float,
        waiting: int,
        patience_us: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        source: it is closed with the stream.
        windower: of the source's sensor.
        detect: gives the frame of a window.
        budget_ms: from a window's closing to its boxes.
        waiting: windows that may wait.
        patience_us: how long after its end, by the clock, a window stays open for events that are on their way.
        clock: seconds; it never goes back.
        """
        if patience_us < 0:
            raise FateError(f"a patience of {patience_us} µs was given; expected 0 or more")
        self.source, self.counts = source, windower.counts
        self._timed = source if isinstance(source, Timed) else None
        self._windower, self._detect, self._clock = windower, detect, clock
        self._budget_s, self._patience_us = budget_ms / 1000, patience_us
        self._waiting = NewestWins(waiting, self._budget_s, self.counts)
        self._change = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="fate-source", daemon=True)
        self._heard: tuple[int, float] | None = None  # the latest event's time, and when it came
        self._stalled = self._stopping = False
        self._fault: Exception | None = None
        self.ended = ""  #: why the stream ended; empty while it runs

    @property
    def adaptation(self) -> Adaptation:
        """How the detector meets this sensor."""
        return self._detect.adaptation

    @property
    def source_counts(self) -> dict[str, int]:
        """What the source lost or refused."""
        return self.source.counts

    def __iter__(self) -> Iterator[StreamFrame]:
        return self

    def __next__(self) -> StreamFrame:
        """The next frame; waits until a window closes."""
        if self._reader.ident is None:
            self._reader.start()
        taken = self._next_window()
        if taken is None:
            self._finish()
            raise StopIteration
        waited = self._clock() - taken.at
        frame = self._detect(taken.closed, waited_ms=1e3 * waited)
        if self._clock() - taken.at > self._budget_s:
            self.counts.windows_late += 1
            frame = replace(frame, late=True)
        if self._timed is not None:
            frame = replace(frame, age_ms=1e3 * self._timed.age_s(frame.t_us))
        return frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End now: the source is closed, and what still waits is dropped and counted."""
        with self._change:
            self._stopping = True
            self.ended = self.ended or "it was closed"
            self._change.notify_all()
        self.source.close()
        if self._reader.ident is not None and self._reader is not threading.current_thread():
            self._reader.join(JOIN_S)
        with self._change:
            for closed in self._windower.close():
                self._waiting.put(closed, self._clock())
            while len(self._waiting):
                self._waiting.drop_oldest()

    def stop(self, reason: str) -> None:
        """End the stream soon: the iteration stops before the next window, and :meth:`close` drops what waits.

        It takes no lock and may be called from a signal handler.

        Args:
            reason: what ``ended`` says from now on.
        """
        self.ended = self.ended or reason
        self._stopping = True

    def _next_window(self) -> Waiting | None:
        """Wait for one; None at the end."""
        patience, heard_out = self._windower.duration_us / 1e6, False
        with self._change:
            while True:
                if heard_out:
                    self._close_by_clock()
                taken = None if self._stopping else self._waiting.take(self._clock())
                if taken is not None or self.ended:
                    return taken
                # silence is the source's only if the reader had time to say otherwise: where the whole process stood
                # still, or this thread was busy, events may have come that wait to be read
                began = time.monotonic()
                told = self._change.wait(patience)
                heard_out = told or time.monotonic() - began < patience + HALT_S

    def _close_by_clock(self) -> None:
        if self._heard is None or self.ended:
            return
        t_us, at = self._heard
        silent = self._clock() - at
        for closed in self._windower.tick(t_us + round(1e6 * silent) - self._patience_us):
            self._waiting.put(closed, self._clock())
        self._note_stall(silent)

    def _note_stall(self, silent_s: float) -> None:
        if silent_s > STALL_S and not self._stalled:
            self._stalled = True
            self.counts.stalls += 1

    def _read(self) -> None:
        """The reading thread: from the source to windows that wait."""
        ended = "the source ended"
        try:
            for events in self.source:
                with self._change:
                    if self._stopping:
                        break
                    self._take_in(events)
        except (FateError, OSError) as error:
            ended = f"the source failed: {error}"
        except Exception as error:  # a mistake of ours: the caller's thread raises it
            self._fault, ended = error, f"the source broke: {error!r}"
        with self._change:
            if not self._stopping:
                for closed in self._windower.close():
                    self._waiting.put(closed, self._clock())
            self.ended = self.ended or ended
            self._change.notify_all()

    def _take_in(self, events: Events) -> None:
        now = self._clock()
        for closed in self._windower.add(events):
            self._waiting.put(closed, now)
        if len(events):
            self._note_stall(0.0 if self._heard is None else now - self._heard[1])
            self._heard, self._stalled = (int(events.t_us[-1]), now), False
        self._change.notify_all()

    def _finish(self) -> None:
        self.source.close()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        if self.ended.startswith("the source failed"):
            warn(f"{self.ended}; what had come before was detected")
