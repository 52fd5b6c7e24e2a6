"""Examine one recording for ``fate prepare``: whether it is complete, what it holds, and what is wrong with it.

Files are identified by size and time of change, so that the next run examines only what has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.labels import Labels
from fate.data.box_files import Clock, box_file_fault, load_boxes, read_box_file
from fate.data.class_maps import PUBLIC, class_map
from fate.data.findings import box_findings
from fate.data.labelled_recording import EventOptions, check_recording, read_head
from fate.data.layout import RecordingPaths
from fate.data.manifests import FileState, PreparedRecording
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

#: The figures of a recording that could not be read.
NOT_READ: dict[str, Any] = {
    **{"readable": False, "labelled": False, "sensor": None, "says_sensor": True, "downscale": 1},
    **{"start_us": 0, "end_us": 0, "num_events": 0, "labelled_times": 0, "boxes": {}, "faults": [], "files": {}},
}


def examine(root: Path, paths: RecordingPaths, kind: str) -> PreparedRecording:
    """Read one recording or sequence completely, and compare its labels with it.

    Args:
        root: of the dataset.
        paths: the recording.
        kind: ``"gen1"`` or ``"1mpx"``, whose time index is stored too, or ``"rvt"``.
    """
    files = {
        name: None if path is None else path.relative_to(root).as_posix()
        for name, path in (("events", paths.events), ("labels", paths.labels), ("truth", paths.truth))
    }
    known: dict[str, Any] = {"name": paths.name, "split": paths.split, **files}
    entry = PreparedRecording(**known, **NOT_READ)
    try:
        if kind == "rvt":
            _examine_sequence(entry, paths)
        else:
            _examine_events(entry, paths, kind)
    except FateError as error:
        if kind == "rvt" and isinstance(error, MissingDependencyError):
            raise  # no sequence can be read without it
        entry.add_fault("damaged", f"left out: {error}")
    return entry


def _examine_events(entry: PreparedRecording, paths: RecordingPaths, kind: str) -> None:
    """Decode a recording of Gen1 or 1Mpx, store its time index, and compare its labels with its events."""
    entry.says_sensor = read_head(paths.events, EventOptions()).sensor is not None
    with _options(entry, kind).open(paths.events) as recording:
        check_recording(recording)
        sensor, index = recording.sensor, recording.index()
        entry.readable, entry.sensor = True, sensor
        entry.start_us, entry.end_us, entry.num_events = recording.start_us, recording.end_us, recording.num_events
        if outside := index.tally.outside:
            entry.add_fault("repaired", f"{outside} events outside {sensor} are dropped when it is read")
        if back := index.tally.back:
            entry.add_fault("repaired", f"time goes back {back} times; events are sorted when it is read")
        if tail := describe_tail(index.tail, recording.format):
            entry.add_fault("cut", f"ends early: {tail}; all before is read")

        def read(path: Path) -> Labels:
            if fault := box_file_fault(path):
                raise FateError(f"{path}: {fault}")
            return read_box_file(path, sensor)

        labels = _examine_labels(entry, sensor, paths.labels, read, kind)
        if labels is not None:
            counts = label_statistics(recording, labels, frames=CHECKED_FRAMES).counts
            wrong = [f"{counts[fault]} {fault}" for fault in REPORTED_FAULTS if counts[fault]]
            if wrong:
                entry.add_fault("boxes", f"some of {len(labels)} boxes look wrong: {', '.join(wrong)}")
            for note in find_mismatches(recording, labels, None):
                entry.add_fault("clock", note)


def _examine_sequence(entry: PreparedRecording, paths: RecordingPaths) -> None:
    """Check a sequence of histograms: shapes, times, number of images, the first and the last image, and the boxes."""
    sequence = open_sequence(paths)
    times, sensor = sequence.timestamps_us, sequence.full_sensor
    sequence.images(0, 1)
    sequence.images(len(times) - 1, len(times))  # the last one: downloads end early
    entry.readable, entry.sensor, entry.downscale = True, sensor, sequence.downscale
    entry.start_us, entry.end_us, entry.num_events = sequence.span

    def read(path: Path) -> Labels:
        labels, images = sequence.read_label_file(path), sequence.label_images
        if len(images) and not (images.min() >= 0 and images.max() < sequence.num_images):
            raise FateError(f"{path}: belongs to images up to {images.max()}, and there are {sequence.num_images}")
        return labels

    labels = _examine_labels(entry, sensor, paths.labels, read, public_kind(sensor))
    apart = [] if labels is None else np.setdiff1d(labels.labelled_us, times[sequence.label_images])
    if labels is not None and len(apart):
        entry.add_fault("clock", f"{len(apart)} of {len(labels.labelled_us)} labelled times are at the end of no image")


def _options(entry: PreparedRecording, kind: str) -> EventOptions:
    return EventOptions(None if entry.says_sensor else PUBLIC_SETS[kind].sensor)


def _examine_labels(
    entry: PreparedRecording, sensor: Sensor, path: Path | None, read: Callable[[Path], Labels], kind: str | None
) -> Labels | None:
    """Read the label file, count its boxes and name their faults; returns None if there are no labels to use.

    Args:
        entry: of the recording.
        sensor: of the camera.
        path: the label file.
        read: reads the boxes as the file has them.
        kind: the public dataset, which names the class ids; None if there is none.
    """
    if path is None:
        entry.add_fault("no labels", "has no labels; it can be used for detection, not for training")
        return None
    try:
        raw = read(path)
        boxes = load_boxes(raw, str(path), class_map(None, kind), sensor, 1, Clock())
    except FateError as error:
        entry.add_fault("bad labels", f"its labels are not used: {error}")
        return None
    names = {number: name for name, number in PUBLIC.get(kind or "", {}).items()}
    ids, counts = np.unique(raw.class_id, return_counts=True)
    entry.labelled, entry.labelled_times = True, len(raw.labelled_us)
    entry.boxes = {names.get(i, f"id {i}"): n for i, n in zip(ids.tolist(), counts.tolist(), strict=True)}
    if kind is not None:
        entry.faults += box_findings(entry.name, entry.split, boxes)
    return raw


def has_index(root: Path, entry: PreparedRecording, kind: str) -> bool:
    """Whether an unchanged recording can still be read; its time index is built again if it is gone."""
    if not entry.readable:
        return True
    try:
        with _options(entry, kind).open(root / entry.events) as recording:
            recording.index()
    except FateError:
        return False
    return True


# ---- files ------------------------------------------------------------------------------------------------------


def recording_files(paths: RecordingPaths, kind: str) -> list[Path]:
    """All files of a recording or sequence that exist."""
    labels, folder = paths.labels, paths.events.parent
    others = [labels, paths.truth]
    if kind == "rvt":
        others += [folder / "timestamps_us.npy", folder / "objframe_idx_2_repr_idx.npy"]
        others.append(folder.parent.parent / LABELS / "timestamps_us.npy")
    elif labels is not None:
        others.append(labels.with_name(f"{labels.stem}_times.npy"))
    return [paths.events, *(path for path in others if path and path.is_file())]


def file_states(root: Path, files: Sequence[Path]) -> dict[str, FileState]:
    """Size and time of change of each file, by its path inside the dataset; the hash is filled in later."""
    states = {}
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue  # deleted since it was listed: the examination reports it
        states[path.relative_to(root).as_posix()] = FileState(bytes=state.st_size, mtime_ns=state.st_mtime_ns)
    return states


def hash_files(root: Path, states: dict[str, FileState]) -> None:
    """Fill in the SHA-256 of every file; None for a file that cannot be read."""
    for name, state in states.items():
        try:
            with open_regular(root / name) as file:
                state.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, FateError):
            state.sha256 = None


def is_unchanged(old: dict[str, FileState], new: dict[str, FileState], hashed: bool) -> bool:
    """Whether files are those of an earlier run, and, if ``hashed``, the earlier run has hashed them."""

    def identity(states: dict[str, FileState]) -> dict[str, tuple[int, int]]:
        return {name: (state.bytes, state.mtime_ns) for name, state in states.items()}

    return identity(old) == identity(new) and (not hashed or all(state.sha256 for state in old.values()))
