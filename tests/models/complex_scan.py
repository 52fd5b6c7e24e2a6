"""The recurrence of ``scan`` in complex numbers, as plain as it can be."""

from __future__ import annotations

import torch
from torch import Tensor


def scan_in_complex_numbers(transition: Tensor, inputs: Tensor, initial: Tensor | None = None) -> Tensor:
    """What ``scan`` computes."""
    a, b = as_complex(transition), as_complex(inputs)
    state = torch.zeros_like(b[0]) if initial is None else as_complex(initial)
    states = []
    for t in range(len(b)):
        state = a[t, :, None] * state + b[t]
        states.append(state)
    return as_pairs(torch.stack(states))


def as_complex(pairs: Tensor) -> Tensor:
    """[.., 2·P] real to [.., P] complex."""
    real, imag = pairs.chunk(2, -1)
    return torch.complex(real, imag)


def as_pairs(numbers: Tensor) -> Tensor:
    """[.., P] complex to [.., 2·P] real."""
    return torch.cat((numbers.real, numbers.imag), -1)
