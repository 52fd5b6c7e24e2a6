"""Matrix products of a fused detector on a GPU, with what stands before and behind them in the same kernel.

A window has few tokens: 5 120 at stride 4, 80 at stride 32. So the result is divided into blocks that are small enough
to keep all multiprocessors busy, although small blocks read their inputs more often.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused.reference import Activation, Norm

#: Programs that keep a large GPU busy.
BUSY = 100
#: Rows and columns of a block, from the largest.
BLOCKS = ((64, 64), (32, 64), (32, 32), (16, 32))
#: Blocks of inputs that are loaded ahead: a multiprocessor waits for memory as long as for several products.
STAGES = 4
#: Numbers of a weight's block that ``normed_linear`` keeps in registers.
HELD = 1 << 14


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
    """``reference.linear``."""
    count, columns = len(rows) * (1 if doubled is None else 4), len(weight)
    if out is None:
        out = rows.new_empty(count, columns, dtype=weight.dtype)
    height, width = (0, 0) if doubled is None else doubled
    tall, wide = block(count, columns)
    if positions is not None:
        wide = math.gcd(wide, positioned)  # a program adds positions for all of its columns or for none
    more = 0 if others is None else others.shape[1]
    with on(rows.device):
        _linear[(triton.cdiv(count, tall), triton.cdiv(columns, wide))](
            rows, rows if others is None else others, weight, weight if bias is None else bias,
            rows if residual is None else residual, rows if positions is None else positions, out, count, columns,
            rows.shape[1], more, rows.stride(0), 0 if others is None else others.stride(0),
            0 if residual is None else residual.stride(0), out.stride(0), height, width, positioned,
            ACTIVATION=activation, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
            HAS_OTHERS=others is not None, HAS_POSITIONS=positions is not None, DOUBLED=doubled is not None, TALL=tall,
            WIDE=wide, DEEP=depth(rows.shape[1], weight, tall + wide), num_stages=STAGES,
        )  # fmt: skip
    return out


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
    """``reference.normed_linear``."""
    count, channels = rows.shape
    columns = len(weight) // 2 if gated else len(weight)
    out = rows.new_empty(count, columns, dtype=torch.float32 if precise else weight.dtype)
    normed = rows.new_empty(count, channels, dtype=weight.dtype)
    deep = power_of_two(channels)
    tall, wide = block(count, columns)
    wide = max(min(wide, HELD // deep), 16)
    with on(rows.device):
        _normed_linear[(triton.cdiv(count, tall), triton.cdiv(columns, wide))](
            rows, norm.weight, norm.bias, weight, weight if bias is None else bias,
            rows if positions is None else positions, normed, out, count, columns, channels, norm.eps,
            ACTIVATION=activation, HAS_BIAS=bias is not None, HAS_POSITIONS=positions is not None, GATED=gated,
            TALL=tall, WIDE=wide, DEEP=deep, num_warps=warps_of(deep),
        )  # fmt: skip
    return out, normed


def block(count: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a block of a result of this size."""
    for tall, wide in BLOCKS:
        if triton.cdiv(count, tall) * triton.cdiv(columns, wide) >= BUSY:
            return tall, wide
    return BLOCKS[-1]


def height_of(count: int) -> int:
    """Rows of a program that computes whole rows."""
    return next((tall for tall in (64, 32) if triton.cdiv(count, tall) >= BUSY), 16)


def depth(inputs: int, weight: Tensor, sides: int) -> int:
    """Inputs that a program reads at once; ``sides`` are rows and columns of its block together.

    ``STAGES`` blocks of inputs and weights fit into the 99 kB of shared memory that smaller GPUs have.
    """
    most = 128 if sides <= 96 else 64
    return min(power_of_two(inputs), most if weight.itemsize == 2 else most // 4)


def warps_of(channels: int) -> int:
    """Warps of a program that keeps whole rows in registers."""
    return 8 if channels > 256 else 4


def power_of_two(number: int) -> int:
    """The next power of two, at least 16: the smallest side of a product on tensor cores."""
    return max(int(triton.next_power_of_2(number)), 16)


def on(device: torch.device) -> AbstractContextManager[object]:
    """A context in which kernels run on the GPU of the tensors (Triton's interpreter has no GPU)."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """An activation of float32 numbers."""
    y = x
    if ACTIVATION == "relu":
        y = tl.maximum(x, 0.0)
    if ACTIVATION == "silu":
        y = x * tl.sigmoid(x)
    if ACTIVATION == "hardswish":
        y = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    if ACTIVATION == "gelu":
        y = gelu(x)
    return y


@triton.jit
def gelu(x):
    """x Φ(x)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def normalised(x, norm_weight, norm_bias, channel, channels, eps):
    """Layer norm of float32 rows; numbers behind the last channel are 0 before and after."""
    used = channel < channels
    mean = tl.sum(x, 1) / channels
    away = tl.where(used[None, :], x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 1) / channels + eps)
    w = tl.load(norm_weight + channel, mask=used, other=0.0)
    b = tl.load(norm_bias + channel, mask=used, other=0.0)
    return away * scale[:, None] * w[None, :] + b[None, :]


@triton.jit
def transposed(weight, column, k, columns, inputs, stride):
    """The block [k, column] of a weight [columns, inputs], whose rows are ``stride`` apart; 0 outside."""
    inside = (k < inputs)[:, None] & (column < columns)[None, :]
    return tl.load(weight + column[None, :] * stride + k[:, None], mask=inside, other=0.0)


@triton.jit
def _linear(
    rows, others, weight, bias, residual, positions, out, count, columns, inputs, more, row_stride, other_stride,
    residual_stride, out_stride, height, width, positioned, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_OTHERS: tl.constexpr, HAS_POSITIONS: tl.constexpr, DOUBLED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    exists, used = row < count, column < columns
    source = row
    if DOUBLED:
        y = row // width
        window = y // height
        source = (window * (height // 2) + (y - window * height) // 2) * (width // 2) + (row - y * width) // 2
    total = inputs + more
    result = tl.zeros((TALL, WIDE), tl.float32)
    for start in range(0, inputs, DEEP):
        k = start + tl.arange(0, DEEP)
        inside = exists[:, None] & (k < inputs)[None, :]
        a = tl.load(rows + source[:, None] * row_stride + k[None, :], mask=inside, other=0.0)
        if HAS_POSITIONS:
            inside = inside & (tl.program_id(1) * WIDE < positioned)
            moved = tl.load(positions + row[:, None] * inputs + k[None, :], mask=inside, other=0.0)
            a = (a.to(tl.float32) + moved.to(tl.float32)).to(a.dtype)
        result = tl.dot(a, transposed(weight, column, k, columns, inputs, total), result)
    if HAS_OTHERS:
        for start in range(0, more, DEEP):
            k = start + tl.arange(0, DEEP)
            inside = exists[:, None] & (k < more)[None, :]
            a = tl.load(others + row[:, None] * other_stride + k[None, :], mask=inside, other=0.0)
            result = tl.dot(a, transposed(weight + inputs, column, k, columns, more, total), result)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=used, other=0.0)[None, :]
    result = activated(result, ACTIVATION)
    inside = exists[:, None] & used[None, :]
    if HAS_RESIDUAL:
        given = tl.load(residual + row[:, None] * residual_stride + column[None, :], mask=inside, other=0.0)
        result += given.to(tl.float32)
    tl.store(out + row[:, None] * out_stride + column[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _normed_linear(
    rows, norm_weight, norm_bias, weight, bias, positions, kept, out, count, columns, channels, eps,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_POSITIONS: tl.constexpr, GATED: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    channel = tl.arange(0, DEEP)
    exists, used = row < count, column < columns
    inside = exists[:, None] & (channel < channels)[None, :]
    offset = row[:, None] * channels + channel[None, :]
    x = tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
    normed = normalised(x, norm_weight, norm_bias, channel, channels, eps).to(kept.dtype.element_ty)
    tl.store(kept + offset, normed, mask=inside & (tl.program_id(1) == 0))
    if HAS_POSITIONS:
        moved = tl.load(positions + offset, mask=inside, other=0.0)
        normed = (normed.to(tl.float32) + moved.to(tl.float32)).to(normed.dtype)
    result = tl.dot(normed, transposed(weight, column, channel, columns, channels, channels))
    if GATED:
        gates = tl.dot(normed, transposed(weight + columns * channels, column, channel, columns, channels, channels))
        result = result * gelu(gates)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=used, other=0.0)[None, :]
    result = activated(result, ACTIVATION)
    to = out + row[:, None] * columns + column[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=exists[:, None] & used[None, :])
