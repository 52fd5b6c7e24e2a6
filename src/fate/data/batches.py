"""Batches of clips as they are passed from loading to training and evaluation.

A batch holds the events of its windows, or says where the device finds them (:class:`SoughtWindows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.boxes.labels import Labels
from fate.data.clips import Clip, Span
from fate.data.transforms import Transform
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window

NO_HOLE = (0, 0, 0, 0)


class Reader(Protocol):
    """An open recording."""

    def read(self, start_us: int, end_us: int) -> Events:
        """Its events from ``start_us`` to before ``end_us``."""

    def close(self) -> None:
        """Let go of the file."""


class Source(Span, Protocol):
    """A recording as clips are loaded from it; those of ``data.dataset`` are."""

    @property
    def labels(self) -> Labels:
        """All its labels."""

    def open(self) -> Reader:
        """Open it for reading."""


#: From the number of a recording and a rate to labels; None where it has none at that rate.
LabelsOf = Callable[[int, float], Labels | None]


class Sought(NamedTuple):
    """Where the events of a window come from."""

    recording: int
    change: Transform | None  #: of the frame
    number: int  #: of the window in its clip, for what is erased


class SoughtWindows(NamedTuple):
    """W windows whose events are to be found; small, and plain to send."""

    windows: NDArray[np.int64]  #: [W, 2] start and end, µs on the recording's clock
    recording: NDArray[np.int64]  #: [W] number; -1 for a window without events
    map: NDArray[np.int64]  #: [W] row of ``maps``; -1 where the frame stays as it is
    maps: NDArray[np.float64]  #: [M, 2, 3] of the frame
    holes: NDArray[np.int64]  #: [W, 4] x1 y1 x2 y2 of the pixels that are erased

    @classmethod
    def of(cls, pairs: Iterable[tuple[Window, Sought | None]]) -> SoughtWindows:
        """Of windows in their order; None for one in which nothing happens."""
        windows, recording, chosen, holes = [], [], [], []
        maps: dict[Any, int] = {}
        for window, sought in pairs:
            windows.append((window.start_us, window.end_us))
            recording.append(-1 if sought is None else sought.recording)
            change = None if sought is None else sought.change
            hole = None
            if sought is not None and change is not None and change.erasing is not None:
                hole = change.erasing.rectangle(change.sensor, sought.number)
            holes.append(hole or NO_HOLE)
            if change is None or change.is_identity:
                chosen.append(-1)
            elif change.pixels != "resample":
                raise FateError('pixels="move" was given; events on the device can only be resampled')
            else:
                chosen.append(maps.setdefault(change.matrix, len(maps)))
        whole = [np.array(rows, np.int64) for rows in (windows, recording, chosen, holes)]
        return cls(whole[0], whole[1], whole[2], np.array(list(maps), np.float64).reshape(-1, 2, 3), whole[3])


class TeacherPart(NamedTuple):
    """T' · B canonical windows of the B lanes of a batch, time-major; at the first the teacher remembers nothing."""

    events: EventBatch | SoughtWindows
    steps: int  #: T', the same for all lanes
    ends_us: NDArray[np.int64]  #: [T', B] when each window ends; -1 in a lane that shows nothing
    shared: NDArray[np.int64]  #: [M, 2] rows t · B + b of the student and t' · B + b of the teacher that end together

    def inputs(self, device: str | torch.device) -> EventBatch:
        """What a detector takes, on its device."""
        if isinstance(self.events, SoughtWindows):
            raise FateError("a batch without its events was given; ResidentEvents.complete finds them")
        return self.events.to(device, non_blocking=True)

    def pin_memory(self) -> TeacherPart:
        """The events in page-locked memory."""
        events = self.events
        return self if isinstance(events, SoughtWindows) else self._replace(events=events.pin_memory())


class ClipBatch(NamedTuple):
    """T · B windows of B lanes, time-major: first the first window of every lane."""

    #: or, of a dataset of histograms, images [T · B, 20, H, W] uint8; or where to find the events (``resident.py``)
    events: EventBatch | Tensor | SoughtWindows
    labels: list[Labels | None]  #: of each window; None where nobody has labelled it
    steps: int  #: T
    clips: list[Clip]  #: of the B lanes
    begins: Tensor  #: [B] bool, whose memory begins anew
    ends_us: NDArray[np.int64]  #: [T, B] when each window ends; -1 where a lane has none
    teacher: TeacherPart | None = None  #: canonical windows over the same time, where they were asked for

    def pin_memory(self) -> ClipBatch:
        """The events in page-locked memory; called by the loader."""
        if isinstance(self.events, SoughtWindows):
            return self
        teacher = None if self.teacher is None else self.teacher.pin_memory()
        return self._replace(events=self.events.pin_memory(), teacher=teacher)

    def inputs(self, device: str | torch.device) -> EventBatch | Tensor:
        """What a detector takes, on its device: events, or images as float32."""
        if isinstance(self.events, SoughtWindows):
            raise FateError("a batch without its events was given; ResidentEvents.complete finds them")
        moved = self.events.to(device, non_blocking=True)
        return moved.float() if isinstance(moved, Tensor) else moved
