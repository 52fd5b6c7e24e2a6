"""The events of many windows on one device, ragged: columns concatenated, and where each window begins.

All columns live in one block of bytes, so that a batch is pinned and moved in one copy. Windows need not be of one
length: a batch may mix 5 ms and 50 ms.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window

#: Columns in their order in the block, with the tensor type of each; the first three have one row a window.
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
    """Events of B windows; E events in all. Made by ``from_windows`` or ``from_tensors``, never changed.

    Attributes:
        t_us: [E] int32, µs since the start of the event's window, never decreasing within a window.
        x, y: [E] int16, pixels.
        p: [E] uint8, 1 for ON, 0 for OFF.
        offsets: [B + 1] int64, window b has the events ``offsets[b]`` to ``offsets[b + 1]``.
        start_us, duration_us: [B] int64, the windows.
        sensor: (height, width) in pixels.
        counts: the events of each window, as plain numbers.
        durations: µs of each window, as plain numbers; None where only the device knows.
    """

    t_us: Tensor
    x: Tensor
    y: Tensor
    p: Tensor
    offsets: Tensor
    start_us: Tensor
    duration_us: Tensor

    def __init__(
        self, block: Tensor, counts: Sequence[int], sensor: Sensor, durations: Sequence[int] | None = None
    ) -> None:
        """For internal use: ``block`` holds the columns, 16-byte aligned, in the order of ``COLUMNS``."""
        self.block, self.counts, self.sensor = block, tuple(counts), sensor
        self.durations = None if durations is None else tuple(durations)
        first = 0
        for name, (length, dtype) in _layout(len(self.counts), sum(self.counts)).items():
            size = length * dtype.itemsize
            setattr(self, name, block[first : first + size].view(dtype))
            first += _aligned(size)

    @classmethod
    def from_windows(cls, windows: Iterable[tuple[Window, Events]], device: str | torch.device = "cpu") -> EventBatch:
        """A batch of windows and their events, as ``recording.windows()`` gives them.

        Args:
            windows: at least one; all of one sensor; every event inside its window.
            device: where the batch is wanted.

        >>> events = Events([10, 20], [0, 3], [0, 1], [1, 0], sensor=(2, 4))
        >>> EventBatch.from_windows([(Window(0, 50), events)])
        EventBatch(1 window, 2 events, 4×2, cpu)
        """
        if isinstance(windows, Events) or not isinstance(windows, Iterable):
            raise FateError(f"{type(windows).__name__} was given; expected pairs (Window, Events), one a window")
        pairs = [_pair(number, given) for number, given in enumerate(windows)]
        if not pairs:
            raise FateError(
                "no windows were given; a batch needs at least one, with Events.empty(sensor) if nothing fell"
            )
        sensor = _one_sensor([events for _, events in pairs])
        for number, (window, events) in enumerate(pairs):
            _check_duration(number, window.duration_us)
            if len(events) and not (events.t_us[0] >= window.start_us and events.t_us[-1] < window.end_us):
                raise FateError(
                    f"window {number}, {window}, was given events from {events.t_us[0]} to {events.t_us[-1]} µs; all"
                    " must lie inside: take events.between(window.start_us, window.end_us)"
                )
        counts = [len(events) for _, events in pairs]
        durations = [window.duration_us for window, _ in pairs]
        batch = cls(_block(len(pairs), sum(counts), torch.device("cpu")), counts, sensor, durations)
        columns = {name: getattr(batch, name).numpy() for name in COLUMNS}
        columns["start_us"][:] = [window.start_us for window, _ in pairs]
        columns["duration_us"][:] = durations
        columns["offsets"][:] = np.concatenate([[0], np.cumsum(counts)])
        first = 0
        for (window, events), count in zip(pairs, counts, strict=True):
            part = slice(first, first + count)
            np.subtract(events.t_us, window.start_us, out=columns["t_us"][part], casting="unsafe")
            columns["x"][part], columns["y"][part], columns["p"][part] = events.x, events.y, events.p
            first += count
        return batch.to(device)

    @classmethod
    def from_tensors(
        cls,
        t_us: Tensor,
        x: Tensor,
        y: Tensor,
        p: Tensor,
        offsets: Sequence[int],
        windows: Sequence[Window],
        sensor: Sequence[int],
        check: bool = True,
    ) -> EventBatch:
        """A batch from columns on one device, of integer types.

        Args:
            t_us: [E] µs on the clock of the windows (not since their starts).
            x, y, p: [E] pixels and polarity.
            offsets: B + 1 numbers, from 0 to E: where each window's events begin.
            windows: B windows.
            sensor: (height, width).
            check: that all values are possible; one look at each, and a wait for the device. Without it they must be:
                encoders read tables by these numbers, and a wrong one may end the process.
        """
        columns = {"t_us": t_us, "x": x, "y": y, "p": p}
        size = Sensor.of(sensor)
        try:
            bounds = [operator.index(n) for n in offsets]
        except TypeError:
            raise FateError(f"offsets={offsets!r} was given; expected a list of whole numbers") from None
        if not isinstance(windows, Sequence) or not all(isinstance(window, Window) for window in windows):
            raise FateError(f"windows={windows!r} was given; expected a list of Window(start_us, end_us)")
        _check_columns(columns, bounds, len(windows), size)
        for number, window in enumerate(windows):
            _check_duration(number, window.duration_us)
        counts = np.diff(bounds)
        start_us = torch.tensor([window.start_us for window in windows])
        duration_us = torch.tensor([window.duration_us for window in windows])
        each = torch.repeat_interleave(torch.arange(len(windows)), torch.from_numpy(counts)).to(t_us.device)
        since = t_us.long() - start_us.to(t_us.device)[each]
        if check:
            columns = {name: column.long() for name, column in columns.items()}
            _check_values(since, columns, each, duration_us, size)
        durations = [window.duration_us for window in windows]
        batch = cls(_block(len(windows), bounds[-1], t_us.device), counts.tolist(), size, durations)
        rows = {"start_us": start_us, "duration_us": duration_us, "offsets": torch.tensor(bounds)}
        for name, column in {**rows, **columns, "t_us": since}.items():
            getattr(batch, name).copy_(column)
        return batch

    @classmethod
    def with_room(cls, events: int, windows: int, sensor: Sequence[int], device: str | torch.device) -> EventBatch:
        """A batch for others to write into: ``events`` events, all in the first of ``windows`` windows, all numbers 0.

        What is written must be possible (see ``from_tensors``), and ``offsets`` must rise from 0 to ``events``.
        """
        batch = cls(_block(windows, events, torch.device(device)), [events] + [0] * (windows - 1), Sensor.of(sensor))
        batch.offsets[1:] = events
        return batch

    @classmethod
    def of_counts(
        cls, counts: Sequence[int], windows: Sequence[Window], sensor: Sequence[int], device: str | torch.device
    ) -> EventBatch:
        """A batch for others to write events into: so many of each window; all of their numbers are 0 before."""
        durations = [window.duration_us for window in windows]
        for number, duration in enumerate(durations):
            _check_duration(number, duration)
        batch = cls(_block(len(counts), sum(counts), torch.device(device)), counts, Sensor.of(sensor), durations)
        batch.start_us.copy_(torch.tensor([window.start_us for window in windows]))
        batch.duration_us.copy_(torch.tensor(durations))
        batch.offsets[1:] = torch.tensor(counts).cumsum(0)
        return batch

    def to(self, device: str | torch.device, non_blocking: bool = False) -> EventBatch:
        """The batch on a device: one copy, or itself where it is there already."""
        moved = self.block.to(device, non_blocking=non_blocking)
        return self if moved is self.block else EventBatch(moved, self.counts, self.sensor, self.durations)

    def pin_memory(self) -> EventBatch:
        """The batch in page-locked memory, from which ``to("cuda", non_blocking=True)`` does not wait."""
        return EventBatch(self.block.pin_memory(), self.counts, self.sensor, self.durations)

    def __reduce__(self) -> tuple[type[EventBatch], tuple[Tensor, tuple[int, ...], Sensor, tuple[int, ...] | None]]:
        """Copied and sent to another process as the one block it is."""
        return EventBatch, (self.block, self.counts, self.sensor, self.durations)

    @property
    def device(self) -> torch.device:
        """Where the columns are."""
        return self.block.device

    @property
    def num_events(self) -> int:
        """E, of all windows together."""
        return sum(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        windows = f"{len(self)} window{'s' if len(self) != 1 else ''}"
        return f"EventBatch({windows}, {self.num_events} events, {self.sensor}, {self.device})"


def _aligned(size: int) -> int:
    """Columns begin at multiples of 16 bytes: Triton compiles a kernel anew for arguments that lie otherwise."""
    return -(-size // 16) * 16


def _layout(windows: int, events: int) -> dict[str, tuple[int, torch.dtype]]:
    lengths = (windows, windows, windows + 1, events, events, events, events)
    return {name: (length, dtype) for (name, dtype), length in zip(COLUMNS.items(), lengths, strict=True)}


def _block(windows: int, events: int, device: torch.device) -> Tensor:
    size = sum(_aligned(length * dtype.itemsize) for length, dtype in _layout(windows, events).values())
    return torch.zeros(size, dtype=torch.uint8, device=device)


def _pair(number: int, given: tuple[Window, Events]) -> tuple[Window, Events]:
    parts = tuple(given) if isinstance(given, tuple | list) else (given,)
    if len(parts) != 2 or not isinstance(parts[0], Window) or not isinstance(parts[1], Events):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise FateError(f"window {number} was given as ({kinds}); expected a pair (Window, Events)")
    return parts[0], parts[1]


def _one_sensor(events: Sequence[Events]) -> Sensor:
    sensor = events[0].sensor
    for number, other in enumerate(events):
        if other.sensor != sensor:
            raise FateError(
                f"window {number} is of a {other.sensor} sensor, window 0 of a {sensor} one; batch one sensor"
            )
    if max(sensor) > MAX_SIDE:
        raise FateError(f"the sensor is {sensor}; batches hold sensors of up to {MAX_SIDE} pixels a side")
    return sensor


def _check_duration(number: int, duration_us: int) -> None:
    if duration_us > MAX_DURATION_US:
        raise FateError(f"window {number} lasts {duration_us} µs; at most {MAX_DURATION_US} fit in a batch")


def _check_columns(columns: dict[str, Tensor], bounds: list[int], windows: int, sensor: Sensor) -> None:
    """Types, devices and lengths."""
    for name, column in columns.items():
        broken = not isinstance(column, Tensor) or column.dtype.is_floating_point or column.dtype.is_complex
        if broken or column.ndim != 1:
            given = (
                f"{column.dtype} of shape {tuple(column.shape)}" if isinstance(column, Tensor) else repr(type(column))
            )
            raise FateError(f"{name} is {given}; expected a tensor of integers with one dimension")
        if column.device != columns["t_us"].device or len(column) != len(columns["t_us"]):
            raise FateError(
                f"{name} has {len(column)} events on {column.device}, t_us {len(columns['t_us'])} on"
                f" {columns['t_us'].device}; expected columns of one length on one device"
            )
    if len(bounds) != windows + 1 or windows == 0:
        raise FateError(
            f"{len(bounds)} offsets and {windows} windows were given; expected one offset more than windows"
        )
    if bounds[0] != 0 or bounds[-1] != len(columns["t_us"]) or any(b < a for a, b in pairwise(bounds)):
        raise FateError(
            f"offsets {bounds[:8]} were given; they must rise from 0 to {len(columns['t_us'])}, the events given"
        )
    if max(sensor) > MAX_SIDE:
        raise FateError(f"the sensor is {sensor}; batches hold sensors of up to {MAX_SIDE} pixels a side")


def _check_values(since: Tensor, columns: dict[str, Tensor], each: Tensor, duration_us: Tensor, sensor: Sensor) -> None:
    """Every event inside its window and frame, of polarity 0 or 1, in time order."""
    x, y, p = columns["x"], columns["y"], columns["p"]

    def refuse(bad: Tensor, what: str, column: Tensor) -> None:
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise FateError(
                f"{int(bad.sum())} of {len(bad)} events {what}; the first, index {first}: {int(column[first])}"
            )

    span = duration_us.to(since.device)[each]
    refuse((since < 0) | (since >= span), "lie outside their window (µs since its start)", since)
    refuse((x < 0) | (x >= sensor.width), f"lie outside the {sensor} frame (x)", x)
    refuse((y < 0) | (y >= sensor.height), f"lie outside the {sensor} frame (y)", y)
    refuse((p != 0) & (p != 1), "have a polarity other than 0 and 1", p)
    earlier = torch.zeros_like(since, dtype=torch.bool)
    earlier[1:] = (since[1:] < since[:-1]) & (each[1:] == each[:-1])
    refuse(earlier, "come before the one in front of them (µs since the window's start); sort by time", since)


def window_of_events(batch: EventBatch) -> Tensor:
    """[E] the window each event belongs to, int64."""
    counts = batch.offsets.diff()
    return torch.repeat_interleave(torch.arange(len(batch), device=batch.device), counts, output_size=batch.num_events)


def host_columns(batch: EventBatch) -> dict[str, NDArray[Any]]:
    """The columns of a batch on the CPU as numpy arrays, without copying."""
    block, columns, first = batch.block.numpy(), {}, 0
    for name, (length, dtype) in _layout(len(batch), batch.num_events).items():
        size = length * dtype.itemsize
        columns[name] = block[first : first + size].view(NUMPY[name])
        first += _aligned(size)
    return columns
