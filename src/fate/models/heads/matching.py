"""Which prediction answers for which box: a one-to-one matching of least cost (Carion et al. 2020).

The cost of a pair is 2 · class + 5 · L1 + 2 · (-GIoU), where class is the difference that calling the prediction
this class would make to a focal loss (Lin et al. 2017), and L1 is over cxcywh in fractions of the frame. SciPy solves
each window on the CPU; the costs of all windows and layers get there in one copy, the only one for which training
waits, and the pairs come back in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fate.errors import FateError
from fate.models.boxes import cxcywh_from_xyxy, pairwise_giou, xyxy_from_cxcywh
from fate.models.heads.targets import joined, sent
from fate.models.outputs import Targets

CLASS_COST, BOX_COST, GIOU_COST = 2.0, 5.0, 2.0
#: Of the focal loss: the share of positives, and how little easy ones count.
ALPHA, GAMMA = 0.25, 2.0


class FlatTargets(NamedTuple):
    """The M boxes of N windows, one window after the other."""

    boxes: Tensor  #: [M, 4] cxcywh, fractions of the frame
    class_ids: Tensor  #: [M] int64
    weights: Tensor  #: [M] w_v
    window: Tensor  #: [M] int64
    place: Tensor  #: [M] int64, among the boxes of its window
    counts: tuple[int, ...]  #: boxes of each window

    @staticmethod
    def of(targets: Sequence[Targets], frame: tuple[int, int], classes: int, device: torch.device) -> FlatTargets:
        """Checked.

        Args:
            targets: of N windows, in pixels, on the CPU if nobody is to wait; see ``targets``.
            frame: (rows, columns) of the padded frame, pixels.
            classes: how many there are.
            device: where they are wanted.
        """
        boxes, class_ids, weights, window, place, counts = joined(targets, classes)
        rows, columns = frame
        boxes = cxcywh_from_xyxy(boxes / torch.tensor([columns, rows, columns, rows]))
        # One table, so that one copy moves it; float32 holds small whole numbers exactly.
        others = torch.stack([weights, class_ids.float(), window.float(), place.float()], dim=1)
        table = sent(torch.cat([boxes, others], dim=1), device)
        class_ids, window, place = table[:, 5:].long().unbind(1)
        return FlatTargets(table[:, :4], class_ids, table[:, 4], window, place, counts)

    def padded(self, column: Tensor, filling: int = 0) -> Tensor:
        """[M, ...] → [N, most boxes of a window, ...], ``filling`` where a window has fewer."""
        table = column.new_full((len(self.counts), max(self.counts, default=0), *column.shape[1:]), filling)
        table[self.window, self.place] = column
        return table


class Matches(NamedTuple):
    """K pairs in each of R sets of predictions (the layers of a decoder), for all windows together."""

    window: Tensor  #: [R, K] int64
    query: Tensor  #: [R, K] int64, which prediction of its window
    target: Tensor  #: [R, K] int64, which of the flat targets


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Matches:
    """The cheapest pairs; in each window as many as it has boxes, or predictions if those are fewer.

    Args:
        logits: [R, N, Q, classes].
        boxes: [R, N, Q, 4] cxcywh, fractions of the frame.
        targets: of the N windows.
    """
    table = costs(logits, boxes, targets).cpu().numpy()  # the one wait for a GPU
    if not np.isfinite(table).all():
        raise FateError(
            "training diverged: predictions (or boxes of the targets) are not finite, so they cannot be matched;"
            " go back to the last good checkpoint with a lower learning rate"
        )
    first = [0, *accumulate(targets.counts)]
    pairs_of = [min(count, logits.shape[2]) for count in targets.counts]
    pairs = np.empty((3, len(table), sum(pairs_of)), np.int64)
    pairs[0] = np.repeat(np.arange(len(pairs_of)), pairs_of)
    for of_set, tables in enumerate(table):
        filled = 0
        for window, count in enumerate(pairs_of):
            if count:
                here = slice(filled, filled + count)
                query, target = _assignment(tables[window, :, : targets.counts[window]])
                pairs[1, of_set, here], pairs[2, of_set, here] = query, target + first[window]
                filled += count
    return Matches(*sent(torch.from_numpy(pairs), logits.device))


def costs(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Tensor:
    """[R, N, Q, most boxes of a window]; what lies past a window's own count means nothing."""
    logits, boxes = logits.float(), boxes.float()
    chance = logits.sigmoid()
    as_positive = ALPHA * (1 - chance) ** GAMMA * -(chance + 1e-8).log()
    as_negative = (1 - ALPHA) * chance**GAMMA * -(1 - chance + 1e-8).log()
    class_ids = targets.padded(targets.class_ids)[:, None].expand(*logits.shape[:3], -1)
    of_class = (as_positive - as_negative).gather(-1, class_ids)
    truth = targets.padded(targets.boxes)
    of_box = torch.cdist(boxes, truth.expand(len(boxes), -1, -1, -1), p=1)
    of_giou = -pairwise_giou(xyxy_from_cxcywh(boxes), xyxy_from_cxcywh(truth))
    return CLASS_COST * of_class + BOX_COST * of_box + GIOU_COST * of_giou


def _assignment(table: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the cheapest one-to-one pairs."""
    rows, columns = linear_sum_assignment(table)
    return rows, columns
