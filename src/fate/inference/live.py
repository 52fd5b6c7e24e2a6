"""Live detection: a source that does not wait, and a detector that may be too slow for it.

A thread reads the source, closes windows and queues a few of them. The caller's thread takes them from the queue and
detects. Windows are detected in order while they are recent; once the oldest has waited for longer than the budget, all
but the newest are dropped. A detector that is too slow therefore processes fewer windows instead of old ones. Every
window and event that is dropped is counted.

While a source is silent, its clock is assumed to run on: windows close by it, empty. If the source ends, or fails as
sources do (a broken pipe, a damaged stream), the queued windows are detected, the stream ends, and ``ended`` has the
reason.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fate.errors import FateError, warn
from fate.inference.sources import LiveSource
from fate.inference.stream_types import StreamCounts, StreamFrame
from fate.inference.window_detector import WindowDetector
from fate.inference.windowing import ClosedWindow, Windower

#: Silence of a source that counts as a stall, seconds.
STALL_S = 1.0
#: Why a stream ended whose source had no more events.
SOURCE_ENDED = "the source ended"
#: A wait that lasts this much longer than it should, seconds, means that the process was suspended.
HALT_S = 0.02
#: How long to wait for the reading thread, seconds; a thread that its source blocks ends with the process.
JOIN_S = 2.0


@dataclass
class NewestWins:
    """A short queue of windows. If the oldest one has waited for too long, all but the newest are dropped."""

    length: int
    budget_s: float  #: longest wait
    counts: StreamCounts  #: of what is dropped

    def __post_init__(self) -> None:
        if self.length < 1 or not self.budget_s > 0:
            raise FateError(
                f"{self.length} waiting windows and a budget of {1e3 * self.budget_s:g} ms were asked for; expected at"
                " least 1, and more than 0"
            )
        self._queue: deque[ClosedWindow] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, closed: ClosedWindow, now: float) -> None:
        """Add the next window."""
        self._queue.append(closed._replace(at=now))
        if len(self._queue) > self.length:
            self.drop_oldest()

    def take(self, now: float) -> ClosedWindow | None:
        """Remove and return the next window to detect; None if the queue is empty."""
        if self._queue and now - self._queue[0].at > self.budget_s:
            while len(self._queue) > 1:
                self.drop_oldest()
        return self._queue.popleft() if self._queue else None

    def drop_oldest(self) -> None:
        """Drop and count the oldest window; a pending reset of the state is carried over to the next one."""
        dropped = self._queue.popleft()
        self.counts.windows_dropped += 1
        self.counts.events_in_dropped_windows += len(dropped.events)
        if dropped.restarted and self._queue:
            following = self._queue[0]
            reasons = filter(None, (dropped.restarted, following.restarted))
            self._queue[0] = following._replace(restarted="; ".join(reasons))


class LiveStream(AbstractContextManager["LiveStream"]):
    """The frames of a live source; made by ``StreamingDetector.live``. Use it in a ``with`` block."""

    def __init__(
        self,
        source: LiveSource,
        windower: Windower,
        detect: WindowDetector,
        *,
        budget_ms: float,
        waiting: int,
        patience_us: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Same arguments as :meth:`StreamingDetector.live`; ``clock`` gives seconds and never goes back."""
        if patience_us < 0:
            raise FateError(f"a patience of {patience_us} µs was given; expected 0 or more")
        self.source, self.counts, self.adaptation = source, windower.counts, detect.adaptation
        self._windower, self._detect, self._clock = windower, detect, clock
        self._budget_s, self._patience_us = budget_ms / 1000, patience_us
        self._waiting = NewestWins(waiting, self._budget_s, self.counts)
        self._change = threading.Condition()
        self._reader = threading.Thread(target=self._read, name="fate-source", daemon=True)
        self._latest: tuple[int, float] | None = None  # time of the latest event, and when it arrived
        self._stalled = self._stopping = False
        self._fault: Exception | None = None
        self.ended = ""  #: why the stream ended; empty while it runs
        self.source_failed = False  #: whether it ended because its source failed, such as a camera without power

    @property
    def source_ended(self) -> bool:
        """Whether it ended because its source did, and nobody stopped it."""
        return self.ended == SOURCE_ENDED

    @property
    def source_counts(self) -> dict[str, int]:
        """Counts of what the source has lost or refused, by name."""
        return self.source.counts

    def __iter__(self) -> Iterator[StreamFrame]:
        return self

    def __next__(self) -> StreamFrame:
        """Wait for the next window and return its frame."""
        if self._reader.ident is None:
            self._reader.start()
        taken = self._next_window()
        if taken is None:
            self.source.close()
            if (fault := self._fault) is not None:
                self._fault = None
                raise fault
            if self.source_failed:
                warn(f"{self.ended}; all events before were detected")
            raise StopIteration
        waited = self._clock() - taken.at
        frame = self._detect(taken, waited_ms=1e3 * waited)
        if self._clock() - taken.at > self._budget_s:
            self.counts.windows_late += 1
            frame = replace(frame, late=True)
        age_s = getattr(self.source, "age_s", None)
        return frame if age_s is None else replace(frame, age_ms=1e3 * age_s(frame.t_us))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End now: close the source, drop and count the windows that wait, and count the events after them."""
        with self._change:
            self._stopping = True
            self.ended = self.ended or "it was closed"
            self._change.notify_all()
        self.source.close()
        if self._reader.ident is not None and self._reader is not threading.current_thread():
            self._reader.join(JOIN_S)
        with self._change:
            for unfinished in self._windower.close():  # its time is not over, so no window is lost
                self.counts.events_in_unfinished_window += len(unfinished.events)
            while len(self._waiting):
                self._waiting.drop_oldest()

    def stop(self, reason: str) -> None:
        """End the stream soon: the iteration stops before the next window, and :meth:`close` drops those that wait.

        It takes no lock and may be called from a signal handler. ``ended`` becomes ``reason``.
        """
        self.ended = self.ended or reason
        self._stopping = True

    def _next_window(self) -> ClosedWindow | None:
        """Wait for a window; None at the end of the stream."""
        patience, reader_ran = self._windower.duration_us / 1e6, False
        with self._change:
            while True:
                if reader_ran:
                    self._close_by_clock()
                taken = None if self._stopping else self._waiting.take(self._clock())
                if taken is not None or self.ended:
                    return taken
                # the source counts as silent only if its thread could run: if the process was suspended or this thread
                # was busy, there may be events that have not been read yet
                began = time.monotonic()
                notified = self._change.wait(patience)
                reader_ran = notified or time.monotonic() - began < patience + HALT_S

    def _close_by_clock(self) -> None:
        if self._latest is None or self.ended:
            return
        t_us, at = self._latest
        silent = self._clock() - at
        self._queue(self._windower.tick(t_us + round(1e6 * silent) - self._patience_us))
        self._note_stall(silent)

    def _queue(self, windows: list[ClosedWindow]) -> None:
        for closed in windows:
            self._waiting.put(closed, self._clock())

    def _note_stall(self, silent_s: float) -> None:
        if silent_s > STALL_S and not self._stalled:
            self._stalled = True
            self.counts.stalls += 1

    def _read(self) -> None:
        """The reading thread: reads the source and queues the windows that close."""
        ended, before = SOURCE_ENDED, 0
        try:
            for events in self.source:
                with self._change:
                    if self._stopping:
                        break
                    now, restarted = self._clock(), ""
                    if len(events) and (reconnections := getattr(self.source, "reconnections", 0)) > before:
                        restarted = f"the source came back (connection {reconnections + 1}), at {events.t_us[0]} µs"
                        before = reconnections
                    closed = self._windower.add(events, restarted)
                    self._queue(closed)
                    if len(events):
                        self._note_stall(0.0 if self._latest is None else now - self._latest[1])
                        self._latest, self._stalled = (int(events.t_us[-1]), now), False
                    if closed:  # otherwise the detecting thread would wake up, and take Python's lock, for each piece
                        self._change.notify_all()
        except (FateError, OSError) as error:
            ended, self.source_failed = f"the source failed: {error}", not self._stopping
        except Exception as error:  # a defect: the caller's thread raises it
            self._fault, ended = error, f"the source broke: {error!r}"
        with self._change:
            if not self._stopping:
                self._queue(self._windower.close())
            self.ended = self.ended or ended
            self._change.notify_all()


@contextmanager
def stopping_gracefully(stop: Callable[[str], object]) -> Iterator[None]:
    """Call ``stop`` with a reason at Ctrl-C or SIGTERM while the block runs; a second signal interrupts at once.

    ``stop``, such as :meth:`LiveStream.stop`, runs inside the signal handler: it must be quick and take no lock.
    Handlers that the program has set itself stay, and so does everything outside the main thread, where signals do not
    arrive. ``docs/guides/live.md`` has an example.
    """
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before, is_asked = {}, False

    def ask(number: int, frame: object) -> None:
        nonlocal is_asked
        if is_asked:
            raise KeyboardInterrupt
        is_asked = True
        stop(f"it was stopped ({'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'})")

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask) for number in usual if signal.getsignal(number) == usual[number]}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
