"""The cells that become queries of RT-DETR on a GPU, in two kernels: scores, and the best cells without a sort."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused.products_gpu import normalised, on, power_of_two, transposed
from fate.models.fused.reference import Norm

#: Cells of a program, and those that it compares them with at once.
OWN, OTHERS = 16, 256


def score_cells(
    rows: Tensor, usable: Tensor, instead: Tensor, norm: Norm, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """``reference.score_cells``."""
    count, channels = rows.shape
    features = rows.new_empty(count, channels)
    best = rows.new_empty(count, dtype=torch.float32)
    with on(rows.device):
        _score_cells[(triton.cdiv(count, OWN),)](
            rows, usable.view(torch.uint8), instead, norm.weight, norm.bias, weight, bias, features, best, count,
            channels, len(weight), len(usable), rows.stride(0), norm.eps, TALL=OWN, DEEP=power_of_two(channels),
            WIDE=power_of_two(len(weight)),
        )  # fmt: skip
    return features, best


def best_cells(features: Tensor, best: Tensor, anchors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``reference.best_cells``."""
    cells, channels = len(anchors), features.shape[1]
    windows = len(best) // cells
    rows = features.new_empty(windows * count, channels)
    reference = anchors.new_empty(windows * count, 4)
    with on(features.device):
        _best_cells[(triton.cdiv(cells, OWN), windows)](
            features, best, anchors, rows, reference, cells, count, channels, OWN=OWN, OTHERS=OTHERS,
            DEEP=power_of_two(channels),
        )  # fmt: skip
    return rows, reference


@triton.jit
def _score_cells(
    rows, usable, instead, norm_weight, norm_bias, weight, bias, features, best, count, channels, classes, cells,
    stride, eps, TALL: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    channel, number = tl.arange(0, DEEP), tl.arange(0, WIDE)
    exists, used = row < count, channel < channels
    inside = exists[:, None] & used[None, :]
    x = tl.load(rows + row[:, None] * stride + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    there = tl.load(usable + row % cells, mask=exists, other=0).to(tl.int32) != 0
    x = tl.where(there[:, None], x, tl.load(instead + channel, mask=used, other=0.0)[None, :])
    normed = normalised(x, norm_weight, norm_bias, channel, channels, eps).to(features.dtype.element_ty)
    tl.store(features + row[:, None] * channels + channel[None, :], normed, mask=inside)
    logits = tl.dot(normed, transposed(weight, number, channel, classes, channels, channels))
    logits += tl.load(bias + number, mask=number < classes, other=0.0)[None, :]
    logits = tl.where((number < classes)[None, :], logits, -1e30)
    tl.store(best + row, tl.max(logits, 1), mask=exists)


@triton.jit
def _best_cells(
    features, best, anchors, chosen, reference, cells, most, channels, OWN: tl.constexpr, OTHERS: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    """Every cell counts those that are better, which gives its rank; equal cells keep their order."""
    window = tl.program_id(1)
    first = best + window * cells
    cell = tl.program_id(0) * OWN + tl.arange(0, OWN)
    exists = cell < cells
    own = tl.load(first + cell, mask=exists, other=0.0)
    rank = tl.zeros((OWN,), tl.int32)
    for start in range(0, cells, OTHERS):
        other = start + tl.arange(0, OTHERS)
        value = tl.load(first + other, mask=other < cells, other=float("-inf"))
        equal = (value[None, :] == own[:, None]) & (other[None, :] < cell[:, None])
        rank += tl.sum(((value[None, :] > own[:, None]) | equal).to(tl.int32), 1)
    stays = exists & (rank < most)
    channel, side = tl.arange(0, DEEP), tl.arange(0, 4)
    inside = stays[:, None] & (channel < channels)[None, :]
    row = tl.load(features + (window * cells + cell)[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    tl.store(chosen + (window * most + rank)[:, None] * channels + channel[None, :], row, mask=inside)
    inside = stays[:, None] & (side < 4)[None, :]
    anchor = tl.load(anchors + cell[:, None] * 4 + side[None, :], mask=inside, other=0.0)
    tl.store(reference + (window * most + rank)[:, None] * 4 + side[None, :], anchor, mask=inside)
