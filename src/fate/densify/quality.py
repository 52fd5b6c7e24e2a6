"""How good labels are, against exact truth: precision, recall, how well boxes sit, and both over thresholds.

Truth is brought to the times of the labels by interpolation (the simulator's is 5 ms apart, so nothing is lost; of
recorded sets ``checking.py`` gives annotated boxes at times of labels beside them). A label is right where it overlaps
truth of its class by at least half, each truth taken by one label, surer labels first. Truth that the dataset's
protocol leaves out for its size counts neither way: a label on it is neither right nor wrong, nor is a label that is
too small itself. Annotated times are left out: there labels *are* the truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import assign_to_truth, pairs_of_groups, xywh_of
from fate.boxes.iou import iou as iou_of
from fate.boxes.labels import Labels
from fate.densify.interpolation import interpolate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: IoU from which a label is right.
RIGHT = 0.5
#: Scores at which the curves are given.
CURVE = tuple(round(0.05 * step, 2) for step in range(20))


@dataclass(frozen=True)
class SizeLimits:
    """Boxes that count."""

    min_diagonal: float = 0.0
    min_side: float = 0.0

    def large(self, boxes: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which boxes [N, 4] xyxy do."""
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return np.asarray((np.hypot(width, height) >= self.min_diagonal) & (np.minimum(width, height) >= self.min_side))


@dataclass(frozen=True)
class Figures:
    """Of one class."""

    precision: float | None  #: of the labels, those that are right; None where there are none
    recall: float | None  #: of the truth, that which is found
    median_iou: float | None  #: of each label with the truth of its class that it overlaps most
    above_half: float | None  #: share of labels for which that is above 0.5
    labels: int
    truth: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class Quality:
    """Labels and truth of one recording after another; then figures by class."""

    def __init__(self, classes: Sequence[str], limits: SizeLimits | None = None) -> None:
        self.classes, self.limits = tuple(classes), limits or SizeLimits()
        self._truth = np.zeros(len(self.classes), np.int64)
        self._parts: list[tuple[Ints, Floats, Floats, NDArray[np.bool_]]] = []

    def add(self, labels: Labels, truth: Labels, times_us: Ints) -> None:
        """One recording.

        Args:
            labels: to be judged.
            truth: exact, dense, with tracks.
            times_us: [T] times to look at; what is not labelled there is not found. Times outside the truth's span are
                left out.
        """
        exact = interpolate(truth, times_us)
        looked = exact.labelled_us
        labels = labels.select(np.isin(labels.t_us, looked))
        group, of_truth = (self._group(table, looked) for table in (labels, exact))
        xywh, true_xywh = xywh_of(labels.boxes), xywh_of(exact.boxes)
        counts = self.limits.large(exact.boxes)
        left, right = pairs_of_groups(group, of_truth)
        iou = iou_of(xywh[left], true_xywh[right])
        best, on_small = np.zeros(len(labels)), np.zeros(len(labels))
        np.maximum.at(best, left, np.where(counts[right], iou, 0))
        np.maximum.at(on_small, left, np.where(counts[right], 0, iou))
        score = labels.score.astype(np.float64)
        matched = assign_to_truth(of_truth[counts], true_xywh[counts], group, xywh, score, RIGHT) >= 0
        judged = matched | (self.limits.large(labels.boxes) & (on_small < RIGHT))
        self._truth += np.bincount(exact.class_id[counts], minlength=len(self.classes))
        self._parts.append((labels.class_id[judged].astype(np.int64), score[judged], best[judged], matched[judged]))

    def _group(self, table: Labels, looked: Ints) -> Ints:
        """Time and class in one number."""
        return (np.searchsorted(looked, table.t_us) * len(self.classes) + table.class_id).astype(np.int64)

    def figures(self) -> dict[str, Figures]:
        """By class."""
        class_id, _, best, matched = self._rows()
        return {name: self._of_class(n, best[class_id == n], matched[class_id == n])
                for n, name in enumerate(self.classes)}  # fmt: skip

    def _of_class(self, number: int, best: Floats, matched: NDArray[np.bool_]) -> Figures:
        count, truth = len(best), int(self._truth[number])
        right = int(np.count_nonzero(matched))
        return Figures(
            right / count if count else None,
            right / truth if truth else None,
            float(np.median(best)) if count else None,
            float(np.mean(best > RIGHT)) if count else None,
            count,
            truth,
        )

    def precision_at(self, name: str, recall: float) -> float | None:
        """Of the surest labels of a class, as many as find that share of the truth; None where all do not."""
        number = self.classes.index(name)
        class_id, score, _, matched = self._rows()
        mine = np.flatnonzero(class_id == number)
        order = mine[np.argsort(-score[mine], kind="stable")]
        right = np.cumsum(matched[order])
        wanted = recall * int(self._truth[number])
        count = int(np.searchsorted(right, wanted - 1e-9, "left")) + 1
        return float(right[count - 1] / count) if count <= len(right) else None

    def curves(self, thresholds: Sequence[float] = CURVE) -> dict[str, dict[str, list[float | None]]]:
        """Precision and recall of the labels of at least each threshold, by class.

        Surer labels take their truth first, so leaving out weaker ones changes nothing for the rest.
        """
        class_id, score, _, matched = self._rows()
        found: dict[str, dict[str, list[float | None]]] = {}
        for n, name in enumerate(self.classes):
            right = [int(np.count_nonzero(matched & (class_id == n) & (score >= low))) for low in thresholds]
            given = [int(np.count_nonzero((class_id == n) & (score >= low))) for low in thresholds]
            truth = int(self._truth[n])
            found[name] = {
                "threshold": list(thresholds),
                "precision": [hit / all_ if all_ else None for hit, all_ in zip(right, given, strict=True)],
                "recall": [hit / truth if truth else None for hit in right],
            }
        return found

    def _rows(self) -> tuple[Ints, Floats, Floats, NDArray[np.bool_]]:
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.bool_)
        class_id, score, best, matched = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return class_id, score, best, matched
