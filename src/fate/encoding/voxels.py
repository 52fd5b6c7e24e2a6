"""The voxel grid: every event shared between the two time bins nearest to it, by its distance to each.

Bins stand for moments spread evenly over the window: bin k of K for ``k · duration / (K - 1)``, so the first is the
window's start and the last its end. An event at ``t`` µs lies ``t · (K - 1) / duration`` bins after the first; the part
before the point is the bin on its left, the part behind it the share of the bin on its right. Both are found in whole
numbers, in units of ``1 / duration``, and divided once they are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.grid_encoder import GridEncoder, loop_over_windows, one_of
from fate.encoding.kernels.grids_cpu import spread_events
from fate.encoding.spec import whole_number


class VoxelGrid(GridEncoder):
    """Voxel grid with bilinear time over the window. No events: 0.

    Args:
        sensor: (height, width), pixels.
        bins: K, moments of the window; with 1, all events count in full.
        polarity: "signed", ON counts 1 and OFF -1 (K channels), or "separate", both count 1, in channels of their own
            (2 K channels, channel = polarity · K + bin, OFF first).

    >>> VoxelGrid((240, 304), bins=5)
    VoxelGrid(304×240, channels=5, stride=1)
    """

    def __init__(
        self, sensor: Sequence[int], bins: int = 5, polarity: Literal["signed", "separate"] = "signed"
    ) -> None:
        signed = one_of("polarity", polarity, ("signed", "separate")) == "signed"
        planes = 1 if signed else 2
        super().__init__(sensor, planes * whole_number("bins", bins))
        self.bins, self.planes, self.signed = int(bins), planes, signed

    def by_tensors(self, batch: EventBatch) -> Tensor:
        window = window_of_events(batch)
        duration = batch.duration_us[window]
        scaled = batch.t_us.long() * (self.bins - 1)
        left = torch.div(scaled, duration, rounding_mode="floor")
        late = scaled - left * duration  # 0 to duration - 1
        right = (left + 1).clamp_(max=self.bins - 1)  # one bin alone: it gets 0 from here
        polarity = batch.p.long()
        sign = polarity * 2 - 1 if self.signed else 1
        plane = window if self.signed else window * 2 + polarity
        pixel = batch.y.long() * self.sensor.width + batch.x.long()
        area = self.sensor.height * self.sensor.width
        sums = torch.zeros(len(batch) * self.channels * area, dtype=torch.int64, device=batch.device)
        sums.index_add_(0, (plane * self.bins + left) * area + pixel, sign * (duration - late))
        sums.index_add_(0, (plane * self.bins + right) * area + pixel, sign * late)
        return sums.view(self.shape(batch)).float() / batch.duration_us.float().view(-1, 1, 1, 1)

    def by_loop(self, batch: EventBatch) -> Tensor:
        height, width = self.sensor
        image = np.zeros((len(batch), self.planes, self.bins, height * width), np.float32)
        return loop_over_windows(spread_events, batch, image, self.signed, width).view(self.shape(batch))
