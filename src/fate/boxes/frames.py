"""What a detector said at one moment, as the viewers take it: anything with these attributes can be drawn.

The streaming detector's frames fit as they are; boxes from a label or prediction file become :class:`Frame` objects
by :func:`frames_from_labels`. Viewers look a frame up by time with :class:`FrameLookup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.events.events import Events


class EventSource(Protocol):
    """A recording, as far as viewers need it; :func:`fate.open_recording` gives one."""

    @property
    def sensor(self) -> tuple[int, int]:
        """``(height, width)`` in pixels."""
        ...

    @property
    def start_us(self) -> int:
        """Time of the first event, µs."""
        ...

    @property
    def end_us(self) -> int:
        """One µs after the last event."""
        ...

    def read(self, start_us: int | None = None, end_us: int | None = None) -> Events:
        """Events in ``[start_us, end_us)``."""
        ...


class DetectionFrame(Protocol):
    """Boxes of one moment. An attribute ``ms`` (milliseconds by stage) is used by the report where it is there."""

    @property
    def t_us(self) -> int:
        """The moment that the boxes are for, µs of the recording."""
        ...

    @property
    def boxes(self) -> NDArray[np.floating[Any]]:
        """[M, 4] xyxy in pixels of the sensor."""
        ...

    @property
    def scores(self) -> NDArray[np.floating[Any]]:
        """[M], 0 to 1."""
        ...

    @property
    def class_ids(self) -> NDArray[np.integer[Any]]:
        """[M], positions in the list of class names."""
        ...

    @property
    def track_ids(self) -> NDArray[np.integer[Any]] | None:
        """[M], below 0 where a box has no track; ``None`` where nothing was tracked."""
        ...


@dataclass(frozen=True, eq=False)
class Frame:
    """A plain :class:`DetectionFrame`."""

    t_us: int
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    track_ids: NDArray[np.int64] | None = None
    ms: Mapping[str, float] | None = None


def frames_from_labels(labels: Labels) -> list[Frame]:
    """A frame for each labelled time, also for those without boxes."""
    tracked = bool(len(labels)) and bool((labels.track_id >= 0).any())
    frames = []
    for time in labels.labelled_us:
        rows = labels.at(int(time))
        tracks = rows.track_id if tracked else None
        frames.append(Frame(int(time), rows.boxes, rows.score, rows.class_id, tracks))
    return frames


class FrameLookup:
    """The frame that holds at a given time: the last one up to then, unless it is too old.

    Boxes of a detector that has stopped, or that was not run on this part of the recording, must not stay on the
    screen; a frame therefore holds for two usual distances between frames.

    Args:
        frames: in order of time.
        hold_us: how long a frame holds, if not as above.
    """

    def __init__(self, frames: Sequence[DetectionFrame], hold_us: int | None = None) -> None:
        self.frames = frames
        self.times = np.array([frame.t_us for frame in frames], np.int64)
        steps = np.diff(self.times)
        if (steps < 0).any():
            place = int(np.argmax(steps < 0)) + 1
            raise FateError(
                f"detection frame {place} is at {self.times[place]} µs, before the one ahead of it"
                f" ({self.times[place - 1]} µs); give frames in order of time"
            )
        #: usual distance between frames, µs; 0 where there are fewer than two
        self.spacing_us = float(np.median(steps)) if len(steps) else 0.0
        self.hold_us = hold_us if hold_us is not None else round(2 * self.spacing_us) or 100_000

    @property
    def hz(self) -> float:
        """Frames a second; 0 where there are fewer than two."""
        return 1e6 / self.spacing_us if self.spacing_us else 0.0

    def at(self, time_us: int) -> DetectionFrame | None:
        """The frame nearest before ``time_us`` (or at it)."""
        place = int(np.searchsorted(self.times, time_us, side="right")) - 1
        if place < 0 or time_us - self.times[place] > self.hold_us:
            return None
        return self.frames[place]


def class_name(class_id: int, classes: Sequence[str] | None) -> str:
    """The name of a class, or ``class 3`` where it has none."""
    return classes[class_id] if classes and 0 <= class_id < len(classes) else f"class {class_id}"
