"""RT-DETR's decoder and loss (Zhao et al. 2024), as EvRT-DETR uses them.

    cells      every cell of three feature maps proposes a box around itself and scores it (the encoder's proposals)
    queries    the 300 best proposals: the feature of the cell is the query, its box the reference
    layer i    self-attention of the queries, deformable cross-attention to the maps around their boxes, refinement of
               the boxes; 6 layers
    scores     of the last layer; there is no NMS, since queries learn not to repeat each other

In training all layers are scored. Queries and boxes are detached at the decoder's input, and boxes between the layers;
but the loss of a layer's boxes also reaches the box head of the layer before ("look forward twice", Zhang et al. 2023).

**Contrastive denoising** (DINO, Zhang et al. 2023). Early in training the prediction that is matched with a box changes
from step to step. So the decoder gets additional training queries whose target is known, in several groups. A group
holds every true box of the window twice: once slightly moved, which must be predicted as the box again (positive), and
once moved further, which must be predicted as background (negative). Some get a random class. A mask prevents attention
between groups, and from the decoder's own queries to the groups, which would reveal the targets. All noise is drawn
from torch's generator of the device.

**Loss.** Class, box (L1) and GIoU terms of matched predictions, with weights 1, 5 and 2. The class term is VariFocal
(Zhang et al. 2021): the target of a matched prediction is, for its class, the IoU it reaches. All other targets are 0,
and their cross-entropy is weighted by 0.75 · p². The terms are computed for every decoder layer and for the encoder's
chosen proposals, each matched separately, and for the denoising queries of every layer, whose matches are known. Each
sum over all windows is divided by the number of boxes: the mean over all training processes, at least 1. The weight w_v
of a box multiplies its terms but does not change the divisor. With all weights 1 this is the public loss.

**Neutral boxes** (:mod:`fate.boxes.labels`) are not matched and get no denoising queries. A query without a box of
which at least half lies in a neutral box has no class term, so that it is not taught as background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.models.boxes import cxcywh_from_xyxy, giou, iou, lie_in_neutral, xyxy_from_cxcywh
from fate.models.heads.matching import Matches, match
from fate.models.layers.attention import PositionalSelfAttention
from fate.models.layers.conv import ConvNormAct
from fate.models.layers.deformable import DeformableAttention, at_least_float32
from fate.models.outputs import FlatTargets, Outputs, Targets, mean_over_processes

PRIOR = 0.01  #: initial probability of every class (Lin et al. 2017)
CELL_BOX = 0.05  #: side of a cell's initial box on the finest map, as a share of the frame; doubled from map to map
MARGIN = 0.01  #: a cell proposes nothing if a coordinate of its initial box is this close to 0 or 1
FARTHEST = math.log(1e5)  #: largest absolute logit of a coordinate, which keeps it between 1e-5 and 1 - 1e-5
SMALLEST = 1e-5  #: noisy coordinates c and 1 - c are at least this before they become logits
STRIDE = 8  #: pixels per cell of the finest map
LOSS_WEIGHTS = {"class": 1.0, "box": 5.0, "giou": 2.0}
#: VariFocal multiplies the cross-entropy of a target 0 by ``VFL_ALPHA`` · p ^ ``VFL_GAMMA``.
VFL_ALPHA, VFL_GAMMA = 0.75, 2.0


class Predictions(NamedTuple):
    """R sets of predictions for N windows, for example one set per decoder layer."""

    logits: Tensor  #: [R, N, Q, classes]
    boxes: Tensor  #: [R, N, Q, 4] cxcywh, fractions of the frame


class ForLoss(NamedTuple):
    """The values of a forward pass that the loss needs."""

    frame: tuple[int, int]  #: (rows, columns) in pixels
    layers: Predictions
    encoder: Predictions  #: one set: the proposals that became queries
    denoising: Predictions | None = None
    denoising_matches: Matches | None = None  #: [1, K], the same for each layer
    denoising_groups: int = 1


class RtDetrHead(nn.Module):
    """Feature maps of N windows to Q predictions for each; Q is ``queries``, or the number of cells if that is less."""

    anchors: Tensor
    valid: Tensor
    frame: Tensor

    def __init__(
        self,
        channels: Sequence[int],
        classes: int,
        hidden: int = 256,
        queries: int = 300,
        layers: int = 6,
        heads: int = 8,
        feedforward: int = 1024,
        denoising: int = 100,
    ) -> None:
        """Args:
        channels: of the feature maps, finest first.
        classes: number of classes.
        hidden: C, the width of queries.
        queries: Q.
        layers: number of decoder layers.
        heads: attention heads.
        feedforward: width inside the feedforward networks.
        denoising: about how many noisy boxes are added in training (see ``denoising_queries``); 0 for none.
        """
        super().__init__()
        self.classes, self.queries, self.denoising = classes, queries, denoising
        self.projections = nn.ModuleList(
            ConvNormAct(width, hidden, activation="none", any_count=True) for width in channels
        )
        self.cell_features = nn.Sequential(nn.Linear(hidden, hidden), nn.LayerNorm(hidden))
        self.cell_scores = nn.Linear(hidden, classes)
        self.cell_boxes = perceptron(hidden, hidden, hidden, 4)
        self.positions = perceptron(4, 2 * hidden, hidden)
        layer = DecoderLayer(hidden, heads, len(channels), feedforward)
        self.layers = nn.ModuleList(
            deepcopy(layer) for _ in range(layers)
        )  # same initial weights, as in the public code
        self.scores = nn.ModuleList(nn.Linear(hidden, classes) for _ in range(layers))
        self.boxes = nn.ModuleList(perceptron(hidden, hidden, hidden, 4) for _ in range(layers))
        if denoising:
            self.denoising_classes = nn.Embedding(classes + 1, hidden, padding_idx=classes)
        for linear in (self.cell_scores, *self.scores):
            nn.init.constant_(cast(nn.Linear, linear).bias, -math.log((1 - PRIOR) / PRIOR))
        for box in (self.cell_boxes, *self.boxes):  # initially boxes are not moved
            nn.init.zeros_(box[-1].weight)
            nn.init.zeros_(box[-1].bias)
        for linear in (self.cell_features[0], self.positions[0], self.positions[-1]):
            nn.init.xavier_uniform_(cast(nn.Linear, linear).weight)
        # Tables for one size of frame, built by the first call: ``cell_anchors``, and (width, height, width, height).
        self.register_buffer("anchors", torch.zeros(0, 4), persistent=False)
        self.register_buffer("valid", torch.zeros(0, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("frame", torch.zeros(4, dtype=torch.int32), persistent=False)
        self._sizes: list[tuple[int, int]] = []

    def forward(self, features: Sequence[Tensor], targets: Sequence[Targets] | None = None) -> Outputs:
        """Predict from feature maps [N, C_i, H_i, W_i], finest first; N may be 0.

        In training, or with targets, the outputs also hold the values that the loss needs. In training with targets,
        denoising queries run beside the others.
        """
        sizes = [(level.shape[-2], level.shape[-1]) for level in features]
        self._build_anchors(sizes, features[0].device)
        frame = (sizes[0][0] * STRIDE, sizes[0][1] * STRIDE)
        projected = (project(level) for project, level in zip(self.projections, features, strict=True))
        memory = torch.cat([level.flatten(2).mT for level in projected], dim=1)  # [N, S, C]
        for_loss = self.training or targets is not None
        queries, box_logits, logits = self._propose(memory)
        noisy = None
        if self.training and targets is not None:
            flat = FlatTargets.of(targets, frame, self.classes, memory.device)
            if self.denoising:
                noisy = denoising_queries(flat, self.classes, queries.shape[1], self.denoising)
        scores, boxes = self._decode(memory, sizes, queries.detach(), box_logits.detach(), noisy, for_loss)
        last = xyxy_from_cxcywh(boxes[-1]) * self.frame
        if not for_loss:
            return Outputs(last, scores[-1])
        every = Predictions(torch.stack(scores), torch.stack(boxes))
        extra = noisy.class_ids.shape[1] if noisy is not None else 0
        layers = Predictions(*(part[:, :, extra:] for part in every))
        kept = ForLoss(frame, layers, Predictions(logits[None], box_logits.sigmoid()[None]))
        if noisy is not None:
            denoising = Predictions(*(part[:, :, :extra] for part in every))
            kept = ForLoss(*kept[:3], denoising, noisy.matches, noisy.groups)
        return Outputs(last[:, extra:], layers.logits[-1], training=kept)

    @staticmethod
    def loss(outputs: Outputs, targets: Sequence[Targets]) -> dict[str, Tensor]:
        """Compute the terms of ``detr_loss``."""
        kept: ForLoss = outputs.training
        classes, device = outputs.class_logits.shape[-1], outputs.boxes.device
        return detr_loss(kept, FlatTargets.of(targets, kept.frame, classes, device))

    def _propose(self, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best cells of each window by their best class; boxes are computed for these cells alone.

        Returns features [N, Q, C], boxes [N, Q, 4] (cxcywh as logits of fractions of the frame, infinite for a cell at
        the margin) and class logits [N, Q, classes].
        """
        features = self.cell_features(memory * self.valid)
        logits = self.cell_scores(features)
        count = min(self.queries, memory.shape[1])
        best = logits.detach().amax(dim=-1).topk(count, dim=1).indices[..., None]  # [N, Q, 1]
        chosen = torch.take_along_dim(features, best, dim=1)
        anchors = torch.take_along_dim(self.anchors[None], best, dim=1)
        box_logits = at_least_float32(self.cell_boxes(chosen)) + anchors
        return chosen, box_logits, torch.take_along_dim(logits, best, dim=1)

    def _decode(
        self,
        memory: Tensor,
        sizes: Sequence[tuple[int, int]],
        queries: Tensor,
        reference: Tensor,
        noisy: DenoisingQueries | None,
        all_layers: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Refine queries and their boxes; D denoising queries come first.

        Returns class logits [N, D + Q, classes] and boxes [N, D + Q, 4] (cxcywh, fractions) of all layers or the last.
        """
        if noisy is not None:
            queries = torch.cat([self.denoising_classes(noisy.class_ids).to(queries.dtype), queries], dim=1)
            reference = torch.cat([noisy.box_logits, reference], dim=1)
        elif self.training and self.denoising:
            # Gives every parameter a gradient in every step, which training in several processes requires.
            queries = queries + 0 * self.denoising_classes.weight.sum()
        scores: list[Tensor] = []
        boxes: list[Tensor] = []
        current = reference.sigmoid()
        for index, (layer, box) in enumerate(zip(self.layers, self.boxes, strict=True)):
            positions = self.positions(current.to(queries.dtype))
            queries = layer(queries, positions, current, memory, sizes, noisy.visible if noisy is not None else None)
            change = at_least_float32(box(queries))
            moved = change + reference.clamp(-FARTHEST, FARTHEST)
            current = moved.sigmoid()
            if all_layers or index == len(self.layers) - 1:
                scores.append(self.scores[index](queries))
                boxes.append(current)
            # The next layer's loss reaches this change, but nothing before it.
            reference = change + reference.detach().clamp(-FARTHEST, FARTHEST) if all_layers else moved
            current = current.detach()
        return scores, boxes

    def _build_anchors(self, sizes: list[tuple[int, int]], device: torch.device) -> None:
        known = sizes == self._sizes and self.anchors.device == device
        if known and self.anchors.dtype == torch.float32:  # casting a model to 16 bits casts its tables too
            return
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # tables built during inference can be used in training later
            anchors, valid = cell_anchors(sizes)
            self.anchors, self.valid = anchors.to(device), valid.to(device)
            rows, columns = (side * STRIDE for side in sizes[0])
            self.frame = torch.tensor([columns, rows, columns, rows], dtype=torch.int32).to(device)
        self._sizes = sizes


class DecoderLayer(nn.Module):
    """Self-attention of the queries, cross-attention to the feature maps, feedforward; LayerNorm after each sum.

    ``reading`` is the cross-attention; attribute names are the names of parameters in saved weights.
    """

    def __init__(self, width: int, heads: int, levels: int, feedforward: int) -> None:
        super().__init__()
        self.attention = PositionalSelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.reading = DeformableAttention(width, heads, levels)
        self.reading_norm = nn.LayerNorm(width)
        self.feedforward = perceptron(width, feedforward, width)
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(
        self,
        queries: Tensor,
        positions: Tensor,
        boxes: Tensor,
        memory: Tensor,
        sizes: Sequence[tuple[int, int]],
        visible: Tensor | None,
    ) -> Tensor:
        """Queries and their positions [N, Q, C] to [N, Q, C]; boxes, memory and sizes as in ``DeformableAttention``.

        ``visible`` [Q, Q] is True if the query of the row attends to the query of the column; None: all attend to all.
        """
        queries = self.attention_norm(queries + self.attention(queries, positions, visible))
        queries = self.reading_norm(queries + self.reading(queries + positions, boxes, memory, sizes))
        return cast(Tensor, self.feedforward_norm(queries + self.feedforward(queries)))


def perceptron(*widths: int) -> nn.Sequential:
    """Build linear layers from each width to the next, with ReLU between them."""
    parts: list[nn.Module] = []
    for width, following in pairwise(widths):
        parts += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def cell_anchors(sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Initial boxes of the S cells of maps of ``sizes`` (rows, columns), and whether each cell may propose a box.

    Boxes [S, 4] are cxcywh as logits of fractions of the frame, infinite at the margin; the mask is [S, 1] bool.
    """
    parts = []
    for level, (rows, columns) in enumerate(sizes):
        y, x = torch.meshgrid((torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns, indexing="ij")
        side = torch.full_like(x, CELL_BOX * 2.0**level)
        parts.append(torch.stack([x, y, side, side], dim=-1).view(-1, 4))
    boxes = torch.cat(parts)
    valid = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(dim=-1, keepdim=True)
    return torch.where(valid, torch.logit(boxes), torch.inf), valid


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


def detr_loss(outputs: ForLoss, targets: FlatTargets) -> dict[str, Tensor]:
    """Compute the weighted terms of the loss in float32; the loss is their sum.

    There are always the same twelve terms, so that several processes can average them: ``class``, ``box`` and ``giou``
    of the last layer, and the same with ``_aux`` (the sum over all layers before it), ``_encoder`` and ``_denoising``.
    """
    with torch.autocast(outputs.layers.logits.device.type, enabled=False):
        both = Predictions(*(torch.cat(parts) for parts in zip(outputs.layers, outputs.encoder, strict=True)))
        # ``full`` writes the number on the device; copying it from the CPU would make the CPU wait for the GPU.
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
            for (name, weight), term in zip(LOSS_WEIGHTS.items(), three.unbind(), strict=True)
        }


def set_losses(predictions: Predictions, matches: Matches, targets: FlatTargets) -> Tensor:
    """[3, R] class, box and GIoU terms of each set of predictions, summed over all windows, not yet weighted."""
    logits, boxes = predictions.logits.float(), predictions.boxes.float()
    index = (torch.arange(len(logits), device=logits.device)[:, None], matches.window, matches.query)
    truth, weight = targets.boxes[matches.target], targets.weights[matches.target]
    matched = boxes[index]  # [R, K, 4]
    corners, true_corners = xyxy_from_cxcywh(matched), xyxy_from_cxcywh(truth)
    reached = iou(corners, true_corners).detach()

    class_index = (*index, targets.class_ids[matches.target])
    target_scores = torch.zeros_like(logits).index_put(class_index, reached)
    importance = (VFL_ALPHA * logits.detach().sigmoid() ** VFL_GAMMA).index_put(class_index, weight * reached)
    if targets.neutral is not None:
        is_neutral = lie_in_neutral(xyxy_from_cxcywh(boxes.detach()), xyxy_from_cxcywh(targets.neutral))
        is_neutral = is_neutral.index_put(index, torch.zeros((), dtype=torch.bool, device=boxes.device))
        importance = importance.masked_fill(is_neutral[..., None], 0.0)
    class_terms = functional.binary_cross_entropy_with_logits(logits, target_scores, importance, reduction="none")

    box_terms = (matched - truth).abs().sum(dim=-1) * weight
    giou_terms = (1 - giou(corners, true_corners)) * weight
    return torch.stack([class_terms.sum(dim=(1, 2, 3)), box_terms.sum(dim=1), giou_terms.sum(dim=1)])
