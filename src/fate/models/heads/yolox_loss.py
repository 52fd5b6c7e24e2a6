"""SimOTA, the assignment of predictions to boxes, and the loss of YOLOX.

SimOTA (Ge et al., 2021) assigns to each true box the k predictions that fit it best. k depends on how well they fit: a
box that many predictions cover well gets many. Only anchors near the centre of some true box are candidates.

1. Candidates: anchors whose centre is less than 1.5 strides from the centre of some box, in x and in y.
2. Cost of a candidate for a box: binary cross-entropy of √(class · objectness) against the box's class, summed over
   classes, + 3 · (-ln IoU), + 10⁶ where it is a candidate of other boxes only.
3. k of a box: the sum of its ten largest IoUs, rounded down, at least 1. It claims its k cheapest candidates.
4. An anchor that several boxes claim belongs to the box, of all, for which it is cheapest.

All windows are handled at once, their boxes padded to the same number, in float32 even inside autocast; the assignment
has no gradient. The public code (RVT) handles one window at a time, with the same result. No shape depends on a value,
so a GPU is never waited for: predictions without a box have weight 0 instead of being removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fate.errors import FateError
from fate.models.boxes import iou, pairwise_iou
from fate.models.heads.targets import FlatTargets, mean_over_processes
from fate.models.outputs import Outputs, Targets

RADIUS = 1.5  #: strides around the middle of a box in which anchors are candidates
IOU_COST = 3.0  #: weight of -ln IoU in the cost
FOREIGN_COST = 1e6  #: cost of an anchor outside the box's own radius
MOST_ANCHORS = 10  #: per box
IOU_WEIGHT = 5.0  #: of the IoU term in the loss


class Anchors(NamedTuple):
    """The cells behind Q predictions, of any window."""

    centres: Tensor  #: [Q, 2] x, y in pixels
    strides: Tensor  #: [Q] pixels


class PaddedTargets(NamedTuple):
    """The boxes of N windows, padded to M, which is at least 1."""

    boxes: Tensor  #: [N, M, 4] xyxy, pixels
    class_ids: Tensor  #: [N, M] int64
    weights: Tensor  #: [N, M] w_v
    real: Tensor  #: [N, M] bool; false: padding

    @staticmethod
    def of(targets: Sequence[Targets], classes: int, device: torch.device) -> PaddedTargets:
        """Check the targets of N windows, move them to a device and pad them."""
        flat = FlatTargets.of(targets, None, classes, device)
        real = torch.ones_like(flat.class_ids, dtype=torch.bool)
        columns = (flat.boxes, flat.class_ids, flat.weights, real)
        return PaddedTargets(*(flat.padded(column, least=1) for column in columns))


class Assignment(NamedTuple):
    """The box assigned to each prediction."""

    matched: Tensor  #: [N, Q] bool; false: background
    box: Tensor  #: [N, Q] int64 index among the window's boxes; means something where matched
    iou: Tensor  #: [N, Q] with that box


def loss(outputs: Outputs, targets: Sequence[Targets]) -> dict[str, Tensor]:
    """YOLOX's loss of N windows (0 too), as three terms.

    "iou": 5 · Σ (1 - IoU²) and "class": Σ cross-entropy against (one-hot · IoU), over the matched predictions;
    "objectness": Σ cross-entropy over all predictions. Each sum is divided by the number of matched predictions (at
    least 1; their mean over processes that train together). A box's weight w_v multiplies what its matched predictions
    add; the divisor leaves weights out, so that a doubtful box pulls less and does not make the others pull more.
    """
    anchors, objectness = outputs.training, outputs.objectness
    if not isinstance(anchors, Anchors) or objectness is None:
        raise FateError(
            "outputs without anchors were given to the loss; expected those of a YOLOX head in training mode,"
            " or called with targets"
        )
    if len(targets) != len(outputs.boxes):
        raise FateError(f"targets of {len(targets)} windows were given for {len(outputs.boxes)}; expected as many")
    device = outputs.boxes.device
    with torch.autocast(device.type, enabled=False):
        boxes, class_logits, objectness = outputs.boxes.float(), outputs.class_logits.float(), objectness.float()
        true = PaddedTargets.of(targets, class_logits.shape[-1], device)
        matched, box, reached = assign(boxes, class_logits, objectness, anchors, true)
        weight = true.weights.gather(1, box)  # [N, Q], as everything below
        of_matched = torch.where(matched, weight, 0.0)

        target_boxes = true.boxes.gather(1, box[:, :, None].expand(-1, -1, 4))
        # A prediction without a box is compared with what it would be given: its own numbers stay out of the gradient.
        overlap = iou(torch.where(matched[:, :, None], boxes, target_boxes), target_boxes)
        kinds = torch.arange(class_logits.shape[-1], device=device)
        class_target = (true.class_ids.gather(1, box)[:, :, None] == kinds) * reached[:, :, None]
        cross_entropy = partial(functional.binary_cross_entropy_with_logits, reduction="none")
        class_error = cross_entropy(class_logits, class_target).sum(-1)
        object_error = cross_entropy(objectness, matched.float())

        count = mean_over_processes(matched.sum())
        return {
            "iou": IOU_WEIGHT * (of_matched * (1 - overlap**2)).sum() / count,
            "objectness": (torch.where(matched, weight, 1.0) * object_error).sum() / count,
            "class": (of_matched * class_error).sum() / count,
        }


@torch.no_grad()
def assign(
    boxes: Tensor, class_logits: Tensor, objectness: Tensor, anchors: Anchors, targets: PaddedTargets
) -> Assignment:
    """SimOTA: predicted boxes [N, Q, 4] (xyxy in pixels, float32), logits [N, Q, classes] and [N, Q] → their boxes."""
    real = targets.real[:, :, None]
    middle = (targets.boxes[..., :2] + targets.boxes[..., 2:]) / 2  # [N, M, 2]
    distance = (anchors.centres - middle[:, :, None]).abs().amax(-1)
    near = (distance < RADIUS * anchors.strides) & real  # [N, M, Q]
    allowed = near.any(dim=1, keepdim=True) & real
    overlap = torch.where(allowed, pairwise_iou(targets.boxes, boxes), 0.0)
    cost = (
        _class_cost(class_logits, objectness, targets.class_ids)
        - IOU_COST * torch.log(overlap + 1e-8)
        + FOREIGN_COST * ~near
    )
    cost = torch.where(allowed, cost, torch.inf)

    most = min(MOST_ANCHORS, cost.shape[-1])
    dynamic_k = overlap.topk(most, dim=-1).values.sum(-1).int().clamp(min=1)  # [N, M]
    cheapest = cost.topk(most, dim=-1, largest=False)  # cheapest first
    taken = torch.arange(most, device=cost.device) < dynamic_k[:, :, None]
    taken &= cheapest.values.isfinite()
    claimed = torch.zeros_like(near).scatter(-1, cheapest.indices, taken)
    claims = claimed.sum(dim=1)
    box = torch.where(claims > 1, cost.argmin(dim=1), claimed.byte().argmax(dim=1))
    return Assignment(claims > 0, box, overlap.gather(1, box[:, None]).squeeze(1))


def _class_cost(class_logits: Tensor, objectness: Tensor, class_ids: Tensor) -> Tensor:
    """[N, M, Q] cross-entropy of √(class · objectness) against each box's class, summed over classes.

    Found once per class, not per box; logarithms end at -100, as in ``binary_cross_entropy``.
    """
    probability = (class_logits.sigmoid() * objectness.sigmoid()[:, :, None]).sqrt()
    if_this = -probability.log().clamp(min=-100)
    if_other = -torch.log1p(-probability).clamp(min=-100)
    cost = if_this + (if_other.sum(-1, keepdim=True) - if_other)  # [N, Q, classes]
    index = class_ids[:, :, None].expand(-1, -1, cost.shape[1])
    return cost.transpose(1, 2).gather(1, index)
