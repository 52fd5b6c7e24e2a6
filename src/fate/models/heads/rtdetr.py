"""RT-DETR's decoder (Zhao et al. 2024), as EvRT-DETR uses it: the best cells become queries, layers refine their boxes.

    cells      every cell of three maps proposes a box around itself and scores it (the encoder's proposals)
    queries    the best 300 of them: the cell's feature is the content, its box the reference
    layer i    self-attention of the queries, cross-attention to the maps around their boxes (deformable attention),
               refinement of the boxes; 6 layers
    scores     of the last layer. No suppression: queries learn not to repeat one another.

In training all layers are scored, and noisy copies of the targets are added to the queries (``denoising.py``). Queries
and boxes are detached at the decoder's input, and boxes between the layers; but the loss of a layer's boxes also
reaches the box head of the layer before ("look forward twice", Zhang et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads import rtdetr_loss
from fate.models.heads.denoising import DenoisingQueries, denoising_queries
from fate.models.heads.rtdetr_loss import ForLoss, Predictions
from fate.models.heads.targets import FlatTargets
from fate.models.layers.attention import PositionalSelfAttention
from fate.models.layers.conv import ConvNormAct
from fate.models.layers.deformable import DeformableAttention, at_least_float32
from fate.models.outputs import Outputs, Targets

#: At first everything is of each class with this probability (as of the focal loss: Lin et al. 2017).
PRIOR = 0.01
#: Side of the box a cell of the finest map starts with, as a part of the frame; of each next map twice that.
CELL_BOX = 0.05
#: A cell whose first box touches the margin proposes nothing.
MARGIN = 0.01
#: Coordinates are kept between 1e-5 and 1 - 1e-5, here as logits.
FARTHEST = math.log(1e5)


class RtDetrHead(nn.Module):
    """Maps of N windows → Q predictions of each, Q = ``queries`` or the number of cells if that is less."""

    anchors: Tensor
    valid: Tensor
    frame: Tensor

    def __init__(
        self,
        channels: Sequence[int] = (256, 256, 256),
        classes: int = 2,
        hidden: int = 256,
        queries: int = 300,
        layers: int = 6,
        heads: int = 8,
        points: int = 4,
        feedforward: int = 1024,
        denoising: int = 100,
        stride: int = 8,
    ) -> None:
        """Queries have ``hidden`` numbers (C); each head of the cross-attention reads ``points`` places in one map.

        ``denoising`` is how many noisy boxes are wanted, see ``denoising_queries``; 0 trains without.
        """
        super().__init__()
        self.classes, self.queries, self.denoising, self.stride = classes, queries, denoising, stride
        self.projections = nn.ModuleList(ConvNormAct(of, hidden, activation="none", any_count=True) for of in channels)
        self.cell_features = nn.Sequential(nn.Linear(hidden, hidden), nn.LayerNorm(hidden))
        self.cell_scores = nn.Linear(hidden, classes)
        self.cell_boxes = perceptron(hidden, hidden, hidden, 4)
        self.positions = perceptron(4, 2 * hidden, hidden)
        layer = DecoderLayer(hidden, heads, len(channels), points, feedforward)
        self.layers = nn.ModuleList(deepcopy(layer) for _ in range(layers))  # all begin alike, as the public ones
        self.scores = nn.ModuleList(nn.Linear(hidden, classes) for _ in range(layers))
        self.boxes = nn.ModuleList(perceptron(hidden, hidden, hidden, 4) for _ in range(layers))
        if denoising:
            self.denoising_classes = nn.Embedding(classes + 1, hidden, padding_idx=classes)
        self._initialise()
        # Built by the first call, for its size of frame.
        self.register_buffer("anchors", torch.zeros(0, 4), persistent=False)
        self.register_buffer("valid", torch.zeros(0, 1, dtype=torch.bool), persistent=False)
        self.register_buffer("frame", torch.zeros(4, dtype=torch.int32), persistent=False)
        self._sizes: list[tuple[int, int]] = []

    def forward(self, features: Sequence[Tensor], targets: Sequence[Targets] | None = None) -> Outputs:
        """Predictions from features [N, C_i, H_i, W_i] (N may be 0), finest first.

        In training, or with targets, they hold what the loss needs; in training noisy copies of the targets run beside
        the queries.
        """
        sizes = [(maps.shape[-2], maps.shape[-1]) for maps in features]
        self._lay_anchors(sizes, features[0].device)
        projected = (project(maps) for project, maps in zip(self.projections, features, strict=True))
        memory = torch.cat([maps.flatten(2).mT for maps in projected], dim=1)  # [N, S, C]
        for_loss = self.training or targets is not None
        proposals = self._proposals(memory)
        noisy = None
        if self.training and targets is not None:
            flat = self._flat(targets, memory, self._frame_size())
            if self.denoising:
                noisy = denoising_queries(flat, self.classes, proposals.features.shape[1], self.denoising)
        scores, boxes = self._decoded(memory, sizes, proposals, noisy, for_loss)
        last = xyxy_from_cxcywh(boxes[-1]) * self.frame
        if not for_loss:
            return Outputs(last, scores[-1])
        every = Predictions(torch.stack(scores), torch.stack(boxes))
        extra = noisy.class_ids.shape[1] if noisy is not None else 0
        layers = Predictions(*(of[:, :, extra:] for of in every))
        encoder = Predictions(proposals.logits[None], proposals.box_logits.sigmoid()[None])
        kept = ForLoss(self._frame_size(), layers, encoder)
        if noisy is not None:
            denoising = Predictions(*(of[:, :, :extra] for of in every))
            kept = ForLoss(*kept[:3], denoising, noisy.matches, noisy.groups)
        return Outputs(last[:, extra:], layers.logits[-1], training=kept)

    def loss(self, outputs: Outputs, targets: Sequence[Targets]) -> dict[str, Tensor]:
        """The terms of ``rtdetr_loss.loss``: their sum is to be made small."""
        kept = outputs.training
        if not isinstance(kept, ForLoss):
            raise FateError("these outputs hold nothing for a loss; call the head in training mode or give it targets")
        return rtdetr_loss.loss(kept, self._flat(targets, outputs.boxes, kept.frame))

    def _proposals(self, memory: Tensor) -> _Proposals:
        """The best cells of each window by their best class. Boxes are worked out for these alone."""
        features = self.cell_features(memory * self.valid)
        logits = self.cell_scores(features)
        count = min(self.queries, memory.shape[1])
        best = logits.detach().amax(dim=-1).topk(count, dim=1).indices[..., None]  # [N, Q, 1]
        chosen = torch.take_along_dim(features, best, dim=1)
        anchors = torch.take_along_dim(self.anchors[None], best, dim=1)
        return _Proposals(
            features=chosen,
            box_logits=at_least_float32(self.cell_boxes(chosen)) + anchors,
            logits=torch.take_along_dim(logits, best, dim=1),
        )

    def _decoded(
        self,
        memory: Tensor,
        sizes: Sequence[tuple[int, int]],
        proposals: _Proposals,
        noisy: DenoisingQueries | None,
        all_layers: bool,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Class logits [N, D + Q, classes] and boxes [N, D + Q, 4] (cxcywh, fractions); of all layers, or the last."""
        queries, reference = proposals.features.detach(), proposals.box_logits.detach()
        if noisy is not None:
            queries = torch.cat([self.denoising_classes(noisy.class_ids).to(queries.dtype), queries], dim=1)
            reference = torch.cat([noisy.box_logits, reference], dim=1)
        elif self.training and self.denoising:
            # Every parameter gets a gradient in every step: where processes train together, all wait for each.
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

    def _lay_anchors(self, sizes: list[tuple[int, int]], device: torch.device) -> None:
        known = sizes == self._sizes and self.anchors.device == device
        if known and self.anchors.dtype == torch.float32:  # a model cast to 16 bits casts its tables too
            return
        with torch.inference_mode(False), torch.no_grad():  # tables made outside training can be used in it later
            anchors, valid = cell_anchors(sizes)
            self.anchors, self.valid = anchors.to(device), valid.to(device)
            rows, columns = (side * self.stride for side in sizes[0])
            self.frame = torch.tensor([columns, rows, columns, rows], dtype=torch.int32).to(device)
        self._sizes = sizes

    def _frame_size(self) -> tuple[int, int]:
        """(rows, columns) of the last call's frame, pixels."""
        rows, columns = self._sizes[0]
        return rows * self.stride, columns * self.stride

    def _flat(self, targets: Sequence[Targets], windows: Tensor, frame: tuple[int, int]) -> FlatTargets:
        """The targets of ``windows`` (a tensor with one row for each) on their device."""
        if len(targets) != len(windows):
            raise FateError(
                f"targets of {len(targets)} windows were given; expected {len(windows)}, one of each window"
            )
        return FlatTargets.of(targets, frame, self.classes, windows.device)

    def _initialise(self) -> None:
        for linear in (self.cell_scores, *self.scores):
            nn.init.constant_(linear.bias, -math.log((1 - PRIOR) / PRIOR))
        for box in (self.cell_boxes, *self.boxes):  # at first a box stays where it is
            nn.init.zeros_(box[-1].weight)
            nn.init.zeros_(box[-1].bias)
        for linear in (self.cell_features[0], self.positions[0], self.positions[-1]):
            nn.init.xavier_uniform_(cast(nn.Linear, linear).weight)


class _Proposals(NamedTuple):
    """The cells that become queries."""

    features: Tensor  #: [N, Q, C]
    box_logits: Tensor  #: [N, Q, 4] cxcywh, as logits of fractions of the frame; infinite for a cell at the margin
    logits: Tensor  #: [N, Q, classes]


class DecoderLayer(nn.Module):
    """Self-attention of the queries, cross-attention to the feature maps, feedforward; LayerNorm after each sum.

    ``reading`` is the cross-attention: attribute names are the names of parameters in saved weights.
    """

    def __init__(self, width: int, heads: int, levels: int, points: int, feedforward: int) -> None:
        super().__init__()
        self.attention = PositionalSelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.reading = DeformableAttention(width, heads, levels, points)
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
        visible: Tensor | None = None,
    ) -> Tensor:
        """Queries and their positions [N, Q, C] → [N, Q, C]; boxes, memory and sizes as in ``DeformableAttention``.

        ``visible`` [Q, Q] says whether the query of the row attends to that of the column; None: all attend to all.
        """
        queries = self.attention_norm(queries + self.attention(queries, positions, visible))
        queries = self.reading_norm(queries + self.reading(queries + positions, boxes, memory, sizes))
        result: Tensor = self.feedforward_norm(queries + self.feedforward(queries))
        return result


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers from each width to the next, with ReLU between them."""
    parts: list[nn.Module] = []
    for width, following in pairwise(widths):
        parts += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def cell_anchors(sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """The box each cell of maps of ``sizes`` (rows, columns) starts from, and whether it counts.

    [S, 4] cxcywh, as logits of fractions of the frame, infinite for cells at the margin, and [S, 1] bool, False there.
    """
    parts = []
    for level, (rows, columns) in enumerate(sizes):
        y, x = torch.meshgrid((torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns, indexing="ij")
        side = torch.full_like(x, CELL_BOX * 2.0**level)
        parts.append(torch.stack([x, y, side, side], dim=-1).view(-1, 4))
    boxes = torch.cat(parts)
    valid = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(dim=-1, keepdim=True)
    return torch.where(valid, torch.logit(boxes), torch.inf), valid
