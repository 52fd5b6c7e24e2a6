"""Scores tell what was dropped and what is missing, refuse what cannot be compared, and count false positives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from fate import FateError
from fate.boxes.labels import Labels
from fate.evaluation.protocols import Protocol, named_protocol
from fate.evaluation.scores import evaluate_boxes

from .oracle import BOX

EVERY = np.arange(1, 41) * 50_000  # 20 Hz for 2 s
AT_20 = Protocol(name="test").at(20)


def boxes_at(times: object, x: float = 50.0, score: float = 0.9, looked: object = EVERY, class_id: int = 0) -> Labels:
    """One box of 40×40 at each time."""
    t = np.asarray(times, np.int64)
    left = np.full(len(t), x)
    return Labels(
        t, left, left, left + 40, left + 40, np.full(len(t), class_id), score=np.full(len(t), score),
        labelled_us=looked, classes=["car", "pedestrian"], sensor=(240, 304),
    )  # fmt: skip


def test_predictions_equal_to_the_truth_are_perfect_at_every_rate() -> None:
    truth = {"a": boxes_at(EVERY)}
    for hz in (20, 40, 80, 100, 200):
        looked = np.arange(1, 2 * hz + 1) * round(1e6 / hz)
        scores = evaluate_boxes(truth, {"a": boxes_at(looked, looked=looked)}, Protocol().at(hz))
        assert scores["AP50:95"] == pytest.approx(1)
        assert (scores.counts.frames, scores.false_positives.count) == (30, 0)


def test_everything_that_was_dropped_is_counted_once() -> None:
    truth = {"a": boxes_at(EVERY)}
    found = Labels.concatenate(
        [
            boxes_at(EVERY[:5], looked=EVERY[:5]),  # far in the skipped start
            boxes_at(EVERY[20:23], score=0.0001, looked=EVERY[20:23]),
            boxes_at(EVERY[30:], looked=EVERY[30:]),
        ]
    )
    scores = evaluate_boxes(truth, {"a": found}, AT_20)
    assert scores.counts.truth_dropped == {"early": 10, "low score": 0, "small": 0, "unknown class": 0}
    assert scores.counts.predictions_dropped == {"early": 5, "low score": 3, "small": 0, "unknown class": 0}
    assert scores.counts.given_predictions == len(found) == 8 + scores.counts.predictions
    assert "5 in the skipped start, 3 below the score floor" in str(scores)
    assert any("17 of 30 frames have no prediction" in note for note in scores.notes)


def test_the_first_label_that_counts_has_its_prediction_though_that_is_in_the_skipped_start() -> None:
    truth = {"a": boxes_at([510_000, 600_000], looked=[510_000, 600_000])}
    scores = evaluate_boxes(truth, {"a": boxes_at(EVERY)}, AT_20)
    assert scores["AP50:95"] == pytest.approx(1)
    assert scores.notes == ()


def test_small_boxes_are_dropped_on_both_sides() -> None:
    truth = {"a": boxes_at(EVERY)}
    scores = evaluate_boxes(truth, truth, Protocol(min_diagonal=57, tolerance_us=0))
    assert (scores.counts.truth, scores.counts.truth_dropped["small"], scores.counts.predictions_dropped["small"]) == (
        0,
        30,
        30,
    )
    assert evaluate_boxes(truth, truth, Protocol(min_diagonal=56, tolerance_us=0)).counts.truth == 30
    assert evaluate_boxes(truth, truth, Protocol(min_side=41, tolerance_us=0)).counts.truth == 0


def test_skipped_time_counts_from_the_start_of_the_recording() -> None:
    later = 1_600_000_000_000_000
    truth = {"a": boxes_at(EVERY + later, looked=EVERY + later)}
    assert evaluate_boxes(truth, truth, AT_20).counts.frames == 40
    assert evaluate_boxes(truth, truth, AT_20, starts_us={"a": later}).counts.frames == 30
    with pytest.raises(FateError, match="no start for recording 'a'"):
        evaluate_boxes(truth, truth, AT_20, starts_us={"b": 0})


def test_recordings_without_predictions_count_as_nothing_found_and_others_are_left_out() -> None:
    truth = {"a": boxes_at(EVERY), "b": boxes_at(EVERY)}
    scores = evaluate_boxes(truth, {"a": boxes_at(EVERY), "c": boxes_at(EVERY)}, AT_20)
    assert scores["AR100"] == 0.5
    assert any("without predictions, counted as nothing found: b" in note for note in scores.notes)
    assert any("without truth, left out: c" in note for note in scores.notes)


def test_what_cannot_be_compared_is_refused() -> None:
    truth = {"a": boxes_at(EVERY)}
    with pytest.raises(FateError, match="none of them is among"):
        evaluate_boxes(truth, {"b": boxes_at(EVERY)}, AT_20)
    with pytest.raises(FateError, match="same origin"):
        evaluate_boxes(truth, {"a": boxes_at(EVERY // 1000, looked=EVERY // 1000)}, AT_20)
    half = Labels.empty(EVERY, classes=["car", "pedestrian"], sensor=(120, 152))
    with pytest.raises(FateError, match="152×120"):
        evaluate_boxes(truth, {"a": half}, AT_20)
    cats = Labels(EVERY, *np.zeros((4, 40)), np.zeros(40, int), classes=["cat"])
    with pytest.raises(FateError, match="classes cat were given"):
        evaluate_boxes(truth, {"a": cats}, AT_20)
    with pytest.raises(FateError, match="named_protocol"):
        evaluate_boxes(truth, truth, "gen1")  # type: ignore[arg-type]
    with pytest.raises(FateError, match="threshold"):
        evaluate_boxes(truth, truth, AT_20, threshold=50)
    with pytest.raises(FateError, match="field h is missing"):
        evaluate_boxes(
            {"a": np.zeros(1, [(name, "f4") for name in ("x", "y", "w")] + [("t", "i8")])}, truth, AT_20, ["a"]
        )


def test_classes_are_matched_by_name() -> None:
    truth = {"a": boxes_at(EVERY, class_id=1)}
    times, zero = EVERY, np.zeros(40, int)
    other = Labels(times, *boxes_at(times).boxes.T, zero, classes=["pedestrian", "dog"])
    scores = evaluate_boxes(truth, {"a": other}, AT_20)
    assert scores["AP50:95"] == pytest.approx(1)
    dogs = Labels(times, *boxes_at(times).boxes.T, zero + 1, classes=["pedestrian", "dog"])
    scores = evaluate_boxes(truth, {"a": dogs}, AT_20)
    assert (scores["AP50:95"], scores.counts.predictions_dropped["unknown class"]) == (
        0,
        31,
    )  # 30 labels, and one before


def test_scores_are_plain_json_with_the_names_of_the_metrics() -> None:
    truth = {"a": boxes_at(EVERY)}
    scores = evaluate_boxes(truth, truth, AT_20)
    values = json.loads(scores.to_json(curves=True))
    assert values["metrics"]["AP50:95"] == pytest.approx(1)
    assert values["by_class"]["pedestrian"]["AP50"] is None
    assert values["protocol"]["hz"] == 20
    assert len(values["curves"]["car"]["precision"]) == 10
    assert "mAP" not in str(scores) + scores.to_json()
    with pytest.raises(FateError, match="AP50:95"):
        scores["mAP"]


def test_text_begins_with_the_protocol() -> None:
    truth = {"a": boxes_at(EVERY)}
    scores = evaluate_boxes(truth, truth, named_protocol("gen1").at(20))
    assert str(scores).startswith(str(scores.protocol))


def test_false_positives_per_minute_follow_from_those_of_a_frame() -> None:
    looked = np.arange(1, 401) * 5000
    truth = {"a": boxes_at(EVERY)}
    ghosts = boxes_at(looked, x=150, looked=looked)  # one in every frame, none on an object
    found = Labels.from_unsorted(
        {name: np.concatenate([getattr(part, name) for part in (ghosts, boxes_at(looked, looked=looked))]) for name in
         ("t_us", "x1", "y1", "x2", "y2", "class_id", "score")},
        labelled_us=looked,
    )  # fmt: skip
    wrong = evaluate_boxes(truth, {"a": found}, Protocol().at(200)).false_positives
    assert (wrong.count, wrong.found, wrong.missed, wrong.frames_with) == (30, 30, 0, 30)
    assert wrong.per_minute == pytest.approx(200 * 60)
    low = evaluate_boxes(truth, {"a": found}, Protocol().at(200), threshold=0.95).false_positives
    assert (low.count, low.missed) == (0, 30)


def test_at_rest_every_prediction_in_a_stretch_without_objects_counts() -> None:
    seconds = np.arange(0, 11) * 1_000_000
    truth = {"a": boxes_at(seconds[8:9], looked=seconds)}  # nothing until 7 s, nothing from 9 s
    looked = np.arange(0, 101) * 100_000
    found = {"a": boxes_at([300_000, 1_000_000, 1_100_000, 7_000_000, 7_500_000, 9_500_000], looked=looked)}
    wrong = evaluate_boxes(truth, found, Protocol().at(10)).false_positives
    assert wrong.rest_seconds == 6 + 1  # 1 s to 7 s, 9 s to 10 s: the first half second is skipped
    assert wrong.rest_count == 3  # 1.1, 7.0 and 9.5 s
    assert wrong.rest_per_minute == pytest.approx(3 / 7 * 60)
    assert (wrong.rest_frames, wrong.rest_frames_with) == (70, 3)


def test_at_rest_only_the_time_that_was_looked_at_counts() -> None:
    looked = np.arange(1, 401) * 5000
    truth = {"a": Labels.empty(looked, classes=["car", "pedestrian"])}
    some = looked[::50]  # predictions were kept at four times a second
    wrong = evaluate_boxes(truth, {"a": boxes_at(some, looked=some)}, Protocol().at(200)).false_positives
    assert wrong.rest_per_minute == pytest.approx(200 * 60)
    array = np.zeros(3, BOX)  # cannot tell when nothing was found: then it looked all the time
    array["t"], array["w"], array["h"], array["class_confidence"] = [900_000, 1_000_000, 1_100_000], 40, 40, 0.9
    wrong = evaluate_boxes(truth, {"a": array}, Protocol().at(200)).false_positives
    assert wrong.rest_seconds == pytest.approx(1.495)
    assert wrong.rest_per_minute == pytest.approx(3 / 1.495 * 60)


def test_labels_far_apart_say_nothing_about_the_time_between() -> None:
    looked = np.array([1_000_000, 3_000_000])
    truth = {"a": boxes_at([], looked=looked)}
    found = {"a": boxes_at([2_000_000], looked=[1_000_000, 2_000_000, 3_000_000])}
    wrong = evaluate_boxes(truth, found, Protocol().at(1)).false_positives
    assert wrong.rest_per_minute is None


def test_dense_truth_finds_rest_that_sparse_labels_miss() -> None:
    looked = np.arange(1, 401) * 5000
    truth = {"a": boxes_at([1_000_000], looked=[1_000_000])}
    dense = {"a": boxes_at(looked[looked <= 1_000_000], looked=looked)}
    found = {"a": boxes_at(EVERY)}
    wrong = evaluate_boxes(truth, found, AT_20, dense_truth=dense).false_positives
    assert wrong.rest_count == wrong.rest_frames == 20  # from 1.05 s to 2 s


def test_each_recording_is_read_once() -> None:
    class Lazy(Mapping[str, Labels]):
        def __init__(self) -> None:
            self.read: list[str] = []

        def __getitem__(self, name: str) -> Labels:
            self.read.append(name)
            return boxes_at(EVERY)

        def __contains__(self, name: object) -> bool:
            return name in ("a", "b")

        def __iter__(self) -> Iterator[str]:
            return iter(("a", "b"))

        def __len__(self) -> int:
            return 2

    truth, found = Lazy(), Lazy()
    assert evaluate_boxes(truth, found, AT_20, ["car", "pedestrian"])["AP50"] == pytest.approx(1)
    assert truth.read == found.read == ["a", "b"]


def test_no_truth_at_all_gives_no_figure() -> None:
    scores = evaluate_boxes({"a": Labels.empty(EVERY)}, {"a": boxes_at(EVERY)}, AT_20, ["car", "pedestrian"])
    assert scores["AP50:95"] is None
    assert scores.false_positives.count == 30
    assert evaluate_boxes({}, {}, AT_20, ["car"]).counts.frames == 0
