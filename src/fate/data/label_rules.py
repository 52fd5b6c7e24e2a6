"""Which boxes training sees: the rules of RVT's preprocessing, as options in one place.

RVT crops boxes to the frame, drops what is then empty or small, and, in the training split, boxes nearly as wide as the
frame, which cover no object. :data:`RULES` has its rules for each public dataset.
Evaluation has filters of its own, which belong to its protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fate.boxes.labels import Labels
from fate.data.findings import LOOK_BACK_US
from fate.data.labelled_recording import LabelledRecording
from fate.errors import FateError


@dataclass(frozen=True)
class LabelRules:
    """Boxes to keep: they are cut at the frame, and those without area are dropped. Lengths are pixels of the camera.

    A time that loses all its boxes is no longer labelled, since it does show objects; a time that had no boxes before
    stays labelled.
    """

    inset: float = 0.0  #: the frame ends this far before the sensor's edge; RVT cuts at W − 1 and H − 1, an inset of 1
    min_side: float = 0.0  #: the least width and height
    min_diagonal: float = 0.0  #: the least diagonal
    #: boxes of the training split that are wider than this share of the frame are dropped; None for no limit
    max_width_share: float | None = None

    def apply(self, labels: Labels, *, split: str | None = None, downscale: int = 1) -> Labels:
        """Apply the rules; returns the boxes that are kept.

        Args:
            labels: with the sensor they are drawn in.
            split: of the recording; boxes too wide are dropped in ``"train"`` only.
            downscale: by which labels and sensor have been divided.
        """
        if labels.sensor is None:
            raise FateError("the labels have no sensor; rules need its size; use replace(labels, sensor=...)")
        height, width = (side * downscale for side in labels.sensor)
        boxes = labels.boxes.astype(np.float64) * downscale
        boxes = np.clip(boxes, 0, np.array([width, height, width, height]) - self.inset)
        size = boxes[:, 2:] - boxes[:, :2]
        keep = (
            (size > 0).all(axis=1)
            & (size >= self.min_side).all(axis=1)
            & ((size**2).sum(axis=1) >= self.min_diagonal**2)
        )
        if self.max_width_share is not None and split == "train":
            keep &= size[:, 0] <= np.floor(self.max_width_share * width)  # RVT allows whole pixels
        kept = labels.select(keep).with_boxes((boxes[keep] / downscale).astype(np.float32))
        emptied = np.isin(kept.labelled_us, labels.t_us) & ~np.isin(kept.labelled_us, kept.t_us)
        return replace(kept, labelled_us=kept.labelled_us[~emptied])


#: RVT's rules for the public datasets, by the name of their protocol.
RULES = {
    "gen1": LabelRules(inset=1.0, min_side=10.0, min_diagonal=30.0, max_width_share=0.9),
    "1mpx": LabelRules(inset=1.0, min_side=5.0, max_width_share=0.9),
}
#: Boxes of simulated and own datasets are taken as they are, cut at the frame.
PLAIN_RULES = LabelRules()


def label_rules(protocol: str) -> LabelRules:
    """The rules of a dataset's protocol."""
    return RULES.get(protocol, PLAIN_RULES)


@dataclass(frozen=True)
class RuledLabels:
    """The labels of recordings after the rules, the same for any rate: the argument ``labels_of`` of ``ClipReader``."""

    recordings: Sequence[LabelledRecording]
    rules: LabelRules

    def __call__(self, index: int, hz: float = 0.0) -> Labels:
        """The labels of the recording with that index; hand-made labels do not depend on the rate.

        Labels before its first or after its last event, such as those of a recording that was cut short, are left out:
        there is nothing to see at their times.
        """
        recording = self.recordings[index]
        first, last = recording.start_us - LOOK_BACK_US, recording.end_us + LOOK_BACK_US
        labels = recording.labels.between(first, last + 1)
        return self.rules.apply(labels, split=recording.split, downscale=recording.downscale)
