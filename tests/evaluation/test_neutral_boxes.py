"""Predictions on neutral boxes are neither right nor wrong: every figure is as if they had not been made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.evaluation.protocols import Protocol
from fate.evaluation.scores import Scores, evaluate_boxes
from fate.evaluation.time_to_detection import DenseTruth, time_to_detection

CLASSES = ("car", "dog")
TIMES = np.arange(11, 41) * 50_000
AT_20 = Protocol(name="test").at(20)
#: (time, box, class, score)
Row = tuple[int, list[float], int, float]


def table(rows: list[Row], names: tuple[str, ...] = CLASSES, looked: NDArray[np.int64] = TIMES) -> Labels:
    columns = list(zip(*sorted(rows, key=lambda row: row[0]), strict=True)) or [(), np.zeros((0, 4)), (), ()]
    t_us, boxes, class_ids, scores = columns
    corners = np.reshape(np.array(boxes, np.float64), (-1, 4)).T
    times = np.array(t_us, np.int64)
    return Labels(times, *corners, np.array(class_ids, np.int64), score=np.array(scores, np.float64),
                  labelled_us=looked, classes=names)  # fmt: skip


def drawn(seed: int) -> tuple[list[Row], list[Row], list[Row]]:
    """Objects, neutral boxes, and predictions on objects, on neutral boxes and elsewhere."""
    random = np.random.default_rng(seed)

    def box() -> list[float]:
        x, y, width, height = random.uniform((0, 0, 15, 15), (200, 150, 90, 80))
        return [float(x), float(y), float(x + width), float(y + height)]

    truth: list[Row] = []
    neutral: list[Row] = []
    found: list[Row] = []
    for t in TIMES.tolist():
        truth += [(t, box(), int(random.integers(2)), 1.0) for _ in range(random.integers(4))]
        neutral += [(t, box(), 2, 1.0) for _ in range(random.integers(3))]
        for _, near, kind, _ in [row for row in truth + neutral if row[0] == t] * 2:
            moved = (np.array(near) + random.normal(0, 5, 4)).tolist()
            shape = [min(moved[0], moved[2]), min(moved[1], moved[3]), max(moved[0], moved[2]), max(moved[1], moved[3])]
            found.append((t, shape, kind % 2, float(random.uniform(0.01, 1))))
        found += [(t, box(), int(random.integers(2)), float(random.uniform(0.01, 1))) for _ in range(4)]
    return truth, neutral, found


def overlap(one: list[float], other: list[float]) -> tuple[float, float]:
    """IoU of two boxes, and the share of the first that lies in the other."""
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0.0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0.0)
    own, their = ((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (own + their - width * height), width * height / own


def without_neutral(truth: list[Row], neutral: list[Row], found: list[Row]) -> list[Row]:
    """The predictions that count: matched ones, best first, and those of which less than half is neutral."""
    taken: set[int] = set()
    dropped = set()
    for number in sorted(range(len(found)), key=lambda number: -found[number][3]):
        t, box, kind, _ = found[number]
        near = [(overlap(box, other[1])[0], n) for n, other in enumerate(truth) if (other[0], other[2]) == (t, kind)]
        best = max((each for each in near if each[0] >= 0.5 and each[1] not in taken), default=None)
        if best is not None:
            taken.add(best[1])
        elif any(other[0] == t and overlap(box, other[1])[1] >= 0.5 for other in neutral):
            dropped.add(number)
    return [row for number, row in enumerate(found) if number not in dropped]


def figures(scores: Scores) -> dict[str, Any]:
    values = scores.to_dict(curves=True)
    for name in ("given_predictions", "predictions_dropped"):
        del values["counts"][name]
    del values["notes"]
    return values


@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_without_the_predictions_on_neutral_boxes(seed: int) -> None:
    truth, neutral, found = drawn(seed)
    counted = without_neutral(truth, neutral, found)
    assert len(counted) < len(found) - 20
    names = (*CLASSES, "neutral")
    scores = evaluate_boxes({"a": table(truth + neutral, names)}, {"a": table(found)}, AT_20, CLASSES, errors=True)
    expected = evaluate_boxes({"a": table(truth)}, {"a": table(counted)}, AT_20, CLASSES, errors=True)
    there, wanted = figures(scores), figures(expected)
    for each in (there, wanted):  # with a neutral object in view, the camera sees something
        each["false_positives"] = {k: v for k, v in each["false_positives"].items() if not k.startswith("rest")}
    assert there == wanted
    assert np.array_equal(scores.matches.right, expected.matches.right)
    assert any(f"{len(found) - len(counted)} predictions on neutral boxes" in note for note in scores.notes)


def test_neutral_boxes_without_predictions_on_them_change_nothing() -> None:
    truth, _, found = drawn(7)
    far = [(t, [1000.0, 1000.0, 1100.0, 1100.0], 2, 1.0) for t in TIMES.tolist()]
    names = (*CLASSES, "neutral")
    one = evaluate_boxes({"a": table(truth + far, names)}, {"a": table(found)}, AT_20)
    other = evaluate_boxes({"a": table(truth)}, {"a": table(found)}, AT_20)
    assert one.classes == CLASSES
    there, wanted = figures(one), figures(other)
    for each in (there, wanted):
        each["false_positives"] = {k: v for k, v in each["false_positives"].items() if not k.startswith("rest")}
    assert there == wanted
    assert one.notes == other.notes


def test_time_with_a_neutral_object_in_view_is_not_at_rest() -> None:
    neutral = [(t, [10.0, 10.0, 90.0, 90.0], 2, 1.0) for t in TIMES.tolist()]
    found = [(t, [20.0, 20.0, 60.0, 60.0], 0, 0.9) for t in TIMES.tolist()]
    names = (*CLASSES, "neutral")
    for rows, seconds, wrong in ((neutral, 0.0, 0), ([], 1.45, len(TIMES))):
        scores = evaluate_boxes({"a": table(rows, names)}, {"a": table(found)}, AT_20, CLASSES)
        assert scores.false_positives.rest_seconds == pytest.approx(seconds)
        assert scores.false_positives.count == wrong


def test_a_neutral_object_is_never_late() -> None:
    rows = [(t, [10.0, 10.0, 90.0, 90.0], 2, 1.0) for t in TIMES.tolist()[5:]]
    labels = table(rows, (*CLASSES, "neutral"))
    labels = Labels(labels.t_us, *labels.boxes.T, labels.class_id, np.zeros(len(labels), np.int64),
                    labelled_us=TIMES, classes=labels.classes)  # fmt: skip
    dense = {"a": DenseTruth(labels, np.ones(len(labels), np.float32))}
    assert len(time_to_detection(dense, {}, CLASSES)) == 0
