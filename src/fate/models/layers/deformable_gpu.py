"""``deformable.sampled`` on a GPU: a program reads all points of some queries and one head, and adds them in registers.

``grid_sample`` wants each channel of a map as a plane, so that values must be transposed, and neighbouring threads read
and add far apart. Here values stay as the linear layer gives them: the channels of a head are neighbours, and a corner
of a point is one wide read, or one wide addition. All maps are read by one kernel; sums are float32 in any case.

Several points add to the same cell, in an order that is not fixed. So the gradient of the values differs in rounding
from run to run, as that of ``grid_sample`` does. Outputs and the other gradients do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


class Tile(NamedTuple):
    """How the work is divided among programs. A program holds queries · points of a map · channels of a head."""

    warps: int  #: 32 threads each
    each: int  #: numbers for each thread


#: On an H200, small programs are the fastest: 160 windows, 500 queries and 256 channels take 0.36 ms with two warps and
#: 0.44 to 0.91 ms with four.
FORWARD = Tile(2, 8)
#: The backward pass also holds the gradient; more numbers would leave registers for fewer threads.
BACKWARD = Tile(2, 4)
#: If there are few queries, as in a stream, small programs occupy more multiprocessors.
SMALL = Tile(1, 8)
#: Fewest programs of the large tiles; an H200 has 132 multiprocessors, and each runs several programs at once.
FEWEST = 1024


class Sampled(torch.autograd.Function):
    """[N, Q, C] weighted sums of bilinear samples: ``deformable.sampled`` for values [N, S, C]."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        points_xy: Tensor,
        weights: Tensor,
        sizes: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> Tensor:
        """Args:
        values: [N, S, C] float32, bfloat16 or float16; channels of a head are a power of two (see ``can_sample``).
        points_xy: [N, Q, heads, levels, points, 2] float32; the number of points is a power of two.
        weights: [N, Q, heads, levels · points] float32.
        sizes: (rows, columns) of each map.
        dtype: of the result.
        """
        values, points_xy, weights = values.contiguous(), points_xy.contiguous(), weights.contiguous()
        ctx.sizes = tuple((int(rows), int(columns)) for rows, columns in sizes)
        batch, count = points_xy.shape[:2]
        out = torch.empty(batch, count, values.shape[2], dtype=dtype, device=values.device)
        if out.numel():
            grid, constants = _division(FORWARD, values, points_xy, ctx.sizes)
            with torch.cuda.device_of(values):
                _forward[grid](values, points_xy, weights, out, count, **constants)
        ctx.save_for_backward(values, points_xy, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        values, points_xy, weights = ctx.saved_tensors
        learns = ctx.needs_input_grad[0]
        to_values = torch.zeros_like(values, dtype=torch.float32) if learns else None
        to_points, to_weights = torch.empty_like(points_xy), torch.empty_like(weights)
        if grad[0].numel():
            grid, constants = _division(BACKWARD, values, points_xy, ctx.sizes)
            sums = values if to_values is None else to_values  # the kernel does not write to it without a gradient
            with torch.cuda.device_of(values):
                _backward[grid](
                    values, points_xy, weights, grad[0].contiguous(), sums, to_points, to_weights,
                    points_xy.shape[1], learns=learns, **constants,
                )  # fmt: skip
        return None if to_values is None else to_values.to(values.dtype), to_points, to_weights, None, None


def can_sample(values: Tensor, heads: int, points: int) -> bool:
    """Whether the kernels take values [N, S, C] of this type, so many heads and so many points of each map."""
    channels = values.shape[2] // heads
    powers = channels & (channels - 1) == 0 and points & (points - 1) == 0
    return powers and values.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _division(
    large: Tile, values: Tensor, points_xy: Tensor, sizes: tuple[tuple[int, int], ...]
) -> tuple[tuple[int], dict[str, Any]]:
    """The grid, and the constants of a kernel."""
    batch, count, heads, _, points = points_xy.shape[:5]
    channels = values.shape[2] // heads
    grid, constants = (0,), {"sizes": sizes, "heads": heads, "n_points": points, "n_channels": channels}
    for tile in (large, SMALL):
        # At least two threads share a point. Otherwise the compiler computes points in another arrangement of threads
        # than samples, and exchanges everything through shared memory (8 channels: 60 barriers instead of 4).
        numbers = 32 * tile.warps * min(tile.each, max(channels // 2, 1))
        queries = max(numbers // (points * channels), 1)
        grid = (batch * heads * triton.cdiv(count, queries),)
        constants |= {"n_queries": queries, "num_warps": tile.warps}
        if grid[0] >= FEWEST:
            break
    return grid, constants


@triton.jit
def _share(count, sizes: tl.constexpr, heads: tl.constexpr, n_points: tl.constexpr, n_queries: tl.constexpr):
    """The program's window and head, its queries, which of them exist, and where their points are in the window.

    Programs of a window are neighbours, so that they read and add in the same part of the memory at the same time.
    """
    blocks = tl.cdiv(count, n_queries)
    query = tl.program_id(0) % blocks * n_queries + tl.arange(0, n_queries)
    head = tl.program_id(0) // blocks % heads
    point = ((query * heads + head) * (len(sizes) * n_points))[:, None] + tl.arange(0, n_points)[None, :]
    return (tl.program_id(0) // (blocks * heads)).to(tl.int64), head, query, (query < count)[:, None], point


@triton.jit
def _cells(sizes: tl.constexpr):
    """The cells of all maps."""
    cells = 0
    for level in tl.static_range(len(sizes)):
        cells += sizes[level][0] * sizes[level][1]
    return cells


@triton.jit
def _between(coordinates, exists, cells):
    """The first of the two cells that each point lies between, along one axis, and the share of the second.

    Points that do not exist and those far outside lie between cells that do not exist.
    """
    along = tl.load(coordinates, mask=exists, other=-4.0)
    position = tl.clamp(((along + 1) * cells - 1) / 2, -2.0, cells + 1.0, propagate_nan=tl.PropagateNan.ALL)
    first = tl.floor(position)
    return first.to(tl.int32), position - first


@triton.jit
def _corner(i, j, rows, columns, width: tl.constexpr):
    """Where the values of a cell are in their map, and whether it exists."""
    inside = (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
    return ((i * columns + j) * width)[:, :, None], inside[:, :, None]


@triton.jit
def _read(values, offset, inside):
    """[queries, points, channels] float32; 0 outside."""
    return tl.load(values + offset, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _add(sums, offset, inside, share, given):
    tl.atomic_add(sums + offset, share[:, :, None] * given, mask=inside, sem="relaxed")


@triton.jit
def _forward(
    values, points_xy, weights, out, count, sizes: tl.constexpr, heads: tl.constexpr, n_points: tl.constexpr,
    n_channels: tl.constexpr, n_queries: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = heads * n_channels
    window, head, query, exists, point = _share(count, sizes, heads, n_points, n_queries)
    channel = head * n_channels + tl.arange(0, n_channels)
    read = values + window * _cells(sizes) * width + channel[None, None, :]
    x_y = points_xy + window * count * (heads * len(sizes) * n_points * 2) + 2 * point
    weight_of = weights + window * count * (heads * len(sizes) * n_points) + point
    total = tl.zeros([n_queries, n_points, n_channels], tl.float32)
    for level in tl.static_range(len(sizes)):
        rows, columns = sizes[level]
        j, right = _between(x_y, exists, columns)
        i, below = _between(x_y + 1, exists, rows)
        weight = tl.load(weight_of, mask=exists, other=0.0)
        for corner in tl.static_range(4):
            offset, inside = _corner(i + corner // 2, j + corner % 2, rows, columns, width)
            share = weight * (below if corner // 2 else 1 - below) * (right if corner % 2 else 1 - right)
            total += share[:, :, None] * _read(read, offset, inside)
        x_y += 2 * n_points
        weight_of += n_points
        read += rows * columns * width
    result = out + window * count * width + query[:, None] * width + channel[None, :]
    tl.store(result, tl.sum(total, 1).to(out.dtype.element_ty), mask=exists)


@triton.jit
def _backward(
    values, points_xy, weights, grad, to_values, to_points, to_weights, count, sizes: tl.constexpr,
    heads: tl.constexpr, n_points: tl.constexpr, n_channels: tl.constexpr, n_queries: tl.constexpr,
    learns: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = heads * n_channels
    window, head, query, exists, point = _share(count, sizes, heads, n_points, n_queries)
    channel = head * n_channels + tl.arange(0, n_channels)
    read = values + window * _cells(sizes) * width + channel[None, None, :]
    sums = to_values + window * _cells(sizes) * width + channel[None, None, :]
    first = window * count * (heads * len(sizes) * n_points)
    given = grad + window * count * width + query[:, None, None] * width + channel[None, None, :]
    given = tl.load(given, mask=exists[:, :, None], other=0.0).to(tl.float32)  # [queries, 1, channels]
    for level in tl.static_range(len(sizes)):
        rows, columns = sizes[level]
        j, right = _between(points_xy + 2 * first + 2 * point, exists, columns)
        i, below = _between(points_xy + 2 * first + 2 * point + 1, exists, rows)
        left, above = 1 - right, 1 - below
        weight = tl.load(weights + first + point, mask=exists, other=0.0)
        offset_0, inside_0 = _corner(i, j, rows, columns, width)
        offset_1, inside_1 = _corner(i, j + 1, rows, columns, width)
        offset_2, inside_2 = _corner(i + 1, j, rows, columns, width)
        offset_3, inside_3 = _corner(i + 1, j + 1, rows, columns, width)
        # The reads come first: the additions, which nothing waits for, are sent while the reads are under way.
        read_0 = _read(read, offset_0, inside_0)
        read_1 = _read(read, offset_1, inside_1)
        read_2 = _read(read, offset_2, inside_2)
        read_3 = _read(read, offset_3, inside_3)
        if learns:
            _add(sums, offset_0, inside_0, weight * above * left, given)
            _add(sums, offset_1, inside_1, weight * above * right, given)
            _add(sums, offset_2, inside_2, weight * below * left, given)
            _add(sums, offset_3, inside_3, weight * below * right, given)
        along_0 = tl.sum(read_0 * given, 2)
        along_1 = tl.sum(read_1 * given, 2)
        along_2 = tl.sum(read_2 * given, 2)
        along_3 = tl.sum(read_3 * given, 2)
        to_weight = above * (left * along_0 + right * along_1) + below * (left * along_2 + right * along_3)
        to_x = above * (along_1 - along_0) + below * (along_3 - along_2)
        to_y = left * (along_2 - along_0) + right * (along_3 - along_1)
        # From -1 to 1, a point crosses all columns and all rows.
        to_xy = tl.join(to_x * weight * (columns / 2), to_y * weight * (rows / 2))
        offset_xy = 2 * point[:, :, None] + tl.arange(0, 2)[None, None, :]
        tl.store(to_points + 2 * first + offset_xy, to_xy, mask=exists[:, :, None])
        tl.store(to_weights + first + point, to_weight, mask=exists)
        point += n_points
        read += rows * columns * width
        sums += rows * columns * width
