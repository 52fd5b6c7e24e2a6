"""YOLOX's head in the operations of ``reference`` or ``kernels``: one kernel for a layer of all levels and both towers.

The first convolutions of both towers have the same input, so they are one convolution; the second ones are one with two
groups. The last layer also decodes the boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.models.fused.pafpn import Pointwise, rows_of, stacked
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.conv import ConvNormAct, block_diagonal, side_by_side
from fate.models.outputs import Outputs


class FusedYOLOXHead(nn.Module):
    """A trained ``YOLOXHead`` with folded BatchNorm; predictions are in float32."""

    def __init__(self, head: YOLOXHead, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and maps."""
        super().__init__()
        self.operations, self.strides = operations, head.strides
        self.stems = nn.ModuleList(Pointwise(cast(ConvNormAct, stem), operations, dtype) for stem in head.stems)
        layers = []
        for number in ("0", "1"):
            pairs = zip(head.box_towers, head.class_towers, strict=True)
            layers.append(
                [
                    side_by_side([cast(ConvNormAct, tower.get_submodule(number)).conv for tower in pair])
                    for pair in pairs
                ]
            )
        last = []
        for level in range(len(self.strides)):
            boxes, objects, classes = (
                cast(nn.Conv2d, predictions[level])
                for predictions in (head.box_predictions, head.object_predictions, head.class_predictions)
            )
            last.append(block_diagonal([side_by_side([boxes, objects]), classes]))
        self.first = stacked([conv.weight for conv in layers[0]], 1, dtype)
        self.second = stacked([conv.weight for conv in layers[1]], 2, dtype)
        self.last = torch.stack([conv.weight.flatten(1) for conv in last]).to(dtype)
        self.first_bias, self.second_bias, self.last_bias = (
            torch.stack([cast(Tensor, conv.bias) for conv in convs]).detach().float() for convs in (*layers, last)
        )

    def forward(self, features: Sequence[Tensor]) -> Outputs:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32, channels last, to the predictions of N windows."""
        run, windows = self.operations, len(features[0])
        sizes = [(maps.shape[2], maps.shape[3]) for maps in features]
        counts = [height * width for height, width in sizes]
        width = len(cast(Pointwise, self.stems[0]).weight)
        stems = torch.empty(windows, sum(counts), width, dtype=self.first.dtype, device=features[0].device)
        for stem, maps, part in zip(self.stems, features, torch.split(stems, counts, 1), strict=True):
            if windows == 1:  # then the pixels of a level are rows that follow each other
                stem(rows_of(maps), out=part[0])
            else:
                part.copy_(stem(rows_of(maps)).view(part.shape))
        towers = run.conv(stems, sizes, self.first, self.first_bias)
        towers = run.conv(towers, sizes, self.second, self.second_bias)
        raw = run.predict(towers, sizes, self.strides, self.last, self.last_bias)
        return Outputs(raw[..., :4], class_logits=raw[..., 5:], objectness=raw[..., 4])


def why_not_fused(head: nn.Module) -> str | None:
    """Why a head cannot be fused; None if it can."""
    if not isinstance(head, YOLOXHead) or head.depthwise:
        return "its head is not YOLOX with full convolutions"
    if not isinstance(cast(ConvNormAct, head.stems[0]).activation, nn.SiLU):
        return "the activation of its head is not SiLU"
    return None
