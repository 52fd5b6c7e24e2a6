"""The curriculum draws the rates the paper says, epoch by epoch."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import chisquare

from fate.data.clips import Timing, TrainingPlan
from fate.training.strategies import Curriculum

RATES = (20.0, 40.0, 80.0, 100.0, 200.0)


def test_at_first_only_the_canonical_rate_is_drawn() -> None:
    curriculum = Curriculum(RATES, epochs=10, epoch_batches=100)
    assert {curriculum(batch, batch / 100, 0.5).hz for batch in range(100)} == {20.0}
    assert curriculum.probabilities(0).tolist() == [1, 0, 0, 0, 0]


def test_at_the_end_rates_are_as_likely_as_their_place() -> None:
    assert Curriculum(RATES, 4, 1).probabilities(4) == pytest.approx(np.arange(1, 6) / 15)


def test_half_way_the_paper_s_formula_holds_by_hand() -> None:
    # (1 − 0.5)·1 + 0.5·1/5 = 0.6 for 20 Hz, then 0.2, 0.3, 0.4, 0.5; Z = 2.0
    assert Curriculum(RATES, 2, 1).probabilities(1) == pytest.approx([0.3, 0.1, 0.15, 0.2, 0.25])


def test_a_first_alpha_begins_with_more_rates_and_ends_as_in_the_paper() -> None:
    half, whole = (Curriculum(RATES, 4, 1, first_alpha=alpha) for alpha in (0.5, 1.0))
    assert half.probabilities(0) == pytest.approx([0.3, 0.1, 0.15, 0.2, 0.25])  # as half way through the paper's
    for epoch in (0, 2, 4):
        assert whole.probabilities(epoch) == pytest.approx(np.arange(1, 6) / 15)
    assert half.probabilities(4) == pytest.approx(whole.probabilities(4))


def test_a_last_alpha_keeps_a_share_of_the_canonical_rate() -> None:
    curriculum = Curriculum(RATES, 4, 1, last_alpha=0.5)
    assert curriculum.probabilities(0).tolist() == [1, 0, 0, 0, 0]
    assert curriculum.probabilities(4) == pytest.approx([0.3, 0.1, 0.15, 0.2, 0.25])
    constant = Curriculum(RATES, 4, 1, first_alpha=0.25, last_alpha=0.25)
    assert constant.probabilities(0) == pytest.approx(constant.probabilities(3))
    assert constant.probabilities(0)[0] == pytest.approx(0.8 / 1.5)


@pytest.mark.parametrize("epoch", [1, 5, 9])
def test_drawn_rates_follow_the_distribution(epoch: int) -> None:
    curriculum = Curriculum(RATES, epochs=10, epoch_batches=7)
    generator = np.random.default_rng(epoch)
    drawn = [curriculum(7 * epoch + k % 7, generator.random(), 0.5).hz for k in range(4000)]
    counts = [drawn.count(hz) for hz in RATES]
    assert chisquare(counts, 4000 * curriculum.probabilities(epoch)).pvalue > 1e-3


def test_equally_spaced_quantiles_give_the_exact_shares() -> None:
    curriculum = Curriculum(RATES, epochs=2, epoch_batches=1)
    drawn = [curriculum(1, (k + 0.5) / 100, 0.5).hz for k in range(100)]
    assert [drawn.count(hz) / 100 for hz in RATES] == pytest.approx([0.3, 0.1, 0.15, 0.2, 0.25])


def test_a_curriculum_of_one_rate_always_draws_it() -> None:
    assert Curriculum([20.0], 5, 5)(12, 0.7, 0.2) == Timing(20.0)


def test_windows_of_any_length_lie_between_the_hop_and_50_ms() -> None:
    timing = Curriculum(RATES, epochs=1, epoch_batches=1, hop_share=0.25)
    drawn = [timing(1, (k % 40 + 0.5) / 40, (k // 40 + 0.5) / 40) for k in range(1600)]
    assert all(1e6 / hz <= length <= 50_000 for hz, length in drawn)
    assert sum(length == 50_000 for _, length in drawn) / 1600 == pytest.approx(0.5 + 0.5 / 15, abs=0.01)
    at_200 = [length for hz, length in drawn if hz == 200.0]
    assert at_200.count(5_000) / len(at_200) == pytest.approx(0.25, abs=0.03)
    between = [length for length in at_200 if 5_000 < length < 50_000]
    assert np.median(between) == pytest.approx(np.sqrt(5_000 * 50_000), rel=0.1)


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_share_of_windows_as_long_as_the_hop_can_be_chosen(share: float) -> None:
    timing = Curriculum(RATES, epochs=1, epoch_batches=1, hop_share=share)
    lengths = [timing(1, 0.99, (k + 0.5) / 1000).window_us for k in range(1000)]  # at 200 Hz
    assert lengths.count(5_000) / 1000 == pytest.approx(share, abs=0.01)
    assert lengths.count(50_000) / 1000 == pytest.approx((1 - share) * 2 / 3, abs=0.01)


class Recording(NamedTuple):
    start_us: int
    end_us: int


@pytest.mark.slow
def test_over_all_clips_of_a_gen1_like_set_each_rate_has_its_share_in_every_epoch() -> None:
    recordings = [Recording(0, 60_000_000)] * 40
    labelled = [np.arange(1_000_000, 60_000_000, 500_000) for _ in recordings]
    curriculum = Curriculum(RATES, epochs=6, epoch_batches=200)
    plan = TrainingPlan(recordings, labelled, steps=21, random=16, streams=16, timing=curriculum, seed=3)
    batches = plan.batches()
    for epoch in range(6):
        clips = np.array([[clip.hz for clip in batch] for batch in islice(batches, 200)])
        for kind in (clips, clips[:, 16:]):  # all of them, and streams alone
            shares = [float(np.mean(kind == hz)) for hz in RATES]
            assert shares == pytest.approx(curriculum.probabilities(epoch).tolist(), abs=0.025)
