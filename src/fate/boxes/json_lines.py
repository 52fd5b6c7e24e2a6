"""Detections of one recording as JSON: one document, or JSON lines (a header, a line per window, a summary).

A document has ``format``, ``version``, ``recording``, ``sensor``, ``hz``, ``classes``, further facts, and ``frames``.
JSON lines have the same without ``frames`` in the first line, then a line for each frame, and in the last line the
facts that are known at the end. Lines written before a crash stay readable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fate.boxes.detections import DetectionFrame, Frame
from fate.errors import FormatError, warn
from fate.files import read_text
from fate.json_files import finite_number, list_of, object_of, parse_json, whole_number

#: Names and version of the two formats; the version grows when a reader has to change.
FORMAT, LINES_FORMAT, VERSION = "fate-detections", "fate-detections-lines", 1
EXPECTED = "a file of fate detect --json or --jsonl"
MAX_PX = 1e30  # corners are stored as float32


def header(
    recording: str, sensor: tuple[int, int], classes: Sequence[str], hz: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of a document before its frames."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "recording": recording,
        "sensor": {"width": sensor[1], "height": sensor[0]},
        "hz": hz,
        "classes": list(classes),
        **facts,
    }


def encode_frame(frame: DetectionFrame) -> dict[str, Any]:
    """A frame as JSON holds it: ``t_us``, ``boxes`` (xyxy, pixels), ``scores``, ``class_ids`` and ``track_ids``."""
    plain: dict[str, Any] = {
        "t_us": int(frame.t_us),
        "boxes": [[round(value, 2) for value in box] for box in frame.boxes.tolist()],
        "scores": [round(value, 4) for value in frame.scores.tolist()],
        "class_ids": [int(value) for value in frame.class_ids.tolist()],
    }
    if frame.track_ids is not None:
        plain["track_ids"] = [int(value) for value in frame.track_ids.tolist()]
    return plain


def encode_timing(frame: DetectionFrame) -> dict[str, Any]:
    """The optional attributes of a frame of a stream: events, milliseconds, age and lateness."""
    plain: dict[str, Any] = {}
    if hasattr(frame, "num_events"):
        plain["events"] = int(frame.num_events)
    if hasattr(frame, "total_ms"):
        plain["ms"] = round(float(frame.total_ms), 3)
    if getattr(frame, "age_ms", None) is not None:
        plain["age_ms"] = round(float(frame.age_ms), 3)  # type: ignore[attr-defined]
    if getattr(frame, "late", False):
        plain["late"] = True
    return plain


def encode_line(content: Mapping[str, Any]) -> str:
    """An object as one line."""
    return f"{json.dumps(content, ensure_ascii=False, allow_nan=False)}\n"


def encode_open(content: Mapping[str, Any]) -> str:
    """An object as indented JSON, without the closing brace."""
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)[:-2]


def decode_frame(plain: object, where: str) -> Frame:
    """The inverse of :func:`encode_frame`; ``where`` is what an error calls the frame."""
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
    if (np.abs(corners) > MAX_PX).any():
        raise FormatError(f"{where} has a box with a corner beyond {MAX_PX:g} pixels")
    return Frame(
        whole_number(fields.get("t_us"), f"t_us of {where}", -(2**62), 2**62),
        corners.astype(np.float32),
        np.array(scores, np.float32),
        np.array(class_ids, np.int64),
        None if track_ids is None else np.array(track_ids, np.int64),
    )


def read_lines(source: Path) -> dict[str, Any]:
    """The lines of a ``.jsonl`` file as one document; an incomplete last line is dropped with a warning."""
    first, *lines = read_text(source, EXPECTED).split("\n")
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


def _numbers(value: object, where: str) -> list[float]:
    return [finite_number(each, where) for each in list_of(value, where)]


def _whole_numbers(value: object, where: str, low: int, high: int) -> list[int]:
    return [whole_number(each, where, low, high) for each in list_of(value, where)]
