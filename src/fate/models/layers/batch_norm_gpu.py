"""BatchNorm and its activation in training on a GPU, for maps with their channels last in memory.

    z = (x - mean) / sqrt(variance + eps) · weight + bias      y = activation(z)

torch's kernels for this layout reach a fraction of the memory's bandwidth, and the activation is a further pass forward
and backward. Here a step reads x twice forward, and x and the gradient twice backward: once for the sums over all
rows (N · H · W), once for the result. z is computed again in the backward pass, so that only x is kept.

Every program sums some tiles of rows. Its sums are relative to its first row, so that a mean much larger than the
deviation costs no precision. A second kernel merges the programs' means and squared deviations (Chan et al. 1979) in a
fixed order, so the same input gives the same result to the bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Numbers of a tile, rows times channels, and warps of a program. On an H200, forward and backward passes of six layers
#: of fate-e took 3.58 ms with tiles of 4 096 numbers and 1 024 programs, 4.05 with 8 192 and 512, and 5.60 in torch.
TILE = 4096
#: The same for the sums of the backward pass, which load two tiles.
TILE_OF_GRADIENTS = 2048
WARPS = 4
#: Numbers of a tile of the passes that write, which have no loop: more programs instead of more numbers for each.
TILE_OF_WRITING = 4096
WARPS_OF_WRITING = 4
#: Most channels of a tile: 256 bytes of a row in bfloat16, two lines of the cache.
WIDEST = 128
#: Programs that sum, about eight for each of the 132 multiprocessors of an H200. The kernel that merges their sums
#: keeps all sums of ``MERGED`` channels in registers.
PROGRAMS = 1024
MERGED = 8
#: Loads of this many tiles are under way at the same time in a program that sums; 1: the warps alone hide the memory.
STAGES = 1


class NormalisedAndActivated(torch.autograd.Function):
    """BatchNorm with the statistics of the batch, and an activation: maps [N, C, H, W] to maps of the same type."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, activation: str) -> Tensor:
        """Maps are contiguous with channels last. The running statistics of ``norm`` are updated in place.

        ``weight`` and ``bias`` are those of ``norm``, float32.
        """
        shape = _Shape(maps, TILE)
        out = torch.empty_like(maps, memory_format=torch.channels_last)
        moments = torch.empty(2, shape.channels, dtype=torch.float32, device=maps.device)  # mean and 1 / deviation
        parts = shape.parts(maps.device)
        with torch.cuda.device_of(maps):
            _sum[(shape.programs * shape.blocks,)](
                maps, parts, shape.rows, shape.units, shape.programs, shape.unit, shape.tall, shape.wide, STAGES,
                num_warps=WARPS,
            )  # fmt: skip
            _merge_moments[(triton.cdiv(shape.channels, MERGED),)](
                parts, moments, norm.running_mean, norm.running_var, norm.num_batches_tracked,
                shape.rows, shape.channels, shape.programs, norm.momentum, norm.eps,
                shape.tall, triton.next_power_of_2(shape.programs), MERGED, num_warps=WARPS,
            )  # fmt: skip
            _apply[(shape.tiles_of_writing * shape.blocks,)](
                maps, moments, weight, bias, out, shape.rows, shape.units,
                activation, shape.unit, shape.tall_of_writing, shape.wide, num_warps=WARPS_OF_WRITING,
            )  # fmt: skip
        ctx.save_for_backward(maps, moments, weight, bias)
        ctx.activation = activation
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, moments, weight, bias = ctx.saved_tensors
        given = grad[0].contiguous(memory_format=torch.channels_last)
        shape = _Shape(maps, TILE_OF_GRADIENTS)
        to_maps = torch.empty_like(maps, memory_format=torch.channels_last)
        sums = torch.empty(2, shape.channels, dtype=torch.float32, device=maps.device)  # of the bias and of the weight
        parts = shape.parts(maps.device)
        with torch.cuda.device_of(maps):
            _sum_gradients[(shape.programs * shape.blocks,)](
                maps, given, moments, weight, bias, parts, shape.rows, shape.units, shape.programs,
                ctx.activation, shape.unit, shape.tall, shape.wide, STAGES, num_warps=WARPS,
            )  # fmt: skip
            _merge_gradients[(triton.cdiv(shape.channels, MERGED),)](
                parts, moments, sums, shape.channels, shape.programs,
                triton.next_power_of_2(shape.programs), MERGED, num_warps=WARPS,
            )  # fmt: skip
            _apply_gradients[(shape.tiles_of_writing * shape.blocks,)](
                maps, given, moments, weight, bias, sums, to_maps, shape.rows, shape.units,
                ctx.activation, shape.unit, shape.tall_of_writing, shape.wide, num_warps=WARPS_OF_WRITING,
            )  # fmt: skip
        return to_maps, sums[1], sums[0], None, None


class _Shape:
    """How maps [N, C, H, W], as rows [N · H · W, C], are divided into tiles and programs; ``tile`` is for the sums."""

    def __init__(self, maps: Tensor, tile: int) -> None:
        self.channels = maps.shape[1]
        self.rows = maps.numel() // self.channels
        # The compiler knows that C is a multiple of ``unit``, and loads so many numbers at once.
        self.unit = math.gcd(self.channels, 16)
        self.units = self.channels // self.unit
        self.wide = min(triton.next_power_of_2(self.channels), WIDEST)
        # Blocks without a rest leave no thread idle, such as five of 64 for 320 channels.
        self.wide = next((wide for wide in (WIDEST, 64, 32) if self.channels % wide == 0), self.wide)
        self.blocks = triton.cdiv(self.channels, self.wide)
        self.tall = max(tile // self.wide, 1)
        self.programs = min(triton.cdiv(self.rows, self.tall), max(PROGRAMS // self.blocks, 1))
        self.tall_of_writing = max(TILE_OF_WRITING // self.wide, 1)
        self.tiles_of_writing = triton.cdiv(self.rows, self.tall_of_writing)

    def parts(self, device: torch.device) -> Tensor:
        """Room for two sums of every program and channel."""
        return torch.empty(self.programs, 2, self.channels, dtype=torch.float32, device=device)


@triton.jit
def _activated(z, activation: tl.constexpr):
    """A number that is not finite remains one, so that a training that diverges is noticed."""
    if activation == "relu":
        return tl.where(z <= 0, 0.0, z)
    elif activation == "silu":  # noqa: RET505  (Triton decides while compiling)
        return z / (1 + tl.exp(-z))
    elif activation == "hardswish":
        return tl.where(z <= -3, 0.0, tl.where(z >= 3, z, z * (z + 3) / 6))
    else:
        return z


@triton.jit
def _before_activation(given, z, activation: tl.constexpr):
    """The gradient before the activation, from the one behind it."""
    if activation == "relu":
        return tl.where(z <= 0, 0.0, given)
    elif activation == "silu":  # noqa: RET505
        share = 1 / (1 + tl.exp(-z))
        return given * share * (1 + z * (1 - share))
    elif activation == "hardswish":
        return tl.where(z <= -3, 0.0, tl.where(z >= 3, given, given * (z / 3 + 0.5)))
    else:
        return given


@triton.jit
def _sum(
    maps, parts, rows, units, programs,
    unit: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Mean and squared deviations of the rows of each program."""
    channels = units * unit
    blocks = tl.cdiv(channels, wide)
    program = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * wide + tl.arange(0, wide)
    known = channel < channels
    row = tl.arange(0, tall)
    offset = row[:, None].to(tl.int64) * channels + channel[None, :]
    step = tl.cast(tall, tl.int64) * channels  # between tiles
    origin = tl.load(maps + program * step + channel, mask=known, other=0.0).to(tl.float32)
    total = tl.zeros([tall, wide], tl.float32)
    square = tl.zeros([tall, wide], tl.float32)
    whole = rows // tall
    for tile in tl.range(program, whole, programs, num_stages=stages):
        values = tl.load(maps + tile * step + offset, mask=known[None, :], other=0.0).to(tl.float32)
        away = values - origin[None, :]
        total += away
        square += away * away
    # Rows after the last whole tile. Its program alone reads them.
    inside = (row < tl.where(whole % programs == program, rows - whole * tall, 0))[:, None] & known[None, :]
    values = tl.load(maps + whole * step + offset, mask=inside, other=0.0).to(tl.float32)
    away = tl.where(inside, values - origin[None, :], 0.0)
    sums = tl.sum(total + away, 0)
    squares = tl.sum(square + away * away, 0)
    count = _rows_of(program, rows, programs, tall)
    own = parts + tl.cast(program, tl.int64) * 2 * channels + channel
    tl.store(own, origin + sums / count, mask=known)
    tl.store(own + channels, squares - sums * (sums / count), mask=known)


@triton.jit
def _rows_of(program, rows, programs, tall: tl.constexpr):
    """The number of rows that a program sums: whole tiles, and for one program the rest."""
    whole = rows // tall
    return (whole - program + programs - 1) // programs * tall + tl.where(
        whole % programs == program, rows - whole * tall, 0
    )


@triton.jit
def _merge_moments(
    parts, moments, running_mean, running_var, batches, rows, channels, programs, momentum, eps,
    tall: tl.constexpr, most: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of each channel, and the new running statistics."""
    channel = tl.program_id(0) * wide + tl.arange(0, wide)
    known = channel < channels
    program = tl.arange(0, most)
    inside = (program < programs)[:, None] & known[None, :]
    offset = program[:, None] * 2 * channels + channel[None, :]
    means = tl.load(parts + offset, mask=inside, other=0.0)
    squares = tl.load(parts + offset + channels, mask=inside, other=0.0)
    origin = tl.load(parts + channel, mask=known, other=0.0)
    count = tl.where(program < programs, _rows_of(program, rows, programs, tall), 0).to(tl.float32)[:, None]
    mean = origin + tl.sum(tl.where(inside, means - origin[None, :], 0.0) * count, 0) / rows
    away = tl.where(inside, means - mean[None, :], 0.0)
    square = tl.maximum(tl.sum(squares + away * away * count, 0), 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(moments + channel, mean, mask=known)
    tl.store(moments + channels + channel, 1 / tl.sqrt(square / rows + eps), mask=known)
    old = tl.load(running_mean + channel, mask=known, other=0.0)
    tl.store(running_mean + channel, momentum * mean + (1 - momentum) * old, mask=known)
    old = tl.load(running_var + channel, mask=known, other=0.0)
    tl.store(running_var + channel, momentum * (square / (rows - 1)) + (1 - momentum) * old, mask=known)
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit
def _apply(
    maps, moments, weight, bias, out, rows, units,
    activation: tl.constexpr, unit: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    channels = units * unit
    channel, offset, inside = _tile_from_the_end(rows, channels, tall, wide)
    known = channel < channels
    mean = tl.load(moments + channel, mask=known, other=0.0)
    scale = tl.load(moments + channels + channel, mask=known, other=0.0)
    w = tl.load(weight + channel, mask=known, other=0.0)
    b = tl.load(bias + channel, mask=known, other=0.0)
    values = tl.load(maps + offset, mask=inside, other=0.0).to(tl.float32)
    z = (values - mean[None, :]) * scale[None, :] * w[None, :] + b[None, :]
    tl.store(out + offset, _activated(z, activation).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tile_from_the_end(rows, channels, tall: tl.constexpr, wide: tl.constexpr):
    """Channels, offsets and mask of a tile. The last rows come first: the sums have just read them, so that the cache
    has them."""
    blocks = tl.cdiv(channels, wide)
    tile = tl.cdiv(rows, tall) - 1 - tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * wide + tl.arange(0, wide)
    row = tl.cast(tile, tl.int64) * tall + tl.arange(0, tall)
    inside = (row < rows)[:, None] & (channel < channels)[None, :]
    return channel, row[:, None] * channels + channel[None, :], inside


@triton.jit
def _sum_gradients(
    maps, given, moments, weight, bias, parts, rows, units, programs,
    activation: tl.constexpr, unit: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Sums of g and of g · (x - mean) over the rows of each program; g is the gradient before the activation."""
    channels = units * unit
    blocks = tl.cdiv(channels, wide)
    program = tl.program_id(0) // blocks
    channel = tl.program_id(0) % blocks * wide + tl.arange(0, wide)
    known = channel < channels
    mean = tl.load(moments + channel, mask=known, other=0.0)
    scale = tl.load(moments + channels + channel, mask=known, other=0.0)
    w = tl.load(weight + channel, mask=known, other=0.0)
    b = tl.load(bias + channel, mask=known, other=0.0)
    row = tl.arange(0, tall)
    offset = row[:, None].to(tl.int64) * channels + channel[None, :]
    step = tl.cast(tall, tl.int64) * channels
    total = tl.zeros([tall, wide], tl.float32)
    along = tl.zeros([tall, wide], tl.float32)
    whole = rows // tall
    for tile in tl.range(program, whole, programs, num_stages=stages):
        g = tl.load(given + tile * step + offset, mask=known[None, :], other=0.0).to(tl.float32)
        away = tl.load(maps + tile * step + offset, mask=known[None, :], other=0.0).to(tl.float32) - mean[None, :]
        g = _before_activation(g, away * scale[None, :] * w[None, :] + b[None, :], activation)
        total += g
        along += g * away
    inside = (row < tl.where(whole % programs == program, rows - whole * tall, 0))[:, None] & known[None, :]
    g = tl.load(given + whole * step + offset, mask=inside, other=0.0).to(tl.float32)
    away = tl.load(maps + whole * step + offset, mask=inside, other=0.0).to(tl.float32) - mean[None, :]
    g = _before_activation(g, away * scale[None, :] * w[None, :] + b[None, :], activation)
    g = tl.where(inside, g, 0.0)
    total += g
    along += tl.where(inside, g * away, 0.0)
    own = parts + tl.cast(program, tl.int64) * 2 * channels + channel
    tl.store(own, tl.sum(total, 0), mask=known)
    tl.store(own + channels, tl.sum(along, 0), mask=known)


@triton.jit
def _merge_gradients(parts, moments, sums, channels, programs, most: tl.constexpr, wide: tl.constexpr):
    """The gradients of bias and weight."""
    channel = tl.program_id(0) * wide + tl.arange(0, wide)
    known = channel < channels
    program = tl.arange(0, most)
    inside = (program < programs)[:, None] & known[None, :]
    offset = program[:, None] * 2 * channels + channel[None, :]
    total = tl.sum(tl.load(parts + offset, mask=inside, other=0.0), 0)
    along = tl.sum(tl.load(parts + offset + channels, mask=inside, other=0.0), 0)
    scale = tl.load(moments + channels + channel, mask=known, other=0.0)
    tl.store(sums + channel, total, mask=known)
    tl.store(sums + channels + channel, along * scale, mask=known)


@triton.jit
def _apply_gradients(
    maps, given, moments, weight, bias, sums, to_maps, rows, units,
    activation: tl.constexpr, unit: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    channels = units * unit
    channel, offset, inside = _tile_from_the_end(rows, channels, tall, wide)
    known = channel < channels
    mean = tl.load(moments + channel, mask=known, other=0.0)
    scale = tl.load(moments + channels + channel, mask=known, other=0.0)
    w = tl.load(weight + channel, mask=known, other=0.0)
    b = tl.load(bias + channel, mask=known, other=0.0)
    level = tl.load(sums + channel, mask=known, other=0.0) / rows
    along = tl.load(sums + channels + channel, mask=known, other=0.0) / rows
    values = tl.load(maps + offset, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(given + offset, mask=inside, other=0.0).to(tl.float32)
    unit_values = (values - mean[None, :]) * scale[None, :]
    g = _before_activation(g, unit_values * w[None, :] + b[None, :], activation)
    result = (g - level[None, :] - unit_values * along[None, :]) * (scale * w)[None, :]
    tl.store(to_maps + offset, result.to(to_maps.dtype.element_ty), mask=inside)
