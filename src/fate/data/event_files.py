"""The events of one recording of a dataset: a look at the head and the ends of its file, and reading it downscaled.

A dataset has thousands of recordings, and some are damaged. :func:`look_at` tells what a file claims to be without
going through it: the header, and where records have one size (DAT) the first and the last block. Reading repairs what
can be repaired (events outside the sensor are dropped, times that go back are sorted, a cut tail is left), with a
warning; a file of which much is nonsense is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from fate.data.box_files import small_sensor
from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.events.window import Window
from fate.formats.columns import Columns
from fate.formats.opening import open_recording, open_source
from fate.formats.recording import Recording, describe_tail
from fate.formats.source import Bookmark, EvenBlocks, Hints, Source

#: A file with more of its events than this outside the sensor holds no events of it.
MOST_OUTSIDE = 0.1


class EventOptions(NamedTuple):
    """What a file of events does not say itself. See :func:`fate.open_recording`."""

    sensor: Sensor | None = None
    format: str | None = None
    columns: str | None = None
    time_unit: str | None = None

    def open(self, path: Path) -> Recording:
        """The recording, with faults repaired that can be."""
        given: dict[str, Any] = self._asdict()
        return open_recording(path, **given, out_of_bounds="drop", unsorted="sort")


class Span(NamedTuple):
    """From the first event to behind the last one."""

    start_us: int
    end_us: int
    num_events: int


class Look(NamedTuple):
    """What the head and the ends of a file tell."""

    sensor: Sensor | None  #: None where the file does not say
    span: Span | None  #: None where only going through the file would tell
    cut: str = ""  #: what is missing at the end of the file; empty where nothing is, or nothing is known


def look_at(path: Path, options: EventOptions) -> Look:
    """What a file claims to be, without going through it; raises where it cannot be a recording.

    The span is that of the first and the last record, and counts every record: where a few events lie outside the
    sensor or out of order, the time index of the recording knows better.
    """
    source = open_source(path, Hints(*options))
    try:
        even = source.even_blocks()
        if even is None:
            return Look(source.sensor, None)
        if not even.num_events:
            raise FormatError(f"{path}: has a header and no events; the recording or the download did not finish")
        first, last = (_block(source, even, number) for number in (0, len(even.positions) - 2))
        _refuse_nonsense(path, source.sensor, first, last)
        start, end = int(first.t[0]), int(last.t[-1])
        span = Span(start, end + 1, even.num_events) if start <= end else None  # a counter that wrapped: ask the index
        return Look(source.sensor, span, describe_tail(source.tail(), source.format))
    finally:
        source.close()


def _block(source: Source, even: EvenBlocks, number: int) -> Columns:
    return source.decode(Bookmark(int(even.positions[number]), even.state), int(even.positions[number + 1]))


def _refuse_nonsense(path: Path, sensor: Sensor | None, *blocks: Columns) -> None:
    if sensor is None:
        return
    events = sum(len(block.t) for block in blocks)
    outside = sum(int(np.count_nonzero((block.x >= sensor.width) | (block.y >= sensor.height))) for block in blocks)
    _refuse(path, sensor, outside, events)


def _refuse(path: Path, sensor: Sensor, outside: int, events: int) -> None:
    if outside > MOST_OUTSIDE * events:
        raise FormatError(
            f"{path}: is damaged or of another sensor: {outside} of {events} events lie outside {sensor}; get it again"
        )


def check_recording(recording: Recording) -> None:
    """Refuse a recording without events, or with many outside the sensor; its time index is made, or found."""
    index = recording.index()
    if index.tally.outside:
        _refuse(recording.path, recording.sensor, index.tally.outside, index.num_events + index.tally.outside)
    recording.refuse_empty()


class EventReader:
    """One open recording of a dataset, in the pixels that models see. Use it in a ``with`` block or call ``close``.

    Other processes open it again when it is sent to them.
    """

    def __init__(self, recording: Recording, downscale: int, again: Callable[[], EventReader]) -> None:
        """Args:
        recording: open; closed along with this.
        downscale: pixels along a side of those that become one.
        again: opens the same, in any process.
        """
        self._recording, self.downscale, self._again = recording, downscale, again
        try:
            check_recording(recording)
            self.sensor = small_sensor(recording.sensor, downscale)
        except BaseException:
            recording.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._recording.path

    @property
    def start_us(self) -> int:
        """Time of the first event."""
        return self._recording.start_us

    @property
    def end_us(self) -> int:
        """Behind the last event."""
        return self._recording.end_us

    @property
    def num_events(self) -> int:
        """Events that reading gives."""
        return self._recording.num_events

    @property
    def cut(self) -> str:
        """What is missing at the end of the file; empty where nothing is."""
        return describe_tail(self._recording.index().tail, self._recording.format)

    def read(self, start_us: int | None = None, end_us: int | None = None) -> Events:
        """Events with ``start_us <= t < end_us``; without bounds, all of them."""
        return self._small(self._recording.read(start_us, end_us))

    def windows(self, hz: float | None = None, **more: Any) -> Iterator[tuple[Window, Events]]:
        """Windows in order, each with its events, as :meth:`fate.Recording.windows`."""
        for window, events in self._recording.windows(hz, **more):
            yield window, self._small(events)

    def _small(self, events: Events) -> Events:
        if self.downscale == 1:
            return events
        side = np.uint16(self.downscale)
        return Events.trusted(events.t_us, events.x // side, events.y // side, events.p, self.sensor)

    def close(self) -> None:
        """Let go of the file."""
        self._recording.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], EventReader], tuple[()]]:
        return self._again, ()


def check_downscale(downscale: object) -> int:
    """A whole number from 1 up."""
    if not isinstance(downscale, int) or isinstance(downscale, bool) or not 1 <= downscale <= 64:
        raise FateError(f"downscale {downscale!r} was given; expected a whole number from 1 to 64, such as 2")
    return downscale
