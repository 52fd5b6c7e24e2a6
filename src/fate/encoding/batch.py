"""The events of many windows on one device: concatenated columns, and the offsets at which windows begin.

All columns are parts of one block of bytes, so that a batch is pinned and moved in one copy. Windows may have different
durations, for example 5 ms and 50 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window

#: Columns in the order of the block, with their types; the first three have one row per window, the others per event.
COLUMNS = {
    "start_us": torch.int64,
    "duration_us": torch.int64,
    "offsets": torch.int64,
    "t_us": torch.int32,
    "x": torch.int16,
    "y": torch.int16,
    "p": torch.uint8,
}
NUMPY = {name: str(dtype).removeprefix("torch.") for name, dtype in COLUMNS.items()}
MAX_DURATION_US = 2**31 - 1  # times within a window are int32
MAX_SIDE = 2**15 - 1  # coordinates are int16


class EventBatch:
    """E events of B windows. Batches are made by ``from_windows`` and never changed.

    Attributes:
        t_us: [E] int32, µs since the start of the event's window, never decreasing within a window.
        x, y: [E] int16, pixels.
        p: [E] uint8, 1 for ON, 0 for OFF.
        offsets: [B + 1] int64, window b has the events ``offsets[b]`` to ``offsets[b + 1]``.
        start_us, duration_us: [B] int64, start and duration of the windows.
        sensor: (height, width) in pixels.
        counts: number of events of each window, as Python numbers.
        durations: µs of each window, as Python numbers; None if they are known on the device only.
        has_spare: whether the last window only holds unused capacity; an encoder may leave out its image.
    """

    t_us: Tensor
    x: Tensor
    y: Tensor
    p: Tensor
    offsets: Tensor
    start_us: Tensor
    duration_us: Tensor

    def __init__(
        self,
        block: Tensor,
        counts: Sequence[int],
        sensor: Sensor,
        durations: Sequence[int] | None = None,
        has_spare: bool = False,
    ) -> None:
        """For internal use: ``block`` holds the columns, 16-byte aligned, in the order of ``COLUMNS``."""
        self.block, self.counts, self.sensor = block, tuple(counts), sensor
        self.durations = None if durations is None else tuple(durations)
        self.has_spare = has_spare

    if not TYPE_CHECKING:  # so that misspelt attributes are found

        def __getattr__(self, name: str) -> Tensor:
            """Make a column on first use: on a CPU, encoders read the block with numpy and need few of them."""
            if name not in COLUMNS:
                raise AttributeError(f"EventBatch has no attribute {name!r}")
            part, dtype = _layout(len(self.counts), self.num_events)[name]
            column = self.block[part].view(dtype)
            setattr(self, name, column)
            return column

    @classmethod
    def from_windows(cls, windows: Iterable[tuple[Window, Events]], device: str | torch.device = "cpu") -> EventBatch:
        """Make a batch of windows and their events, as ``recording.windows()`` gives them.

        Args:
            windows: at least one pair, all of the same sensor; every event must be inside its window.
            device: where the batch is needed.

        >>> events = Events([10, 20], [0, 3], [0, 1], [1, 0], sensor=(2, 4))
        >>> EventBatch.from_windows([(Window(0, 50), events)])
        EventBatch(1 window, 2 events, 4×2, cpu)
        """
        given = isinstance(windows, Iterable) and not isinstance(windows, Events)
        pairs: list[Any] = list(windows) if given else [windows]
        for number, pair in enumerate(pairs):
            parts = tuple(pair) if isinstance(pair, tuple | list) else (pair,)
            if len(parts) != 2 or not isinstance(parts[0], Window) or not isinstance(parts[1], Events):
                kinds = ", ".join(type(part).__name__ for part in parts)
                raise FateError(f"window {number} was given as ({kinds}); expected a pair (Window, Events)")
        if not pairs:
            raise FateError(
                "no windows were given; a batch needs at least one, with Events.empty(sensor) if nothing fell"
            )
        sensor = pairs[0][1].sensor
        for number, (window, events) in enumerate(pairs):
            if events.sensor != sensor:
                raise FateError(
                    f"window {number} is of a {events.sensor} sensor, window 0 of a {sensor} one; batch one sensor"
                )
            if len(events) and not (events.t_us[0] >= window.start_us and events.t_us[-1] < window.end_us):
                raise FateError(
                    f"window {number}, {window}, was given events from {events.t_us[0]} to {events.t_us[-1]} µs; all"
                    " must lie inside: take events.between(window.start_us, window.end_us)"
                )
        counts = [len(events) for _, events in pairs]
        batch = cls.of_counts(counts, sensor, "cpu", [window for window, _ in pairs])
        columns, first = host_columns(batch), 0
        for (window, events), count in zip(pairs, counts, strict=True):
            part = slice(first, first + count)
            np.subtract(events.t_us, window.start_us, out=columns["t_us"][part], casting="unsafe")
            columns["x"][part], columns["y"][part], columns["p"][part] = events.x, events.y, events.p
            first += count
        return batch.to(device)

    @classmethod
    def of_counts(
        cls,
        counts: Sequence[int],
        sensor: Sensor,
        device: str | torch.device,
        windows: Sequence[Window] | None = None,
        has_spare: bool = False,
    ) -> EventBatch:
        """Make a batch of zeros, into whose columns the caller writes the events.

        The caller must write valid events: encoders use them as indices without checks.

        Args:
            counts: number of events of each window.
            sensor: (height, width).
            device: where the batch is made.
            windows: None if the caller writes their columns too.
            has_spare: see the class.
        """
        if max(sensor) > MAX_SIDE:
            raise FateError(f"the sensor is {sensor}; batches hold sensors of up to {MAX_SIDE} pixels a side")
        durations = None if windows is None else [window.duration_us for window in windows]
        for number, duration in enumerate(durations or ()):
            if duration > MAX_DURATION_US:
                raise FateError(f"window {number} lasts {duration} µs; at most {MAX_DURATION_US} fit in a batch")
        layout = _layout(len(counts), sum(counts))
        num_bytes = -(-layout["p"][0].stop // 16) * 16
        on_host = torch.device(device).type == "cpu"
        # to another device, the columns with one row per window are copied at once
        host = np.zeros(num_bytes if on_host else layout["t_us"][0].start, np.uint8)
        rows: dict[str, Any] = {"offsets": list(accumulate(counts, initial=0))}
        if windows is not None:
            rows |= {"start_us": [window.start_us for window in windows], "duration_us": durations}
        for name, values in rows.items():
            host[layout[name][0]].view(np.int64)[:] = values
        if on_host:
            return cls(torch.from_numpy(host), counts, sensor, durations, has_spare)
        block = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        block[: len(host)] = torch.from_numpy(host)
        return cls(block, counts, sensor, durations, has_spare)

    def to(self, device: str | torch.device, non_blocking: bool = False) -> EventBatch:
        """The batch on a device, moved in one copy; the batch itself if it is there already."""
        moved = self.block.to(device, non_blocking=non_blocking)
        if moved is self.block:
            return self
        return EventBatch(moved, self.counts, self.sensor, self.durations, self.has_spare)

    def pin_memory(self) -> EventBatch:
        """The batch in page-locked memory, from which ``to("cuda", non_blocking=True)`` does not wait."""
        return EventBatch(self.block.pin_memory(), self.counts, self.sensor, self.durations, self.has_spare)

    def __reduce__(self) -> tuple[type[EventBatch], tuple[Any, ...]]:
        """Copy a batch, or send it to another process, as one block."""
        return EventBatch, (self.block, self.counts, self.sensor, self.durations, self.has_spare)

    @property
    def device(self) -> torch.device:
        """The device of the columns."""
        return self.block.device

    @property
    def num_events(self) -> int:
        """E, the events of all windows."""
        return sum(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        windows = f"{len(self)} window{'s' if len(self) != 1 else ''}"
        return f"EventBatch({windows}, {self.num_events} events, {self.sensor}, {self.device})"


@lru_cache(maxsize=16)
def _layout(windows: int, events: int) -> dict[str, tuple[slice, torch.dtype]]:
    """The bytes of each column in the block, and its type.

    Columns begin at multiples of 16 bytes, because Triton compiles a kernel again for other alignments.
    """
    lengths = (windows, windows, windows + 1, events, events, events, events)
    layout, first = {}, 0
    for (name, dtype), length in zip(COLUMNS.items(), lengths, strict=True):
        size = length * dtype.itemsize
        layout[name] = slice(first, first + size), dtype
        first += -(-size // 16) * 16
    return layout


def window_of_events(batch: EventBatch) -> Tensor:
    """[E] int64 index of the window of each event."""
    counts = batch.offsets.diff()
    return torch.repeat_interleave(torch.arange(len(batch), device=batch.device), counts, output_size=batch.num_events)


def copy_events(batch: EventBatch, target: EventBatch) -> None:
    """Copy a batch to the beginning of the columns of a larger one, on any device.

    The times of the other events become zero, so that they do not decrease if one more window takes them.
    """
    events, windows = batch.num_events, len(batch)
    target.t_us[events:].zero_()
    for name in ("t_us", "x", "y", "p"):
        getattr(target, name)[:events].copy_(getattr(batch, name), non_blocking=True)
    for name in ("start_us", "duration_us"):
        getattr(target, name)[:windows].copy_(getattr(batch, name), non_blocking=True)
    target.offsets[: windows + 1].copy_(batch.offsets, non_blocking=True)


def host_columns(batch: EventBatch) -> dict[str, NDArray[Any]]:
    """The columns of a batch on the CPU as numpy arrays, without copying."""
    block = batch.block.numpy()
    return {name: block[part].view(NUMPY[name]) for name, (part, _) in _layout(len(batch), batch.num_events).items()}


def check_batch(batch: object, sensor: Sensor) -> None:
    """Refuse anything but a batch of an encoder's sensor."""
    if not isinstance(batch, EventBatch):
        raise FateError(f"a {type(batch).__name__} was given; expected an EventBatch: EventBatch.from_windows(...)")
    if batch.sensor != sensor:
        raise FateError(
            f"events of a {batch.sensor} sensor were given; this encoder is for {sensor}; build one with"
            f" sensor=({batch.sensor.height}, {batch.sensor.width})"
        )
