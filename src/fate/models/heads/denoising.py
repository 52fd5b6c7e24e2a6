"""Contrastive denoising (Zhang et al. 2023, DINO): additional training queries whose target is known.

Early in training the prediction that is matched with a box changes from step to step. Denoising queries have a fixed
target. In training the decoder gets several groups of them before its own queries. A group holds every true box of the
window twice: once slightly moved, which must be predicted as the box again (positive), and once moved further, which
must be predicted as background (negative). Some get a random class. A mask prevents attention between groups, and from
the decoder's own queries to the groups, which would reveal the targets.

All noise is drawn from torch's generator of the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fate.models.boxes import cxcywh_from_xyxy, xyxy_from_cxcywh
from fate.models.heads.matching import Matches
from fate.models.heads.targets import FlatTargets

#: Coordinates c and 1 - c are at least this before they become logits.
SMALLEST = 1e-5


class DenoisingQueries(NamedTuple):
    """D queries for each of N windows: ``groups`` × (positives, negatives) × the most boxes of a window."""

    class_ids: Tensor  #: [N, D] int64; the number of classes for padding
    box_logits: Tensor  #: [N, D, 4] cxcywh, as logits of fractions of the frame
    visible: Tensor  #: [D + Q, D + Q] bool: whether the query of the row attends to the query of the column
    matches: Matches  #: [1, K] the positives and their boxes
    groups: int


def denoising_queries(
    targets: FlatTargets,
    classes: int,
    queries: int,
    num_boxes: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DenoisingQueries | None:
    """Make denoising queries for a decoder with Q = ``queries`` of its own; None if no window has a box.

    Args:
        targets: boxes of N windows, in fractions of the frame.
        classes: number of classes.
        queries: Q.
        num_boxes: about how many positives there are in all groups together; there is at least one group.
        label_noise: twice the probability that a query gets a random class (which may be the true one).
        box_noise: largest shift of an edge of a positive, in halves of the box's width or height; edges of negatives
            are shifted by once to twice as much.
    """
    most = max(targets.counts, default=0)
    if most == 0:
        return None
    groups = max(1, num_boxes // most)
    copies = 2 * groups
    class_ids = targets.padded(targets.class_ids, filling=classes).repeat(1, copies)
    boxes = targets.padded(targets.boxes).repeat(1, copies, 1)
    negative = torch.arange(copies * most, device=boxes.device) // most % 2 == 1

    wrong = torch.rand(class_ids.shape, device=boxes.device) < label_noise / 2
    other = torch.randint(classes, class_ids.shape, device=boxes.device)
    class_ids = torch.where(wrong & (class_ids < classes), other, class_ids)

    sign = torch.randint(2, boxes.shape, device=boxes.device) * 2 - 1
    amount = torch.rand(boxes.shape, device=boxes.device) + negative[:, None]
    half = boxes[..., 2:].repeat(1, 1, 2) * (box_noise / 2)
    corners = (xyxy_from_cxcywh(boxes) + sign * amount * half).clamp(0, 1)
    moved = cxcywh_from_xyxy(corners).clamp(0, 1)  # a box whose edges have crossed gets the smallest size
    box_logits = (moved.clamp(min=SMALLEST) / (1 - moved).clamp(min=SMALLEST)).log()

    own = torch.arange(groups, device=boxes.device)[:, None] * (2 * most) + targets.box_index  # [groups, M]
    window, target = targets.window.expand_as(own), torch.arange(len(targets.boxes), device=own.device).expand_as(own)
    matches = Matches(*(column.reshape(1, -1) for column in (window, own, target)))
    return DenoisingQueries(class_ids, box_logits, visibility(groups, 2 * most, queries, boxes.device), matches, groups)


def visibility(groups: int, of_group: int, queries: int, device: torch.device) -> Tensor:
    """[D + Q, D + Q] attention mask: every query attends to its own group and to the decoder's own queries."""
    group = (torch.arange(groups * of_group + queries, device=device) // of_group).clamp(max=groups)
    return (group[:, None] == group) | (group == groups)
