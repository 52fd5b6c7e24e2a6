"""One recording of a dataset: the events and the boxes that belong to it, in the pixels that models see.

A :class:`LabelledRecording` holds file names and facts and is small: thousands of them are kept at once and pickled to
other processes. Events and labels are read on demand.

A dataset has thousands of recordings, and some are damaged. :func:`read_head` reports what a file claims to be without
decoding all of it: the header and, if all records have one size (DAT), the first and the last block. Reading repairs
what can be repaired (it drops events outside the sensor, sorts times that go back and ignores a cut tail) with a
warning. A file with many impossible events is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fate.boxes.labels import Labels
from fate.data.box_files import Boxes, Clock, load_boxes, read_box_file, small_sensor
from fate.data.class_maps import ClassMap
from fate.data.compact_files import CompactFile
from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.events.window import MAX_TIME_US, Window, align_start
from fate.formats.opening import open_recording, open_source
from fate.formats.recording import Recording, describe_tail
from fate.formats.source import Bookmark, Options
from fate.json_files import whole_number
from fate.rates import CANONICAL_US

#: A file is refused if a larger share of its events lies outside the sensor.
MAX_OUTSIDE_SHARE = 0.1


class EventOptions(NamedTuple):
    """Facts that an event file does not state itself. The fields are arguments of :func:`fate.open_recording`."""

    sensor: Sensor | None = None
    format: str | None = None
    columns: str | None = None
    time_unit: str | None = None

    def open(self, path: Path) -> Recording:
        """Open the file; faults that can be repaired are repaired on reading."""
        given: dict[str, Any] = self._asdict()
        return open_recording(path, **given, out_of_bounds="drop", unsorted="sort")


class Span(NamedTuple):
    """The time that a recording covers, from its first event to just after its last one."""

    start_us: int
    end_us: int
    num_events: int


class FileHead(NamedTuple):
    """Facts from the header and the ends of an event file."""

    sensor: Sensor | None  #: None if the file does not say
    span: Span | None  #: None if only decoding the whole file would tell
    cut: str = ""  #: what is missing at the end of the file; empty if nothing is known to be missing


def read_head(path: Path, options: EventOptions) -> FileHead:
    """Read what a file claims to be without decoding all of it; raises FateError if it cannot be a recording.

    The span runs from the first to the last record and counts every record. If some events lie outside the sensor or
    out of order, the time index of the recording is more exact.
    """
    source = open_source(path, Options(*options))
    try:
        even = source.even_blocks()
        if even is None:
            return FileHead(source.sensor, None)
        if not even.num_events:
            raise FormatError(f"{path}: has a header and no events; the recording or the download did not finish")
        first, last = (
            source.decode(Bookmark(int(even.positions[index]), even.state), int(even.positions[index + 1]))
            for index in (0, len(even.positions) - 2)
        )
        if source.sensor is not None:
            height, width = source.sensor
            outside = sum(int(np.count_nonzero((each.x >= width) | (each.y >= height))) for each in (first, last))
            _refuse_outside(path, source.sensor, outside, len(first.t) + len(last.t))
        start, end = int(first.t[0]), int(last.t[-1])
        # times that end before they start come from a counter that wrapped around: only the time index knows the span
        span = Span(start, end + 1, even.num_events) if start <= end else None
        return FileHead(source.sensor, span, describe_tail(source.found.tail, source.format))
    finally:
        source.close()


def _refuse_outside(path: Path, sensor: Sensor, outside: int, events: int) -> None:
    if outside > MAX_OUTSIDE_SHARE * events:
        raise FormatError(
            f"{path}: is damaged or of another sensor: {outside} of {events} events lie outside {sensor}; get it again"
        )


def check_recording(recording: Recording) -> None:
    """Refuse a recording without events, or with many outside the sensor. Builds its time index if it has none."""
    index = recording.index()
    if index.tally.outside:
        _refuse_outside(recording.path, recording.sensor, index.tally.outside, index.num_events + index.tally.outside)
    recording.refuse_empty()


class EventReader(AbstractContextManager["EventReader"]):
    """One open recording of a dataset, in the pixels that models see. Use it in a ``with`` block or call ``close``.

    A pickled reader opens the file again in the process that receives it.
    """

    def __init__(self, source: LabelledRecording) -> None:
        self.source, self.sensor = source, source.sensor
        self.compact = None if source.compact_file is None else CompactFile.open(source.compact_file, source.sensor)
        if self.compact is None:
            self.sensor = small_sensor(self.recording.sensor, source.downscale)

    @cached_property
    def recording(self) -> Recording:
        """The recording itself. It is opened on first use if there is a compact file."""
        opened = self.source.event_options.open(self.source.events_file)
        try:
            check_recording(opened)
        except BaseException:
            opened.close()
            raise
        return opened

    def read(self, start_us: int | None = None, end_us: int | None = None) -> Events:
        """Events with ``start_us <= t < end_us``; without bounds, all of them."""
        if self.compact is not None:
            bounds = (-MAX_TIME_US if start_us is None else start_us, MAX_TIME_US if end_us is None else end_us)
            return self.compact.read(*bounds)
        return self._downscale(self.recording.read(start_us, end_us))

    def windows(self, hz: float | None = None, **more: Any) -> Iterator[tuple[Window, Events]]:
        """Windows in order, each with its events. Same arguments as :meth:`fate.Recording.windows`."""
        for window, events in self.recording.windows(hz, **more):
            yield window, self._downscale(events)

    def _downscale(self, events: Events) -> Events:
        if self.source.downscale == 1:
            return events
        side = np.uint16(self.source.downscale)
        return Events.trusted(events.t_us, events.x // side, events.y // side, events.p, self.sensor)

    def close(self) -> None:
        """Close the file."""
        if "recording" in self.__dict__:
            self.recording.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[LabelledRecording], EventReader], tuple[LabelledRecording]]:
        return EventReader, (self.source,)


@dataclass(frozen=True)
class LabelledRecording:
    """One recording of a dataset. A subclass may override :meth:`read_label_file`."""

    name: str  #: unique in the dataset, such as ``"train/drive_0003"``
    split: str | None  #: ``"train"``, ``"val"``, ``"test"``, or None
    events_file: Path  #: any file that :func:`fate.open_recording` opens
    label_file: Path | None  #: any file that :func:`fate.read_labels` reads; None if there is none or it cannot be read
    class_map: ClassMap  #: the classes of the dataset
    full_sensor: Sensor  #: (height, width) of the camera; both files are in its pixels
    downscale: int = 1  #: this many pixels along each side become one
    truth_file: Path | None = None  #: boxes at 200 Hz, from the simulator
    event_options: EventOptions = field(default_factory=EventOptions)  #: what the events file does not say itself
    clock: Clock = field(default_factory=Clock)  #: converts times of the label file to times of the events
    compact_file: Path | None = None  #: its events in a compact form (``compact_files.py``), which is read instead
    known_span: Span | None = None  #: the span, if it is known without opening the file

    @property
    def sensor(self) -> Sensor:
        """(height, width) after downscaling."""
        return small_sensor(self.full_sensor, self.downscale)

    @property
    def labelled(self) -> bool:
        """Whether it has labels and can be used in training and evaluation."""
        return self.label_file is not None

    @property
    def start_us(self) -> int:
        """Time of the first event, µs."""
        return self.span.start_us

    @property
    def end_us(self) -> int:
        """Just after the last event, µs."""
        return self.span.end_us

    @property
    def num_events(self) -> int:
        """Number of events in the file."""
        return self.span.num_events

    @cached_property
    def span(self) -> Span:
        """The known span, or the one that the file gives: from the ends of a DAT file, else from the time index."""
        return self.known_span or self.measure()[0]

    @cached_property
    def grid_start_us(self) -> int:
        """Start of its windows at every rate, µs: the first event, or up to 50 ms before it.

        Windows of 20 Hz then end at labels. Training, dense labels and evaluation cut the same windows.
        """
        return align_start(self.start_us, CANONICAL_US, self.labels.labelled_us) if self.labelled else self.start_us

    def measure(self) -> tuple[Span, str]:
        """The span, and what is missing at the end of the file (empty if nothing is, or if the span was known)."""
        if self.known_span is not None:
            return self.known_span, ""
        head = read_head(self.events_file, self.event_options)
        if head.span is not None:
            return head.span, head.cut
        with self.open() as reader:
            found = reader.recording
            return Span(found.start_us, found.end_us, found.num_events), describe_tail(found.index().tail, found.format)

    def open(self) -> EventReader:
        """Open it for reading, in the pixels of :attr:`sensor`. The first call builds and stores its time index."""
        return EventReader(self)

    @property
    def labels(self) -> Labels:
        """Its boxes in the dataset's classes and pixels, cut at the frame. Every access reads the file again."""
        return self.load_labels().labels

    def load_labels(self) -> Boxes:
        """The labels, and how many boxes were cut or dropped."""
        if self.label_file is None:
            raise FateError(f"{self.name}: has no labels; check its attribute labelled first")
        return self._to_dataset(self.read_label_file(self.label_file), self.label_file, self.clock)

    @property
    def truth(self) -> Labels | None:
        """Exact boxes at 200 Hz in the dataset's classes and pixels; None if the recording has none."""
        if self.truth_file is None:
            return None
        raw = read_box_file(self.truth_file, self.full_sensor, self.class_map.by_id)
        return self._to_dataset(raw, self.truth_file, Clock()).labels

    def _to_dataset(self, raw: Labels, file: Path, clock: Clock) -> Boxes:
        return load_boxes(raw, str(file), self.class_map, self.full_sensor, self.downscale, clock)

    def read_label_file(self, path: Path) -> Labels:
        """The boxes as the file has them: in its own classes and times and in pixels of the camera."""
        return read_box_file(path, self.full_sensor, self.class_map.by_id)


def check_downscale(downscale: object) -> int:
    """Refuse anything but a whole number from 1 to 64."""
    return whole_number(downscale, "downscale", 1, 64)
