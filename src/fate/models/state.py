"""What a detector remembers between windows: a plain tree of tensors, handed in and handed back.

A state is a tensor, a tuple of states, or None for a part without memory; the first axis of every tensor counts streams
(B). ``None`` in the place of a whole state means that every stream begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fate.errors import FateError

#: Tensors in nested tuples; None where there is nothing to remember.
State = Any


def mapped(change: Callable[[Tensor], Tensor], state: State) -> State:
    """The same tree with every tensor changed."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, tuple | list):
        return tuple(mapped(change, part) for part in state)
    raise FateError(f"a state with a {type(state).__name__} in it was given; expected tensors in nested tuples")


def tensors(state: State) -> Iterator[Tensor]:
    """The tensors of a state, in a fixed order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple | list):
        for part in state:
            yield from tensors(part)
    elif state is not None:
        raise FateError(f"a state with a {type(state).__name__} in it was given; expected tensors in nested tuples")


def rebuilt(state: State, parts: Sequence[Tensor]) -> State:
    """A tree like ``state`` with these tensors, in the order of ``tensors``."""
    left = iter(parts)
    return mapped(lambda _: next(left), state)


def reset(state: State, mask: Tensor) -> State:
    """Streams where ``mask`` [B] is true begin anew; the others go on. Every memory begins at zero."""

    def begin(part: Tensor) -> Tensor:
        if mask.shape != part.shape[:1]:
            raise FateError(
                f"a mask of shape {tuple(mask.shape)} was given for a state of {len(part)} streams; expected one"
                " truth value for each stream"
            )
        gone = mask.to(device=part.device, dtype=torch.bool).view(-1, *[1] * (part.ndim - 1))
        return part.masked_fill(gone, 0.0)

    return mapped(begin, state)


def detach(state: State) -> State:
    """The same without the way it came about: gradients end here."""
    return mapped(Tensor.detach, state)
