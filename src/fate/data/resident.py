"""Keep all events of a training set on the GPU, and make and augment batches there.

A batch of 320 windows holds 8 million events. Workers read, resample and send them in about half a second each, so a
small detector waits for them. Here workers only request windows and transforms of their frames
(:class:`WindowRequests`, a few kB), and the training process selects their events from those of all recordings, which
are concatenated on the device (``event_table.py``). The batches equal those of ``ClipReader``, event by event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fate.data.event_table import EventTable, common_starts
from fate.data.labelled_recording import LabelledRecording
from fate.data.loading import ClipBatch
from fate.encoding.batch import MAX_SIDE, EventBatch
from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.window import MAX_TIME_US

READERS = 4  # recordings that are read at the same time
PREFETCHED = 3  # batches that are made ahead
BYTES_PER_EVENT = 13  # on the device: time 8, pixel 4, polarity 1


class EventSource(Protocol):
    """Adds events to batches of requests, on its device."""

    @property
    def device(self) -> torch.device:
        """Where the events are needed."""

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """Add the events to a batch of requests, and to its teacher."""


def checked_sensor(sensor: Sequence[int]) -> Sensor:
    """The size of a sensor, which must fit in a batch."""
    size = Sensor.of(sensor)
    if max(size) > MAX_SIDE:
        raise FateError(f"the sensor is {size}; batches hold sensors of up to {MAX_SIDE} pixels a side")
    return size


def numbered_device(device: str | torch.device) -> torch.device:
    """The device with its number, since each thread has its own current device."""
    where = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if where == torch.device("cuda") else where


class ResidentEvents:
    """All events of some recordings on one device."""

    def __init__(
        self, recordings: Sequence[LabelledRecording], sensor: Sequence[int], device: str | torch.device
    ) -> None:
        """Args:
        recordings: all with one sensor; each is read completely, now.
        sensor: (height, width).
        device: it needs 13 bytes per event.
        """
        self.sensor, self.device = checked_sensor(sensor), numbered_device(device)
        with ThreadPoolExecutor(READERS) as pool:
            parts = list(pool.map(self._read, recordings, repeat(self.device)))
        times = [(int(clock[0]), int(clock[-1]) + 1) if len(clock) else (0, 0) for clock, _, _ in parts]
        start_us, end_us = np.array(times, np.int64).reshape(-1, 2).T
        length_us = end_us - start_us
        for (clock, _, _), shift in zip(parts, (common_starts(length_us) - start_us).tolist(), strict=True):
            clock.add_(shift)
        columns = [list(column) for column in zip(*parts, strict=True)]
        del parts  # so that at most one column is in memory twice
        clock, pixel, p = (torch.cat(columns.pop(0)) for _ in range(3))
        self.table = EventTable(clock, pixel, p, start_us, length_us, self.sensor)

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

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """Add the events to a batch of requests, and to its teacher."""
        return self.table.complete(batch)


def complete_batches(batches: Iterable[ClipBatch], events: EventSource) -> Iterator[ClipBatch]:
    """Add the events to batches of requests, ahead of time in a thread and, on a GPU, on a separate CUDA stream."""
    source, device = iter(batches), events.device
    stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def complete_next() -> tuple[ClipBatch | None, Any]:
        """The next batch, None after the last one, and the CUDA event at which it is complete."""
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            batch = next(source, None)
            complete = None if batch is None else events.complete(batch)
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
