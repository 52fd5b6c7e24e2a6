"""The mean teacher: a copy of a detector that follows it slowly.

    θ_t ← γ θ_t + (1 − γ) θ_s

over parameters *and* buffers: running statistics that belong to other weights would make the teacher a different
detector. Whole numbers (counts of batches) are taken over as they are. Frozen weights and weights of one γ = 0 step are
equal to the bit.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from fate.errors import FateError

Module = TypeVar("Module", bound=nn.Module)


def teacher_of(student: Module) -> Module:
    """A copy in evaluation mode whose weights no optimiser moves."""
    teacher = copy.deepcopy(student)
    teacher.requires_grad_(False)
    return teacher.eval()


def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    """One step: every tensor of the teacher moves the share 1 − ``decay`` of the way to the student's."""
    Following(teacher, student).step(decay)


class Following:
    """The same for many steps, while all tensors stay where they are: looking for them takes longer than a step."""

    def __init__(self, teacher: nn.Module, student: nn.Module) -> None:
        theirs, ours = _tensors(student), _tensors(teacher)
        if theirs.keys() != ours.keys():
            raise FateError("a teacher of another model was given; expected a copy of the student")
        real = [name for name, value in ours.items() if value.is_floating_point()]
        self._real = [ours[name] for name in real], [theirs[name] for name in real]
        self._whole = [(ours[name], theirs[name]) for name in ours.keys() - set(real)]

    @torch.no_grad()
    def step(self, decay: float) -> None:
        """As ``follow``."""
        if not 0 <= decay < 1:
            raise FateError(f"a decay of {decay} was given; expected γ from 0 to below 1")
        if self._real[0]:
            torch._foreach_lerp_(*self._real, 1.0 - decay)
        for own, other in self._whole:
            own.copy_(other)


def decay_at(step: int, decay: float, warmup: int) -> float:
    """γ at a step; with a warm-up it rises from 0, so that a fresh teacher does not stay what it was made of."""
    return decay if warmup == 0 else decay * (1.0 - 2.0 ** (-step / warmup))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers that are saved; the others are tables that each module makes for itself."""
    return dict(module.state_dict(keep_vars=True))
