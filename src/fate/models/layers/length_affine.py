"""A scale and an offset for every channel that depend on the length of the window.

    y = x · (1 + l · a) + l · b,   l = ln(window / 50 ms)

A window of 5 ms has about a tenth of the events of one of 50 ms, so features have other statistics. With this layer
behind its norms, a detector has parameters of its own for short windows, and shares all others between all lengths.
a and b are zero at first, and l is 0 at 50 ms: there, whatever a and b are, the detector is the one without this layer.
A detector that was trained at 20 Hz only can therefore start training at any rate without loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LengthAffine(nn.Module):
    """x → x · (1 + l · ``scale``) + l · ``offset``."""

    def __init__(self, channels: int, axis: int = 1) -> None:
        """``axis``: 1 for features [N, C, H, W], -1 for [N, H, W, C]."""
        super().__init__()
        self.axis = axis
        self.scale = nn.Parameter(torch.zeros(channels))  #: a
        self.offset = nn.Parameter(torch.zeros(channels))  #: b

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """Features of N windows, and l of each window [N], to features of the same shape and type."""
        shape = (len(length), -1, 1, 1) if self.axis == 1 else (len(length), 1, 1, -1)
        scale, offset = (
            (length[:, None].to(part.dtype) * part).to(x.dtype).view(shape) for part in (self.scale, self.offset)
        )
        # The change is added, because 1 + l · a would be rounded to the eight bits of bfloat16.
        return x + torch.addcmul(offset, x, scale)

    def extra_repr(self) -> str:
        return f"{len(self.scale)}, axis={self.axis}"


def split_length(images: Tensor) -> tuple[Tensor, Tensor]:
    """Images of ``encoding.window_length`` [N, C + 1, H, W] to those of the encoder [N, C, H, W] and l [N].

    Frames are padded at the right and at the bottom, so the first cell is never padding.
    """
    return images[:, :-1], images[:, -1, 0, 0].detach()
