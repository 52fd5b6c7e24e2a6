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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from fate.boxes.label_files import naming_errors
from fate.data.box_files import Clock
from fate.data.labelled_recording import EventOptions, check_downscale
from fate.data.layout import DatasetFiles, RecordingPaths, find_recordings, keep_split
from fate.errors import FateError
from fate.events.events import Sensor
from fate.text import nearest_name
from fate.yaml_files import load_yaml

SUFFIXES = (".yaml", ".yml")
FILE_NAME = "dataset.yaml"  # in the folder of a dataset
OWN_SPLITS = ("train", "val", "test")
#: Keys of the YAML files in which ultralytics describes datasets of images.
IMAGE_KEYS = {"path", "train", "val", "test", "names", "nc"}
_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")  # types of errors of pydantic


def _parse_sensor(size: object) -> object:
    """WIDTHxHEIGHT, or a mapping with height and width, as (height, width)."""
    if isinstance(size, str) and (match := re.fullmatch(r"\s*(\d{1,5})\s*[x×]\s*(\d{1,5})\s*", size)):
        return Sensor.of((int(match[2]), int(match[1])))
    if isinstance(size, dict) and set(size) == {"height", "width"}:
        return Sensor.of((size["height"], size["width"]))
    if size is not None:
        raise ValueError("expected WIDTHxHEIGHT, such as 1280x720")
    return size


Text = Annotated[str, Field(min_length=1)]
Size = Annotated[Sensor | None, BeforeValidator(_parse_sensor)]
Model = TypeVar("Model", bound="BaseModel")


class ReadingKeys(BaseModel, extra="forbid", strict=True):
    """How to read a recording and its labels; the keys may stand at the top, for all, or in one recording."""

    sensor: Size = None
    format: Text | None = None
    columns: Text | None = None
    time_unit: Text | None = None
    label_offset_us: Any = None  # checked by `Clock`
    label_time_unit: Any = None


class _Recording(ReadingKeys):
    name: Text | None = None
    events: Text
    labels: Text | None = None
    truth: Text | None = None
    split: Literal["train", "val", "test"] | None = None


class _Document(ReadingKeys):
    name: Text | None = None
    classes: list[Any] | dict[Any, Any] | None = None
    recordings: Any = None
    downscale: Any = 1
    protocol: Literal["custom", "gen1", "1mpx", "sim"] = "custom"


def find_yaml(path: Path) -> Path | None:
    """The YAML file that ``path`` is or, if it is a folder, contains; None if there is none."""
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return path
    inside = path / FILE_NAME
    return inside if path.is_dir() and inside.is_file() else None


def read_dataset_yaml(path: Path, split: str | None) -> DatasetFiles:
    """Read the YAML file of a dataset, or one split of it; no recording is opened."""
    top = load_yaml(path, "a YAML file that describes a dataset")
    if not isinstance(top, dict):
        raise FateError(f"{path}: holds {type(top).__name__}; expected keys such as classes and recordings")
    if "recordings" not in top and len(IMAGE_KEYS & top.keys()) > 1:
        raise FateError(
            f"{path}: describes a dataset of images, as ultralytics does (keys such as path, train, names); FATE's YAML"
            " lists recordings of events: classes: [car],"
            " recordings: [{events: drive.raw, labels: drive.json, split: train}]"
        )
    with naming_errors(path, "a YAML file that describes a dataset"):
        document = parse_keys(_Document, top, "at the top")
        downscale = check_downscale(document.downscale)
        recordings = tuple(_recordings(document, path.parent))
        names = Counter(recording.name for recording in recordings)
        repeated = next((name for name, number in names.items() if number > 1), None)
        if repeated is not None:
            raise FateError(f"two recordings are called {repeated!r}; give one of them another name")
    return DatasetFiles(
        name=document.name or path.stem,
        root=path.parent,
        kind="own",
        protocol=document.protocol,
        recordings=recordings if split is None else keep_split(recordings, split, path),
        classes=document.classes,
        sensor=document.sensor,
        downscale=downscale,
        source=path,
    )


def parse_keys(model: type[Model], given: object, where: str) -> Model:
    """Check keys and values of a part of a YAML file; an error names the first wrong one and ``where`` it stands."""
    if not isinstance(given, dict):
        raise FateError(f"{given!r:.60} stands {where}; expected keys such as events and labels")
    try:
        return model.model_validate(given)
    except ValidationError as errors:
        # an unknown key first: it may be the missing one, with a mistake in its name
        error = min(errors.errors(include_url=False), key=lambda each: each["type"] not in _UNKNOWN_KEY)
        key = error["loc"][0]
        if error["type"] in _UNKNOWN_KEY:
            near = nearest_name(key, model.model_fields)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(model.model_fields)}"
            raise FateError(f"unknown key {key!r} {where}; {hint}") from None
        if error["type"] == "missing":
            raise FateError(f"{key} is missing {where}; give the file of the recording") from None
        message = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        raise FateError(f"{key} is {error['input']!r:.60} {where}; {message.replace('string', 'text')}") from None


def _recordings(document: _Document, root: Path) -> Iterator[RecordingPaths]:
    """The recordings that a document lists, or that are in the folders which it names for each split."""
    listed = document.recordings
    if isinstance(listed, dict) and listed:
        for split, folders in listed.items():
            if split not in OWN_SPLITS:
                raise FateError(f"recordings names the split {split!r}; expected {', '.join(OWN_SPLITS)}")
            for folder in folders if isinstance(folders, list) else [folders]:
                given = parse_keys(_Recording, {"events": folder}, f"of the split {split!r}")
                for found in find_recordings(root / Path(given.events).expanduser()):
                    name = found.name if found.name.split("/")[0] == split else f"{split}/{found.name}"
                    yield replace(found, name=name, split=split, **_reading(given, document))
    elif isinstance(listed, list) and listed:
        for number, one in enumerate(listed, start=1):
            given = parse_keys(_Recording, one, f"in recording {number}")
            events = root / Path(given.events).expanduser()
            labels, truth = (root / Path(path).expanduser() if path else None for path in (given.labels, given.truth))
            plain = events.with_suffix("") if events.suffix else events
            name = given.name or (plain.relative_to(root) if plain.is_relative_to(root) else plain).as_posix()
            yield RecordingPaths(name, given.split, events, labels, truth, **_reading(given, document))
    else:
        raise FateError("recordings is empty; expected a list with events and labels, or a folder for each split")


def _reading(given: _Recording, document: _Document) -> dict[str, Any]:
    """How to read a recording: as it says, or else as the top says, whose sensor is for files that do not say."""
    names = ("format", "columns", "time_unit", "label_time_unit", "label_offset_us")
    *texts, unit, offset = (getattr(document if getattr(given, name) is None else given, name) for name in names)
    clock = Clock("us" if unit is None else unit, 0 if offset is None else offset)
    return {"options": EventOptions(given.sensor, *texts), "clock": clock}
