"""Examine one recording for ``fate prepare``: whether it is complete, what it holds, and what is wrong with it.

The result is plain data, as it is written to the manifest. Files are identified by size and time of change, so that the
next run examines only what has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.labels import Labels
from fate.data.box_files import Boxes, Clock, box_file_fault, load_boxes, read_box_file
from fate.data.class_maps import PUBLIC, class_map
from fate.data.findings import Finding, box_findings
from fate.data.labelled_recording import EventOptions, check_recording, read_head
from fate.data.layout import RecordingPaths
from fate.data.opening import PUBLIC_SETS, public_kind
from fate.data.rvt_layout import LABELS, open_sequence
from fate.errors import FateError, MissingDependencyError
from fate.events.events import Sensor
from fate.files import open_regular
from fate.formats.recording import describe_tail
from fate.inspection.label_statistics import find_mismatches, label_statistics

CHECKED_FRAMES = 20  # labelled times of a recording at which boxes are compared with events
#: Faults of boxes that are reported; those that are normal in a scene without motion are not.
REPORTED_FAULTS = ("without events", "frozen", "no area", "twice", "outside the recording")


class _Entry:
    """The entry of one recording in the manifest, while it is filled in."""

    def __init__(self, root: Path, paths: RecordingPaths) -> None:
        def inside(path: Path | None) -> str | None:
            return None if path is None else path.relative_to(root).as_posix()

        self.name, self.split, self.labels = paths.name, paths.split, paths.labels
        self.faults: list[Finding] = []
        self.facts: dict[str, Any] = {
            "name": paths.name,
            "split": paths.split,
            "events": inside(paths.events),
            "labels": inside(paths.labels),
            "truth": inside(paths.truth),
            "readable": False,
            "labelled": False,
            "sensor": None,
            "says_sensor": True,
            "downscale": 1,
            "start_us": 0,
            "end_us": 0,
            "num_events": 0,
            "labelled_times": 0,
            "boxes": {},
        }

    def add_fault(self, kind: str, sentence: str) -> None:
        self.faults.append(Finding(kind, f"{self.name}: {sentence}", self.split))

    def set_span(self, start_us: int, end_us: int, num_events: int) -> None:
        self.facts |= {"start_us": start_us, "end_us": end_us, "num_events": num_events}

    def add_labels(self, read: Callable[[Path], Labels], sensor: Sensor, kind: str | None) -> Labels | None:
        """Read the label file, count its boxes and name their faults; returns None if there are no labels to use.

        Args:
            read: reads the boxes as the file has them.
            sensor: of the camera.
            kind: the public dataset, which names the class ids; None if there is none.
        """
        if self.labels is None:
            self.add_fault("no labels", "has no labels; it can be used for detection, not for training")
            return None
        try:
            raw = read(self.labels)
            boxes: Boxes = load_boxes(raw, str(self.labels), class_map(None, kind), sensor, 1, Clock())
        except FateError as error:
            self.add_fault("bad labels", f"its labels are not used: {error}")
            return None
        names = {number: name for name, number in PUBLIC.get(kind or "", {}).items()}
        ids, counts = np.unique(raw.class_id, return_counts=True)
        self.facts |= {
            "labelled": True,
            "labelled_times": len(raw.labelled_us),
            "boxes": {names.get(i, f"id {i}"): n for i, n in zip(ids.tolist(), counts.tolist(), strict=True)},
        }
        if kind is not None:
            self.faults += box_findings(self.name, self.split, boxes)
        return raw

    def to_dict(self) -> dict[str, Any]:
        """The entry, still without the states of its files."""
        return self.facts | {"faults": [finding._asdict() for finding in self.faults]}


def examine_recording(root: Path, paths: RecordingPaths, kind: str) -> dict[str, Any]:
    """Decode a recording of Gen1 or 1Mpx, store its time index, and compare its labels with its events.

    Args:
        root: of the dataset.
        paths: the recording.
        kind: ``"gen1"`` or ``"1mpx"``.
    """
    entry = _Entry(root, paths)
    try:
        says_sensor = read_head(paths.events, EventOptions()).sensor is not None
        with EventOptions(None if says_sensor else PUBLIC_SETS[kind].sensor).open(paths.events) as recording:
            check_recording(recording)
            sensor, index = recording.sensor, recording.index()
            entry.facts |= {"readable": True, "says_sensor": says_sensor, "sensor": sensor._asdict()}
            entry.set_span(recording.start_us, recording.end_us, recording.num_events)
            if index.tally.outside:
                entry.add_fault(
                    "repaired", f"{index.tally.outside} events outside {sensor} are dropped when it is read"
                )
            if index.tally.back:
                entry.add_fault(
                    "repaired", f"time goes back {index.tally.back} times; events are sorted when it is read"
                )
            if tail := describe_tail(index.tail, recording.format):
                entry.add_fault("cut", f"ends early: {tail}; all before is read")

            def read(path: Path) -> Labels:
                if fault := box_file_fault(path):
                    raise FateError(f"{path}: {fault}")
                return read_box_file(path, sensor)

            labels = entry.add_labels(read, sensor, kind)
            if labels is not None:
                counts = label_statistics(recording, labels, frames=CHECKED_FRAMES).counts
                wrong = [f"{counts[fault]} {fault}" for fault in REPORTED_FAULTS if counts[fault]]
                if wrong:
                    entry.add_fault("boxes", f"some of {len(labels)} boxes look wrong: {', '.join(wrong)}")
                notes = find_mismatches(entry.name, recording, labels, None)
                entry.faults += [Finding("clock", note, entry.split) for note in notes]
    except FateError as error:
        entry.add_fault("damaged", f"left out: {error}")
    return entry.to_dict()


def examine_sequence(root: Path, paths: RecordingPaths) -> dict[str, Any]:
    """Check a sequence of histograms: shapes, times, number of images, the first and the last image, and the boxes."""
    entry = _Entry(root, paths)
    try:
        sequence = open_sequence(paths)
        times, sensor = sequence.timestamps_us, sequence.full_sensor
        if not len(times):
            raise FateError(f"{paths.events}: holds no images")
        sequence.images(0, 1)
        sequence.images(len(times) - 1, len(times))  # the last one: downloads end early
        entry.facts |= {"readable": True, "sensor": sensor._asdict(), "downscale": sequence.downscale}
        entry.set_span(*sequence.span)

        def read(path: Path) -> Labels:
            labels, images = sequence.read_label_file(path), sequence.label_images
            if len(images) and not (images.min() >= 0 and images.max() < sequence.num_images):
                raise FateError(f"{path}: belongs to images up to {images.max()}, and there are {sequence.num_images}")
            return labels

        labels = entry.add_labels(read, sensor, public_kind(sensor))
        if labels is not None:
            apart = len(np.setdiff1d(labels.labelled_us, times[sequence.label_images]))
            if apart:
                entry.add_fault(
                    "clock", f"{apart} of {len(labels.labelled_us)} labelled times are at the end of no image"
                )
    except MissingDependencyError:
        raise
    except FateError as error:
        entry.add_fault("damaged", f"left out: {error}")
    return entry.to_dict()


def has_index(root: Path, entry: dict[str, Any], kind: str) -> bool:
    """Whether an unchanged recording can still be read; its time index is built again if it is gone."""
    if not entry["readable"]:
        return True
    options = EventOptions(None if entry["says_sensor"] else PUBLIC_SETS[kind].sensor)
    try:
        with options.open(root / entry["events"]) as recording:
            recording.index()
    except FateError:
        return False
    return True


# ---- files ------------------------------------------------------------------------------------------------------


def recording_files(paths: RecordingPaths) -> list[Path]:
    """All files of a recording that exist."""
    times = None if paths.labels is None else paths.labels.with_name(f"{paths.labels.stem}_times.npy")
    return [paths.events, *(path for path in (paths.labels, times, paths.truth) if path and path.is_file())]


def sequence_files(paths: RecordingPaths) -> list[Path]:
    """All files of a sequence that exist."""
    folder = paths.events.parent
    others = [paths.labels, folder / "timestamps_us.npy", folder / "objframe_idx_2_repr_idx.npy"]
    others.append(folder.parent.parent / LABELS / "timestamps_us.npy")
    return [paths.events, *(path for path in others if path and path.is_file())]


def file_states(root: Path, files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Size and time of change of each file, by its path inside the dataset; the hash is filled in later."""
    states = {}
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue  # deleted since it was listed: the examination reports it
        name = path.relative_to(root).as_posix()
        states[name] = {"bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": None}
    return states


def hash_files(root: Path, states: dict[str, dict[str, Any]]) -> None:
    """Fill in the SHA-256 of every file; None for a file that cannot be read."""
    for name, state in states.items():
        try:
            with open_regular(root / name) as file:
                state["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, FateError):
            state["sha256"] = None


def is_unchanged(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], hashed: bool) -> bool:
    """Whether files are those of an earlier run, and, if ``hashed``, the earlier run has hashed them."""

    def identity(states: dict[str, dict[str, Any]]) -> dict[str, tuple[int, int]]:
        return {name: (state["bytes"], state["mtime_ns"]) for name, state in states.items()}

    return identity(old) == identity(new) and (not hashed or all(state["sha256"] for state in old.values()))
