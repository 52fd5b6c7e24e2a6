"""YOLOX's head in the operations of ``reference`` or ``kernels``: one kernel for a layer of all levels and both towers.

The first convolutions of both towers have the same input, so they are one convolution; the second ones are one with two
groups. The last layer also decodes the boxes. In the smallest detectors a depthwise convolution follows the stems, and
a 1×1 convolution takes the place of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.models.fused.pafpn import Pointwise, filters, rows_of, stacked
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.conv import ConvNormAct, block_diagonal, side_by_side
from fate.models.outputs import Outputs


class FusedYOLOXHead(nn.Module):
    """A trained ``YOLOXHead`` with folded BatchNorm; predictions are in float32."""

    def __init__(self, head: YOLOXHead, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and maps."""
        super().__init__()
        self.operations, self.strides = operations, head.strides
        narrow = [cast(ConvNormAct, stem.get_submodule("0") if head.depthwise else stem) for stem in head.stems]
        self.stems = nn.ModuleList(Pointwise(stem, operations, dtype) for stem in narrow)
        self.activation = cast(Pointwise, self.stems[0]).activation
        #: The convolution, weight and bias of each layer between the stems and the last layer.
        self.layers: list[tuple[Callable[..., Tensor], Tensor, Tensor]] = []
        if head.depthwise:
            levels = [cast(nn.Sequential, level) for level in cast(nn.ModuleList, head.merged)]
            spread = [cast(ConvNormAct, stem.get_submodule("1")).conv for stem in head.stems]
            towers = [cast(ConvNormAct, level[0]).conv for level in levels]
            last = [cast(nn.Conv2d, level[1]) for level in levels]
            weight = filters([conv.weight for conv in spread], dtype)
            self.layers.append((operations.depthwise, weight, _biases(spread)))
            weight = stacked([conv.weight for conv in towers], 1, dtype)
            self.layers.append((operations.conv, weight, _biases(towers)))
        else:
            for number in (0, 1):
                pairs = zip(head.box_towers, head.class_towers, strict=True)
                convs = [
                    side_by_side([cast(ConvNormAct, tower.get_submodule(str(number))).conv for tower in pair])
                    for pair in pairs
                ]
                weight = stacked([conv.weight for conv in convs], 1 + number, dtype)
                self.layers.append((operations.conv, weight, _biases(convs)))
            last = [_last_layer(head, level) for level in range(len(self.strides))]
        self.last, self.last_bias = torch.stack([conv.weight.flatten(1) for conv in last]).to(dtype), _biases(last)

    def forward(self, features: Sequence[Tensor]) -> Outputs:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32, channels last, to the predictions of N windows."""
        windows = len(features[0])
        sizes = [(maps.shape[2], maps.shape[3]) for maps in features]
        counts = [height * width for height, width in sizes]
        width = len(cast(Pointwise, self.stems[0]).weight)
        maps = torch.empty(windows, sum(counts), width, dtype=self.last.dtype, device=features[0].device)
        for stem, level, part in zip(self.stems, features, torch.split(maps, counts, 1), strict=True):
            if windows == 1:  # then the pixels of a level are rows that follow each other
                stem(rows_of(level), out=part[0])
            else:
                part.copy_(stem(rows_of(level)).view(part.shape))
        for convolve, weight, bias in self.layers:
            maps = convolve(maps, sizes, weight, bias, activation=self.activation)
        raw = self.operations.predict(maps, sizes, self.strides, self.last, self.last_bias)
        return Outputs(raw[..., :4], class_logits=raw[..., 5:], objectness=raw[..., 4])


def why_not_fused(head: nn.Module) -> str | None:
    """Why a head cannot be fused; None if it can."""
    return None if isinstance(head, YOLOXHead) else "its head is not that of YOLOX"


def _last_layer(head: YOLOXHead, level: int) -> nn.Conv2d:
    """The predictions of a level from the channels of both towers."""
    boxes, objects, classes = (
        cast(nn.Conv2d, predictions[level])
        for predictions in (head.box_predictions, head.object_predictions, head.class_predictions)
    )
    return block_diagonal([side_by_side([boxes, objects]), classes])


def _biases(convs: Sequence[nn.Conv2d]) -> Tensor:
    """[levels, out] float32."""
    return torch.stack([cast(Tensor, conv.bias) for conv in convs]).detach().float()
