"""Read a YAML file that lists clips of real cameras, for :mod:`fate.workflows.studies.real_clips`.

    clips:
      - name: street
        events: street.aedat4             # any recording that fate info reads
        labels: street_bbox.npy           # any labels that fate.read_labels reads
        label_offset_us: 1589163147365215 # labels count from here; or start or end, of the recording
        classes: {car: 0}                 # our names, and the ids or names in the label file
        skip_s: 0.5                       # labels before this time do not count
        goal: {AP50: 85, false_boxes: 3}
        source: where the clip is from
        licence: MIT
      - name: people
        events: people/*.npy              # several short recordings that count together
        labels: .xml                      # a file with this ending beside each of them
        label_offset_us: end              # the labelled time is the end of each recording
        classes: {pedestrian: person}
      - name: desk
        events: desk.raw
        end_s: 3
        shows: nothing                    # no road user: every box is false

Paths are relative to the YAML file. ``sensor``, ``format``, ``columns``, ``time_unit`` and ``label_time_unit`` mean the
same as in the YAML file of a dataset.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fate.boxes.label_files import naming_errors, read_labels, recognise
from fate.boxes.labels import Labels
from fate.data.box_files import Clock
from fate.data.class_maps import plain
from fate.data.labelled_recording import EventOptions
from fate.data.yaml_datasets import ReadingKeys, Text, parse_keys
from fate.errors import FateError
from fate.events.events import Sensor
from fate.formats.recording import Recording
from fate.text import suggest_name
from fate.yaml_files import load_yaml

#: Largest distance of a labelled time from the end of a window, µs, and never more than half the time between windows.
LABEL_TOLERANCE_US = 15_000
#: Figures that may have a goal, and whether larger ones are better. AP50 and found are in percent.
GOALS = {"AP50": True, "hits": True, "found": True, "false_boxes": False, "false_per_window": False}

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Limit = Annotated[float, Field(allow_inf_nan=False)]
Names = int | str | list[int | str]


class ClipKeys(ReadingKeys):
    """The keys of a clip."""

    name: Text | None = None
    events: Text
    labels: Text | None = None
    shows: Literal["nothing"] | None = None
    classes: dict[Text, Names] | None = None
    start_s: Seconds | None = None
    end_s: Seconds | None = None
    skip_s: Seconds = 0.0
    label_tolerance_us: Annotated[int, Field(ge=0)] = LABEL_TOLERANCE_US
    goal: dict[str, Limit] = Field(default_factory=dict)
    source: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Clip:
    """One clip: a recording, or several short ones that count together."""

    list_file: Path  #: the YAML file, for errors
    name: str
    entry: ClipKeys  #: the keys as they were given
    files: tuple[tuple[Path, Path | None], ...]  #: each recording with its labels; None if it shows nothing

    def open(self, events: Path) -> Recording:
        """Open one of the recordings."""
        given = self.entry
        recording = EventOptions(given.sensor, given.format, given.columns, given.time_unit).open(events)
        recording.refuse_empty()
        return recording

    def part(self, recording: Recording) -> tuple[int, int]:
        """Start and end of the part of a recording that counts, µs of its clock."""
        first, start_s, end_s = recording.start_us, self.entry.start_s or 0.0, self.entry.end_s
        end_us = recording.end_us if end_s is None else min(recording.end_us, first + round(end_s * 1e6))
        start_us = first + round(start_s * 1e6)
        if start_us >= end_us:
            end = "the end" if end_s is None else f"{end_s:g} s"
            raise FateError(
                f"the part from {start_s:g} s to {end} of {recording.path} is empty; the recording has"
                f" {(recording.end_us - first) / 1e6:g} s; change start_s or end_s"
            )
        return start_us, end_us

    def truth(self, recording: Recording, labels: Path) -> Labels:
        """The labels of the part of a recording that counts, on its clock and in our classes."""
        given, (start_us, end_us) = self.entry, self.part(recording)
        offset = {"start": recording.start_us, "end": recording.end_us}.get(
            given.label_offset_us, given.label_offset_us
        )
        clock = Clock(given.label_time_unit or "us", offset or 0)
        size = (recording.sensor.height, recording.sensor.width)
        if labels.is_dir():  # YOLO text, which need not say its sensor
            read = read_labels(labels, sensor=size)
        else:
            read = read_labels(labels, t_us=0 if recognise(labels.read_bytes()) == "voc" else None)
        if read.sensor not in (None, size):
            found = Sensor(*read.sensor)
            raise FateError(
                f"{labels}: labels are of {found} pixels, events of {recording.sensor}; give sensor: {found}"
            )
        read = _rename(read, given.classes, labels)
        table = replace(read, t_us=clock.convert(read.t_us), labelled_us=clock.convert(read.labelled_us), sensor=None)
        start_us += round(given.skip_s * 1e6)
        kept = table.between(start_us + 1, max(start_us, end_us) + 1)
        if not len(kept.labelled_us):
            times = (
                f"from {table.labelled_us.min()} to {table.labelled_us.max()} µs" if len(table.labelled_us) else "none"
            )
            raise FateError(
                f"{labels}: no labelled time lies in the part that counts, from {start_us} to {end_us} µs; labelled"
                f" times: {times}; change label_offset_us, skip_s, start_s or end_s"
            )
        return kept

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Put the YAML file and the name of the clip before every error."""
        with naming_errors(self.list_file, "clips"):
            try:
                yield
            except FateError as error:
                raise FateError(f"clip {self.name!r}: {error}") from error


def read_clips(path: str | os.PathLike[str]) -> list[Clip]:
    """Read the clips that a YAML file lists; refuses files that do not exist, and opens none of them."""
    source = Path(path)
    top = load_yaml(source, "a YAML file that lists clips")
    with naming_errors(source, "a YAML file that lists clips"):
        listed = top.get("clips") if isinstance(top, dict) else None
        if not isinstance(listed, list) or not listed or len(top) > 1:
            raise FateError("expected the key clips alone, with a list: clips: [{events: desk.raw, shows: nothing}]")
        clips = [_clip(one, number, source) for number, one in enumerate(listed, start=1)]
        repeated = next((name for name, count in Counter(clip.name for clip in clips).items() if count > 1), None)
        if repeated is not None:
            raise FateError(f"two clips are called {repeated!r}; give one of them another name")
    return clips


def _clip(given: object, number: int, source: Path) -> Clip:
    where = f"in clip {number}"
    entry = parse_keys(ClipKeys, given, where)
    where = f"in clip {number} ({entry.name})" if entry.name else where
    if (entry.labels is None) == (entry.shows is None):
        both = "both labels and shows: nothing stand" if entry.labels else "neither labels nor shows: nothing stands"
        raise FateError(f"{both} {where}; give one of them")
    of_labels = ("label_offset_us", "label_time_unit", "classes")
    unused = next((key for key in of_labels if entry.shows and getattr(entry, key) is not None), None)
    if unused:
        raise FateError(f"{unused} stands {where}, which shows nothing and has no labels; leave it out")
    offset = entry.label_offset_us
    if isinstance(offset, str) and offset not in ("start", "end"):
        raise FateError(f"label_offset_us is {offset!r} {where}; expected whole microseconds, start or end")
    try:
        Clock(entry.label_time_unit or "us", 0 if offset is None or isinstance(offset, str) else offset)
    except FateError as error:
        raise FateError(f"{error} ({where})") from error
    for figure in entry.goal:
        if figure not in GOALS:
            known = f"expected {', '.join(GOALS)}{suggest_name(figure, GOALS)}"
            raise FateError(f"goal names {figure!r} {where}; {known}")
    pattern = str(source.parent / Path(entry.events).expanduser())
    found = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern)))
    if not found:
        raise FateError(f"events is {entry.events!r} {where}; there is no such file; check the name")
    files = tuple((events, _labels_of(events, entry.labels, source, where)) for events in found)
    if len({labels for _, labels in files}) == 1 and entry.labels and len(files) > 1:
        raise FateError(
            f"labels is {entry.labels!r} {where}, one file for {len(files)} recordings; give the ending of a file"
            " beside each of them, such as .xml"
        )
    return Clip(source, entry.name or Path(entry.events).stem, entry, files)


def _labels_of(events: Path, labels: str | None, source: Path, where: str) -> Path | None:
    """The label file of a recording: the named one, or that with an ending such as ``.xml`` beside the recording."""
    if labels is None:
        return None
    is_ending = labels.startswith((".", "_")) and "/" not in labels
    path = events.with_name(f"{events.stem}{labels}") if is_ending else source.parent / Path(labels).expanduser()
    if not path.exists():
        raise FateError(f"labels is {labels!r} {where}; there is no file {path}; check the name")
    return path


def _rename(labels: Labels, classes: Mapping[str, Names] | None, file: Path) -> Labels:
    """Labels in our classes; ``classes`` has their ids or names in the file. Without it, names stay as they are."""
    if classes is None:
        if labels.classes is None and len(labels):
            raise FateError(f"{file}: has class ids without names; add classes, such as classes: {{car: 0}}")
        return labels
    ours: dict[int | str, int] = {}
    for index, names in enumerate(classes.values()):
        for each in names if isinstance(names, list) else [names]:
            ours[plain(each) if isinstance(each, str) else each] = index
    ids = np.zeros(len(labels), np.int32)
    for number in np.unique(labels.class_id).tolist():
        name = None if labels.classes is None else labels.classes[number]
        key = number if name is None or number in ours else plain(name)
        if key not in ours:
            kind = "numbers" if labels.classes is None else "names"
            raise FateError(
                f"{file}: has boxes of class {key!r}, which classes does not name; classes needs the {kind} of the"
                f" label file after ours, such as classes: {{car: {key}}}"
            )
        ids[labels.class_id == number] = ours[key]
    return replace(labels, class_id=ids, classes=tuple(classes))
