"""Which errors a detector makes: a confusion matrix of classes, and TIDE's kinds of errors; hotcoco computes both.

*Confusion matrix.* In each frame, predictions of all classes with at least a given score are matched with the ground
truth, in order of falling score, whatever their classes: each takes the free box with the largest IoU, from 0.5 on.
Rows are classes of the ground truth, columns are classes of predictions. The last column counts ground truth without a
prediction (missed), the last row predictions without ground truth (background).

*TIDE* (Bolya et al., ECCV 2020) gives each wrong prediction one cause, and measures how much AP50 would rise if all
errors of one cause were repaired. It uses predictions of all scores, as AP does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.evaluation.average_precision import start_coco
from fate.evaluation.labelled_frames import Frames

#: IoU of a match, and IoU below which a prediction lies on the background.
MATCH_IOU, BACKGROUND_IOU = 0.5, 0.1
#: TIDE's kinds of errors, with their meanings.
KINDS = {
    "Cls": "class: overlaps an object well (IoU ≥ 0.5) and has another class",
    "Loc": "localisation: right class, but an IoU between 0.1 and 0.5",
    "Both": "both: wrong class and an IoU between 0.1 and 0.5",
    "Dupe": "duplicate: the object already has a better prediction",
    "Bkg": "background: no object there (IoU below 0.1)",
    "Miss": "missed: an object that no prediction of the kinds above explains",
}


@dataclass(frozen=True)
class ErrorKinds:
    """The errors of one evaluation."""

    classes: tuple[str, ...]  #: K names
    threshold: float  #: smallest score of the predictions in ``confusion``
    confusion: NDArray[np.int64]  #: [K + 1, K + 1] counts; the last column is missed, the last row background
    counts: dict[str, int]  #: errors by kind, of predictions of any score
    ap_gain: dict[str, float]  #: points of AP50, 0 to 1, that repairing all errors of a kind would gain

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "threshold": self.threshold,
            "confusion": {"rows": [*self.classes, "background"], "columns": [*self.classes, "missed"],
                          "counts": self.confusion.tolist()},
            "tide": {kind: {"count": self.counts[kind], "ap50_gain": self.ap_gain[kind]} for kind in KINDS},
        }  # fmt: skip


def find_error_kinds(
    frames: Frames, classes: Sequence[str], threshold: float = 0.5, max_detections: int = 100
) -> ErrorKinds:
    """Count the errors of the predictions in frames.

    Args:
        frames: ground truth and predictions.
        classes: names of class ids 0, 1, …
        threshold: smallest score of the predictions in the confusion matrix, 0 to 1.
        max_detections: predictions of a class in a frame that count, as in AP.
    """
    coco = start_coco(frames, classes, [1, 10, max_detections])
    matrix = coco.confusion_matrix(
        iou_thr=MATCH_IOU, max_det=max_detections * max(len(classes), 1), min_score=threshold
    )
    coco.evaluate()
    tide = coco.tide_errors(pos_thr=MATCH_IOU, bg_thr=BACKGROUND_IOU)
    return ErrorKinds(
        tuple(classes),
        threshold,
        np.asarray(matrix["matrix"], np.int64),
        {kind: int(tide["counts"][kind]) for kind in KINDS},
        {kind: float(tide["delta_ap"][kind]) for kind in KINDS},
    )
