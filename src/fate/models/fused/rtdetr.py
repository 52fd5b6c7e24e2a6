"""The head of RT-DETR in the operations of ``reference`` or ``kernels``: no operation between products is a kernel.

Values of all decoder layers and the features of all cells are one product, since they read the same memory. A layer of
the decoder is eleven kernels. Its norms are computed by the products that read them, and the network that refines boxes
ends in the kernel that computes the positions of the refined boxes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.events.events import Sensor
from fate.models.fused.maxvit import norm_of
from fate.models.fused.pafpn import rows_of
from fate.models.fused.reference import BoxWeights, PositionWeights
from fate.models.heads.rtdetr import FARTHEST, STRIDE, DecoderLayer, RtDetrHead, cell_anchors
from fate.models.layers.conv import ConvNormAct
from fate.models.necks.latent_memory import LatentMemory
from fate.models.outputs import Outputs

#: Weight and bias of a linear layer.
Weights = tuple[Tensor, Tensor]
#: Most channels of queries: a layer norm needs a whole row.
LONGEST = 512


class FusedRtDetrHead(nn.Module):
    """A trained ``RtDetrHead`` with folded BatchNorm; boxes and logits are in float32."""

    def __init__(
        self, head: RtDetrHead, memory: LatentMemory | None, operations: ModuleType, dtype: torch.dtype
    ) -> None:
        """Args:
        head: its weights are copied.
        memory: that of the detector; the features of the head are then those of ``FusedLatentMemory``.
        operations: ``reference`` or ``kernels``.
        dtype: of weights, and of all that is neither a box nor a logit.
        """
        super().__init__()
        self.operations, self.queries, self.dtype = operations, head.queries, dtype
        layers = [cast(DecoderLayer, layer) for layer in head.layers]
        first = layers[0].reading
        self.heads, self.points = first.heads, first.points
        self.projections = [
            _projection(cast(ConvNormAct, layer), None if memory is None else memory.projections[level], dtype)
            for level, layer in enumerate(head.projections)
        ]
        features, norm = cast(nn.Linear, head.cell_features[0]), cast(nn.LayerNorm, head.cell_features[1])
        self.values = _stacked([*(layer.reading.values for layer in layers), features], dtype)
        self.instead, self.norm = cast(Tensor, features.bias).detach().float(), norm_of(norm)
        self.cell_scores = _stacked([head.cell_scores], dtype)
        expand, contract = (cast(nn.Linear, head.positions[index]) for index in (0, 2))
        self.positions = PositionWeights(*_stacked([expand], torch.float32), *_stacked([contract], dtype))
        self.cell_boxes = FusedBoxes(head.cell_boxes, math.inf, dtype)
        self.boxes = nn.ModuleList(FusedBoxes(cast(nn.Sequential, box), FARTHEST, dtype) for box in head.boxes)
        self.layers = nn.ModuleList(FusedLayer(layer, operations, dtype) for layer in layers)
        self.scores = _stacked([cast(nn.Linear, head.scores[-1])], dtype)
        self._anchors: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self._sizes: list[tuple[int, int]] = []

    def forward(self, features: Sequence[Tensor]) -> Outputs:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32, channels last, to the predictions of N windows."""
        run, windows = self.operations, len(features[0])
        sizes = [(maps.shape[2], maps.shape[3]) for maps in features]
        frame = Sensor(sizes[0][0] * STRIDE, sizes[0][1] * STRIDE)
        values, cells = self._memory(features, sizes)
        anchors, usable = self._anchors_for(sizes, features[0].device)
        found, best = run.score_cells(cells, usable, self.instead, self.norm, *self.cell_scores)
        rows, reference = run.best_cells(found, best, anchors, min(self.queries, len(anchors)))
        box = self.cell_boxes
        inside = run.linear(run.linear(rows, *box.first, activation="relu"), *box.second, activation="relu")
        for layer, following, own in zip(self.layers, self.boxes, values, strict=True):
            reference, positions = run.refine_boxes(inside, box.last, reference, self.positions)
            box = cast(FusedBoxes, following)
            rows = layer(rows, positions, reference, own, sizes, windows)
            norm = cast(FusedLayer, layer).norms[2]
            inside, rows = run.normed_linear(rows, norm, *box.first, activation="relu")
            inside = run.linear(inside, *box.second, activation="relu")
        raw = run.predict_queries(inside, box.last, reference, rows, *self.scores, frame)
        raw = raw.view(windows, -1, raw.shape[1])
        return Outputs(raw[..., :4], class_logits=raw[..., 4:])

    def _memory(self, features: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> tuple[Sequence[Tensor], Tensor]:
        """The values of each decoder layer [N · S, C], and the features of the cells before their norm, [N · S, C]."""
        counts, width, windows = [rows * columns for rows, columns in sizes], len(self.instead), len(features[0])
        memory = torch.empty(windows, sum(counts), width, dtype=self.dtype, device=features[0].device)
        parts = torch.split(memory, counts, 1)
        for maps, weights, part in zip(features, self.projections, parts, strict=True):
            if windows == 1:  # then the pixels of a level are rows that follow each other
                self.operations.linear(rows_of(maps), *weights, out=part[0])
            else:
                part.copy_(self.operations.linear(rows_of(maps), *weights).view(part.shape))
        *values, cells = self.operations.linear(memory.flatten(0, 1), *self.values).split(width, 1)
        return values, cells

    def _anchors_for(self, sizes: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """Initial boxes of all cells as logits [S, 4], and which cells may propose a box [S]."""
        if self._sizes != sizes or self._anchors[0].device != device:
            anchors, valid = cell_anchors(sizes)
            self._anchors, self._sizes = (anchors.to(device), valid[:, 0].to(device)), sizes
        return self._anchors


class FusedLayer(nn.Module):
    """A ``DecoderLayer`` without its last norm."""

    def __init__(self, layer: DecoderLayer, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations, self.heads, self.points = operations, layer.attention.heads, layer.reading.points
        self.tokens = _stacked([layer.attention.query_key_value], dtype)
        self.out = _stacked([layer.attention.output], dtype)
        self.where = _stacked([layer.reading.offsets, layer.reading.weights], dtype)
        self.read = _stacked([layer.reading.output], dtype)
        self.expand = _stacked([cast(nn.Linear, layer.feedforward[0])], dtype)
        self.contract = _stacked([cast(nn.Linear, layer.feedforward[2])], dtype)
        self.norms = norm_of(layer.attention_norm), norm_of(layer.reading_norm), norm_of(layer.feedforward_norm)

    def forward(
        self,
        rows: Tensor,
        positions: Tensor,
        reference: Tensor,
        values: Tensor,
        sizes: Sequence[tuple[int, int]],
        windows: int,
    ) -> Tensor:
        """Queries and positions [N · Q, C], boxes as logits and values [N · S, C] to [N · Q, C] before the norm."""
        run, (first, second, _) = self.operations, self.norms
        width = rows.shape[1]
        tokens = run.linear(rows, *self.tokens, positions=positions, positioned=2 * width)
        attended = run.token_attention(tokens.view(windows, -1, 3 * width), self.heads).flatten(0, 1)
        rows = run.linear(attended, *self.out, residual=rows)
        where, rows = run.normed_linear(rows, first, *self.where, positions=positions, precise=True)
        read = run.read_maps(where, reference, values, sizes, self.heads, self.points)
        rows = run.linear(read, *self.read, residual=rows)
        inside, rows = run.normed_linear(rows, second, *self.expand, activation="relu")
        return cast(Tensor, run.linear(inside, *self.contract, residual=rows))


class FusedBoxes(nn.Module):
    """The network that refines boxes: two layers with ReLU, and the last one."""

    def __init__(self, box: nn.Sequential, farthest: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second, last = (_stacked([cast(nn.Linear, box[index])], dtype) for index in (0, 2, 4))
        self.last = BoxWeights(*last, farthest)


def why_not_fused(head: nn.Module) -> str | None:
    """Why a head cannot be fused; None if it can."""
    if not isinstance(head, RtDetrHead) or len(head.projections) != 3:
        return "its head is not that of RT-DETR"
    width = head.cell_scores.in_features
    reading = cast(DecoderLayer, head.layers[0]).reading
    channels = width // reading.heads
    if channels & (channels - 1) or reading.points & (reading.points - 1):
        return f"its attention heads have {channels} channels, not a power of two"
    if width % 8 or width > LONGEST:
        return f"its queries have {width} channels, not a multiple of 8 up to {LONGEST}"
    return None


def _stacked(linears: Sequence[nn.Linear], dtype: torch.dtype) -> Weights:
    """Layers of the same input as one; biases are float32."""
    weights = torch.cat([linear.weight.detach() for linear in linears])
    biases = torch.cat([cast(Tensor, linear.bias).detach() for linear in linears])
    return weights.to(dtype).contiguous(), biases.float()


def _projection(layer: ConvNormAct, before: nn.Module | None, dtype: torch.dtype) -> Weights:
    """The 1×1 convolution of a map x: of [x, h] if it gets x + before(h)."""
    weight, bias = layer.conv.weight.detach().flatten(1).double(), cast(Tensor, layer.conv.bias).detach().double()
    if before is not None:
        bias = bias + weight @ cast(Tensor, before.bias).detach().double()
        weight = torch.cat([weight, weight @ cast(Tensor, before.weight).detach().flatten(1).double()], 1)
    return weight.to(dtype).contiguous(), bias.float()
