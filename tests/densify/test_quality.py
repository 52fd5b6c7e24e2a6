"""Precision, recall and overlap of labels: known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fate.boxes.labels import Labels
from fate.densify.quality import Quality
from tests.densify.standin import CLASSES, SENSOR, seen, straight_truth


def table(rows: list[tuple[int, float, float, int, float]], labelled: list[int] | None = None) -> Labels:
    """Rows (time, left edge, width, class, score), 40 px high."""
    t, x, w, c, s = (np.array(column) for column in zip(*rows, strict=True))
    return Labels(t, x, x * 0, x + w, x * 0 + 40, c.astype(int), np.arange(len(t)) * 0 + c.astype(int), s,
                  labelled_us=labelled, classes=CLASSES, sensor=SENSOR)  # fmt: skip


TRUTH = table([(0, 100, 40, 0, 1), (0, 200, 40, 1, 1), (1000, 100, 40, 0, 1), (1000, 200, 40, 1, 1)])


def test_the_truth_itself_is_perfect_at_any_time() -> None:
    truth = straight_truth()
    quality = Quality(CLASSES)
    quality.add(truth, truth, truth.labelled_us)
    for figures in quality.figures().values():
        assert (figures.precision, figures.recall, figures.median_iou, figures.above_half) == (1, 1, 1, 1)
        assert figures.labels == figures.truth > 0


def test_figures_of_a_known_case() -> None:
    labels = table(
        [(500, 110, 40, 0, 0.9), (500, 100, 40, 0, 0.5), (500, 10, 40, 0, 0.8), (500, 160, 40, 1, 0.7)], [500]
    )
    quality = Quality(CLASSES)
    quality.add(labels, TRUTH, np.array([500]))
    car, pedestrian = (quality.figures()[name] for name in CLASSES)
    assert car.precision == pytest.approx(1 / 3)  # the surer one of the two on the car, though it fits less well
    assert car.recall == 1
    assert car.median_iou == pytest.approx(0.6)  # overlaps of 0.6, 1 and 0
    assert car.above_half == pytest.approx(2 / 3)
    assert (pedestrian.precision, pedestrian.recall, pedestrian.above_half) == (0, 0, 0)


def test_truth_is_missed_where_nothing_is_labelled_and_times_outside_the_truth_do_not_count() -> None:
    quality = Quality(CLASSES)
    quality.add(Labels.empty(classes=CLASSES, sensor=SENSOR), TRUTH, np.array([-10, 0, 250, 1000, 1010]))
    figures = quality.figures()["car"]
    assert (figures.precision, figures.recall, figures.labels, figures.truth) == (None, 0, 0, 3)


def test_small_truth_and_small_labels_count_neither_way() -> None:
    truth = table([(0, 100, 40, 0, 1), (0, 200, 8, 0, 1)])
    labels = table([(0, 100, 40, 0, 1), (0, 199, 10, 0, 1), (0, 20, 8, 0, 1), (0, 60, 40, 0, 1)])
    strict, lenient = Quality(CLASSES), Quality(CLASSES, 30, 10)
    for quality in (strict, lenient):
        quality.add(labels, truth, np.array([0]))
    assert (strict.figures()["car"].labels, strict.figures()["car"].truth) == (4, 2)
    figures = lenient.figures()["car"]
    assert (figures.labels, figures.truth, figures.precision, figures.recall) == (2, 1, 0.5, 1)


def test_figures_of_labels_drawn_at_random_are_near_those_of_all() -> None:
    truth = straight_truth(seed=3)
    labels = seen(truth, np.arange(20_000, 3_000_000, 5_000), clutter=5.0)
    quality = Quality(CLASSES)
    quality.add(labels, truth, labels.labelled_us)
    every = quality.figures()
    quality.draw(10**9)
    assert quality.figures() == every
    quality.draw(1000)
    drawn = quality.figures()
    assert sum(figures.labels for figures in drawn.values()) == 1000 < sum(each.labels for each in every.values())
    for name, figures in every.items():
        assert drawn[name].precision == pytest.approx(figures.precision, abs=0.08)
        assert drawn[name].recall == pytest.approx(figures.recall, abs=0.12)
        assert drawn[name].recall <= 1


def test_curves_are_the_figures_of_what_is_left_above_each_threshold() -> None:
    truth = straight_truth(seed=3)
    labels = seen(truth, np.arange(20_000, 3_000_000, 20_000), clutter=5.0)
    quality = Quality(CLASSES)
    quality.add(labels, truth, labels.labelled_us)
    curves = quality.curves((0.0, 0.4, 0.7))
    for place, low in enumerate((0.0, 0.4, 0.7)):
        alone = Quality(CLASSES)
        alone.add(labels.select(labels.score >= low), truth, labels.labelled_us)
        for name, figures in alone.figures().items():
            assert curves[name]["precision"][place] == figures.precision
            assert curves[name]["recall"][place] == figures.recall
    recalls = [value or 0 for value in curves["car"]["recall"]]
    assert recalls == sorted(recalls, reverse=True)
    assert recalls[0] > recalls[-1]


def test_precision_at_a_recall_is_that_of_the_surest_labels_that_reach_it() -> None:
    quality = Quality(CLASSES)
    sure, wrong, weak = (0, 100, 40, 0, 0.9), (0, 10, 40, 0, 0.5), (1000, 100, 40, 0, 0.3)
    quality.add(table([sure, wrong, weak]), TRUTH, np.array([0, 1000]))
    assert [quality.precision_at("car", recall) for recall in (0.5, 1.0)] == pytest.approx([1, 2 / 3])
    assert quality.precision_at("pedestrian", 0.5) is None


def test_recordings_add_up() -> None:
    right, wrong = table([(0, 100, 40, 0, 1)]), table([(0, 10, 40, 0, 1)])
    quality = Quality(CLASSES)
    for labels in (right, right, wrong):
        quality.add(labels, replace(TRUTH), np.array([0]))
    figures = quality.figures()["car"]
    assert (figures.precision, figures.recall) == pytest.approx((2 / 3, 2 / 3))
