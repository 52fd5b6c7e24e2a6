"""The outputs of a detection head, and its targets.

N is the number of windows: T steps of B streams, time-major (row t · B + b). Boxes are xyxy in pixels of the padded
frame, which has the same origin as the sensor.

Training on a GPU is fast as long as the CPU runs ahead of it. Reading a value from the GPU (``.item()``, a boolean
index, a copy from pageable memory) makes the CPU wait. So targets are built and checked on the CPU, and all boxes are
copied from pinned memory at once (``FlatTargets``). Losses then depend only on shapes, which the CPU knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fate.errors import FateError
from fate.models.boxes import cxcywh_from_xyxy


class Outputs(NamedTuple):
    """Q raw predictions for each of N windows, before any threshold or NMS."""

    boxes: Tensor  #: [N, Q, 4] xyxy, pixels
    class_logits: Tensor  #: [N, Q, classes]
    objectness: Tensor | None = None  #: [N, Q] logits; None if the head has no objectness (DETR)
    training: Any = None  #: values that the loss of this head needs; None in inference


class Targets(NamedTuple):
    """The M ground-truth or generated boxes of one window, and its U neutral boxes; M and U may be 0."""

    boxes: Tensor  #: [M, 4] xyxy, pixels
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v: 1 for ground truth, less for generated labels
    neutral: Tensor  #: [U, 4] xyxy, pixels: predictions inside these boxes are not background

    @staticmethod
    def of(boxes: Tensor, class_ids: Tensor, weights: Tensor | None = None, neutral: Tensor | None = None) -> Targets:
        """Build targets on the CPU, where the loss checks all windows at once.

        By default, weights are 1 and there are no neutral boxes.
        """
        boxes = boxes.reshape(-1, 4).float()
        weights = torch.ones(len(boxes), device=boxes.device) if weights is None else weights.float()
        if not len(boxes) == len(class_ids) == len(weights):
            raise FateError(
                f"{len(boxes)} boxes, {len(class_ids)} class ids and {len(weights)} weights were given;"
                " expected as many of each"
            )
        neutral = boxes.new_zeros(0, 4) if neutral is None else neutral.reshape(-1, 4).float()
        return Targets(boxes, class_ids.long(), weights, neutral)


class FlatTargets(NamedTuple):
    """The M boxes of N windows, concatenated."""

    boxes: Tensor  #: [M, 4] cxcywh in fractions of the frame; xyxy in pixels if no frame was given
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v
    window: Tensor  #: [M] int64
    box_index: Tensor  #: [M] int64 index among the boxes of the window
    counts: tuple[int, ...]  #: number of boxes of each window
    #: [N, U, 4] neutral boxes of each window, like ``boxes``, padded with boxes without area; None if there are none
    neutral: Tensor | None = None

    @staticmethod
    def of(
        targets: Sequence[Targets], frame: tuple[int, int] | None, classes: int, device: torch.device
    ) -> FlatTargets:
        """Check the targets of N windows and move them to a device; those on a GPU are copied to the CPU first.

        Args:
            targets: boxes of N windows in pixels.
            frame: (rows, columns) of the padded frame in pixels; None keeps boxes as they are.
            classes: number of classes.
            device: where the result is needed.
        """
        counts = tuple(target.boxes.shape[0] for target in targets)  # len() takes three times as long
        neutral = _padded_neutral(targets)
        window, index = _window_and_index(counts)
        boxes, class_ids, weights = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        if targets:
            columns = tuple(zip(*targets, strict=True))[:3]
            boxes, class_ids, weights = (torch.cat(parts).cpu() for parts in columns)
        check_class_ids(class_ids, classes)
        boxes, weights = boxes.float(), weights.float()
        ordered = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1)
        sound = ordered & boxes.isfinite().all(dim=1) & weights.isfinite() & (weights >= 0)
        if not bool(sound.all()):
            bad = int(sound.int().argmin())
            raise FateError(
                f"box {int(index[bad])} of labelled window {int(window[bad])} is {boxes[bad].tolist()} with weight"
                f" {float(weights[bad]):g}; expected finite x1, y1, x2, y2 with x2 ≥ x1 and y2 ≥ y1, and a finite"
                " weight of 0 or more"
            )
        if frame is not None:
            size = torch.tensor([frame[1], frame[0], frame[1], frame[0]])
            boxes = cxcywh_from_xyxy(boxes / size)
            neutral = None if neutral is None else cxcywh_from_xyxy(neutral / size)
        # All columns in one table, moved by one copy; float32 represents small integers exactly.
        others = torch.stack([weights, class_ids.float(), window.float(), index.float()], dim=1)
        table = to_device(torch.cat([boxes, others], dim=1), device)
        class_ids, window, index = table[:, 5:].long().unbind(1)
        neutral = None if neutral is None else to_device(neutral, device)
        return FlatTargets(table[:, :4], class_ids, table[:, 4], window, index, counts, neutral)

    def padded(self, column: Tensor, filling: int = 0, least: int = 0) -> Tensor:
        """[M, ...] to [N, most boxes of a window, at least ``least``, ...], padded with ``filling``."""
        table = column.new_full((len(self.counts), max((least, *self.counts)), *column.shape[1:]), filling)
        table[self.window, self.box_index] = column
        return table


def _padded_neutral(targets: Sequence[Targets]) -> Tensor | None:
    """[N, U, 4] neutral boxes of N windows on the CPU, padded with zeros; None if no window has any."""
    counts = tuple(target.neutral.shape[0] for target in targets)
    if not any(counts):
        return None
    boxes = torch.cat([target.neutral for target in targets]).cpu()
    sound = (boxes[:, 2:] >= boxes[:, :2]).all(dim=1) & boxes.isfinite().all(dim=1)
    window, index = _window_and_index(counts)
    if not bool(sound.all()):
        bad = int(sound.int().argmin())
        raise FateError(
            f"neutral box {int(index[bad])} of labelled window {int(window[bad])} is {boxes[bad].tolist()}; expected"
            " finite x1, y1, x2, y2 with x2 ≥ x1 and y2 ≥ y1"
        )
    table = torch.zeros(len(counts), max(counts), 4)
    table[window, index] = boxes
    return table


def _window_and_index(counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Window [M] and index in its window [M], int64, of the M boxes of windows with ``counts`` boxes."""
    window = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))  # torch would start all its threads
    return window, torch.arange(len(window)) - torch.tensor([0, *accumulate(counts)][:-1], dtype=torch.int64)[window]


def check_class_ids(class_ids: Tensor, classes: int, names: Sequence[str] = ()) -> None:
    """Refuse class ids [M] outside 0 to ``classes`` - 1."""
    if len(class_ids):
        least, greatest = torch.stack(class_ids.aminmax()).tolist()
        if least < 0 or greatest >= classes:
            known = f" ({', '.join(names)})" if names else f", since this head knows {classes}"
            raise FateError(
                f"targets of class ids {least} to {greatest} were given; expected 0 to {classes - 1}{known}"
            )


def mean_over_processes(count: Tensor) -> Tensor:
    """Average a count [] over all training processes; the sum over processes counts as at least 1.

    All processes must call this function, even with a count of 0. Losses are divided by the result, so that the
    averaged gradients equal those of one process with the whole batch.
    """
    count = count.float()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count.clamp(min=1)
    count = count.clone()
    torch.distributed.all_reduce(count)
    return count.clamp(min=1) / torch.distributed.get_world_size()


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device without waiting for a GPU."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
