"""The boxes of a labelled video: tracks from MOT text or COCO JSON, at any time.

MOT text has a line ``frame, id, x, y, w, h, confidence, class, …`` for each box; frames count from 1, and the class is
a name or a number of MOT16 and later. A line with confidence 0 is left out, as MOT means it. COCO JSON is that of
:mod:`fate.boxes.coco`, where an image may have the number of its frame, from 0, in place of its time.

Between two labelled frames, the box of a track is interpolated linearly. A box without a track exists at its
frame only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes import coco, mot
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
#: The names under which the number of a frame is accepted in COCO JSON.
FRAME_KEYS = ("frame_id", "frame", "frame_number", "frame_index")


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
    for number, words in mot.read_lines(data):
        where = f"{path} line {number}"
        box = mot.read_box(words, where, num_frames)
        frame, track = box.frame + 1, box.track
        name = box.class_name.lower().replace("-", " ")
        if track >= 0 and (frame, track) in lines:
            raise FormatError(
                f"{where}: track {track} has a box in frame {frame} already, in line {lines[frame, track]}"
            )
        lines[frame, track] = number
        time = time_of(box.frame)
        times.add(time)
        if box.confidence == 0:
            dropped["confidence 0"] += 1
        elif name not in CLASS_OF:
            dropped[name] += 1
        else:
            rows.append((time, *box.corners, CLASSES.index(CLASS_OF[name]), track))
    names = ("t_us", "x1", "y1", "x2", "y2", "class_id", "track_id")
    columns = {name: np.array([row[index] for row in rows], np.int64 if index in (0, 5, 6) else np.float64)
               for index, name in enumerate(names)}  # fmt: skip
    return Tracks(Labels.from_unsorted(columns, labelled_us=sorted(times), classes=CLASSES), dict(dropped))


def _read_coco(
    path: Path, data: bytes, time_of: Callable[[int], int], picture: Sensor, num_frames: int | None
) -> Tracks:
    document = parse_json(data, str(path), coco.EXPECTED)
    images = document.get("images") if isinstance(document, dict) else None
    for index, image in enumerate(images if isinstance(images, list) else ()):
        key = next((key for key in FRAME_KEYS if isinstance(image, dict) and key in image), None)
        if key is not None and not any(name in image for name in coco.TIME_KEYS):
            last = mot.LAST_FRAME if num_frames is None else num_frames - 1
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
    columns = (labels.t_us[kept], *labels.boxes[kept].T, class_id[kept], labels.track_id[kept])
    return Tracks(Labels(*columns, labelled_us=labels.labelled_us, classes=CLASSES), dropped)
