"""Which rates are trained at, and when: the paper's linear curriculum (appendix, "Linear Curriculum Schedule").

    p_r(f_i) = ((1 − α_r) · 1[f_i = f_min] + α_r · w_i) / Z_r,    α_r = r / R,    w_i = i / |F|

with r the epoch, R their number and i = 1 … |F| the place of a rate in rising order: at first 20 Hz alone, in the end
every rate in proportion to its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError


@dataclass(frozen=True)
class Curriculum:
    """Draws a rate for each clip. A plain value: workers get copies.

    Attributes:
        rates: F in rising order, Hz.
        epochs: R.
        epoch_batches: batches in an epoch.
    """

    rates: Sequence[float]
    epochs: int
    epoch_batches: int

    def __post_init__(self) -> None:
        if not self.rates or list(self.rates) != sorted(set(self.rates)):
            raise FateError(f"rates {list(self.rates)} were given; expected at least one, in rising order")
        if self.epochs < 1 or self.epoch_batches < 1:
            raise FateError(f"{self.epochs} epochs of {self.epoch_batches} batches were given; expected at least one")

    def probabilities(self, epoch: float) -> NDArray[np.float64]:
        """p_r of every rate in epoch r, from 0 to R."""
        alpha = min(max(epoch / self.epochs, 0.0), 1.0)
        weights = np.arange(1, len(self.rates) + 1) / len(self.rates)
        lowest = np.arange(len(self.rates)) == 0
        mass = (1 - alpha) * lowest + alpha * weights
        return np.asarray(mass / mass.sum(), np.float64)

    def __call__(self, batch: int, generator: np.random.Generator) -> float:
        """The rate of one clip in the batch of that number."""
        chances = self.probabilities(batch // self.epoch_batches)
        return float(self.rates[int(generator.choice(len(self.rates), p=chances))])


@dataclass(frozen=True)
class OneRate:
    """Always the same rate."""

    hz: float

    def __call__(self, batch: int, generator: np.random.Generator) -> float:
        """The rate; a number is drawn all the same, so that clips are those of a curriculum of one rate."""
        generator.choice(1, p=[1.0])
        return self.hz
