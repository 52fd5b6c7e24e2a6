"""Layer normalisation of few channels on a GPU: a program keeps several whole rows in registers.

torch uses a block of threads for each row, which is efficient for several hundred channels; the first stages of small
models have 16 to 128. The output has the type that the next layer needs, so that no pass is spent on rounding. Sums
over rows have a fixed order, so the same input gives the same gradient to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Numbers in a tile: rows times channels, rounded up to a power of two.
TILE = 4096
#: Programs of the backward pass, several for every multiprocessor; each processes a share of the rows.
PROGRAMS = 1024


class Normalised(torch.autograd.Function):
    """Normalises rows [R, C] over C; the output has the type ``dtype``."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        rows = rows.contiguous()
        count, channels = rows.shape
        out = torch.empty(count, channels, dtype=dtype, device=rows.device)
        moments = torch.empty(count, 2, device=rows.device)  # mean and 1 / deviation
        wide = triton.next_power_of_2(channels)
        tall = max(TILE // wide, 1)
        with torch.cuda.device_of(rows):
            _forward[(triton.cdiv(count, tall),)](rows, weight, bias, out, moments, count, channels, eps, tall, wide)
        ctx.save_for_backward(rows, moments, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, moments, weight = ctx.saved_tensors
        count, channels = rows.shape
        wide = triton.next_power_of_2(channels)
        tall = max(TILE // wide, 1)
        programs = min(triton.cdiv(count, tall), PROGRAMS)
        to_rows = torch.empty_like(rows)
        sums = torch.empty(programs, 2, channels, device=rows.device)
        with torch.cuda.device_of(rows):
            _backward[(programs,)](
                rows, moments, weight, grad[0].contiguous(), to_rows, sums, count, channels, tall, wide
            )
        to_weight, to_bias = sums.sum(0)
        return to_rows, to_weight.to(weight.dtype), to_bias.to(weight.dtype), None, None


@triton.jit
def _forward(rows, weight, bias, out, moments, count, channels, eps, tall: tl.constexpr, wide: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * tall + tl.arange(0, tall)
    channel = tl.arange(0, wide)
    inside = (row < count)[:, None] & (channel < channels)[None, :]
    offset = row[:, None] * channels + channel[None, :]
    values = tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 1) / channels
    away = tl.where(inside, values - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 1) / channels + eps)
    w = tl.load(weight + channel, mask=channel < channels, other=0.0).to(tl.float32)
    b = tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)
    result = away * scale[:, None] * w[None, :] + b[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=inside)
    tl.store(moments + 2 * row, mean, mask=row < count)
    tl.store(moments + 2 * row + 1, scale, mask=row < count)


@triton.jit
def _backward(rows, moments, weight, grad, to_rows, sums, count, channels, tall: tl.constexpr, wide: tl.constexpr):
    channel = tl.arange(0, wide)
    w = tl.load(weight + channel, mask=channel < channels, other=0.0).to(tl.float32)
    of_weight = tl.zeros([wide], tl.float32)
    of_bias = tl.zeros([wide], tl.float32)
    for start in range(tl.program_id(0), tl.cdiv(count, tall), tl.num_programs(0)):
        row = tl.cast(start, tl.int64) * tall + tl.arange(0, tall)
        inside = (row < count)[:, None] & (channel < channels)[None, :]
        offset = row[:, None] * channels + channel[None, :]
        mean = tl.load(moments + 2 * row, mask=row < count, other=0.0)
        scale = tl.load(moments + 2 * row + 1, mask=row < count, other=0.0)
        given = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(rows + offset, mask=inside, other=0.0).to(tl.float32)
        unit = tl.where(inside, (values - mean[:, None]) * scale[:, None], 0.0)
        of_weight += tl.sum(given * unit, 0)
        of_bias += tl.sum(given, 0)
        pull = given * w[None, :]
        along = tl.sum(pull * unit, 1) / channels
        level = tl.sum(pull, 1) / channels
        result = (pull - level[:, None] - unit * along[:, None]) * scale[:, None]
        tl.store(to_rows + offset, result.to(to_rows.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * 2 * channels + channel, of_weight, mask=channel < channels)
    tl.store(sums + tl.program_id(0) * 2 * channels + channels + channel, of_bias, mask=channel < channels)
