"""Voxels, surfaces and tokens against their definitions, one event at a time, and GET's published tokens."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fate.encoding.grids import GroupTokens, TimeSurface, ToreVolume, VoxelGrid
from tests.encoding.test_grids import SENSOR, Row, batch_of, windows_of_events

HEIGHT, WIDTH = SENSOR
REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "golden_get_tokens.npz"


def voxels_by_hand(duration: int, rows: list[Row], bins: int, signed: bool) -> NDArray[np.float64]:
    """[1 or 2, bins, H, W]: each bin gets max(0, 1 - distance in bins) of each event, in exact arithmetic."""
    sums: dict[tuple[int, int, int, int], Fraction] = {}
    for t, x, y, p in rows:
        for number in range(bins):
            distance = abs(Fraction(t * (bins - 1), duration) - number)
            if distance < 1:
                cell = (0 if signed else p, number, y, x)
                sums[cell] = sums.get(cell, Fraction(0)) + (1 - distance) * (-1 if signed and p == 0 else 1)
    voxels = np.zeros((1 if signed else 2, bins, HEIGHT, WIDTH))
    for cell, total in sums.items():
        voxels[cell] = float(total)
    return voxels


@given(windows=windows_of_events(max_windows=3), bins=st.sampled_from([1, 2, 5]), signed=st.booleans())
def test_voxels_share_events_between_the_nearest_bins(
    windows: list[tuple[int, list[Row]]], bins: int, signed: bool
) -> None:
    encoder = VoxelGrid(SENSOR, bins, "signed" if signed else "separate")
    image = encoder(batch_of(windows))
    expected = np.stack([voxels_by_hand(duration, rows, bins, signed) for duration, rows in windows])
    assert np.allclose(image.numpy(), expected.reshape(image.shape), rtol=1e-6, atol=0)


@given(windows=windows_of_events())
def test_the_shares_of_an_event_add_up_to_one(windows: list[tuple[int, list[Row]]]) -> None:
    image = VoxelGrid(SENSOR, bins=6, polarity="separate")(batch_of(windows))
    assert np.allclose(image.sum((1, 2, 3)), [len(rows) for _, rows in windows], rtol=1e-5)


def test_an_event_at_a_bins_moment_counts_there_alone() -> None:
    image = VoxelGrid(SENSOR, bins=5)(batch_of([(40_000, [(10_000, 1, 2, 1), (15_000, 3, 2, 0)])]))[0]
    assert image[:, 2, 1].tolist() == [0, 1, 0, 0, 0]
    assert image[:, 2, 3].tolist() == [0, -0.5, -0.5, 0, 0]


@given(windows=windows_of_events(), factor=st.integers(2, 9))
def test_voxels_of_a_stretched_window_are_the_same(windows: list[tuple[int, list[Row]]], factor: int) -> None:
    stretched = [(d * factor, [(t * factor, x, y, p) for t, x, y, p in rows]) for d, rows in windows]
    encoder = VoxelGrid(SENSOR, bins=4)
    assert torch.allclose(encoder(batch_of(windows)), encoder(batch_of(stretched)), rtol=1e-6, atol=0)


@given(windows=windows_of_events(), tau_us=st.sampled_from([0.5, 300.0, 50_000.0, 1e9]))
def test_a_time_surface_fades_from_the_last_event_of_each_polarity(
    windows: list[tuple[int, list[Row]]], tau_us: float
) -> None:
    expected = np.zeros((len(windows), 2, HEIGHT, WIDTH))
    for number, (duration, rows) in enumerate(windows):
        for t, x, y, p in rows:
            expected[number, p, y, x] = max(expected[number, p, y, x], math.exp(-(duration - t) / tau_us))
    image = TimeSurface(SENSOR, tau_us)(batch_of(windows)).numpy()
    assert np.allclose(image, expected, rtol=1e-6, atol=1e-30)
    assert 0 <= image.min() <= image.max() <= 1


@given(windows=windows_of_events(), depth=st.integers(1, 4))
def test_tore_keeps_the_log_ages_of_the_last_events_newest_first(
    windows: list[tuple[int, list[Row]]], depth: int
) -> None:
    encoder = ToreVolume(SENSOR, depth)
    expected = np.full((len(windows), 2, depth, HEIGHT, WIDTH), math.log(5_000_001 / 151))
    for number, (duration, rows) in enumerate(windows):
        ages: dict[tuple[int, int, int], list[int]] = {}
        for t, x, y, p in rows:
            ages.setdefault((1 - p, y, x), []).append(duration - t)
        for (plane, y, x), all_ages in ages.items():
            for rank, age in enumerate(sorted(all_ages)[:depth]):
                expected[number, plane, rank, y, x] = max(0, math.log(min(age, 5_000_000) + 1) - math.log(151))
    image = encoder(batch_of(windows)).numpy()
    assert np.allclose(image, expected.reshape(image.shape), rtol=1e-6, atol=1e-6)


def test_tore_is_zero_for_now_and_largest_for_nothing() -> None:
    encoder = ToreVolume(SENSOR, depth=2)
    image = encoder(batch_of([(10_000_000, [(9_999_900, 0, 0, 1), (100, 1, 0, 1)])]))[0]
    assert image[:, 0, 0].tolist() == [0, *[np.float32(encoder.empty_value)] * 3]
    assert bool((image[:, 0, 1] == np.float32(encoder.empty_value)).all())  # older than max_us is as good as nothing
    assert encoder.empty_value == pytest.approx(10.4077, abs=1e-4)


@given(windows=windows_of_events(max_windows=2), groups=st.sampled_from([2, 6, 24]), patch=st.sampled_from([1, 3, 4]))
def test_tokens_count_events_and_shares_of_time(windows: list[tuple[int, list[Row]]], groups: int, patch: int) -> None:
    encoder = GroupTokens(SENSOR, groups, patch)
    shape = (len(windows), groups // 2, 2, 2, patch, patch, -(-HEIGHT // patch), -(-WIDTH // patch))
    expected = np.zeros(shape)
    for number, (_, rows) in enumerate(windows):
        first, last = min([t for t, *_ in rows], default=0), max([t for t, *_ in rows], default=0)
        for t, x, y, p in rows:
            bin_of_t = math.floor(Fraction((t - first) * (groups // 2), last - first + 1))
            cell = (number, bin_of_t, p), (y % patch, x % patch, y // patch, x // patch)
            expected[*cell[0], 0, *cell[1]] += 1
            expected[*cell[0], 1, *cell[1]] += (t - first) / (last - first + 1e-4)
    image = encoder(batch_of(windows)).numpy()
    assert image.shape == (len(windows), groups * 2 * patch * patch, *shape[-2:])
    assert np.allclose(image, expected.reshape(image.shape), rtol=1e-6, atol=0)


def published_events() -> list[Row]:
    """The 6000 events whose tokens were computed by GET's public code."""
    seed = int.from_bytes(hashlib.sha256(b"events").digest()[:8], "little")
    random = np.random.Generator(np.random.PCG64(seed))
    t = np.sort(random.integers(0, 50_000, 6000))
    x, y, p = (random.integers(0, most, 6000) for most in (128, 128, 2))
    return [tuple(row) for row in np.stack([t, x, y, p], 1).tolist()]


@pytest.mark.parametrize(
    ("groups", "mean", "deviation", "largest"), [(12, 0.02302122, 0.14339761, 3), (24, 0.01151061, 0.10134252, 3)]
)
def test_tokens_are_those_of_gets_public_code(groups: int, mean: float, deviation: float, largest: float) -> None:
    image = GroupTokens((128, 128), groups)(batch_of([(50_000, published_events())], (128, 128))).double()
    assert image.mean().item() == pytest.approx(mean, abs=1e-8)
    assert image.std(correction=0).item() == pytest.approx(deviation, abs=1e-8)
    assert image.max().item() == largest
    if REFERENCE.is_file():
        name = {12: "tokens", 24: "tokens24"}[groups]
        with np.load(REFERENCE) as stored:
            assert np.allclose(image.sum((0, 2, 3)), stored[f"{name}_sum_per_channel"], rtol=1e-6)
            every = -(-image.numel() // 8192)
            assert np.allclose(image.flatten()[::every], stored[name], rtol=1e-6, atol=1e-6)
