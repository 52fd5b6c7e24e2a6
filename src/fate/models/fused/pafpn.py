"""PAFPN in the operations of ``reference`` or ``kernels``: nothing is concatenated, since a product reads two maps."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.models.layers.conv import FUSED, ConvNormAct
from fate.models.necks.pafpn import PAFPN, CSPLayer

#: (windows, height, width) of maps.
Size = tuple[int, int, int]


class FusedPAFPN(nn.Module):
    """A trained ``PAFPN`` with merged convolutions and folded BatchNorm."""

    def __init__(self, neck: PAFPN, operations: ModuleType, dtype: torch.dtype) -> None:
        """``operations`` are ``reference`` or ``kernels``; ``dtype`` is that of weights and maps."""
        super().__init__()

        def pointwise(conv: ConvNormAct) -> Pointwise:
            return Pointwise(conv, operations, dtype)

        def layer(given: nn.Module) -> FusedCSP | FusedSeparable:
            if isinstance(given, CSPLayer):
                return FusedCSP(given, operations, dtype)
            return FusedSeparable(cast(nn.Sequential, given), operations, dtype)

        self.narrow_32, self.narrow_16 = pointwise(neck.narrow_32), pointwise(neck.narrow_16)
        self.halve_8 = FusedConv(neck.halve_8, operations, dtype)
        self.halve_16 = FusedConv(neck.halve_16, operations, dtype)
        self.fuse_16, self.fuse_8 = layer(neck.fuse_16), layer(neck.fuse_8)
        self.mix_16, self.mix_32 = layer(neck.mix_16), layer(neck.mix_32)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """[N, C_i, H_i, W_i] at strides 8, 16 and 32, channels last, to the same shapes."""
        sizes = [(len(maps), maps.shape[2], maps.shape[3]) for maps in features]
        at_8, at_16, at_32 = sizes
        x8, x16, x32 = (rows_of(maps) for maps in features)
        narrow_32 = self.narrow_32(x32)
        narrow_16 = self.narrow_16(self.fuse_16(narrow_32, x16, at_16, doubled=True))
        out_8 = self.fuse_8(narrow_16, x8, at_8, doubled=True)
        out_16 = self.mix_16(self.halve_8(out_8, at_8), narrow_16, at_16)
        out_32 = self.mix_32(self.halve_16(out_16, at_16), narrow_32, at_32)
        rows = (out_8, out_16, out_32)
        return [part.view(*size, -1).permute(0, 3, 1, 2) for part, size in zip(rows, sizes, strict=True)]


class Pointwise(nn.Module):
    """A 1×1 convolution with its activation: rows [M, in] to [M, out]."""

    def __init__(self, conv: ConvNormAct, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.operations, self.activation = operations, FUSED[type(conv.activation)]
        self.weight = conv.conv.weight.detach().flatten(1).to(dtype).contiguous()
        self.bias = cast(Tensor, conv.conv.bias).detach().float()

    def forward(
        self,
        rows: Tensor,
        others: Tensor | None = None,
        doubled: tuple[int, int] | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """See ``reference.linear``."""
        return cast(
            Tensor,
            self.operations.linear(
                rows, self.weight, self.bias, activation=self.activation, others=others, doubled=doubled, out=out
            ),
        )


class FusedConv(nn.Module):
    """A 3×3 convolution, full or depthwise, with its activation: rows of maps of one size to rows."""

    def __init__(self, conv: nn.Module, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        conv = cast(ConvNormAct, conv)
        given = conv.conv
        self.activation, self.stride = FUSED[type(conv.activation)], given.stride[0]
        self.convolve = operations.conv if given.groups == 1 else operations.depthwise
        self.weight = stacked([given.weight], 1, dtype) if given.groups == 1 else filters([given.weight], dtype)
        self.bias = cast(Tensor, given.bias).detach().float()[None]

    def forward(self, rows: Tensor, size: Size) -> Tensor:
        """[M, in] of maps of this size to [M', out]."""
        windows, height, width = size
        maps = rows.view(windows, height * width, -1)
        maps = self.convolve(maps, [(height, width)], self.weight, self.bias, self.stride, self.activation)
        return cast(Tensor, maps.flatten(0, 1))


class FusedCSP(nn.Module):
    """A ``CSPLayer`` of two inputs."""

    def __init__(self, layer: CSPLayer, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        self.both = Pointwise(cast(ConvNormAct, layer.both), operations, dtype)
        self.merge = Pointwise(layer.merge, operations, dtype)
        self.bottlenecks = nn.ModuleList()
        for bottleneck in layer.bottlenecks:
            narrow, conv = (cast(ConvNormAct, part) for part in cast(nn.Sequential, bottleneck))
            parts = (Pointwise(narrow, operations, dtype), FusedConv(conv, operations, dtype))
            self.bottlenecks.append(nn.ModuleList(parts))

    def forward(self, rows: Tensor, others: Tensor, size: Size, doubled: bool = False) -> Tensor:
        """[M, C] and [M, C'] of maps of this size to [M, out]; with ``doubled``, the first has half the size."""
        rows, around = self.both(rows, others, size[1:] if doubled else None).chunk(2, 1)
        for bottleneck in self.bottlenecks:
            narrow, conv = cast(nn.ModuleList, bottleneck)
            rows = conv(narrow(rows), size)
        return cast(Tensor, self.merge(rows, around))


class FusedSeparable(nn.Module):
    """A 1×1 and a depthwise convolution, in place of a ``CSPLayer``."""

    def __init__(self, layer: nn.Sequential, operations: ModuleType, dtype: torch.dtype) -> None:
        super().__init__()
        mix, conv = (cast(ConvNormAct, part) for part in layer)
        self.mix, self.conv = Pointwise(mix, operations, dtype), FusedConv(conv, operations, dtype)

    def forward(self, rows: Tensor, others: Tensor, size: Size, doubled: bool = False) -> Tensor:
        """See ``FusedCSP``."""
        return cast(Tensor, self.conv(self.mix(rows, others, size[1:] if doubled else None), size))


def why_not_fused(neck: nn.Module) -> str | None:
    """Why a neck cannot be fused; None if it can."""
    return None if isinstance(neck, PAFPN) else "its neck is not a PAFPN"


def rows_of(maps: Tensor) -> Tensor:
    """Maps [N, C, H, W], channels last in memory, as rows [N · H · W, C]."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def filters(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Weights of depthwise convolutions [C, 1, side, side] for ``reference.depthwise``, one for each size of maps."""
    return torch.stack([weight.detach()[:, 0].permute(1, 2, 0) for weight in weights]).to(dtype).contiguous()


def stacked(weights: Sequence[Tensor], groups: int, dtype: torch.dtype) -> Tensor:
    """Weights of convolutions [out, in, side, side] for ``reference.conv``, one for each size of maps."""
    parts = [weight.detach().view(groups, -1, *weight.shape[1:]).permute(0, 1, 3, 4, 2) for weight in weights]
    return torch.stack(parts).to(dtype).contiguous()
