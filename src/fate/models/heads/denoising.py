"""Contrastive denoising (Zhang et al. 2023, DINO): extra queries that start beside the truth and must find back to it.

Which prediction is matched with which box changes from step to step early in training; these queries always know. In
training the decoder gets, before its own queries, several groups of them. A group holds every box of the window twice:
once slightly moved, which must become the box again (positive), and once moved further, which must say that nothing is
there (negative). Some carry a wrong class. A mask keeps groups from seeing one another, and the decoder's own queries
from seeing any of them: else they would read the answer.

All noise is drawn from torch's generator of the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fate.models.boxes import cxcywh_from_xyxy, xyxy_from_cxcywh
from fate.models.heads.matching import Matches
from fate.models.heads.targets import FlatTargets

#: Coordinates, and what is left of 1 beside them, are at least this before they become logits.
SMALLEST = 1e-5


class DenoisingQueries(NamedTuple):
    """D queries for each of N windows: ``groups`` × (positives, negatives) × the most boxes a window has."""

    class_ids: Tensor  #: [N, D] int64; the number of classes where a window has no such box
    box_logits: Tensor  #: [N, D, 4] cxcywh, as logits of fractions of the frame
    visible: Tensor  #: [D + Q, D + Q] bool: whether the query of the row may look at that of the column
    matches: Matches  #: [1, K]: the positives, and the boxes they come from
    groups: int


def denoising_queries(
    targets: FlatTargets,
    classes: int,
    queries: int,
    num_boxes: int = 100,
    label_noise: float = 0.5,
    box_noise: float = 1.0,
) -> DenoisingQueries | None:
    """The queries to stand before the decoder's own Q ``queries``; None if no window has a box.

    Args:
        num_boxes: about how many boxes of one kind there are in all groups together; there is at least one group.
        label_noise: twice the chance that a query gets a random class (which may be the true one).
        box_noise: how far edges move, in halves of the box's width and height: up to once that for positives, once to
            twice that for negatives.
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
    # A box turned inside out by its noise has a negative side, and so becomes the smallest there is.
    moved = cxcywh_from_xyxy(corners).clamp(0, 1)
    box_logits = (moved.clamp(min=SMALLEST) / (1 - moved).clamp(min=SMALLEST)).log()

    own = torch.arange(groups, device=boxes.device)[:, None] * (2 * most) + targets.box_index  # [groups, M]
    window, target = targets.window.expand_as(own), torch.arange(len(targets.boxes), device=own.device).expand_as(own)
    return DenoisingQueries(
        class_ids=class_ids,
        box_logits=box_logits,
        visible=visibility(groups, 2 * most, queries, boxes.device),
        matches=Matches(*(column.reshape(1, -1) for column in (window, own, target))),
        groups=groups,
    )


def visibility(groups: int, of_group: int, queries: int, device: torch.device) -> Tensor:
    """[D + Q, D + Q] who may look at whom: each at its own group, and all at the decoder's own queries."""
    group = (torch.arange(groups * of_group + queries, device=device) // of_group).clamp(max=groups)
    return (group[:, None] == group) | (group == groups)
