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

from fate.events.events import Sensor
from fate.models.boxes import xyxy_from_cxcywh
from fate.models.heads.yolox import cells_of, decode_boxes
from fate.models.layers.attention import from_groups, to_groups
from fate.models.layers.deformable import sampled
from fate.models.layers.image_history import History, ImageHistory
from fate.models.layers.s5 import complex_multiply, step
from fate.models.necks import latent_memory

#: What follows a product.
Activation = Literal["none", "silu", "hardswish", "gelu", "relu"]


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


class SeparableWeights(NamedTuple):
    """A depthwise and a 1×1 convolution behind a norm."""

    norm: Norm
    filter: Tensor  #: [side, side, C], an odd side
    filter_bias: Tensor  #: [C] float32, like all biases
    mix: Tensor  #: [C, C]
    mix_bias: Tensor  #: [C]


class S5Weights(NamedTuple):
    """An S5 block; complex numbers of length P are 2·P real ones."""

    norm: Norm
    into: Tensor  #: [2·P, C], B
    out: Tensor  #: [C, 2·P], C
    feedthrough: Tensor  #: [C] float32, D
    mlp_norm: Norm
    expand: Tensor  #: [2·C, C]: values, then gates
    contract: Tensor  #: [C, C]


class PositionWeights(NamedTuple):
    """The network that makes positions of boxes: 4 → inside → C, with ReLU."""

    expand: Tensor  #: [inside, 4] float32
    expand_bias: Tensor  #: [inside]
    contract: Tensor  #: [C, inside]
    contract_bias: Tensor  #: [C]


class BoxWeights(NamedTuple):
    """The last layer of the network that refines boxes."""

    weight: Tensor  #: [4, C]
    bias: Tensor  #: [4] float32
    farthest: float  #: coordinates, which are logits, are limited to this absolute value before they are changed


def complete_images(
    history: ImageHistory, images: Tensor, state: History, scale: float | Tensor
) -> tuple[Tensor, History]:
    """One step of a history that does not keep the length: images [N, C + 1, H, W] to [N, C, H, W], and the state.

    ``scale`` is the time between windows over 50 ms, a number or [N] float32. A kernel overwrites the state.
    """
    found: tuple[Tensor, History] = history(images, state, 1, scale)
    return found


def linear(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = "none",
    residual: Tensor | None = None,
    others: Tensor | None = None,
    doubled: tuple[int, int] | None = None,
    positions: Tensor | None = None,
    positioned: int = 0,
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
        positions: [M, inputs], contiguous, added to the rows for the first outputs.
        positioned: for how many outputs; a multiple of 16.
        out: [M, outputs] to write to; columns are contiguous.
    """
    if doubled is not None:
        height, width = doubled
        small = rows.reshape(-1, height // 2, width // 2, rows.shape[-1])
        rows = small.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(0, 2)
    if others is not None:
        rows = torch.cat([rows, others], 1)
    product = _product(rows, weight, bias)
    if positions is not None:
        first = _product(rows + positions, weight[:positioned], None if bias is None else bias[:positioned])
        product = torch.cat([first, product[:, positioned:]], 1)
    result = _activated(product, activation)
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
    positions: Tensor | None = None,
    precise: bool = False,
) -> tuple[Tensor, Tensor]:
    """activation((norm(rows) + positions) · weightᵀ + bias), [M, outputs], and norm(rows), [M, C].

    With ``gated``, the weight has twice as many rows, and the result is values · GELU(gates). With ``precise``, the
    result is in float32. ``positions`` are [M, C].
    """
    normed = _normalised(rows, norm).to(weight.dtype)
    result = _product(normed if positions is None else normed + positions, weight, bias)
    if gated:
        values, gates = result.chunk(2, -1)
        return (values * functional.gelu(gates)).to(weight.dtype), normed
    return _activated(result, activation).to(result.dtype if precise else weight.dtype), normed


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


def separable_block(maps: Tensor, weights: SeparableWeights) -> Tensor:
    """u + hardswish(mix · (filter * u + its bias) + bias) for u = norm(maps), as ``layers.conv.SeparableBlock``.

    Maps and result are [N, H, W, C].
    """
    normed = _normalised(maps, weights.norm).to(weights.mix.dtype)
    size, rows = (maps.shape[1], maps.shape[2]), normed.flatten(1, 2)
    filtered = depthwise(rows, [size], weights.filter[None], weights.filter_bias[None], activation="none")
    rows, filtered = rows.flatten(0, 1), filtered.flatten(0, 1)
    return linear(filtered, weights.mix, weights.mix_bias, activation="hardswish", residual=rows).view(maps.shape)


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
    residual: Tensor | None = None,
) -> Tensor:
    """A convolution with bias and activation of maps of one or several sizes: [N, Q, in] to [N, Q', out].

    Args:
        maps: pixels of the first size row by row, then of the next; columns are contiguous.
        sizes: (H, W) of the maps, whose pixels are Q in total.
        weight: [sizes, groups, out of a group, side, side, in of a group], an odd side; each size has its own.
        bias: [sizes, out] float32.
        stride: of the convolution, which is padded by half of its side.
        activation: of the sum.
        residual: [N, Q', out], added to the result; columns are contiguous.
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
    result = torch.cat(results, 1)
    return (result if residual is None else result + residual).to(weight.dtype).contiguous()


def depthwise(
    maps: Tensor,
    sizes: Sequence[tuple[int, int]],
    weight: Tensor,
    bias: Tensor,
    stride: int = 1,
    activation: Activation = "silu",
) -> Tensor:
    """As ``conv``, of each channel by itself: ``weight`` is [sizes, side, side, C], an odd side."""
    side = weight.shape[1]
    levels = torch.split(maps, [height * width for height, width in sizes], 1)
    results = []
    for level, (height, width), own, own_bias in zip(levels, sizes, weight, bias, strict=True):
        images = level.view(len(maps), height, width, -1).permute(0, 3, 1, 2)
        kernel = own.permute(2, 0, 1)[:, None]
        result = functional.conv2d(images, kernel, None, stride, side // 2, groups=len(kernel))
        result = result.to(torch.promote_types(result.dtype, torch.float32)) + own_bias.view(-1, 1, 1)
        results.append(_activated(result, activation).flatten(2).transpose(1, 2))
    return torch.cat(results, 1).to(weight.dtype).contiguous()


def conv_relu(
    images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, added: Tensor | None = None
) -> Tensor:
    """ReLU(convolution + bias + added) of images [N, in, H, W]; all have the type of the weight."""
    result = functional.conv2d(images, weight, bias, stride, padding)
    return functional.relu_(result if added is None else result + added)


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


def token_attention(tokens: Tensor, heads: int) -> Tensor:
    """Self-attention of tokens [N, L, 3·C], queries of all heads, then keys, then values, to [N, L, C]."""
    query, key, value = (part.reshape(*part.shape[:2], heads, -1).transpose(1, 2) for part in tokens.chunk(3, 2))
    attended = functional.scaled_dot_product_attention(query, key, value)
    return attended.transpose(1, 2).flatten(2).contiguous()


def peephole_lstm(
    gates: Tensor, bias: Tensor, peepholes: Tensor, rows: Tensor, cell: Tensor, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The step of ``necks.latent_memory`` behind its convolution: hidden [M, D] and cell state [M, D] float32.

    Args:
        gates: [M, 4·D]: input, forget, output, candidate, without bias.
        bias: [4·D] float32.
        peepholes: [3, D] float32.
        rows: [M, C + D], contiguous; their last columns are overwritten by the hidden state.
        cell: [M, D] float32; a kernel overwrites it.
        scale: time between windows over 50 ms: a number, or [B] float32 for M / B rows each; 1 for the published step.
    """
    if isinstance(scale, Tensor):
        scale = scale.repeat_interleave(len(gates) // len(scale))[:, None]
    sums = gates.to(cell.dtype) + bias
    hidden, cell = latent_memory.step(sums, cell, peepholes, rows.dtype, scale)
    rows[:, -hidden.shape[1] :] = hidden
    return hidden, cell


def score_cells(
    rows: Tensor, usable: Tensor, instead: Tensor, norm: Norm, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """norm(rows), [M, C], and the best class logit of each row, [M] float32.

    Args:
        rows: [M, C]; columns are contiguous.
        usable: [S] bool; M is a multiple of S. Where it is false, ``instead`` takes the place of the row.
        instead: [C] float32.
        norm: of the rows.
        weight, bias: [classes, C] and [classes] float32.
    """
    there = usable.repeat(len(rows) // len(usable))[:, None]
    features = _normalised(torch.where(there, rows.to(instead.dtype), instead), norm).to(weight.dtype)
    return features, _product(features, weight, bias).amax(1)


def best_cells(features: Tensor, best: Tensor, anchors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Features [N · Q, C] and anchors [N · Q, 4] of the Q = ``count`` cells with the largest ``best``, best first.

    Args:
        features: [N · S, C].
        best: [N · S]; of equal cells the first is better.
        anchors: [S, 4] float32.
        count: at most S.
    """
    cells = len(anchors)
    order = best.view(-1, cells).sort(dim=1, descending=True, stable=True).indices[:, :count]
    first = torch.arange(len(order), device=order.device)[:, None] * cells
    return features[(first + order).flatten()], anchors[order.flatten()]


def refine_boxes(
    inside: Tensor, box: BoxWeights, reference: Tensor, positions: PositionWeights
) -> tuple[Tensor, Tensor]:
    """The changed boxes [M, 4] float32, as logits, and their positions [M, C].

    Args:
        inside: [M, C], the input of the last layer of the network that refines boxes.
        box: this layer.
        reference: [M, 4] float32, the boxes before.
        positions: the network that makes positions of the boxes.
    """
    moved = _product(inside, box.weight, box.bias) + reference.clamp(-box.farthest, box.farthest)
    hidden = functional.relu(functional.linear(moved.sigmoid(), positions.expand, positions.expand_bias))
    return moved, _product(hidden, positions.contract, positions.contract_bias).to(inside.dtype)


def read_maps(
    product: Tensor, reference: Tensor, values: Tensor, sizes: Sequence[tuple[int, int]], heads: int, points: int
) -> Tensor:
    """What ``layers.deformable`` reads from the maps, before its output layer: [M, C].

    Args:
        product: [M, 3 · heads · levels · points] float32: offsets, then weights before their softmax.
        reference: [M, 4] float32, boxes as logits.
        values: [N · S, C]; columns are contiguous.
        sizes: (rows, columns) of each map.
        heads: of the attention.
        points: of each head in each map.
    """
    cells, numbers = sum(rows * columns for rows, columns in sizes), heads * len(sizes) * points
    windows = len(values) // cells
    count = len(product) // windows
    offsets = product[:, : 2 * numbers].view(windows, count, heads, len(sizes), points, 2)
    weights = product[:, 2 * numbers :].view(windows, count, heads, -1).softmax(-1)
    centre, side = reference.sigmoid().view(windows, count, 1, 1, 1, 4).chunk(2, -1)
    points_xy = torch.addcmul(2 * centre - 1, offsets, side / points)
    planes = values.view(windows, cells, -1).to(product.dtype).mT.contiguous()
    return sampled(planes, sizes, points_xy, weights).flatten(0, 1).to(values.dtype)


def predict_queries(
    inside: Tensor, box: BoxWeights, reference: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, frame: Sensor
) -> Tensor:
    """Predictions of a DETR head [M, 4 + classes] float32: box (xyxy, pixels) and class logits.

    Args:
        inside, box, reference: as in ``refine_boxes``.
        rows: [M, C] the queries.
        weight, bias: [classes, C] and [classes] float32.
        frame: (height, width) in pixels.
    """
    moved = _product(inside, box.weight, box.bias) + reference.clamp(-box.farthest, box.farthest)
    size = moved.new_tensor([frame.width, frame.height] * 2)
    return torch.cat([xyxy_from_cxcywh(moved.sigmoid()) * size, _product(rows, weight, bias)], 1)


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
    if activation == "relu":
        return functional.relu(values)
    if activation == "hardswish":
        return functional.hardswish(values)
    return functional.silu(values) if activation == "silu" else functional.gelu(values)
