"""The history of images for one window after another, in the operations of ``reference`` or ``kernels``."""

from __future__ import annotations

from types import ModuleType
from typing import cast

import torch
from torch import Tensor, nn

from fate.errors import FateError
from fate.models.layers.image_history import History, ImageHistory


class FusedImageHistory(nn.Module):
    """A trained ``ImageHistory`` for T = 1. It overwrites the state that it is given."""

    follows_time = True

    def __init__(self, history: ImageHistory, operations: ModuleType) -> None:
        """``operations`` are ``reference`` or ``kernels``."""
        super().__init__()
        self.history, self.operations, self.keep_length = history, operations, history.keep_length

    def forward(
        self,
        images: Tensor,
        state: History | None = None,
        steps: int = 1,
        step_scale: float | Tensor = 1.0,
        reuse_state: bool = False,
    ) -> tuple[Tensor, History]:
        """Same arguments and results as ``ImageHistory.forward``."""
        if steps != 1:
            raise FateError(f"steps={steps} was given; a fused history takes one window of each stream")
        if state is None:
            total = torch.zeros_like(images[:, :-1], memory_format=torch.channels_last)
            state = (total, torch.zeros_like(total[:, :1]))
        found = self.operations.complete_images(self.history, images, state, step_scale)
        return cast(tuple[Tensor, History], found)
