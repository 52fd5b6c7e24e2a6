"""Which rates are trained at, and when: the paper's linear curriculum (appendix, "Linear Curriculum Schedule").

    p_r(f_i) = ((1 − α_r) · 1[f_i = f_min] + α_r · w_i) / Z_r,    α_r = r / R,    w_i = i / |F|

with r the epoch, R their number and i = 1 … |F| the index of a rate in rising order. Training starts at 20 Hz alone;
towards the end, the probability of each rate is proportional to its index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.data.clips import CANONICAL_US, Timing
from fate.errors import FateError
from fate.events.window import window_us

#: Shares of clips whose windows are 50 ms long, and as long as the hop, where lengths are drawn.
CANONICAL_SHARE, HOP_SHARE = 0.5, 0.25


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
        """Probability p_r of every rate in epoch r, 0 to R - 1."""
        alpha = min(max(epoch / self.epochs, 0.0), 1.0)
        weights = np.arange(1, len(self.rates) + 1) / len(self.rates)
        lowest = np.arange(len(self.rates)) == 0
        mass = (1 - alpha) * lowest + alpha * weights
        return np.asarray(mass / mass.sum(), np.float64)

    def __call__(self, batch: int, rate_quantile: float, window_quantile: float) -> Timing:
        """The timing of one clip in the batch of that index; windows are as long as the hop.

        Args:
            batch: index of the batch.
            rate_quantile: in [0, 1); the rate is the inverse of the cumulative p_r there.
            window_quantile: not used here.
        """
        return Timing(self.rate(batch, rate_quantile))

    def rate(self, batch: int, quantile: float) -> float:
        """The rate, Hz, at that quantile of p_r in the epoch of the batch."""
        sums = np.cumsum(self.probabilities(batch // self.epoch_batches))
        index = int(np.searchsorted(sums, quantile * sums[-1], side="right"))
        return float(self.rates[min(index, len(self.rates) - 1)])


@dataclass(frozen=True)
class AnyWindow:
    """Draws a rate from a curriculum and, independently, how long windows are: hop ≤ window ≤ 50 ms.

    Half of the clips have the canonical 50 ms, which is what overlapping windows have at every rate. A quarter have
    windows as long as the hop, the paper's case. The others lie between, evenly in the logarithm of the length.
    """

    curriculum: Curriculum

    def __call__(self, batch: int, rate_quantile: float, window_quantile: float) -> Timing:
        """The timing of one clip; arguments as of a curriculum, the second quantile draws the window's length."""
        hz = self.curriculum.rate(batch, rate_quantile)
        hop = window_us(hz)
        if hop >= CANONICAL_US or window_quantile < CANONICAL_SHARE:
            return Timing(hz, max(hop, CANONICAL_US))
        if window_quantile < CANONICAL_SHARE + HOP_SHARE:
            return Timing(hz, hop)
        between = (window_quantile - CANONICAL_SHARE - HOP_SHARE) / (1 - CANONICAL_SHARE - HOP_SHARE)
        return Timing(hz, round(hop * (CANONICAL_US / hop) ** between))


@dataclass(frozen=True)
class OneRate:
    """Always the same rate, with windows as long as the hop."""

    hz: float

    def __call__(self, batch: int, rate_quantile: float, window_quantile: float) -> Timing:
        """The timing; arguments as of a curriculum, not used here."""
        return Timing(self.hz)
