"""MOT text: a line ``frame, id, x, y, w, h, confidence, class, visibility`` for each box.

Frames count from 1. ``x, y`` is the top left corner. A confidence of 0 means that the box is to be ignored. The class
is a name, or a number: of the lines of ``labels.txt`` beside the file, as CVAT writes it, or of MOT16 and later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fate.boxes.tool_export import Corners, ToolBox, ToolExport
from fate.errors import FormatError
from fate.quantities import parse_number
from fate.text import plural

#: The numbers of classes in MOT text. -1, or no class at all, is a pedestrian: older files hold nothing else.
MOT_NAMES = {
    **{-1: "pedestrian", 1: "pedestrian", 2: "person on vehicle", 3: "car", 4: "bicycle", 5: "motorbike"},
    **{6: "non motorised vehicle", 7: "person", 8: "distractor", 9: "occluder", 10: "occluder", 11: "occluder"},
    **{12: "reflection", 13: "crowd"},
}
LINE = "frame, id, x, y, w, h, confidence, class"
LAST_FRAME = 10**9


class MotBox(NamedTuple):
    """A line of MOT text."""

    frame: int  #: counted from 0
    track: int  #: -1 for none
    corners: Corners
    confidence: float
    class_name: str


def read_lines(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the number, from 1, and the words of each line that is neither empty nor a comment (``#``)."""
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), start=1):
        words = line.replace(",", " ").split() if "," not in line else [word.strip() for word in line.split(",")]
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, words


def read_box(words: Sequence[str], where: str, num_frames: int | None, names: Sequence[str] | None = None) -> MotBox:
    """Read the words of a line.

    Args:
        words: the columns.
        where: the place of the line, with which errors begin.
        num_frames: number of frames of the video, or None if it is not known.
        names: names of the classes 1, 2, …; None for those of MOT.
    """
    if len(words) < 6:
        raise FormatError(f"{where}: has {len(words)} columns; expected {LINE}")
    frame = _whole(words[0], where, "frame", 1, num_frames)
    track = _whole(words[1], where, "id", -1, None)
    x, y, w, h = (_number(word, where, name) for word, name in zip(words[2:6], "xywh", strict=True))
    if w <= 0 or h <= 0:
        raise FormatError(f"{where}: the box is {w:g}×{h:g} pixels; expected a width and a height above 0")
    confidence = _number(words[6], where, "confidence") if len(words) > 6 else 1.0
    return MotBox(frame - 1, track, (x, y, x + w, y + h), confidence, _class_name(words[7:8], where, names))


def decode(data: bytes, names: Sequence[str] | None) -> ToolExport:
    """Return the boxes of MOT text; ``names`` are those of the classes 1, 2, …, None for those of MOT16.

    The text does not list frames without boxes, so nothing is known about them.
    """
    export = ToolExport("MOT text", None if names is None else tuple(names))
    ignored = 0
    numbered = False
    for number, words in read_lines(data):
        where = f"line {number}"
        with export.collecting():
            box = read_box(words, where, None, names)
            numbered |= words[7:8] != [] and words[7].strip() != box.class_name
            export.frames.setdefault(box.frame, where)
            if box.confidence == 0:
                ignored += 1
            else:
                export.boxes.append(ToolBox(where, box.frame, box.class_name, box.corners, box.track))
    if numbered and names is None:
        export.notes.append(
            "numbers of classes read as those of MOT16, such as 1 for pedestrian; classes= changes this"
        )
    if ignored:
        export.notes.append(f"{plural(ignored, 'box', 'boxes')} with confidence 0 left out, as MOT means it")
    return export


def _class_name(words: Sequence[str], where: str, names: Sequence[str] | None) -> str:
    """The name of a class; no class column is the class -1."""
    word = words[0] if words else "-1"
    number = parse_number(word)
    if number is None:
        return word.strip()
    known = MOT_NAMES if names is None else dict(enumerate(names, start=1))
    if number not in known:
        expected = (
            "a number of MOT: -1 or 1 to 13"
            if names is None
            else f"a number from 1 to {len(known)} ({', '.join(names)[:60]})"
        )
        raise FormatError(f"{where}: the class is {word[:40]}; expected a name, or {expected}")
    return known[int(number)]


def _number(word: str, where: str, name: str) -> float:
    value = parse_number(word)
    if value is None or not abs(value) < 1e9:
        raise FormatError(f"{where}: {name} is {word!r:.40}; expected a number ({LINE})")
    return value


def _whole(word: str, where: str, name: str, low: int, high: int | None) -> int:
    value = _number(word, where, name)
    if value != int(value) or not low <= value <= (LAST_FRAME if high is None else high):
        upper = "up" if high is None else f"to {high}, the number of frames in the video"
        raise FormatError(f"{where}: {name} is {word!r:.40}; expected a whole number from {low} {upper}")
    return int(value)
