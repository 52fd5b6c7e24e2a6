"""The boxes of a labelled video: tracks from MOT text or COCO JSON, at any time.

MOT text has a line ``frame, id, x, y, w, h, confidence, class, …`` for each box; frames count from 1, and the class is
a name or a number of MOT16 and later. A line with confidence 0 is left out, as MOT means it. COCO JSON is that of
:mod:`fate.boxes.coco`, where an image may have the number of its frame, from 0, in place of its time.

Between two labelled frames, the box of a track is interpolated linearly. A box without a track exists at its
frame only.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes import coco
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError, list_names
from fate.events.events import Sensor
from fate.files import read_bytes
from fate.json_files import parse_json, whole_number
from fate.simulation.arrays import Int64
from fate.simulation.render.scene import MIN_VISIBLE, Boxes, BoxesAt
from fate.simulation.video.frames import Fit

#: The classes of recordings made from video.
CLASSES = ("pedestrian", "two wheeler", "car")
#: Names in label files, in lower case, and their classes.
CLASS_OF = {
    **dict.fromkeys(("person", "pedestrian", "people"), "pedestrian"),
    **dict.fromkeys(("bicycle", "motorcycle", "motorbike", "cyclist", "rider", "two wheeler"), "two wheeler"),
    "car": "car",
}
#: The numbers of classes in MOT text. -1, or no class at all, is a pedestrian: older files hold nothing else.
MOT_NAMES = {
    **{-1: "pedestrian", 1: "pedestrian", 2: "person on vehicle", 3: "car", 4: "bicycle", 5: "motorbike"},
    **{6: "non motorised vehicle", 7: "person", 8: "distractor", 9: "occluder", 10: "occluder", 11: "occluder"},
    **{12: "reflection", 13: "crowd"},
}
#: The names under which the number of a frame is accepted in COCO JSON.
FRAME_KEYS = ("frame_id", "frame", "frame_number", "frame_index")
MOT_LINE = "frame, id, x, y, w, h, confidence, class"
LAST_FRAME = 10**9


@dataclass(frozen=True)
class Tracks:
    """All boxes of a labelled video, in pixels of its picture."""

    labels: Labels  #: with ``CLASSES``; track -1 for none
    dropped: dict[str, int] = field(default_factory=dict)  #: boxes that were left out, by the name of their class

    def times_until(self, end_us: int) -> Int64:
        """The labelled times in µs, without the start of the recording, where there are no events yet."""
        times = self.labels.labelled_us
        return times[(times > 0) & (times <= end_us)]

    def boxes_at(self, times_us: Int64, fit: Fit, sensor: Sensor) -> BoxesAt:
        """Boxes on the sensor at sorted times; those of which less than 30 % lie on the sensor are left out."""
        labels = self.labels
        alone = labels.track_id < 0
        groups = [np.flatnonzero(labels.track_id == track) for track in np.unique(labels.track_id[~alone])]
        groups += [np.array([row]) for row in np.flatnonzero(alone)]
        parts = [(np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0, np.int32), np.zeros(0, np.int64))]
        for rows in groups:
            known = labels.t_us[rows]
            first, last = np.searchsorted(times_us, known[0]), np.searchsorted(times_us, known[-1], side="right")
            when = times_us[first:last]
            boxes = np.stack([np.interp(when, known, column) for column in labels.boxes[rows].T], axis=1)
            before = rows[np.searchsorted(known, when, side="right") - 1]
            parts.append((np.arange(first, last), boxes, labels.class_id[before], labels.track_id[before]))
        index, boxes, class_id, track_id = (np.concatenate(column) for column in zip(*parts, strict=True))
        boxes = fit.boxes(boxes)
        limits = np.array([sensor.width, sensor.height] * 2, np.float64)
        cut = np.clip(boxes, 0, limits)
        area, seen = ((each[:, 2:] - each[:, :2]).prod(axis=1) for each in (boxes, cut))
        visible = seen / np.maximum(area, 1e-9)
        order = np.lexsort((track_id, index))
        order = order[visible[order] >= MIN_VISIBLE]
        found = Boxes(
            cut[order].astype(np.float32), class_id[order], track_id[order], visible[order].astype(np.float32)
        )
        return BoxesAt(times_us, np.bincount(index[order], minlength=len(times_us)), found)


def read_tracks(path: Path, time_of: Callable[[int], int], picture: Sensor, num_frames: int | None) -> Tracks:
    """Read the labels of a video.

    Args:
        path: MOT text, or COCO JSON with the suffix ``.json``.
        time_of: returns the time in µs of a frame by its number from 0.
        picture: (height, width) of the video.
        num_frames: number of frames of the video, or None if it is not known.
    """
    data = read_bytes(path, "the labels of a video")
    if path.suffix.lower() == ".json":
        return _read_coco(path, data, time_of, picture, num_frames)
    return _read_mot(path, data, time_of, num_frames)


def _read_mot(path: Path, data: bytes, time_of: Callable[[int], int], num_frames: int | None) -> Tracks:
    rows: list[tuple[Any, ...]] = []
    times: set[int] = set()
    dropped: Counter[str] = Counter()
    lines: dict[tuple[int, int], int] = {}  # by frame and track
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), start=1):
        words = line.replace(",", " ").split() if "," not in line else [word.strip() for word in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path} line {number}"
        if len(words) < 6:
            raise FormatError(f"{where}: has {len(words)} columns; expected {MOT_LINE}")
        frame = _whole(words[0], where, "frame", 1, num_frames)
        track = _whole(words[1], where, "id", -1, None)
        x, y, w, h = (_number(word, where, name) for word, name in zip(words[2:6], "xywh", strict=True))
        if w <= 0 or h <= 0:
            raise FormatError(f"{where}: the box is {w:g}×{h:g} pixels; expected a width and a height above 0")
        confidence = _number(words[6], where, "confidence") if len(words) > 6 else 1.0
        name = _mot_class(words[7], where) if len(words) > 7 else MOT_NAMES[-1]
        if track >= 0 and (frame, track) in lines:
            raise FormatError(
                f"{where}: track {track} has a box in frame {frame} already, in line {lines[frame, track]}"
            )
        lines[frame, track] = number
        time = time_of(frame - 1)
        times.add(time)
        if confidence == 0:
            dropped["confidence 0"] += 1
        elif name not in CLASS_OF:
            dropped[name] += 1
        else:
            rows.append((time, x, y, x + w, y + h, CLASSES.index(CLASS_OF[name]), track))
    names = ("t_us", "x1", "y1", "x2", "y2", "class_id", "track_id")
    columns = {name: np.array([row[index] for row in rows], np.int64 if index in (0, 5, 6) else np.float64)
               for index, name in enumerate(names)}  # fmt: skip
    return Tracks(Labels.from_unsorted(columns, labelled_us=sorted(times), classes=CLASSES), dict(dropped))


def _mot_class(word: str, where: str) -> str:
    """The name of a class; a column that holds no class in older files is -1."""
    try:
        number = float(word)
    except ValueError:
        return word.strip().lower().replace("-", " ")
    if number not in MOT_NAMES:
        raise FormatError(f"{where}: the class is {word}; expected a name, or a number of MOT: -1 or 1 to 13")
    return MOT_NAMES[int(number)]


def _number(word: str, where: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not abs(value) < 1e9:
        raise FormatError(f"{where}: {name} is {word!r:.40}; expected a number ({MOT_LINE})")
    return value


def _whole(word: str, where: str, name: str, low: int, high: int | None) -> int:
    value = _number(word, where, name)
    if value != int(value) or not low <= value <= (LAST_FRAME if high is None else high):
        upper = "up" if high is None else f"to {high}, the number of frames in the video"
        raise FormatError(f"{where}: {name} is {word!r:.40}; expected a whole number from {low} {upper}")
    return int(value)


def _read_coco(
    path: Path, data: bytes, time_of: Callable[[int], int], picture: Sensor, num_frames: int | None
) -> Tracks:
    document = parse_json(data, str(path), coco.EXPECTED)
    images = document.get("images") if isinstance(document, dict) else None
    for index, image in enumerate(images if isinstance(images, list) else ()):
        key = next((key for key in FRAME_KEYS if isinstance(image, dict) and key in image), None)
        if key is not None and not any(name in image for name in coco.TIME_KEYS):
            last = LAST_FRAME if num_frames is None else num_frames - 1
            try:
                image["t_us"] = time_of(whole_number(image[key], f"{key} of image {index}", 0, last))
            except FateError as error:
                raise FormatError(f"{path}: {error}") from None
    try:
        labels = coco.decode(json.dumps(document).encode(), name=str(path))
    except FateError as error:
        raise FormatError(f"{path}: {error}") from None
    if labels.sensor not in (None, tuple(picture)):
        size = f"{labels.sensor[1]}×{labels.sensor[0]}" if labels.sensor else ""
        raise FormatError(f"{path}: its images have {size} pixels, and the video {picture}; scale the boxes")
    if labels.classes is None:
        raise FormatError(f"{path}: has no categories; add them: {list_names(CLASS_OF)}")
    names = [CLASS_OF.get(name.strip().lower().replace("-", " ")) for name in labels.classes]
    counts = np.bincount(labels.class_id, minlength=len(names)).tolist()
    dropped = {label: count for label, name, count in zip(labels.classes, names, counts, strict=True)
               if name is None and count}  # fmt: skip
    new_ids = np.array([-1 if name is None else CLASSES.index(name) for name in names], np.int64)
    class_id = new_ids[labels.class_id] if len(labels) else np.zeros(0, np.int64)
    kept = class_id >= 0
    rows = (labels.t_us, labels.x1, labels.y1, labels.x2, labels.y2)
    columns = (*(each[kept] for each in rows), class_id[kept], labels.track_id[kept])
    return Tracks(Labels(*columns, labelled_us=labels.labelled_us, classes=CLASSES), dropped)
