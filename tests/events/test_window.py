"""Grids of windows: where windows begin and end, and which one represents a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.errors import FateError
from fate.events.window import Window, WindowGrid


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**7))
def test_windows_end_one_hop_apart_and_cover_the_time_up_to_the_end(
    start: int, hop: int, more: int, length: int
) -> None:
    grid = WindowGrid(start, hop, hop + more)
    count = min(grid.count(start + length), 50)
    windows = [grid.window(index) for index in range(count)]
    assert all(window.duration_us == hop + more for window in windows)
    assert [window.end_us for window in windows] == [start + (index + 1) * hop for index in range(count)]
    assert grid.ends_us(count).tolist() == [window.end_us for window in windows]
    assert start + grid.count(start + length) * hop >= start + length > start + (grid.count(start + length) - 1) * hop


def test_windows_are_listed_in_order_and_may_begin_before_the_start() -> None:
    assert list(WindowGrid(0, 10, 25).windows(21)) == [Window(-15, 10), Window(-5, 20), Window(5, 30)]
    assert list(WindowGrid(0, 10, 10).windows(-5)) == []


@given(st.lists(st.integers(-50, 500), max_size=20), st.integers(1, 60))
def test_the_nearest_window_end_is_found(times: list[int], hop: int) -> None:
    grid = WindowGrid(7, hop, hop)
    ends = grid.ends_us(600)
    for time, index in zip(times, grid.nearest(np.array(times, np.int64)).tolist(), strict=True):
        assert index == int(np.argmin(np.abs(ends - time)))


def test_a_window_represents_the_labelled_time_nearest_to_its_end() -> None:
    assert WindowGrid(0, 100, 100).labelled(np.array([90, 102, 160, 240])) == {0: 102, 1: 160}


@pytest.mark.parametrize(("hop", "length"), [(0, 10), (10, 0), (-1, 10)])
def test_a_grid_without_length_or_hop_is_refused(hop: int, length: int) -> None:
    with pytest.raises(FateError, match=f"{length} µs every {hop} µs"):
        WindowGrid(0, hop, length)
