"""PAFPN: the neck of YOLOX (Ge et al., 2021), which fuses feature maps of three strides.

A feature pyramid carries information from coarse maps to fine ones, and a path aggregation back to coarse ones (Liu et
al., 2018). Two maps are concatenated (cat), the rescaled one first, and fused by a CSP layer. As in RVT: SiLU,
BatchNorm with PyTorch's eps and momentum, bottlenecks without shortcut, PyTorch's initialisation.

    stride 8    x8 ──────────────────── cat ─ fuse_8 ─┬──────────────────────────── out 8
                                        │ ×2          └ halve_8 ─┐
    stride 16   x16 ─── cat ─ fuse_16 ─ narrow_16 ────────────── cat ── mix_16 ─┬── out 16
                        │ ×2                                                    └ halve_16 ─┐
    stride 32   x32 ─ narrow_32 ─────────────────────────────────────────────────────────── cat ── mix_32 ─ out 32
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.models.layers.conv import Activation, ConvNormAct, side_by_side


class PAFPN(nn.Module):
    """Three feature maps to three fused feature maps of the same strides and channels.

    With ``depthwise``, for small models, a 1×1 and a depthwise 3×3 convolution replace each CSP layer, and maps are
    halved by depthwise convolutions. ``bottlenecks`` is their number in each CSP layer.
    """

    def __init__(
        self, channels: Sequence[int], bottlenecks: int = 2, depthwise: bool = False, activation: Activation = "silu"
    ) -> None:
        super().__init__()
        fine, middle, coarse = self.channels = tuple(channels)
        conv = partial(ConvNormAct, activation=activation)

        def mix(in_channels: int, out_channels: int) -> nn.Module:
            if not depthwise:
                return CSPLayer(in_channels, out_channels, bottlenecks, activation)
            return nn.Sequential(
                conv(in_channels, out_channels), conv(out_channels, out_channels, kernel=3, groups=out_channels)
            )

        self.narrow_32 = conv(coarse, middle)
        self.fuse_16 = mix(2 * middle, middle)
        self.narrow_16 = conv(middle, fine)
        self.fuse_8 = mix(2 * fine, fine)
        self.halve_8 = conv(fine, fine, kernel=3, stride=2, groups=fine if depthwise else 1)
        self.mix_16 = mix(2 * fine, middle)
        self.halve_16 = conv(middle, middle, kernel=3, stride=2, groups=middle if depthwise else 1)
        self.mix_32 = mix(2 * middle, coarse)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32 → the same shapes."""
        x8, x16, x32 = features
        narrow_32 = self.narrow_32(x32)
        narrow_16 = self.narrow_16(self.fuse_16(torch.cat([_doubled(narrow_32), x16], dim=1)))
        out_8: Tensor = self.fuse_8(torch.cat([_doubled(narrow_16), x8], dim=1))
        out_16: Tensor = self.mix_16(torch.cat([self.halve_8(out_8), narrow_16], dim=1))
        out_32: Tensor = self.mix_32(torch.cat([self.halve_16(out_16), narrow_32], dim=1))
        return [out_8, out_16, out_32]


class CSPLayer(nn.Module):
    """[N, in, H, W] → [N, out, H, W]: half of the channels pass through the bottlenecks, the other half bypasses them.

    Each bottleneck is a 1×1 and a 3×3 convolution of the same width.
    """

    def __init__(self, in_channels: int, out_channels: int, bottlenecks: int, activation: Activation = "silu") -> None:
        super().__init__()
        hidden = out_channels // 2
        conv = partial(ConvNormAct, activation=activation)
        self.narrow: ConvNormAct | None = conv(in_channels, hidden)
        self.bypass: ConvNormAct | None = conv(in_channels, hidden)
        self.both: ConvNormAct | None = None
        self.bottlenecks = nn.Sequential(
            *(nn.Sequential(conv(hidden, hidden), conv(hidden, hidden, kernel=3)) for _ in range(bottlenecks))
        )
        self.merge = conv(2 * hidden, out_channels)

    def forward(self, images: Tensor) -> Tensor:
        if self.narrow is not None and self.bypass is not None:
            narrow, around = self.narrow(images), self.bypass(images)
        else:
            narrow, around = self.both(images).chunk(2, dim=1)  # type: ignore[misc]
        return cast(Tensor, self.merge(torch.cat([self.bottlenecks(narrow), around], dim=1)))

    def fuse_(self) -> None:
        """Merge the two convolutions of the input permanently; BatchNorm must be folded already."""
        if self.narrow is not None and self.bypass is not None:
            self.both, self.narrow.conv = self.narrow, side_by_side([self.narrow.conv, self.bypass.conv])
            self.narrow = self.bypass = None


def _doubled(images: Tensor) -> Tensor:
    """Repeat each pixel 2 × 2; RVT's "nearest-exact" is the same as "nearest" for a factor of 2."""
    return functional.interpolate(images, scale_factor=2.0, mode="nearest")
