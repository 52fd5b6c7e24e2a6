"""SORT: agrees with the textbook, keeps identities where a person would, and is alike at any rate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.boxes import tracking
from fate.boxes.tracking import Tracker
from fate.errors import FateError
from tests.boxes.textbook import TextbookTracker, Track, box_of

Floats = NDArray[np.float64]


def box(cx: float, cy: float, width: float = 40, height: float = 30) -> list[float]:
    return [cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2]


def run(
    hz: float, seconds: float, objects: list[Callable[[float], list[float] | None]], **options: int
) -> list[list[int]]:
    """The track of each object at each time, -2 where it is not seen."""
    tracker = Tracker(**options)
    found = []
    for k in range(1, round(seconds * hz) + 1):
        seen = [(n, each) for n, of in enumerate(objects) if (each := of(k / hz)) is not None]
        ids = tracker.step(
            round(k * 1e6 / hz), [each for _, each in seen], np.ones(len(seen)), np.zeros(len(seen), int)
        )
        row = [-2] * len(objects)
        for (n, _), number in zip(seen, ids.tolist(), strict=True):
            row[n] = number
        found.append(row)
    return found


def scene(seed: int, hz: float, count: int = 7, seconds: float = 1.5) -> list[tuple[int, Floats, NDArray[np.int64]]]:
    """Objects of two classes that move, shrink, miss, cross and clutter."""
    random = np.random.default_rng(seed)
    centre, velocity = random.uniform(40, 260, (count, 2)), random.uniform(-150, 150, (count, 2))
    size, growth = random.uniform(15, 80, (count, 2)), random.uniform(-0.4, 0.4, count)
    frames = []
    for k in range(1, round(seconds * hz) + 1):
        t = k / hz
        sizes = size * (1 + growth * t)[:, None] + random.normal(0, 1, (count, 2))
        middles = centre + velocity * t + random.normal(0, 1, (count, 2))
        boxes = np.concatenate([middles - sizes / 2, middles + sizes / 2], axis=1)
        clutter = np.array([box(*random.uniform(20, 280, 2)) for _ in range(random.poisson(0.3))]).reshape(-1, 4)
        keep = random.random(count) > 0.15
        order = random.permutation(keep.sum() + len(clutter))
        classes = np.concatenate([np.arange(count)[keep] % 2, np.zeros(len(clutter), int)]).astype(np.int64)
        frames.append((round(k * 1e6 / hz), np.concatenate([boxes[keep], clutter])[order], classes[order]))
    return frames


@pytest.mark.parametrize("hz", [20, 80, 200])
@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_a_textbook_implementation(seed: int, hz: float) -> None:
    ours, theirs = Tracker(), TextbookTracker()
    for now, boxes, classes in scene(seed, hz, seconds=0.6 if hz == 200 else 1.5):
        assert ours.step(now, boxes, np.ones(len(boxes)), classes).tolist() == theirs.step(now, boxes, classes)
        expected = np.array([box_of(track.mean) for track in theirs.tracks]).reshape(-1, 4)
        order = [ours.track_ids.tolist().index(track.number) for track in theirs.tracks]
        np.testing.assert_allclose(ours.boxes[order], expected, rtol=1e-9, atol=1e-7)


def test_uncertainties_are_those_of_the_full_matrices() -> None:
    first, second = np.array(box(50, 60)), np.array(box(55, 59, 44, 31))
    track, filters = Track.begin(0, 0, 0, first), tracking.new_filters(first[None])
    for dt in (0.005, 0.0125, 0.3):
        track.predict(dt)
        tracking.predict_filters(filters, dt)
        track.correct(second, 4.0)
        tracking.update_filters(filters, np.array([0]), second[None], 4.0)
    diagonal = np.diag(track.covariance)
    np.testing.assert_allclose(filters[0, tracking.VARIANCE : tracking.COVARIANCE], diagonal[:4], rtol=1e-9)
    np.testing.assert_allclose(
        filters[0, tracking.COVARIANCE : tracking.VELOCITY_VARIANCE], np.diag(track.covariance[:3, 4:])
    )
    np.testing.assert_allclose(filters[0, tracking.VELOCITY_VARIANCE :], diagonal[4:], rtol=1e-9)
    np.testing.assert_allclose(filters[0, : tracking.VARIANCE], track.mean, rtol=1e-9)


@pytest.mark.parametrize("hz", [20, 40, 80, 100, 200])
def test_objects_that_cross_keep_their_numbers(hz: float) -> None:
    rows = run(hz, 2, [lambda t: box(50 + 100 * t, 100), lambda t: box(250 - 100 * t, 108)])
    assert rows[0] == rows[-1] == [0, 1]
    assert all(row == [0, 1] for row in rows)


@pytest.mark.parametrize("hz", [20, 40, 80, 100, 200])
def test_a_number_outlives_a_short_gap_in_motion_and_not_a_long_one(hz: float) -> None:
    def missing(gap: float) -> Callable[[float], list[float] | None]:
        return lambda t: None if 0.5 < t < 0.5 + gap else box(40 + 150 * t, 100)

    short, long = run(hz, 1.2, [missing(0.2)]), run(hz, 1.2, [missing(0.4)])
    assert {row[0] for row in short} == {0, -2}
    assert [long[0][0], long[-1][0]] == [0, 1]


def test_an_object_gets_a_number_when_it_comes_and_numbers_are_never_given_twice() -> None:
    rows = run(100, 2, [lambda t: box(60, 60), lambda t: box(200, 150) if 0.5 < t < 1 or t > 1.5 else None])
    assert [row[1] for row in (rows[0], rows[60], rows[-1])] == [-2, 1, 2]
    assert {row[0] for row in rows} == {0}


def test_a_track_dies_after_its_age_and_not_before() -> None:
    tracker = Tracker(max_age_us=100_000)
    tracker.step(0, [box(50, 50)], [1], [0])
    for now in (50_000, 100_000):
        tracker.step(now, [], [], [])
        assert tracker.track_ids.tolist() == [0]
    tracker.step(100_001, [], [], [])
    assert tracker.track_ids.tolist() == []


def test_classes_do_not_mix_even_where_boxes_are_the_same() -> None:
    tracker = Tracker()
    for k in range(20):
        place = box(50 + 2 * k, 50)
        assert tracker.step(k * 5000, [place, place], [1, 1], [1, 0]).tolist() == [0, 1]
    assert tracker.step(200_000, [box(90, 50)], [1], [2]).tolist() == [2]


def test_the_sum_of_overlaps_decides_not_the_best_pair() -> None:
    tracker = Tracker()
    tracker.step(0, [[0, 0, 100, 100], [60, 0, 160, 100]], [1, 1], [0, 0])
    # the first detection fits both tracks, the second only track 0: so track 1 gets the first, though it fits 0 better
    assert tracker.step(5_000, [[25, 0, 125, 100], [-50, 0, 50, 100]], [1, 1], [0, 0]).tolist() == [1, 0]


def test_boxes_that_overlap_too_little_are_other_objects() -> None:
    for min_overlap, expected in ((0.3, 0), (0.5, 1)):
        tracker = Tracker(min_overlap)
        tracker.step(0, [[0, 0, 100, 100]], [1], [0])
        assert tracker.step(5_000, [[40, 0, 140, 100]], [1], [0]).tolist() == [expected]  # IoU 0.43


@pytest.mark.parametrize("hz", [40, 100, 200])
def test_expectations_are_alike_at_any_rate(hz: float) -> None:
    def place(t: float) -> list[float]:
        return box(60 + 40 * t + 100 * t**2, 80, 40 + 20 * t, 30 + 15 * t)

    boxes = {}
    for rate in (20, hz):
        tracker = Tracker()
        for k in range(1, round(rate) + 1):
            tracker.step(round(k * 1e6 / rate), [place(k / rate)], [1], [0])
        tracker.step(1_100_000, [], [], [])
        boxes[rate] = tracker.boxes[0]
    truth = np.array(place(1.1))
    assert np.abs(boxes[20] - truth).max() < 3
    assert np.abs(boxes[hz] - boxes[20]).max() < 2  # of 60 px, 100 ms ahead of what was seen


@pytest.mark.parametrize("hz", [100, 200])
def test_an_error_that_lasts_50_ms_counts_alike_at_any_rate(hz: float) -> None:
    def pulled(rate: float) -> float:
        tracker = Tracker()
        for k in range(1, round(rate) + 1):
            t = k / rate
            tracker.step(round(k * 1e6 / rate), [box(60 + 40 * t + (8 if t > 0.951 else 0), 80)], [1], [0])
        return float(tracker.boxes[0, 0]) - box(100, 80)[0]

    assert 4 < pulled(20) < 8
    assert abs(pulled(hz) - pulled(20)) < 1.5


def test_weak_detections_may_go_on_with_a_track_but_not_begin_one() -> None:
    tracker = Tracker(begin_score=0.5)
    assert tracker.step(0, [box(50, 50), box(200, 50)], [0.9, 0.4], [0, 0]).tolist() == [0, -1]
    assert tracker.step(5_000, [box(51, 50), box(200, 50)], [0.2, 0.4], [0, 0]).tolist() == [0, -1]


def test_boxes_without_area_and_frames_without_boxes_do_no_harm() -> None:
    tracker = Tracker()
    assert tracker.step(0, [], [], []).shape == (0,)
    tracker.step(5_000, [[10, 10, 10, 30]], [1], [0])
    tracker.step(10_000, np.zeros((0, 4)), [], [])
    assert np.isfinite(tracker.boxes).all()


def test_ids_are_not_given_twice_after_a_restart() -> None:
    tracker = Tracker(begin_score=0.4)
    arguments = ([[10, 10, 30, 40], [50, 10, 60, 40]], [0.9, 0.9], [0, 0])
    assert tracker.step(5_000_000, *arguments).tolist() == [0, 1]
    tracker.reset()
    assert tracker.step(0, *arguments).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, [box(1, 1)], [1], [0]), "after one at 10 µs"),
        ((20, [[1, 2, 3]], [1], [0]), "of shapes"),
        ((20, [box(1, 1)], [1, 2], [0]), "scores"),
        ((20, [[0, 0, np.nan, 5]], [1], [0]), "not finite"),
    ],
)
def test_what_cannot_be_tracked_is_refused(arguments: tuple[object, ...], words: str) -> None:
    tracker = Tracker()
    tracker.step(10, [], [], [])
    with pytest.raises(FateError, match=words):
        tracker.step(*arguments)  # type: ignore[arg-type]
    with pytest.raises(FateError, match="overlap of 0"):
        Tracker(0)
