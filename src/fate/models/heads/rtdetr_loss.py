"""The loss of RT-DETR (Zhao et al. 2024) over matched predictions: class, box (L1) and GIoU, with weights 1, 5 and 2.

The class term is VariFocal (Zhang et al. 2021): a matched prediction should say, for its class, the IoU it reaches;
every other number should be 0, and counts by 0.75 · p². All three are computed for every layer of the decoder, for the
chosen proposals of the encoder (each matched anew), and for the denoising queries of every layer (whose matches are
known).

Sums are over all windows, and divided by the number of boxes: of all processes on average, at least 1. A box of weight
w_v counts w_v times in each of its terms (in the class term: in that of its prediction and class), but as one whole
box in the divisor. With all weights 1 this is the public loss.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fate.models.boxes import giou, iou, xyxy_from_cxcywh
from fate.models.heads.matching import Matches, match
from fate.models.heads.targets import FlatTargets, mean_over_processes

#: The terms in their order, and what each counts.
WEIGHTS = {"class": 1.0, "box": 5.0, "giou": 2.0}
#: Of VariFocal: how much a number that should be 0 counts, and how little small ones do.
ALPHA, GAMMA = 0.75, 2.0


class Predictions(NamedTuple):
    """R sets of predictions for N windows; one set for each layer."""

    logits: Tensor  #: [R, N, Q, classes]
    boxes: Tensor  #: [R, N, Q, 4] cxcywh, fractions of the frame


class ForLoss(NamedTuple):
    """What a decoder keeps for its loss."""

    frame: tuple[int, int]  #: (rows, columns) in pixels
    layers: Predictions
    encoder: Predictions  #: one set: the proposals that became queries
    denoising: Predictions | None = None
    denoising_matches: Matches | None = None  #: [1, K], the same for each layer
    denoising_groups: int = 1


def loss(outputs: ForLoss, targets: FlatTargets) -> dict[str, Tensor]:
    """Weighted terms; their sum is the loss.

    Twelve, whatever the batch holds, so that processes can average them: ``class``, ``box`` and ``giou`` of the last
    layer, and the same with ``_aux`` (all layers before it together), ``_encoder`` and ``_denoising``. In float32.
    """
    with torch.autocast(outputs.layers.logits.device.type, enabled=False):
        both = Predictions(*(torch.cat(parts) for parts in zip(outputs.layers, outputs.encoder, strict=True)))
        # written there: a copy would be waited for
        boxes = mean_over_processes(torch.full((), float(len(targets.boxes)), device=both.logits.device))
        terms = set_losses(both, match(*both, targets), targets) / boxes  # [3, layers + 1]
        noisy = terms.new_zeros(3)
        if outputs.denoising is not None and outputs.denoising_matches is not None:
            every_layer = (column.expand(len(outputs.denoising.logits), -1) for column in outputs.denoising_matches)
            noisy = set_losses(outputs.denoising, Matches(*every_layer), targets).sum(dim=1)
            noisy = noisy / (boxes * outputs.denoising_groups)
        groups = {
            "": terms[:, -2],
            "_aux": terms[:, :-2].sum(dim=1),
            "_encoder": terms[:, -1],
            "_denoising": noisy,
        }
        return {
            name + group: weight * term
            for group, three in groups.items()
            for (name, weight), term in zip(WEIGHTS.items(), three.unbind(), strict=True)
        }


def set_losses(predictions: Predictions, matches: Matches, targets: FlatTargets) -> Tensor:
    """[3, R] class, box and GIoU terms of each set of predictions, summed over all windows, without their weights."""
    logits, boxes = predictions.logits.float(), predictions.boxes.float()
    of_set = torch.arange(len(logits), device=logits.device)[:, None]
    at = (of_set, matches.window, matches.query)
    truth, weight = targets.boxes[matches.target], targets.weights[matches.target]
    given = boxes[at]  # [R, K, 4]
    corners, true_corners = xyxy_from_cxcywh(given), xyxy_from_cxcywh(truth)
    reached = iou(corners, true_corners).detach()

    at_class = (*at, targets.class_ids[matches.target])
    target_scores = torch.zeros_like(logits).index_put(at_class, reached)
    importance = (ALPHA * logits.detach().sigmoid() ** GAMMA).index_put(at_class, weight * reached)
    of_class = functional.binary_cross_entropy_with_logits(logits, target_scores, importance, reduction="none")

    of_box = (given - truth).abs().sum(dim=-1) * weight
    of_giou = (1 - giou(corners, true_corners)) * weight
    return torch.stack([of_class.sum(dim=(1, 2, 3)), of_box.sum(dim=1), of_giou.sum(dim=1)])
