"""The recordings that ``fate inspect`` looks at: found as :func:`fate.open_dataset` finds them, and none is left out.

A YAML file, or a folder with a ``dataset.yaml``, says where events and labels are, what their classes are called and
how their clocks differ. Any other folder is searched, and its ``classes.txt`` gives the names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.labels import Labels
from fate.data import kinds, own, prepared
from fate.data.assembly import Draft, Files
from fate.data.box_files import Clock, read_box_file
from fate.data.class_maps import ClassMap, class_map
from fate.data.event_files import look_at
from fate.data.layout import SPLITS, Entry, find_recordings
from fate.data.listing import MANIFEST, find_listing
from fate.data.manifests import PREPARED, find_manifest
from fate.errors import FateError
from fate.events.events import Sensor
from fate.formats.opening import open_recording
from fate.formats.recording import Recording


@dataclass(frozen=True)
class Subject:
    """One recording, its label files, and what is needed to read both."""

    files: Files
    class_map: ClassMap | None = None  #: of the dataset; None where the label files alone have names, or nothing has
    options: Mapping[str, Any] = field(default_factory=dict)  #: for ``open_recording``; they count before the YAML's
    sensor: Sensor | None = None  #: for a file that does not say its own

    @property
    def entry(self) -> Entry:
        """Its name, split and files."""
        return self.files.entry

    def open(self, sensor: tuple[int, int] | None = None) -> Recording:
        """Open the events; ``sensor`` (height, width) where it is known already."""
        described = self.files.options._asdict()
        given = {**described, **{key: value for key, value in self.options.items() if value is not None}}
        if sensor is not None:
            given["sensor"] = sensor
        elif given["sensor"] is None and self.sensor is not None:
            said = look_at(self.entry.events, self.files.options).sensor
            given["sensor"] = self.sensor if said is None else None
        return open_recording(self.entry.events, **given)

    def read_labels(self, sensor: Sensor) -> Labels | None:
        """The labels on the clock of the events, in the classes of the dataset; None where there is no file.

        Args:
            sensor: (height, width) of the recording; YOLO text divides by it.
        """
        return None if self.entry.labels is None else self._read(self.entry.labels, sensor, self.files.clock)

    def read_truth(self, sensor: Sensor) -> Labels | None:
        """The same for the exact boxes that the simulator leaves beside the labels."""
        return None if self.entry.truth is None else self._read(self.entry.truth, sensor, Clock())

    def _read(self, path: Path, sensor: Sensor, clock: Clock) -> Labels:
        raw = read_box_file(path, sensor, self.class_map is not None and self.class_map.by_id)
        timed = replace(raw, t_us=clock.convert(raw.t_us), labelled_us=np.unique(clock.convert(raw.labelled_us)))
        return timed if self.class_map is None else _renamed(timed, self.class_map)


def _renamed(labels: Labels, mapped: ClassMap) -> Labels:
    """Class ids and names of the dataset; classes that it does not have come behind them, under what the file says."""
    places, _ = mapped.places(labels)
    foreign = np.unique(labels.class_id[places < 0]).tolist()
    names = [f"id {number}" if labels.classes is None else labels.classes[number] for number in foreign]
    taken = set(mapped.names)
    shown = [f"{name} (not of this dataset)" if name in taken else name for name in names]
    behind = {number: len(mapped.names) + index for index, number in enumerate(foreign)}
    ids = [
        place if place >= 0 else behind[number]
        for place, number in zip(places.tolist(), labels.class_id.tolist(), strict=True)
    ]
    return replace(labels, class_id=np.array(ids, np.int32), classes=(*mapped.names, *shown))


def find_subjects(
    dataset: str | os.PathLike[str], split: str | None, options: Mapping[str, Any]
) -> tuple[Subject, ...]:
    """Find the recordings of a dataset.

    Args:
        dataset: a folder, a YAML file, what ``fate prepare`` has written, or one recording.
        split: only ``"train"``, ``"val"`` or ``"test"``.
        options: as for :func:`fate.open_recording`; None for what the files or the YAML say.
    """
    if split is not None and split not in SPLITS:
        raise FateError(f"split {split!r} was given; expected train, val or test")
    draft = _draft(Path(dataset), None if split is None else SPLITS[split])
    mapped = None if draft.classes is None else class_map(draft.classes)
    return tuple(Subject(files, mapped, options, draft.sensor) for files in draft.files)


def holds_file(dataset: str | os.PathLike[str], file: Path) -> bool:
    """Whether a file is the manifest, a recording, or labels of a dataset, so that no output may replace it.

    Args:
        dataset: as of :func:`find_subjects`.
        file: its real path, without links.
    """
    place = Path(os.path.realpath(dataset))
    folder = place if place.is_dir() else place.parent
    if file in (place, folder / MANIFEST):
        return True
    entries = [subject.entry for subject in find_subjects(dataset, None, {})]
    listed = {os.path.realpath(each) for entry in entries for each in (entry.events, entry.labels, entry.truth) if each}
    return any(str(each) in listed for each in (file, *file.parents))  # labels may be a folder of text files


def _draft(place: Path, split: str | None) -> Draft:
    described = own.yaml_of(place)
    if described is not None:
        return own.draft_from_yaml(described, split)
    if place.name == MANIFEST:
        place = place.parent
    if find_listing(place) is None:  # of a simulated dataset the comparison with its manifest says what is wrong
        manifest = find_manifest(place)
        if manifest is not None and manifest.format == PREPARED:
            place = prepared.read(manifest).root
    layout = find_recordings(place, split)
    names = kinds.classes_file(place if place.is_dir() else place.parent)
    files = tuple(Files(entry) for entry in layout.entries)
    return Draft(place.resolve().name, layout.root, "own", "custom", files, names)
