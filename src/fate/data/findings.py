"""What is wrong with the recordings of a dataset, each fault named once, and long lists of the same fault cut short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fate.boxes.labels import Labels
from fate.data.box_files import Boxes
from fate.data.labelled_recording import LabelledRecording
from fate.errors import FateError

#: Events this long before a label show whether something is in its box; labels may lie this far outside a recording.
LOOK_BACK_US = 50_000
#: Recordings are rarely longer: labels that start later use another clock.
CUT_SHORT_US = 3_600_000_000
#: Sentences of one kind of fault that are listed; what is left is counted in one more.
LISTED = 20
#: Files looked at side by side: network disks answer slowly and many at once.
THREADS = 8

#: Kinds of faults, and how many more of a kind are spoken of.
KINDS = {
    "damaged": "are left out because they cannot be read",
    "sensor": "are left out because they are of another sensor size",
    "twice": "are left out because they share their labels with another file",
    "no labels": "have no labels",
    "bad labels": "have labels that cannot be read",
    "out of frame": "have boxes out of frame, which were clipped",
    "class": "have boxes of unknown classes, which were dropped",
    "clock": "have labels outside the time of the events",
    "repaired": "have events that are dropped or sorted when they are read",
    "boxes": "have boxes that look wrong",
    "cut": "end early",
    "missing": "are missing",
    "other": "have other faults",
}


#: Kinds of faults that make a dataset incomplete: files or boxes that it should have cannot be used.
LACKING = ("damaged", "sensor", "bad labels", "class", "clock", "cut", "missing")


class Finding(NamedTuple):
    """One fault."""

    kind: str  #: a key of ``KINDS``
    sentence: str
    split: str | None = None  #: of the recording; None where that has none, or all are meant


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One sentence for each fault; of a kind that is frequent the first ones, and how many more there are."""
    told: list[str] = []
    seen: Counter[str] = Counter()
    for finding in findings:
        seen[finding.kind] += 1
        if seen[finding.kind] <= LISTED:
            told.append(finding.sentence)
    told += [f"{number - LISTED} more recordings {KINDS[kind]}" for kind, number in seen.items() if number > LISTED]
    return tuple(told)


def check_recordings(
    recordings: Iterable[LabelledRecording],
) -> tuple[tuple[LabelledRecording, ...], tuple[Finding, ...]]:
    """Read the labels of all recordings, one after another and none kept, and find out how long each one is.

    Where only going through a file tells its length, its time index is made, or found on the disk: whoever reads the
    recording needs it, and a file that is damaged in the middle is better met now than hours later.

    Returns:
        The recordings that can be used, those with unreadable labels as unlabelled ones; and what was found.
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
    if apart := _other_clock(recording, boxes.labels):
        found.append(Finding("clock", f"{recording.name}: {apart}", recording.split))
    return recording, found


def box_findings(name: str, split: str | None, boxes: Boxes) -> list[Finding]:
    """What had to be changed in the boxes of a recording."""
    found = []
    if boxes.clipped:
        reach = "box reaches" if boxes.clipped == 1 else "boxes reach"
        whole = f", {boxes.outside} wholly outside and dropped" if boxes.outside else ""
        sentence = f"{name}: {boxes.clipped} {reach} out of frame; clipped there{whole}"
        found.append(Finding("out of frame", sentence, split))
    if boxes.unknown:
        listed = ", ".join(f"{kind} ({number})" for kind, number in boxes.unknown.items())
        sentence = (
            f"{name}: boxes of unknown classes were dropped: {listed}; name them in classes, or give a mapping from"
            " names to ids to leave them out"
        )
        found.append(Finding("class", sentence, split))
    return found


def _other_clock(recording: LabelledRecording, labels: Labels) -> str:
    """Whether labels lie outside the time of the events, where that is known without going through the file."""
    span = recording.known_span
    if span is None or not len(labels.labelled_us):
        return ""
    first, last = int(labels.labelled_us[0]), int(labels.labelled_us[-1])
    shown = f"labels run from {first / 1e6:.3f} to {last / 1e6:.3f} s, events from {span.start_us / 1e6:.3f} to"
    shown += f" {span.end_us / 1e6:.3f} s"
    if last < span.start_us - LOOK_BACK_US or first > span.end_us + CUT_SHORT_US:
        return f"{shown}; they are on different clocks: give the difference as label_offset_us"
    late = int(np.count_nonzero(labels.labelled_us > span.end_us + LOOK_BACK_US))
    return f"{shown}; {late} labelled times come after the last event" if late else ""
