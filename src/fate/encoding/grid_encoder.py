"""What the representations of the peers have in common: an ``nn.Module`` from a batch of windows to dense images.

A representation is written twice: ``by_tensors`` in tensor operations, readable and for any device, and ``by_loop`` as
one pass over the events on the CPU. ``forward`` takes the loop for batches on the CPU and the tensors elsewhere; both
give the same image.

**The same numbers on every device.** Where events are added up, whole numbers are added up (events, or microseconds),
and the one division comes last. Such sums do not depend on the order in which a GPU adds, nor on the device: counts,
voxels and tokens are the same bit for bit. Only the exponential and the logarithm of the two surfaces may differ in
their last digit. No step waits for the device or depends on values there, so a forward pass can be captured in a graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.encoding.batch import EventBatch, host_columns
from fate.encoding.kernels.threads import in_threads, num_threads
from fate.errors import FateError
from fate.events.events import Sensor

EVENTS_A_THREAD = 20_000  # fewer are counted sooner than a thread starts


class GridEncoder(nn.Module, ABC):
    """Events of B windows to images [B, C, H', W'], float32, without parameters.

    Attributes:
        sensor: (height, width) of the events, pixels.
        channels: C.
        stride: pixels along a side of one cell of the image.
        size: (H', W').
        nothing: the value of a cell without events; what to pad images with.
    """

    nothing: float = 0.0

    def __init__(
        self, sensor: Sequence[int], channels: int, stride: int = 1, size: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.sensor = Sensor.of(sensor)
        self.channels, self.stride = channels, stride
        self.size = Sensor.of(size if size is not None else self.sensor)

    def forward(self, batch: EventBatch) -> Tensor:
        """[B, C, H', W'] float32, on the batch's device."""
        if not isinstance(batch, EventBatch):
            raise FateError(
                f"a {type(batch).__name__} was given; expected an EventBatch, made by EventBatch.from_windows"
            )
        if batch.sensor != self.sensor:
            raise FateError(
                f"the batch is of a {batch.sensor} sensor, this encoder of a {self.sensor} one; build the encoder with"
                f" sensor=({batch.sensor.height}, {batch.sensor.width})"
            )
        return self.by_loop(batch) if batch.device.type == "cpu" else self.by_tensors(batch)

    @abstractmethod
    def by_tensors(self, batch: EventBatch) -> Tensor:
        """The image in tensor operations, on any device."""

    @abstractmethod
    def by_loop(self, batch: EventBatch) -> Tensor:
        """The image by one pass over the events of a batch on the CPU."""

    def shape(self, batch: EventBatch) -> tuple[int, int, int, int]:
        """(B, C, H', W') of the batch's image."""
        return len(batch), self.channels, *self.size

    def extra_repr(self) -> str:
        return f"{self.sensor}, channels={self.channels}, stride={self.stride}"


def first_and_last(batch: EventBatch) -> tuple[Tensor, Tensor]:
    """[B] µs of each window's first and of its last event, since its start, int64; 0 or any other for empty windows."""
    if batch.num_events == 0:
        nothing = torch.zeros_like(batch.duration_us)
        return nothing, nothing
    first = batch.offsets[:-1].clamp(max=batch.num_events - 1)
    last = (batch.offsets[1:] - 1).clamp(min=0)
    return batch.t_us[first].long(), batch.t_us[last].long()


def loop_over_windows(
    loop: Callable[..., None], batch: EventBatch, image: NDArray[np.float32], *arguments: Any
) -> Tensor:
    """Let a loop of ``kernels.grids_cpu`` fill ``image`` [B, …], and return it as a tensor.

    Windows are independent, so threads share those of a batch with enough events.
    """
    columns = host_columns(batch)
    events = [columns[name] for name in ("t_us", "x", "y", "p")]
    offsets, duration_us = columns["offsets"], columns["duration_us"]
    parts = min(num_threads(), len(batch), max(1, batch.num_events // EVENTS_A_THREAD))

    def fill(part: int) -> None:
        first, last = len(batch) * part // parts, len(batch) * (part + 1) // parts
        loop(*events, offsets[first : last + 1], duration_us[first:last], image[first:last], *arguments)

    in_threads(fill, range(parts))
    return torch.from_numpy(image)


def positive(name: str, value: Any, unit: str) -> float:
    """``value`` as a float above 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise FateError(f"{name}={value!r} was given; expected {unit}, more than 0")
    return number


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """``value``, one of ``choices``."""
    if value not in choices:
        raise FateError(f"{name}={value!r} was given; expected one of {', '.join(map(repr, choices))}")
    return str(value)
