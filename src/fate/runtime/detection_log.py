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
from fate.view.frames import DetectionFrame, Frame, frames_from_labels
from fate.whole_files import write_whole

FORMAT, VERSION = "fate-detections", 1
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
    try:
        content = json.loads(source.read_bytes())
    except OSError as error:
        raise FateError(f"{source}: cannot be read ({error.strerror}); expected a file of fate detect --json") from None
    except ValueError as error:
        raise FormatError(f"{source}: not whole JSON ({error}); expected a file of fate detect --json") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected a file of fate detect --json")
    if content.get("version", 0) > VERSION:
        raise FormatError(f"{source}: written by a newer FATE; update yours with pip install -U fate-events")
    try:
        frames = [_frame(each) for each in content.pop("frames")]
        size, classes = content.pop("sensor"), tuple(str(name) for name in content.pop("classes"))
        log = DetectionLog(
            str(content.pop("recording")), (int(size["height"]), int(size["width"])), classes, float(content.pop("hz")),
            frames, {key: value for key, value in content.items() if key not in ("format", "version")},
        )  # fmt: skip
        log.labels()  # checks every row
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{source}: damaged ({error!r}); write it again with fate detect --json") from None
    return log


def read_frames(path: str | os.PathLike[str]) -> tuple[Sequence[DetectionFrame], tuple[str, ...] | None]:
    """Frames and classes of a file of ``fate detect --json``, or of labels in any format."""
    source = Path(path)
    if source.suffix.lower() == ".json":
        try:
            log = read_detections(source)
        except FormatError:
            if not _is_coco(source):
                raise
        else:
            return log.frames, log.classes
    labels = read_labels(source)
    return frames_from_labels(labels), labels.classes


def _is_coco(path: Path) -> bool:
    try:
        return "images" in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _frame(plain: Mapping[str, Any]) -> Frame:
    tracks = plain.get("track_ids")
    frame = Frame(
        int(plain["t_us"]),
        np.asarray(plain["boxes"], np.float32).reshape(-1, 4),
        np.asarray(plain["scores"], np.float32),
        np.asarray(plain["class_ids"], np.int64),
        None if tracks is None else np.asarray(tracks, np.int64),
    )
    parts = (frame.boxes, frame.scores, frame.class_ids, frame.track_ids)
    counts = {len(part) for part in parts if part is not None}
    if len(counts) != 1:
        raise ValueError(f"frame at {frame.t_us} µs has {sorted(counts)} boxes, scores, classes or tracks")
    return frame
