"""Windows from events in pieces: the same however they are cut, whatever time does, with nothing lost uncounted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.errors import FateError
from fate.events.events import Events
from fate.inference.windowing import ClosedWindow, Windower
from tests.conftest import event_lists
from tests.inference.streams import SENSOR, dots, pieces


def spans(closed: list[ClosedWindow]) -> list[tuple[int, int, int]]:
    return [(each.window.start_us, each.window.end_us, len(each.events)) for each in closed]


@given(event_lists(max_gap=40_000), st.integers(100, 60_000), st.lists(st.integers(0, 700), max_size=12))
def test_windows_do_not_depend_on_how_events_are_cut(events: Events, duration: int, cuts: list[int]) -> None:
    gap = max(duration, 10_000)
    whole = Windower(events.sensor, duration, max_gap_us=gap)
    expected = whole.add(events) + whole.close()
    cut = Windower(events.sensor, duration, max_gap_us=gap)
    got = [closed for piece in pieces(events, [c for c in cuts if c <= len(events)]) for closed in cut.add(piece)]
    got += cut.close()
    assert [(a.window, a.restarted) for a in got] == [(b.window, b.restarted) for b in expected]
    assert all(a.events == b.events for a, b in zip(got, expected, strict=True))
    assert cut.counts == whole.counts


@given(event_lists(max_gap=40_000), st.integers(500, 60_000))
def test_every_event_is_in_the_one_window_of_its_time(events: Events, duration: int) -> None:
    windower = Windower(events.sensor, duration, max_gap_us=max(duration, 200_000))
    closed = windower.add(events) + windower.close()
    for each in closed:
        assert all(t in each.window for t in each.events.t_us.tolist())
    found = Events.concatenate([each.events for each in closed]) if closed else Events.empty(events.sensor)
    assert found == events
    starts = np.array([each.window.start_us for each in closed])
    assert not len(starts) or ((starts - events.t_us[0]) % duration == 0).all()


def test_windows_are_those_of_a_recording() -> None:
    windower = Windower(SENSOR, 50)
    closed = windower.add(dots([7, 8, 60, 220])) + windower.close()
    shortest = Windower(SENSOR, 1)
    assert spans(shortest.add(dots([7, 7, 9])) + shortest.close()) == [(7, 8, 2), (8, 9, 0), (9, 10, 1)]
    assert spans(closed) == [(7, 57, 2), (57, 107, 1), (107, 157, 0), (157, 207, 0), (207, 257, 1)]


def test_an_event_on_the_border_belongs_to_the_next_window() -> None:
    windower = Windower(SENSOR, 50, start_us=0)
    assert spans(windower.add(dots([49, 50]))) == [(0, 50, 1)]
    assert spans(windower.close()) == [(50, 100, 1)]


def test_events_before_the_start_that_was_asked_for_are_left_out_and_counted() -> None:
    windower = Windower(SENSOR, 50, start_us=10_000_000)
    assert windower.add(dots([0, 100])) == []
    assert windower.add(dots([200, 10_000_010])) == []
    assert spans(windower.close()) == [(10_000_000, 10_000_050, 1)]
    assert (windower.counts.late_events, windower.counts.restarts) == (3, 0)


def test_pieces_that_overlap_within_the_open_window_are_put_in_order() -> None:
    windower = Windower(SENSOR, 50, start_us=0)
    windower.add(dots([10, 30]))
    windower.add(dots([20, 40]))
    assert windower.close()[0].events.t_us.tolist() == [10, 20, 30, 40]


def test_a_late_event_is_dropped_and_counted() -> None:
    windower = Windower(SENSOR, 50, start_us=0)
    windower.add(dots([10, 60]))
    closed = windower.add(dots([20, 30, 70])) + windower.close()
    assert spans(closed) == [(50, 100, 2)]
    assert windower.counts.late_events == 2


def test_a_jump_back_begins_anew_with_a_reason_and_loses_nothing() -> None:
    windower = Windower(SENSOR, 50, max_back_us=1000)
    closed = windower.add(dots([5_000, 5_060])) + windower.add(dots([3_990, 4_000])) + windower.close()
    assert spans(closed) == [(5_000, 5_050, 1), (5_050, 5_100, 1), (3_990, 4_040, 2)]
    assert [bool(each.restarted) for each in closed] == [False, False, True]
    assert "back" in closed[-1].restarted
    assert windower.counts.restart_reasons == [closed[-1].restarted]


def test_a_jump_forward_of_hours_skips_its_windows_and_keeps_the_grid() -> None:
    hour = 3_600_000_000
    windower = Windower(SENSOR, 5000, start_us=0)
    closed = windower.add(dots([10, 3 * hour + 7])) + windower.close()
    assert spans(closed) == [(0, 5000, 1), (3 * hour, 3 * hour + 5000, 1)]
    assert "no events for" in closed[1].restarted
    assert windower.counts.skipped_windows == 3 * hour // 5000 - 1
    assert windower.counts.restarts == 1


def test_one_event_with_a_wild_time_costs_two_restarts_and_no_event() -> None:
    windower = Windower(SENSOR, 5000)
    closed = windower.add(dots([0, 100])) + windower.add(dots([10**12])) + windower.add(dots([200, 6000]))
    closed += windower.close()
    assert sum(len(each.events) for each in closed) == 5 - windower.counts.late_events
    assert windower.counts.late_events == 0
    assert windower.counts.restarts == 2


def test_a_clock_closes_windows_without_events() -> None:
    windower = Windower(SENSOR, 50, start_us=0)
    assert windower.tick(40) == []
    windower.add(dots([10]))
    assert spans(windower.tick(49)) == []
    assert spans(windower.tick(120)) == [(0, 50, 1), (50, 100, 0)]
    windower.add(dots([90, 110]))  # the first is of a window that the clock has closed
    assert windower.counts.late_events == 1
    assert spans(windower.close()) == [(100, 150, 1)]


def test_a_clock_says_nothing_before_the_first_event() -> None:
    assert Windower(SENSOR, 50).tick(10**9) == []


def test_a_clock_that_jumps_by_hours_does_not_emit_every_window() -> None:
    windower = Windower(SENSOR, 5000)
    windower.add(dots([0]))
    assert len(windower.tick(10**11)) == 1
    assert windower.counts.restarts == 1


def test_more_events_than_a_window_may_hold_are_counted() -> None:
    windower = Windower(SENSOR, 50, max_events=3)
    windower.add(dots([0, 1]))
    windower.add(dots([2, 3, 4]))
    assert spans(windower.close()) == [(0, 50, 3)]
    assert windower.counts.excess_events == 2


def test_what_cannot_be_is_refused() -> None:
    windower = Windower(SENSOR, 50)
    with pytest.raises(FateError, match="sensor"):
        windower.add(dots([0], (32, 32)))
    windower.close()
    with pytest.raises(FateError, match="closed"):
        windower.add(dots([0]))
    with pytest.raises(FateError, match="expected"):
        Windower(SENSOR, 0)
