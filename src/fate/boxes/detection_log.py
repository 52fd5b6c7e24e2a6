"""What was detected in a recording, as files: JSON and JSON lines that say everything, CSV for tables, COCO.

``detection_files.py`` writes them. :func:`read_detections` (and ``fate view``) reads JSON and JSON lines, ``fate
evaluate`` reads COCO.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.detection_files import FORMAT, LINES_FORMAT, VERSION, DetectionFiles, labels_of, plain_frame
from fate.boxes.frames import DetectionFrame, Frame, frames_from_labels
from fate.boxes.label_files import read_labels
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError, warn
from fate.files import read_text
from fate.json_files import finite_number, list_of, names_of, object_of, parse_json, read_json, whole_number

EXPECTED = "a file of fate detect --json or --jsonl"
LARGEST_PX = 1e30  # corners are stored as float32
_KEYS = ("format", "version", "recording", "sensor", "hz", "classes", "frames")


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
    if source.suffix.lower() == ".jsonl":
        return _log(source, _document_of_lines(source))
    return _log(source, read_json(source, EXPECTED))


def _document_of_lines(source: Path) -> dict[str, Any]:
    """The document that the lines of a ``.jsonl`` file make together; a last line without its end is left out."""
    text = read_text(source, EXPECTED)
    first, *lines = text.split("\n")
    head = parse_json(first, f"{source}, line 1", EXPECTED)
    if not isinstance(head, dict) or head.get("format") != LINES_FORMAT:
        raise FormatError(f"{source}: holds no detections of FATE; expected {EXPECTED}")
    parts = [
        object_of(parse_json(line, f"{source}, line {number}", EXPECTED), f"{source}, line {number}")
        for number, line in enumerate(lines[:-1], start=2)
    ]
    if lines and lines[-1]:
        warn(f"{source}: ends within a line, as after a crash; the {len(parts)} whole lines before it are read")
    end: dict[str, Any] = {}
    for part in parts:
        end |= {} if "t_us" in part else part
    return {**head, **end, "format": FORMAT, "frames": [part for part in parts if "t_us" in part]}


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
    if source.suffix.lower() == ".jsonl":
        log = read_detections(source)
        return log.frames, log.classes
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
