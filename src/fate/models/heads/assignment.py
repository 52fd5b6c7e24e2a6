"""One-to-one pairs of least cost, window by window: rows (what is wanted) with columns (what was predicted).

SciPy solves a window on the CPU, and every table has to get there. Most need no solving: where the cheapest columns of
all rows differ, they are the answer. A GPU finds those, and sends tables only of windows in which rows compete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fate.errors import FateError


class RowPairs(NamedTuple):
    """K pairs on the CPU, window after window, by row."""

    window: NDArray[np.int64]  #: [K]
    row: NDArray[np.int64]  #: [K]
    column: NDArray[np.int64]  #: [K]


@torch.no_grad()
def cheapest_pairs(cost: Tensor, counts: Sequence[int]) -> RowPairs:
    """The pairs of least total cost; in each window as many as it has rows, or columns if those are fewer.

    Args:
        cost: [N, M, Q], on any device.
        counts: rows that each of the N windows really has, the first ones; at most M.
    """
    rows, columns = cost.shape[1:]
    sizes = np.asarray(counts, np.int64)
    if not sizes.any() or not columns:
        return RowPairs(*np.zeros((3, 0), np.int64))
    known = torch.from_numpy(sizes)
    best, competing, finite = _looked_at(cost, known.pin_memory() if cost.is_cuda else known)
    if not finite:
        raise FateError(
            "training diverged: predictions (or boxes of the targets) are not finite, so they cannot be matched;"
            " go back to the last good checkpoint with a lower learning rate"
        )
    solved = np.flatnonzero(competing)
    there = np.arange(rows) < sizes[:, None]
    if len(solved):
        chosen = torch.from_numpy(solved).to(cost.device)
        for number, table in zip(solved, cost.index_select(0, chosen).cpu().numpy(), strict=True):
            of_row, found = linear_sum_assignment(table[: sizes[number]])
            there[number], best[number, of_row] = False, found
            there[number, of_row] = True
    window, row = np.nonzero(there)
    return RowPairs(window, row, best[window, row])


def _looked_at(cost: Tensor, counts: Tensor) -> tuple[NDArray[np.int64], NDArray[np.bool_], bool]:
    """The cheapest column of each row [N, M], where rows compete for one [N], and whether all costs are numbers."""
    rows, columns = cost.shape[1:]
    place = torch.arange(rows, device=cost.device)
    best = cost.argmin(dim=2)
    there = place < counts.to(cost.device, non_blocking=True)[:, None]
    apart = torch.where(there, best, columns + place).sort(dim=1).values  # rows that are not there compete with none
    competing = (apart[:, 1:] == apart[:, :-1]).any(dim=1, keepdim=True)
    finite = cost.isfinite().all().expand(len(cost), 1)
    table = torch.cat([best, competing, finite], dim=1).cpu().numpy()  # one copy, the one wait for a GPU
    return table[:, :rows], table[:, rows] > 0, bool(table[:, rows + 1].all())
