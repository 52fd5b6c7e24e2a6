"""Merged pixels: against one large pixel, and against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fate.events.events import Events, Sensor
from fate.events.merging import PixelMerger
from tests.conftest import event_lists


def merged_by_hand(events: Events, side: int, needed: int) -> list[tuple[int, int, int, int]]:
    sums: dict[tuple[int, int], int] = {}
    found = []
    columns = (events.t_us.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist())
    for t, x, y, p in zip(*columns, strict=True):
        cell = x // side, y // side
        sums[cell] = sums.get(cell, 0) + (1 if p else -1)
        if abs(sums[cell]) == needed:
            found.append((t, *cell, int(sums[cell] > 0)))
            sums[cell] = 0
    return found


@given(event_lists(), st.integers(1, 5), st.integers(1, 9), st.integers(0, 60))
def test_pieces_of_any_size_give_what_a_plain_loop_gives(events: Events, side: int, needed: int, cut: int) -> None:
    merge = PixelMerger(events.sensor, side, needed)
    pieces = [merge(events[:cut]), merge(events[cut:])]
    assert all(piece.sensor == merge.sensor for piece in pieces)
    found = Events.concatenate(pieces)
    expected = merged_by_hand(events, side, 1 if side == 1 else needed)
    columns = (found.t_us.tolist(), found.x.tolist(), found.y.tolist(), found.p.tolist())
    assert list(zip(*columns, strict=True)) == expected


def test_a_block_fires_as_one_large_pixel_would() -> None:
    """Light that changes by m thresholds gives m · k² events of small pixels, and m events of a large pixel."""
    side, steps = 4, 5
    t, x, y = (axis.ravel() for axis in np.meshgrid(np.arange(steps), np.arange(side), np.arange(side), indexing="ij"))
    for polarity in (0, 1):
        events = Events(t * 1000, x, y, np.full(len(t), polarity), (side, side))
        found = PixelMerger(Sensor(side, side), side, side * side)(events)
        assert found.t_us.tolist() == [0, 1000, 2000, 3000, 4000]
        assert set(found.p.tolist()) == {polarity}


def test_noise_of_both_polarities_cancels_and_a_reset_forgets() -> None:
    rng = np.random.default_rng(0)
    count = 20_000
    x, y, p = (rng.integers(0, side, count) for side in (64, 64, 2))
    noise = Events(np.arange(count), x, y, p, (64, 64))
    merge = PixelMerger(Sensor(64, 64), 4)
    assert len(merge(noise)) < count / 12 / 4  # a quarter of what events of one polarity would give
    one = Events([0], [0], [0], [1], (64, 64))
    merge.reset()
    assert [len(merge(one)) for _ in range(12)] == [0] * 11 + [1]
    merge.reset()
    assert len(merge(one)) == 0
