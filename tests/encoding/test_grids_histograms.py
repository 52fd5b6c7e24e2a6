"""Histograms against counting by hand, numpy's histograms, and the arithmetic the peers use."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray
from torch.nn import functional

from fate.encoding.grids import EvrtHistogram, StackedHistogram
from tests.encoding.test_grids import SENSOR, Row, batch_of, windows_of_events

HEIGHT, WIDTH = SENSOR


def single_precision_bin(since: int, span: int, bins: int) -> int:
    """RVT's formula in RVT's arithmetic."""
    share = np.float32(since) / np.float32(max(span, 1))
    return min(int(np.floor(share * np.float32(bins))), bins - 1)


def counted_by_hand(rows: list[Row], bins: int) -> NDArray[np.uint8]:
    """[2 · bins, H, W]; 8 bits that wrap."""
    counts = np.zeros((2 * bins, HEIGHT, WIDTH), np.uint8)
    rows = sorted(rows, key=lambda row: row[0])
    for t, x, y, p in rows:
        number = single_precision_bin(t - rows[0][0], rows[-1][0] - rows[0][0], bins)
        counts[p * bins + number, y, x] += np.uint8(1)
    return counts


@given(windows=windows_of_events())
def test_histograms_are_counts_in_eight_bits_clipped_at_ten(windows: list[tuple[int, list[Row]]]) -> None:
    windows = [(duration, rows) for duration, rows in windows if duration <= 500_000] or [(1, [])]
    with np.errstate(over="ignore"):
        expected = np.stack([np.minimum(counted_by_hand(rows, 10), 10) for _, rows in windows])
    assert np.array_equal(StackedHistogram(SENSOR)(batch_of(windows)).numpy(), expected)


@pytest.mark.parametrize(
    ("events", "wrapped", "clipped"), [(9, 9, 9), (10, 10, 10), (11, 11, 10), (255, 255, 10), (256, 0, 0), (257, 1, 1),
                                       (300, 44, 10), (520, 8, 8), (70_000, 112, 10)]
)  # fmt: skip
def test_counts_wrap_above_255_before_they_are_clipped(events: int, wrapped: int, clipped: int) -> None:
    batch = batch_of([(100, [(5, 3, 2, 1)] * events + [(99, 0, 0, 0)])])
    for expected, arguments in [
        (clipped, {}),
        (wrapped, {"count_cutoff": None}),
        (events, {"count_cutoff": None, "wrap": False}),
        (min(events, 10), {"wrap": False}),
    ]:
        encoder = StackedHistogram(SENSOR, **arguments)  # type: ignore[arg-type]
        for image in (encoder.encode_cpu(batch), encoder.encode_torch(batch)):
            assert image[0, 10, 2, 3] == expected
            assert image[0, 9, 0, 0] == 1
            assert image.count_nonzero() == (expected > 0) + 1


def test_off_comes_first_and_bins_go_from_first_to_last_event() -> None:
    rows = [(t, 0, 0, 0) for t in (1000, 1999, 2000, 10_999, 11_000)] + [(3500, 1, 0, 1)]
    image = StackedHistogram(SENSOR, bins=10)(batch_of([(50_000, rows)]))[0]
    assert image[:10, 0, 0].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]  # the last event would be bin 10: clamped
    assert image[10:, 0, 1].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("duration", [50_000, 5000, 10])
def test_bins_over_the_window_are_numpys_histogram(duration: int) -> None:
    random = np.random.default_rng(1)
    table = random.integers(0, (duration, WIDTH, HEIGHT, 2), (3000, 4))
    encoder = StackedHistogram(SENSOR, bins_over="window", wrap=False, count_cutoff=None)
    image = encoder(batch_of([(duration, [tuple(row) for row in table.tolist()])]))[0]
    edges = [np.arange(3), np.arange(11) * duration // 10, np.arange(HEIGHT + 1), np.arange(WIDTH + 1)]
    expected, _ = np.histogramdd(table[:, [3, 0, 2, 1]], edges)
    assert np.array_equal(image.numpy(), expected.reshape(20, HEIGHT, WIDTH))


@pytest.mark.parametrize("bins", [2, 3, 7, 10, 21])
def test_whole_numbers_give_the_bins_of_single_precision(bins: int) -> None:
    """At every edge of every bin, for spans up to half a second: the last µs before it and the first behind it."""
    span = np.concatenate([np.arange(1, 20_000), np.arange(20_000, 500_000, 17), np.arange(499_000, 500_001)])
    for number in range(1, bins):
        edge = -(-number * span // bins)
        for since in (edge - 1, edge):
            share = since.astype(np.float32) / span.astype(np.float32)
            theirs = np.minimum(np.floor(share * np.float32(bins)), bins - 1)
            assert np.array_equal(np.minimum(since * bins // span, bins - 1), theirs)


@pytest.mark.parametrize(("sensor", "step"), [((6, 9), 2), ((7, 8), 2), ((8, 8), 3), ((9, 10), 4), ((3, 3), 3)])
def test_downsampling_is_nearest_exact_interpolation(sensor: tuple[int, int], step: int) -> None:
    random = np.random.default_rng(step)
    table = random.integers(0, (50_000, sensor[1], sensor[0], 2), (2000, 4))
    batch = batch_of([(50_000, [tuple(row) for row in table.tolist()])], sensor)
    whole, small = StackedHistogram(sensor), StackedHistogram(sensor, downsample=step)
    expected = functional.interpolate(whole(batch), scale_factor=1 / step, mode="nearest-exact")
    assert torch.equal(small(batch), expected)
    assert torch.equal(small.encode_torch(batch), expected)
    assert small.stride == step


@given(windows=windows_of_events())
def test_evrt_histograms_are_plain_counts_with_on_first(windows: list[tuple[int, list[Row]]]) -> None:
    expected = np.zeros((len(windows), 20, HEIGHT, WIDTH), np.float32)
    for number, (_, rows) in enumerate(windows):
        first, behind = min([t for t, *_ in rows], default=0), max([t for t, *_ in rows], default=0) + 1
        edges = [first + Fraction(k * (behind - first), 10) for k in range(11)]  # low edge <= t < high edge
        for t, x, y, p in rows:
            expected[number, (1 - p) * 10 + bisect_right(edges, t) - 1, y, x] += 1
    assert np.array_equal(EvrtHistogram(SENSOR)(batch_of(windows)).numpy(), expected)


def test_evrt_halving_weighs_four_pixels_along_each_axis() -> None:
    """Bilinear with antialiasing at one half: weights 1, 3, 3, 1 of 8, away from the borders."""
    sensor = (12, 16)
    random = np.random.default_rng(0)
    table = random.integers(0, (1000, sensor[1], sensor[0], 2), (900, 4))
    batch = batch_of([(1000, [tuple(row) for row in table.tolist()])], sensor)
    whole, halved = EvrtHistogram(sensor)(batch)[0].numpy(), EvrtHistogram(sensor, downsample=2)(batch)[0].numpy()
    assert halved.shape == (20, 6, 8)
    weights = np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 64
    for row, column in [(1, 1), (2, 5), (4, 6)]:
        patch = whole[:, 2 * row - 1 : 2 * row + 3, 2 * column - 1 : 2 * column + 3]
        assert np.allclose(halved[:, row, column], (patch * weights).sum((1, 2)), atol=1e-6)
