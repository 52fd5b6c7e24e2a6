"""COCO results for many recordings: every image has a recording and a time in whole microseconds.

Either one object with ``images``, ``categories`` and ``annotations`` (each with a ``score``), or the plain list of
results that COCO tools write, beside a COCO file that lists the images and the categories.

The recording of an image is its ``recording`` (or ``video``, ``sequence``); else the folder in its ``file_name``,
``drive_3/000120.png``; else the file is of one recording, named like the file. The time is ``t_us``, or one of the
other names that label files know. Every image listed is a time at which the detector looked, found or not.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Any

from fate.boxes.label_coco import TIME_KEYS
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from fate.json_files import read_json

RECORDING_KEYS = ("recording", "video", "sequence")


def read(path: Path, name: str, images: Path | None = None) -> tuple[dict[str, Labels], dict[str, Any]]:
    """Labels by recording, and what the file says about itself (``info``).

    Args:
        path: the results.
        name: of the recording, where the file is of one and its images do not say.
        images: the COCO file with images and categories, for a plain list of results.
    """
    document = _document(path)
    listing = document if images is None else _document(images, own=False)
    if isinstance(document, list):
        results = document
        if images is None:
            raise FormatError(
                "is a list of results alone; recordings, times and classes are in the COCO file with the images; "
                "give it too: images=FILE"
            )
    else:
        results = _entries(document, "annotations", path.name)
    if not isinstance(listing, dict):
        raise FormatError(f"{images}: holds no JSON object; expected images and categories; give that COCO file")
    where = path.name if images is None else str(images)
    categories = _entries(listing, "categories", where)
    positions: dict[Any, int] = {}
    for index, category in enumerate(categories):
        positions[_identity(category.get("id"), f"category {index}")] = index
    if len(positions) != len(categories):
        raise FormatError("has two categories of one id; ids are unique; renumber one")
    builder = _Builder(_entries(listing, "images", where), name)
    for index, result in enumerate(results):
        builder.add(result, positions, f"result {index}")
    info = document.get("info") if isinstance(document, dict) else None
    return builder.labels([category.get("name") for category in categories]), info if isinstance(info, dict) else {}


class _Builder:
    """The columns of each recording while results are added."""

    def __init__(self, images: list[Any], name: str) -> None:
        self.places: dict[Any, tuple[str, int]] = {}  # recording and µs by image id
        self.times: dict[str, list[int]] = {}
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        sizes: set[tuple[int | None, int | None]] = set()
        taken: dict[tuple[str, int], Any] = {}
        for index, image in enumerate(images):
            identity = _identity(image.get("id"), f"image {index}")
            place = _recording(image, name), _time(image, f"image {identity!r}")
            if identity in self.places:
                raise FormatError(f"image id {identity!r} occurs twice; ids are unique; renumber one")
            if place in taken:
                raise FormatError(
                    f"images {taken[place]!r} and {identity!r} are both of recording {place[0]!r} at {place[1]} µs; "
                    "a time has one image; give each image its recording"
                )
            self.places[identity] = place
            taken[place] = identity
            self.times.setdefault(place[0], []).append(place[1])
            sizes.add((_side(image, "height", identity), _side(image, "width", identity)))
        size = sizes.pop() if len(sizes) == 1 else (None, None)
        height, width = size
        self.sensor = None if height is None or width is None else (height, width)

    def add(self, result: Any, positions: dict[Any, int], where: str) -> None:
        if not isinstance(result, dict):
            raise FormatError(f"{where} is {result!r:.60}; expected an object with image_id, category_id, bbox, score")
        image, category = (_identity(result.get(key), f"{where}, {key},") for key in ("image_id", "category_id"))
        if image not in self.places:
            raise FormatError(f"{where} names image {image!r}, which is not listed; add that image")
        if category not in positions:
            raise FormatError(f"{where} names category {category!r}, which is not listed; add that category")
        box = result.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raise FormatError(f"{where} has bbox {box!r:.60}; expected [x, y, width, height]; fix it")
        x, y, width, height = (_number(value, f"bbox of {where}") for value in box)
        if width < 0 or height < 0:
            raise FormatError(f"{where} has bbox {box}; width and height are 0 or larger; fix or drop it")
        score = _number(result.get("score"), f"score of {where}")
        recording, t_us = self.places[image]
        row = (t_us, x, y, x + width, y + height, positions[category], score)
        self.rows.setdefault(recording, []).append(row)

    def labels(self, classes: list[Any]) -> dict[str, Labels]:
        tables = {}
        for recording, times in self.times.items():
            rows = self.rows.get(recording, [])
            columns = zip(*rows, strict=True) if rows else ((),) * 7
            names = ("t_us", "x1", "y1", "x2", "y2", "class_id", "score")
            try:
                tables[recording] = Labels.from_unsorted(
                    {name: list(column) for name, column in zip(names, columns, strict=True)},
                    labelled_us=times,
                    classes=classes,
                    sensor=self.sensor,
                )
            except FateError as error:
                raise FormatError(f"recording {recording}: {error}") from error
        return tables


def _recording(image: dict[str, Any], name: str) -> str:
    for key in RECORDING_KEYS:
        if isinstance(image.get(key), str) and image[key]:
            return str(image[key])
    file = image.get("file_name")
    folder = PurePosixPath(file.replace("\\", "/")).parent.as_posix() if isinstance(file, str) else "."
    return name if folder == "." else folder.strip("/")


def _side(image: dict[str, Any], side: str, identity: int | str) -> int | None:
    """Height or width of an image in pixels; None where it does not say."""
    value = image.get(side)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 65_536):
        return value
    raise FormatError(f"image {identity!r:.40} has {side} {value!r:.40}; expected whole pixels; fix it")


def _time(image: dict[str, Any], where: str) -> int:
    key = next((key for key in TIME_KEYS if key in image), None)
    value = None if key is None else image[key]
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**62) <= value <= 2**62:
        raise FormatError(f"{where} has {key or 't_us'} {value!r:.40}; expected whole microseconds; add t_us")
    return value


def _identity(value: object, where: str) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FormatError(f"{where} has id {value!r:.40}; ids are whole numbers or text; add one")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300:  # and not NaN
        return float(value)
    raise FormatError(f"{where} is {value!r:.40}; expected a finite number; fix it")


def _entries(document: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{where} has no list of objects {key!r}; COCO has images, categories, annotations; add it")
    return entries


def _document(path: Path, own: bool = True) -> Any:
    """The content of a JSON file; whoever reads the predictions puts their own path before an error."""
    try:
        document = read_json(path, "COCO results")
    except FateError as error:
        raise type(error)(str(error).removeprefix(f"{path}: ") if own else str(error)) from None
    if not isinstance(document, dict | list):
        raise FormatError(f"{path.name} holds no JSON object or list; expected COCO results")
    return document
