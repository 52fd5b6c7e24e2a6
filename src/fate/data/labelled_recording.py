"""One recording of a dataset: its events and the boxes that belong to it, as models see both.

It holds names of files and facts, and nothing that is large: thousands of them are kept at once and sent to other
processes. Events, labels and truth are read when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fate.boxes.labels import Labels
from fate.data.box_files import Boxes, Clock, load_boxes, read_box_file, small_sensor
from fate.data.class_maps import ClassMap
from fate.data.event_files import EventOptions, EventReader, Span, look_at
from fate.errors import FateError
from fate.events.events import Sensor


@dataclass(frozen=True)
class LabelledRecording:
    """One recording of a dataset. A dataset of one's own may override :meth:`read_label_file`.

    Attributes:
        name: unique in the dataset, such as ``"train/drive_0003"``.
        split: ``"train"``, ``"val"``, ``"test"``, or None.
        events_file: any file that :func:`fate.open_recording` opens.
        label_file: any that :func:`fate.read_labels` reads; None where there is none, or none that can be read.
        class_map: the classes of the dataset.
        full_sensor: (height, width) of the camera, in whose pixels both files are.
        downscale: pixels along a side of those that become one.
        truth_file: boxes at 200 Hz, from the simulator.
        event_options: what the events file does not say itself.
        clock: how times of the label file become times of the events.
        known_span: where it is known without opening the file.
    """

    name: str
    split: str | None
    events_file: Path
    label_file: Path | None
    class_map: ClassMap
    full_sensor: Sensor
    downscale: int = 1
    truth_file: Path | None = None
    event_options: EventOptions = field(default_factory=EventOptions)
    clock: Clock = field(default_factory=Clock)
    known_span: Span | None = None

    @property
    def sensor(self) -> Sensor:
        """(height, width) of what is read."""
        return small_sensor(self.full_sensor, self.downscale)

    @property
    def labelled(self) -> bool:
        """Whether it has labels, and so a place in training and evaluation."""
        return self.label_file is not None

    @property
    def start_us(self) -> int:
        """Time of the first event, µs."""
        return self.span.start_us

    @property
    def end_us(self) -> int:
        """Behind the last event, µs."""
        return self.span.end_us

    @property
    def num_events(self) -> int:
        """Events in the file."""
        return self.span.num_events

    @cached_property
    def span(self) -> Span:
        """Known, or from the file: of DAT from its first and last record, else from its time index."""
        return self.known_span or self.measure()[0]

    def measure(self) -> tuple[Span, str]:
        """The span, and what is missing at the end of the file (empty where nothing is, or the span was known)."""
        if self.known_span is not None:
            return self.known_span, ""
        looked = look_at(self.events_file, self.event_options)
        if looked.span is not None:
            return looked.span, looked.cut
        with self.open() as reader:
            return Span(reader.start_us, reader.end_us, reader.num_events), reader.cut

    def open(self) -> EventReader:
        """Open it for reading, in the pixels of :attr:`sensor`. The first time, its time index is made and kept."""
        return EventReader(self.event_options.open(self.events_file), self.downscale, self.open)

    @property
    def labels(self) -> Labels:
        """Its boxes in the dataset's classes and pixels, cut at the frame. Read anew at each use: keep the value."""
        return self.load_labels().labels

    def load_labels(self) -> Boxes:
        """The same, with counts of what was cut or dropped."""
        if self.label_file is None:
            raise FateError(f"{self.name}: has no labels; ask its attribute labelled first")
        raw = self.read_label_file(self.label_file)
        return load_boxes(raw, str(self.label_file), self.class_map, self.full_sensor, self.downscale, self.clock)

    @property
    def truth(self) -> Labels | None:
        """Exact boxes at 200 Hz, likewise; None where the recording has none."""
        if self.truth_file is None:
            return None
        raw = read_box_file(self.truth_file, self.full_sensor, self.class_map.by_id)
        whole = load_boxes(raw, str(self.truth_file), self.class_map, self.full_sensor, self.downscale, Clock())
        return whole.labels

    def read_label_file(self, path: Path) -> Labels:
        """The boxes as the file has them: its own classes, times and pixels of the camera."""
        return read_box_file(path, self.full_sensor, self.class_map.by_id)
