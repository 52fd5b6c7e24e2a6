"""What was detected in a recording, as files: JSON and JSON lines that say everything, CSV for tables, COCO.

``detection_files.py`` writes them. :func:`read_detections` (and ``fate view``) reads JSON and JSON lines, ``fate
evaluate`` reads COCO.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fate.errors import FateError, FateWarning, FormatError
from fate.events.label_files import read_labels
from fate.events.labels import Labels
from fate.runtime.detection_files import FORMAT, LINES_FORMAT, VERSION, DetectionFiles, labels_of, plain_frame
from fate.view.frames import DetectionFrame, Frame, frames_from_labels


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
        return labels_of(self.frames, Labels.empty(classes=self.classes, sensor=self.sensor))

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
            "frames": [plain_frame(frame) for frame in self.frames],
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything, a line for each frame; ``"-"`` is standard output, here and below."""
        self._write(json=path)

    def write_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write JSON lines: a header, a line for each frame, and a last line with the summary."""
        self._write(jsonl=path)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each box; frames without boxes leave no trace."""
        self._write(csv=path)

    def write_coco(self, path: str | os.PathLike[str]) -> None:
        """Write COCO's JSON: an image with its time for each frame, annotations with scores and tracks."""
        self._write(coco=path)

    def _write(self, **files: Any) -> None:
        facts = {name: fact for name, fact in self.facts.items() if name != "summary"}
        end = {name: fact for name, fact in self.facts.items() if name == "summary"}
        about = (self.recording, self.sensor, self.classes, self.hz, facts)
        with DetectionFiles(*about, **files, grows=False) as written:
            for frame in self.frames:
                written.add(frame)
            written.finish(end)


def read_detections(path: str | os.PathLike[str]) -> DetectionLog:
    """Read a file that ``fate detect --json`` or ``--jsonl`` wrote; JSON lines have a name that ends in ``.jsonl``."""
    source = Path(path)
    try:
        content = _content(source)
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
    if source.suffix.lower() in (".json", ".jsonl"):
        try:
            log = read_detections(source)
        except FormatError:
            if source.suffix.lower() == ".jsonl" or not _is_coco(source):
                raise
        else:
            return log.frames, log.classes
    labels = read_labels(source)
    return frames_from_labels(labels), labels.classes


def _content(source: Path) -> Any:
    """The document of a JSON file; of JSON lines, the document that they make together."""
    data = source.read_bytes()
    if source.suffix.lower() != ".jsonl":
        return json.loads(data)
    first, *lines = data.decode("utf-8").split("\n")
    head = json.loads(first)
    if not isinstance(head, dict) or head.get("format") != LINES_FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected a file of fate detect --jsonl")
    parts = [json.loads(line) for line in lines[:-1]]
    if lines and lines[-1]:
        warnings.warn(
            f"{source}: ends within a line, as after a crash; the {len(parts)} whole lines before it are read",
            FateWarning,
            stacklevel=3,
        )
    frames = [part for part in parts if "t_us" in part]
    end: dict[str, Any] = {}
    for part in parts:
        end |= {} if "t_us" in part else part
    return {**head, **end, "format": FORMAT, "frames": frames}


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
