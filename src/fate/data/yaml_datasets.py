"""Read a YAML file that describes a dataset.

    classes: [car, pedestrian]            # or a mapping from names to the ids in the label files: {car: 2}
    recordings:
      - events: drives/monday.raw         # any recording that fate info reads
        labels: boxes/monday.json         # any labels that fate.read_labels reads
        split: train
      - events: drives/tuesday.aedat4
        labels: boxes/tuesday_bbox.npy
        label_offset_us: 1589163147365215 # labels count from here
        split: val

Instead of a list, ``recordings`` may name folders by split: ``{train: drives/2023, val: drives/2024}``. Paths are
relative to the YAML file. What holds for all recordings may stand at the top: ``sensor``, ``downscale``,
``label_offset_us``, ``label_time_unit``, ``format``, ``columns``, ``time_unit``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fate.data.box_files import Clock
from fate.data.class_maps import Classes
from fate.data.labelled_recording import EventOptions, check_downscale
from fate.data.layout import SPLITS, DatasetFiles, RecordingPaths, find_recordings
from fate.errors import FateError
from fate.events.events import Sensor
from fate.text import nearest_name
from fate.yaml_files import load_yaml

SUFFIXES = (".yaml", ".yml")
FILE_NAME = "dataset.yaml"  # in the folder of a dataset

_EVENT_KEYS = ("sensor", "format", "columns", "time_unit")
_CLOCK_KEYS = ("label_offset_us", "label_time_unit")
TOP_KEYS = ("name", "classes", "recordings", "downscale", "protocol", *_EVENT_KEYS, *_CLOCK_KEYS)
RECORDING_KEYS = ("events", "labels", "truth", "split", "name", *_EVENT_KEYS, *_CLOCK_KEYS)
Result = TypeVar("Result")
OWN_SPLITS = ("train", "val", "test")
#: Keys of the YAML files in which ultralytics describes datasets of images.
IMAGE_KEYS = {"path", "train", "val", "test", "names", "nc"}
PROTOCOLS = ("custom", "gen1", "1mpx", "sim")


def find_yaml(path: Path) -> Path | None:
    """The YAML file that ``path`` is or, if it is a folder, contains; None if there is none."""
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return path
    inside = path / FILE_NAME
    return inside if path.is_dir() and inside.is_file() else None


def read_dataset_yaml(path: Path, split: str | None) -> DatasetFiles:
    """Read the YAML file of a dataset; no recording is opened.

    Args:
        path: the file.
        split: keep only ``"train"``, ``"val"`` or ``"test"``.
    """
    top = load_yaml(path, "a YAML file that describes a dataset")
    if not isinstance(top, dict):
        raise FateError(f"{path}: holds {type(top).__name__}; expected keys such as classes and recordings")
    document = _Document(path, top)
    if "recordings" not in top and len(IMAGE_KEYS & top.keys()) > 1:
        document.fail(
            "describes a dataset of images, as ultralytics does (keys such as path, train, names); FATE's YAML lists"
            " recordings of events: classes: [car], recordings: [{events: drive.raw, labels: drive.json, split: train}]"
        )
    document.refuse_unknown(top, TOP_KEYS, "at the top")
    if "recordings" not in top:
        document.fail("has no recordings; list them, or name a folder for each split")
    recordings = tuple(document.recordings())
    names = Counter(recording.name for recording in recordings)
    repeated = next((name for name, number in names.items() if number > 1), None)
    if repeated is not None:
        document.fail(f"two recordings are called {repeated!r}; give one of them another name")
    kept = tuple(recording for recording in recordings if split in (None, recording.split))
    if not kept:
        splits = ", ".join(sorted({str(recording.split) for recording in recordings})) or "none"
        document.fail(f"has no recordings of the split {split!r}; its splits are {splits}")
    protocol = top.get("protocol", "custom")
    if protocol not in PROTOCOLS:
        document.fail(f"protocol is {protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    return DatasetFiles(
        name=document.text(top, "name") or path.stem,
        root=path.parent,
        kind="own",
        protocol=protocol,
        recordings=kept,
        classes=document.classes(),
        sensor=document.sensor(top),
        downscale=document.call(check_downscale, top.get("downscale", 1)),
        source=path,
    )


def _expected_split(given: object) -> str:
    """A suggestion for an unknown split."""
    text = given.lower() if isinstance(given, str) else ""
    near = SPLITS.get(text) or nearest_name(text, OWN_SPLITS)
    return f"did you mean {near!r}?" if near else "expected train, val or test"


class _Document:
    """The content of a YAML file; its errors name the file and the key."""

    def __init__(self, path: Path, top: dict[str, Any]) -> None:
        self.path, self.top = path, top

    def fail(self, sentence: str) -> NoReturn:
        raise FateError(f"{self.path}: {sentence}")

    def call(self, function: Callable[[Any], Result], given: object) -> Result:
        """Call a function with one value; its error names the file."""
        try:
            return function(given)
        except FateError as error:
            return self.fail(str(error))

    def refuse_unknown(self, given: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
        for key in given:
            if key not in known:
                near = nearest_name(key, known)
                hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
                self.fail(f"unknown key {key!r} {where}; {hint}")

    def recordings(self) -> Iterable[RecordingPaths]:
        given = self.top["recordings"]
        if isinstance(given, Mapping):
            yield from self._folders(given)
        elif isinstance(given, list) and given:
            for number, one in enumerate(given, start=1):
                if not isinstance(one, Mapping):
                    self.fail(f"recording {number} is {one!r}; expected keys such as events and labels")
                yield self._recording(one, f"in recording {number}")
        else:
            self.fail("recordings is empty; expected a list with events and labels, or a folder for each split")

    def _folders(self, given: Mapping[Any, Any]) -> Iterable[RecordingPaths]:
        """``{train: folder, val: [folder, folder]}``"""
        for split, folders in given.items():
            if split not in OWN_SPLITS:
                self.fail(f"recordings names the split {split!r}; {_expected_split(split)}")
            for folder in folders if isinstance(folders, list) else [folders]:
                split_folder = self._path(folder, f"of the split {split!r}")
                for found in self.call(find_recordings, split_folder):
                    name = found.name if found.name.split("/")[0] == split else f"{split}/{found.name}"
                    yield replace(found, name=name, split=split, options=self._options({}), clock=self._clock({}))

    def _recording(self, given: Mapping[Any, Any], where: str) -> RecordingPaths:
        self.refuse_unknown(given, RECORDING_KEYS, where)
        if "events" not in given:
            self.fail(f"events is missing {where}; give the file of the recording")
        split = given.get("split")
        if split is not None and split not in OWN_SPLITS:
            self.fail(f"split is {split!r} {where}; {_expected_split(split)}")
        events = self._path(given["events"], where)
        labels, truth = (self._path(given[key], where) if given.get(key) else None for key in ("labels", "truth"))
        name = self.text(given, "name") or self._name(events)
        return RecordingPaths(name, split, events, labels, truth, self._options(given), self._clock(given))

    def _name(self, events: Path) -> str:
        """The file's path from the YAML, without its ending."""
        plain = events.with_suffix("") if events.suffix else events
        return (plain.relative_to(self.path.parent) if plain.is_relative_to(self.path.parent) else plain).as_posix()

    def _path(self, given: object, where: str) -> Path:
        if not isinstance(given, str) or not given:
            self.fail(f"{given!r} is given as a path {where}; expected text")
        return self.path.parent / Path(given).expanduser()

    def _options(self, given: Mapping[Any, Any]) -> EventOptions:
        both = {key: given.get(key, self.top.get(key)) for key in ("format", "columns", "time_unit")}
        texts = {key: self.text(both, key) for key in both}
        return EventOptions(self.sensor(given), **texts)  # the sensor at the top is for those that do not say

    def _clock(self, given: Mapping[Any, Any]) -> Clock:
        offset, unit = (given.get(key, self.top.get(key)) for key in _CLOCK_KEYS)
        return self.call(lambda one: Clock(*one), ("us" if unit is None else unit, 0 if offset is None else offset))

    def sensor(self, given: Mapping[Any, Any]) -> Sensor | None:
        size = given.get("sensor")
        if size is None:
            return None
        if isinstance(size, str) and (match := re.fullmatch(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", size)):
            return self.call(Sensor.of, (int(match[2]), int(match[1])))
        if isinstance(size, Mapping) and set(size) == {"height", "width"}:
            return self.call(Sensor.of, (size["height"], size["width"]))
        return self.fail(f"sensor is {size!r}; expected WIDTHxHEIGHT, such as 1280x720")

    def text(self, given: Mapping[Any, Any], key: str) -> str | None:
        value = given.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            self.fail(f"{key} is {value!r}; expected text")
        return value

    def classes(self) -> Classes | None:
        given = self.top.get("classes")
        if given is None or isinstance(given, (list, Mapping)):
            return given
        return self.fail(f"classes is {given!r}; expected a list of names, or a mapping from names to ids")
