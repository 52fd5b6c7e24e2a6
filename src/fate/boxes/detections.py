"""Detections of one time: :class:`DetectionFrame`, which can be drawn and written.

Frames of the streaming detector are such frames; :func:`frames_from_labels` makes them from boxes of a label or
prediction file, and :func:`labels_from_frames` converts frames to one table. Viewers find the frame of a time with
:class:`FrameLookup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.errors import FateError


@dataclass(frozen=True, eq=False)
class DetectionFrame:
    """The M boxes of one time. The report also uses an optional attribute ``ms`` (milliseconds by stage)."""

    t_us: int  #: the time of the boxes, µs of the recording
    boxes: NDArray[np.float32]  #: [M, 4] xyxy in pixels of the recording's sensor
    scores: NDArray[np.float32]  #: [M], 0 to 1
    class_ids: NDArray[np.integer[Any]]  #: [M], indices into the list of class names
    track_ids: NDArray[np.int64] | None  #: [M], below 0 for a box without a track; None without tracking
    #: why state and tracks were reset before this frame, empty if they were not; its time may be earlier than the last
    restarted: str = field(default="", kw_only=True)


def frames_from_labels(labels: Labels) -> list[DetectionFrame]:
    """Return a frame for each labelled time, including times without boxes."""
    tracked = bool(len(labels)) and bool((labels.track_id >= 0).any())
    frames = []
    for time in labels.labelled_us:
        rows = labels.at(int(time))
        tracks = rows.track_id if tracked else None
        frames.append(DetectionFrame(int(time), rows.boxes, rows.score, rows.class_id, tracks))
    return frames


def labels_from_frames(frames: Sequence[DetectionFrame], classes: Sequence[str], sensor: tuple[int, int]) -> Labels:
    """Return all boxes of frames, given in order of time, as one table; the time of every frame is labelled."""
    times = np.array([frame.t_us for frame in frames], np.int64)
    tracks = [np.full(len(each.boxes), -1) if each.track_ids is None else each.track_ids for each in frames]
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(np.reshape(frame.boxes, (-1, 4)) for frame in frames)])
    columns = (
        np.repeat(times, [len(frame.boxes) for frame in frames]),
        *boxes.T,
        np.concatenate([np.zeros(0, np.int64), *(frame.class_ids for frame in frames)]),
        np.concatenate([np.zeros(0, np.int64), *tracks]),
        np.concatenate([np.zeros(0, np.float32), *(frame.scores for frame in frames)]).clip(0, 1),
    )
    return Labels(*columns, labelled_us=times, classes=classes, sensor=sensor)


class FrameLookup:
    """Finds the frame to show at a given time: the last one up to then, unless it is too old.

    Boxes of a detector that has stopped, or that did not run on this part of the recording, must not stay on the
    screen; a frame is therefore shown for at most two median distances between frames.

    Args:
        frames: in order of time.
    """

    def __init__(self, frames: Sequence[DetectionFrame]) -> None:
        self.frames = frames
        self.times = np.array([frame.t_us for frame in frames], np.int64)
        steps = np.diff(self.times)
        if (steps < 0).any():
            index = int(np.argmax(steps < 0)) + 1
            raise FateError(
                f"detection frame {index} is at {self.times[index]} µs, before the one ahead of it"
                f" ({self.times[index - 1]} µs); give frames in order of time"
            )
        #: median distance between frames, µs; 0 with fewer than two
        self.spacing_us = float(np.median(steps)) if len(steps) else 0.0
        self.hold_us = round(2 * self.spacing_us) or 100_000  # how long a frame is shown

    @property
    def hz(self) -> float:
        """Frames a second; 0 with fewer than two."""
        return 1e6 / self.spacing_us if self.spacing_us else 0.0

    def at(self, time_us: int) -> DetectionFrame | None:
        """Return the frame nearest before ``time_us`` (or at it)."""
        index = int(np.searchsorted(self.times, time_us, side="right")) - 1
        if index < 0 or time_us - self.times[index] > self.hold_us:
            return None
        return self.frames[index]


def class_name(class_id: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or ``class 3`` if it has none."""
    return classes[class_id] if classes and 0 <= class_id < len(classes) else f"class {class_id}"
