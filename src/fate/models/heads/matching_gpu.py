"""``matching.cheapest_pairs`` on a GPU: a program solves the assignment of one window, and the CPU waits for nothing.

The algorithm is that of SciPy's ``linear_sum_assignment`` (shortest augmenting paths with dual variables, Crouse 2016),
in float64. Rows are the boxes of a window; each is paired with another column, a prediction. Rows are added one by one:
from a new row, the search goes to the column of least reduced cost, from there to the row that has this column, and so
on, until a free column is reached; then all pairs on that path are exchanged.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Largest number of boxes of a window, and of its predictions; they are kept in registers.
MAX_ROWS, MAX_COLUMNS = 256, 2048


def cheapest_columns(cost: Tensor, counts: Tensor) -> Tensor:
    """The column of each row in the one-to-one pairs of lowest total cost; [N, M] int64, -1 for rows that do not exist.

    Args:
        cost: [N, M, Q] float32, with M ≤ ``MAX_ROWS`` and Q ≤ ``MAX_COLUMNS``. A cost that is not finite counts 1e30.
        counts: [N] int32, number of valid rows of each window, at most M and Q; valid rows come first.
    """
    windows, rows, columns = cost.shape
    chosen = torch.empty(windows, rows, dtype=torch.int64, device=cost.device)
    if chosen.numel():
        with torch.cuda.device_of(cost):
            sizes = triton.next_power_of_2(rows), triton.next_power_of_2(columns)
            _solve[(windows,)](cost.contiguous(), counts, chosen, rows, columns, *sizes)
    return chosen


@triton.jit
def _solve(cost, counts, chosen, rows, columns, n_rows: tl.constexpr, n_columns: tl.constexpr):
    window = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, n_rows), tl.arange(0, n_columns)
    exists = column < columns
    first = cost + window * rows * columns
    of_rows, of_columns = tl.zeros([n_rows], tl.float64), tl.zeros([n_columns], tl.float64)  # dual variables
    column_of, row_of = tl.full([n_rows], -1, tl.int32), tl.full([n_columns], -1, tl.int32)
    for new in range(0, tl.load(counts + window)):
        shortest = tl.full([n_columns], float("inf"), tl.float64)  # path from the new row to each column
        before = tl.full([n_columns], -1, tl.int32)  # the row that this path comes from
        is_open = exists  # columns that the search has not left yet
        is_reached, reached_at = row < 0, tl.zeros([n_rows], tl.float64)
        i, j, owner, way = new, new, new, 0.0 * tl.sum(of_rows)  # types of what the loop changes: int32, float64
        while owner >= 0:
            is_reached, reached_at = is_reached | (row == i), tl.where(row == i, way, reached_at)
            costs = tl.load(first + i * columns + column, mask=exists, other=0.0).to(tl.float64)
            costs = tl.where(tl.abs(costs) < 1e30, costs, 1e30)  # also of what is not a number
            reduced = way + costs - tl.sum(tl.where(row == i, of_rows, 0.0)) - of_columns
            is_better = is_open & (reduced < shortest)
            shortest, before = tl.where(is_better, reduced, shortest), tl.where(is_better, i, before)
            way = tl.min(tl.where(is_open, shortest, float("inf")), 0)
            nearest = is_open & (shortest == way)  # of equal ones a free column, then the first
            j = (
                tl.min(tl.where(nearest, tl.where(row_of < 0, column, n_columns + column), 2 * n_columns), 0)
                % n_columns
            )
            is_open = is_open & (column != j)
            owner = tl.sum(tl.where(column == j, row_of, 0))
            i = tl.where(owner < 0, i, owner)
        of_rows = tl.where(is_reached, of_rows + way - reached_at, of_rows)
        of_columns = tl.where(exists & ~is_open, of_columns - way + shortest, of_columns)
        i = new - 1
        while i != new:
            i = tl.sum(tl.where(column == j, before, 0))
            row_of = tl.where(column == j, i, row_of)
            left = tl.sum(tl.where(row == i, column_of, 0))
            column_of, j = tl.where(row == i, j, column_of), left
    tl.store(chosen + window * rows + row, column_of.to(tl.int64), mask=row < rows)
