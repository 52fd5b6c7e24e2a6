"""The neck of RT-DETR in the operations of ``reference`` or ``kernels``: products read two maps, norms are prologues.

The maps of strides 8 and 16 are projected and then enter 1×1 convolutions, with no activation between: the product of
both weights is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.models.fused.maxvit import norm_of
from fate.models.fused.pafpn import FusedConv, Pointwise, Size, rows_of, stacked
from fate.models.layers.conv import ConvNormAct
from fate.models.necks.hybrid_encoder import AIFI, CSPRep, HybridEncoder, position_table


class FusedHybridEncoder(nn.Module):
    """A trained ``HybridEncoder`` of three maps, with merged RepVGG blocks and folded BatchNorm."""

    def __init__(self, neck: HybridEncoder, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and maps."""
        super().__init__()
        *finer, coarse = (cast(ConvNormAct, layer).conv for layer in neck.projections)
        laterals = [cast(ConvNormAct, layer) for layer in neck.laterals]
        self.attention = FusedAIFI(neck.attention, coarse, laterals[0], operations, dtype)
        self.lateral = Pointwise(laterals[1], operations, dtype)
        self.top_down = nn.ModuleList(
            FusedCSPRep(cast(CSPRep, fuse), conv, operations, dtype)
            for fuse, conv in zip(neck.top_down, reversed(finer), strict=True)
        )
        self.downsamples = nn.ModuleList(FusedConv(layer, operations, dtype) for layer in neck.downsamples)
        self.bottom_up = nn.ModuleList(
            FusedCSPRep(cast(CSPRep, fuse), None, operations, dtype) for fuse in neck.bottom_up
        )

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32, channels last, to [N, width, H_i, W_i]."""
        at_8, at_16, at_32 = sizes = [(len(maps), maps.shape[2], maps.shape[3]) for maps in features]
        x8, x16, x32 = (rows_of(maps) for maps in features)
        narrow_32 = self.attention(x32, at_32)
        narrow_16 = self.lateral(self.top_down[0](narrow_32, x16, at_16, doubled=True))
        out_8 = self.top_down[1](narrow_16, x8, at_8, doubled=True)
        out_16 = self.bottom_up[0](self.downsamples[0](out_8, at_8), narrow_16, at_16)
        out_32 = self.bottom_up[1](self.downsamples[1](out_16, at_16), narrow_32, at_32)
        rows = (out_8, out_16, out_32)
        return [part.view(*size, -1).permute(0, 3, 1, 2) for part, size in zip(rows, sizes, strict=True)]


class FusedAIFI(nn.Module):
    """Projection of the coarsest map, ``AIFI``, and the convolution with SiLU behind it, whose prologue is a norm."""

    def __init__(
        self, layer: AIFI, projection: nn.Conv2d, lateral: ConvNormAct, operations: ModuleType, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.operations, self.heads, self.dtype = operations, layer.heads, dtype
        linears: dict[str, nn.Linear | nn.Conv2d] = {
            "projection": projection,
            "tokens": layer.query_key_value,
            "out": layer.output,
            "expand": layer.linear1,
            "contract": layer.linear2,
            "lateral": lateral.conv,
        }
        self.weights = {
            name: (linear.weight.detach().flatten(1).to(dtype).contiguous(), cast(Tensor, linear.bias).detach().float())
            for name, linear in linears.items()
        }
        self.norms = norm_of(layer.norm1), norm_of(layer.norm2)
        self._exact = layer.query_key_value.weight.detach()
        self._shifts: Tensor | None = None
        self._size: Size | None = None

    def forward(self, rows: Tensor, size: Size) -> Tensor:
        """[M, in] of maps of this size to [M, width]."""
        run, own, (first, second) = self.operations, self.weights, self.norms
        x = run.linear(rows, *own["projection"])
        tokens = run.linear(x, *own["tokens"], residual=self._shifts_for(size))
        attended = run.token_attention(tokens.view(size[0], size[1] * size[2], -1), self.heads).flatten(0, 1)
        x = run.linear(attended, *own["out"], residual=x)
        inside, x = run.normed_linear(x, first, *own["expand"], activation="gelu")
        x = run.linear(inside, *own["contract"], residual=x)
        return cast(Tensor, run.normed_linear(x, second, *own["lateral"], activation="silu")[0])

    def _shifts_for(self, size: Size) -> Tensor:
        """What the positions, which are constant, add to queries and keys: [M, 3 · width]."""
        if self._shifts is None or self._size != size:
            width = self._exact.shape[1]
            table = position_table(size[1], size[2], width).to(self._exact)
            shifts = nn.functional.pad(table @ self._exact[: 2 * width].T, (0, width))
            self._shifts, self._size = shifts.repeat(size[0], 1).to(self.dtype), size
        return self._shifts


class FusedCSPRep(nn.Module):
    """A ``CSPRep`` of two inputs, the second of which may be projected before."""

    def __init__(self, layer: CSPRep, projection: nn.Conv2d | None, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations = operations
        convs = [part.conv for part in (layer.main, layer.side)]
        weight = torch.cat([conv.weight.detach().flatten(1) for conv in convs]).double()
        bias = torch.cat([cast(Tensor, conv.bias).detach() for conv in convs]).double()
        if projection is not None:
            before = projection.weight.detach().flatten(1).double()
            first, second = torch.split(weight, [weight.shape[1] - len(before), len(before)], 1)
            bias = bias + second @ cast(Tensor, projection.bias).detach().double()
            weight = torch.cat([first, second @ before], 1)
        self.both, self.both_bias = weight.to(dtype).contiguous(), bias.float()
        blocks = [cast(nn.Conv2d, cast(nn.Sequential, block)[0]) for block in layer.blocks]
        self.blocks = [stacked([conv.weight], 1, dtype) for conv in blocks]
        self.biases = [cast(Tensor, conv.bias).detach().float()[None] for conv in blocks]
        last = layer.output
        self.output = Pointwise(last, operations, dtype) if isinstance(last, ConvNormAct) else nn.Identity()

    def forward(self, rows: Tensor, others: Tensor, size: Size, doubled: bool = False) -> Tensor:
        """[M, C] and [M, C'] of maps of this size to [M, out]; with ``doubled``, the first has half the size."""
        run, (windows, height, width) = self.operations, size
        both = run.linear(
            rows, self.both, self.both_bias, activation="silu", others=others,
            doubled=(height, width) if doubled else None,
        )  # fmt: skip
        maps, side = both.view(windows, height * width, -1).chunk(2, 2)
        for index, (weight, bias) in enumerate(zip(self.blocks, self.biases, strict=True)):
            residual = side if index == len(self.blocks) - 1 else None
            maps = run.conv(maps, [(height, width)], weight, bias, residual=residual)
        return cast(Tensor, self.output(maps.flatten(0, 1)))


def why_not_fused(neck: nn.Module) -> str | None:
    """Why a neck cannot be fused; None if it can."""
    if not isinstance(neck, HybridEncoder) or len(neck.projections) != 3:
        return "its neck is not that of EvRT-DETR"
    if not neck.top_down[0].blocks:
        return "its CSP layers have no blocks"
    return None
