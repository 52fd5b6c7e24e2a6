"""Average precision and recall of frames, as COCO defines them; hotcoco computes them.

``AP50:95`` is the mean of AP over IoU thresholds 0.50, 0.55, …, 0.95, over 101 recalls and over classes that have
ground truth; ``AP50`` and ``AP75`` are at one threshold. Small, medium and large are boxes below 32², between, and
above 96² pixels of the given boxes, so the size class depends on the resolution. ``AR1``, ``AR10`` and ``AR100`` are
the largest recalls with that many predictions of a class in a frame. A metric without ground truth is None (COCO tools
write -1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hotcoco import COCO, COCOeval
from numpy.typing import NDArray

from fate.evaluation.labelled_frames import Frames

#: The T IoU thresholds and R recalls at which precision is computed.
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
RECALLS = tuple(round(0.01 * step, 2) for step in range(101))

SIZES = ("all", "small", "medium", "large")


@dataclass(frozen=True)
class Curve:
    """Precision over recall of one class, and the score that gives it; 0 for a recall that is not reached."""

    thresholds: NDArray[np.float64]  #: [T] smallest IoU of a match
    recall: NDArray[np.float64]  #: [R]
    precision: NDArray[np.float64]  #: [T, R] never rising with recall, as COCO makes it
    score: NDArray[np.float64]  #: [T, R] smallest score of the predictions that reach the recall

    def at(self, overlap: float) -> NDArray[np.float64]:
        """Precision [R] at one IoU threshold."""
        return np.asarray(self.precision[int(np.argmin(np.abs(self.thresholds - overlap)))])


@dataclass(frozen=True)
class AveragePrecision:
    """COCO's metrics by name, for all classes together and for each one."""

    overall: dict[str, float | None]  #: "AP50:95", "AP50", "AP75", "AP50:95 small" …, "AR1" …
    by_class: dict[str, dict[str, float | None]]  #: the same for each class
    curves: dict[str, Curve]  #: by class, for classes with ground truth


def average_precision(frames: Frames, classes: Sequence[str], max_detections: int = 100) -> AveragePrecision:
    """AP and AR of frames; the ``max_detections`` predictions of a class in a frame with the highest scores count."""
    limits = [min(1, max_detections), min(10, max_detections), max_detections]  # three, as COCO has them
    precision, recall, scores = _run_coco(frames, classes, limits)
    overall = _figures(precision, recall, limits)
    by_class, curves = {}, {}
    for index, name in enumerate(classes):
        one = slice(index, index + 1)
        by_class[name] = _figures(precision[:, :, one], recall[:, one], limits)
        drawn = precision[:, :, index, 0, -1]
        if (drawn >= 0).all():
            curves[name] = Curve(np.array(THRESHOLDS), np.array(RECALLS), drawn, scores[:, :, index, 0, -1])
    return AveragePrecision(overall, by_class, curves)


def start_coco(frames: Frames, classes: Sequence[str], limits: list[int]) -> COCOeval:
    """hotcoco's evaluation of frames, before its first step; ``limits`` are numbers of predictions in a frame."""
    truth, found = frames.truth, frames.predictions
    # COCO stores a size with each image; no metric depends on it
    images = [{"id": index + 1, "width": 1, "height": 1} for index in range(frames.counts.frames)]
    categories = [{"id": index + 1, "name": name} for index, name in enumerate(classes)]
    xywh, area = (np.ascontiguousarray(each) for each in (truth.xywh, truth.area))
    known = COCO.from_arrays(images, categories, truth.frame + 1, truth.class_id + 1, xywh, area=area)
    rows = np.column_stack([found.frame + 1.0, found.xywh, found.score, found.class_id + 1.0])
    evaluation = COCOeval(known, known.load_res(np.ascontiguousarray(rows)), "bbox")
    evaluation.params.max_dets = limits
    return evaluation


def _run_coco(frames: Frames, classes: Sequence[str], limits: list[int]) -> list[NDArray[np.float64]]:
    """Precision [T, R, classes, sizes, limits], recall [T, classes, sizes, limits] and scores like precision."""
    evaluation = start_coco(frames, classes, limits)
    evaluation.evaluate()
    evaluation.accumulate()
    if evaluation.eval is None:
        raise RuntimeError("hotcoco gave no result")
    return [np.asarray(evaluation.eval[name], np.float64) for name in ("precision", "recall", "scores")]


def _figures(
    precision: NDArray[np.float64], recall: NDArray[np.float64], limits: Sequence[int]
) -> dict[str, float | None]:
    values = {
        "AP50:95": precision[:, :, :, 0, -1],
        "AP50": precision[THRESHOLDS.index(0.5), :, :, 0, -1],
        "AP75": precision[THRESHOLDS.index(0.75), :, :, 0, -1],
    }
    sizes = list(enumerate(SIZES))[1:]
    values |= {f"AP50:95 {size}": precision[:, :, :, index, -1] for index, size in sizes}
    values |= {f"AR{limit}": recall[:, :, 0, index] for index, limit in enumerate(limits)}
    values |= {f"AR{limits[-1]} {size}": recall[:, :, index, -1] for index, size in sizes}
    existing = {name: each[each > -1] for name, each in values.items()}
    return {name: float(each.mean()) if each.size else None for name, each in existing.items()}
