"""The encoders that ``fate bench encode`` measures, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.encoding.grids import build_grid
from fate.encoding.kernels import reference
from fate.encoding.pillars import PillarEncoder
from fate.errors import FateError

#: The first is ours; the ratio of the others is against it.
ENCODERS = ("pillars", "dense", "dense-compiled", "histogram", "evrt-histogram")


class _Dense(nn.Module):
    """The dense reference as a module with the same parameters."""

    def __init__(self, sensor: Sequence[int], compiled: bool) -> None:
        super().__init__()
        self.own = PillarEncoder(sensor)
        self._compiled: Any = torch.compile(reference.latent_image) if compiled else None

    def forward(self, batch: EventBatch) -> Tensor:
        own = self.own
        if own.alpha is None or own.beta is None or own.norm.running_mean is None or own.norm.running_var is None:
            raise FateError("the dense reference is measured with Legendre pooling and running statistics")
        parameters = reference.Parameters(
            own.linear.weight, own.linear.bias, own.norm.weight, own.norm.bias, own.alpha, own.beta
        )
        running = None if self.training else (own.norm.running_mean, own.norm.running_var)
        return reference.encode(batch, own.spec, 0, parameters, running, compiled=self._compiled)[0]


def make_encoder(name: str, batch: EventBatch) -> nn.Module:
    """One of ``ENCODERS`` for a batch's sensor and device."""
    torch.manual_seed(0)
    if name == "pillars":
        return PillarEncoder(batch.sensor).to(batch.device)
    if name.startswith("dense"):
        return _Dense(batch.sensor, compiled="compiled" in name).to(batch.device)
    return build_grid(name, batch.sensor).to(batch.device)
