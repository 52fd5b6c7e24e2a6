"""Faults of a dataset: their kinds, the check of all recordings, and their sentences with long lists cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.data.box_files import Boxes
from fate.data.class_maps import describe_unknown
from fate.data.labelled_recording import LabelledRecording
from fate.errors import FateError

#: Events in this time before a label show whether its box is empty; labels may lie this far outside a recording.
LOOK_BACK_US = 50_000
#: Recordings are rarely longer than this: labels that start later use another clock.
CUT_SHORT_US = 3_600_000_000
#: Sentences of one kind of fault that are listed; one more sentence counts the others.
LISTED = 20
#: Files that are read in parallel: network disks answer slowly, but many requests at once.
THREADS = 8

#: Kinds of faults, and the end of the sentence that counts those that are not listed.
KINDS = {
    "damaged": "are left out because they cannot be read",
    "sensor": "are left out because they are of another sensor size",
    "twice": "are left out because they share their labels with another file",
    "no labels": "have no labels",
    "bad labels": "have labels that cannot be read",
    "out of frame": "have boxes out of frame, which were clipped",
    "class": "have boxes of unknown classes, which were dropped",
    "renamed": "have names of classes that differ from those of the dataset, whose ids count",
    "clock": "have labels outside the time of the events",
    "repaired": "have events that are dropped or sorted when they are read",
    "boxes": "have boxes that look wrong",
    "cut": "end early",
    "missing": "are missing",
    "compact": "have lost their compact files; their events are read in place",
    "other": "have other faults",
}


#: Kinds of faults that make a dataset incomplete: files or boxes that it should have cannot be used.
LACKING = ("damaged", "sensor", "bad labels", "class", "clock", "cut", "missing")


class Finding(NamedTuple):
    """One fault."""

    kind: str  #: a key of ``KINDS``
    sentence: str
    split: str | None = None  #: split of the recording; None without one, or if the fault concerns the whole dataset


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One sentence for each fault; of a frequent kind only the first ones, and one sentence that counts the others."""
    listed: list[str] = []
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.kind] += 1
        if seen[finding.kind] <= LISTED:
            listed.append(finding.sentence)
    listed += [f"{number - LISTED} more recordings {KINDS[kind]}" for kind, number in seen.items() if number > LISTED]
    return tuple(listed)


def check_recordings(
    recordings: Iterable[LabelledRecording],
) -> tuple[tuple[LabelledRecording, ...], tuple[Finding, ...]]:
    """Read the labels of all recordings once, and find out how long each recording is.

    If only decoding the file tells its length, its time index is built or loaded: every reader needs it, and a file
    that is damaged in the middle is found now instead of hours later.

    Returns:
        The usable recordings, those with unreadable labels as unlabelled ones; and the faults.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        checked = list(pool.map(_check, recordings))
    kept = tuple(one for one, _ in checked if one is not None)
    return kept, tuple(finding for _, found in checked for finding in found)


def _check(recording: LabelledRecording) -> tuple[LabelledRecording | None, list[Finding]]:
    try:
        span, cut = recording.measure()
    except FateError as error:
        return None, [Finding("damaged", f"{recording.name}: left out: {error}", recording.split)]
    recording = replace(recording, known_span=span)
    before = [Finding("cut", f"{recording.name}: ends early: {cut}", recording.split)] if cut else []
    if not recording.labelled:
        return recording, before
    try:
        boxes = recording.load_labels()
    except FateError as error:
        sentence = f"{recording.name}: its labels are not used: {error}"
        return replace(recording, label_file=None), [*before, Finding("bad labels", sentence, recording.split)]
    found = before + box_findings(recording.name, recording.split, boxes)
    if mismatch := describe_time_mismatch(boxes.labels.labelled_us, span.start_us, span.end_us):
        found.append(Finding("clock", f"{recording.name}: {mismatch}", recording.split))
    return recording, found


def box_findings(name: str, split: str | None, boxes: Boxes) -> list[Finding]:
    """Boxes of a recording that were cut or dropped."""
    found = []
    if boxes.clipped:
        reach = "box reaches" if boxes.clipped == 1 else "boxes reach"
        whole = f", {boxes.outside} wholly outside and dropped" if boxes.outside else ""
        sentence = f"{name}: {boxes.clipped} {reach} out of frame; clipped there{whole}"
        found.append(Finding("out of frame", sentence, split))
    if boxes.unknown:
        listed = describe_unknown(boxes.unknown, boxes.labels.classes or ())
        sentence = (
            f"{name}: boxes of unknown classes were dropped: {listed}; name them in classes, or give a mapping from"
            " names to ids to leave them out"
        )
        found.append(Finding("class", sentence, split))
    if boxes.renamed:
        listed = ", ".join(f"{theirs} counts as {ours}" for theirs, ours in boxes.renamed.items())
        sentence = (
            f"{name}: by the ids in classes, {listed}; if this is not meant, give classes as a list, so that they are"
            " found by their names"
        )
        found.append(Finding("renamed", sentence, split))
    return found


def describe_time_mismatch(labelled_us: NDArray[np.int64], start_us: int, end_us: int) -> str:
    """A sentence if labelled times [N] do not fit a recording from ``start_us`` to ``end_us``; empty if they do."""
    if not len(labelled_us):
        return ""
    first, last = int(labelled_us.min()), int(labelled_us.max())
    shown = f"labels run from {first / 1e6:.3f} to {last / 1e6:.3f} s, events from {start_us / 1e6:.3f} to"
    shown += f" {end_us / 1e6:.3f} s"
    if last < start_us - LOOK_BACK_US or first > end_us + CUT_SHORT_US:
        return f"{shown}; they are on different clocks: give the difference as label_offset_us"
    if first > end_us + LOOK_BACK_US:
        return (
            f"{shown}; all labels come after the last event: the recording may be cut short, or its labels count from"
            " another time: give the difference as label_offset_us"
        )
    late = int(np.count_nonzero(labelled_us > end_us + LOOK_BACK_US))
    times = "labelled time comes" if late == 1 else "labelled times come"
    cut = f"{shown}; {late} {times} after the last event: the recording may be cut short; training leaves them out"
    return cut if late else ""
