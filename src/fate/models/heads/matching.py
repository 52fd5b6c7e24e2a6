"""Hungarian matching of predictions and boxes: one-to-one pairs of least cost (Carion et al. 2020).

The cost of a pair is 2 · class + 5 · L1 + 2 · (-GIoU), where class is the change of a focal loss (Lin et al. 2017) if
the prediction is assigned this class, and L1 is over cxcywh in fractions of the frame. All windows and layers are
matched at once.
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
from fate.models.boxes import pairwise_giou, xyxy_from_cxcywh
from fate.models.heads.targets import FlatTargets, to_device

CLASS_COST, BOX_COST, GIOU_COST = 2.0, 5.0, 2.0
#: Of the focal loss: the share of positives, and how little easy ones count.
ALPHA, GAMMA = 0.25, 2.0


class Matches(NamedTuple):
    """K pairs in each of R sets of predictions (the layers of a decoder), for all windows together."""

    window: Tensor  #: [R, K] int64
    query: Tensor  #: [R, K] int64, which prediction of its window
    target: Tensor  #: [R, K] int64, which of the flat targets


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Matches:
    """The cheapest pairs of predictions, logits [R, N, Q, classes] and boxes [R, N, Q, 4] cxcywh, and targets.

    In each window there are as many as it has boxes, or predictions if those are fewer.
    """
    sets, windows = logits.shape[:2]
    table = matching_costs(logits, boxes, targets).flatten(0, 1).transpose(1, 2)  # [R · N, boxes, Q]
    pairs = cheapest_pairs(table, targets.counts * sets)
    pairs = RowPairs(*np.stack(pairs)[:, np.lexsort((pairs.column, pairs.window))])  # by query, as in the public code
    first = np.array([0, *accumulate(targets.counts)])
    window = pairs.window % max(windows, 1)
    found = np.stack([window, pairs.column, first[window] + pairs.row])
    return Matches(*to_device(torch.from_numpy(found.reshape(3, sets, -1)), logits.device))


def matching_costs(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Tensor:
    """[R, N, Q, most boxes of a window]; entries past a window's own count have no meaning."""
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


class RowPairs(NamedTuple):
    """K pairs on the CPU, ordered by window and row."""

    window: NDArray[np.int64]  #: [K]
    row: NDArray[np.int64]  #: [K]
    column: NDArray[np.int64]  #: [K]


@torch.no_grad()
def cheapest_pairs(cost: Tensor, counts: Sequence[int]) -> RowPairs:
    """The one-to-one pairs of rows (targets) and columns (predictions) of least total cost, window by window.

    SciPy solves a window on the CPU, and every cost table has to be copied there. Most windows need no solving: if the
    cheapest columns of all rows differ, they are the answer. A GPU finds those windows, and only the others are copied.
    A window has as many pairs as rows, or columns if those are fewer.

    Args:
        cost: [N, M, Q], on any device.
        counts: number of valid rows of each of the N windows, the first ones; at most M.
    """
    rows, columns = cost.shape[1:]
    sizes = np.asarray(counts, np.int64)
    if not sizes.any() or not columns:
        return RowPairs(*np.zeros((3, 0), np.int64))
    known = torch.from_numpy(sizes)
    best, competing, finite = _inspect_costs(cost, known.pin_memory() if cost.is_cuda else known)
    if not finite:
        raise FateError(
            "training diverged: predictions (or boxes of the targets) are not finite, so they cannot be matched;"
            " go back to the last good checkpoint with a lower learning rate"
        )
    solved = np.flatnonzero(competing)
    valid = np.arange(rows) < sizes[:, None]
    if len(solved):
        chosen = torch.from_numpy(solved).to(cost.device)
        for number, table in zip(solved, cost.index_select(0, chosen).cpu().numpy(), strict=True):
            of_row, of_column = linear_sum_assignment(table[: sizes[number]])
            valid[number], best[number, of_row] = False, of_column
            valid[number, of_row] = True
    window, row = np.nonzero(valid)
    return RowPairs(window, row, best[window, row])


def _inspect_costs(cost: Tensor, counts: Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_], bool]:
    """The cheapest column of each row [N, M], whether rows compete for one [N], and whether all costs are finite."""
    rows, columns = cost.shape[1:]
    index = torch.arange(rows, device=cost.device)
    best = cost.argmin(dim=2)
    valid = index < counts.to(cost.device, non_blocking=True)[:, None]
    apart = torch.where(valid, best, columns + index).sort(dim=1).values  # invalid rows compete with none
    competing = (apart[:, 1:] == apart[:, :-1]).any(dim=1, keepdim=True)
    finite = cost.isfinite().all().expand(len(cost), 1)
    table = torch.cat([best, competing, finite], dim=1).cpu().numpy()  # one copy, the one wait for a GPU
    return table[:, :rows], table[:, rows] > 0, bool(table[:, rows + 1].all())
