"""PResNet, variant d: the backbone of RT-DETR, and of EvRT-DETR for event images.

A ResNet (He et al. 2016) with the two changes of "vd" (He et al. 2019, Bag of Tricks): three 3×3 convolutions replace
the 7×7 stem, and the shortcut of a stage that halves the image averages 2×2 cells instead of skipping three of four.

    stem        3×3 / stem_stride, 3×3, 3×3, max pooling 3×3 / 2            stride 4
    stages 1–4  residual blocks, the first of stages 2–4 with stride 2      strides 4, 8, 16, 32

Depths 50 and 101 consist of bottlenecks (1×1, 3×3, 1×1 with four times the width), the others of basic blocks (3×3,
3×3). Depth 10, with one block per stage, is not published; it is for small models. BatchNorm is trained, and weights
have PyTorch's initialisation, since the public code of EvRT-DETR trains from scratch on events.

With ``length_affine`` the last channel of an image is the length of its window (``encoding.window_length``), and a
``LengthAffine`` follows the last norm of the stem and of every stage, before the activation. In a residual block the
sum of branch and shortcut takes it, since both may end with a norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.conv import ConvNormAct
from fate.models.layers.length_affine import LengthAffine, split_length
from fate.models.state import State

#: Blocks of each stage.
BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class PResNet(nn.Module):
    """Images to feature maps at strides 8, 16 and 32, of ``channels`` channels, without memory."""

    def __init__(
        self,
        in_channels: int,
        depth: int = 50,
        stem_stride: int = 2,
        widths: Sequence[int] = (64, 128, 256, 512),
        length_affine: bool = False,
    ) -> None:
        """Args:
        in_channels: of the images.
        depth: one of ``BLOCKS``.
        stem_stride: 2 for images at the sensor's resolution, 1 for pillars of two pixels.
        widths: channels of the 3×3 convolutions of each stage; the first, also of the stem, must be even.
        length_affine: make scale and offset of every stage depend on the length of the window, which is then the last
            of the ``in_channels``.
        """
        super().__init__()
        if depth not in BLOCKS:
            raise FateError(f"depth {depth} was given; expected one of {', '.join(map(str, BLOCKS))}")
        if len(widths) != 4 or widths[0] % 2:
            raise FateError(f"widths {tuple(widths)} were given; expected four, the first of them even")
        half, width = widths[0] // 2, widths[0]
        self.length_affine = length_affine
        self.stem = nn.Sequential(
            ConvNormAct(in_channels - length_affine, half, 3, stem_stride, activation="relu"),
            ConvNormAct(half, half, 3, activation="relu"),
            ConvNormAct(half, width, 3, activation="relu", length_affine=length_affine),
        )
        self.stages = nn.ModuleList()
        outputs = []
        for index, (width_here, blocks) in enumerate(zip(widths, BLOCKS[depth], strict=True)):
            stage = nn.Sequential()
            for block in range(blocks):
                stride = 2 if index > 0 and block == 0 else 1
                stage.append(ResidualBlock(width, width_here, stride, first=block == 0, bottleneck=depth >= 50))
                width = width_here * (4 if depth >= 50 else 1)
            if length_affine:
                stage[-1].length_affine = LengthAffine(width)
            self.stages.append(stage)
            outputs.append(width)
        self.channels = tuple(outputs[1:])

    def forward(
        self, images: Tensor, state: State = None, steps: int = 1, step_scale: float | Tensor = 1.0
    ) -> tuple[list[Tensor], None]:
        """[N, C, H, W], H and W multiples of 16 · ``stem_stride``, to feature maps [N, C_i, H_i, W_i], and no state.

        ``state``, ``steps`` and ``step_scale``, which all backbones take, have no effect.
        """
        maps, length = split_length(images) if self.length_affine else (images, None)
        for layer in self.stem:
            maps = layer(maps, length)
        maps = functional.max_pool2d(maps, kernel_size=3, stride=2, padding=1)
        features = []
        for stage in self.stages:
            for block in cast(nn.Sequential, stage):
                maps = block(maps, length)
            features.append(maps)
        return features[1:], None


class ResidualBlock(nn.Module):
    """ReLU(branch(x) + shortcut(x)): [N, C, H, W] → [N, channels, H / stride, W / stride], rounded up."""

    length_affine: LengthAffine | None

    def __init__(self, in_channels: int, width: int, stride: int, first: bool, bottleneck: bool) -> None:
        """The shortcut of the ``first`` block of a stage is a 1×1 convolution, even if the channels do not change."""
        super().__init__()
        channels = 4 * width if bottleneck else width
        if bottleneck:
            self.branch = nn.Sequential(
                ConvNormAct(in_channels, width, 1, activation="relu"),
                ConvNormAct(width, width, 3, stride, activation="relu"),
                ConvNormAct(width, channels, 1, activation="none"),
            )
        else:
            self.branch = nn.Sequential(
                ConvNormAct(in_channels, width, 3, stride, activation="relu"),
                ConvNormAct(width, width, 3, activation="none"),
            )
        self.stride = stride
        self.length_affine = None  # in the last block of a stage, if asked for
        self.shortcut = ConvNormAct(in_channels, channels, 1, activation="none") if first else nn.Identity()

    def forward(self, maps: Tensor, length: Tensor | None = None) -> Tensor:
        """``length``: l of each window, for ``length_affine``; has no effect without it."""
        averaged = averaged_cells(maps) if self.stride == 2 else maps
        branch: Tensor = self.branch(maps)
        total = branch + self.shortcut(averaged)
        if self.length_affine is not None:
            total = self.length_affine(total, length)
        return functional.relu_(total)


def averaged_cells(maps: Tensor) -> Tensor:
    """Averages of 2×2 cells: [N, C, H, W] → [N, C, H / 2, W / 2], rounded up.

    An odd last row or column becomes a cell of its own, as in the strided convolution of the branch.
    """
    last = maps.is_cuda and maps.is_contiguous(memory_format=torch.channels_last)
    trains = torch.is_grad_enabled() and maps.requires_grad and not torch.compiler.is_compiling()
    if last and trains and maps.shape[2] % 2 == 0 and maps.shape[3] % 2 == 0:
        return cast(Tensor, AveragedCells.apply(maps))  # type: ignore[no-untyped-call]
    return functional.avg_pool2d(maps, 2, ceil_mode=True)


class AveragedCells(torch.autograd.Function):
    """``avg_pool2d`` of 2×2 cells for even sizes; its backward pass is a copy instead of torch's search for cells.

    Values and gradients are torch's to the bit, since a quarter is exact.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        return functional.avg_pool2d(maps, 2)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        quarter = (grad[0] * 0.25).permute(0, 2, 3, 1)  # [N, H / 2, W / 2, C]
        number, rows, columns, channels = quarter.shape
        cells = quarter[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
        return cells.reshape(number, 2 * rows, 2 * columns, channels).permute(0, 3, 1, 2)
