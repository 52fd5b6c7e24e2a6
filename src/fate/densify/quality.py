"""Measures labels against exact ground truth: precision, recall and IoU by class, and curves over the score.

Ground truth is interpolated to the times of the labels (the simulator's boxes are 5 ms apart, so nothing is lost; for
recorded datasets see ``workflows.check_labels``). A label is right if its IoU with ground truth of its class is at
least 0.5; each box of the ground truth counts for one label, higher scores first. Ground truth that the dataset's
protocol leaves out because of its size counts neither way, nor does a label on it or a label that is too small itself.
Annotated times are left out, because labels are the ground truth there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import assign_to_truth, pairs_of_groups, xywh_of
from fate.boxes.iou import iou as iou_of
from fate.boxes.labels import Labels
from fate.densify.interpolation import Bools, Floats, Ints, interpolate

#: Lowest IoU of a right label.
RIGHT = 0.5
#: Scores of the points of a curve.
CURVE = tuple(round(0.05 * step, 2) for step in range(20))


@dataclass(frozen=True)
class Figures:
    """The quality of the labels of one class."""

    precision: float | None  #: share of labels that are right; None without labels
    recall: float | None  #: share of ground truth that is found
    median_iou: float | None  #: median over labels of their largest IoU with ground truth
    above_half: float | None  #: share of labels whose largest IoU is above 0.5
    labels: int
    truth: int


class Quality:
    """Takes labels and ground truth of one recording after another, and computes figures by class."""

    def __init__(self, classes: Sequence[str], min_diagonal: float = 0.0, min_side: float = 0.0) -> None:
        """Boxes with a smaller diagonal or side, in pixels, do not count."""
        self.classes, self._least = tuple(classes), (min_diagonal, min_side)
        self._truth = np.zeros(len(self.classes), np.int64)
        no_rows = np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.bool_)
        self._parts: list[tuple[Ints, Floats, Floats, Bools]] = [no_rows]

    def add(self, labels: Labels, truth: Labels, times_us: Ints) -> None:
        """Add a recording: its labels, its exact and dense ground truth with tracks, and the times [T] to compare.

        Times outside the span of the ground truth are left out.
        """
        exact = interpolate(truth, times_us)
        looked = exact.labelled_us
        labels = labels.select(np.isin(labels.t_us, looked))
        group, of_truth = (self._group(table, looked) for table in (labels, exact))
        xywh, true_xywh = xywh_of(labels.boxes), xywh_of(exact.boxes)
        counts = self._is_large(exact.boxes)
        left, right = pairs_of_groups(group, of_truth)
        iou = iou_of(xywh[left], true_xywh[right])
        best, on_small = np.zeros(len(labels)), np.zeros(len(labels))
        np.maximum.at(best, left, np.where(counts[right], iou, 0))
        np.maximum.at(on_small, left, np.where(counts[right], 0, iou))
        score = labels.score.astype(np.float64)
        matched = assign_to_truth(of_truth[counts], true_xywh[counts], group, xywh, score, RIGHT) >= 0
        judged = matched | (self._is_large(labels.boxes) & (on_small < RIGHT))
        self._truth += np.bincount(exact.class_id[counts], minlength=len(self.classes))
        self._parts.append((labels.class_id[judged].astype(np.int64), score[judged], best[judged], matched[judged]))

    def draw(self, count: int) -> None:
        """Keep ``count`` labels of all classes, drawn at random with a fixed seed, and the same share of truth.

        The paper measures 10 000 labels of each rate. Precision and recall stay the same on average.
        """
        class_id, score, best, matched = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        if len(class_id) > count:
            chosen = np.random.default_rng(0).choice(len(class_id), count, replace=False)
            every, kept = (np.bincount(ids, minlength=len(self.classes)) for ids in (class_id, class_id[chosen]))
            share = np.where(every > 0, kept / np.maximum(every, 1), count / len(class_id))
            right = np.bincount(class_id[chosen], matched[chosen], len(self.classes))  # chance may draw more of them
            self._truth = np.maximum(np.rint(self._truth * share), right).astype(np.int64)
            self._parts = [(class_id[chosen], score[chosen], best[chosen], matched[chosen])]

    def _is_large(self, boxes: NDArray[np.float32]) -> Bools:
        """Which boxes [N, 4] xyxy are large enough."""
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return np.asarray((np.hypot(width, height) >= self._least[0]) & (np.minimum(width, height) >= self._least[1]))

    def _group(self, table: Labels, looked: Ints) -> Ints:
        """Time and class as one integer."""
        return (np.searchsorted(looked, table.t_us) * len(self.classes) + table.class_id).astype(np.int64)

    def figures(self) -> dict[str, Figures]:
        """Figures by class."""
        figures = {}
        for name in self.classes:
            truth, _, best, matched = self._rows(name)
            figures[name] = Figures(
                _share(np.count_nonzero(matched), len(best)),
                _share(np.count_nonzero(matched), truth),
                float(np.median(best)) if len(best) else None,
                _share(np.count_nonzero(best > RIGHT), len(best)),
                len(best),
                truth,
            )
        return figures

    def precision_at(self, name: str, recall: float) -> float | None:
        """Precision of the labels with the highest scores that together reach a recall; None if all do not reach it."""
        truth, score, _, matched = self._rows(name)
        right = np.cumsum(matched[np.argsort(-score, kind="stable")])
        count = int(np.searchsorted(right, recall * truth - 1e-9, "left")) + 1
        return float(right[count - 1] / count) if count <= len(right) else None

    def curves(self, thresholds: Sequence[float] = CURVE) -> dict[str, dict[str, list[float | None]]]:
        """Precision and recall of the labels above each threshold, by class.

        Labels with higher scores are matched first, so leaving out lower ones does not change the others.
        """
        found: dict[str, dict[str, list[float | None]]] = {}
        for name in self.classes:
            truth, score, _, matched = self._rows(name)
            right = [np.count_nonzero(matched & (score >= low)) for low in thresholds]
            given = [np.count_nonzero(score >= low) for low in thresholds]
            found[name] = {
                "threshold": list(thresholds),
                "precision": [_share(hits, labels) for hits, labels in zip(right, given, strict=True)],
                "recall": [_share(hits, truth) for hits in right],
            }
        return found

    def _rows(self, name: str) -> tuple[int, Floats, Floats, Bools]:
        """The number of true boxes of a class; score, largest IoU and correctness of each of its N labels."""
        number = self.classes.index(name)
        class_id, score, best, matched = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        rows = class_id == number
        return int(self._truth[number]), score[rows], best[rows], matched[rows]


def _share(part: Any, whole: Any) -> float | None:
    return int(part) / int(whole) if whole else None
