"""Stacked histograms: events counted per polarity, time bin and pixel, as RVT and as EvRT-DETR count them.

Both cut the time between a window's first and last event into 10 bins. They differ in which polarity comes first, in
whether large counts wrap and are clipped, in the last bin's edge and in how 1Mpx frames are halved.

Bins are found in whole numbers: event ``d`` µs after the first of a span of ``s`` µs is in bin ``d · bins // s``. RVT
computes this in single precision, which gives the same bin for every event of every window up to half a second at up to
21 bins; EvRT-DETR adds up bin edges in double precision, which may move an event that lies exactly on an edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.grid_encoder import GridEncoder, first_and_last, loop_over_windows, one_of
from fate.encoding.kernels.grids_cpu import OVER_EVENTS, OVER_EVENTS_INCLUDING_LAST, OVER_WINDOW, count_events
from fate.encoding.spec import whole_number
from fate.errors import FateError
from fate.events.events import Sensor

UINT8_VALUES = 256


class StackedHistogram(GridEncoder):
    """RVT's stacked histogram. Channel = polarity · bins + bin, OFF first; no events: 0.

    Args:
        sensor: (height, width), pixels.
        bins: time bins of a window.
        count_cutoff: the largest value; larger counts become it. None: counts stay as they are.
        bins_over: "events" lays the bins from the window's first to its last event, as RVT does; "window" over the
            window, which keeps a bin's length the same from window to window.
        wrap: counts live in 8 bits, as in RVT's published data: 256 events are 0, 257 are 1. False: they do not wrap.
        downsample: keep one pixel of ``downsample`` × ``downsample``, as RVT does with 2 for 1Mpx (nearest-exact: the
            one right and below of the middle); the events of the others count for nothing but the first and last time.

    >>> StackedHistogram((240, 304))
    StackedHistogram(304×240, channels=20, stride=1)
    """

    def __init__(
        self,
        sensor: Sequence[int],
        bins: int = 10,
        count_cutoff: int | None = 10,
        bins_over: Literal["events", "window"] = "events",
        wrap: bool = True,
        downsample: int = 1,
    ) -> None:
        super().__init__(sensor, 2 * whole_number("bins", bins), *_downsampled(sensor, downsample))
        self.bins = int(bins)
        self.count_cutoff = None if count_cutoff is None else whole_number("count_cutoff", count_cutoff)
        over_window = one_of("bins_over", bins_over, ("events", "window")) == "window"
        self.over = OVER_WINDOW if over_window else OVER_EVENTS
        self.wrap = bool(wrap)

    def by_tensors(self, batch: EventBatch) -> Tensor:
        counts = count_by_tensors(batch, batch.p.long(), self.bins, self.over, self.stride, self.size)
        if self.wrap:
            counts.bitwise_and_(UINT8_VALUES - 1)
        if self.count_cutoff is not None:
            counts.clamp_(max=self.count_cutoff)
        return counts.float().view(self.shape(batch))

    def by_loop(self, batch: EventBatch) -> Tensor:
        modulus = UINT8_VALUES if self.wrap else math.inf
        cutoff = math.inf if self.count_cutoff is None else self.count_cutoff
        image = count_by_loop(batch, 0, self.bins, self.over, modulus, cutoff, self.stride, self.size)
        return image.view(self.shape(batch))


class EvrtHistogram(GridEncoder):
    """EvRT-DETR's stacked histogram. Channel = polarity · bins + bin, **ON first**; plain counts; no events: 0.

    Args:
        sensor: (height, width), pixels.
        bins: time bins between the window's first event and 1 µs after its last.
        downsample: shrink the image so many times by bilinear interpolation with antialiasing, as EvRT-DETR does with
            2 for 1Mpx.

    >>> EvrtHistogram((720, 1280), downsample=2)
    EvrtHistogram(1280×720, channels=20, stride=2)
    """

    def __init__(self, sensor: Sequence[int], bins: int = 10, downsample: int = 1) -> None:
        super().__init__(sensor, 2 * whole_number("bins", bins), *_downsampled(sensor, downsample))
        self.bins = int(bins)

    def by_tensors(self, batch: EventBatch) -> Tensor:
        on_first = 1 - batch.p.long()
        counts = count_by_tensors(batch, on_first, self.bins, OVER_EVENTS_INCLUDING_LAST, 1, self.sensor)
        return self._shrunk(counts.float().view(len(batch), self.channels, *self.sensor))

    def by_loop(self, batch: EventBatch) -> Tensor:
        over = OVER_EVENTS_INCLUDING_LAST
        image = count_by_loop(batch, 1, self.bins, over, math.inf, math.inf, 1, self.sensor)
        return self._shrunk(image.view(len(batch), self.channels, *self.sensor))

    def _shrunk(self, image: Tensor) -> Tensor:
        if self.stride == 1:
            return image
        return functional.interpolate(image, tuple(self.size), mode="bilinear", align_corners=False, antialias=True)


def count_by_tensors(
    batch: EventBatch, polarity: Tensor, bins: int, over: int, step: int, size: Sequence[int]
) -> Tensor:
    """[B · 2 · bins · H' · W'] int32 counts.

    Args:
        polarity: [E] int64, 0 for events of the first channels, 1 for those of the second.
        over: what the bins are laid over, as in ``kernels.grids_cpu``.
        step: of ``step`` × ``step`` pixels only the middle one counts.
        size: (H', W').
    """
    window = window_of_events(batch)
    if over == OVER_WINDOW:
        begin, span = torch.zeros_like(batch.duration_us), batch.duration_us
    else:
        begin, last = first_and_last(batch)
        span = last - begin + 1 if over == OVER_EVENTS_INCLUDING_LAST else (last - begin).clamp(min=1)
    since = batch.t_us.long() - begin[window]
    number = torch.div(since * bins, span[window], rounding_mode="floor").clamp_(max=bins - 1)
    y, x = batch.y.long(), batch.x.long()
    row, column = torch.div(y, step, rounding_mode="floor"), torch.div(x, step, rounding_mode="floor")
    counted = (y - row * step == step // 2) & (x - column * step == step // 2) & (row < size[0]) & (column < size[1])
    row, column = row.clamp(max=size[0] - 1), column.clamp(max=size[1] - 1)
    cell = (((window * 2 + polarity) * bins + number) * size[0] + row) * size[1] + column
    counts = torch.zeros(len(batch) * 2 * bins * size[0] * size[1], dtype=torch.int32, device=batch.device)
    return counts.index_add_(0, cell, counted.int())


def count_by_loop(
    batch: EventBatch, on_first: int, bins: int, over: int, modulus: float, cutoff: float, step: int,
    size: Sequence[int],
) -> Tensor:  # fmt: skip
    """[B, 2, bins, H' · W'] float32, counted and clipped in one pass."""
    image = np.zeros((len(batch), 2, bins, size[0] * size[1]), np.float32)  # pages that nobody touches cost nothing
    return loop_over_windows(
        count_events, batch, image, over, on_first, float(modulus), float(cutoff), step, *batch.sensor
    )


def _downsampled(sensor: Sequence[int], downsample: int) -> tuple[int, Sensor]:
    """The stride and the image's size."""
    step, size = whole_number("downsample", downsample), Sensor.of(sensor)
    if step > min(size):
        raise FateError(f"downsample={step} was given for a {size} sensor; nothing of it would be left")
    return step, Sensor(size.height // step, size.width // step)
