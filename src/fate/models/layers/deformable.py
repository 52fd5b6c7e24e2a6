"""Multi-scale deformable attention (Zhu et al. 2021): a query samples each feature map at a few points near its box.

Each head of a query samples ``points`` points of every map by bilinear interpolation. Their offsets from the centre of
the query's box and their weights are linear functions of the query. The cost does not depend on the size of the maps.

On a GPU with Triton, one kernel samples the points of all maps (``deformable_gpu``). Elsewhere, when compiled and in
exported graphs, one ``grid_sample`` samples all points of a map. Four gathers for all maps together are faster when
compiled (0.019 against 0.026 ms per layer; batch 1, H200), but take twice as long otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from fate.models.layers.norm import HAS_TRITON


class DeformableAttention(nn.Module):
    """Cross-attention of queries [N, Q, C] to the cells of several feature maps."""

    def __init__(self, width: int = 256, heads: int = 8, levels: int = 3, points: int = 4) -> None:
        """``width`` is C; each head samples C / heads channels at ``points`` points of each of ``levels`` maps."""
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.values = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self._initialise()

    def forward(self, queries: Tensor, boxes: Tensor, memory: Tensor, sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return [N, Q, C]. Points are computed in float32: in 16 bits they would be wrong by a tenth of a cell.

        Args:
            queries: [N, Q, C].
            boxes: [N, Q, 4] cxcywh, in fractions of the frame.
            memory: [N, S, C] the cells of all maps, concatenated, each map row by row.
            sizes: (rows, columns) of each map; S = Σ rows · columns.
        """
        batch, count = queries.shape[:2]
        values = self.values(memory)
        kernels = _kernels(values, boxes, self.heads, self.points)
        if kernels is None:
            values = at_least_float32(values).mT.contiguous()
        offsets = at_least_float32(self.offsets(queries)).view(batch, count, self.heads, self.levels, self.points, 2)
        weights = at_least_float32(self.weights(queries)).view(batch, count, self.heads, self.levels * self.points)
        weights = weights.softmax(dim=-1)
        centre, side = boxes[:, :, None, None, None].chunk(2, dim=-1)
        # An offset of ``points`` is half a side of the box; grid_sample's coordinates are -1 to 1, not 0 to 1.
        points_xy = torch.addcmul(2 * centre - 1, offsets, side / self.points)
        if kernels is None:
            read = sampled(values, sizes, points_xy, weights).to(queries.dtype)
        else:
            device = queries.device.type
            # What autocast would round anyway is written as 16 bits.
            kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else queries.dtype
            read = kernels.Sampled.apply(values, points_xy, weights, sizes, kind)
        return self.output(read)  # type: ignore[no-any-return]

    def _initialise(self) -> None:
        """Initially the points of a query form a star: point p of head h lies in direction h at distance p + 1."""
        angle = torch.arange(self.heads, dtype=torch.float32) * (2 * math.pi / self.heads)
        direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        direction = direction / direction.abs().amax(dim=-1, keepdim=True)  # the ends lie on a square
        distance = torch.arange(1, self.points + 1, dtype=torch.float32)
        star = (direction[:, None, None] * distance[:, None]).expand(-1, self.levels, -1, -1)
        nn.init.zeros_(self.offsets.weight)
        with torch.no_grad():
            self.offsets.bias.copy_(star.flatten())
        nn.init.zeros_(self.weights.weight)
        nn.init.zeros_(self.weights.bias)
        for linear in (self.values, self.output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)


def sampled(values: Tensor, sizes: Sequence[tuple[int, int]], points_xy: Tensor, weights: Tensor) -> Tensor:
    """[N, Q, C] weighted sums of bilinear samples; the value outside a map is 0.

    Args:
        values: [N, C, S] contiguous; the cells of all maps of ``sizes``, concatenated, each map row by row.
        sizes: (rows, columns) of each map.
        points_xy: [N, Q, heads, levels, points, 2] x and y; -1 and 1 are the outer edges of the frame.
        weights: [N, Q, heads, levels · points].
    """
    batch, count, heads = points_xy.shape[:3]
    channels = values.shape[1]
    grids = points_xy.permute(3, 0, 2, 1, 4, 5).flatten(1, 2)  # [levels, N · heads, Q, points, 2]
    levels = torch.split(values, [rows * columns for rows, columns in sizes], dim=-1)
    samples = [
        functional.grid_sample(level.view(batch * heads, channels // heads, *size), grid, align_corners=False)
        for level, size, grid in zip(levels, sizes, grids, strict=True)
    ]
    weights = weights.transpose(1, 2).flatten(0, 1)[:, None]  # [N · heads, 1, Q, levels · points]
    total = (torch.cat(samples, dim=-1) * weights).sum(dim=-1)  # [N · heads, C / heads, Q]
    return total.view(batch, channels, count).mT


def _kernels(values: Tensor, boxes: Tensor, heads: int, points: int) -> ModuleType | None:
    """``deformable_gpu`` if it can be used; a compiler would not see into it."""
    if not (HAS_TRITON and values.is_cuda and boxes.dtype == torch.float32) or torch.compiler.is_compiling():
        return None
    from fate.models.layers import deformable_gpu  # noqa: PLC0415  (needs triton)

    return deformable_gpu if deformable_gpu.can_sample(values, heads, points) else None


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert 16-bit numbers to float32, which represents a box to the pixel."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
