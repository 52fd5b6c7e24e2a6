"""Events of several recordings on one device, from which the windows of a batch are selected and augmented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.data import affine
from fate.data.loading import ClipBatch, WindowRequests
from fate.encoding.batch import EventBatch
from fate.events.events import Sensor
from fate.events.window import Window

#: Windows are selected together up to this number of events, which takes about 2.5 GB of memory.
EVENTS_AT_ONCE = 2**25


class EventTable:
    """Events of recordings, or of parts of them, concatenated on one common clock.

    Part k begins at ``start_us[k]`` on the clock of its recording, and at ``begin[k]`` on the common clock.
    """

    def __init__(
        self,
        clock: Tensor,
        pixel: Tensor,
        p: Tensor,
        start_us: NDArray[np.int64],
        length_us: NDArray[np.int64],
        sensor: Sensor,
    ) -> None:
        """Args:
        clock: [E] int64, µs on the common clock, never decreasing.
        pixel: [E] int32, y · width + x.
        p: [E] uint8.
        start_us: [K] start of each part.
        length_us: [K] duration of each part.
        sensor: (height, width).
        """
        self.clock, self.pixel, self.p = clock, pixel, p
        self.start_us, self.length_us, self.begin = start_us, length_us, common_starts(length_us)
        self.sensor = sensor

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """Add the events to a batch of requests, and to its teacher."""
        teacher = batch.teacher
        if isinstance(batch.events, WindowRequests):
            batch = batch._replace(events=self.batch(batch.events))
        if teacher is not None and isinstance(teacher.events, WindowRequests):
            batch = batch._replace(teacher=teacher._replace(events=self.batch(teacher.events)))
        return batch

    def batch(self, requests: WindowRequests) -> EventBatch:
        """The batch that reading the requested windows would give; ``requests.recording`` counts parts."""
        device = self.clock.device
        part = np.maximum(requests.recording, 0)
        since = (requests.windows - self.start_us[part, None]).T  # [2, W], since the start of the part
        limits = np.where(requests.recording < 0, 0, self.length_us[part])
        bounds = np.clip(since, 0, limits) + self.begin[part]
        found = torch.searchsorted(self.clock, torch.from_numpy(np.ascontiguousarray(bounds)).to(device))
        starts = since[0] + self.begin[part]  # a window may begin before its part
        counts = (found[1] - found[0]).tolist()
        pieces = [self._select(requests, group, found, starts) for group in _groups(counts)]
        totals = [count for piece in pieces for count in torch.bincount(piece[0], minlength=piece[4]).tolist()]
        batch = EventBatch.of_counts(totals, self.sensor, device, [Window(*each) for each in requests.windows.tolist()])
        first = 0
        while pieces:
            _, time, pixel, p, _ = pieces.pop(0)
            rows = slice(first, first + len(time))
            batch.t_us[rows] = time
            batch.x[rows] = pixel % self.sensor.width
            batch.y[rows] = pixel // self.sensor.width
            batch.p[rows] = p
            first = rows.stop
        return batch

    def _select(
        self, requests: WindowRequests, group: slice, found: Tensor, starts: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """Window in the group, time in the window, pixel and polarity of the events of some windows; their number."""
        device = self.clock.device
        first, last = found[:, group]
        counts, windows = last - first, len(first)
        window = torch.arange(windows, device=device).repeat_interleave(counts)
        index = torch.arange(len(window), device=device) + (first - (counts.cumsum(0) - counts))[window]
        time = self.clock[index] - torch.from_numpy(starts[group]).to(device)[window]
        event, pixel = self._transform(requests, group, window, self.pixel[index].long())
        return window[event], time[event].int(), pixel.int(), self.p[index[event]], windows

    def _transform(
        self, requests: WindowRequests, group: slice, window: Tensor, pixel: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Indices of the events that are in the transformed frames, [K] ascending, and their pixels there [K]."""
        device = pixel.device
        event = torch.arange(len(pixel), device=device)
        if len(requests.maps):
            maps = requests.maps
            which = requests.map[group]
            if (which < 0).any():
                maps = np.concatenate([maps, np.eye(3)[None, :2]])
                which = np.where(which < 0, len(maps) - 1, which)
            starts, targets = affine.resampling_table(maps, self.sensor, device)
            slot = affine.slots(torch.from_numpy(which).to(device)[window], pixel, self.sensor)
            event, pixel = affine.repeated(starts, targets, slot)
        if requests.holes[group].any():
            x1, y1, x2, y2 = torch.from_numpy(requests.holes[group]).to(device)[window[event]].unbind(1)
            x, y = pixel % self.sensor.width, pixel // self.sensor.width
            keep = (x < x1) | (x >= x2) | (y < y1) | (y >= y2)
            event, pixel = event[keep], pixel[keep]
        return event, pixel


def common_starts(length_us: NDArray[np.int64]) -> NDArray[np.int64]:
    """Start of each part on the common clock, on which the parts follow each other."""
    return np.concatenate([[0], np.cumsum(length_us)])[:-1].astype(np.int64)


def _groups(counts: Sequence[int]) -> Iterator[slice]:
    """Groups of windows in their order, each with at most ``EVENTS_AT_ONCE`` events, or a single window."""
    first, events = 0, 0
    for index, count in enumerate(counts):
        if events and events + count > EVENTS_AT_ONCE:
            yield slice(first, index)
            first, events = index, 0
        events += count
    yield slice(first, len(counts))
