"""Hungarian matching of predictions and true boxes: the one-to-one pairs of lowest total cost (Carion et al. 2020).

The cost of a pair is 2 · class + 5 · L1 + 2 · (-GIoU). The class cost is the change of a focal loss (Lin et al. 2017)
when the prediction is assigned the class of the box. L1 is computed on cxcywh in fractions of the frame. All windows
and layers are matched at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.errors import FateError
from fate.models.boxes import pairwise_giou, xyxy_from_cxcywh
from fate.models.layers.norm import HAS_TRITON
from fate.models.outputs import FlatTargets, to_device

CLASS_COST, BOX_COST, GIOU_COST = 2.0, 5.0, 2.0
#: The focal loss weights positives by ``ALPHA`` · (1 - p) ^ ``GAMMA``, negatives by (1 - ``ALPHA``) · p ^ ``GAMMA``.
ALPHA, GAMMA = 0.25, 2.0


class Matches(NamedTuple):
    """K pairs of a prediction and a box in each of R sets of predictions (decoder layers), over all windows."""

    window: Tensor  #: [R, K] int64
    query: Tensor  #: [R, K] int64 index of the prediction in its window
    target: Tensor  #: [R, K] int64 row of the flat targets


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Matches:
    """Match predictions, logits [R, N, Q, classes] and boxes [R, N, Q, 4] cxcywh, with the targets of N windows.

    A window has as many pairs as boxes, or as predictions if those are fewer.
    """
    sets, windows = logits.shape[:2]
    table = matching_costs(logits, boxes, targets).flatten(0, 1).transpose(1, 2)  # [R · N, boxes, Q]
    if can_solve_on_gpu(table, targets.counts):
        return _match_on_gpu(table, targets, sets)
    pairs = cheapest_pairs(table, targets.counts * sets)
    pairs = RowPairs(*np.stack(pairs)[:, np.lexsort((pairs.column, pairs.window))])  # ordered as in the public code
    first = np.array([0, *accumulate(targets.counts)])
    window = pairs.window % max(windows, 1)
    found = np.stack([window, pairs.column, first[window] + pairs.row])
    return Matches(*to_device(torch.from_numpy(found.reshape(3, sets, -1)), logits.device))


def can_solve_on_gpu(cost: Tensor, counts: Sequence[int]) -> bool:
    """Whether the costs [N, M, Q] are on a GPU with a kernel that solves windows with so many boxes each."""
    if not (cost.is_cuda and HAS_TRITON):
        return False
    from fate.models.heads.matching_gpu import MAX_COLUMNS, MAX_ROWS  # noqa: PLC0415  (needs triton)

    rows, columns = cost.shape[1:]
    return rows <= MAX_ROWS and columns <= MAX_COLUMNS and max(counts, default=0) <= columns


def _match_on_gpu(cost: Tensor, targets: FlatTargets, sets: int) -> Matches:
    """Match without waiting for the GPU: how many pairs there are is known, and which ones they are stays there."""
    from fate.models.heads.matching_gpu import cheapest_columns  # noqa: PLC0415  (needs triton)

    counts = torch.tensor(targets.counts * sets, dtype=torch.int32)
    chosen = cheapest_columns(cost, to_device(counts, cost.device)).view(sets, len(targets.counts), cost.shape[1])
    query = chosen[:, targets.window, targets.box_index]  # [R, K]
    target = (targets.window * cost.shape[2] + query).argsort(dim=1)  # ordered as in the public code
    return Matches(targets.window[target], query.gather(1, target), target)


def matching_costs(logits: Tensor, boxes: Tensor, targets: FlatTargets) -> Tensor:
    """[R, N, Q, most boxes of a window] costs; entries beyond the number of a window's boxes are meaningless."""
    logits, boxes = logits.float(), boxes.float()
    score = logits.sigmoid()
    as_positive = ALPHA * (1 - score) ** GAMMA * -(score + 1e-8).log()
    as_negative = (1 - ALPHA) * score**GAMMA * -(1 - score + 1e-8).log()
    class_ids = targets.padded(targets.class_ids)[:, None].expand(*logits.shape[:3], -1)
    class_cost = (as_positive - as_negative).gather(-1, class_ids)
    truth = targets.padded(targets.boxes)
    box_cost = pairwise_l1(boxes, truth)
    giou_cost = -pairwise_giou(xyxy_from_cxcywh(boxes), xyxy_from_cxcywh(truth))
    return CLASS_COST * class_cost + BOX_COST * box_cost + GIOU_COST * giou_cost


def pairwise_l1(first: Tensor, second: Tensor) -> Tensor:
    """Sum of absolute differences of each box with each other: [..., M, 4] and [..., Q, 4] → [..., M, Q].

    Coordinates follow each other, so that no [..., M, Q, 4] is needed. ``torch.cdist`` starts a block of threads for
    every pair of boxes: 4 ms of a training step on an H200.
    """
    x, y, width, height = (
        (left - right).abs_()
        for left, right in zip(first[..., :, None, :].unbind(-1), second[..., None, :, :].unbind(-1), strict=True)
    )
    return x.add_(y).add_(width).add_(height)


class RowPairs(NamedTuple):
    """K pairs on the CPU, ordered by window and row."""

    window: NDArray[np.int64]  #: [K]
    row: NDArray[np.int64]  #: [K]
    column: NDArray[np.int64]  #: [K]


@torch.no_grad()
def cheapest_pairs(cost: Tensor, counts: Sequence[int]) -> RowPairs:
    """Find the one-to-one pairs of rows (targets) and columns (predictions) of lowest total cost in each window.

    SciPy solves a window on the CPU, where its costs must be copied to. Most windows need no solver: if the cheapest
    columns of all rows are different, they are the solution. The device finds these windows, and only the costs of the
    others are copied. A window has as many pairs as rows, or as columns if those are fewer.

    Args:
        cost: [N, M, Q], on any device.
        counts: number of valid rows of each window, at most M; valid rows come first.
    """
    rows, columns = cost.shape[1:]
    sizes = np.asarray(counts, np.int64)
    if not sizes.any() or not columns:
        return RowPairs(*np.zeros((3, 0), np.int64))
    index = torch.arange(rows, device=cost.device)
    best = cost.argmin(dim=2)
    valid_rows = index < to_device(torch.from_numpy(sizes), cost.device)[:, None]
    distinct = torch.where(valid_rows, best, columns + index).sort(dim=1).values  # invalid rows never compete
    competing = (distinct[:, 1:] == distinct[:, :-1]).any(dim=1, keepdim=True)
    finite = cost.isfinite().all().expand(len(cost), 1)
    table = torch.cat([best, competing, finite], dim=1).cpu().numpy()  # one copy: the CPU waits for a GPU once
    if not table[:, rows + 1].all():
        raise FateError(
            "training diverged: predictions (or boxes of the targets) are not finite, so they cannot be matched;"
            " go back to the last good checkpoint with a lower learning rate"
        )
    column, solved = table[:, :rows], np.flatnonzero(table[:, rows])
    valid = np.arange(rows) < sizes[:, None]
    if len(solved):
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (it takes 0.4 s to load; training needs it)

        chosen = to_device(torch.from_numpy(solved), cost.device)
        for number, costs in zip(solved, cost.index_select(0, chosen).cpu().numpy(), strict=True):
            solved_rows, solved_columns = linear_sum_assignment(costs[: sizes[number]])
            valid[number], column[number, solved_rows] = False, solved_columns
            valid[number, solved_rows] = True
    window, row = np.nonzero(valid)
    return RowPairs(window, row, column[window, row])
