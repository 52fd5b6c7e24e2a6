"""The mean teacher: an exponential moving average of the student's weights.

    θ_t ← γ θ_t + (1 − γ) θ_s

The average runs over parameters *and* buffers, because running statistics belong to their weights. Integers (counts of
batches) are copied. Frozen weights, and all weights after a step with γ = 0, are equal to the student's to the bit.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def make_teacher(student: Module) -> Module:
    """A copy of the student in evaluation mode, without gradients."""
    return copy.deepcopy(student).requires_grad_(False).eval()


class EmaUpdate:
    """Many steps of the moving average. It finds the tensors once, because that takes longer than a step."""

    def __init__(self, teacher: nn.Module, student: nn.Module) -> None:
        # without tensors that are not saved: these are tables that each module computes itself
        theirs, ours = (list(module.state_dict(keep_vars=True).values()) for module in (student, teacher))
        pairs = list(zip(ours, theirs, strict=True))
        self._real = [pair for pair in pairs if pair[0].is_floating_point()]
        self._whole = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def step(self, decay: float) -> None:
        """Update the teacher with γ = ``decay``, from 0 to below 1."""
        if self._real:
            ours, theirs = zip(*self._real, strict=True)
            torch._foreach_lerp_(ours, theirs, 1.0 - decay)
        for own, other in self._whole:
            own.copy_(other)


def decay_at(step: int, decay: float, warmup: int) -> float:
    """γ at a step; with a warm-up it rises from 0, so that the first weights of the teacher fade quickly."""
    return decay if warmup == 0 else decay * (1.0 - 2.0 ** (-step / warmup))
