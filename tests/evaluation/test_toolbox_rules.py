"""Frames, filters and times are those of Prophesee's toolbox: same digits on made-up and on real boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fate.boxes.labels import Labels
from fate.boxes.predictions import read_box_archive, read_predictions
from fate.evaluation.protocols import Protocol, named_protocol
from fate.evaluation.scores import Scores, evaluate_boxes

from ..conftest import REAL
from .oracle import BOX, boxes, coco_evaluation, coco_figures, moved, toolbox_frames

SEED = REAL / "boxes_1mpx" / "seed_gen4_1_subset.npz"
MPX_CLASSES = ("background", "pedestrian", "two wheeler", "car")
KNOWN = {
    "AP50:95": 0.391027,
    "AP50": 0.693323,
    "AP75": 0.417662,
    "AP50:95 medium": 0.332044,
    "AP50:95 large": 0.614589,
    "AR1": 0.409786,
    "AR10": 0.568614,
    "AR100": 0.578966,
}
KNOWN_BY_CLASS = {"pedestrian": 0.182336, "two wheeler": 0.552605, "car": 0.438140}


def labels_of(table: Any) -> Labels:
    corner = table["x"] + table["w"], table["y"] + table["h"]
    ids = table["class_id"].astype(np.int64)
    return Labels(table["t"], table["x"], table["y"], *corner, ids, score=table["class_confidence"])


def assert_equals_toolbox(
    scores: Scores, truth: dict[str, Any], found: dict[str, Any], tolerance: int, digits: float = 1e-9
) -> None:
    frames = [frame for name in truth for frame in toolbox_frames(truth[name], found[name], tolerance, 30, 10)]
    assert scores.counts.frames == len(frames)
    assert scores.counts.truth == sum(len(there) for there, _ in frames)
    assert scores.counts.predictions == sum(len(given) for _, given in frames)
    oracle = coco_evaluation(frames, 2)
    for name, value in coco_figures(oracle).items():
        assert scores[name] == pytest.approx(value, abs=digits), name


@pytest.mark.parametrize("tolerance", [0, 10_000, 50_000, 400_000])
def test_gen1_equals_the_toolbox_where_windows_overlap_and_times_are_off(tolerance: int) -> None:
    random = np.random.default_rng(tolerance)
    times = np.unique(random.integers(300_000, 2_000_000, 40))
    truth = {name: boxes(random, times, 3, 2) for name in ("a", "b")}
    shifts = [0, -10_000, 10_000, 10_001, 50_000, -50_001, 70_000]
    found = {name: moved(random, table, 3.0, shifts) for name, table in truth.items()}
    protocol = named_protocol("gen1", tolerance_us=tolerance, score_floor=0.0)
    assert_equals_toolbox(evaluate_boxes(truth, found, protocol), truth, found, tolerance)
    as_labels = [{name: labels_of(table) for name, table in tables.items()} for tables in (truth, found)]
    assert_equals_toolbox(evaluate_boxes(*as_labels, protocol), truth, found, tolerance, digits=1e-7)


def test_labels_and_arrays_of_whole_pixels_give_the_same_digits() -> None:
    random = np.random.default_rng(3)
    truth = {"a": boxes(random, range(600_000, 3_000_000, 60_000), 4, 2, whole=True)}
    found = {"a": moved(random, truth["a"], 3.0, [0])}
    for name in "xywh":
        found["a"][name] = np.rint(found["a"][name])
    protocol = named_protocol("gen1", score_floor=0.0)
    ours = evaluate_boxes({"a": labels_of(truth["a"])}, {"a": labels_of(found["a"])}, protocol)
    assert_equals_toolbox(ours, truth, found, 50_000)


def test_a_box_at_the_limit_counts_though_its_corners_were_rounded() -> None:
    random = np.random.default_rng(4)
    table = np.zeros(500, BOX)
    table["t"], table["w"], table["h"] = 1_000_000, 10, 40
    table["x"], table["y"] = random.uniform(0, 290, (2, 500))
    short = np.count_nonzero((table["x"] + table["w"]) - table["x"] < 10)
    assert short > 5
    scores = evaluate_boxes({"a": labels_of(table)}, {}, named_protocol("gen1"))
    assert scores.counts.truth == 500


def test_frames_whose_truth_is_filtered_away_are_left_out_or_count_as_the_protocol_says() -> None:
    truth = {"a": Labels([600_000, 700_000], [0, 0], [0, 0], [50, 5], [50, 5], [0, 0], classes=["car"])}
    found = {"a": Labels([700_000], [100], [100], [150], [150], [0], score=[0.9], classes=["car"])}
    rules = {"min_diagonal": 30.0, "min_side": 10.0, "tolerance_us": 0}
    left_out = evaluate_boxes(truth, found, Protocol(count_empty=False, **rules))
    counted = evaluate_boxes(truth, found, Protocol(count_empty=True, **rules))
    assert (left_out.counts.frames, left_out.false_positives.count) == (1, 0)
    assert (counted.counts.frames, counted.false_positives.count) == (2, 1)
    assert left_out.counts.truth_dropped["small"] == counted.counts.truth_dropped["small"] == 1


def test_labelled_empty_frames_lower_ap_where_they_count() -> None:
    truth = {"a": Labels([600_000], [0], [0], [50], [50], [0], labelled_us=[600_000, 700_000], classes=["car"])}
    found = {"a": Labels([600_000, 700_000], [0, 9], [0, 9], [50, 60], [50, 60], [0, 0], score=[0.5, 0.9])}
    with_empty = evaluate_boxes(truth, found, Protocol(tolerance_us=0))
    without = evaluate_boxes(truth, found, Protocol(tolerance_us=0, count_empty=False))
    assert without["AP50"] == pytest.approx(1)
    assert with_empty["AP50"] == pytest.approx(0.5)


def test_rows_of_classes_that_are_not_evaluated_make_a_frame_and_nothing_else() -> None:
    random = np.random.default_rng(5)
    truth = {"a": boxes(random, range(600_000, 3_000_000, 60_000), 3, 4)}
    found = {"a": moved(random, truth["a"], 2.0, [0])}
    scores = evaluate_boxes(truth, found, named_protocol("gen1", score_floor=0.0))
    frames = toolbox_frames(truth["a"], found["a"], 50_000, 30, 10)
    assert scores.counts.frames == len(frames)
    assert scores.counts.truth_dropped["unknown class"] > 0
    for name, value in coco_figures(coco_evaluation(frames, 2)).items():
        assert scores[name] == pytest.approx(value, abs=1e-9), name


@pytest.mark.skipif(not SEED.is_file(), reason="the folder of real boxes is not on this machine")
@pytest.mark.parametrize("kind", ["arrays", "labels"])
def test_real_boxes_of_1mpx_give_the_known_figures_to_six_digits(kind: str) -> None:
    truth, found = read_box_archive(SEED)
    if kind == "labels":
        truth = {name: labels_of(table) for name, table in truth.items()}
        found = dict(read_predictions(SEED, classes=MPX_CLASSES))
    scores = evaluate_boxes(truth, found, named_protocol("1mpx", tolerance_us=40_000), MPX_CLASSES, (360, 640))
    assert scores.counts.frames == 424
    assert {name: round(scores[name], 6) for name in KNOWN} == KNOWN
    assert {name: round(scores.by_class[name]["AP50:95"], 6) for name in KNOWN_BY_CLASS} == KNOWN_BY_CLASS
    assert scores["AP50:95 small"] is None
    assert "1280×720" in scores.notes[0]
    assert "640×360" in scores.notes[0]


@pytest.mark.skipif(not SEED.is_file(), reason="the folder of real boxes is not on this machine")
def test_a_window_that_holds_several_predictions_is_said_in_a_note() -> None:
    truth, found = read_box_archive(SEED)
    scores = evaluate_boxes(truth, found, named_protocol("1mpx"), MPX_CLASSES)
    assert any("418 of 424 frames hold predictions of several times" in note for note in scores.notes)
    nearest = evaluate_boxes(truth, found, named_protocol("1mpx").at(20), MPX_CLASSES)
    assert round(nearest["AP50:95"], 6) == KNOWN["AP50:95"]
