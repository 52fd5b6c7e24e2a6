"""Convolutions on a GPU, for maps of several sizes in one kernel, and the predictions of YOLOX's head.

A convolution is a matrix product whose inputs are the channels of all pixels under the kernel. Bias and activation are
part of it. Maps of all strides are neighbours in memory, so that a layer of all levels of the head is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused import reference
from fate.models.fused.products_gpu import (
    STAGES,
    activated,
    block,
    depth,
    normalised,
    on,
    power_of_two,
    transposed,
)
from fate.models.fused.reference import Activation, SeparableWeights

#: Most sizes of maps in one kernel: strides 8, 16 and 32.
LEVELS = 3
#: Pixels of a program of ``separable_block``, which normalises all of their neighbours.
NORMED = 16
#: Arguments of kernels for which a value of 1 is nothing special.
SIZES = ["end_0", "end_1", "h_0", "w_0", "h_1", "w_1", "h_2", "w_2", "windows"]


def conv(
    maps: Tensor,
    sizes: Sequence[tuple[int, int]],
    weight: Tensor,
    bias: Tensor,
    stride: int = 1,
    activation: Activation = "silu",
    residual: Tensor | None = None,
) -> Tensor:
    """``reference.conv``, for at most three sizes."""
    _, groups, columns, side, _, inputs = weight.shape
    counts = [len(maps) * _after(height, stride) * _after(width, stride) for height, width in sizes]
    out = maps.new_empty(len(maps), sum(counts) // len(maps), groups * columns, dtype=weight.dtype)
    tall, wide = block(sum(counts), groups * columns)
    wide = min(wide, power_of_two(columns))
    with on(maps.device):
        _conv[(_blocks(counts, tall)[-1], triton.cdiv(columns, wide), groups)](
            maps, weight, bias, out if residual is None else residual, out, *_described(sizes, counts, tall),
            len(maps), inputs, columns, maps.shape[1], out.shape[1], maps.stride(1), groups * columns,
            0 if residual is None else residual.stride(0), 0 if residual is None else residual.stride(1),
            ACTIVATION=activation, HAS_RESIDUAL=residual is not None, SIDE=side, STRIDE=stride, TALL=tall, WIDE=wide,
            DEEP=depth(inputs, weight, tall + wide), num_stages=STAGES,
        )  # fmt: skip
    return out


def depthwise(
    maps: Tensor,
    sizes: Sequence[tuple[int, int]],
    weight: Tensor,
    bias: Tensor,
    stride: int = 1,
    activation: Activation = "silu",
) -> Tensor:
    """``reference.depthwise``, for at most three sizes."""
    side, channels = weight.shape[2:]
    counts = [len(maps) * _after(height, stride) * _after(width, stride) for height, width in sizes]
    out = maps.new_empty(len(maps), sum(counts) // len(maps), channels, dtype=weight.dtype)
    tall, wide = block(sum(counts), channels)
    wide = min(wide, power_of_two(channels))
    with on(maps.device):
        _depthwise[(_blocks(counts, tall)[-1], triton.cdiv(channels, wide))](
            maps, weight, bias, out, *_described(sizes, counts, tall), len(maps), channels, maps.shape[1],
            out.shape[1], maps.stride(1), ACTIVATION=activation, SIDE=side, STRIDE=stride, TALL=tall, WIDE=wide,
        )  # fmt: skip
    return out


def separable_block(maps: Tensor, weights: SeparableWeights) -> Tensor:
    """``reference.separable_block``, for at most 128 channels."""
    windows, height, width, channels = maps.shape
    count = windows * height * width
    out = maps.new_empty(maps.shape)
    with on(maps.device):
        _separable_block[(triton.cdiv(count, NORMED),)](
            maps, weights.norm.weight, weights.norm.bias, weights.filter, weights.filter_bias, weights.mix,
            weights.mix_bias, out, count, height, width, channels, weights.norm.eps, SIDE=len(weights.filter),
            TALL=NORMED, DEEP=power_of_two(channels),
        )  # fmt: skip
    return out


def conv_relu(
    images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, added: Tensor | None = None
) -> Tensor:
    """``reference.conv_relu``, by one kernel of cuDNN on a GPU."""
    if not images.is_cuda:  # Triton's interpreter
        return reference.conv_relu(images, weight, bias, stride, padding, added)
    sides, once = (padding, padding), (1, 1)
    if added is None:
        return torch.cudnn_convolution_relu(images, weight, bias, (stride, stride), sides, once, 1)
    return torch.cudnn_convolution_add_relu(images, weight, added, 1.0, bias, (stride, stride), sides, once, 1)


def predict(
    maps: Tensor, sizes: Sequence[tuple[int, int]], strides: Sequence[int], weight: Tensor, bias: Tensor
) -> Tensor:
    """``reference.predict``, for at most three levels."""
    columns, inputs = weight.shape[1:]
    counts = [len(maps) * height * width for height, width in sizes]
    out = maps.new_empty(len(maps), maps.shape[1], columns, dtype=bias.dtype)
    tall, wide = 16, power_of_two(columns)
    cells = [*strides, *([1] * LEVELS)][:LEVELS]
    with on(maps.device):
        _predict[(_blocks(counts, tall)[-1],)](
            maps, weight, bias, out, *_described(sizes, counts, tall), *cells, len(maps), inputs, columns,
            maps.shape[1], TALL=tall, WIDE=wide, DEEP=depth(inputs, weight, tall + 2 * wide), num_stages=STAGES,
        )  # fmt: skip
    return out


def _after(side: int, stride: int) -> int:
    """The side of a map behind a convolution."""
    return (side - 1) // stride + 1


def _blocks(counts: Sequence[int], tall: int) -> list[int]:
    """Blocks of rows up to the end of each level."""
    ends: list[int] = []
    for count in counts:
        ends.append(triton.cdiv(count, tall) + (ends[-1] if ends else 0))
    return ends


def _described(sizes: Sequence[tuple[int, int]], counts: Sequence[int], tall: int) -> list[int]:
    """The last block of the first two levels, and height and width of all three; missing levels have no blocks."""
    ends = _blocks(counts, tall)
    padded = [*sizes, *([sizes[-1]] * LEVELS)][:LEVELS]
    ends = [*ends, *([ends[-1]] * LEVELS)][: LEVELS - 1]
    return [*ends, *(side for size in padded for side in size)]


@triton.jit
def _level(end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, STRIDE: tl.constexpr):
    """Of the program's level: number, first block, height, width, and pixels of earlier levels before and after."""
    part = tl.program_id(0)
    second, third = (part >= end_0).to(tl.int32), (part >= end_1).to(tl.int32)
    after_0 = ((h_0 - 1) // STRIDE + 1) * ((w_0 - 1) // STRIDE + 1)
    after_1 = ((h_1 - 1) // STRIDE + 1) * ((w_1 - 1) // STRIDE + 1)
    first = second * end_0 + third * (end_1 - end_0)
    height = h_0 + second * (h_1 - h_0) + third * (h_2 - h_1)
    width = w_0 + second * (w_1 - w_0) + third * (w_2 - w_1)
    earlier = second * (h_0 * w_0) + third * (h_1 * w_1)
    earlier_after = second * after_0 + third * after_1
    return second + third, first, height, width, earlier, earlier_after


@triton.jit(do_not_specialize=SIZES)
def _conv(
    maps, weight, bias, residual, out, end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, windows, inputs, columns, pixels,
    pixels_after, stride_in, stride_out, residual_window, residual_pixel, ACTIVATION: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    level, first, height, width, earlier, earlier_after = _level(end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, STRIDE)
    height_after, width_after = (height - 1) // STRIDE + 1, (width - 1) // STRIDE + 1
    area = height_after * width_after
    row = (tl.program_id(0) - first) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    group = tl.program_id(2)
    exists, used = row < windows * area, column < columns
    window = row // area
    cell = row - window * area
    y, x = cell // width_after, cell % width_after
    own = weight + (level * tl.num_programs(2) + group) * columns * (SIDE * SIDE) * inputs
    result = tl.zeros((TALL, WIDE), tl.float32)
    steps = tl.cdiv(inputs, DEEP)
    for step in range(0, SIDE * SIDE * steps):  # the pixels under the kernel, and some of their channels at a time
        tap = step // steps
        k = (step - tap * steps) * DEEP + tl.arange(0, DEEP)
        from_y = y * STRIDE + tap // SIDE - SIDE // 2
        from_x = x * STRIDE + tap % SIDE - SIDE // 2
        there = exists & (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
        pixel = window * pixels + earlier + from_y * width + from_x
        inside = there[:, None] & (k < inputs)[None, :]
        a = tl.load(maps + pixel[:, None] * stride_in + group * inputs + k[None, :], mask=inside, other=0.0)
        w = transposed(own + tap * inputs, column, k, columns, inputs, SIDE * SIDE * inputs)
        result = tl.dot(a, w, result)
    channel = group * columns + column
    result += tl.load(bias + level * stride_out + channel, mask=used, other=0.0)[None, :]
    result = activated(result, ACTIVATION)
    inside = exists[:, None] & used[None, :]
    if HAS_RESIDUAL:
        source = window * residual_window + (earlier_after + cell) * residual_pixel
        result += tl.load(residual + source[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    to = out + (window * pixels_after + earlier_after + cell)[:, None] * stride_out + channel[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=SIZES)
def _depthwise(
    maps, weight, bias, out, end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, windows, channels, pixels, pixels_after,
    stride_in, ACTIVATION: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    level, first, height, width, earlier, earlier_after = _level(end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, STRIDE)
    height_after, width_after = (height - 1) // STRIDE + 1, (width - 1) // STRIDE + 1
    area = height_after * width_after
    row = (tl.program_id(0) - first) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    exists, used = row < windows * area, channel < channels
    window = row // area
    cell = row - window * area
    y, x = cell // width_after, cell % width_after
    own = weight + level * (SIDE * SIDE) * channels + channel
    result = tl.zeros((TALL, WIDE), tl.float32)
    result += tl.load(bias + level * channels + channel, mask=used, other=0.0)[None, :]
    for tap in tl.static_range(SIDE * SIDE):  # all pixels are loaded ahead
        from_y = y * STRIDE + tap // SIDE - SIDE // 2
        from_x = x * STRIDE + tap % SIDE - SIDE // 2
        there = exists & (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
        pixel = window * pixels + earlier + from_y * width + from_x
        inside = there[:, None] & used[None, :]
        a = tl.load(maps + pixel[:, None] * stride_in + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        result += a * tl.load(own + tap * channels, mask=used, other=0.0).to(tl.float32)[None, :]
    result = activated(result, ACTIVATION)
    to = out + (window * pixels_after + earlier_after + cell)[:, None] * channels + channel[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _separable_block(
    maps, norm_weight, norm_bias, weight, bias, mix, mix_bias, out, count, height, width, channels, eps,
    SIDE: tl.constexpr, TALL: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel = tl.arange(0, DEEP)
    exists, used = row < count, channel < channels
    x, y = row % width, row // width % height
    result = tl.zeros((TALL, DEEP), tl.float32)
    result += tl.load(bias + channel, mask=used, other=0.0)[None, :]
    for down in range(0, SIDE):
        for across in tl.static_range(SIDE):  # the pixels of a row are loaded ahead
            from_y, from_x = y + down - SIDE // 2, x + across - SIDE // 2
            there = exists & (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
            pixel = row + (down - SIDE // 2) * width + across - SIDE // 2
            offset = pixel[:, None] * channels + channel[None, :]
            near = tl.load(maps + offset, mask=there[:, None] & used[None, :], other=0.0).to(tl.float32)
            near = normalised(near, norm_weight, norm_bias, channel, channels, eps).to(kind).to(tl.float32)
            w = tl.load(weight + (down * SIDE + across) * channels + channel, mask=used, other=0.0).to(tl.float32)
            result += tl.where(there[:, None], near, 0.0) * w[None, :]
    result = tl.dot(result.to(kind), transposed(mix, channel, channel, channels, channels, channels))
    result = activated(result + tl.load(mix_bias + channel, mask=used, other=0.0)[None, :], "hardswish")
    offset = row[:, None] * channels + channel[None, :]
    inside = exists[:, None] & used[None, :]
    own = tl.load(maps + offset, mask=inside, other=0.0).to(tl.float32)
    own = normalised(own, norm_weight, norm_bias, channel, channels, eps).to(kind).to(tl.float32)
    tl.store(out + offset, (result + own).to(kind), mask=inside)


@triton.jit(do_not_specialize=[*SIZES, "s_0", "s_1", "s_2"])
def _predict(
    maps, weight, bias, out, end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, s_0, s_1, s_2, windows, inputs, columns,
    pixels, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """A program computes all columns of its rows; ``size`` has the size of the box where ``raw`` has its centre."""
    level, first, height, width, earlier, _ = _level(end_0, end_1, h_0, w_0, h_1, w_1, h_2, w_2, 1)
    scale = tl.where(level == 0, s_0, tl.where(level == 1, s_1, s_2)).to(tl.float32)
    area = height * width
    row = (tl.program_id(0) - first) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, WIDE)
    exists, used, of_box = row < windows * area, column < columns, column < 4
    window = row // area
    cell = row - window * area
    pixel = window * pixels + earlier + cell
    centre_row = tl.where(of_box, column % 2, column)  # x, y, x, y, objectness, classes
    size_row = tl.where(of_box, 2 + column % 2, columns)  # width, height, width, height, nothing
    own = weight + level * columns * inputs
    raw = tl.zeros((TALL, WIDE), tl.float32)
    size = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, inputs, DEEP):
        k = start + tl.arange(0, DEEP)
        inside = exists[:, None] & (k < inputs)[None, :]
        a = tl.load(maps + pixel[:, None] * inputs + k[None, :], mask=inside, other=0.0)
        raw = tl.dot(a, transposed(own, centre_row, k, columns, inputs, inputs), raw)
        size = tl.dot(a, transposed(own, size_row, k, columns, inputs, inputs), size)
    raw += tl.load(bias + level * columns + centre_row, mask=used, other=0.0)[None, :]
    size += tl.load(bias + level * columns + size_row, mask=of_box, other=0.0)[None, :]
    corner = tl.where((column % 2 == 0)[None, :], (cell % width)[:, None], (cell // width)[:, None]).to(tl.float32)
    sign = tl.where(column < 2, -0.5, 0.5)[None, :]
    boxes = (raw + corner) * scale + sign * scale * tl.exp(tl.where(of_box[None, :], size, 0.0))
    result = tl.where(of_box[None, :], boxes, raw)
    tl.store(out + pixel[:, None] * columns + column[None, :], result, mask=exists[:, None] & used[None, :])
