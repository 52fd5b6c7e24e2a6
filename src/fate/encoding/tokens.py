"""GET's event tokens: patches of the frame as vectors, whose groups are time bins and polarities.

For each time bin, polarity and pixel of a patch there are two numbers: how many events there were, and the sum of their
times, each time as a share of the span from the window's first to its last event. Bins are laid from the first event to
1 µs after the last.

**Shape.** [B, C, H / patch, W / patch] with C = groups · 2 · patch², and the channel order

    ((bin · 2 + polarity) · 2 + {0: count, 1: time}) · patch² + row in patch · patch + column in patch

OFF first. A *group* of GET is one (bin, polarity), ``2 · patch²`` channels in a row: its token embedding is a 3 × 3
convolution with as many groups as ``groups`` here, and belongs to the detector. The public code hands this module the
number of groups its embedding has: 24 (768 channels) or 48 (1536) at patches of 4 pixels.

Where ``patch`` does not divide the frame, the frame is padded at the right and the bottom. (The public code stretches
its patches over the frame instead, which mixes pixels of a patch; where ``patch`` divides the frame both are the same.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, window_of_events
from fate.encoding.grid_encoder import GridEncoder, first_and_last, loop_over_windows
from fate.encoding.kernels.grids_cpu import count_tokens
from fate.encoding.spec import whole_number
from fate.errors import FateError
from fate.events.events import Sensor

NO_SPAN = 1e-4  # µs added to the span, so that events of one time have the share 0


class GroupTokens(GridEncoder):
    """GET's group tokens [B, groups · 2 · patch², H / patch, W / patch]; the module's text gives the order. Nothing: 0.

    Args:
        sensor: (height, width), pixels.
        groups: time bins times the two polarities, so an even number.
        patch: pixels along a side of a patch; the stride.

    >>> GroupTokens((240, 304))
    GroupTokens(304×240, channels=768, stride=4)
    """

    def __init__(self, sensor: Sequence[int], groups: int = 24, patch: int = 4) -> None:
        frame, side = Sensor.of(sensor), whole_number("patch", patch)
        if whole_number("groups", groups, least=2) % 2:
            raise FateError(f"groups={groups} was given; expected an even number, time bins times two polarities")
        size = Sensor(-(-frame.height // side), -(-frame.width // side))
        super().__init__(frame, groups * 2 * side * side, side, size)
        self.groups, self.bins, self.patch = int(groups), int(groups) // 2, side

    def by_tensors(self, batch: EventBatch) -> Tensor:
        window, side = window_of_events(batch), self.patch
        begin, last = first_and_last(batch)
        span = last - begin
        since = batch.t_us.long() - begin[window]
        number = torch.div(since * self.bins, span[window] + 1, rounding_mode="floor")
        y, x = batch.y.long(), batch.x.long()
        row, column = torch.div(y, side, rounding_mode="floor"), torch.div(x, side, rounding_mode="floor")
        inside = (y - row * side) * side + (x - column * side)
        group = (window * self.bins + number) * 2 + batch.p.long()
        place = (inside * self.size.height + row) * self.size.width + column
        each = side * side * self.size.height * self.size.width
        cells, shape = group * each + place, (len(batch), self.groups, -1)
        length = len(batch) * self.groups * each
        counts = torch.zeros(length, dtype=torch.int32, device=batch.device)
        counts.index_add_(0, cells, torch.ones_like(cells, dtype=torch.int32))
        times = torch.zeros(length, dtype=torch.int64, device=batch.device).index_add_(0, cells, since)
        shares = times.view(shape).float() / (span.float() + NO_SPAN).view(-1, 1, 1)
        return torch.stack((counts.view(shape).float(), shares), dim=2).view(self.shape(batch))

    def by_loop(self, batch: EventBatch) -> Tensor:
        rows, columns = self.size
        image = np.zeros((len(batch), self.bins, 2, 2, self.patch**2 * rows * columns), np.float32)
        return loop_over_windows(count_tokens, batch, image, self.patch, rows, columns).view(self.shape(batch))
