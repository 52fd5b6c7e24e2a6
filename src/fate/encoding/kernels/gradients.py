"""What goes into the kernels and comes back: the encoder's parameters with BatchNorm folded in, and their gradients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Weights(NamedTuple):
    """H = relu(scale · features + shift); image = alpha · moments + beta."""

    scale: Tensor  #: [C, D]
    shift: Tensor  #: [C]
    alpha: Tensor  #: [C, K]
    beta: Tensor  #: [C]


class Gradients(NamedTuple):
    """Of each of ``Weights``."""

    scale: Tensor
    shift: Tensor
    alpha: Tensor
    beta: Tensor
