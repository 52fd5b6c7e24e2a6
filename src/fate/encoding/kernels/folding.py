"""The weights of Pillar Encoding in the form the CPU's loops want them, and gradients back from it.

An event's latent feature before ReLU is affine in the event: within a pillar it is

    base_c + table[place, c] + slope_c · tau

with one base per pillar (its position and the mean of its events), one table for the few places an event can have in
a pillar (pixel and polarity), and one slope.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.encoding.kernels.cpu_loops import Folded
from fate.encoding.kernels.gradients import Gradients, Weights
from fate.encoding.spec import PillarSpec


@lru_cache(maxsize=64)
def folding(spec: PillarSpec, dtype: str = "float64") -> NDArray[Any]:
    """[6 + places + 1, D]: what each feature's weight adds to base, table and slope."""
    height, width = spec.sensor
    column, row, polarity = places(spec.pillar)
    count = len(column)
    matrix = np.zeros((7 + count, spec.features))
    table, slope = slice(6, 6 + count), 6 + count
    matrix[1, 0], matrix[2, 1] = 1 / width, 1 / height  # x and y of the corner
    matrix[3, 4], matrix[4, 5], matrix[5, 6] = 1 / width, 1 / height, 1  # the means, to be taken off
    matrix[table, 0], matrix[table, 1], matrix[table, 3] = column / width, row / height, polarity
    matrix[table, 4], matrix[table, 5] = column / width, row / height
    matrix[slope, 2] = matrix[slope, 6] = 1
    if spec.center_offsets:
        middle = (spec.pillar - 1) / 2
        matrix[table, 7], matrix[table, 8] = (column - middle) / width, (row - middle) / height
    return matrix.astype(dtype)


def fold(weights: Weights, spec: PillarSpec) -> Folded:
    """Weights of features to base, table and slope."""
    scale, shift, alpha, beta = (part.detach().numpy() for part in weights)
    both = folding(spec, scale.dtype.name) @ scale.T
    both[0] += shift
    return Folded(both[:6], both[6:-1], both[-1], np.ascontiguousarray(alpha.T), beta)


def unfold(gradient: Folded, spec: PillarSpec, weights: Weights) -> Gradients:
    """Gradients of base, table and slope to those of the weights: the transpose of ``fold``."""
    both = np.concatenate([gradient.base, gradient.table, gradient.slope[None]])
    with np.errstate(invalid="ignore"):  # of a gradient that has overflown
        scale = both.T @ folding(spec)
    parts = (scale, gradient.base[0], gradient.alpha.T, gradient.beta)
    return Gradients(*(torch.from_numpy(np.ascontiguousarray(part)).to(weights.beta.dtype) for part in parts))


@lru_cache(maxsize=64)
def places(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Column, row and polarity (-1, 1) of each place in a pillar [2 side²]; see ``Binned.place``."""
    place = np.arange(2 * side * side)
    return place // 2 % side, place // 2 // side, 2 * (place % 2) - 1
