"""The recordings that ``fate inspect`` examines, a report on each, and their boxes by class.

Recordings are found as :func:`fate.open_dataset` finds them, but none is left out. A YAML file, or a folder with a
``dataset.yaml``, says where events and labels are, what their classes are called and how their clocks differ. Any other
folder is searched, and its ``classes.txt`` gives the class names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import NEUTRAL, Labels
from fate.data.box_files import Clock, read_box_file
from fate.data.class_maps import PUBLIC, ClassMap, class_map, public_kind
from fate.data.labelled_recording import read_head
from fate.data.layout import RecordingPaths, check_split, find_recordings
from fate.data.manifests import MANIFEST, PREPARED, find_listing, find_manifest
from fate.data.opening import open_prepared, read_classes_file
from fate.data.yaml_datasets import find_yaml, read_dataset_yaml
from fate.errors import FateError
from fate.events.events import Sensor
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.inspection import references
from fate.inspection.label_statistics import LabelStatistics, find_mismatches, label_statistics
from fate.inspection.statistics import EventStatistics, event_statistics
from fate.progress import Progress, scale
from fate.text import grouped


@dataclass(frozen=True)
class Subject:
    """One recording, its label files, and what is needed to read both."""

    entry: RecordingPaths  #: its name, split and files
    class_map: ClassMap | None = None  #: the classes of the dataset; None if only the label files may have names
    options: Mapping[str, Any] = field(default_factory=dict)  #: arguments of ``open_recording``; they override the YAML
    sensor: Sensor | None = None  #: for a file that does not say

    def open(self, sensor: Sensor | None = None) -> Recording:
        """Open the events; ``sensor`` is (height, width) if it is known already."""
        given = self.entry.options._asdict() | {key: value for key, value in self.options.items() if value is not None}
        if sensor is None and given["sensor"] is None and self.sensor is not None:
            said = read_head(self.entry.events, self.entry.options).sensor
            sensor = self.sensor if said is None else None
        return open_recording(self.entry.events, **given | ({} if sensor is None else {"sensor": sensor}))

    def read_boxes(self, is_truth: bool, sensor: Sensor) -> Labels | None:
        """Boxes on the clock of the events, in the classes of the dataset; None if there is no file.

        Args:
            is_truth: whether to read the exact boxes that the simulator writes instead of the labels.
            sensor: (height, width) of the recording; YOLO text divides by it.
        """
        path, clock = (self.entry.truth, Clock()) if is_truth else (self.entry.labels, self.entry.clock)
        if path is None:
            return None
        raw = read_box_file(path, sensor, self.class_map is not None and self.class_map.by_id)
        timed = replace(raw, t_us=clock.convert(raw.t_us), labelled_us=np.unique(clock.convert(raw.labelled_us)))
        return timed if self.class_map is None else _rename_classes(timed, self.class_map)


def _rename_classes(labels: Labels, mapped: ClassMap) -> Labels:
    """Class ids and names of the dataset, followed by classes that only the file has."""
    class_ids, _ = mapped.ids_of(labels)
    known = mapped.label_classes(labels)
    foreign, index = np.unique(labels.class_id[class_ids < 0], return_inverse=True)
    class_ids[class_ids < 0] = len(known) + index
    names = [f"id {number}" if labels.classes is None else labels.classes[number] for number in foreign.tolist()]
    shown = [f"{name} (not of this dataset)" if name in known else name for name in names]
    return replace(labels, class_id=class_ids, classes=(*known, *shown))


def find_subjects(
    dataset: str | os.PathLike[str], split: str | None, options: Mapping[str, Any]
) -> tuple[Subject, ...]:
    """Find the recordings of a folder, a YAML file, a dataset that ``fate prepare`` has written, or one recording.

    ``options`` are arguments of :func:`fate.open_recording`; None for what the files or the YAML say.
    """
    path, requested = Path(dataset), None if split is None else check_split(split)
    yaml = find_yaml(path)
    if yaml is not None:
        described = read_dataset_yaml(yaml, requested)
        recordings, names, sensor = described.recordings, described.classes, described.sensor
    else:
        path = path.parent if path.name == MANIFEST else path
        # damage to the manifest of a simulated dataset is reported by the comparison with it
        manifest = find_manifest(path) if find_listing(path) is None else None
        if manifest is not None and manifest.format == PREPARED:
            path = open_prepared(manifest).root
        recordings, sensor = find_recordings(path, requested), None
        names = read_classes_file(path if path.is_dir() else path.parent)
    mapped = None if names is None else class_map(names)
    return tuple(Subject(recording, mapped, options, sensor) for recording in recordings)


def holds_file(dataset: str | os.PathLike[str], file: Path) -> bool:
    """Whether a file is the manifest, a recording, or labels of a dataset, so that no output may replace it.

    ``file`` is its real path, without links; the dataset is given as for :func:`find_subjects`.
    """
    path = Path(os.path.realpath(dataset))
    folder = path if path.is_dir() else path.parent
    if file in (path, folder / MANIFEST):
        return True
    entries = [subject.entry for subject in find_subjects(dataset, None, {})]
    listed = {os.path.realpath(each) for entry in entries for each in (entry.events, entry.labels, entry.truth) if each}
    return any(str(each) in listed for each in (file, *file.parents))  # labels may be a folder of text files


@dataclass(frozen=True)
class RecordingReport:
    """The figures and faults of one recording."""

    subject: Subject  #: the recording and its files, to be read again
    format: str
    events: EventStatistics
    labels: LabelStatistics | None  #: None if it has none
    classes: tuple[str, ...] | None  #: names by class id; None if they are not known
    notes: tuple[str, ...] = ()  #: sentences about what does not fit together
    boxes: Labels | None = None  #: the boxes that ``labels`` counts
    #: number of boxes by class, for classes that the dataset does not name; training refuses them
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def entry(self) -> RecordingPaths:
        """Name, split and files of the recording."""
        return self.subject.entry

    @property
    def sensor(self) -> Sensor:
        """(height, width) in pixels."""
        return Sensor(self.events.height, self.events.width)

    def class_name(self, class_id: int) -> str:
        """The name of a class, or ``class 3`` if it has none."""
        return self.classes[class_id] if self.classes and class_id < len(self.classes) else f"class {class_id}"


def report_on(subject: Subject, *, windows: int, progress: Progress) -> RecordingReport:
    """Open a recording and its labels, and measure both.

    At most ``windows`` windows of each length, and labelled frames, are measured.
    """
    with subject.open() as recording:
        events = event_statistics(recording, windows=windows, progress=scale(progress, 0.0, 0.7))
        notes: list[str] = []
        tables: list[Labels | None] = []
        for is_truth, name in ((False, "labels"), (True, "exact boxes")):
            try:
                tables.append(subject.read_boxes(is_truth, recording.sensor))
            except FateError as error:  # events are reported in any case
                notes.append(f"{name} not read: {error}")
                tables.append(None)
        labels, truth = tables
        boxes = truth if labels is None else labels
        if boxes is None:
            progress(1.0)
            return RecordingReport(subject, recording.format, events, None, None, tuple(notes))
        measured = label_statistics(recording, boxes, truth=truth, frames=windows, progress=scale(progress, 0.7, 1.0))
        progress(1.0)
        classes = boxes.classes or (truth.classes if truth is not None else None)
        kind = public_kind(recording.sensor)
        unknown: dict[str, int] = {}
        if not classes and kind and boxes.class_id.max(initial=-1) < len(PUBLIC[kind].ids):
            classes = tuple(PUBLIC[kind].ids)
        if subject.class_map is not None and boxes.classes is not None:  # training would not see the other classes
            known = (*subject.class_map.names, NEUTRAL)
            others = Counter(name for name in map(boxes.classes.__getitem__, boxes.class_id) if name not in known)
            listed = ", ".join(f"{name} ({count})" for name, count in others.items())
            if others:
                notes.append(f"{subject.entry.name}: boxes of classes that the dataset does not name: {listed}")
            if not subject.class_map.by_id:  # ids that are not given are left out on purpose
                unknown = dict(others)
        notes += [f"{subject.entry.name}: {note}" for note in find_mismatches(recording, boxes, truth)]
        return RecordingReport(subject, recording.format, events, measured, classes, tuple(notes), boxes, unknown)


@dataclass(frozen=True)
class ClassBoxes:
    """All boxes of one class in a dataset."""

    name: str
    size: NDArray[np.float32]  #: [N, 2] width and height, px
    speed: NDArray[np.float32]  #: [V] px/s
    life_s: NDArray[np.float32]  #: [K]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of this class in a table with the columns :data:`fate.inspection.references.BOX_COLUMNS`."""
        wide = self.size[self.size[:, 1] > 0]
        ratio = f"{np.median(wide[:, 0] / wide[:, 1]):.2f}" if len(wide) else references.UNKNOWN
        return (
            self.name,
            grouped(len(self.size)),
            _quantiles(self.size[:, 0], (5, 50, 95)),
            _quantiles(self.size[:, 1], (5, 50, 95)),
            ratio,
            _quantiles(self.speed, (50, 95)),
            _quantiles(self.life_s, (50,), 2),
        )


def boxes_by_class(reports: Sequence[RecordingReport]) -> list[ClassBoxes]:
    """The boxes of all recordings, by the name of their class; the most frequent class first."""
    parts: dict[str, list[tuple[Any, Any, Any]]] = {}
    for report in reports:
        labels = report.labels
        if labels is None:
            continue
        # an object may pass between two labelled times and occur in the exact boxes alone
        for class_id in np.unique(np.concatenate([labels.class_id, labels.speed_class, labels.life_class])).tolist():
            parts.setdefault(report.class_name(class_id), []).append(
                (
                    labels.size[labels.class_id == class_id],
                    labels.speed[labels.speed_class == class_id],
                    labels.life_s[labels.life_class == class_id],
                )
            )
    found = [
        ClassBoxes(name, *(np.concatenate(column) for column in zip(*rows, strict=True)))
        for name, rows in parts.items()
    ]
    return sorted(found, key=lambda each: -len(each.size))


def _quantiles(values: NDArray[Any], percents: tuple[int, ...], digits: int = 0) -> str:
    if not len(values):
        return references.UNKNOWN
    return " / ".join(f"{value:.{digits}f}" for value in np.percentile(values, percents))
