"""Surfaces of recent times: how long ago each pixel fired, seen from the window's end.

The time surface keeps the last event of each polarity and lets it fade exponentially. TORE (time-ordered recent
events) keeps the last K and takes logarithms. Both know only the events of their window: what happened before it is
forgotten, where a running surface would still see it fading. With windows as long as the decay the difference is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.grid_encoder import GridEncoder, loop_over_windows, positive
from fate.encoding.kernels.grids_cpu import decay_last_events, queue_last_events
from fate.encoding.spec import whole_number
from fate.errors import FateError


class TimeSurface(GridEncoder):
    """``exp(-age / tau)`` of the last event of each polarity and pixel. Channels OFF, ON; no events: 0.

    The age runs to the window's end, so values lie between 0 and 1, 1 being now.

    Args:
        sensor: (height, width), pixels.
        tau_us: µs after which a value has fallen to 37 %.

    >>> TimeSurface((240, 304), tau_us=20_000)
    TimeSurface(304×240, channels=2, stride=1)
    """

    def __init__(self, sensor: Sequence[int], tau_us: float = 50_000) -> None:
        super().__init__(sensor, 2)
        self.tau_us = positive("tau_us", tau_us, "a time in µs")

    def by_tensors(self, batch: EventBatch) -> Tensor:
        cell = _cells(batch, batch.p.long())
        last = torch.full((len(batch) * 2 * math.prod(self.sensor),), -1, dtype=torch.int32, device=batch.device)
        last = last.scatter_reduce_(0, cell, batch.t_us, "amax").view(self.shape(batch))
        age = batch.duration_us.view(-1, 1, 1, 1) - last
        return torch.exp(age.float() / -self.tau_us).masked_fill_(last < 0, 0.0)

    def by_loop(self, batch: EventBatch) -> Tensor:
        image = np.zeros((len(batch), 2, math.prod(self.sensor)), np.float32)
        filled = loop_over_windows(decay_last_events, batch, image, self.tau_us, self.sensor.width)
        return filled.view(self.shape(batch))


class ToreVolume(GridEncoder):
    """Log ages of the last ``depth`` events of each polarity and pixel: ``ln(age + 1) - ln(min_us + 1)``, at least 0.

    Channel = polarity · depth + rank, **ON first**, the newest event at rank 0. The age runs to the window's end, is at
    most ``max_us``, and is ``max_us`` where there is no event. So **no events are the largest value**,
    ``ln(max_us + 1) - ln(min_us + 1)``, and 0 means now: pad images with ``nothing``, not with zeros.

    Args:
        sensor: (height, width), pixels.
        depth: K. The published code takes 3 for classification, 4 for reconstruction, 5 for poses, 7 for denoising.
        min_us: ages below are not told apart.
        max_us: ages above are not told apart.

    >>> ToreVolume((240, 304))
    ToreVolume(304×240, channels=6, stride=1)
    """

    def __init__(self, sensor: Sequence[int], depth: int = 3, min_us: float = 150, max_us: float = 5_000_000) -> None:
        super().__init__(sensor, 2 * whole_number("depth", depth))
        self.depth = int(depth)
        self.min_us, self.max_us = (
            positive("min_us", min_us, "a time in µs"),
            positive("max_us", max_us, "a time in µs"),
        )
        if self.max_us <= self.min_us:
            raise FateError(f"min_us={min_us!r} and max_us={max_us!r} were given; expected min_us below max_us")
        self.nothing = math.log(self.max_us + 1) - math.log(self.min_us + 1)

    def by_tensors(self, batch: EventBatch) -> Tensor:
        """Ranks come from a stable sort by cell: in its cell's run, an event's rank is its distance from the run's end.

        Events of rank K and more all go to one place behind the image.
        """
        cell, order = torch.sort(_cells(batch, 1 - batch.p.long()), stable=True)
        rank = torch.searchsorted(cell, cell, right=True) - 1 - torch.arange(len(cell), device=batch.device)
        area = math.prod(self.sensor)
        place = (torch.div(cell, area, rounding_mode="floor") * self.depth + rank) * area + cell % area
        cells = len(batch) * self.channels * area
        age = (batch.duration_us[window_of_events(batch)] - batch.t_us)[order].float()
        value = torch.log1p(age.clamp_(max=self.max_us)) - math.log1p(self.min_us)
        image = torch.full((cells + 1,), self.nothing, device=batch.device, dtype=torch.float32)
        image[place.masked_fill_(rank >= self.depth, cells)] = value.clamp_(min=0)
        return image[:-1].view(self.shape(batch))

    def by_loop(self, batch: EventBatch) -> Tensor:
        shape = (len(batch), 2, self.depth, math.prod(self.sensor))
        image = np.full(shape, self.nothing, np.float32)
        filled = loop_over_windows(queue_last_events, batch, image, self.min_us, self.max_us, self.sensor.width)
        return filled.view(self.shape(batch))


def _cells(batch: EventBatch, polarity: Tensor) -> Tensor:
    """[E] int64, the place of each event in an image of (window, polarity, row, column)."""
    row = (window_of_events(batch) * 2 + polarity) * batch.sensor.height + batch.y.long()
    return row * batch.sensor.width + batch.x.long()
