"""Smoothed tracks: straight ones stay, jitter is reduced, ground truth corrects them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.densify.smoothing import CHUNK, smooth, smooth_tracks
from fate.densify.tracklets import TrackletOptions
from fate.errors import FateError

STEP_US = 5_000
SMOOTH_US = 100_000


def moving(count: int, track: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Times, and boxes [T, 4] that drift at constant speed."""
    times = np.arange(1, count + 1, dtype=np.int64) * STEP_US
    left = 40.0 + 30 * track + times * 2e-4
    return times, np.stack([left, np.full(count, 60.0), left + 40, np.full(count, 90.0)], 1)


def labels_of(times: NDArray[np.int64], boxes: NDArray[np.float64], tracks: NDArray[np.int64]) -> Labels:
    order = np.argsort(times, kind="stable")
    x1, y1, x2, y2 = boxes[order].T
    zeros = np.zeros(len(times), np.int64)
    return Labels(times[order], x1, y1, x2, y2, zeros, track_id=tracks[order], classes=("car",), sensor=(240, 304))


def test_what_moves_straight_stays_where_it_is() -> None:
    times, boxes = moving(3 * CHUNK)  # over the seams of chunks
    tracks = labels_of(times, boxes, np.zeros(len(times), np.int64))
    assert np.abs(smooth_tracks(tracks, np.zeros(len(times), bool), SMOOTH_US) - boxes).max() < 1e-3


def test_smoothing_is_a_weighted_line_fit() -> None:
    generator = np.random.default_rng(0)
    times = np.unique(generator.integers(0, 2_000_000, 300))
    values = generator.normal(size=(len(times), 2))
    found = smooth(times, values, SMOOTH_US)
    for place in (0, 17, len(times) // 2, len(times) - 1):
        away = (times - times[place]) / SMOOTH_US
        weight = np.exp(-0.25 * away**2)  # polyfit squares it
        wanted = np.polyfit(away, values, 1, w=weight)[1]
        assert np.allclose(found[place], wanted, atol=1e-3)


def test_jitter_becomes_less() -> None:
    times, boxes = moving(200)
    seen = boxes + np.random.default_rng(1).normal(scale=2, size=boxes.shape)
    tracks = labels_of(times, seen, np.zeros(len(times), np.int64))
    made = smooth_tracks(tracks, np.zeros(len(times), bool), SMOOTH_US)
    assert np.abs(made - boxes).mean() < 0.4 * np.abs(seen - boxes).mean()
    assert np.array_equal(smooth_tracks(tracks, np.zeros(len(times), bool), 0), tracks.boxes)


def test_a_constant_error_goes_wherever_truth_confirms_the_track() -> None:
    times, boxes = moving(60)
    true = np.zeros(60, bool)
    true[[20, 40]] = True
    seen = boxes + np.where(true[:, None], 0, [-6.0, 2.0, 9.0, 5.0])
    made = smooth_tracks(labels_of(times, seen, np.zeros(60, np.int64)), true, SMOOTH_US)
    assert np.abs(made - boxes).max() < 0.1
    assert np.array_equal(made[true], seen[true].astype(np.float32))  # truth itself is never touched


def test_an_error_that_changes_is_followed_between_two_annotated_times() -> None:
    times, boxes = moving(61)
    true = np.zeros(61, bool)
    true[[10, 50]] = True
    drift = np.linspace(0, 12, 61)[:, None] * [1.0, 0, 1.0, 0]
    made = smooth_tracks(labels_of(times, boxes + np.where(true[:, None], 0, drift), np.zeros(61, np.int64)), true, 0)
    assert np.abs(made[10:51] - boxes[10:51]).max() < 1e-3
    assert np.abs((made - boxes)[0]).max() == pytest.approx(2, abs=1e-3)  # before the first: its error as it is


def test_tracks_do_not_touch_each_other() -> None:
    parts = [moving(80, track) for track in range(3)]
    times, boxes = (np.concatenate(column) for column in zip(*parts, strict=True))
    ids = np.repeat(np.arange(3), 80)
    seen = boxes + np.random.default_rng(2).normal(scale=1, size=boxes.shape)
    true = np.zeros(240, bool)
    together = labels_of(times, seen, ids)
    made = smooth_tracks(together, true, SMOOTH_US)
    for track in range(3):
        alone = labels_of(times[ids == track], seen[ids == track], ids[ids == track])
        assert np.allclose(made[together.track_id == track], smooth_tracks(alone, true[:80], SMOOTH_US), atol=1e-4)


def test_one_detection_and_none_stay() -> None:
    times, boxes = moving(1)
    one = labels_of(times, boxes, np.zeros(1, np.int64))
    assert np.array_equal(smooth_tracks(one, np.zeros(1, bool), SMOOTH_US), one.boxes)
    none = one.select(np.zeros(1, bool))
    assert smooth_tracks(none, np.zeros(0, bool), SMOOTH_US).shape == (0, 4)


def test_smoothing_backwards_is_refused() -> None:
    with pytest.raises(FateError, match="-1 µs"):
        TrackletOptions(smooth_us=-1)
