"""The time of each frame that a person labelled: a table that ``fate label-kit`` wrote, or a constant rate.

The table is a CSV file with a header and the columns ``frame`` (from 0), ``file`` (name of the picture) and ``t_us``
(its time on the clock of the recording, µs).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fate.boxes.tool_export import Frame
from fate.errors import FateError, FormatError
from fate.files import read_text

COLUMNS = ("frame", "file", "t_us")
#: What Label Studio puts before the name of an uploaded file.
_UPLOADED = re.compile(r"[0-9a-f]{6,12}-")
#: Names of the pictures that ``fate label-kit`` draws: the recording, and the number of the frame.
_PICTURE = re.compile(r"(.+)_\d{6,}")
_LAST_NUMBER = re.compile(r"(\d{1,12})\D*$")


def picture_prefix(recording: str | os.PathLike[str]) -> str:
    """The name of a recording at the start of the names of its pictures: without folder, suffix and odd characters.

    Example:
        >>> picture_prefix("drives/monday 3_td.dat")
        'monday-3'
    """
    return re.sub(r"[^\w.-]+", "-", Path(recording).stem.removesuffix("_td"), flags=re.ASCII)


class FrameTimes:
    """Times in µs of frames by number or by the name of their picture, whatever its folder and suffix."""

    recording: str | None = None  #: the recording that the names of all pictures begin with; None if they do not

    def __init__(self, rows: Iterable[tuple[int, str, int]]) -> None:
        """Take (frame, file, t_us) for each frame."""
        self._by_number: dict[int, int] = {}
        self._by_name: dict[str, int] = {}
        for frame, file, time in rows:
            self._by_number[frame] = time
            self._by_name[_stem(file)] = time
        named = {match and match[1] for match in map(_PICTURE.fullmatch, self._by_name)}
        self.recording = named.pop() if len(named) == 1 else None

    def time_of(self, frame: Frame) -> int | None:
        """The time of a frame in µs; None if it has none."""
        if isinstance(frame, int):
            return self._by_number.get(frame)
        stem = _stem(frame)
        return self._by_name.get(stem, self._by_name.get(_UPLOADED.sub("", stem, count=1)))

    def expected(self) -> str:
        """Which frames have times, for an error."""
        return f"the time table has {len(self._by_number)} frames"


class ConstantRate(FrameTimes):
    """Frames at a constant rate; frame 0 is at ``start_us``. A picture has the last number in its name."""

    def __init__(self, fps: float, start_us: int) -> None:
        if not 0.001 <= fps <= 10_000:
            raise FateError(f"{fps:g} frames per second were given; expected 0.001 to 10000")
        self.fps, self.start_us = fps, start_us

    def time_of(self, frame: Frame) -> int | None:
        """The time of a frame in µs; None for a picture without a number in its name."""
        if isinstance(frame, str):
            found = _LAST_NUMBER.search(_stem(frame))
            if found is None:
                return None
            frame = int(found[1])
        return self.start_us + round(frame * 1e6 / self.fps)

    def expected(self) -> str:
        """Which frames have times, for an error."""
        return "with a constant rate, the name of a picture ends with its number"


def read_frame_times(path: str | os.PathLike[str]) -> FrameTimes:
    """Read the ``frames.csv`` of ``fate label-kit``."""
    rows: list[tuple[int, str, int]] = []
    taken: dict[object, int] = {}  # line of each frame, file and time
    reader = csv.reader(io.StringIO(read_text(path, "the time table of fate label-kit")))
    try:
        for number, words in enumerate(reader, start=1):
            where = f"{path}: line {number}"
            if number == 1:
                if tuple(word.strip() for word in words) != COLUMNS:
                    raise FormatError(f"{where}: is {','.join(words)[:80]!r}; expected {','.join(COLUMNS)}; add it")
            elif words:
                if (
                    len(words) != 3
                    or not re.fullmatch(r"\d{1,9}", words[0])
                    or not re.fullmatch(r"-?\d{1,18}", words[2])
                ):
                    raise FormatError(
                        f"{where}: is {','.join(words)[:80]!r}; expected a frame from 0, a file and whole µs, such as"
                        " 12,000012.png,1300000; fix it"
                    )
                row = (int(words[0]), words[1], int(words[2]))
                for name, value in zip(COLUMNS, (row[0], _stem(row[1]), row[2]), strict=True):
                    other = taken.setdefault((name, value), number)
                    if other != number:
                        raise FormatError(f"{where}: {name} {value} is in line {other} already; remove one of them")
                rows.append(row)
    except csv.Error as error:
        raise FormatError(f"{path}: line {reader.line_num}: is no CSV ({error}); write the table again") from error
    if not rows:
        raise FormatError(f"{path}: has no frames; expected a line for each; write it with fate label-kit")
    return FrameTimes(rows)


def write_frame_times(path: Path, rows: Iterable[tuple[int, str, int]]) -> None:
    """Write a table for :func:`read_frame_times`: a line for each frame, its picture and its time in µs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def _stem(file: str) -> str:
    """``"images/000012.png"`` → ``"000012"``."""
    return PurePosixPath(file.replace("\\", "/")).stem
