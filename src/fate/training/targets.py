"""The weight w_v of every target in the loss: the only place where it is defined.

w_v = 1      for ground truth
w_v = p_v    for a generated label, with p_v the score of the label (the paper's equation for w_v)
"""

from __future__ import annotations

import numpy as np
import torch

from fate.boxes.labels import Labels, LabelSource
from fate.models.outputs import Targets


def make_targets(labels: Labels | None) -> Targets | None:
    """The targets of one window, each with its weight w_v in the detection loss.

    Args:
        labels: the boxes of the window; None if the window is not labelled.
    """
    if labels is None:
        return None
    weights = np.where(labels.source == LabelSource.GROUND_TRUTH, 1.0, labels.score).astype(np.float32)
    boxes, ids = torch.from_numpy(labels.boxes.copy()), torch.from_numpy(labels.class_id.astype(np.int64))
    return Targets.of(boxes, ids, torch.from_numpy(weights))
