"""What the export of a labelling program holds: boxes on frames, before the frames have times.

A frame is its number, counted from 0, or the name of its image. Readers add boxes to a :class:`ToolExport`, and add a
problem instead of a box where the file is wrong, so that a user sees all problems at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from fate.errors import FormatError

Frame = int | str
Corners = tuple[float, float, float, float]
#: Frames of an export; more is a damaged number.
MOST_FRAMES = 1_000_000


class ToolBox(NamedTuple):
    """A box that a person drew, or that the program interpolated for this person."""

    where: str  #: its place in the file, such as ``line 12``
    frame: Frame
    class_name: str
    corners: Corners  #: x1, y1, x2, y2 in pixels of the image
    track: int = -1


@dataclass
class ToolExport:
    """The content of an export, and what is wrong with it."""

    tool: str  #: the program and format, such as "CVAT for video"
    classes: tuple[str, ...] | None = None  #: all names in the order of the file, if it lists them
    sensor: tuple[int, int] | None = None  #: (height, width) of the images, if the file has it
    frames: dict[Frame, str] = field(default_factory=dict)  #: all labelled frames, and where the file lists them
    boxes: list[ToolBox] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  #: each one a sentence that begins with its place
    notes: list[str] = field(default_factory=list)  #: what was left out on purpose, with counts

    @contextmanager
    def collecting(self, file: str = "") -> Iterator[None]:
        """Add a :class:`FormatError` of the block to the problems, with the file in a folder that it is about."""
        try:
            yield
        except FormatError as error:
            self.problems.append(f"{file}: {error}" if file else str(error))

    def add_frame(self, frame: Frame, where: str) -> None:
        """Add a labelled frame; the same frame at another place is a problem."""
        other = self.frames.setdefault(frame, where)
        if other != where:
            self.problems.append(f"{where}: the frame {frame!r} is listed at {other} already; remove one of them")

    def add_size(self, sensor: tuple[int, int] | None, where: str) -> None:
        """Set the size (height, width) of the images; 0 is an unknown one, and images of another size are a problem."""
        if sensor is None or 0 in sensor:
            return
        if self.sensor is None:
            self.sensor = sensor
        if sensor != self.sensor:
            self.problems.append(
                f"{where}: the image has {sensor[1]}×{sensor[0]} pixels, and one before {self.sensor[1]}×"
                f"{self.sensor[0]}; a recording has one sensor; export its images alone"
            )


class Key(NamedTuple):
    """A box of a track at a frame where the program stored it."""

    where: str
    frame: int
    corners: Corners
    hidden: bool  #: the object is not visible from this frame on, until the next key; its own box is not drawn


def interpolate_track(keys: Sequence[Key], frames: Sequence[int], class_name: str, track: int) -> list[ToolBox]:
    """Return the boxes of a track: at each key, and linearly between a visible key and the next one.

    Args:
        keys: in any order; a program may store every frame of a track or only some.
        frames: the frames of the task in rising order; boxes are interpolated at these alone.
        class_name: class of the object.
        track: number of the track.
    """
    ordered = sorted(keys, key=lambda key: key.frame)
    boxes = []
    for index, key in enumerate(ordered):
        if key.hidden:
            continue
        boxes.append(ToolBox(key.where, key.frame, class_name, key.corners, track))
        if index + 1 == len(ordered):
            break
        after = ordered[index + 1]
        if after.frame - key.frame < 2:
            continue
        for frame in frames[bisect_left(frames, key.frame + 1) : bisect_left(frames, after.frame)]:
            share = (frame - key.frame) / (after.frame - key.frame)
            x1, y1, x2, y2 = (a + share * (b - a) for a, b in zip(key.corners, after.corners, strict=True))
            boxes.append(ToolBox(f"{key.where} to {after.where}", frame, class_name, (x1, y1, x2, y2), track))
    return boxes
