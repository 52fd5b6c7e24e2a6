"""PResNet for one window after another: cuDNN's convolutions with bias, sum and ReLU in one kernel each."""

from __future__ import annotations

from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.backbones.presnet import PResNet, ResidualBlock
from fate.models.detector import Frame
from fate.models.fused.canvas import Canvas, padded_weight
from fate.models.layers.conv import ConvNormAct
from fate.models.state import State


class FusedPResNet(nn.Module):
    """A trained ``PResNet`` with folded BatchNorm; the images need not be padded."""

    def __init__(self, backbone: PResNet, frame: Frame, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and features."""
        super().__init__()
        self.canvas = Canvas(frame, dtype)
        *inner, last = (FusedConvReLU(cast(ConvNormAct, layer).conv, operations, dtype) for layer in backbone.stem)
        for conv in inner:  # few channels are padded too
            conv.weight = _constant(padded_weight(padded_weight(conv.weight), axis=0), dtype)
            conv.bias = _constant(padded_weight(conv.bias, axis=0), dtype)
        last.weight = _constant(padded_weight(last.weight), dtype)
        self.stem = nn.Sequential(*inner, last)
        self.stages = nn.ModuleList(
            nn.Sequential(
                *(FusedResidual(cast(ResidualBlock, block), operations, dtype) for block in cast(nn.Sequential, stage))
            )
            for stage in backbone.stages
        )

    def forward(
        self, images: Tensor, state: State = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], None]:
        """Same arguments and results as ``PResNet.forward``; features have the type of the weights."""
        if steps != 1:
            raise FateError(f"steps={steps} was given; a fused backbone takes one window of each stream")
        maps = functional.max_pool2d(self.stem(self.canvas(images)), kernel_size=3, stride=2, padding=1)
        features = []
        for stage in self.stages:
            maps = stage(maps)
            features.append(maps)
        return features[1:], None


class FusedConvReLU(nn.Module):
    """ReLU of a convolution with a bias."""

    def __init__(self, conv: nn.Conv2d, operations: ModuleType, dtype: torch.dtype, more_bias: Tensor | float = 0.0):
        super().__init__()
        self.operations, self.stride = operations, conv.stride[0]
        self.padding = cast(tuple[int, ...], conv.padding)[0]
        self.weight = _constant(conv.weight, dtype)
        self.bias = _constant(cast(Tensor, conv.bias).detach() + more_bias, dtype)

    def forward(self, images: Tensor, added: Tensor | None = None) -> Tensor:
        """[N, in, H, W] to [N, out, H', W']; ``added`` is part of the sum."""
        return cast(Tensor, self.operations.conv_relu(images, self.weight, self.bias, self.stride, self.padding, added))


class FusedResidual(nn.Module):
    """A ``ResidualBlock``: the last convolution adds the shortcut."""

    def __init__(self, block: ResidualBlock, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.halves = block.stride == 2
        *first, last = (cast(ConvNormAct, part).conv for part in block.branch)
        self.first = nn.Sequential(*(FusedConvReLU(conv, operations, dtype) for conv in first))
        self.shortcut: nn.Parameter | None = None
        bias: Tensor | float = 0.0
        if isinstance(block.shortcut, ConvNormAct):  # its bias is added with that of the branch
            self.shortcut = _constant(block.shortcut.conv.weight, dtype)
            bias = cast(Tensor, block.shortcut.conv.bias).detach()
        self.last = FusedConvReLU(last, operations, dtype, bias)

    def forward(self, maps: Tensor) -> Tensor:
        """[N, in, H, W] to [N, out, H / stride, W / stride], rounded up."""
        shortcut = functional.avg_pool2d(maps, 2, ceil_mode=True) if self.halves else maps
        if self.shortcut is not None:
            shortcut = functional.conv2d(shortcut, self.shortcut)
        return cast(Tensor, self.last(self.first(maps), shortcut))


def why_not_fused(backbone: nn.Module, frame: Frame) -> str | None:
    """Why a backbone cannot be fused; None if it can."""
    if not isinstance(backbone, PResNet):
        return "its backbone is not that of EvRT-DETR"
    if backbone.length_affine:
        return "its norms depend on the length of the window"
    return 'its stem repeats cells (stem="upsample")' if frame.repeat > 1 else None


def _constant(weight: Tensor, dtype: torch.dtype) -> nn.Parameter:
    kept = weight.detach().to(dtype, copy=True)
    return nn.Parameter(
        kept.contiguous(memory_format=torch.channels_last) if kept.ndim == 4 else kept, requires_grad=False
    )
