"""Boxes as tensors [..., 4]: their two formats, and the overlap of two boxes.

``xyxy`` is (left, top, right, bottom), used everywhere; ``cxcywh`` is (centre x, centre y, width, height), used inside
heads. Any unit, device and float type is supported, and all functions are differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fate.boxes.labels import NEUTRAL_SHARE

#: Avoids 0 / 0: two boxes without area have an IoU of 0.
SMALLEST_AREA = 1e-16


def xyxy_from_cxcywh(boxes: Tensor) -> Tensor:
    """[..., 4] → [..., 4]."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], dim=-1)


def cxcywh_from_xyxy(boxes: Tensor) -> Tensor:
    """[..., 4] → [..., 4]."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def areas(boxes: Tensor) -> Tensor:
    """[..., 4] xyxy → [...]."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def clip_boxes(boxes: Tensor, size: Sequence[int]) -> Tensor:
    """[..., 4] xyxy in pixels → the part of each box inside a frame of ``size`` (rows, columns)."""
    rows, columns = size
    x, y = boxes[..., 0::2].clamp(0, columns), boxes[..., 1::2].clamp(0, rows)
    return torch.stack([x, y], dim=-1).flatten(-2)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of pairs of boxes: [..., 4] and [..., 4] xyxy → [...], 0 to 1."""
    common, union = intersection_and_union(first, second)
    return common / union.clamp(min=SMALLEST_AREA)


def giou(first: Tensor, second: Tensor) -> Tensor:
    """Generalised IoU of pairs of boxes: [..., 4] and [..., 4] xyxy → [...], -1 to 1 (Rezatofighi et al., 2019).

    This is IoU minus the share of the smallest enclosing box that neither box covers. It has a gradient also if the
    boxes do not overlap.
    """
    common, union = intersection_and_union(first, second)
    low = torch.minimum(first[..., :2], second[..., :2])
    high = torch.maximum(first[..., 2:], second[..., 2:])
    around = areas(torch.cat([low, high], dim=-1)).clamp(min=SMALLEST_AREA)
    return common / union.clamp(min=SMALLEST_AREA) - (around - union) / around


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU of each box with each other: [..., M, 4] and [..., Q, 4] xyxy → [..., M, Q]."""
    return iou(first[..., :, None, :], second[..., None, :, :])


def pairwise_giou(first: Tensor, second: Tensor) -> Tensor:
    """Generalised IoU of each box with each other: [..., M, 4] and [..., Q, 4] xyxy → [..., M, Q]."""
    return giou(first[..., :, None, :], second[..., None, :, :])


def lie_in_neutral(boxes: Tensor, neutral: Tensor) -> Tensor:
    """Whether each box has the share ``NEUTRAL_SHARE`` of its area, or more, in one neutral box.

    Boxes [..., Q, 4] and neutral boxes [..., U, 4] xyxy → [..., Q] bool. A box without area lies in none, and no box
    lies in a neutral box without area.
    """
    x1, y1, x2, y2 = boxes[..., :, None, :].unbind(-1)
    left, top, right, bottom = neutral[..., None, :, :].unbind(-1)
    width = (torch.minimum(x2, right) - torch.maximum(x1, left)).clamp(min=0)
    height = (torch.minimum(y2, bottom) - torch.maximum(y1, top)).clamp(min=0)
    common = (width * height).amax(dim=-1)
    return (common > 0) & (common >= NEUTRAL_SHARE * areas(boxes))


def intersection_and_union(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Areas of intersection and union: [..., 4] and [..., 4] xyxy → [...] and [...]."""
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    width, height = (high - low).clamp(min=0).unbind(-1)
    common = width * height
    return common, areas(first) + areas(second) - common
