"""Keep all events of a training set on the GPU, and make and augment batches there.

A batch of 320 windows holds 8 million events. Workers read, resample and send them in about half a second each, so a
small detector waits for them. Here workers only request windows and transforms of their frames
(:class:`WindowRequests`, a few kB), and :class:`ResidentEvents` selects their events from those of all recordings,
which are concatenated on the device. The batches equal those of ``ClipReader``, event by event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fate.data import affine
from fate.data.labelled_recording import LabelledRecording
from fate.data.loading import ClipBatch, WindowRequests
from fate.encoding.batch import MAX_SIDE, EventBatch
from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.window import MAX_TIME_US, Window

READERS = 4  # recordings that are read at the same time
PREFETCHED = 3  # batches that are made ahead
BYTES_PER_EVENT = 13  # on the device: time 8, pixel 4, polarity 1


class ResidentEvents:
    """All events of some recordings on one device, concatenated on one common clock."""

    def __init__(
        self, recordings: Sequence[LabelledRecording], sensor: Sequence[int], device: str | torch.device
    ) -> None:
        """Args:
        recordings: all with one sensor; each is read completely, now.
        sensor: (height, width).
        device: it needs 13 bytes per event.
        """
        self.sensor = Sensor.of(sensor)
        if max(self.sensor) > MAX_SIDE:
            raise FateError(f"the sensor is {self.sensor}; batches hold sensors of up to {MAX_SIDE} pixels a side")
        where = torch.device(device)
        if where.type == "cuda" and where.index is None:  # each thread has its own current device
            where = torch.device("cuda", torch.cuda.current_device())
        with ThreadPoolExecutor(READERS) as pool:
            parts = list(pool.map(self._read, recordings, repeat(where)))
        times = [(int(clock[0]), int(clock[-1]) + 1) if len(clock) else (0, 0) for clock, _, _ in parts]
        self.start_us, ends = np.array(times, np.int64).reshape(-1, 2).T
        self.length_us = ends - self.start_us
        self.begin = np.concatenate([[0], np.cumsum(self.length_us)])[:-1]  # start of each recording, common clock
        for (clock, _, _), shift in zip(parts, (self.begin - self.start_us).tolist(), strict=True):
            clock.add_(shift)
        columns = [list(column) for column in zip(*parts, strict=True)]
        del parts  # so that at most one column is in memory twice
        self.clock, self.pixel, self.p = (torch.cat(columns.pop(0)) for _ in range(3))

    def _read(self, source: LabelledRecording, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """All times [E] int64, pixels [E] int32 (y · width + x) and polarities [E] uint8 of a recording."""
        reader = source.open()
        try:
            events = reader.read(-MAX_TIME_US, MAX_TIME_US)  # its known span may leave out events that are out of order
        finally:
            reader.close()
        if events.sensor != self.sensor:
            raise FateError(f"events of a {events.sensor} sensor were read; expected {self.sensor}, as all others")
        pixel = events.y.astype(np.int32) * self.sensor.width + events.x
        columns = (torch.from_numpy(np.array(column)).to(device) for column in (events.t_us, pixel, events.p))
        return next(columns), next(columns), next(columns)

    def batch(self, requests: WindowRequests) -> EventBatch:
        """The batch that reading the requested windows would give."""
        device, windows = self.clock.device, len(requests.windows)
        recording = np.maximum(requests.recording, 0)
        since = (requests.windows - self.start_us[recording, None]).T  # [2, W], on the recording's clock
        limits = np.where(requests.recording < 0, 0, self.length_us[recording])
        bounds = np.clip(since, 0, limits) + self.begin[recording]
        first, last = torch.searchsorted(self.clock, torch.from_numpy(np.ascontiguousarray(bounds)).to(device))
        counts = last - first
        window = torch.arange(windows, device=device).repeat_interleave(counts)
        index = torch.arange(len(window), device=device) + (first - (counts.cumsum(0) - counts))[window]
        start = torch.from_numpy(since[0] + self.begin[recording]).to(device)  # a window may begin before its recording
        time = self.clock[index] - start[window]
        pixel = self.pixel[index].long()
        event, pixel = self._transform(requests, window, pixel)
        window, index, time = window[event], index[event], time[event]
        totals = torch.bincount(window, minlength=windows).tolist()
        batch = EventBatch.of_counts(totals, self.sensor, device, [Window(*each) for each in requests.windows.tolist()])
        batch.t_us.copy_(time)
        batch.x.copy_(pixel % self.sensor.width)
        batch.y.copy_(pixel // self.sensor.width)
        batch.p.copy_(self.p[index])
        return batch

    def _transform(self, requests: WindowRequests, window: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
        """Indices of the events that are in the transformed frames, [K] ascending, and their pixels there [K]."""
        device = pixel.device
        event = torch.arange(len(pixel), device=device)
        if len(requests.maps):
            maps = requests.maps
            which = requests.map
            if (which < 0).any():
                maps = np.concatenate([maps, np.eye(3)[None, :2]])
                which = np.where(which < 0, len(maps) - 1, which)
            starts, targets = affine.resampling_table(maps, self.sensor, device)
            slot = affine.slots(torch.from_numpy(which).to(device)[window], pixel, self.sensor)
            event, pixel = affine.repeated(starts, targets, slot)
        if requests.holes.any():
            x1, y1, x2, y2 = torch.from_numpy(requests.holes).to(device)[window[event]].unbind(1)
            x, y = pixel % self.sensor.width, pixel // self.sensor.width
            keep = (x < x1) | (x >= x2) | (y < y1) | (y >= y2)
            event, pixel = event[keep], pixel[keep]
        return event, pixel

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """Add the events to a batch of requests, and to its teacher."""
        teacher = batch.teacher
        if isinstance(batch.events, WindowRequests):
            batch = batch._replace(events=self.batch(batch.events))
        if teacher is not None and isinstance(teacher.events, WindowRequests):
            batch = batch._replace(teacher=teacher._replace(events=self.batch(teacher.events)))
        return batch


def complete_batches(batches: Iterable[ClipBatch], resident: ResidentEvents) -> Iterator[ClipBatch]:
    """Add the events to batches of requests, ahead of time in a thread and, on a GPU, on a separate CUDA stream."""
    source, device = iter(batches), resident.clock.device
    stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def complete_next() -> tuple[ClipBatch | None, Any]:
        """The next batch, None after the last one, and the CUDA event at which it is complete."""
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            batch = next(source, None)
            complete = None if batch is None else resident.complete(batch)
            return complete, None if stream is None else stream.record_event()

    # the pool waits for its thread when Python exits: a thread that is killed inside torch would crash the process
    with ThreadPoolExecutor(1, "events on the device") as pool:
        try:
            waiting = deque(pool.submit(complete_next) for _ in range(PREFETCHED))
            while True:
                batch, done = waiting.popleft().result()
                if batch is None:
                    return
                waiting.append(pool.submit(complete_next))
                if done is not None:
                    _wait_for(batch, done)
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)


def _wait_for(batch: ClipBatch, done: Any) -> None:
    """Make the current CUDA stream wait for a batch, and keep its memory until that stream is done with it."""
    stream = torch.cuda.current_stream()
    stream.wait_event(done)
    for events in (batch.events, None if batch.teacher is None else batch.teacher.events):
        if isinstance(events, EventBatch):
            events.block.record_stream(stream)
