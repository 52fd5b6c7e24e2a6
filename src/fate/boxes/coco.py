"""COCO JSON with a time for each image: label files of one recording, and results for many recordings.

``images``: id, file_name, width, height, ``t_us``; ``annotations``: id, image_id, category_id, bbox [x, y, w, h],
area, iscrowd, ``track_id``, ``score``, ``source``; ``categories``: id, name. A class id is the index of its category
in the list. An image without annotations is labelled and empty.

Results are such a document with a score for each annotation, or the plain list of results that COCO tools write,
beside a COCO file that lists the images and the categories. The recording of an image is its ``recording`` (or
``video``, ``sequence``); else the folder in its ``file_name``, ``drive_3/000120.png``; else the file has one
recording, named like the file.
"""

from __future__ import annotations

import json
import math
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from fate.boxes.labels import COLUMNS, Labels, LabelSource
from fate.boxes.tool_export import ToolBox, ToolExport
from fate.errors import FateError, FormatError, warn
from fate.json_files import finite_number, parse_json

FORMAT = "fate-labels"
EXPECTED = "COCO's images, annotations and categories"

#: The names under which the time of an image is accepted, in this order; all in whole microseconds.
TIME_KEYS = ("t_us", "timestamp_us", "time_us", "timestamp", "t")
RECORDING_KEYS = ("recording", "video", "sequence")


def encode(labels: Labels) -> bytes:
    """Return the bytes of a COCO file; ids count from 1, as COCO tools expect."""
    document = {**header(labels), "images": image_entries(labels), "annotations": annotation_entries(labels)}
    return json.dumps(document, allow_nan=False, ensure_ascii=False).encode("utf-8", "backslashreplace")


def header(labels: Labels) -> dict[str, Any]:
    """Return the part of a COCO file before its images and annotations: ``info`` and ``categories``."""
    names = labels.classes
    if names is None:  # COCO needs names; "classes_named" records that these carry no meaning
        names = tuple(f"class {index}" for index in range(int(labels.class_id.max(initial=-1)) + 1))
    info = {"format": FORMAT, "version": 1, "sensor": labels.sensor, "classes_named": labels.classes is not None}
    return {"info": info, "categories": [{"id": index + 1, "name": name} for index, name in enumerate(names)]}


def image_entries(labels: Labels, first: int = 1) -> list[dict[str, Any]]:
    """Return an image for each labelled time; their ids count from ``first``."""
    size = {} if labels.sensor is None else {"width": labels.sensor[1], "height": labels.sensor[0]}
    return [
        {"id": first + index, "file_name": f"{time:016d}.png", **size, "t_us": time}
        for index, time in enumerate(labels.labelled_us.tolist())
    ]


def annotation_entries(labels: Labels, first: int = 1, first_image: int = 1) -> list[dict[str, Any]]:
    """Return an annotation for each box; ids count from ``first``, the ids of the images from ``first_image``."""
    # in float64, where the size of a float32 box is exact except for coordinates 2**29 apart
    boxes = labels.boxes.astype(np.float64)
    sizes = boxes[:, 2:] - boxes[:, :2]
    exact = (boxes[:, :2] + sizes == boxes[:, 2:]).all(axis=1)
    image_ids = np.searchsorted(labels.labelled_us, labels.t_us) + first_image
    entries: list[dict[str, Any]] = []
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
        entries.append(annotation)
    return entries


def decode(data: bytes, name: str = "labels") -> Labels:
    """Labels of one recording from the bytes of a COCO file with a time on each image; a warning calls it ``name``."""
    document = parse_json(data, name, EXPECTED)
    annotations = _entries(document, "annotations")
    crowds = sum(annotation.get("iscrowd") not in (None, 0) for annotation in annotations)
    if crowds:
        warn(f"{name}: read {crowds} crowd regions as ordinary boxes")
    return _tables(annotations, document, None)[""]


def decode_results(
    data: bytes, recording: str, name: str, listing: Any = None
) -> tuple[dict[str, Labels], dict[str, Any]]:
    """Predictions by recording from the bytes of COCO results, and the ``info`` of the file.

    Args:
        data: the results.
        recording: the name of the recording if the images do not name one.
        name: the file.
        listing: for a plain list of results, the content of the COCO file with images and categories.
    """
    document = parse_json(data, name, EXPECTED)
    if isinstance(document, list) and listing is None:
        raise FormatError(
            "is a list of results alone; recordings, times and classes are in the COCO file with the images; "
            "give it too: images=FILE"
        )
    listing = document if listing is None else listing
    results = _entries({"annotations": document} if isinstance(document, list) else document, "annotations")
    info = document.get("info") if isinstance(document, dict) else None
    _entries(listing, "categories")
    return _tables(results, listing, recording), info if isinstance(info, dict) else {}


def decode_frames(document: Any) -> ToolExport:
    """Return the boxes of a COCO export of a labelling program, whose images have names and no times.

    CVAT and others keep the number of a track in the ``attributes`` of an annotation.
    """
    export = ToolExport("COCO")
    indices = _category_indices(document)
    names = [str(category.get("name")) for category in _entries(document, "categories")]
    export.classes = tuple(dict.fromkeys(names))
    known: dict[int | str, str] = {}
    for index, image in enumerate(_entries(document, "images")):
        where = f"image {index}"
        with export.collecting():
            identity, file = _identity(image, "id", where), image.get("file_name")
            if not isinstance(file, str) or not file:
                raise FormatError(f"{where} has file_name {file!r:.80}; expected the name of a picture; add it")
            if identity in known:
                raise FormatError(f"{where} has the id {identity!r} of another image; give each image an id of its own")
            known[identity] = file
            export.add_frame(file, where)
            if image.get("width") is not None:
                size = [_whole(image.get(side), f"{side} of {where}", 65_537) for side in ("height", "width")]
                export.add_size((size[0], size[1]), where)
    annotations = _entries(document, "annotations")
    scored = next((index for index, each in enumerate(annotations) if "score" in each), None)
    if scored is not None:
        raise FormatError(
            f"annotation {scored} has a score, so the file holds detections, which are no ground truth; correct them in"
            " a labelling program, and give its export"
        )
    for index, annotation in enumerate(annotations):
        where = f"annotation {index}"
        with export.collecting():
            on_image, category = (_identity(annotation, key, where) for key in ("image_id", "category_id"))
            if on_image not in known or category not in indices:
                kind, missing = ("image", on_image) if on_image not in known else ("category", category)
                raise FormatError(f"{where} names {kind} {missing!r}, which is not listed; add that {kind}")
            attributes = annotation.get("attributes")
            extra = attributes if isinstance(attributes, dict) else {}
            if _is_rotated(extra.get("rotation")):
                raise FormatError(
                    f"{where} is rotated by {extra['rotation']!r:.20}°; expected an upright box; draw one"
                )
            track = annotation.get("track_id", extra.get("track_id"))
            x1, y1, x2, y2 = _corners(annotation, where, exact=False)
            number = -1 if track is None else _whole(track, f"track_id of {where}", 2**63)
            export.boxes.append(ToolBox(where, known[on_image], names[indices[category]], (x1, y1, x2, y2), number))
    return export


def category_ids(data: bytes, name: str) -> tuple[int, ...] | None:
    """Return the category id in the file of each class id of :func:`decode`, which counts categories from 0.

    Returns None for a file that FATE wrote: there the user knows the class ids.
    """
    document = parse_json(data, name, EXPECTED)
    info = document.get("info")
    if isinstance(info, dict) and info.get("format") == FORMAT:
        return None
    ids = list(_category_indices(document))
    for identity in ids:
        if not isinstance(identity, int) or not 0 <= identity < 2**31:
            raise FormatError(
                f"has the category id {identity!r:.40}, and classes were given by id; expected whole numbers from 0 up;"
                " give the classes by name"
            )
    return tuple(each for each in ids if isinstance(each, int))


def _tables(annotations: list[dict[str, Any]], listing: dict[str, Any], recording: str | None) -> dict[str, Labels]:
    """Labels by recording.

    Args:
        annotations: the boxes.
        listing: the document with the images and the categories.
        recording: None if the file holds the labels of one recording, which is then called "". Otherwise the file holds
            results, and this is the name of the recording of images that do not name one.
    """
    is_results = recording is not None
    known: dict[int | str, tuple[str, int]] = {}  # recording and time by image id
    times: dict[str, dict[int, int | str]] = {} if is_results else {"": {}}  # image id by recording and time
    sizes: set[tuple[int, ...]] = set()
    for index, image in enumerate(_entries(listing, "images")):
        identity = _identity(image, "id", f"image {index}")
        key = next((key for key in TIME_KEYS if key in image), None)
        if key is None:
            raise FormatError(f"image {identity!r} has no time; add t_us in whole microseconds")
        time = _whole(image[key], f"{key} of image {identity!r}", 2**62)
        name = "" if recording is None else _recording_of(image, recording)
        if identity in known:
            raise FormatError(f"image id {identity!r} occurs twice; ids are unique; renumber one")
        known[identity] = (name, time)
        other = times.setdefault(name, {}).setdefault(time, identity)
        if other != identity:
            remedy = "give each image its recording" if is_results else "split the file by recording"
            raise FormatError(
                f"images {other!r} and {identity!r} both have time {time} us; a recording has one image per time; "
                f"{remedy}"
            )
        if image.get("width") is not None or image.get("height") is not None:
            sides = ("height", "width")
            sizes.add(tuple(_whole(image.get(side), f"{side} of image {identity!r}", 2**31) for side in sides))
    if len(sizes) > 1 and not is_results:
        raise FormatError(f"has images of (height, width) {sorted(sizes)}; a recording has one sensor; split it")
    indices = _category_indices(listing)
    info = listing.get("info")
    ours = info if isinstance(info, dict) and info.get("format") == FORMAT else {}
    sensor: Any = sizes.pop() if len(sizes) == 1 else ours.get("sensor")
    classes: list[Any] | None = None
    if ours.get("classes_named", bool(indices)):
        classes = [category.get("name") for category in listing.get("categories", ())]
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in times}
    for index, annotation in enumerate(annotations):
        where = f"{'result' if is_results else 'annotation'} {index}"
        on_image, category = (_identity(annotation, key, where) for key in ("image_id", "category_id"))
        for identity, listed, kind in ((on_image, known, "image"), (category, indices, "category")):
            if identity not in listed:
                raise FormatError(f"{where} names {kind} {identity!r}, which is not listed; add that {kind}")
        name, time = known[on_image]
        rows[name].append((time, *_columns(annotation, where, is_results, indices[category])))
    tables = {}
    for name, labelled in times.items():
        columns = {column: [row[n] for row in rows[name]] for n, column in enumerate(COLUMNS)}
        try:
            tables[name] = Labels.from_unsorted(columns, labelled_us=list(labelled), classes=classes, sensor=sensor)
        except FateError as error:
            raise FormatError(f"recording {name}: {error}" if name else str(error)) from error
    return tables


def _columns(annotation: dict[str, Any], where: str, is_result: bool, class_id: int) -> tuple[Any, ...]:
    """Return the row of an annotation in the order of ``COLUMNS``, without its time."""
    box, score = _corners(annotation, where, exact=not is_result), annotation.get("score")
    score = 1.0 if score is None and not is_result else finite_number(score, f"score of {where}")
    # results of other tools may use these two keys differently, and an evaluation needs neither
    track, source = (None if is_result else annotation.get(key) for key in ("track_id", "source"))
    track = -1 if track is None else _whole(track, f"track_id of {where}", 2**63)
    source = int(LabelSource.GROUND_TRUTH) if source is None else _whole(source, f"source of {where}", 2**63)
    return *box, class_id, track, score, source


def _recording_of(image: dict[str, Any], default: str) -> str:
    for key in RECORDING_KEYS:
        if isinstance(image.get(key), str) and image[key]:
            return str(image[key])
    file = image.get("file_name")
    folder = PurePosixPath(file.replace("\\", "/")).parent.as_posix() if isinstance(file, str) else "."
    return default if folder == "." else folder.strip("/")


def _category_indices(document: dict[str, Any]) -> dict[int | str, int]:
    """Return the index of each category by its id; empty if the document lists no categories."""
    indices: dict[int | str, int] = {}
    for index, category in enumerate(_entries(document, "categories") if "categories" in document else ()):
        identity = _identity(category, "id", f"category {index}")
        if identity in indices:
            raise FormatError(f"category id {identity!r} occurs twice; ids are unique; renumber one")
        indices[identity] = index
    return indices


def _corners(annotation: dict[str, Any], where: str, exact: bool) -> list[float]:
    """x1, y1, x2, y2 in pixels from ``bbox``; if ``exact``, from ``xyxy`` where FATE wrote it beside the bbox."""
    x, y, w, h = _four(annotation, "bbox", where)
    if w < 0 or h < 0:
        raise FormatError(f"{where} has bbox {annotation['bbox']}; w and h are 0 or larger; fix or drop it")
    corners = [x, y, x + w, y + h]
    if not exact or "xyxy" not in annotation:
        return corners
    given = _four(annotation, "xyxy", where)
    scale = max(map(abs, (x, y, w, h)))
    if any(abs(ours - theirs) > 1e-9 * scale for ours, theirs in zip(given, corners, strict=True)):
        raise FormatError(f"{where} has xyxy {given} and a bbox of {corners}, which differ; drop xyxy")
    return given


def _four(annotation: dict[str, Any], key: str, where: str) -> list[float]:
    values = annotation.get(key)
    if not isinstance(values, list) or len(values) != 4:
        raise FormatError(f"{where} has {key} {values!r:.80}; expected four numbers; add them")
    return [finite_number(value, f"{key} of {where}") for value in values]


def _entries(document: Any, key: str) -> list[dict[str, Any]]:
    entries = document.get(key) if isinstance(document, dict) else None
    if isinstance(document, dict) and document.get("format") == "fate-detections":
        raise FormatError(
            "holds detections of fate detect, which name no frames of a dataset and are no ground truth; expected"
            f" {EXPECTED}; evaluate the detector itself, or write predictions with fate evaluate --predictions"
        )
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"has no list of objects {key!r}; expected {EXPECTED}; add it")
    return entries


def _identity(entry: dict[str, Any], key: str, where: str) -> int | str:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise FormatError(f"{where} has {key} {value!r:.80}; ids are whole numbers or text; add one")
    return value


def _whole(value: object, where: str, limit: int) -> int:
    number = int(value) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and -limit <= number < limit:
        return number
    raise FormatError(f"{where} is {value!r:.80}; expected a whole number; fix it")


def _is_rotated(angle: object) -> bool:
    """Whether an angle in degrees is anything but a full turn."""
    return bool(angle % 360 if isinstance(angle, int | float) else angle)
