"""The confusion matrix and the kinds of errors, against a frame that was made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fate.boxes.labels import Labels
from fate.evaluation.error_kinds import KINDS, ErrorKinds
from fate.evaluation.protocols import Protocol
from fate.evaluation.scores import evaluate_boxes

CLASSES = ("car", "pedestrian", "dog")
#: class, left edge; all 100 × 100
TRUTH = ((0, 0), (0, 200), (0, 400), (0, 600), (1, 800))
#: class, left edge, height, score
FOUND = (
    (0, 0, 100, 0.9),  # right
    (0, 0, 95, 0.8),  # a duplicate
    (1, 200, 100, 0.7),  # another class
    (0, 400, 30, 0.7),  # IoU 0.3
    (1, 600, 30, 0.7),  # IoU 0.3 and another class
    (0, 2000, 100, 0.7),  # on the background
    (1, 800, 100, 0.4),  # right, but below the threshold of the matrix
)


def boxes(rows: Sequence[Sequence[Any]]) -> Labels:
    class_id, left, height, score = (np.array(column) for column in zip(*rows, strict=True))
    zero, t_us = np.zeros(len(rows)), np.full(len(rows), 1_000_000)
    return Labels(
        t_us, left, zero, left + 100, height, class_id, score=score, labelled_us=[1_000_000], classes=CLASSES,
        sensor=(240, 3000),
    )  # fmt: skip


def errors_of(found: Sequence[Sequence[Any]], threshold: float = 0.5) -> ErrorKinds:
    truth = boxes([(class_id, left, 100, 1.0) for class_id, left in TRUTH])
    nothing = Labels.empty(labelled_us=[1_000_000], classes=CLASSES, sensor=(240, 3000))
    predictions = boxes(found) if found else nothing
    scores = evaluate_boxes(
        {"a": truth}, {"a": predictions}, Protocol(tolerance_us=0), threshold=threshold, errors=True
    )
    assert scores.errors is not None
    return scores.errors


def test_the_matrix_counts_every_box_and_every_prediction_once() -> None:
    found = errors_of(FOUND)
    assert found.confusion.tolist() == [
        # car, pedestrian, dog, missed
        [1, 1, 0, 2],
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [3, 1, 0, 0],  # background: the duplicate, IoU 0.3, the one at 2000; the one with both faults
    ]
    assert found.confusion[:3].sum() == len(TRUTH)
    assert found.confusion[:, :3].sum() == sum(score >= 0.5 for *_, score in FOUND)


def test_the_threshold_keeps_scores_that_are_equal_to_it() -> None:
    assert errors_of(FOUND, threshold=0.4).confusion[1, 1] == 1
    assert errors_of(FOUND, threshold=0.41).confusion[1, 1] == 0


def test_a_higher_score_of_another_class_takes_the_box() -> None:
    matrix = errors_of([(0, 0, 100, 0.6), (1, 0, 90, 0.8)]).confusion
    assert (matrix[0, 1], matrix[0, 0], matrix[3, 0]) == (1, 0, 1)


def test_each_wrong_prediction_has_one_cause() -> None:
    found = errors_of(FOUND)
    assert found.counts == {"Cls": 1, "Loc": 1, "Both": 1, "Dupe": 1, "Bkg": 1, "Miss": 1}
    assert all(0 <= gain <= 1 for gain in found.ap_gain.values())
    assert found.ap_gain["Cls"] > 0
    perfect = errors_of([(class_id, left, 100, 0.9) for class_id, left in TRUTH])
    assert set(perfect.counts.values()) == {0}
    assert list(perfect.ap_gain.values()) == pytest.approx([0] * len(KINDS))


def test_without_predictions_everything_is_missed() -> None:
    found = errors_of([])
    assert found.confusion[:, 3].tolist() == [4, 1, 0, 0]
    assert found.counts["Miss"] == 5


def test_json_names_rows_and_columns() -> None:
    values = json.loads(json.dumps(errors_of(FOUND).to_dict()))
    assert values["confusion"]["rows"] == [*CLASSES, "background"]
    assert values["confusion"]["columns"] == [*CLASSES, "missed"]
    assert values["tide"]["Dupe"]["count"] == 1
