"""Pairs of least cost: as SciPy finds them, with and without rows that compete."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fate.errors import FateError
from fate.models.heads.matching import cheapest_pairs


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 6), st.integers(0, 5), st.integers(0, 7), st.integers(0, 10_000), st.booleans())
def test_the_total_is_the_least(windows: int, rows: int, columns: int, seed: int, crowded: bool) -> None:
    chance = np.random.default_rng(seed)
    cost = chance.normal(size=(windows, rows, columns)).astype(np.float32)
    if crowded and columns:  # all want the first
        cost[..., 0] -= 5
    counts = chance.integers(0, rows + 1, windows)
    pairs = cheapest_pairs(torch.from_numpy(cost), counts.tolist())
    for window, count in enumerate(counts):
        mine = pairs.window == window
        assert np.unique(pairs.column[mine]).size == mine.sum() == min(count, columns)
        assert (np.diff(pairs.row[mine]) > 0).all()
        assert (pairs.row[mine] < count).all()
        table = cost[window, :count]
        found = table[pairs.row[mine], pairs.column[mine]].sum()
        assert found == pytest.approx(table[linear_sum_assignment(table)].sum(), abs=1e-4)
    assert (np.diff(pairs.window) >= 0).all()


def test_only_windows_with_competition_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    monkeypatch.setattr(
        scipy.optimize, "linear_sum_assignment", lambda table: solved.append(table) or linear_sum_assignment(table)
    )
    apart = [
        [0.0, 1.0, 2.0],
        [1.0, 2.0, 0.0],
        [0.0, 9.0, 9.0],
    ]  # of the third row, which is not there, nothing is asked
    same = [[0.0, 1.0, 2.0], [0.0, 4.0, 4.0], [9.0, 9.0, 9.0]]
    pairs = cheapest_pairs(torch.tensor([apart, same]), [2, 2])
    assert pairs.column.tolist() == [0, 2, 1, 0]
    assert [table.tolist() for table in solved] == [same[:2]]


def test_what_is_no_number_cannot_be_matched() -> None:
    cost = torch.zeros(2, 2, 3)
    cost[1, 0, 2] = torch.nan
    with pytest.raises(FateError, match="training diverged"):
        cheapest_pairs(cost, [1, 1])
