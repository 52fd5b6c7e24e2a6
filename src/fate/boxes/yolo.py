"""YOLO text labels: the files of one folder, ``<t_us>.txt`` for each labelled time.

A line is ``class cx cy w h [score [track_id [source]]]``, with centre and size divided by the width and
height of the sensor. An empty file is a labelled time without boxes. ``classes.txt`` holds one name per line,
and ``fate.json`` the sensor. Numbers are added and multiplied as decimals, so that boxes come back exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, DecimalException, localcontext
from typing import Any

import numpy as np

from fate.boxes.labels import COLUMNS, Labels, LabelSource
from fate.errors import FateError, FormatError
from fate.json_files import parse_json

FORMAT = "fate-labels-yolo"
CLASSES_FILE = "classes.txt"
META_FILE = "fate.json"

_TIME_NAME = re.compile(r"-?[0-9]+\.txt")
_OUR_TIME_NAME = re.compile(r"(-[0-9]{15,19}|[0-9]{16,19})\.txt")
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")

_DIGITS = 120  # the corners 1e38 and 1e-45 together need 83; the rest is margin


def encode(labels: Labels) -> dict[str, str]:
    """File name to text; needs ``labels.sensor``."""
    if labels.sensor is None:
        raise FateError(
            "the labels have no sensor; YOLO divides by its size; pass sensor=(height, width) to write_labels"
        )
    meta = {"format": FORMAT, "version": 1, "sensor": labels.sensor}
    files = {META_FILE: json.dumps(meta) + "\n"}
    if labels.classes is not None:
        files[CLASSES_FILE] = "".join(f"{name}\n" for name in labels.classes)
    for time in labels.labelled_us.tolist():
        files[f"{time:016d}.txt"] = ""
    height, width = labels.sensor
    for row, time in enumerate(labels.t_us.tolist()):
        cx, w = _normalise(float(labels.x1[row]), float(labels.x2[row]), width)
        cy, h = _normalise(float(labels.y1[row]), float(labels.y2[row]), height)
        extras = [repr(float(labels.score[row])), str(labels.track_id[row]), str(labels.source[row])]
        defaults = ["1.0", "-1", str(int(LabelSource.GROUND_TRUTH))]
        while extras and extras[-1] == defaults[len(extras) - 1]:
            extras.pop()  # up to the last that differs from its default: ground truth stays plain YOLO
        files[f"{time:016d}.txt"] += " ".join([str(labels.class_id[row]), cx, cy, w, h, *extras]) + "\n"
    return files


def decode(
    files: Mapping[str, str], sensor: tuple[int, int] | None = None, classes: Sequence[str] | None = None
) -> Labels:
    """Labels from ``.txt`` files and ``fate.json``, name to text; the arguments are used if the files lack them."""
    if META_FILE in files:
        sensor = _read_meta(files[META_FILE])
    by_time: dict[int, str] = {}
    for name in sorted(files.keys() - {META_FILE, CLASSES_FILE}):
        if not _TIME_NAME.fullmatch(name) or len(name) > 40 or not -(2**63) <= int(name[:-4]) < 2**63:
            raise FormatError(f"holds {name!r}; labels are named <t_us>.txt in microseconds; move it away")
        other = by_time.setdefault(int(name[:-4]), name)
        if other != name:
            raise FormatError(f"holds {other} and {name}; each time has one file; merge them")
    times = dict(sorted(by_time.items()))
    if sensor is None:
        if not times:
            raise FormatError("has no <t_us>.txt file; YOLO labels are one per labelled time; add them")
        raise FormatError(f"has no {META_FILE}; YOLO divides by the sensor size; pass sensor=(height, width)")
    if CLASSES_FILE in files:
        classes = [name.strip() for name in files[CLASSES_FILE].rstrip().splitlines()]
    # checks the names and the size
    frame = Labels.empty(list(times), classes=classes, sensor=sensor)
    rows: list[tuple[Any, ...]] = []
    for time, name in times.items():
        for number, line in enumerate(files[name].splitlines(), start=1):
            if line.strip():
                try:
                    rows.append((time, *_read_line(line, sensor, frame.classes)))
                except FormatError as error:
                    raise FormatError(f"{name} line {number} {error}") from error
    columns = {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}
    return Labels.from_unsorted(columns, labelled_us=frame.labelled_us, classes=frame.classes, sensor=sensor)


def foreign_files(names: Sequence[str], meta: str) -> list[str]:
    """Return the files of a folder that :func:`encode` did not write: all of them without a ``fate.json`` of FATE.

    ``meta`` is the text of ``fate.json``, empty if it does not exist.
    """
    try:
        _read_meta(meta)
    except FormatError:
        return sorted(names)
    ours = (META_FILE, CLASSES_FILE)
    return sorted(name for name in names if name not in ours and not _OUR_TIME_NAME.fullmatch(name))


def _normalise(low: float, high: float, side: int) -> tuple[str, str]:
    """Return centre and size divided by ``side``, with digits that reproduce both float32 edges."""
    centre, size = repr((low + high) / 2 / side), repr((high - low) / side)
    if _edges(centre, size, side) == (np.float32(low), np.float32(high)):
        return centre, size
    with localcontext(prec=_DIGITS):  # 17 digits are too few for a small edge and a large one
        return str((Decimal(low) + Decimal(high)) / (2 * side)), str((Decimal(high) - Decimal(low)) / side)


def _edges(centre: str, size: str, side: int) -> tuple[np.float32, np.float32]:
    """Low and high edge in pixels: (centre -+ size / 2) * side, as decimals, rounded once at the end."""
    with localcontext(prec=_DIGITS), np.errstate(over="ignore"):
        middle, half = Decimal(centre), Decimal(size) / 2
        return np.float32(float((middle - half) * side)), np.float32(float((middle + half) * side))


def _read_line(line: str, size: tuple[int, int], classes: tuple[str, ...] | None) -> tuple[Any, ...]:
    """Read the columns of one box after its time."""
    words = line.split()
    if not 5 <= len(words) <= 8:
        raise FormatError(f"has {len(words)} words; a box is class cx cy w h [score [track [source]]]; fix")
    last_class = 2**31 - 1 if classes is None else len(classes) - 1
    class_id = _whole("class", words[0], 0, last_class)
    for name, word in zip(("cx", "cy", "w", "h", "score"), words[1:6], strict=False):
        if not _NUMBER.fullmatch(word):
            raise FormatError(f"has {name} {word[:40]!r}; expected a number; fix it")
    try:
        x1, x2 = _edges(words[1], words[3], size[1])
        y1, y2 = _edges(words[2], words[4], size[0])
    except DecimalException as error:
        raise FormatError(f"has numbers out of range ({line[:80]!r}); expected 0 to 1; fix it") from error
    if not np.isfinite([x1, y1, x2, y2]).all() or x2 < x1 or y2 < y1:
        raise FormatError(f"has box {' '.join(words[1:5])[:80]!r}; w and h are 0 or larger; fix it")
    score = float(words[5]) if len(words) > 5 else 1.0
    if not 0 <= score <= 1:
        raise FormatError(f"has score {words[5][:40]}; scores lie in 0 to 1; fix it")
    track = _whole("track_id", words[6], -1, 2**63 - 1) if len(words) > 6 else -1
    source = _whole("source", words[7], 0, max(LabelSource)) if len(words) > 7 else int(LabelSource.GROUND_TRUTH)
    return x1, y1, x2, y2, class_id, track, score, source


def _whole(name: str, word: str, low: int, high: int) -> int:
    if not _WHOLE.fullmatch(word) or not low <= int(word) <= high:
        raise FormatError(f"has {name} {word[:40]!r}; expected a whole number from {low} to {high}; fix it")
    return int(word)


def _read_meta(text: str) -> tuple[int, int]:
    """(height, width) from ``fate.json``."""
    meta = parse_json(text, META_FILE, f"the sensor of {FORMAT}")
    sensor = meta.get("sensor") if isinstance(meta, dict) and meta.get("format") == FORMAT else None
    if not isinstance(sensor, list) or len(sensor) != 2 or not all(type(side) is int for side in sensor):
        raise FormatError(f"{META_FILE} has no sensor of {FORMAT}; pass sensor= instead of it")
    return sensor[0], sensor[1]
