"""The outputs of a detection head, and its targets.

N is the number of windows: T steps of B streams, time-major (row t · B + b). Boxes are xyxy in pixels of the padded
frame, which has the same origin as the sensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fate.errors import FateError


class Outputs(NamedTuple):
    """Q raw predictions for each of N windows, before any threshold or NMS."""

    boxes: Tensor  #: [N, Q, 4] xyxy, pixels
    class_logits: Tensor  #: [N, Q, classes]
    objectness: Tensor | None = None  #: [N, Q] logits; None if the head has no objectness (DETR)
    training: Any = None  #: values that the loss of this head needs; None in inference


class Targets(NamedTuple):
    """The M ground-truth or generated boxes of one window; M may be 0."""

    boxes: Tensor  #: [M, 4] xyxy, pixels
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v: 1 for ground truth, less for generated labels

    @staticmethod
    def of(boxes: Tensor, class_ids: Tensor, weights: Tensor | None = None) -> Targets:
        """Build targets on the CPU, where the loss checks all windows at once; weights are 1 by default."""
        boxes = boxes.reshape(-1, 4).float()
        weights = torch.ones(len(boxes), device=boxes.device) if weights is None else weights.float()
        if not len(boxes) == len(class_ids) == len(weights):
            raise FateError(
                f"{len(boxes)} boxes, {len(class_ids)} class ids and {len(weights)} weights were given;"
                " expected as many of each"
            )
        return Targets(boxes, class_ids.long(), weights)
