"""The operations of a fused detector in torch: readable, for any device; ``kernels.py`` has the same in Triton.

Maps are [N, H, W, C], and rows are [M, C], one row for each pixel. Norms, sums and activations are computed in at least
float32. Inputs of matrix products have the type of the weights, as in the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fate.models.heads.yolox import cells_of, decode_boxes
from fate.models.layers.attention import from_groups, to_groups
from fate.models.layers.s5 import complex_multiply, step

#: What follows a product.
Activation = Literal["none", "silu", "gelu"]


class Norm(NamedTuple):
    """A layer norm over the last axis."""

    weight: Tensor  #: [C] float32
    bias: Tensor  #: [C] float32
    eps: float


class BlockWeights(NamedTuple):
    """A transformer block behind its attention; LayerScale is part of ``out`` and ``contract``."""

    out: Tensor  #: [C, C]
    out_bias: Tensor  #: [C] float32, like all biases
    norm: Norm
    expand: Tensor  #: [hidden, C]
    expand_bias: Tensor  #: [hidden]
    contract: Tensor  #: [C, hidden]
    contract_bias: Tensor  #: [C]


class S5Weights(NamedTuple):
    """An S5 block; complex numbers of length P are 2·P real ones."""

    norm: Norm
    into: Tensor  #: [2·P, C], B
    out: Tensor  #: [C, 2·P], C
    feedthrough: Tensor  #: [C] float32, D
    mlp_norm: Norm
    expand: Tensor  #: [2·C, C]: values, then gates
    contract: Tensor  #: [C, C]


def linear(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "none",
    residual: Tensor | None = None,
    others: Tensor | None = None,
    doubled: tuple[int, int] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """activation(rows · weightᵀ + bias) + residual: [M, outputs].

    Args:
        rows: [M, inputs]; columns are contiguous.
        weight: [outputs, inputs + inputs of others].
        bias: [outputs] float32.
        activation: of the product with the bias.
        residual: [M, outputs].
        others: [M, more inputs], concatenated behind ``rows``.
        doubled: (H, W) of the maps that the result describes, if ``rows`` are maps of half the size, [M / 4, inputs],
            of which each pixel is repeated 2 × 2.
        out: [M, outputs] to write to; columns are contiguous.
    """
    if doubled is not None:
        height, width = doubled
        small = rows.reshape(-1, height // 2, width // 2, rows.shape[-1])
        rows = small.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(0, 2)
    if others is not None:
        rows = torch.cat([rows, others], 1)
    result = _activated(_product(rows, weight, bias), activation)
    if residual is not None:
        result = result + residual
    if out is None:
        return result.to(weight.dtype)
    return out.copy_(result)


def normed_linear(
    rows: Tensor,
    norm: Norm,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "none",
    gated: bool = False,
) -> tuple[Tensor, Tensor]:
    """activation(norm(rows) · weightᵀ + bias), [M, outputs], and norm(rows), [M, C].

    With ``gated``, the weight has twice as many rows, and the result is values · GELU(gates).
    """
    normed = _normalised(rows, norm).to(weight.dtype)
    result = _product(normed, weight, bias)
    if gated:
        values, gates = result.chunk(2, -1)
        return (values * functional.gelu(gates)).to(weight.dtype), normed
    return _activated(result, activation).to(weight.dtype), normed


def normed_attention(
    maps: Tensor, norm: Norm, weight: Tensor, bias: Tensor, partition: tuple[int, int], head_dim: int, grid: bool
) -> tuple[Tensor, Tensor]:
    """Self-attention of norm(maps) within groups, before its output layer, and norm(maps), both [N, H, W, C].

    Args:
        maps: [N, H, W, C].
        norm: of the maps.
        weight, bias: [3·C, C] and [3·C]: query, key and value of the first head, then of the next.
        partition: (rows, columns) of a group.
        head_dim: channels of a head.
        grid: whether a group is spread evenly over the map, see ``layers.attention``.
    """
    rows, normed = normed_linear(maps.flatten(0, 2), norm, weight, bias)
    return attention(rows.view(*maps.shape[:3], -1), partition, head_dim, grid), normed.view(maps.shape)


def attention(maps: Tensor, partition: tuple[int, int], head_dim: int, grid: bool) -> Tensor:
    """Self-attention within groups of queries, keys and values [N, H, W, 3·C] to [N, H, W, C]."""
    tokens = to_groups(maps, partition, grid)  # [M, L, 3·C]
    query, key, value = tokens.view(*tokens.shape[:2], -1, 3, head_dim).transpose(1, 2).unbind(-2)
    attended = functional.scaled_dot_product_attention(query, key, value)
    return from_groups(attended.transpose(1, 2).flatten(2), partition, maps.shape[1], maps.shape[2], grid).contiguous()


def after_attention(attended: Tensor, rows: Tensor, weights: BlockWeights) -> Tensor:
    """The rest of a transformer block: output layer, sum with the block's input ``rows``, and MLP; all [M, C]."""
    rows = linear(attended, weights.out, weights.out_bias, residual=rows)
    inside, _ = normed_linear(rows, weights.norm, weights.expand, weights.expand_bias, activation="gelu")
    return linear(inside, weights.contract, weights.contract_bias, residual=rows)


def s5_block(
    rows: Tensor, weights: S5Weights, transition: Tensor, gain: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of ``layers.s5.S5Block`` for rows [M, C]; returns the result and the state after, [M, 2·P] float32.

    Args:
        rows: [M, C], the same number of rows for each of B streams.
        weights: of the block.
        transition, gain: Λ̄ and the factor of the input, [1, 2·P] or [B, 2·P] float32.
        state: before the step; a kernel overwrites it and returns it.
    """
    state, normed = s5_update(rows, weights, transition, gain, state)
    summed = s5_output(state, normed, weights)
    inside, normed = normed_linear(summed, weights.mlp_norm, weights.expand, gated=True)
    return linear(inside, weights.contract, residual=normed), state


def s5_update(
    rows: Tensor, weights: S5Weights, transition: Tensor, gain: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The first part of ``s5_block``: the state after, and u = norm(rows)."""
    normed = _normalised(rows, weights.norm).to(weights.into.dtype)
    product = _product(normed, weights.into)
    of_stream = (len(transition), -1, product.shape[-1])
    driven = complex_multiply(gain[:, None], product.view(of_stream))
    return step(transition[:, None], driven, state.view(of_stream)).view(state.shape), normed


def s5_output(state: Tensor, normed: Tensor, weights: S5Weights) -> Tensor:
    """The second part of ``s5_block``: GELU(Re(C x) + D u) + u."""
    largest = torch.finfo(weights.out.dtype).max
    product = _product(state.clamp(-largest, largest).to(weights.out.dtype), weights.out)
    return (functional.gelu(product + normed * weights.feedthrough) + normed).to(weights.out.dtype)


def conv_lstm(rows: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One step of ``layers.conv_lstm``: hidden [M, C] and cell state [M, C] float32; a kernel overwrites the latter.

    ``weight`` [4·C, 2·C] and ``bias`` [4·C] are those of the gates: forget, input, output, candidate.
    """
    product = _product(torch.cat([rows, hidden], 1), weight, bias)
    forget, enter, leave, candidate = product.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return (leave.sigmoid() * cell.tanh()).to(rows.dtype), cell


def conv(
    maps: Tensor,
    sizes: Sequence[tuple[int, int]],
    weight: Tensor,
    bias: Tensor,
    stride: int = 1,
    activation: Activation = "silu",
) -> Tensor:
    """A convolution with bias and activation of maps of one or several sizes: [N, Q, in] to [N, Q', out].

    Args:
        maps: pixels of the first size row by row, then of the next; columns are contiguous.
        sizes: (H, W) of the maps, whose pixels are Q in total.
        weight: [sizes, groups, out of a group, side, side, in of a group], an odd side; each size has its own.
        bias: [sizes, out] float32.
        stride: of the convolution, which is padded by half of its side.
        activation: of the sum.
    """
    groups, side = weight.shape[1], weight.shape[3]
    levels = torch.split(maps, [height * width for height, width in sizes], 1)
    results = []
    for level, (height, width), own, own_bias in zip(levels, sizes, weight, bias, strict=True):
        images = level.view(len(maps), height, width, -1).permute(0, 3, 1, 2)
        kernel = own.flatten(0, 1).permute(0, 3, 1, 2)
        result = functional.conv2d(images, kernel, None, stride, side // 2, groups=groups)
        result = result.to(torch.promote_types(result.dtype, torch.float32)) + own_bias.view(-1, 1, 1)
        results.append(_activated(result, activation).flatten(2).transpose(1, 2))
    return torch.cat(results, 1).to(weight.dtype).contiguous()


def predict(
    maps: Tensor, sizes: Sequence[tuple[int, int]], strides: Sequence[int], weight: Tensor, bias: Tensor
) -> Tensor:
    """Predictions of a YOLOX head [N, Q, 5 + classes] float32: box (xyxy, pixels), objectness, class logits.

    Args:
        maps: [N, Q, C], as in ``conv``.
        sizes: (H, W) of each level.
        strides: pixels per cell of each level.
        weight: [levels, 5 + classes, C]; the box is centre and logarithm of the size in cells, see ``decode_boxes``.
        bias: [levels, 5 + classes] float32.
    """
    levels = torch.split(maps, [height * width for height, width in sizes], 1)
    raw = torch.cat([_product(level, *own) for level, *own in zip(levels, weight, bias, strict=True)], 1)
    boxes = decode_boxes(raw[..., :4], *cells_of(sizes, strides, maps.device))
    return torch.cat([boxes, raw[..., 4:]], -1)


def _normalised(rows: Tensor, norm: Norm) -> Tensor:
    rows = rows.to(norm.weight.dtype)
    return functional.layer_norm(rows, rows.shape[-1:], norm.weight, norm.bias, norm.eps)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows · weightᵀ + bias, at least in float32; a CPU adds up products of 16 bits in 32 bits."""
    product = functional.linear(rows.to(weight.dtype), weight)
    product = product.to(torch.promote_types(product.dtype, torch.float32))
    return product if bias is None else product + bias


def _activated(values: Tensor, activation: Activation) -> Tensor:
    if activation == "none":
        return values
    return functional.silu(values) if activation == "silu" else functional.gelu(values)
