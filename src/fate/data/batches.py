"""Batches of clips, as they are passed from loading to training and evaluation.

A batch holds the events of its windows, or requests for them if all events are on the device (:class:`WindowRequests`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.boxes.labels import Labels
from fate.data.clips import Clip
from fate.data.transforms import Matrix, Rectangle
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.window import Window

#: From the index of a recording and a rate to labels; None if it has none at that rate.
LabelsOf = Callable[[int, float], Labels | None]


class WindowRequest(NamedTuple):
    """Where the events of one window come from; the default is a window without events."""

    recording: int = -1
    matrix: Matrix | None = None  #: of the frame; None if the frame stays as it is
    hole: Rectangle = (0, 0, 0, 0)  #: x1 y1 x2 y2 of the pixels that are erased


class WindowRequests(NamedTuple):
    """W windows whose events are on the device; small, so that workers can send them to the training process."""

    windows: NDArray[np.int64]  #: [W, 2] start and end, µs on the recording's clock
    recording: NDArray[np.int64]  #: [W] index; -1 for a window without events
    map: NDArray[np.int64]  #: [W] row of ``maps``; -1 if the frame stays as it is
    maps: NDArray[np.float64]  #: [M, 2, 3] of the frame
    holes: NDArray[np.int64]  #: [W, 4] x1 y1 x2 y2 of the pixels that are erased

    @classmethod
    def of(cls, pairs: Sequence[tuple[Window, WindowRequest]]) -> WindowRequests:
        """Collect windows in their order."""
        matrices = dict.fromkeys(request.matrix for _, request in pairs if request.matrix is not None)
        rows: dict[Matrix | None, int] = {None: -1} | {matrix: row for row, matrix in enumerate(matrices)}
        return cls(
            np.array([(window.start_us, window.end_us) for window, _ in pairs], np.int64),
            np.array([request.recording for _, request in pairs], np.int64),
            np.array([rows[request.matrix] for _, request in pairs], np.int64),
            np.array(list(matrices), np.float64).reshape(-1, 2, 3),
            np.array([request.hole for _, request in pairs], np.int64),
        )


def _on_device(events: EventBatch | Tensor | WindowRequests, device: str | torch.device) -> Any:
    if isinstance(events, WindowRequests):
        raise FateError("a batch without its events was given; ResidentEvents.complete adds them")
    return events.to(device, non_blocking=True)


class TeacherPart(NamedTuple):
    """T' · B canonical windows of the B rows of a batch, time-major; the teacher starts with a reset state."""

    events: EventBatch | WindowRequests
    steps: int  #: T', the same for all rows
    ends_us: NDArray[np.int64]  #: [T', B] end of each window; -1 in an empty row
    shared: NDArray[np.int64]  #: [M, 2] rows t · B + b of the student and t' · B + b of the teacher that end together

    def inputs(self, device: str | torch.device) -> EventBatch:
        """The input of a detector, on its device."""
        batch: EventBatch = _on_device(self.events, device)
        return batch

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
        moved: EventBatch | Tensor = _on_device(self.events, device)
        return moved.float() if isinstance(moved, Tensor) else moved
