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

from fate.data.clips import Timing
from fate.events.window import window_us
from fate.rates import CANONICAL_US

#: Shares of clips whose windows are 50 ms long, and as long as the hop, where lengths are drawn.
CANONICAL_SHARE, HOP_SHARE = 0.5, 0.25


@dataclass(frozen=True)
class Curriculum:
    """Draws the timing of each clip. A plain value: workers get copies.

    Windows are as long as the hop, the paper's case. With ``any_window`` their length is drawn too, independently of
    the rate: half of the clips have the canonical 50 ms, which is what overlapping windows have at every rate; a
    quarter have windows as long as the hop; the others lie between, evenly in the logarithm of the length.
    """

    rates: Sequence[float]  #: F in rising order, Hz
    epochs: int  #: R
    epoch_batches: int  #: batches in an epoch
    any_window: bool = False  #: draw the length of windows, hop ≤ window ≤ 50 ms

    def probabilities(self, epoch: float) -> NDArray[np.float64]:
        """Probability p_r of every rate in epoch r, 0 to R - 1."""
        alpha = min(max(epoch / self.epochs, 0.0), 1.0)
        weights = np.arange(1, len(self.rates) + 1) / len(self.rates)
        lowest = np.arange(len(self.rates)) == 0
        mass = (1 - alpha) * lowest + alpha * weights
        return np.asarray(mass / mass.sum(), np.float64)

    def __call__(self, batch: int, rate_quantile: float, window_quantile: float) -> Timing:
        """The timing of one clip in the batch of that index.

        The quantiles are in [0, 1). The rate is the inverse of the cumulative p_r at the first one; with ``any_window``
        the second one draws the length of windows.
        """
        sums = np.cumsum(self.probabilities(batch // self.epoch_batches))
        index = int(np.searchsorted(sums, rate_quantile * sums[-1], side="right"))
        hz = float(self.rates[min(index, len(self.rates) - 1)])
        if not self.any_window:
            return Timing(hz)
        hop = window_us(hz)
        if hop >= CANONICAL_US or window_quantile < CANONICAL_SHARE:
            return Timing(hz, max(hop, CANONICAL_US))
        if window_quantile < CANONICAL_SHARE + HOP_SHARE:
            return Timing(hz, hop)
        between = (window_quantile - CANONICAL_SHARE - HOP_SHARE) / (1 - CANONICAL_SHARE - HOP_SHARE)
        return Timing(hz, round(hop * (CANONICAL_US / hop) ** between))
