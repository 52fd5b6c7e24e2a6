"""The memories of S5-ViT, RVT and EvRT-DETR on a GPU: one step; what depends on one pixel only is in few kernels.

A kernel overwrites the state of S5 and the cell state of the LSTM. Each number is read and written by one program only.
The hidden state is not overwritten, since several programs read it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused.products_gpu import (
    STAGES,
    block,
    depth,
    gelu,
    height_of,
    normalised,
    on,
    power_of_two,
    transposed,
    warps_of,
)
from fate.models.fused.reference import S5Weights

#: Modes, or units inside the MLP, that a program computes at once.
MODES = 32
#: Numbers of the peephole LSTM that a program computes.
CELLS = 512


def s5_block(
    rows: Tensor, weights: S5Weights, transition: Tensor, gain: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """``reference.s5_block``, for at most 128 channels."""
    count, channels = rows.shape
    out = rows.new_empty(count, channels)
    tall = height_of(count)
    stride, pixels = _streams(transition, count)
    with on(rows.device):
        _s5_block[(triton.cdiv(count, tall),)](
            rows, weights.norm.weight, weights.norm.bias, weights.into, weights.out, weights.feedthrough,
            weights.mlp_norm.weight, weights.mlp_norm.bias, weights.expand, weights.contract, transition, gain, state,
            out, count, channels, state.shape[1] // 2, pixels, stride, weights.norm.eps, weights.mlp_norm.eps,
            TALL=tall, DEEP=power_of_two(channels), MODES=MODES, num_stages=2,
        )  # fmt: skip
    return out, state


def s5_update(
    rows: Tensor, weights: S5Weights, transition: Tensor, gain: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """``reference.s5_update``."""
    count, channels = rows.shape
    normed = rows.new_empty(count, channels)
    modes = state.shape[1] // 2
    tall, wide = block(count, modes)[0], min(MODES, power_of_two(modes))
    stride, pixels = _streams(transition, count)
    with on(rows.device):
        _s5_update[(triton.cdiv(count, tall), triton.cdiv(modes, wide))](
            rows, weights.norm.weight, weights.norm.bias, weights.into, transition, gain, state, normed, count,
            channels, modes, pixels, stride, weights.norm.eps, TALL=tall, DEEP=power_of_two(channels), MODES=wide,
            num_warps=warps_of(power_of_two(channels)),
        )  # fmt: skip
    return state, normed


def s5_output(state: Tensor, normed: Tensor, weights: S5Weights) -> Tensor:
    """``reference.s5_output``."""
    count, channels = normed.shape
    out = normed.new_empty(count, channels)
    tall, wide = block(count, channels)
    inputs = state.shape[1]
    with on(normed.device):
        _s5_output[(triton.cdiv(count, tall), triton.cdiv(channels, wide))](
            state, normed, weights.out, weights.feedthrough, out, count, channels, inputs, TALL=tall, WIDE=wide,
            DEEP=min(depth(inputs, weights.out, tall + wide), 64), num_stages=STAGES,
        )  # fmt: skip
    return out


def conv_lstm(rows: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.conv_lstm``."""
    count, channels = rows.shape
    out = rows.new_empty(count, channels)
    tall, wide = block(count, channels)
    wide = min(wide, 32)  # there are four products
    with on(rows.device):
        _conv_lstm[(triton.cdiv(count, tall), triton.cdiv(channels, wide))](
            rows, hidden, cell, weight, bias, out, count, channels, TALL=tall, WIDE=wide,
            DEEP=min(depth(channels, weight, tall + wide), 64 if tall <= 32 else 32), num_stages=STAGES - 1,
        )  # fmt: skip
    return out, cell


def peephole_lstm(
    gates: Tensor, bias: Tensor, peepholes: Tensor, rows: Tensor, cell: Tensor, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """``reference.peephole_lstm``."""
    count, channels = cell.shape
    hidden = rows.new_empty(count, channels)
    each = isinstance(scale, Tensor)
    pixels = count // len(scale) if isinstance(scale, Tensor) else count
    with on(rows.device):
        _peephole_lstm[(triton.cdiv(count * channels, CELLS),)](
            gates, bias, peepholes, rows, cell, hidden, scale, count * channels, channels, rows.shape[1], pixels,
            scale.stride(0) if isinstance(scale, Tensor) else 0, EACH=each,
            FOLLOWS=each or scale != 1.0, TILE=CELLS,
        )  # fmt: skip
    return hidden, cell


def _streams(transition: Tensor, count: int) -> tuple[int, int]:
    """The stride from the transition of a stream to the next one, 0 if all have the same, and rows of a stream."""
    return (transition.stride(0), count // len(transition)) if len(transition) > 1 else (0, count)


@triton.jit
def _stepped(
    normed, into, transition, gain, state, row, count, channel, mode, channels, modes, pixels, stride
):  # fmt: skip
    """Advance the state of some rows and modes, and return its real and imaginary parts."""
    inside = (row < count)[:, None] & (mode < modes)[None, :]
    real = tl.dot(normed, transposed(into, mode, channel, modes, channels, channels))
    imag = tl.dot(normed, transposed(into + modes * channels, mode, channel, modes, channels, channels))
    of_stream = (row // pixels)[:, None] * stride + mode[None, :]
    g_real = tl.load(gain + of_stream, mask=inside, other=0.0)
    g_imag = tl.load(gain + of_stream + modes, mask=inside, other=0.0)
    a_real = tl.load(transition + of_stream, mask=inside, other=0.0)
    a_imag = tl.load(transition + of_stream + modes, mask=inside, other=0.0)
    own = state + row[:, None] * (2 * modes) + mode[None, :]
    x_real = tl.load(own, mask=inside, other=0.0)
    x_imag = tl.load(own + modes, mask=inside, other=0.0)
    after_real = g_real * real - g_imag * imag + a_real * x_real - a_imag * x_imag
    after_imag = g_real * imag + g_imag * real + a_real * x_imag + a_imag * x_real
    tl.store(own, after_real, mask=inside)
    tl.store(own + modes, after_imag, mask=inside)
    return after_real, after_imag


@triton.jit
def _limited(x, kind: tl.constexpr):
    """float32 numbers as numbers of a product; too large ones become the largest of 16 bits."""
    if kind == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(kind)


@triton.jit
def _s5_block(
    rows, norm_weight, norm_bias, into, out_weight, feedthrough, mlp_weight, mlp_bias, expand, contract, transition,
    gain, state, out, count, channels, modes, pixels, stride, eps, mlp_eps, TALL: tl.constexpr, DEEP: tl.constexpr,
    MODES: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel = tl.arange(0, DEEP)
    used = channel < channels
    inside = (row < count)[:, None] & used[None, :]
    offset = row[:, None] * channels + channel[None, :]
    x = tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
    normed = normalised(x, norm_weight, norm_bias, channel, channels, eps).to(kind)
    u = normed.to(tl.float32)
    result = u * tl.load(feedthrough + channel, mask=used, other=0.0)[None, :]
    for start in range(0, modes, MODES):
        mode = start + tl.arange(0, MODES)
        real, imag = _stepped(
            normed, into, transition, gain, state, row, count, channel, mode, channels, modes, pixels, stride
        )
        c_real = transposed(out_weight, channel, mode, channels, modes, 2 * modes)
        c_imag = transposed(out_weight + modes, channel, mode, channels, modes, 2 * modes)
        result = tl.dot(_limited(real, kind), c_real, result)
        result = tl.dot(_limited(imag, kind), c_imag, result)
    summed = (gelu(result) + u).to(kind).to(tl.float32)
    normed = normalised(summed, mlp_weight, mlp_bias, channel, channels, mlp_eps).to(kind)
    result = normed.to(tl.float32)
    for start in range(0, channels, MODES):
        unit = start + tl.arange(0, MODES)
        values = tl.dot(normed, transposed(expand, unit, channel, channels, channels, channels))
        gates = tl.dot(
            normed, transposed(expand + channels * channels, unit, channel, channels, channels, channels)
        )  # fmt: skip
        weights = transposed(contract, channel, unit, channels, channels, channels)
        result = tl.dot((values * gelu(gates)).to(kind), weights, result)
    tl.store(out + offset, result.to(kind), mask=inside)


@triton.jit
def _s5_update(
    rows, norm_weight, norm_bias, into, transition, gain, state, kept, count, channels, modes, pixels, stride, eps,
    TALL: tl.constexpr, DEEP: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    mode = tl.program_id(1) * MODES + tl.arange(0, MODES)
    channel = tl.arange(0, DEEP)
    inside = (row < count)[:, None] & (channel < channels)[None, :]
    offset = row[:, None] * channels + channel[None, :]
    x = tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
    normed = normalised(x, norm_weight, norm_bias, channel, channels, eps).to(kept.dtype.element_ty)
    tl.store(kept + offset, normed, mask=inside & (tl.program_id(1) == 0))
    _stepped(normed, into, transition, gain, state, row, count, channel, mode, channels, modes, pixels, stride)


@triton.jit
def _s5_output(
    state, normed, weight, feedthrough, out, count, channels, inputs, TALL: tl.constexpr, WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    kind: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    exists, used = row < count, channel < channels
    result = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, inputs, DEEP):
        k = start + tl.arange(0, DEEP)
        inside = exists[:, None] & (k < inputs)[None, :]
        x = _limited(tl.load(state + row[:, None] * inputs + k[None, :], mask=inside, other=0.0), kind)
        result = tl.dot(x, transposed(weight, channel, k, channels, inputs, inputs), result)
    inside = exists[:, None] & used[None, :]
    offset = row[:, None] * channels + channel[None, :]
    u = tl.load(normed + offset, mask=inside, other=0.0).to(tl.float32)
    result += u * tl.load(feedthrough + channel, mask=used, other=0.0)[None, :]
    tl.store(out + offset, (gelu(result) + u).to(kind), mask=inside)


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _conv_lstm(
    rows, hidden, cell, weight, bias, out, count, channels, TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    exists, used = row < count, channel < channels
    forget = tl.zeros((TALL, WIDE), tl.float32)
    enter = tl.zeros((TALL, WIDE), tl.float32)
    leave = tl.zeros((TALL, WIDE), tl.float32)
    candidate = tl.zeros((TALL, WIDE), tl.float32)
    total = 2 * channels
    gate = channels * total
    for start in range(0, channels, DEEP):
        k = start + tl.arange(0, DEEP)
        inside = exists[:, None] & (k < channels)[None, :]
        x = tl.load(rows + row[:, None] * channels + k[None, :], mask=inside, other=0.0)
        h = tl.load(hidden + row[:, None] * channels + k[None, :], mask=inside, other=0.0)
        forget = tl.dot(x, transposed(weight, channel, k, channels, channels, total), forget)
        enter = tl.dot(x, transposed(weight + gate, channel, k, channels, channels, total), enter)
        leave = tl.dot(x, transposed(weight + 2 * gate, channel, k, channels, channels, total), leave)
        candidate = tl.dot(x, transposed(weight + 3 * gate, channel, k, channels, channels, total), candidate)
        own = weight + channels
        forget = tl.dot(h, transposed(own, channel, k, channels, channels, total), forget)
        enter = tl.dot(h, transposed(own + gate, channel, k, channels, channels, total), enter)
        leave = tl.dot(h, transposed(own + 2 * gate, channel, k, channels, channels, total), leave)
        candidate = tl.dot(h, transposed(own + 3 * gate, channel, k, channels, channels, total), candidate)
    forget += tl.load(bias + channel, mask=used, other=0.0)[None, :]
    enter += tl.load(bias + channels + channel, mask=used, other=0.0)[None, :]
    leave += tl.load(bias + 2 * channels + channel, mask=used, other=0.0)[None, :]
    candidate += tl.load(bias + 3 * channels + channel, mask=used, other=0.0)[None, :]
    inside = exists[:, None] & used[None, :]
    offset = row[:, None] * channels + channel[None, :]
    before = tl.load(cell + offset, mask=inside, other=0.0)
    after = tl.sigmoid(forget) * before + tl.sigmoid(enter) * _tanh(candidate)
    tl.store(cell + offset, after, mask=inside)
    tl.store(out + offset, (tl.sigmoid(leave) * _tanh(after)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _log1p(x):
    """log(1 + x) for 0 <= x <= 1, with a small relative error also near 0."""
    whole = 1.0 + x
    return tl.where(whole == 1.0, x, tl.log(whole) * (x / tl.where(whole == 1.0, 1.0, whole - 1.0)))


@triton.jit
def _expm1(x):
    """exp(x) - 1 for x <= 0, with a small relative error also near 0: tanh(x / 2) · (exp(x) + 1)."""
    half = -0.5 * x
    # The first terms of the series of tanh, for small numbers: there the difference itself has few correct digits.
    near = half * (1.0 - half * half * (0.33333333 - half * half * (0.13333333 - half * half * 0.053968254)))
    power = tl.exp(x)
    return tl.where(half < 0.1, -near * (power + 1.0), power - 1.0)


@triton.jit
def _peephole_lstm(
    gates, bias, peepholes, rows, cell, hidden, scale, total, channels, stride, pixels, scale_stride,
    EACH: tl.constexpr, FOLLOWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = index < total
    row, channel = index // channels, index % channels
    own = gates + row * (4 * channels) + channel
    enter = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    forget = tl.load(own + channels, mask=inside, other=0.0).to(tl.float32)
    leave = tl.load(own + 2 * channels, mask=inside, other=0.0).to(tl.float32)
    candidate = tl.load(own + 3 * channels, mask=inside, other=0.0).to(tl.float32)
    enter += tl.load(bias + channel, mask=inside, other=0.0)
    forget += tl.load(bias + channels + channel, mask=inside, other=0.0)
    leave += tl.load(bias + 2 * channels + channel, mask=inside, other=0.0)
    candidate += tl.load(bias + 3 * channels + channel, mask=inside, other=0.0)
    before = tl.load(cell + index, mask=inside, other=0.0)
    enter = tl.sigmoid(enter + tl.load(peepholes + channel, mask=inside, other=0.0) * before)
    forget += tl.load(peepholes + channels + channel, mask=inside, other=0.0) * before
    keep = tl.sigmoid(forget)
    if FOLLOWS:
        power = scale
        if EACH:
            power = tl.load(scale + (row // pixels) * scale_stride, mask=inside, other=1.0)
        log_keep = tl.minimum(forget, 0.0) - _log1p(tl.exp(-tl.abs(forget)))
        log_keep = tl.minimum(log_keep, -1e-6)
        scaled = log_keep * power
        keep = tl.exp(scaled)
        enter = enter * (_expm1(scaled) / _expm1(log_keep))
    after = keep * before + enter * _tanh(candidate)
    leave = tl.sigmoid(leave + tl.load(peepholes + 2 * channels + channel, mask=inside, other=0.0) * after)
    result = (leave * _tanh(after)).to(hidden.dtype.element_ty)
    tl.store(cell + index, after, mask=inside)
    tl.store(hidden + index, result, mask=inside)
    tl.store(rows + row * stride + (stride - channels) + channel, result, mask=inside)
