"""Which prediction answers for which box: a one-to-one matching of least cost (Carion et al. 2020).

The cost of a pair is 2 · class + 5 · L1 + 2 · (-GIoU), where class is the difference that calling the prediction
this class would make to a focal loss (Lin et al. 2017), and L1 is over cxcywh in fractions of the frame. All windows
and layers are matched at once (``assignment``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fate.models.boxes import cxcywh_from_xyxy, pairwise_giou, xyxy_from_cxcywh
from fate.models.heads.assignment import RowPairs, cheapest_pairs
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
    sets, windows = logits.shape[:2]
    table = costs(logits, boxes, targets).flatten(0, 1).transpose(1, 2)  # [R · N, boxes, Q]
    pairs = cheapest_pairs(table, targets.counts * sets)
    pairs = RowPairs(*np.stack(pairs)[:, np.lexsort((pairs.column, pairs.window))])  # by query, as in the public code
    first = np.array([0, *accumulate(targets.counts)])
    window = pairs.window % max(windows, 1)
    found = np.stack([window, pairs.column, first[window] + pairs.row])
    return Matches(*sent(torch.from_numpy(found.reshape(3, sets, -1)), logits.device))


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
