"""What was detected in a recording, as files: JSON that says everything, CSV for tables, COCO and npz for evaluation.

All of them can be read back: JSON by :func:`read_detections` (and ``fate view``), COCO and npz by ``fate evaluate``.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fate.errors import FateError, FormatError
from fate.events.label_files import read_labels, write_labels
from fate.events.labels import Labels
from fate.json_files import finite_number, list_of, names_of, object_of, read_json, whole_number
from fate.view.frames import DetectionFrame, Frame, frames_from_labels
from fate.whole_files import write_whole

FORMAT, VERSION = "fate-detections", 1
EXPECTED = "a file of fate detect --json"
LARGEST_PX = 1e30  # corners are stored as float32
_KEYS = ("format", "version", "recording", "sensor", "hz", "classes", "frames")
CSV_COLUMNS = ("t_us", "x1", "y1", "x2", "y2", "class", "score", "track")


@dataclass(frozen=True)
class DetectionLog:
    """The frames of one recording, and what they were made with.

    Attributes:
        recording: name of the file.
        sensor: (height, width), pixels.
        classes: names by id.
        hz: rate of the windows.
        frames: in order of time.
        facts: model, threshold, summary; whatever JSON can hold.
    """

    recording: str
    sensor: tuple[int, int]
    classes: tuple[str, ...]
    hz: float
    frames: Sequence[DetectionFrame]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def labels(self) -> Labels:
        """All boxes as one table; every frame's time is labelled, also where nothing was found."""
        times = np.array([frame.t_us for frame in self.frames], np.int64)
        full = [frame for frame in self.frames if len(frame.boxes)]
        if not full:
            return Labels.empty(times, classes=self.classes, sensor=self.sensor)
        counts = [len(frame.boxes) for frame in full]
        tracks = [np.full(len(each.boxes), -1) if each.track_ids is None else each.track_ids for each in full]
        x1, y1, x2, y2 = np.concatenate([frame.boxes for frame in full]).T
        return Labels(
            np.repeat(np.array([frame.t_us for frame in full], np.int64), counts),
            x1,
            y1,
            x2,
            y2,
            np.concatenate([frame.class_ids for frame in full]),
            np.concatenate(tracks),
            np.concatenate([frame.scores for frame in full]).clip(0, 1),
            labelled_us=times,
            classes=self.classes,
            sensor=self.sensor,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "recording": self.recording,
            "sensor": {"width": self.sensor[1], "height": self.sensor[0]},
            "hz": self.hz,
            "classes": list(self.classes),
            **self.facts,
            "frames": [_plain(frame) for frame in self.frames],
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Everything; a line for each frame."""
        content = self.to_dict()
        frames = content.pop("frames")
        head = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)[:-2]
        lines = ",\n  ".join(json.dumps(frame, allow_nan=False) for frame in frames)
        body = f"[\n  {lines}\n ]" if lines else "[]"
        write_whole(Path(path), f'{head},\n "frames": {body}\n}}\n'.encode())

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """A row for each box; frames without boxes leave no trace."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for frame in self.frames:
            tracks = [""] * len(frame.boxes) if frame.track_ids is None else frame.track_ids.tolist()
            for box, score, kind, track in zip(frame.boxes, frame.scores, frame.class_ids, tracks, strict=True):
                corners = [f"{value:.2f}" for value in box.tolist()]
                writer.writerow([frame.t_us, *corners, self.classes[int(kind)], f"{float(score):.4f}", track])
        write_whole(Path(path), text.getvalue().encode())

    def write_coco(self, path: str | os.PathLike[str]) -> None:
        """As ``fate.write_labels`` writes COCO: images with times, annotations with scores and tracks."""
        write_labels(path, self.labels(), format="coco")


def _plain(frame: DetectionFrame) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "t_us": int(frame.t_us),
        "boxes": [[round(value, 2) for value in box] for box in frame.boxes.tolist()],
        "scores": [round(value, 4) for value in frame.scores.tolist()],
        "class_ids": [int(value) for value in frame.class_ids.tolist()],
    }
    if frame.track_ids is not None:
        plain["track_ids"] = [int(value) for value in frame.track_ids.tolist()]
    return plain


def read_detections(path: str | os.PathLike[str]) -> DetectionLog:
    """A JSON file that ``fate detect --json`` wrote."""
    source = Path(path)
    return _log(source, read_json(source, EXPECTED))


def _log(source: Path, content: Any) -> DetectionLog:
    """Detections from the content of a file; nothing in it is believed unchecked."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected {EXPECTED}")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise FormatError(f"{source}: written by a newer FATE (version {version}); update yours")
    try:
        whole_number(version, "version", 0, VERSION)
        sensor = object_of(content.get("sensor"), "sensor")
        height, width = (whole_number(sensor.get(side), side, 1, 65_536) for side in ("height", "width"))
        hz = finite_number(content.get("hz"), "hz")
        if hz <= 0:
            raise FormatError(f"hz is {hz}; expected a rate above 0")
        recording = content.get("recording")
        if not isinstance(recording, str):
            raise FormatError(f"recording is {recording!r:.40}; expected text")
        log = DetectionLog(
            recording,
            (height, width),
            names_of(content.get("classes"), "classes"),
            hz,
            [_frame(each, f"frame {index}") for index, each in enumerate(list_of(content.get("frames"), "frames"))],
            {key: value for key, value in content.items() if key not in _KEYS},
        )
        log.labels()  # checks every row
    except FateError as error:
        raise FormatError(f"{source}: is damaged: {error}; write it again with fate detect --json") from None
    return log


def read_frames(path: str | os.PathLike[str]) -> tuple[Sequence[DetectionFrame], tuple[str, ...] | None]:
    """Frames and classes of a file of ``fate detect --json``, or of labels in any format."""
    source = Path(path)
    if source.suffix.lower() == ".json":
        content = read_json(source, EXPECTED)
        if not isinstance(content, dict) or "images" not in content or "format" in content:
            log = _log(source, content)
            return log.frames, log.classes
    labels = read_labels(source)
    return frames_from_labels(labels), labels.classes


def _frame(plain: object, where: str) -> Frame:
    fields = object_of(plain, where)
    boxes = [_numbers(box, f"box {index} of {where}") for index, box in enumerate(list_of(fields.get("boxes"), where))]
    if any(len(box) != 4 for box in boxes):
        raise FormatError(f"{where} has a box without four corners")
    scores = _numbers(fields.get("scores"), f"scores of {where}")
    class_ids = _whole_numbers(fields.get("class_ids"), f"class_ids of {where}", 0, 2**31 - 1)
    tracks = fields.get("track_ids")
    track_ids = None if tracks is None else _whole_numbers(tracks, f"track_ids of {where}", -1, 2**63 - 1)
    counts = {len(part) for part in (boxes, scores, class_ids, track_ids) if part is not None}
    if len(counts) != 1:
        raise FormatError(f"{where} has {sorted(counts)} boxes, scores, classes or tracks; expected as many of each")
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    if (np.abs(corners) > LARGEST_PX).any():
        raise FormatError(f"{where} has a box with a corner beyond {LARGEST_PX:g} pixels")
    return Frame(
        whole_number(fields.get("t_us"), f"t_us of {where}", -(2**62), 2**62),
        corners.astype(np.float32),
        np.array(scores, np.float32),
        np.array(class_ids, np.int64),
        None if track_ids is None else np.array(track_ids, np.int64),
    )


def _numbers(value: object, where: str) -> list[float]:
    return [finite_number(each, where) for each in list_of(value, where)]


def _whole_numbers(value: object, where: str, low: int, high: int) -> list[int]:
    return [whole_number(each, where, low, high) for each in list_of(value, where)]
