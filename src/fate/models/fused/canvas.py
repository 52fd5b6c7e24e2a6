"""Images of an encoder as a fused backbone wants them: padded, channels last and in its type, by one copy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fate.models.detector import Frame

#: Channels of images are padded to a multiple of this number, as convolutions on tensor cores need it.
CHANNELS = 8


class Canvas(nn.Module):
    """[N, C, H', W'] to [N, C padded by zeros, H, W], in memory that is kept for the next call."""

    def __init__(self, frame: Frame, dtype: torch.dtype) -> None:
        super().__init__()
        self.size = tuple(side // frame.encoder_stride for side in frame.padded)
        self.empty_value, self.dtype = frame.empty_value, dtype
        self._kept: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        shape = (count, channels + missing_channels(channels), *self.size)
        if self._kept is None or self._kept.shape != shape:
            canvas = torch.zeros(shape, dtype=self.dtype, device=images.device)
            canvas[:, :channels] = self.empty_value
            self._kept = canvas.contiguous(memory_format=torch.channels_last)
        self._kept[:, :channels, :height, :width].copy_(images)
        return self._kept


def missing_channels(channels: int) -> int:
    """Channels that are missing for a multiple of ``CHANNELS``."""
    return -channels % CHANNELS


def padded_weight(weight: Tensor, axis: int = 1) -> Tensor:
    """A weight with zeros for more channels along an axis, 1 for the inputs of a convolution."""
    missing = [0, 0] * (weight.ndim - axis - 1) + [0, missing_channels(weight.shape[axis])]
    return nn.functional.pad(weight, missing)
