"""Transformer blocks of MaxViT on a GPU: groups are read where they are, and one program attends in one head.

With few channels a program also computes queries, keys and values of its group and head, and everything behind the
attention is one more kernel, whose programs compute whole rows. With many channels the weights are too large for that.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused.products_gpu import gelu, height_of, normalised, on, power_of_two, transposed
from fate.models.fused.reference import BlockWeights, Norm

#: Units inside the MLP that a program computes at once.
UNITS = 64


def normed_attention(
    maps: Tensor, norm: Norm, weight: Tensor, bias: Tensor, partition: tuple[int, int], head_dim: int, grid: bool
) -> tuple[Tensor, Tensor]:
    """``reference.normed_attention``, for at most 128 channels."""
    windows, height, width, channels = maps.shape
    rows, columns = partition
    attended, normed = (maps.new_empty(maps.shape, dtype=weight.dtype) for _ in range(2))
    groups = windows * (height // rows) * (width // columns)
    with on(maps.device):
        _normed_attention[(groups, channels // head_dim)](
            maps, norm.weight, norm.bias, weight, bias, normed, attended, height, width, channels, norm.eps,
            head_dim**-0.5, HEAD=head_dim, ROWS=rows, COLUMNS=columns, GRID=grid, TOKENS=power_of_two(rows * columns),
            DEEP=power_of_two(channels), WIDE=power_of_two(head_dim), num_warps=8,
        )  # fmt: skip
    return attended, normed


def attention(maps: Tensor, partition: tuple[int, int], head_dim: int, grid: bool) -> Tensor:
    """``reference.attention``."""
    windows, height, width, triple = maps.shape
    rows, columns = partition
    attended = maps.new_empty(windows, height, width, triple // 3)
    groups = windows * (height // rows) * (width // columns)
    with on(maps.device):
        _attention[(groups, triple // 3 // head_dim)](
            maps, attended, height, width, triple // 3, head_dim**-0.5, HEAD=head_dim, ROWS=rows, COLUMNS=columns,
            GRID=grid, TOKENS=power_of_two(rows * columns), WIDE=power_of_two(head_dim), num_warps=8,
        )  # fmt: skip
    return attended


def after_attention(attended: Tensor, rows: Tensor, weights: BlockWeights) -> Tensor:
    """``reference.after_attention``, for at most 128 channels."""
    count, channels = rows.shape
    out = rows.new_empty(count, channels)
    tall = height_of(count)
    with on(rows.device):
        _after_attention[(triton.cdiv(count, tall),)](
            attended, rows, weights.out, weights.out_bias, weights.norm.weight, weights.norm.bias, weights.expand,
            weights.expand_bias, weights.contract, weights.contract_bias, out, count, channels, len(weights.expand),
            weights.norm.eps, TALL=tall, DEEP=power_of_two(channels), UNITS=UNITS, num_stages=2,
        )  # fmt: skip
    return out


@triton.jit
def _pixels(height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GRID: tl.constexpr, TOKENS: tl.constexpr):
    """The index of each token's pixel in maps [N, H, W], and which tokens exist; the first program id is the group."""
    token = tl.arange(0, TOKENS)
    row, column = token // COLUMNS, token % COLUMNS
    down, across = height // ROWS, width // COLUMNS
    group = tl.program_id(0)
    window = group // (down * across)
    group_row = (group - window * down * across) // across
    group_column = group % across
    if GRID:
        y, x = row * down + group_row, column * across + group_column
    else:
        y, x = group_row * ROWS + row, group_column * COLUMNS + column
    return (window * height + y) * width + x, token < ROWS * COLUMNS


@triton.jit
def _attended(query, key, value, exists, scale):
    """softmax(query · keyᵀ · scale) · value of one head [tokens, channels]."""
    scores = tl.dot(query, tl.trans(key)) * scale
    scores = tl.where(exists[None, :], scores, -1e30)
    powers = tl.exp(scores - tl.max(scores, 1)[:, None])
    share = powers / tl.sum(powers, 1)[:, None]
    return tl.dot(share.to(value.dtype), value)


@triton.jit
def _normed_attention(
    maps, norm_weight, norm_bias, weight, bias, kept, out, height, width, channels, eps, scale, HEAD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GRID: tl.constexpr, TOKENS: tl.constexpr, DEEP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    pixel, exists = _pixels(height, width, ROWS, COLUMNS, GRID, TOKENS)
    head = tl.program_id(1)
    channel, part = tl.arange(0, DEEP), tl.arange(0, WIDE)
    inside = exists[:, None] & (channel < channels)[None, :]
    offset = pixel[:, None] * channels + channel[None, :]
    x = tl.load(maps + offset, mask=inside, other=0.0).to(tl.float32)
    normed = normalised(x, norm_weight, norm_bias, channel, channels, eps).to(out.dtype.element_ty)
    tl.store(kept + offset, normed, mask=inside & (head == 0))
    used = part < HEAD
    own, own_bias = weight + head * 3 * HEAD * channels, bias + head * 3 * HEAD
    query = tl.dot(normed, transposed(own, part, channel, HEAD, channels, channels))
    query += tl.load(own_bias + part, mask=used, other=0.0)[None, :]
    key = tl.dot(normed, transposed(own + HEAD * channels, part, channel, HEAD, channels, channels))
    key += tl.load(own_bias + HEAD + part, mask=used, other=0.0)[None, :]
    value = tl.dot(normed, transposed(own + 2 * HEAD * channels, part, channel, HEAD, channels, channels))
    value += tl.load(own_bias + 2 * HEAD + part, mask=used, other=0.0)[None, :]
    query, key, value = query.to(normed.dtype), key.to(normed.dtype), value.to(normed.dtype)
    result = _attended(query, key, value, exists, scale)
    to = out + pixel[:, None] * channels + head * HEAD + part[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=exists[:, None] & used[None, :])


@triton.jit
def _attention(
    maps, out, height, width, channels, scale, HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    GRID: tl.constexpr, TOKENS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    pixel, exists = _pixels(height, width, ROWS, COLUMNS, GRID, TOKENS)
    head, part = tl.program_id(1), tl.arange(0, WIDE)
    inside = exists[:, None] & (part < HEAD)[None, :]
    own = maps + pixel[:, None] * (3 * channels) + head * 3 * HEAD + part[None, :]
    query = tl.load(own, mask=inside, other=0.0)
    key = tl.load(own + HEAD, mask=inside, other=0.0)
    value = tl.load(own + 2 * HEAD, mask=inside, other=0.0)
    result = _attended(query, key, value, exists, scale)
    to = out + pixel[:, None] * channels + head * HEAD + part[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _after_attention(
    attended, rows, out_weight, out_bias, norm_weight, norm_bias, expand, expand_bias, contract, contract_bias, out,
    count, channels, hidden, eps, TALL: tl.constexpr, DEEP: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel = tl.arange(0, DEEP)
    used = channel < channels
    inside = (row < count)[:, None] & used[None, :]
    offset = row[:, None] * channels + channel[None, :]
    a = tl.load(attended + offset, mask=inside, other=0.0)
    result = tl.dot(a, transposed(out_weight, channel, channel, channels, channels, channels))
    result += tl.load(out_bias + channel, mask=used, other=0.0)[None, :]
    result += tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
    normed = normalised(result, norm_weight, norm_bias, channel, channels, eps).to(out.dtype.element_ty)
    result += tl.load(contract_bias + channel, mask=used, other=0.0)[None, :]
    for start in range(0, hidden, UNITS):
        unit = start + tl.arange(0, UNITS)
        x = tl.dot(normed, transposed(expand, unit, channel, hidden, channels, channels))
        x = gelu(x + tl.load(expand_bias + unit, mask=unit < hidden, other=0.0)[None, :])
        result = tl.dot(
            x.to(out.dtype.element_ty), transposed(contract, channel, unit, channels, hidden, hidden), result
        )
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=inside)
