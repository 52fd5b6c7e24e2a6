"""The history of images on a GPU: one step in one kernel, which overwrites the state.

torch takes some twenty kernels for it. A program has all channels of some cells.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fate.models.fused.products_gpu import on, power_of_two
from fate.models.layers.image_history import History, ImageHistory

#: Numbers of an image that a program completes.
NUMBERS = 1024


def complete_images(
    history: ImageHistory, images: Tensor, state: History, scale: float | Tensor
) -> tuple[Tensor, History]:
    """``reference.complete_images``."""
    windows, more, height, width = images.shape
    channels = more - 1
    total, count = state
    result = torch.empty_like(total)
    deep = power_of_two(channels)
    tall = max(NUMBERS // deep, 1)
    with on(images.device):
        _complete_images[(triton.cdiv(height * width, tall), windows)](
            images, total, count, result, history.log_rate, history.count_log_rate, history.gain, scale, height * width,
            width, channels, *images.stride(), *total.stride(), *count.stride(),
            scale.stride(0) if isinstance(scale, Tensor) else 0, EACH=isinstance(scale, Tensor), TALL=tall, DEEP=deep,
        )  # fmt: skip
    return result, state


@triton.jit
def _complete_images(
    images, total, count, result, log_rate, count_log_rate, gain, scale, cells, width, channels, image_window,
    image_channel, image_row, image_column, total_window, total_channel, total_row, total_column, count_window,
    count_channel, count_row, count_column, scale_stride, EACH: tl.constexpr, TALL: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(1)
    cell, channel = tl.program_id(0) * TALL + tl.arange(0, TALL), tl.arange(0, DEEP)
    exists, used = cell < cells, channel < channels
    inside = exists[:, None] & used[None, :]
    y, x = cell // width, cell % width
    length = tl.exp(tl.load(images + window * image_window + channels * image_channel))
    hop = scale
    if EACH:
        hop = tl.load(scale + window * scale_stride)
    share, strength = tl.minimum(hop / length, 1.0), tl.maximum(1.0 - length, 0.0)
    keep = tl.exp(-hop * tl.exp(tl.load(log_rate + channel, mask=used, other=0.0)))
    count_keep = tl.exp(-hop * tl.exp(tl.load(count_log_rate)))
    weight = strength * tl.load(gain + channel, mask=used, other=0.0)
    of_image = window * image_window + y * image_row + x * image_column
    of_total = window * total_window + y * total_row + x * total_column
    of_count = count + window * count_window + y * count_row + x * count_column
    to = of_total[:, None] + channel[None, :] * total_channel
    values = tl.load(images + of_image[:, None] + channel[None, :] * image_channel, mask=inside, other=0.0)
    filled = tl.max((values != 0.0).to(tl.float32), 1)
    remembered = tl.load(total + to, mask=inside, other=0.0) * keep[None, :]
    times = tl.load(of_count, mask=exists, other=0.0) * count_keep
    divisor = tl.maximum(filled + strength * times, 1.0)
    tl.store(result + to, (values + weight[None, :] * remembered) / divisor[:, None], mask=inside)
    tl.store(total + to, remembered + share * values, mask=inside)
    tl.store(of_count, times + share * filled, mask=exists)
