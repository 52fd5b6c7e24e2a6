"""The readout: coarse time stamps stay in order, and no millisecond holds more events than the limit."""

from __future__ import annotations

import numpy as np
import pytest

from fate.events.events import Events, Sensor
from fate.simulation.camera.readout import Readout

SENSOR = Sensor(40, 60)


def busy(count: int, seed: int = 0, busy_ms: int = 4) -> Events:
    """Events of 10 ms; half of them lie in one millisecond."""
    random = np.random.default_rng(seed)
    t_us = np.concatenate(
        [random.integers(0, 10_000, count // 2), random.integers(0, 1000, count // 2) + busy_ms * 1000]
    )
    x, y, p = (random.integers(0, high, len(t_us)) for high in (60, 40, 2))
    return Events(np.sort(t_us), x, y, p.astype(np.uint8), SENSOR)


def read_out(events: Events, cuts: list[int], most: int = 10**9, step_us: int = 1, seed: int = 5) -> Events:
    readout = Readout(most, step_us, seed)
    ends = [*np.searchsorted(events.t_us, cuts).tolist(), len(events)]
    starts = [0, *ends[:-1]]
    pieces = [
        readout(events[start:end], last=number == len(ends) - 1)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    return Events.concatenate(pieces)  # refuses pieces out of order


@pytest.mark.parametrize("cuts", [[], [3_500], [500, 4_000, 4_001, 4_500, 9_999], [0, 5_000, 5_000]])
def test_a_readout_that_is_fast_enough_loses_nothing(cuts: list[int]) -> None:
    events = busy(2000)
    assert read_out(events, cuts) == events


@pytest.mark.parametrize("step_us", [1, 10, 100, 1000])
def test_time_stamps_are_rounded_down_and_stay_in_order(step_us: int) -> None:
    events = busy(2000)
    found = read_out(events, [2_500, 4_321], step_us=step_us)
    assert (found.t_us % step_us == 0).all()
    assert (np.diff(found.t_us) >= 0).all()
    assert (events.t_us - found.t_us >= 0).all()
    assert (events.t_us - found.t_us < step_us).all()
    assert (found.x == events.x).all()


def test_a_slow_readout_drops_events_of_the_busy_millisecond_alone_and_everywhere_on_the_sensor() -> None:
    events = busy(4000)
    found = read_out(events, [], most=500)
    given, kept = (np.bincount(each.t_us // 1000, minlength=10) for each in (events, found))
    assert given[4] > 1000
    assert kept.tolist() == np.minimum(given, 500).tolist()
    kept_rows = found.between(4000, 5000).y
    assert 0.35 < np.mean(kept_rows < 20) < 0.65
    assert np.ptp(found.between(4000, 5000).t_us) > 950


def test_losses_depend_on_the_seed_and_not_on_the_pieces() -> None:
    events = busy(4000)
    once = read_out(events, [], most=300)
    assert once == read_out(events, [1_234, 4_500, 8_000], most=300)
    assert once != read_out(events, [], most=300, seed=6)


def test_the_last_millisecond_waits_for_the_next_piece() -> None:
    readout, events = Readout(10**9, 1, 0), busy(500)
    first = readout(events.between(0, 4_700), last=False)
    assert first.t_us.max() < 4_000
    assert len(readout(Events.empty(SENSOR), last=False)) == 0
    assert len(first) + len(readout(Events.empty(SENSOR), last=True)) == len(events.between(0, 4_700))
