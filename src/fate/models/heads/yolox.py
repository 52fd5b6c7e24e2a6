"""YOLOX's head and loss (Ge et al., 2021), as RVT uses them.

**Head.** Every cell of three feature maps predicts one box, its objectness and its class logits. A 1×1 convolution (the
stem) gives each map the same width. Two towers of two 3×3 convolutions follow, one for the classes, one for box and
objectness. The Q predictions of a window are ordered by stride (8, 16, 32), and within a stride row by row.

**Assignment (SimOTA).** Each true box is assigned the k predictions that fit it best:

1. Candidates are anchors (cell centres) less than 1.5 strides from the centre of some true box, in x and in y.
2. The cost of a candidate for a box is the binary cross-entropy of √(class · objectness) against the box's class,
   summed over classes, + 3 · (-ln IoU), + 10⁶ if it is a candidate of other boxes only.
3. k is the sum of the box's ten largest IoUs, rounded down, at least 1. The box claims its k cheapest candidates.
4. An anchor that several boxes claim is assigned to the box, of all boxes, for which its cost is lowest.

The assignment has no gradient. All windows are assigned at once, with their boxes padded to the same number; RVT's code
assigns one window at a time, with the same result. No shape depends on a value, so the CPU never waits for a GPU:
predictions without a box are not removed but have weight 0.

**Neutral boxes** (:mod:`fate.boxes.labels`) take no part in the assignment. A prediction without a box of which at
least half lies in a neutral box has no objectness term, so that it is not taught as background. A weight of 0 would not
do this: it cancels the terms of the k predictions that a box claims, and all others in its place remain background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.models.boxes import iou, lie_in_neutral, pairwise_iou
from fate.models.layers.conv import Activation, AnyCountConv2d, ConvNormAct, block_diagonal, side_by_side
from fate.models.layers.deformable import at_least_float32
from fate.models.outputs import FlatTargets, Outputs, Targets, mean_over_processes

PRIOR = 0.01  #: initial probability of objectness and of every class (Lin et al., 2017)
RADIUS = 1.5  #: strides around the centre of a box within which anchors are candidates
IOU_COST = 3.0  #: weight of -ln IoU in the cost
FOREIGN_COST = 1e6  #: added to the cost of an anchor outside the box's own radius
MOST_ANCHORS = 10  #: largest k
IOU_WEIGHT = 5.0  #: weight of the IoU term in the loss


class Anchors(NamedTuple):
    """The cells of the Q predictions, the same in every window."""

    centres: Tensor  #: [Q, 2] x, y in pixels
    strides: Tensor  #: [Q] pixels


class YOLOXHead(nn.Module):
    """Feature maps of N windows to Q = Σ H_i · W_i predictions for each."""

    STRIDES = (8, 16, 32)

    cells: Tensor
    cell_strides: Tensor

    def __init__(
        self,
        in_channels: Sequence[int],
        classes: int,
        hidden: int | None = None,
        depthwise: bool = False,
        activation: Activation = "silu",
    ) -> None:
        """Args:
        in_channels: channels of the feature maps at strides 8, 16 and 32.
        classes: number of classes.
        hidden: channels of stems and towers; None for a quarter of the last map's, as in YOLOX.
        depthwise: for small models: stems end with a depthwise 5×5 convolution, and each tower is one 1×1 convolution.
        activation: of all convolutions but the last.
        """
        super().__init__()
        width = in_channels[-1] // 4 if hidden is None else hidden
        self.strides = self.STRIDES
        self.depthwise = depthwise
        self.merged: nn.ModuleList | None = None
        conv = partial(ConvNormAct, activation=activation)

        def stem(channels: int) -> nn.Module:
            narrow = conv(channels, width, any_count=True)
            return nn.Sequential(narrow, conv(width, width, kernel=5, groups=width)) if depthwise else narrow

        def towers() -> nn.ModuleList:
            kernels = (1,) if depthwise else (3, 3)
            return nn.ModuleList(
                nn.Sequential(*(conv(width, width, kernel, any_count=True) for kernel in kernels)) for _ in in_channels
            )

        def predictions(channels: int, bias: float | None = None) -> nn.ModuleList:
            layers = [AnyCountConv2d(width, channels, 1) for _ in in_channels]
            for layer in layers if bias is not None else []:
                nn.init.constant_(cast(Tensor, layer.bias), cast(float, bias))
            return nn.ModuleList(layers)

        prior_logit = -math.log((1 - PRIOR) / PRIOR)
        self.stems = nn.ModuleList(stem(channels) for channels in in_channels)
        self.class_towers = towers()
        self.box_towers = towers()
        self.class_predictions = predictions(classes, prior_logit)
        self.box_predictions = predictions(4)
        self.object_predictions = predictions(1, prior_logit)
        # Column and row [Q, 2] and stride [Q, 1] of each cell, computed when the size of the frame is known. They are
        # integers, so that a model cast to 16 bits keeps them exact.
        self.register_buffer("cells", torch.zeros(0, 2, dtype=torch.int32), persistent=False)
        self.register_buffer("cell_strides", torch.zeros(0, 1, dtype=torch.int32), persistent=False)
        self._sizes: list[tuple[int, int]] = []

    def forward(self, features: Sequence[Tensor], targets: Sequence[Targets] | None = None) -> Outputs:
        """Predict from feature maps [N, C_i, H_i, W_i] at strides 8, 16 and 32; N may be 0.

        In training, or with targets, the outputs also hold the anchors, which the loss needs.
        """
        maps = (self.predict_level(level, features_here) for level, features_here in enumerate(features))
        raw = torch.cat([level.flatten(2).transpose(1, 2) for level in maps], dim=1)  # [N, Q, 5 + classes]
        self._build_cells([(level.shape[-2], level.shape[-1]) for level in features], features[0].device)
        anchors = None
        if self.training or targets is not None:
            anchors = Anchors((self.cells + 0.5) * self.cell_strides, self.cell_strides[:, 0].float())
        boxes = decode_boxes(raw[..., :4], self.cells, self.cell_strides)
        return Outputs(boxes, class_logits=raw[..., 5:], objectness=raw[..., 4], training=anchors)

    def predict_level(self, level: int, features: Tensor) -> Tensor:
        """[N, C, H, W] to [N, 5 + classes, H, W]: box, objectness, classes."""
        stem = self.stems[level](features)
        if self.merged is not None:
            return cast(Tensor, self.merged[level](stem))
        for_boxes, for_classes = self.box_towers[level](stem), self.class_towers[level](stem)
        boxes, objects = self.box_predictions[level](for_boxes), self.object_predictions[level](for_boxes)
        return torch.cat([boxes, objects, self.class_predictions[level](for_classes)], dim=1)

    def fuse_(self) -> None:
        """Merge the two towers permanently if they are 1×1 convolutions; BatchNorm must be folded already."""
        if not self.depthwise or self.merged is not None:
            return
        self.merged = nn.ModuleList()
        for level in range(len(self.strides)):
            tower, other = (
                cast(ConvNormAct, towers[level].get_submodule("0")) for towers in (self.box_towers, self.class_towers)
            )
            boxes, objects, classes = (
                cast(nn.Conv2d, predictions[level])
                for predictions in (self.box_predictions, self.object_predictions, self.class_predictions)
            )
            tower.conv = side_by_side([tower.conv, other.conv])
            self.merged.append(nn.Sequential(tower, block_diagonal([side_by_side([boxes, objects]), classes])))
        self.box_towers = self.class_towers = nn.ModuleList()
        self.box_predictions = self.object_predictions = self.class_predictions = nn.ModuleList()

    def _build_cells(self, sizes: list[tuple[int, int]], device: torch.device) -> None:
        if sizes == self._sizes and self.cells.device == device:
            return
        with torch.inference_mode(False):  # tables built during inference can be used in training later
            self.cells, self.cell_strides = cells_of(sizes, self.strides, device)
        self._sizes = sizes

    @staticmethod
    def loss(outputs: Outputs, targets: Sequence[Targets]) -> dict[str, Tensor]:
        """Compute the three terms of YOLOX's loss over N windows; N may be 0.

        "iou" is 5 · Σ (1 - IoU²) and "class" is Σ cross-entropy against (one-hot · IoU), both over matched predictions;
        "objectness" is Σ cross-entropy over all predictions. Each sum is divided by the number of matched predictions:
        the mean over all training processes, at least 1. The weight w_v of a box multiplies the terms of its matched
        predictions but does not change the divisor, so that uncertain boxes do not increase the influence of others.
        Everything is computed in float32, inside autocast too.
        """
        anchors, device = outputs.training, outputs.boxes.device
        with torch.autocast(device.type, enabled=False):
            boxes, class_logits = outputs.boxes.float(), outputs.class_logits.float()
            objectness = cast(Tensor, outputs.objectness).float()
            true = PaddedTargets.of(targets, class_logits.shape[-1], device)
            matched, box, reached = assign(boxes, class_logits, objectness, anchors, true)
            weight = true.weights.gather(1, box)  # [N, Q], like all tensors below
            matched_weight = torch.where(matched, weight, 0.0)

            target_boxes = true.boxes.gather(1, box[:, :, None].expand(-1, -1, 4))
            # An unmatched prediction is replaced by its target, which keeps its values out of the gradient.
            overlap = iou(torch.where(matched[:, :, None], boxes, target_boxes), target_boxes)
            class_ids = torch.arange(class_logits.shape[-1], device=device)
            class_target = (true.class_ids.gather(1, box)[:, :, None] == class_ids) * reached[:, :, None]
            cross_entropy = partial(functional.binary_cross_entropy_with_logits, reduction="none")
            class_error = cross_entropy(class_logits, class_target).sum(-1)
            object_error = cross_entropy(objectness, matched.float())

            object_weight = torch.where(matched, weight, 1.0)
            if true.neutral is not None:
                is_neutral = ~matched & lie_in_neutral(boxes.detach(), true.neutral)
                object_weight = object_weight.masked_fill(is_neutral, 0.0)

            count = mean_over_processes(matched.sum())
            return {
                "iou": IOU_WEIGHT * (matched_weight * (1 - overlap**2)).sum() / count,
                "objectness": (object_weight * object_error).sum() / count,
                "class": (matched_weight * class_error).sum() / count,
            }


def cells_of(
    sizes: Sequence[tuple[int, int]], strides: Sequence[int], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Column and row [Q, 2] and stride [Q, 1], int32, of each cell of maps of these sizes (rows, columns)."""
    cells, of_cells = [], []
    for (rows, columns), stride in zip(sizes, strides, strict=True):
        y, x = (torch.arange(count, dtype=torch.int32, device=device) for count in (rows, columns))
        cells.append(torch.cartesian_prod(y, x).flip(-1))
        of_cells.append(torch.full_like(cells[-1][:, :1], stride))
    return torch.cat(cells), torch.cat(of_cells)


def decode_boxes(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Decode boxes [N, Q, 4], xyxy in pixels, at least in float32: 16 bits are less exact than a pixel.

    Args:
        raw: [N, Q, 4] offset of the box's centre from the cell's corner (x, y) and logarithm of its size, in cells.
        cells: [Q, 2] column and row.
        strides: [Q, 1] pixels per cell.
    """
    raw = at_least_float32(raw)
    centre = (raw[..., :2] + cells) * strides
    half = raw[..., 2:].exp() * (strides / 2)
    return torch.cat([centre - half, centre + half], dim=-1)


class PaddedTargets(NamedTuple):
    """The boxes of N windows, padded to the same number M, at least 1."""

    boxes: Tensor  #: [N, M, 4] xyxy, pixels
    class_ids: Tensor  #: [N, M] int64
    weights: Tensor  #: [N, M] w_v
    real: Tensor  #: [N, M] bool, False for padding
    neutral: Tensor | None = None  #: [N, U, 4] neutral boxes, padded with boxes without area; None if there are none

    @staticmethod
    def of(targets: Sequence[Targets], classes: int, device: torch.device) -> PaddedTargets:
        """Check the targets of N windows, move them to a device and pad them."""
        flat = FlatTargets.of(targets, None, classes, device)
        real = torch.ones_like(flat.class_ids, dtype=torch.bool)
        columns = (flat.boxes, flat.class_ids, flat.weights, real)
        boxes, class_ids, weights, real = (flat.padded(column, least=1) for column in columns)
        return PaddedTargets(boxes, class_ids, weights, real, flat.neutral)


class Assignment(NamedTuple):
    """The true box assigned to each prediction."""

    matched: Tensor  #: [N, Q] bool, False for background
    box: Tensor  #: [N, Q] int64 index among the window's boxes, valid where matched
    iou: Tensor  #: [N, Q] IoU of the prediction with that box


@torch.no_grad()
def assign(
    boxes: Tensor, class_logits: Tensor, objectness: Tensor, anchors: Anchors, targets: PaddedTargets
) -> Assignment:
    """Run SimOTA on boxes [N, Q, 4] (xyxy, pixels), class logits [N, Q, classes] and objectness logits [N, Q]."""
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

    It is computed once per class, not per box. Logarithms are clamped at -100, as in ``binary_cross_entropy``.
    """
    probability = (class_logits.sigmoid() * objectness.sigmoid()[:, :, None]).sqrt()
    as_positive = -probability.log().clamp(min=-100)
    as_negative = -torch.log1p(-probability).clamp(min=-100)
    cost = as_positive + (as_negative.sum(-1, keepdim=True) - as_negative)  # [N, Q, classes]
    index = class_ids[:, :, None].expand(-1, -1, cost.shape[1])
    return cost.transpose(1, 2).gather(1, index)
