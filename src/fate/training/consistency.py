"""The consistency loss of the mean teacher (section 3.2 of the paper, L_cons).

    L_cons = 1/|U| Σ_i 1/|A_i| Σ_(u,v)∈A_i [ KL(q_t,v ‖ q_s,u) + ‖b_t,v − b_s,u‖₁ ]

U are the windows that teacher (canonical rate) and student (its own rate) both end at the same time, A_i the pairs of
their predictions by Hungarian matching. Where the paper is silent:

- Only predictions of the teacher above a score are used, after non-maximum suppression if the head needs it. The others
  are background, which the student must not learn as boxes. All predictions of the student take part in the matching.
- q is the probability of each class: σ(class), or σ(objectness) · σ(class) for YOLOX. Both heads treat classes as
  independent binary decisions, so KL is summed over classes; a softmax would ignore the confidence, and be constant for
  a detector of one class.
- Boxes are (centre, size) over the frame's size, as in DETR's own L1; pairs are found with DETR's costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fate.models.boxes import cxcywh_from_xyxy, pairwise_giou
from fate.models.heads.matching import cheapest_pairs
from fate.models.nms import Candidates, suppress
from fate.models.outputs import Outputs, to_device

#: Weights of the matching's costs: class, L1, GIoU (RT-DETR).
COSTS = (2.0, 5.0, 2.0)
#: Number of predictions of the teacher that are used in a window.
MAX_PREDICTIONS = 100
#: Probabilities stay this far from 0 and 1.
EDGE = 1e-6


class TeacherPredictions(NamedTuple):
    """Predictions of the teacher for N windows, in M slots, of which some are empty."""

    boxes: Tensor  #: [N, M, 4] xyxy, pixels
    probabilities: Tensor  #: [N, M, classes]
    there: Tensor  #: [N, M] bool


def probabilities(outputs: Outputs) -> Tensor:
    """q [N, Q, classes]: the probability of each class for each prediction."""
    of_class = outputs.class_logits.float().sigmoid()
    return of_class if outputs.objectness is None else of_class * outputs.objectness.float().sigmoid()[..., None]


@torch.no_grad()
def select_teacher_predictions(outputs: Outputs, score: float, max_overlap: float = 0.45) -> TeacherPredictions:
    """The predictions of the teacher with at least ``score``, best first, without duplicates."""
    chances = probabilities(outputs)
    confidences, class_ids = chances.max(-1)
    order = confidences.argsort(dim=1, descending=True, stable=True)[:, :MAX_PREDICTIONS]
    confidences, class_ids = confidences.gather(1, order), class_ids.gather(1, order)
    boxes = outputs.boxes.float().gather(1, order[..., None].expand(-1, -1, 4))
    chances = chances.gather(1, order[..., None].expand(-1, -1, chances.shape[-1]))
    there = confidences >= score
    if outputs.objectness is not None:
        ranked = torch.where(there, confidences, -1.0)
        there = suppress(Candidates(boxes, ranked, confidences, class_ids, None), max_overlap)
    most = int(there.sum(1).max()) if len(there) else 0
    first = there.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return TeacherPredictions(
        boxes.gather(1, first[..., None].expand(-1, -1, 4)),
        chances.gather(1, first[..., None].expand(-1, -1, chances.shape[-1])),
        there.gather(1, first),
    )


@torch.no_grad()
def match(teacher: TeacherPredictions, student: Outputs, size: Sequence[int]) -> Tensor:
    """Match each prediction of the teacher with one of the student, at the least cost in each of N windows.

    ``size`` is (height, width) of the padded frame in pixels. Returns [3, K] for K pairs: the window, the slot of the
    teacher, and the prediction of the student.
    """
    chances = probabilities(student)
    of_class = -(teacher.probabilities @ chances.transpose(1, 2))
    ours, theirs = relative(student.boxes, size), relative(teacher.boxes, size)
    of_box = torch.cdist(theirs, ours, p=1)
    of_giou = -pairwise_giou(teacher.boxes, student.boxes.float())
    cost = sum(weight * part for weight, part in zip(COSTS, (of_class, of_box, of_giou), strict=True))
    counts = teacher.there.sum(1).tolist()
    pairs = cheapest_pairs(torch.nan_to_num(torch.as_tensor(cost)), counts)
    return to_device(torch.from_numpy(np.stack([pairs.window, pairs.row, pairs.column])), ours.device)


def consistency(
    teacher: TeacherPredictions, student: Outputs, size: Sequence[int], windows: Tensor | float
) -> dict[str, Tensor]:
    """KL and L1 over matched pairs: the mean over the pairs of a window, summed over windows, divided by |U|.

    Args:
        teacher: of N windows, without gradients.
        student: of the same windows.
        size: (height, width) of the padded frame, pixels.
        windows: |U|, by which the sum is divided: N, or its mean over processes that train together.
    """
    window, theirs, ours = match(teacher, student, size)
    share = 1.0 / torch.bincount(window, minlength=max(len(teacher.there), 1)).clamp(min=1)
    weight = share[window] / windows
    objectness = None if student.objectness is None else student.objectness[window, ours]
    of_class = divergence(teacher.probabilities[window, theirs], student.class_logits[window, ours], objectness)
    difference = relative(student.boxes[window, ours], size) - relative(teacher.boxes[window, theirs], size)
    of_box = difference.abs().sum(-1)
    return {"consistency_class": (of_class * weight).sum(), "consistency_box": (of_box * weight).sum()}


def divergence(teacher_probabilities: Tensor, class_logits: Tensor, objectness: Tensor | None = None) -> Tensor:
    """KL divergence of binary decisions of the teacher and the student, summed over classes.

    The probabilities of the teacher are [K, classes], the logits of the student [K, classes] and [K]; returns [K].
    """
    yes = functional.logsigmoid(class_logits.float())
    if objectness is None:
        no = functional.logsigmoid(-class_logits.float())
    else:
        yes = yes + functional.logsigmoid(objectness.float())[:, None]
        no = torch.log1p(-yes.exp().clamp(max=1 - EDGE))
    p = teacher_probabilities.clamp(EDGE, 1 - EDGE)
    return (p * (p.log() - yes) + (1 - p) * ((1 - p).log() - no)).sum(-1)


def relative(boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Boxes xyxy [..., 4] in pixels as centre and size over the frame's."""
    height, width = size
    return cxcywh_from_xyxy(boxes.float()) / boxes.new_tensor([width, height, width, height], dtype=torch.float32)
