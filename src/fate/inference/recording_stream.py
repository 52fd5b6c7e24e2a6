"""The windows of a recording through a detector, as fast as they are asked for; long silences are skipped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Self

from fate.events.window import Window
from fate.formats.recording import Recording
from fate.inference.adapting import Adaptation
from fate.inference.stream_frames import StreamCounts, StreamFrame
from fate.inference.window_detector import WindowDetector
from fate.inference.windowing import ClosedWindow


class RecordingStream:
    """The frames of a recording, one after another; ``len`` gives how many there will be, if nothing is skipped."""

    def __init__(
        self,
        recording: Recording,
        detect: WindowDetector,
        duration_us: int,
        start_us: int | None,
        end_us: int | None,
        max_gap_us: int,
        close: ExitStack,
    ) -> None:
        self.recording, self.duration_us, self._detect, self._close = recording, duration_us, detect, close
        self.start_us = recording.start_us if start_us is None else int(start_us)
        self.end_us = recording.end_us if end_us is None else int(end_us)
        self._max_gap_us = max_gap_us
        self._frames = self._all()

    @property
    def counts(self) -> StreamCounts:
        """What came and what was seen so far."""
        return self._detect.counts

    @property
    def adaptation(self) -> Adaptation:
        """How the detector meets this sensor."""
        return self._detect.adaptation

    def __len__(self) -> int:
        return max(-(-(self.end_us - self.start_us) // self.duration_us), 0)

    def __iter__(self) -> Iterator[StreamFrame]:
        return self

    def __next__(self) -> StreamFrame:
        return next(self._frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End early; a recording that was opened here is closed."""
        self._frames.close()
        self._close.close()

    def _all(self) -> Generator[StreamFrame, None, None]:
        begin, reason = self.start_us, ""
        silent_until = begin  # nothing comes before it, as far as is known
        with self._close:
            while begin < self.end_us:
                started = time.perf_counter()
                window = Window(begin, begin + self.duration_us)
                events = self.recording.read(window.start_us, window.end_us)
                spent = 1e3 * (time.perf_counter() - started)
                if not len(events) and begin > self.start_us:
                    silent_until = self._next_event(begin) if silent_until <= begin else silent_until
                    if silent_until - begin > self._max_gap_us:
                        begin, reason = self._after_gap(begin, silent_until)
                        continue
                yield self._detect(ClosedWindow(window, events, reason), decode_ms=spent)
                begin, reason = window.end_us, ""

    def _next_event(self, begin: int) -> int:
        """When silence ends; the end that was asked for, if it does not before."""
        for events in itertools.islice(self.recording.chunks(1, start_us=begin, end_us=self.end_us), 1):
            return int(events.t_us[0])
        return self.end_us

    def _after_gap(self, begin: int, until: int) -> tuple[int, str]:
        skipped = (until - begin) // self.duration_us
        self.counts.skipped_windows += skipped
        reason = self.counts.restart(f"no events for {(until - begin) / 1e6:g} s before {until} µs")
        return begin + skipped * self.duration_us, reason
