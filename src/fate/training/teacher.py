"""The mean teacher: an exponential moving average of the student's weights.

    θ_t ← γ θ_t + (1 − γ) θ_s

The average runs over parameters *and* buffers, because running statistics belong to their weights. Integers (counts of
batches) are copied. Frozen weights, and all weights after a step with γ = 0, are equal to the student's to the bit.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from fate.errors import FateError

Module = TypeVar("Module", bound=nn.Module)


def make_teacher(student: Module) -> Module:
    """A copy of the student in evaluation mode, without gradients."""
    teacher = copy.deepcopy(student)
    teacher.requires_grad_(False)
    return teacher.eval()


class EmaUpdate:
    """Many steps of the moving average. It finds the tensors once, because that takes longer than a step."""

    def __init__(self, teacher: nn.Module, student: nn.Module) -> None:
        theirs, ours = _tensors(student), _tensors(teacher)
        if theirs.keys() != ours.keys():
            raise FateError("a teacher of another model was given; expected a copy of the student")
        real = [name for name, value in ours.items() if value.is_floating_point()]
        self._real = [ours[name] for name in real], [theirs[name] for name in real]
        self._whole = [(ours[name], theirs[name]) for name in ours.keys() - set(real)]

    @torch.no_grad()
    def step(self, decay: float) -> None:
        """Update the teacher with γ = ``decay``."""
        if not 0 <= decay < 1:
            raise FateError(f"a decay of {decay} was given; expected γ from 0 to below 1")
        if self._real[0]:
            torch._foreach_lerp_(*self._real, 1.0 - decay)
        for own, other in self._whole:
            own.copy_(other)


def decay_at(step: int, decay: float, warmup: int) -> float:
    """γ at a step; with a warm-up it rises from 0, so that the first weights of the teacher fade quickly."""
    return decay if warmup == 0 else decay * (1.0 - 2.0 ** (-step / warmup))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that are saved; the others are tables that each module computes itself."""
    return dict(module.state_dict(keep_vars=True))
