"""Calibrated scores: a score is the share of boxes that are right, and the threshold gives its precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate.boxes.iou import is_duplicate
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.evaluation.calibration import PRECISION, Matches, fit_calibration
from fate.evaluation.protocols import Protocol, named_protocol
from fate.evaluation.scores import evaluate_boxes
from fate.inference.loading import load_detector
from fate.inference.score_calibration import THRESHOLD, ScoreCalibration
from fate.inference.stream import StreamingDetector
from fate.models.checkpoints import add_facts, save_model
from tests.conftest import make_events
from tests.inference.streams import small_detector


def overconfident(seed: int, count: int = 40_000) -> Matches:
    """Predictions of which only the square of their confidence is right."""
    random = np.random.default_rng(seed)
    confidence = random.random(count)
    return Matches(confidence, random.random(count) < confidence**2)


def labels(rows: list[tuple[int, list[float], int, float]], times: list[int]) -> Labels:
    """Labels of (time, box, class, score)."""
    t_us, boxes, class_ids, scores = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    return Labels(t_us, *np.transpose(boxes), class_ids, score=scores, labelled_us=times, classes=("car", "dog"))


def overlap(one: list[float], other: list[float]) -> float:
    """IoU of two boxes x1, y1, x2, y2."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return common / (sum(areas) - common)


def judge(truth: list[Any], found: list[Any], protocol: Protocol) -> list[tuple[float, bool]]:
    """What calibration should see, box by box: score and whether it is right."""

    def is_large(box: list[float]) -> bool:
        width, height = box[2] - box[0], box[3] - box[1]
        return min(width, height) >= protocol.min_side and bool(np.hypot(width, height) >= protocol.min_diagonal)

    judged = []
    for key in sorted({(row[0], row[2]) for row in found}):
        here = sorted((row for row in found if (row[0], row[2]) == key and is_large(row[1])), key=lambda row: -row[3])
        shown: list[Any] = []
        for row in here:
            if all(overlap(row[1], better[1]) <= 0.45 for better in shown):
                shown.append(row)
        free = [row[1] for row in truth if (row[0], row[2]) == key]
        for wants_large in (True, False):
            left = []
            for row in shown:
                near = [box for box in free if is_large(box) == wants_large and overlap(box, row[1]) >= 0.5]
                if near:
                    free.remove(max(near, key=lambda box: overlap(box, row[1])))
                    judged += [(row[3], True)] if wants_large else []
                else:
                    left.append(row)
            shown = left
        judged += [(row[3], False) for row in shown]
    return sorted(judged)


@pytest.mark.parametrize("seed", range(4))
def test_duplicates_and_boxes_on_objects_that_are_too_small_are_not_judged(seed: int) -> None:
    random, protocol = np.random.default_rng(seed), named_protocol("sim").at(20)
    times = list(range(550_000, 2_000_000, 50_000))
    truth: list[Any] = []
    found: list[Any] = []
    for t_us in times:
        for _ in range(random.integers(1, 6)):
            x, y = random.uniform(0, 250), random.uniform(0, 180)
            box, kind = [x, y, x + random.uniform(6, 60), y + random.uniform(6, 60)], int(random.integers(2))
            truth.append((t_us, np.float32(box).tolist(), kind, 1.0))
            for _ in range(random.integers(0, 5)):
                moved = np.float32(box + random.normal(0, 3, 4)).tolist()
                found.append((t_us, moved, kind, float(np.float32(random.uniform(0.01, 1)))))
    for row in found:
        row[1][2:] = [max(high, low + 1) for low, high in zip(row[1][:2], row[1][2:], strict=True)]
    scores = evaluate_boxes({"a": labels(truth, times)}, {"a": labels(found, times)}, protocol)
    expected = judge(truth, found, protocol)
    assert sorted(zip(*map(np.ndarray.tolist, scores.matches), strict=True)) == expected
    assert 0 < len(expected) < scores.counts.predictions
    assert {right for _, right in expected} == {True, False}


def test_a_duplicate_suppresses_nothing() -> None:
    boxes = np.array([[0, 0, 10, 10], [3, 0, 10, 10], [6, 0, 10, 10], [3, 0, 10, 10]], np.float64)
    groups = np.array([5, 5, 5, 2])
    assert is_duplicate(groups, boxes, np.array([0.9, 0.8, 0.7, 0.1]), 0.45).tolist() == [False, True, False, False]
    assert is_duplicate(groups, boxes, np.array([0.5, 0.8, 0.7, 0.1]), 0.45).tolist() == [True, False, True, False]
    assert not is_duplicate(groups[:0], boxes[:0], np.zeros(0), 0.45).size


def test_a_score_is_the_share_that_is_right() -> None:
    calibration, _ = fit_calibration([overconfident(0)])
    fresh = overconfident(1)
    scores = calibration(fresh.confidence)
    for mean, share, count in Matches(scores, fresh.right).reliability():
        assert count > 500
        assert share == pytest.approx(mean, abs=0.03)
    assert (np.diff(scores[np.argsort(fresh.confidence)]) >= 0).all()


def test_the_threshold_gives_the_precision() -> None:
    calibration, said = fit_calibration([overconfident(0), overconfident(2)])
    fresh = overconfident(1)
    kept = calibration(fresh.confidence) >= calibration.threshold
    assert fresh.right[kept].mean() == pytest.approx(PRECISION, abs=0.02)
    assert "precision 0.90" in said


def test_a_detector_that_is_never_precise_is_told() -> None:
    random = np.random.default_rng(0)
    confidence = random.random(5_000)
    calibration, said = fit_calibration([Matches(confidence, random.random(5_000) < 0.3 * confidence)])
    assert "reached nowhere" in said
    assert calibration(np.ones(1))[0] < 0.5


def test_many_boxes_of_low_confidence_leave_the_curve_of_the_others_as_it_is() -> None:
    random = np.random.default_rng(0)
    low = 0.01 * random.random(1_000_000) ** 2  # as detectors report them: nearly all boxes are of this kind
    parts = [overconfident(0), Matches(low, random.random(len(low)) < 0.004)]
    calibration, _ = fit_calibration(parts)
    fresh = overconfident(1)
    high = fresh.confidence > 0.3
    for mean, share, _ in Matches(calibration(fresh.confidence[high]), fresh.right[high]).reliability():
        assert share == pytest.approx(mean, abs=0.03)


@pytest.mark.parametrize("right", [0, 50, 500])
def test_too_few_or_uniform_predictions_are_refused(right: int) -> None:
    count = max(right, 100 if right else 500)
    with pytest.raises(FateError, match="cannot calibrate"):
        fit_calibration([Matches(np.linspace(0, 1, count), np.arange(count) < right)])


def test_confidences_and_scores_are_inverse_and_stay_in_range() -> None:
    calibration, _ = fit_calibration([overconfident(0)])
    for chance in (0.05, 0.3, 0.8):
        assert calibration(np.array([calibration.confidence(chance)]))[0] == pytest.approx(chance, abs=1e-6)
    assert calibration(np.array([0.0, 1.0])).tolist() == pytest.approx([0, 1], abs=0.1)
    with pytest.raises(FateError, match="expected rising numbers"):
        ScoreCalibration((0, 0.5, 0.4, 1), (0, 0.1, 0.2, 1))


def test_streams_report_calibrated_scores_and_take_the_threshold_of_the_weights(tmp_path: Path) -> None:
    model = small_detector()
    sensor = tuple(model.sensor)
    events = make_events(2_000, sensor)
    plain = StreamingDetector(model)
    assert plain.calibration.threshold == THRESHOLD
    raw = [frame for frame in plain.open_stream(sensor, 20, threshold=0.05).feed(events) if len(frame)]
    assert raw
    file = tmp_path / "w.safetensors"
    save_model(model, file)
    curve = ScoreCalibration((0.0, 0.5, 1.0), (0.0, 0.9, 1.0), 0.09)  # a score of 0.09 is a confidence of 0.05
    add_facts(file, {"calibration": curve.to_dict()})
    found = [frame for frame in load_detector(file).open_stream(sensor, 20).feed(events) if len(frame)]
    assert [len(frame) for frame in found] == [len(frame) for frame in raw]
    confidences = np.concatenate([frame.scores for frame in raw])
    np.testing.assert_allclose(np.concatenate([frame.scores for frame in found]), curve(confidences), rtol=1e-5)
    assert (curve(confidences) != confidences).all()
