"""The length of each window as one more channel of an encoder's image, for detectors that depend on it.

    encoder = WindowLength(PillarEncoder((240, 304)))
    image = encoder(batch)                            # [B, C + 1, H', W'], the last channel is l in every cell

l = ln(duration / 50 ms): 0 for windows of 50 ms, and -2.3 for 5 ms. The length is a part of the image, so whatever
stores, copies or replays images (clips, states of streams, CUDA graphs, exported graphs) needs no further argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.events.events import Sensor
from fate.rates import CANONICAL_US

if TYPE_CHECKING:
    from fate.encoding.kernels.cpu_inference import ImageMemory


class WindowLength(nn.Module):
    """An encoder with the channel l behind those of another encoder.

    Attributes:
        encoder: the other encoder.
        channels: C + 1.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.channels = int(encoder.channels) + 1  # type: ignore[arg-type]

    @property
    def sensor(self) -> Sensor:
        """(height, width) of the events, pixels."""
        size: Sensor = self.encoder.sensor
        return size

    @property
    def stride(self) -> int:
        """Pixels along a side of one cell of the image."""
        return int(self.encoder.stride)

    @property
    def empty_value(self) -> float:
        """The value of a cell without events, in all channels but the last."""
        return float(getattr(self.encoder, "empty_value", 0.0))

    @property
    def last_stats(self) -> Any:
        """Counts of the last call, as the other encoder has them; None if it has none."""
        return getattr(self.encoder, "last_stats", None)

    def forward(self, batch: EventBatch, memory: ImageMemory | None = None) -> Tensor:
        """Encode a batch as [B, C + 1, H', W'].

        A ``memory`` is that of the other encoder. If it has a spare channel, nothing is copied.
        """
        images: Tensor
        if memory is None:
            images = self.encoder(batch)
            return append_length(images, batch.duration_us[: len(images)])  # it may have left out a spare window
        images = self.encoder(batch, memory)
        if images.shape[1] < self.channels:
            return append_length(images, batch.duration_us)
        durations = batch.duration_us.tolist()
        if memory.written != durations:
            images[:, -1] = log_length(batch.duration_us)[:, None, None]
            memory.written = durations
        return images


def log_length(duration_us: Tensor) -> Tensor:
    """l of windows that last ``duration_us`` [B], in float32."""
    return torch.log(duration_us.float() / CANONICAL_US)


def append_length(images: Tensor, duration_us: Tensor) -> Tensor:
    """Append the channel l to images [B, C, H, W] of windows that last ``duration_us`` [B], without waiting for a GPU.

    l is exactly 0 for windows of 50 ms.
    """
    length = log_length(duration_us).to(images.dtype)
    channel = length.view(-1, 1, 1, 1).expand(-1, 1, images.shape[2], images.shape[3])
    # with this layout, the result has channels last in memory if the images have
    return torch.cat([images, channel.contiguous(memory_format=torch.channels_last)], dim=1)
