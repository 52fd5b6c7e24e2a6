"""Events that stay on the GPU: of a training set that fits there, batches are cut and changed without the CPU.

A batch of 320 windows holds 8 million events. Workers read, resample and send them in about half a second each, which
keeps a small detector waiting. Here workers only say which windows are sought and how their frames are changed
(:class:`SoughtWindows`, a few kB), and :class:`ResidentEvents` finds their events among those of all recordings, which
lie one behind the other on the device. The batches are those that ``ClipReader`` reads, event by event.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import repeat
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fate.data import affine
from fate.data.batches import ClipBatch, SoughtWindows, Source
from fate.encoding.batch import MAX_SIDE, EventBatch
from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.window import MAX_TIME_US, Window

#: Recordings read at a time, and batches made ahead.
READERS, AHEAD = 4, 2
#: Bytes that an event takes on the device: time 8, pixel 4, polarity 1.
BYTES = 13


class ResidentEvents:
    """All events of some recordings on one device, one recording behind the other on a clock of its own."""

    def __init__(self, recordings: Sequence[Source], sensor: Sequence[int], device: str | torch.device) -> None:
        """Args:
        recordings: all of one sensor; every one is read whole, now.
        sensor: (height, width).
        device: that holds 13 bytes an event.
        """
        self.sensor = Sensor.of(sensor)
        if max(self.sensor) > MAX_SIDE:
            raise FateError(f"the sensor is {self.sensor}; batches hold sensors of up to {MAX_SIDE} pixels a side")
        where = torch.device(device)
        if where.type == "cuda" and where.index is None:  # threads have their own idea of the current one
            where = torch.device("cuda", torch.cuda.current_device())
        with ThreadPoolExecutor(READERS) as pool:
            parts = list(pool.map(self._read, recordings, repeat(where)))
        times = [(int(clock[0]), int(clock[-1]) + 1) if len(clock) else (0, 0) for clock, _, _ in parts]
        self.start_us, ends = np.array(times, np.int64).reshape(-1, 2).T
        self.length_us = ends - self.start_us
        self.begin = np.concatenate([[0], np.cumsum(self.length_us)])[:-1]  # of each recording on the common clock
        for (clock, _, _), shift in zip(parts, (self.begin - self.start_us).tolist(), strict=True):
            clock.add_(shift)
        columns = [list(column) for column in zip(*parts, strict=True)]
        del parts  # so that of one column alone there are two copies at a time
        self.clock, self.pixel, self.p = (torch.cat(columns.pop(0)) for _ in range(3))

    def _read(self, source: Source, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """All its times [E] int64, pixels [E] int32 (y · width + x) and polarities [E] uint8."""
        reader = source.open()
        try:
            events = reader.read(-MAX_TIME_US, MAX_TIME_US)  # its span may be only that of its first and last record
        finally:
            reader.close()
        if events.sensor != self.sensor:
            raise FateError(f"events of a {events.sensor} sensor were read; expected {self.sensor}, as all others")
        pixel = events.y.astype(np.int32) * self.sensor.width + events.x
        columns = (torch.from_numpy(np.array(column)).to(device) for column in (events.t_us, pixel, events.p))
        return next(columns), next(columns), next(columns)

    def batch(self, sought: SoughtWindows) -> EventBatch:
        """The batch that reading those windows would give."""
        device, windows = self.clock.device, len(sought.windows)
        behind = np.maximum(sought.recording, 0)
        since = (sought.windows - self.start_us[behind, None]).T  # [2, W], on the recording's clock
        limits = np.where(sought.recording < 0, 0, self.length_us[behind])
        bounds = np.clip(since, 0, limits) + self.begin[behind]
        first, last = torch.searchsorted(self.clock, torch.from_numpy(np.ascontiguousarray(bounds)).to(device))
        counts = last - first
        window = torch.arange(windows, device=device).repeat_interleave(counts)
        index = torch.arange(len(window), device=device) + (first - (counts.cumsum(0) - counts))[window]
        start = torch.from_numpy(since[0] + self.begin[behind]).to(device)  # a window may begin before its recording
        time = self.clock[index] - start[window]
        pixel = self.pixel[index].long()
        event, pixel = self._placed(sought, window, pixel)
        window, index, time = window[event], index[event], time[event]
        found = torch.bincount(window, minlength=windows).tolist()
        batch = EventBatch.of_counts(found, [Window(*each) for each in sought.windows.tolist()], self.sensor, device)
        batch.t_us.copy_(time)
        batch.x.copy_(pixel % self.sensor.width)
        batch.y.copy_(pixel // self.sensor.width)
        batch.p.copy_(self.p[index])
        return batch

    def _placed(self, sought: SoughtWindows, window: Tensor, pixel: Tensor) -> tuple[Tensor, Tensor]:
        """Which events are seen in the changed frames, [K] rising, and their pixels there [K]."""
        device = pixel.device
        event = torch.arange(len(pixel), device=device)
        if len(sought.maps):
            maps = sought.maps
            which = sought.map
            if (which < 0).any():
                maps = np.concatenate([maps, np.eye(3)[None, :2]])
                which = np.where(which < 0, len(maps) - 1, which)
            starts, targets = affine.resampling_table(maps, self.sensor, device)
            slot = affine.slots(torch.from_numpy(which).to(device)[window], pixel, self.sensor)
            event, pixel = affine.repeated(starts, targets, slot)
        if sought.holes.any():
            x1, y1, x2, y2 = torch.from_numpy(sought.holes).to(device)[window[event]].unbind(1)
            x, y = pixel % self.sensor.width, pixel // self.sensor.width
            stays = (x < x1) | (x >= x2) | (y < y1) | (y >= y2)
            event, pixel = event[stays], pixel[stays]
        return event, pixel

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """A batch of clips with its events, and with those of its teacher."""
        if not isinstance(batch.events, SoughtWindows):
            return batch
        teacher = batch.teacher
        if teacher is not None and isinstance(teacher.events, SoughtWindows):
            teacher = teacher._replace(events=self.batch(teacher.events))
        return batch._replace(events=self.batch(batch.events), teacher=teacher)


def completed(batches: Iterable[ClipBatch], resident: ResidentEvents) -> Iterator[ClipBatch]:
    """Batches of sought windows with their events, made ahead by a thread, on a GPU on a stream of its own."""
    ready: Queue[tuple[Any, ClipBatch | BaseException | None]] = Queue(AHEAD)
    stop = Event()
    device = resident.clock.device
    on_gpu = device.type == "cuda"

    def put(item: tuple[Any, ClipBatch | BaseException | None]) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
            except Full:
                continue
            return

    def work() -> None:
        try:
            stream = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]
            with torch.cuda.stream(stream) if on_gpu else nullcontext():
                for batch in batches:
                    whole = resident.complete(batch)
                    put((stream.record_event() if stream is not None else None, whole))
                    if stop.is_set():
                        return
            put((None, None))
        except BaseException as error:  # raised again where batches are taken
            put((None, error))

    thread = Thread(target=work, name="events on the device", daemon=True)

    def end() -> None:
        stop.set()
        thread.join()

    atexit.register(end)  # who still holds this when Python ends: a thread that dies within torch takes all with it
    thread.start()
    try:
        while True:
            try:
                done, item = ready.get(timeout=1.0)
            except Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            if done is not None:
                _hand_over(item, done)
            yield item
    finally:
        atexit.unregister(end)
        end()


def _hand_over(batch: ClipBatch, done: Any) -> None:
    """From the stream that made a batch to the one that trains: it waits, and memory is not given away before."""
    stream = torch.cuda.current_stream()
    stream.wait_event(done)
    for events in (batch.events, None if batch.teacher is None else batch.teacher.events):
        if isinstance(events, EventBatch):
            events.block.record_stream(stream)
