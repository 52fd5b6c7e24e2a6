"""Batches of clips, as they are passed from loading to training and evaluation.

A batch holds the events of its windows, or requests for them if all events are on the device (:class:`WindowRequests`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

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

Images = NDArray[np.uint8]


class Reader(Protocol):
    """An open recording."""

    def read(self, start_us: int, end_us: int) -> Events:
        """Its events from ``start_us`` to before ``end_us``."""

    def close(self) -> None:
        """Close the file."""


class Source(Span, Protocol):
    """A recording from which clips are loaded, such as ``LabelledRecording``."""

    @property
    def labels(self) -> Labels:
        """All its labels."""

    def open(self) -> Reader:
        """Open it for reading."""


@runtime_checkable
class ImageSource(Protocol):
    """A recording that holds images instead of events, such as ``rvt_layout.RvtSequence``."""

    def images(self, first: int, last: int) -> Images:
        """Images ``first`` to ``last`` (not included): [last − first, C, H, W] uint8."""

    def read_images(self, start_us: int, end_us: int) -> tuple[Images, NDArray[np.int64]]:
        """Images whose windows end in ``(start_us, end_us]``, and the times at which they end."""


#: From the index of a recording and a rate to labels; None if it has none at that rate.
LabelsOf = Callable[[int, float], Labels | None]


class WindowRequest(NamedTuple):
    """Where the events of one window come from."""

    recording: int
    transform: Transform | None  #: of the frame
    window_index: int  #: in its clip; it decides which rectangle is erased


class WindowRequests(NamedTuple):
    """W windows whose events are on the device; small, so that workers can send them to the training process."""

    windows: NDArray[np.int64]  #: [W, 2] start and end, µs on the recording's clock
    recording: NDArray[np.int64]  #: [W] index; -1 for a window without events
    map: NDArray[np.int64]  #: [W] row of ``maps``; -1 if the frame stays as it is
    maps: NDArray[np.float64]  #: [M, 2, 3] of the frame
    holes: NDArray[np.int64]  #: [W, 4] x1 y1 x2 y2 of the pixels that are erased

    @classmethod
    def of(cls, pairs: Iterable[tuple[Window, WindowRequest | None]]) -> WindowRequests:
        """Collect windows in their order; None for a window without events."""
        windows, recording, chosen, holes = [], [], [], []
        maps: dict[Any, int] = {}
        for window, request in pairs:
            windows.append((window.start_us, window.end_us))
            recording.append(-1 if request is None else request.recording)
            transform = None if request is None else request.transform
            hole = None
            if request is not None and transform is not None and transform.erasing is not None:
                hole = transform.erasing.rectangle(transform.sensor, request.window_index)
            holes.append(hole or NO_HOLE)
            if transform is None or transform.is_identity:
                chosen.append(-1)
            else:
                chosen.append(maps.setdefault(transform.matrix, len(maps)))
        spans, recordings, rows, empty = (np.array(each, np.int64) for each in (windows, recording, chosen, holes))
        return cls(spans, recordings, rows, np.array(list(maps), np.float64).reshape(-1, 2, 3), empty)


class TeacherPart(NamedTuple):
    """T' · B canonical windows of the B rows of a batch, time-major; the teacher starts with a reset state."""

    events: EventBatch | WindowRequests
    steps: int  #: T', the same for all rows
    ends_us: NDArray[np.int64]  #: [T', B] end of each window; -1 in an empty row
    shared: NDArray[np.int64]  #: [M, 2] rows t · B + b of the student and t' · B + b of the teacher that end together

    def inputs(self, device: str | torch.device) -> EventBatch:
        """The input of a detector, on its device."""
        if isinstance(self.events, WindowRequests):
            raise FateError("a batch without its events was given; ResidentEvents.complete adds them")
        return self.events.to(device, non_blocking=True)

    def pin_memory(self) -> TeacherPart:
        """Copy the events to pinned memory."""
        events = self.events
        return self if isinstance(events, WindowRequests) else self._replace(events=events.pin_memory())


class ClipBatch(NamedTuple):
    """T · B windows of B clips, time-major: the first window of every clip comes first."""

    #: images [T · B, 20, H, W] uint8 for a dataset of histograms; requests if all events are on the device
    events: EventBatch | Tensor | WindowRequests
    labels: list[Labels | None]  #: of each window; None if it is not labelled
    steps: int  #: T
    clips: list[Clip]  #: B
    begins: Tensor  #: [B] bool, whether the state is reset before the first window
    ends_us: NDArray[np.int64]  #: [T, B] end of each window; -1 for padding
    teacher: TeacherPart | None = None  #: canonical windows over the same time, if a teacher needs them

    def pin_memory(self) -> ClipBatch:
        """Copy the events to pinned memory; the data loader calls it."""
        if isinstance(self.events, WindowRequests):
            return self
        teacher = None if self.teacher is None else self.teacher.pin_memory()
        return self._replace(events=self.events.pin_memory(), teacher=teacher)

    def inputs(self, device: str | torch.device) -> EventBatch | Tensor:
        """The input of a detector, on its device: events, or images as float32."""
        if isinstance(self.events, WindowRequests):
            raise FateError("a batch without its events was given; ResidentEvents.complete adds them")
        moved = self.events.to(device, non_blocking=True)
        return moved.float() if isinstance(moved, Tensor) else moved
