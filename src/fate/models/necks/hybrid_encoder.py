"""The hybrid encoder of RT-DETR (Zhao et al. 2024): attention in the coarsest feature map, convolutions across all.

AIFI, attention-based intra-scale feature interaction, is one Transformer layer over the cells at stride 32. CCFF, the
CNN-based cross-scale feature fusion, fuses the maps from stride 32 to stride 8 and back:

    p8, p16, p32   1×1 convolutions of the backbone's maps, all to the same channels; p32 passes through AIFI
    t32            = lateral(p32)
    t16            = lateral(fuse[2 × t32, p16]);   t8 = fuse[2 × t16, p8]          top-down
    out: t8;  o16  = fuse[down(t8), t16];  o32 = fuse[down(o16), t32]               bottom-up

``fuse`` is a CSP layer of RepVGG blocks (Ding et al. 2021): parallel 3×3 and 1×1 convolutions in training, a single
3×3 convolution after ``fuse_()``. All sizes are those of the public RT-DETR; see also ``position_table``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.errors import FateError
from fate.models.layers.attention import PositionalSelfAttention
from fate.models.layers.conv import ConvNormAct


class HybridEncoder(nn.Module):
    """Feature maps at strides 8, 16, 32 to fused feature maps at the same strides, all of ``width`` channels."""

    def __init__(
        self,
        in_channels: Sequence[int],
        width: int = 256,
        heads: int = 8,
        feedforward: int = 1024,
        expansion: float = 1.0,
        blocks: int = 3,
    ) -> None:
        """``expansion``: channels inside a CSP layer over ``width``; ``blocks``: RepVGG blocks of a CSP layer."""
        super().__init__()
        between = range(len(in_channels) - 1)
        self.channels = (width,) * len(in_channels)
        self.projections = nn.ModuleList(ConvNormAct(channels, width, activation="none") for channels in in_channels)
        self.attention = AIFI(width, heads, feedforward)
        # In the order in which they run: top-down starts at the coarsest map, bottom-up at the finest.
        self.laterals = nn.ModuleList(ConvNormAct(width, width) for _ in between)
        self.top_down = nn.ModuleList(CSPRep(2 * width, width, expansion, blocks) for _ in between)
        self.downsamples = nn.ModuleList(ConvNormAct(width, width, kernel=3, stride=2) for _ in between)
        self.bottom_up = nn.ModuleList(CSPRep(2 * width, width, expansion, blocks) for _ in between)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32 to [N, width, H_i, W_i]."""
        *finer, coarse = (project(maps) for project, maps in zip(self.projections, features, strict=True))
        coarse = self.attention(coarse)
        waiting = []
        for lateral, fuse, fine in zip(self.laterals, self.top_down, reversed(finer), strict=True):
            coarse = lateral(coarse)
            waiting.append(coarse)
            coarse = fuse(torch.cat((functional.interpolate(coarse, scale_factor=2.0, mode="nearest"), fine), dim=1))
        outputs = [coarse]
        for downsample, fuse, coarser in zip(self.downsamples, self.bottom_up, reversed(waiting), strict=True):
            outputs.append(fuse(torch.cat((downsample(outputs[-1]), coarser), dim=1)))
        return outputs

    def fuse_(self) -> None:
        """Replace every RepVGG block permanently by the equivalent single convolution, for inference."""
        for module in self.modules():
            if isinstance(module, CSPRep):
                module.blocks = nn.Sequential(*(b.fused() if isinstance(b, RepVGG) else b for b in module.blocks))


class AIFI(PositionalSelfAttention):
    """One Transformer layer over the cells of a map; LayerNorm follows each sum (post-norm)."""

    positions: Tensor

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__(width, heads)
        if width % 4:
            raise FateError(f"width {width} was given; expected a multiple of 4, for sine and cosine of x and y")
        self.norm1 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm2 = nn.LayerNorm(width)
        self.register_buffer("positions", torch.empty(0), persistent=False)
        self.size = (0, 0)

    def forward(self, maps: Tensor) -> Tensor:  # type: ignore[override]  # the position table belongs to the layer
        """[N, C, H, W] → [N, C, H, W]."""
        rows, columns = maps.shape[2:]
        if self.size != (rows, columns):  # computed once for each size of image
            with torch.inference_mode(False):
                self.positions = position_table(rows, columns, maps.shape[1]).to(self.norm1.weight)
            self.size = (rows, columns)
        tokens: Tensor = maps.flatten(2).transpose(1, 2)
        tokens = self.norm1(tokens + super().forward(tokens, self.positions))
        tokens = self.norm2(tokens + self.linear2(functional.gelu(self.linear1(tokens))))
        return tokens.transpose(1, 2).reshape(maps.shape)


def position_table(rows: int, columns: int, width: int, temperature: float = 10_000.0) -> Tensor:
    """[rows · columns, width] sines and cosines: sin x, cos x, sin y, cos y, a quarter of the width each.

    The table is column by column, but tokens are row by row: on a map that is not square, a token gets the position of
    another cell. All public weights of EvRT-DETR were trained this way, so we do the same.
    """
    x, y = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij")
    frequencies = 1.0 / temperature ** (torch.arange(width // 4, dtype=torch.float32) / (width // 4))
    across, down = (axis.reshape(-1, 1) * frequencies for axis in (x, y))
    return torch.cat((across.sin(), across.cos(), down.sin(), down.cos()), dim=1)


class CSPRep(nn.Module):
    """[N, C, H, W] → [N, channels, H, W]: two 1×1 convolutions, one of them followed by RepVGG blocks, summed."""

    def __init__(self, in_channels: int, channels: int, expansion: float, blocks: int) -> None:
        super().__init__()
        hidden = int(channels * expansion)
        self.main = ConvNormAct(in_channels, hidden)
        self.side = ConvNormAct(in_channels, hidden)
        self.blocks = nn.Sequential(*(RepVGG(hidden) for _ in range(blocks)))
        self.output = nn.Identity() if hidden == channels else ConvNormAct(hidden, channels)

    def forward(self, maps: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.blocks(self.main(maps)) + self.side(maps)))


class RepVGG(nn.Module):
    """SiLU(BatchNorm(3×3) + BatchNorm(1×1)) of [N, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.kernel3 = ConvNormAct(channels, channels, kernel=3, activation="none")
        self.kernel1 = ConvNormAct(channels, channels, kernel=1, activation="none")

    def forward(self, maps: Tensor) -> Tensor:
        return functional.silu(self.kernel3(maps) + self.kernel1(maps), inplace=True)

    def fused(self) -> nn.Sequential:
        """The equivalent in evaluation: SiLU of one 3×3 convolution; the 1×1 kernel is padded to 3×3 with zeros."""
        weight3, bias3 = _with_norm(self.kernel3)
        weight1, bias1 = _with_norm(self.kernel1)
        conv = nn.Conv2d(weight3.shape[1], weight3.shape[0], 3, padding=1)
        conv.weight = nn.Parameter(weight3 + functional.pad(weight1, (1, 1, 1, 1)), requires_grad=False)
        conv.bias = nn.Parameter(bias3 + bias1, requires_grad=False)
        return nn.Sequential(conv, nn.SiLU(inplace=True))


def _with_norm(layer: ConvNormAct) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution that is equivalent to the layer's convolution and BatchNorm in evaluation."""
    norm = layer.norm
    scale = norm.weight / (cast(Tensor, norm.running_var) + norm.eps).sqrt()
    weight = layer.conv.weight * scale[:, None, None, None]
    return weight.detach(), (norm.bias - cast(Tensor, norm.running_mean) * scale).detach()
