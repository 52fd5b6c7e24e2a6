"""AP equals pycocotools on random data and at the edges, to 1e-9; curves are what AP is the mean of."""

from __future__ import annotations

import numpy as np
import pytest

from fate.evaluation.average_precision import RECALLS, SIZES, THRESHOLDS, AveragePrecision, average_precision
from fate.evaluation.labelled_frames import Frames, box_table
from fate.evaluation.protocols import Protocol

from .oracle import BOX, boxes, coco_evaluation, coco_figures, moved

CLASSES = ("a", "b", "c")
EXACT_TIMES = Protocol(tolerance_us=0, skip_us=0, score_floor=0.0)


def frames_of(truth: np.ndarray, found: np.ndarray) -> Frames:
    frames = Frames(EXACT_TIMES)
    frames.add(box_table(truth, CLASSES, "truth"), box_table(found, CLASSES, "found"))
    return frames


def assert_same(ours: AveragePrecision, truth: np.ndarray, found: np.ndarray, most: int = 100) -> None:
    frames = [(truth[truth["t"] == t], found[found["t"] == t]) for t in np.unique(truth["t"])]
    oracle = coco_evaluation(frames, len(CLASSES), most)
    for name, value in coco_figures(oracle).items():
        assert ours.overall[name] == pytest.approx(value, abs=1e-9), name
    for place, label in enumerate(CLASSES):
        for name, value in coco_figures(oracle, place).items():
            assert ours.by_class[label][name] == pytest.approx(value, abs=1e-9), (label, name)
        curve = oracle.eval["precision"][:, :, place, 0, -1]
        if (curve > -1).all():
            np.testing.assert_allclose(ours.curves[label].precision, curve, atol=1e-9)
            np.testing.assert_allclose(ours.curves[label].score, oracle.eval["scores"][:, :, place, 0, -1], atol=1e-9)
        else:
            assert label not in ours.curves


@pytest.mark.parametrize("seed", range(6))
def test_figures_equal_pycocotools_on_random_boxes_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = boxes(random, range(1, 40), 5, 3, whole=seed % 2 == 1)
    found = moved(random, truth, 1.0 + seed, [0])
    assert_same(average_precision(frames_of(truth, found), CLASSES), truth, found)


def test_figures_equal_pycocotools_in_crowded_frames() -> None:
    random = np.random.default_rng(7)
    truth = boxes(random, [1, 2], 20, 1)
    found = np.concatenate([moved(random, truth, 3.0, [0]) for _ in range(30)])
    found = found[np.argsort(found["t"], kind="stable")]
    assert np.bincount(found["t"]).max() > 200
    assert_same(average_precision(frames_of(truth, found), CLASSES), truth, found)
    assert_same(average_precision(frames_of(truth, found), CLASSES, max_detections=20), truth, found, most=20)


def test_figures_equal_pycocotools_for_a_class_without_truth() -> None:
    random = np.random.default_rng(8)
    truth = boxes(random, range(1, 20), 4, 2)
    found = moved(random, truth, 2.0, [0])
    found["class_id"] = random.integers(0, 3, len(found))
    ours = average_precision(frames_of(truth, found), CLASSES)
    assert_same(ours, truth, found)
    assert ours.by_class["c"]["AP50:95"] is None


def test_figures_equal_pycocotools_without_predictions() -> None:
    truth = boxes(np.random.default_rng(9), range(1, 9), 4, 3)
    ours = average_precision(frames_of(truth, np.zeros(0, BOX)), CLASSES)
    assert_same(ours, truth, np.zeros(0, BOX))
    assert ours.overall["AP50:95"] == 0.0


def test_without_truth_there_is_no_figure() -> None:
    found = boxes(np.random.default_rng(10), range(1, 9), 4, 3)
    ours = average_precision(frames_of(np.zeros(0, BOX), found), CLASSES)
    assert set(ours.overall.values()) == {None}
    assert ours.curves == {}


def test_perfect_predictions_have_all_figures_at_one() -> None:
    truth = boxes(np.random.default_rng(11), range(1, 90), 1, 3)  # two in a frame could take each other's place
    ours = average_precision(frames_of(truth, truth), CLASSES)
    assert_same(ours, truth, truth)
    assert {name for name, value in ours.overall.items() if value is not None and value < 1} <= {"AR1"}
    assert all(ours.overall[f"AP50:95 {size}"] == 1 for size in SIZES[1:])


def test_ap_is_the_mean_of_the_curves() -> None:
    random = np.random.default_rng(12)
    truth = boxes(random, range(1, 30), 4, 3)
    ours = average_precision(frames_of(truth, moved(random, truth, 3.0, [0])), CLASSES)
    means = [curve.precision.mean() for curve in ours.curves.values()]
    assert ours.overall["AP50:95"] == pytest.approx(np.mean(means), abs=1e-12)
    for name, curve in ours.curves.items():
        assert curve.precision.shape == (len(THRESHOLDS), len(RECALLS))
        assert (np.diff(curve.precision, axis=1) <= 0).all()
        assert curve.at(0.75).mean() == pytest.approx(ours.by_class[name]["AP75"], abs=1e-12)
