"""COCO JSON with a time per image, to and from bytes.

``images``: id, file_name, width, height, ``t_us``; ``annotations``: id, image_id, category_id,
bbox [x, y, w, h], area, iscrowd, ``track_id``, ``score``, ``source``; ``categories``: id, name. A class id is
the position of its category in the list. An image without annotations is labelled and empty.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fate.boxes.labels import COLUMNS, Labels, LabelSource
from fate.errors import FormatError, warn

FORMAT = "fate-labels"

#: The names under which the time of an image is accepted, in this order; all in whole microseconds.
TIME_KEYS = ("t_us", "timestamp_us", "time_us", "timestamp", "t")


def encode(labels: Labels) -> bytes:
    """The bytes of a COCO file; ids count from 1, as COCO tools expect."""
    document = {**head_of(labels), "images": images_of(labels), "annotations": annotations_of(labels)}
    return json.dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "backslashreplace")


def head_of(labels: Labels) -> dict[str, Any]:
    """What a COCO file says before its images and annotations: ``info`` and ``categories``."""
    names = labels.classes
    if names is None:  # COCO has no nameless classes; "info" says that these names carry nothing
        names = tuple(f"class {index}" for index in range(int(labels.class_id.max(initial=-1)) + 1))
    info = {"format": FORMAT, "version": 1, "sensor": labels.sensor, "classes_named": labels.classes is not None}
    return {"info": info, "categories": [{"id": index + 1, "name": name} for index, name in enumerate(names)]}


def images_of(labels: Labels, first: int = 1) -> list[dict[str, Any]]:
    """An image for each labelled time; their ids count from ``first``."""
    size = {} if labels.sensor is None else {"width": labels.sensor[1], "height": labels.sensor[0]}
    return [
        {"id": first + index, "file_name": f"{time:016d}.png", **size, "t_us": time}
        for index, time in enumerate(labels.labelled_us.tolist())
    ]


def annotations_of(labels: Labels, first: int = 1, first_image: int = 1) -> list[dict[str, Any]]:
    """An annotation for each box; ids count from ``first``, and those of their images from ``first_image``."""
    # in float64, where the size of a float32 box is exact but for coordinates 2**29 apart
    boxes = labels.boxes.astype(np.float64)
    sizes = boxes[:, 2:] - boxes[:, :2]
    exact = (boxes[:, :2] + sizes == boxes[:, 2:]).all(axis=1)
    image_ids = np.searchsorted(labels.labelled_us, labels.t_us) + first_image
    found: list[dict[str, Any]] = []
    for row in range(len(labels)):
        annotation = {
            "id": first + row,
            "image_id": int(image_ids[row]),
            "category_id": int(labels.class_id[row]) + 1,
            "bbox": [*boxes[row, :2].tolist(), *sizes[row].tolist()],
            "area": float(sizes[row, 0] * sizes[row, 1]),
            "iscrowd": 0,
            "track_id": int(labels.track_id[row]),
            "score": float(labels.score[row]),
            "source": int(labels.source[row]),
        }
        if not exact[row]:
            annotation["xyxy"] = boxes[row].tolist()
        found.append(annotation)
    return found


def decode(data: bytes, name: str = "labels") -> Labels:
    """Labels from the bytes of a COCO file of ours or, with a time on each image, of anyone.

    ``name`` is what a warning calls the file.
    """
    document = _document(data)
    images, annotations = _entries(document, "images"), _entries(document, "annotations")
    categories = _entries(document, "categories") if annotations or "categories" in document else []
    times, sensor = _read_images(images)
    positions: dict[int | str, int] = {}
    for index, category in enumerate(categories):
        _add(positions, _identity(category, "id", f"category {index}"), index, "category")
    info = document.get("info")
    ours = info if isinstance(info, dict) and info.get("format") == FORMAT else {}
    if ours.get("sensor") is not None and sensor is None:
        sensor = ours["sensor"]
    classes: list[Any] | None = None
    if ours.get("classes_named", bool(categories)):
        classes = [category.get("name") for category in categories]
    columns, crowds = _read_annotations(annotations, times, positions)
    if crowds:
        warn(f"{name}: read {crowds} crowd regions as ordinary boxes")
    return Labels.from_unsorted(columns, labelled_us=list(times.values()), classes=classes, sensor=sensor)


def category_ids(data: bytes) -> tuple[int, ...] | None:
    """The category id in the file of each class id of :func:`decode`, which counts categories from 0.

    None for a file that FATE wrote: there the class id is the number that the user knows.
    """
    document = _document(data)
    info = document.get("info")
    if isinstance(info, dict) and info.get("format") == FORMAT:
        return None
    categories = _entries(document, "categories") if "categories" in document else []
    ids = [_identity(category, "id", f"category {index}") for index, category in enumerate(categories)]
    for identity in ids:
        if not isinstance(identity, int) or not 0 <= identity < 2**31:
            raise FormatError(
                f"has the category id {identity!r:.40}, and classes were given by id; expected whole numbers from 0 up;"
                " give the classes by name"
            )
    return tuple(each for each in ids if isinstance(each, int))


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot be read as JSON ({error}); it is damaged; get it again") from error
    if not isinstance(document, dict):
        raise FormatError("holds no JSON object; COCO is an object with images, annotations and categories")
    return document


def _read_images(images: list[dict[str, Any]]) -> tuple[dict[int | str, int], Any]:
    """Microseconds by image id, and the one (height, width) that the images share, if they tell."""
    times: dict[int | str, int] = {}
    seen: dict[int, int | str] = {}
    sensor: tuple[int, ...] | None = None
    for index, image in enumerate(images):
        identity = _identity(image, "id", f"image {index}")
        key = next((key for key in TIME_KEYS if key in image), None)
        if key is None:
            raise FormatError(f"image {identity!r} has no time; each image has one; add t_us in microseconds")
        time = _whole(image[key], f"{key} of image {identity!r}")
        _add(times, identity, time, "image")
        if seen.setdefault(time, identity) != identity:
            raise FormatError(
                f"images {seen[time]!r} and {identity!r} both have time {time} us; a recording has one image "
                "per time; split the file by recording"
            )
        if "width" in image or "height" in image:
            sides = ("height", "width")
            size = tuple(_whole(image.get(side), f"{side} of image {identity!r}") for side in sides)
            if sensor is not None and size != sensor:
                raise FormatError(
                    f"image {identity!r} has (height, width) {size} and earlier ones {sensor}; "
                    "a recording has one sensor; split the file"
                )
            sensor = size
    return times, sensor


def _read_annotations(
    annotations: list[dict[str, Any]], times: dict[int | str, int], positions: dict[int | str, int]
) -> tuple[dict[str, list[Any]], int]:
    """The columns of Labels in file order, and how many rows are crowd regions."""
    rows: list[tuple[Any, ...]] = []
    crowds = 0
    for index, annotation in enumerate(annotations):
        where = f"annotation {index}"
        image, category = (_identity(annotation, key, where) for key in ("image_id", "category_id"))
        for identity, known, kind in ((image, times, "image"), (category, positions, "category")):
            if identity not in known:
                raise FormatError(f"{where} names {kind} {identity!r}, which is not listed; add that {kind}")
        track, score, source = (annotation.get(key) for key in ("track_id", "score", "source"))
        rows.append(
            (
                times[image],
                *_corners(annotation, where),
                positions[category],
                -1 if track is None else _whole(track, f"track_id of {where}"),
                1.0 if score is None else _number(score, f"score of {where}"),
                int(LabelSource.GROUND_TRUTH) if source is None else _whole(source, f"source of {where}"),
            )
        )
        crowds += annotation.get("iscrowd") not in (None, 0)
    return {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}, crowds


def _corners(annotation: dict[str, Any], where: str) -> list[float]:
    """x1, y1, x2, y2 in pixels from ``bbox``, or from ``xyxy`` where bbox is not exact."""
    x, y, w, h = _four(annotation, "bbox", where)
    if w < 0 or h < 0:
        raise FormatError(f"{where} has bbox {annotation['bbox']}; w and h are 0 or larger; fix or drop it")
    corners = [x, y, x + w, y + h]
    if "xyxy" not in annotation:
        return corners
    exact = _four(annotation, "xyxy", where)
    scale = max(map(abs, (x, y, w, h)))
    if any(abs(ours - theirs) > 1e-9 * scale for ours, theirs in zip(exact, corners, strict=True)):
        raise FormatError(f"{where} has xyxy {exact} and bbox for {corners}; they tell one box; drop xyxy")
    return exact


def _four(annotation: dict[str, Any], key: str, where: str) -> list[float]:
    values = annotation.get(key)
    if not isinstance(values, list) or len(values) != 4:
        raise FormatError(f"{where} has {key} {values!r:.80}; expected four numbers; add them")
    return [_number(value, f"{key} of {where}") for value in values]


def _entries(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"has no list of objects {key!r}; COCO has images, annotations, categories; add it")
    return entries


def _add(known: dict[int | str, int], identity: int | str, value: int, kind: str) -> None:
    if identity in known:
        raise FormatError(f"{kind} id {identity!r} occurs twice; ids are unique; renumber one")
    known[identity] = value


def _identity(entry: dict[str, Any], key: str, where: str) -> int | str:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FormatError(f"{where} has {key} {value!r:.80}; ids are whole numbers or text; add one")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300:  # and not NaN
        return float(value)
    raise FormatError(f"{where} is {value!r:.80}; expected a finite number; fix it")


def _whole(value: object, where: str) -> int:
    number = int(value) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and -(2**63) <= number < 2**63:
        return number
    raise FormatError(f"{where} is {value!r:.80}; expected a whole number (int64); fix it")
