"""The curriculum draws the rates the paper says, epoch by epoch."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from fate.errors import FateError
from fate.training.curriculum import Curriculum, OneRate

RATES = (20.0, 40.0, 80.0, 100.0, 200.0)


def test_at_first_only_the_canonical_rate_is_drawn() -> None:
    curriculum = Curriculum(RATES, epochs=10, epoch_batches=100)
    generator = np.random.default_rng(0)
    assert {curriculum(batch, generator) for batch in range(100)} == {20.0}
    assert curriculum.probabilities(0).tolist() == [1, 0, 0, 0, 0]


def test_at_the_end_rates_are_as_likely_as_their_place() -> None:
    assert Curriculum(RATES, 4, 1).probabilities(4) == pytest.approx(np.arange(1, 6) / 15)


def test_half_way_the_paper_s_formula_holds_by_hand() -> None:
    # (1 − 0.5)·1 + 0.5·1/5 = 0.6 for 20 Hz, then 0.2, 0.3, 0.4, 0.5; Z = 2.0
    assert Curriculum(RATES, 2, 1).probabilities(1) == pytest.approx([0.3, 0.1, 0.15, 0.2, 0.25])


@pytest.mark.parametrize("epoch", [1, 5, 9])
def test_drawn_rates_follow_the_distribution(epoch: int) -> None:
    curriculum = Curriculum(RATES, epochs=10, epoch_batches=7)
    generator = np.random.default_rng(epoch)
    drawn = [curriculum(7 * epoch + k % 7, generator) for k in range(4000)]
    counts = [drawn.count(hz) for hz in RATES]
    assert chisquare(counts, 4000 * curriculum.probabilities(epoch)).pvalue > 1e-3


def test_a_curriculum_of_one_rate_draws_like_one_rate() -> None:
    first, second = np.random.default_rng(3), np.random.default_rng(3)
    assert Curriculum([20.0], 5, 5)(12, first) == OneRate(20.0)(12, second)
    assert first.random() == second.random()


@pytest.mark.parametrize("rates", [[], [40, 20], [20, 20]])
def test_rates_out_of_order_are_refused(rates: list[float]) -> None:
    with pytest.raises(FateError, match="rising order"):
        Curriculum(rates, 1, 1)
