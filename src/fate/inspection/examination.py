"""A close look at one recording for ``fate prepare``: is it whole, what does it hold, and what is wrong with it?

The result is plain data, as it stands in the manifest. Files are known by size and time of change, so that the next run
looks only at what has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.labels import Labels
from fate.data.box_files import Clock, box_file_fault, load_boxes, read_box_file
from fate.data.class_maps import PUBLIC, ClassMap, class_map
from fate.data.event_files import EventOptions, check_recording, look_at
from fate.data.findings import Finding, box_findings
from fate.data.kinds import PUBLIC_SETS, public_kind
from fate.data.layout import Entry
from fate.data.rvt_layout import RvtSequence
from fate.data.rvt_sequences import LABELS, SequenceFiles, open_sequence
from fate.errors import FateError, MissingDependencyError
from fate.files import open_regular
from fate.formats.recording import Recording, describe_tail
from fate.inspection.label_statistics import label_statistics
from fate.inspection.misfits import misfits

FRAMES = 20  # labelled times of a recording whose events are looked at
#: What is said of boxes: faults that are to be expected in a standing scene are not worth a sentence.
TOLD = ("without events", "frozen", "no area", "twice", "outside the recording")


class Examined:
    """What is found out about one recording, put together as its entry of the manifest."""

    def __init__(self, root: Path, name: str, split: str | None, events: Path, labels: Path | None) -> None:
        self.root, self.name = root, name
        self.faults: list[Finding] = []
        self.facts: dict[str, Any] = {
            "name": name,
            "split": split,
            "events": self._inside(events),
            "labels": None if labels is None else self._inside(labels),
            "truth": None,
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

    def _inside(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def fault(self, kind: str, sentence: str) -> None:
        """Name a fault."""
        self.faults.append(Finding(kind, f"{self.name}: {sentence}", self.facts["split"]))

    def set_span(self, start_us: int, end_us: int, num_events: int) -> None:
        """The time it covers."""
        self.facts |= {"start_us": start_us, "end_us": end_us, "num_events": num_events}

    def count_boxes(self, labels: Labels, names: dict[int, str]) -> None:
        """Boxes by class, those that are not used included."""
        present, counts = np.unique(labels.class_id, return_counts=True)
        self.facts["labelled_times"] = len(labels.labelled_us)
        self.facts["boxes"] = {
            names.get(number, f"id {number}"): count
            for number, count in zip(present.tolist(), counts.tolist(), strict=True)
        }

    def entry(self) -> dict[str, Any]:
        """For the manifest, still without its files."""
        return self.facts | {"faults": [finding._asdict() for finding in self.faults]}


def examine_recording(root: Path, entry: Entry, kind: str) -> dict[str, Any]:
    """Go through a recording of Gen1 or 1Mpx: its time index is made and kept, its labels are held against its events.

    Args:
        root: of the dataset.
        entry: the recording.
        kind: ``"gen1"`` or ``"1mpx"``.
    """
    found = Examined(root, entry.name, entry.split, entry.events, entry.labels)
    if entry.truth is not None:
        found.facts["truth"] = entry.truth.relative_to(root).as_posix()
    public = PUBLIC_SETS[kind]
    try:
        says = look_at(entry.events, EventOptions()).sensor is not None
        with EventOptions(None if says else public.sensor).open(entry.events) as recording:
            check_recording(recording)
            found.facts |= {"readable": True, "says_sensor": says, "sensor": recording.sensor._asdict()}
            found.set_span(recording.start_us, recording.end_us, recording.num_events)
            _name_repairs(found, recording)
            _examine_labels(found, entry.labels, recording, kind)
    except FateError as error:
        found.fault("damaged", f"left out: {error}")
    return found.entry()


def has_index(root: Path, entry: dict[str, Any], kind: str) -> bool:
    """Whether a recording that has not changed is as it was; its time index is made again where it is gone."""
    if not entry["readable"]:
        return True
    options = EventOptions(None if entry["says_sensor"] else PUBLIC_SETS[kind].sensor)
    try:
        with options.open(root / entry["events"]) as recording:
            recording.index()
    except FateError:
        return False
    return True


def _name_repairs(found: Examined, recording: Recording) -> None:
    tally, tail = recording.index().tally, describe_tail(recording.index().tail, recording.format)
    if tally.outside:
        found.fault("repaired", f"{tally.outside} events outside {recording.sensor} are dropped when it is read")
    if tally.back:
        found.fault("repaired", f"time goes back {tally.back} times; events are sorted when it is read")
    if tail:
        found.fault("cut", f"ends early: {tail}; all before is read")


def _examine_labels(found: Examined, path: Path | None, recording: Recording, kind: str) -> None:
    if path is None:
        found.fault("no labels", "has no labels; it serves detection, not training")
        return
    try:
        if head := box_file_fault(path):
            raise FateError(f"{path}: {head}")
        raw = read_box_file(path, recording.sensor)
        boxes = load_boxes(raw, str(path), class_map(None, kind), recording.sensor, 1, Clock())
    except FateError as error:
        found.fault("bad labels", f"its labels are not used: {error}")
        return
    found.facts["labelled"] = True
    found.count_boxes(raw, {number: name for name, number in PUBLIC[kind].items()})
    found.faults += box_findings(found.name, found.facts["split"], boxes)
    counts = label_statistics(recording, raw, frames=FRAMES).counts
    wrong = [f"{counts[fault]} {fault}" for fault in TOLD if counts[fault]]
    if wrong:
        found.fault("boxes", f"some of {len(raw)} boxes look wrong: {', '.join(wrong)}")
    found.faults += [Finding("clock", note, found.facts["split"]) for note in misfits(found.name, recording, raw, None)]


# ---- RVT's layout -----------------------------------------------------------------------------------------------


def examine_sequence(root: Path, files: SequenceFiles) -> dict[str, Any]:
    """Look at a sequence of histograms: shapes, times, numbers of images and the boxes; two images are unpacked."""
    found = Examined(root, files.name, files.split, files.images, files.labels)
    try:
        sequence = open_sequence(files, ClassMap((), ()))
        times = sequence.timestamps_us
        if not len(times):
            raise FateError(f"{files.images}: holds no images")
        sequence.images(0, 1)
        sequence.images(len(times) - 1, len(times))  # the last one: downloads end early
        found.facts |= {"readable": True, "sensor": sequence.full_sensor._asdict(), "downscale": files.downscale}
        found.set_span(*sequence.span)
        _examine_sequence_labels(found, sequence)
    except MissingDependencyError:
        raise
    except FateError as error:
        found.fault("damaged", f"left out: {error}")
    return found.entry()


def _examine_sequence_labels(found: Examined, sequence: RvtSequence) -> None:
    path = sequence.label_file
    if path is None:
        found.fault("no labels", "has no labels; it serves detection, not training")
        return
    kind = public_kind(sequence.full_sensor)
    try:
        raw = sequence.read_label_file(path)
        boxes = load_boxes(raw, str(path), class_map(None, kind), sequence.full_sensor, 1, Clock())
        places = sequence.label_images
        if len(places) and not (places.min() >= 0 and places.max() < sequence.num_images):
            raise FateError(f"{path}: belongs to images up to {places.max()}, and there are {sequence.num_images}")
    except FateError as error:
        found.fault("bad labels", f"its labels are not used: {error}")
        return
    found.facts["labelled"] = True
    found.count_boxes(raw, {number: name for name, number in PUBLIC.get(kind or "", {}).items()})
    if kind is not None:
        found.faults += box_findings(found.name, found.facts["split"], boxes)
    ends = sequence.timestamps_us[places]
    apart = len(np.setdiff1d(raw.labelled_us, ends))
    if apart:
        found.fault("clock", f"{apart} of {len(raw.labelled_us)} labelled times are at the end of no image")


def sequence_files(files: SequenceFiles) -> list[Path]:
    """All files of a sequence that are there."""
    folder = files.images.parent
    beside = [folder / "timestamps_us.npy", folder / "objframe_idx_2_repr_idx.npy"]
    beside.append(folder.parent.parent / LABELS / "timestamps_us.npy")
    return [files.images, *(path for path in (files.labels, *beside) if path is not None and path.is_file())]


# ---- files ------------------------------------------------------------------------------------------------------


def recording_files(entry: Entry) -> list[Path]:
    """All files of a recording that are there."""
    times = None if entry.labels is None else entry.labels.with_name(f"{entry.labels.stem}_times.npy")
    beside = [path for path in (entry.labels, times, entry.truth) if path is not None and path.is_file()]
    return [entry.events, *beside]


def file_states(root: Path, files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By path inside the dataset: size and time of change; the hash is filled in later."""
    states = {}
    for path in files:
        try:
            state = path.stat()
        except OSError:
            continue  # gone since it was listed: examining it says so
        name = path.relative_to(root).as_posix()
        states[name] = {"bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": None}
    return states


def hash_files(root: Path, states: dict[str, dict[str, Any]]) -> None:
    """Fill in the SHA-256 of every file; one that cannot be read keeps none."""
    for name, state in states.items():
        try:
            with open_regular(root / name) as file:
                state["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, FateError):
            state["sha256"] = None


def unchanged(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]], hashed: bool) -> bool:
    """Whether the files are those of an earlier run, which has hashed them where that is wanted."""
    same = {name: (state["bytes"], state["mtime_ns"]) for name, state in old.items()} == {
        name: (state["bytes"], state["mtime_ns"]) for name, state in new.items()
    }
    return same and (not hashed or all(state["sha256"] for state in old.values()))
