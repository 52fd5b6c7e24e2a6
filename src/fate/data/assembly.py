"""From the files of a dataset to its recordings: a look at each, one sensor for all, what is left out named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fate.data.box_files import Clock, box_file_fault, read_box_file
from fate.data.class_maps import Classes, ClassMap, checked_names, class_map, plain
from fate.data.event_files import EventOptions, Look, look_at
from fate.data.findings import THREADS, Finding
from fate.data.labelled_recording import LabelledRecording
from fate.data.layout import Entry
from fate.errors import FateError
from fate.events.events import Sensor

SAMPLED = 5  # label files read to find names and ids; the rest are read when they are needed


class Files(NamedTuple):
    """One recording before anyone has looked at it."""

    entry: Entry
    options: EventOptions = EventOptions()
    clock: Clock = Clock()


@dataclass(frozen=True)
class Draft:
    """What is known of a dataset before its files are opened."""

    name: str
    root: Path
    kind: str
    protocol: str
    files: tuple[Files, ...]
    classes: Classes | None  #: what the dataset says its classes are; None: those of the kind, or of the label files
    sensor: Sensor | None = None  #: the one to expect
    downscale: int = 1
    wanted: Classes | None = None  #: what the user asked for: names of the dataset's classes, or names with ids
    source: Path | None = None  #: the YAML file that describes the dataset
    findings: tuple[Finding, ...] = ()  #: what is wrong with it as far as that is known already

    @property
    def where(self) -> str:
        """What an error begins with."""
        return str(self.source or self.root)


class Assembled(NamedTuple):
    """The recordings that can be used."""

    recordings: tuple[LabelledRecording, ...]
    class_map: ClassMap
    sensor: Sensor  #: of the camera
    findings: tuple[Finding, ...]


class Seen(NamedTuple):
    """What a look at the files of a recording gave."""

    files: Files
    look: Look | None  #: None where the events cannot be read
    fault: str  #: why they cannot
    label_fault: str  #: why the labels cannot


def assemble(draft: Draft) -> Assembled:
    """Look at all files of a draft and make recordings of those that belong together."""
    findings: list[Finding] = list(draft.findings)
    files = _without_twins(draft.files, findings)
    seen = look_at_all(files)
    findings += [
        Finding("damaged", f"{each.files.entry.name}: left out: {each.fault}", each.files.entry.split)
        for each in seen
        if each.look is None
    ]
    usable = [each for each in seen if each.look is not None]
    if not usable:
        more = f" (and {len(seen) - 1} more like it)" if len(seen) > 1 else ""
        raise FateError(f"{draft.root}: no recording can be read; {seen[0].fault}{more}")
    sensor = choose_sensor(draft, usable, findings)
    classes = _classes(draft, usable, sensor)
    recordings = []
    for each in usable:
        entry, look = each.files.entry, each.look
        if look is None or look.sensor not in (None, sensor):
            continue
        if look.cut:
            findings.append(Finding("cut", f"{entry.name}: ends early: {look.cut}", entry.split))
        if each.label_fault:
            findings.append(
                Finding("bad labels", f"{entry.name}: its labels are not used: {each.label_fault}", entry.split)
            )
        elif entry.labels is None:
            sentence = f"{entry.name}: has no labels; it serves detection, not training"
            findings.append(Finding("no labels", sentence, entry.split))
        options = each.files.options if look.sensor else each.files.options._replace(sensor=sensor)
        recordings.append(
            LabelledRecording(
                name=entry.name,
                split=entry.split,
                events_file=entry.events,
                label_file=None if each.label_fault else entry.labels,
                class_map=classes,
                full_sensor=sensor,
                downscale=draft.downscale,
                truth_file=entry.truth,
                event_options=options,
                clock=each.files.clock,
                known_span=look.span,
            )
        )
    return Assembled(tuple(recordings), classes, sensor, tuple(findings))


def look_at_all(files: Sequence[Files]) -> list[Seen]:
    """A look at the head of every file, several at a time; none is gone through."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(_see, files))


def _see(files: Files) -> Seen:
    entry = files.entry
    label_fault = "" if entry.labels is None else box_file_fault(entry.labels)
    label_fault = f"{entry.labels}: {label_fault}" if label_fault else ""
    try:
        return Seen(files, look_at(entry.events, files.options), "", label_fault)
    except FateError as error:
        return Seen(files, None, str(error), label_fault)


def _without_twins(files: Sequence[Files], findings: list[Finding]) -> list[Files]:
    """One recording kept in two formats, ``drive_td.dat`` and ``drive_td.dat.h5``, would count twice."""
    first: dict[Path, Files] = {}
    kept = []
    for each in sorted(files, key=lambda one: (one.entry.events.suffix.lower() != ".dat", one.entry.name)):
        labels = each.entry.labels
        if labels is not None and labels in first:
            other = first[labels].entry
            sentence = f"{each.entry.name}: left out: it has the same labels as {other.name}, which is used"
            findings.append(Finding("twice", sentence, each.entry.split))
            continue
        if labels is not None:
            first[labels] = each
        kept.append(each)
    return sorted(kept, key=lambda one: one.entry.name)


def choose_sensor(draft: Draft, usable: Sequence[Seen], findings: list[Finding]) -> Sensor:
    """The sensor size of the dataset; recordings of another one are named."""
    sizes = Counter(each.look.sensor for each in usable if each.look and each.look.sensor)
    if not sizes and draft.sensor is None:
        raise FateError(
            f"{draft.root}: no recording says how large its sensor is; pass sensor=(height, width), or write sensor:"
            " WIDTHxHEIGHT into the YAML of the dataset"
        )
    if not sizes or (draft.sensor is not None and draft.sensor in sizes):
        sensor = draft.sensor
    else:
        sensor = sizes.most_common(1)[0][0]
        if draft.sensor is not None:
            findings.append(Finding("other", f"its recordings are {sensor}, while {draft.kind} is {draft.sensor}"))
    if sensor is None:
        raise FateError(f"{draft.root}: its sensor size is not known; pass sensor=(height, width)")
    for each in usable:
        if each.look and each.look.sensor not in (None, sensor):
            entry = each.files.entry
            sentence = f"{entry.name}: left out: it is {each.look.sensor}, the others are {sensor}"
            findings.append(Finding("sensor", sentence, entry.split))
    return sensor


def _classes(draft: Draft, usable: Sequence[Seen], sensor: Sensor) -> ClassMap:
    """The classes of the dataset, or those of them that the user asked for by name."""
    wanted = draft.wanted
    if isinstance(wanted, Mapping):
        return class_map(wanted)
    if draft.kind in ("gen1", "1mpx"):
        return class_map(wanted, draft.kind, draft.where)
    if draft.classes is not None:
        return _selected(class_map(draft.classes), draft)
    files = [each.files.entry.labels for each in usable if not each.label_fault]
    names, found = sample_labels(files, sensor)
    if names is not None:
        if wanted is not None and not {plain(name) for name in checked_names(wanted)} <= {plain(n) for n in names}:
            names, _ = sample_labels(files, sensor, len(files))  # another file may have the name
        return _selected(class_map(names), draft)
    if wanted is not None:  # the label files have ids alone: the user's list says which id has which name
        return class_map(wanted)
    ids = set().union(*found)
    if not ids:
        return class_map(())
    raise FateError(
        f"{draft.where}: its labels have class ids ({', '.join(map(str, sorted(ids)[:10]))}) and no names; pass"
        " classes=[...], or write one name a line into classes.txt in that folder"
    )


def _selected(known: ClassMap, draft: Draft) -> ClassMap:
    if draft.wanted is None or isinstance(draft.wanted, Mapping):
        return known
    return known.select(draft.wanted, draft.where)


def sample_labels(
    files: Sequence[Path | None], sensor: Sensor, number: int = SAMPLED
) -> tuple[tuple[str, ...] | None, list[set[int]]]:
    """Read some label files for their class names and ids.

    Args:
        files: label files; None for a recording without labels.
        sensor: (height, width) of the camera.
        number: how many of the files are read.

    Returns:
        The names that the files have, None where no file has names, and the ids that occur in each file. Names of the
        first file come first; names that differ in spelling alone occur once.
    """
    there = [file for file in files if file is not None]
    step = max(1, len(there) // max(number, 1))
    first: tuple[str, ...] | None = None
    others: dict[str, str] = {}
    ids = list[set[int]]()
    for file in there[::step][:number]:
        try:
            labels = read_box_file(file, sensor)
        except FateError:
            continue  # its recording's faults name it when it is read
        first = first or labels.classes
        others |= {plain(name): name for name in labels.classes or ()}
        ids.append(set(labels.class_id.tolist()))
    if first is None or number <= SAMPLED:
        return first, ids
    own = {plain(name) for name in first}
    return (*first, *(name for key, name in others.items() if key not in own)), ids


def of_split(files: Sequence[Files], split: str | None) -> tuple[Files, ...]:
    """Those of one split."""
    return tuple(each for each in files if split is None or each.entry.split == split)


def renamed(files: Files, name: str, split: str | None) -> Files:
    """The same under another name."""
    return files._replace(entry=replace(files.entry, name=name, split=split))
