"""PillarEncoder: what must hold of every image, whatever the events, and what is refused."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fate.encoding.batch import EventBatch
from fate.encoding.spec import PillarStats
from tests.encoding.conftest import (
    Row,
    batch_of,
    crowded,
    crowded_windows,
    expected,
    make_encoder,
    outcome,
    rows_of_events,
    special_batches,
    window_of,
)

UNCAPPED: dict[str, Any] = {"max_events": None, "max_pillars": None}
TIGHT: dict[str, Any] = {"max_events": 2, "max_pillars": 4}
SPECIAL = special_batches()
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no caps": UNCAPPED,
    "tight caps": TIGHT,
    "five moments, pixels": {"moments": 5, "pillar": 1, "max_pillars": 500},
    "one moment, large pillars": {"moments": 1, "pillar": 8, "center_offsets": True, "max_pillars": 8},
    "uniform": {"weighting": "uniform", "pillar": 3, "max_pillars": None},
    "max": {"pooling": "max", "max_pillars": 150},
}
any_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
any_rows = given(rows_of_events())
few = settings(max_examples=20)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-6)


# --- special windows ---


@any_option
@pytest.mark.parametrize("name", SPECIAL)
def test_image_and_gradients_are_finite_and_right(name: str, options: dict[str, Any]) -> None:
    batch, encoder = SPECIAL[name], make_encoder(**options)
    for training in (False, True):
        encoder.train(training)
        wanted, got = expected(encoder, batch), outcome(encoder, batch)
        assert got.image.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in got.gradients.values())
        assert got.stats == wanted.stats
        # in training a batch without any spread is divided by BatchNorm's eps: 300 times the rounding
        atol = 2e-4 if training else 2e-6
        torch.testing.assert_close(got.image.double(), wanted.image, rtol=1e-5, atol=atol)


@any_option
@pytest.mark.parametrize("training", [False, True])
def test_a_window_without_events_is_a_zero_image(options: dict[str, Any], training: bool) -> None:
    encoder = make_encoder(**options).train(training)
    image = encoder(batch_of([], []))
    assert image.shape == (2, 5, encoder.spec.rows, encoder.spec.columns)
    assert not image.any()
    assert encoder.last_stats == PillarStats(0, 0, 0, 0, 0)
    mixed = encoder(batch_of([(3, 1, 1, 1)], []))
    assert not mixed[1].any()


@any_rows
@few
def test_cells_without_events_are_zero_and_others_are_not(rows: list[Row]) -> None:
    encoder = make_encoder(**UNCAPPED)
    image = encoder(batch_of(rows))[0].detach()
    wanted = torch.zeros(image.shape[1:], dtype=torch.bool)
    for _, x, y, _ in rows:
        wanted[y // 2, x // 2] = True
    assert torch.equal((image != 0).any(0), wanted)


def test_one_event_is_its_own_mean() -> None:
    """The paper's 0 / 0: weights of one event are uniform, so its moments are its hidden value times L_k(tau)."""
    encoder = make_encoder(channels=3).double()
    image = encoder(batch_of([(250, 30, 22, 1)]))[0].detach()
    features = torch.tensor([30 / 31, 22 / 23, -0.5, 1, 0, 0, 0], dtype=torch.float64)
    hidden = torch.relu(encoder.norm(encoder.linear(features)[None])[0])
    assert encoder.alpha is not None
    assert encoder.beta is not None
    wanted = hidden * (encoder.alpha @ torch.tensor([1, -0.5, -0.125], dtype=torch.float64)) + encoder.beta
    torch.testing.assert_close(image[:, 11, 15], wanted.detach())


def test_events_of_one_time_weigh_the_same() -> None:
    rows = [(500, 4, 4, 1), (500, 5, 4, 0), (500, 5, 5, 0), (500, 5, 5, 0)]
    trapezoid, uniform = (make_encoder(weighting=kind) for kind in ("trapezoid", "uniform"))
    close(trapezoid(batch_of(rows)), uniform(batch_of(rows)))


def test_two_times_weigh_half_each_however_many_events_they_have() -> None:
    """Three events at one time and one at another: by the trapezoidal rule each time is worth half."""
    encoder = make_encoder(**UNCAPPED)
    early, late = (100, 4, 4, 1), (900, 4, 4, 1)
    with torch.no_grad():
        encoder.linear.weight[:, 4:] = 0  # the offsets from the mean know how many there are
    close(encoder(batch_of([early] * 3 + [late])), encoder(batch_of([early, late])))


def test_duplicates_of_all_events_change_nothing() -> None:
    encoder = make_encoder(**UNCAPPED)
    rows = [(7 * i % 900, 3 * i % 31, 5 * i % 23, i % 2) for i in range(200)]
    close(encoder(batch_of(rows * 2)), encoder(batch_of(rows)))


def test_the_last_row_and_column_have_pillars_of_their_own() -> None:
    encoder = make_encoder(**UNCAPPED)  # 23 × 31 pixels in 12 × 16 pillars
    for x, y in [(30, 22), (30, 0), (0, 22)]:
        image = encoder(batch_of([(500, x, y, 1)]))[0]
        assert image.shape == (5, 12, 16)
        assert (image != 0).any(0).nonzero().tolist() == [[y // 2, x // 2]]


# --- caps ---


@pytest.mark.parametrize("most", [1, 2, 7, 299, 300, 301, None])
def test_at_most_so_many_events_of_a_pillar_are_kept(most: int | None) -> None:
    encoder = make_encoder(max_events=most)
    encoder(SPECIAL["one pillar holds everything"])
    stats = encoder.last_stats
    assert stats is not None
    assert stats.events == 300
    assert stats.events_kept == min(300, most or 300)
    assert (stats.pillars, stats.pillars_dropped) == (1, 0)


@pytest.mark.parametrize("most", [1, 5, 191, 192, 193, None])
def test_at_most_so_many_pillars_of_a_window_are_kept(most: int | None) -> None:
    encoder = make_encoder(max_pillars=most)
    image = encoder(EventBatch.from_windows([window_of([(5, x, y, 1) for y in range(23) for x in range(31)])]))
    stats = encoder.last_stats
    assert stats is not None
    assert stats.pillars == 12 * 16
    assert stats.pillars - stats.pillars_dropped == min(192, most or 192)
    assert int((image != 0).any(1).sum()) == stats.pillars - stats.pillars_dropped


@any_rows
def test_the_counts_of_what_was_dropped_are_right(rows: list[Row]) -> None:
    encoder = make_encoder(pillar=4, **TIGHT)
    image = encoder(batch_of(rows, rows)).detach()
    stats = encoder.last_stats
    assert stats is not None
    crowd = Counter((x // 4, y // 4) for _, x, y, _ in rows)
    assert stats.events == 2 * len(rows)
    assert stats.pillars == 2 * len(crowd)
    assert stats.pillars_dropped == 2 * max(0, len(crowd) - 4)
    assert stats.pillars - stats.pillars_dropped == int((image != 0).any(1).sum())
    left_out = kept = 0
    for number in range(2):
        for (x, y), count in crowd.items():
            stays = bool((image[number, :, y, x] != 0).any())
            left_out += 0 if stays else count
            kept += min(count, 2) if stays else 0
    assert stats.events_dropped_with_pillars == left_out
    assert stats.events_kept == kept


def test_nothing_is_known_before_the_first_call() -> None:
    assert make_encoder().last_stats is None


def test_a_hundred_thousand_events_of_one_pixel_are_no_trouble() -> None:
    random = np.random.default_rng(0)
    t = np.sort(random.integers(0, 50_000, 100_000))
    batch = EventBatch.from_windows([window_of([(int(now), 3, 3, 1) for now in t], 50_000)])
    encoder = make_encoder(**UNCAPPED)
    got = outcome(encoder, batch)
    assert got.image.isfinite().all()
    wanted = outcome(encoder.double(), batch)
    torch.testing.assert_close(got.image.double(), wanted.image, rtol=1e-4, atol=1e-5)


# --- invariances ---


@few
@given(rows_of_events(), st.randoms(use_true_random=False), st.sampled_from([UNCAPPED, TIGHT]))
def test_encoding_is_independent_of_event_order_at_equal_times(
    rows: list[Row], random: Random, caps: dict[str, Any]
) -> None:
    encoder = make_encoder(pillar=4, **caps)
    shuffled = list(rows)
    random.shuffle(shuffled)
    one = encoder(batch_of(rows))
    stats = encoder.last_stats
    close(one, encoder(batch_of(shuffled)))
    assert encoder.last_stats == stats


@few
@given(rows_of_events((8, 8)), st.integers(0, 3), st.integers(0, 2), st.sampled_from([1, 2, 3, 4]))
def test_events_moved_by_whole_pillars_move_the_image(rows: list[Row], right: int, down: int, pillar: int) -> None:
    sensor = (8 + 2 * pillar, 8 + 3 * pillar)
    encoder = make_encoder(sensor, pillar=pillar, center_offsets=True, **UNCAPPED)
    with torch.no_grad():
        encoder.linear.weight[:, :2] = 0  # x and y are absolute
    moved = [(t, x + right * pillar, y + down * pillar, p) for t, x, y, p in rows]
    image, other = (encoder(batch_of(part, sensor=sensor)) for part in (rows, moved))
    close(torch.roll(image, (down, right), (2, 3)), other)


@few
@given(rows_of_events(), st.integers(1, 10**5), st.sampled_from([UNCAPPED, TIGHT]), st.integers(-(10**9), 10**9))
def test_a_window_stretched_with_its_events_gives_the_same_image(
    rows: list[Row], factor: int, caps: dict[str, Any], start: int
) -> None:
    encoder = make_encoder(moments=4, **caps)
    stretched = [(t * factor, x, y, p) for t, x, y, p in rows]
    image = encoder(EventBatch.from_windows([window_of(rows, 1000, start)]))
    stats = encoder.last_stats
    close(encoder(EventBatch.from_windows([window_of(stretched, 1000 * factor, start)])), image)
    assert encoder.last_stats == stats


@few
@given(rows_of_events(), st.integers(-(2**50), 2**50))
def test_the_clock_of_the_recording_does_not_matter_without_caps(rows: list[Row], start: int) -> None:
    encoder = make_encoder(**UNCAPPED)
    moved = encoder(EventBatch.from_windows([window_of(rows, 1000, start)]))
    assert torch.equal(moved, encoder(batch_of(rows)))


@few
@any_rows
def test_flipped_polarity_is_a_flipped_weight_and_nothing_else(rows: list[Row]) -> None:
    encoder = make_encoder(**UNCAPPED)
    flipped = [(t, x, y, 1 - p) for t, x, y, p in rows]
    image = encoder(batch_of(rows))
    with torch.no_grad():
        encoder.linear.weight[:, 3] *= -1
    close(encoder(batch_of(flipped)), image)
    with torch.no_grad():
        encoder.linear.weight[:, 3] = 0
    close(encoder(batch_of(flipped)), encoder(batch_of(rows)))


@any_option
def test_a_batch_of_many_is_many_batches_of_one(options: dict[str, Any]) -> None:
    encoder, pairs = make_encoder(**options), crowded_windows(windows=6)
    together = encoder(EventBatch.from_windows(pairs))
    for number, pair in enumerate(pairs):
        assert torch.equal(encoder(EventBatch.from_windows([pair]))[0], together[number])
    assert torch.equal(encoder(EventBatch.from_windows(pairs[::-1])), together.flip(0))


# --- determinism and seeds ---


@any_option
@pytest.mark.parametrize("training", [False, True])
def test_the_same_seed_gives_the_same_image_and_gradients_to_the_bit(options: dict[str, Any], training: bool) -> None:
    batch, made = crowded(), []
    for _ in range(2):
        encoder = make_encoder(**options)
        encoder.train(training)
        made.append(outcome(encoder, batch))
    assert torch.equal(made[0].image, made[1].image)
    assert made[0].stats == made[1].stats
    assert all(torch.equal(part, made[1].gradients[name]) for name, part in made[0].gradients.items())


def test_evaluation_chooses_alike_each_time_and_training_afresh() -> None:
    encoder, batch = make_encoder(**TIGHT), crowded()
    first = encoder(batch)
    assert all(torch.equal(encoder(batch), first) for _ in range(3))
    encoder.train()
    filled = {tuple((encoder(batch) != 0).any(1).flatten().tolist()) for _ in range(5)}
    assert len(filled) == 5
    encoder.eval()
    assert not torch.equal(make_encoder(**TIGHT, seed=1)(batch), make_encoder(**TIGHT, seed=2)(batch))


def test_without_caps_training_draws_nothing() -> None:
    encoder = make_encoder(**UNCAPPED).train()
    state = torch.get_rng_state()
    encoder(crowded())
    assert torch.equal(torch.get_rng_state(), state)
