"""Calibrated scores: a score is the share of boxes that are right, and the threshold gives its precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fate.errors import FateError
from fate.evaluation.calibration import PRECISION, Matches, fit_calibration
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
