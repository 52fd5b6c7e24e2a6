"""Time to detection on made-up objects whose delays are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate import FateError, write_labels
from fate.boxes.labels import Labels
from fate.evaluation.protocols import Protocol
from fate.evaluation.time_to_detection import (
    DenseTruth,
    DetectionDelays,
    read_dense_truth,
    time_to_detection,
)
from fate.simulation.writing.recording_files import truth_bytes
from tests.damage import replace_member

CLASSES = ("car", "pedestrian")
STEP = 5000
DENSE = np.arange(1, 401) * STEP  # 2 s at 200 Hz


class Thing:
    """An object that moves at constant speed and comes into view bit by bit."""

    def __init__(
        self, track: int, first: int, last: int, x: float = 20.0, speed: float = 0.0, class_id: int = 0,
        hidden_us: int = 0, gap: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.track, self.class_id = track, class_id
        times = DENSE[np.searchsorted(DENSE, first) : np.searchsorted(DENSE, last, "right")]
        self.times = times[(times < gap[0]) | (times >= gap[1])]
        self.x, self.speed, self.first = x, speed, first
        self.half_us = first + hidden_us  # at least half of it is seen from here on

    def boxes(self, times: np.ndarray) -> np.ndarray:
        left = self.x + self.speed * (times - self.first) / 1e6
        return np.stack([left, np.full(len(times), 50.0), left + 40, np.full(len(times), 90.0)], 1)


def truth_of(*things: Thing) -> DenseTruth:
    times = np.concatenate([thing.times for thing in things])
    order = np.argsort(times, kind="stable")
    boxes = np.concatenate([thing.boxes(thing.times) for thing in things])[order]
    ids = np.concatenate([np.full(len(thing.times), thing.class_id) for thing in things])[order]
    tracks = np.concatenate([np.full(len(thing.times), thing.track) for thing in things])[order]
    seen = np.concatenate([np.where(thing.times >= thing.half_us, 1.0, 0.4) for thing in things])[order]
    labels = Labels(times[order], *boxes.T, ids, tracks, labelled_us=DENSE, classes=CLASSES)
    return DenseTruth(labels, seen.astype(np.float32))


def found_at(
    thing: Thing, times: list[int], score: float = 0.9, shift: float = 0.0, class_id: int | None = None
) -> Labels:
    t = np.array(times, np.int64)
    boxes = thing.boxes(t) + np.array([shift, 0, shift, 0])
    ids = np.full(len(t), thing.class_id if class_id is None else class_id)
    return Labels(t, *boxes.T, ids, score=np.full(len(t), score), classes=CLASSES)


def delays(truth: DenseTruth, found: Labels, **options: object) -> DetectionDelays:
    return time_to_detection({"a": truth}, {"a": found}, CLASSES, **options)  # type: ignore[arg-type]


def test_the_delay_runs_from_half_visible_to_the_first_correct_box() -> None:
    car = Thing(1, 300_000, 1_500_000, hidden_us=100_000)
    result = delays(truth_of(car), found_at(car, [350_000, 430_000, 480_000]))
    assert result.delay_ms.tolist() == [30.0]  # 350 ms was before half of it could be seen
    assert (result.missed, result.at_start, result.never_half) == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong", [{"score": 0.4}, {"shift": 14.0}, {"class_id": 1}], ids=["low score", "too far away", "another class"]
)
def test_boxes_that_are_not_correct_do_not_count(wrong: dict[str, float]) -> None:
    car = Thing(1, 300_000, 1_500_000)
    truth = truth_of(car)
    assert delays(truth, found_at(car, [400_000], **wrong)).missed == 1
    assert delays(truth, found_at(car, [400_000])).missed == 0
    assert delays(truth, found_at(car, [400_000], shift=13.0)).missed == 0


def test_boxes_before_or_after_the_life_of_an_object_do_not_count() -> None:
    car = Thing(1, 300_000, 600_000)
    assert delays(truth_of(car), found_at(car, [200_000, 605_000])).missed == 1
    assert delays(truth_of(car), found_at(car, [600_000])).delay_ms.tolist() == [300.0]


def test_objects_that_are_there_at_the_start_are_counted_apart() -> None:
    old, new = Thing(1, 0, 1_000_000), Thing(2, 500_000, 1_000_000, x=150)
    truth = truth_of(old, new)
    found = found_at(new, [520_000])
    result = delays(truth, found)
    assert (len(result), result.at_start, result.missed) == (1, 1, 0)


def test_an_object_that_never_is_half_visible_is_no_miss() -> None:
    shy = Thing(1, 300_000, 600_000, hidden_us=10**9)
    result = delays(truth_of(shy), found_at(shy, [400_000]))
    assert (len(result), result.missed, result.never_half) == (0, 0, 1)
    assert result.quantile_ms(0.5) is None
    assert result.found_within(100) is None


def test_a_prediction_between_two_times_of_truth_meets_the_box_in_between() -> None:
    fast = Thing(1, 300_000, 1_500_000, speed=4000.0)  # 20 px in 5 ms: half of the box
    at = 702_500
    assert delays(truth_of(fast), found_at(fast, [at])).delay_ms.tolist() == [402.5]


def test_a_hidden_object_cannot_be_found() -> None:
    car = Thing(1, 300_000, 1_500_000, gap=(400_000, 900_000))
    assert delays(truth_of(car), found_at(car, [500_000, 700_000])).missed == 1
    assert delays(truth_of(car), found_at(car, [500_000, 1_000_000])).delay_ms.tolist() == [700.0]


def test_a_prediction_speaks_for_the_object_that_it_overlaps_most() -> None:
    near, behind = Thing(1, 300_000, 900_000), Thing(2, 300_000, 900_000, x=28.0)
    result = delays(truth_of(near, behind), found_at(near, [400_000]))
    assert np.isnan(result.delay_ms).tolist() == [False, True]


def test_limits_of_size_delay_the_appearance() -> None:
    car = Thing(1, 300_000, 900_000)
    truth = truth_of(car)
    assert len(delays(truth, found_at(car, [400_000]), protocol=Protocol(min_side=41))) == 0
    assert len(delays(truth, found_at(car, [400_000]), protocol=Protocol(min_side=40))) == 1


@given(st.integers(2, 300), st.sampled_from([20, 40, 80, 100, 200]))
def test_a_perfect_detector_is_late_by_less_than_a_hop(start: int, hz: int) -> None:
    hop = round(1e6 / hz)
    car = Thing(1, start * STEP, start * STEP + 300_000, speed=30.0)
    times = np.arange(1, 2 * hz + 1) * hop
    times = times[(times >= car.first) & (times <= car.times[-1])]
    result = delays(truth_of(car), found_at(car, times.tolist()))
    expected = -(-car.first // hop) * hop - car.first
    assert result.delay_ms.tolist() == [expected / 1000]


def test_a_higher_rate_is_never_later() -> None:
    random = np.random.default_rng(0)
    things = [Thing(k, int(random.integers(2, 300)) * STEP, 2_000_000, x=50.0 * k, speed=5) for k in range(5)]
    truth = truth_of(*things)
    medians = []
    for hz in (20, 40, 100, 200):
        times = np.arange(1, 2 * hz + 1) * round(1e6 / hz)
        found = [found_at(thing, times[times >= thing.first].tolist()) for thing in things]
        columns = ("t_us", "x1", "y1", "x2", "y2", "class_id", "score")
        joined = Labels.from_unsorted({name: np.concatenate([getattr(f, name) for f in found]) for name in columns})
        medians.append(delays(truth, joined).quantile_ms(0.5))
    assert medians == sorted(medians, reverse=True)
    assert medians[-1] == 0


def test_figures_are_of_the_objects_found_and_misses_are_told_beside() -> None:
    things = [Thing(k, 500_000, 1_500_000, x=50.0 * k, class_id=k % 2) for k in range(4)]
    found = [found_at(thing, [500_000 + 50_000 * k]) for k, thing in enumerate(things[:3])]
    columns = ("t_us", "x1", "y1", "x2", "y2", "class_id", "score")
    joined = Labels.from_unsorted({name: np.concatenate([getattr(f, name) for f in found]) for name in columns})
    result = delays(truth_of(*things), joined)
    told = result.to_dict()
    assert (told["objects"], told["median_ms"], told["missed"], told["missed_share"]) == (4, 50.0, 1, 0.25)
    assert told["p90_ms"] == pytest.approx(90.0)
    assert told["found_within_100_ms"] == 0.75
    assert told["by_class"]["car"]["missed"] == 0
    assert told["by_class"]["pedestrian"]["missed"] == 1
    assert result.life_ms.tolist() == [1000.0] * 4


def test_recordings_add_up_and_one_without_predictions_is_missed() -> None:
    car = Thing(7, 300_000, 900_000)
    result = time_to_detection({"a": truth_of(car), "b": truth_of(car)}, {"b": found_at(car, [310_000])}, CLASSES)
    assert np.isnan(result.delay_ms).tolist() == [True, False]
    assert time_to_detection({}, {}, CLASSES).to_dict()["objects"] == 0


def test_truth_without_tracks_is_refused() -> None:
    labels = Labels([5000], [0], [0], [9], [9], [0])
    with pytest.raises(FateError, match="truth of a: .*track"):
        delays(DenseTruth(labels, np.ones(1, np.float32)), Labels.empty())
    with pytest.raises(FateError, match="2 visible shares"):
        DenseTruth(labels, np.ones(2, np.float32))


def test_the_truth_of_simulated_recordings_is_read_with_visible_shares(tmp_path: Path) -> None:
    truth = truth_of(Thing(1, 300_000, 900_000, hidden_us=50_000))
    (tmp_path / "sim_truth.npz").write_bytes(truth_bytes(truth.labels, truth.visible))
    back = read_dense_truth(tmp_path / "sim_truth.npz")
    assert back.labels == truth.labels
    np.testing.assert_array_equal(back.visible, truth.visible)
    for name in ("plain.npz", "plain_bbox.npy"):
        write_labels(tmp_path / name, truth.labels)
        assert (read_dense_truth(tmp_path / name).visible == 1).all()
    (tmp_path / "bad.npz").write_bytes(truth_bytes(truth.labels, truth.visible[:3]))
    with pytest.raises(FateError, match="visible shares"):
        read_dense_truth(tmp_path / "bad.npz")
    (tmp_path / "nested.npz").write_bytes((tmp_path / "sim_truth.npz").read_bytes())
    replace_member(tmp_path / "nested.npz", "visible.npy", (tmp_path / "plain.npz").read_bytes())
    with pytest.raises(FateError, match="visible"):
        read_dense_truth(tmp_path / "nested.npz")
