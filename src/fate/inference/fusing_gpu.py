"""Convolution, bias and activation of a detector in one or two kernels on a GPU, for inference in 32 bits.

In a CUDA graph of a single window, most kernels take 2 to 4 µs, however little they compute. torch starts one kernel
for a convolution, one for its bias and one for its activation. cuDNN has a kernel for convolution, bias and ReLU, and
one that also adds another tensor, such as the shortcut of a residual block. For SiLU and Hardswish, a kernel of ours
adds the bias and applies the activation in place.

``fuse_for_gpu_`` changes a detector that ``fused`` has returned. The readable reference is the detector before the
call: outputs are equal up to rounding.
"""

from __future__ import annotations

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fate.models.backbones.presnet import ResidualBlock
from fate.models.layers.conv import ConvNormAct

#: Numbers that a program of the kernel processes; a small map still occupies many processors.
TILE = 1024


def fuse_for_gpu_(detector: nn.Module) -> None:
    """Replace convolutions in a fused detector by ``ConvReLU``, ``ConvActivation`` and ``ResidualReLU``."""
    for parent in list(detector.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, ConvNormAct) and _is_folded(module):
                if isinstance(module.activation, nn.ReLU):
                    setattr(parent, name, ConvReLU(module.conv))
                elif isinstance(module.activation, nn.SiLU | nn.Hardswish) and module.conv.groups == 1:
                    setattr(parent, name, ConvActivation(module.conv, isinstance(module.activation, nn.SiLU)))
            elif isinstance(module, ResidualBlock) and module.length_affine is None:
                setattr(parent, name, ResidualReLU(module))


def _is_folded(module: ConvNormAct) -> bool:
    """Whether nothing stands between convolution and activation."""
    return isinstance(module.norm, nn.Identity) and module.length_affine is None and module.conv.bias is not None


def _sides(conv: nn.Conv2d) -> tuple[int, ...]:
    """The padding of a convolution; that of ``ConvNormAct`` is always given in numbers."""
    return cast(tuple[int, ...], conv.padding)


class ConvReLU(nn.Module):
    """ReLU of a convolution with a bias: one kernel of cuDNN."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, images: Tensor, length: Tensor | None = None) -> Tensor:
        """[N, in, H, W] to [N, out, H', W']; ``length`` has no effect."""
        conv = self.conv
        return torch.cudnn_convolution_relu(
            images, conv.weight, conv.bias, conv.stride, _sides(conv), conv.dilation, conv.groups
        )  # fmt: skip


class ResidualReLU(nn.Module):
    """A residual block whose last convolution adds the shortcut and applies ReLU in one kernel of cuDNN."""

    def __init__(self, block: ResidualBlock) -> None:
        super().__init__()
        self.stride = block.stride
        *first, last = (cast(ConvNormAct, part) for part in block.branch)
        self.first = nn.Sequential(*(ConvReLU(part.conv) for part in first))
        self.last = last.conv
        bias = cast(Tensor, last.conv.bias)
        self.shortcut: nn.Conv2d | None = None
        if isinstance(block.shortcut, ConvNormAct):  # its bias is added with that of the branch
            conv = block.shortcut.conv
            bias = bias + cast(Tensor, conv.bias)
            conv.bias = None
            self.shortcut = conv
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, maps: Tensor, length: Tensor | None = None) -> Tensor:
        """[N, in, H, W] to [N, out, H / stride, W / stride], rounded up; ``length`` has no effect."""
        shortcut = nn.functional.avg_pool2d(maps, 2, ceil_mode=True) if self.stride == 2 else maps
        if self.shortcut is not None:
            shortcut = self.shortcut(shortcut)
        last = self.last
        return torch.cudnn_convolution_add_relu(
            self.first(maps), last.weight, shortcut, 1.0, self.bias, last.stride, _sides(last), last.dilation,
            last.groups,
        )  # fmt: skip


class ConvActivation(nn.Module):
    """SiLU or Hardswish of a convolution with a bias: the convolution, then one kernel in place."""

    def __init__(self, conv: nn.Conv2d, silu: bool) -> None:
        super().__init__()
        self.conv, self.silu = conv, silu

    def forward(self, images: Tensor, length: Tensor | None = None) -> Tensor:
        """[N, in, H, W] to [N, out, H', W']; ``length`` has no effect."""
        conv = self.conv
        filtered = nn.functional.conv2d(
            images, conv.weight, None, conv.stride, conv.padding, conv.dilation, conv.groups
        )
        filtered = filtered.contiguous(memory_format=torch.channels_last)
        count = filtered.numel()
        _add_bias_and_activate[(triton.cdiv(count, TILE),)](
            filtered, conv.bias, count, conv.out_channels, self.silu, TILE
        )
        return filtered


@triton.jit
def _add_bias_and_activate(values, bias, count, channels, silu: tl.constexpr, tile: tl.constexpr):
    """Channels are the fastest axis of ``values``."""
    index = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = index < count
    x = tl.load(values + index, mask=inside).to(tl.float32) + tl.load(bias + index % channels, mask=inside)
    y = x * tl.sigmoid(x) if silu else x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    tl.store(values + index, y.to(values.dtype.element_ty), mask=inside)
