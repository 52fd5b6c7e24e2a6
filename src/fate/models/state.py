"""The recurrent state of a detector: nested tuples of tensors, passed to and returned by every call.

A state is a tensor, a tuple of states, or None for a part without state. The first axis of every tensor is the stream
(B). None as the whole state is the initial state of all streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fate.errors import FateError

#: Tensors in nested tuples; None for parts without state.
State = Any


def mapped(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply ``change`` to every tensor of a state."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple | list):
        return tuple(mapped(change, part) for part in state)
    raise FateError(f"a state with a {type(state).__name__} in it was given; expected tensors in nested tuples")


def tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in a fixed order."""
    found: list[Tensor] = []
    mapped(lambda part: found.append(part) or part, state)  # type: ignore[func-returns-value]
    return found


def rebuilt(state: State, parts: Sequence[Tensor]) -> State:
    """A state with the structure of ``state`` and the given tensors, in the order of ``tensors``."""
    left = iter(parts)
    return mapped(lambda _: next(left), state)


def reset(state: State, mask: Tensor) -> State:
    """Set the state of streams for which ``mask`` [B] is true to zero, the initial state."""

    def reset_part(part: Tensor) -> Tensor:
        if mask.shape != part.shape[:1]:
            raise FateError(
                f"a mask of shape {tuple(mask.shape)} was given for a state of {len(part)} streams; expected one"
                " truth value for each stream"
            )
        rows = mask.to(device=part.device, dtype=torch.bool).view(-1, *[1] * (part.ndim - 1))
        return part.masked_fill(rows, 0.0)

    return mapped(reset_part, state)


def detach(state: State) -> State:
    """The state, detached from the graph."""
    return mapped(Tensor.detach, state)
