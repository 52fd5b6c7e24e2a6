"""Events and Window: their invariants, and that slicing them keeps these."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fate
from fate import Events, FateError, Sensor, Window
from fate.events.window import window_us
from tests.conftest import event_lists, make_events


def test_columns_have_the_documented_types_and_cannot_be_written() -> None:
    events = Events([1, 2], [3, 4], [5, 6], [0, 1], (10, 20))
    assert [c.dtype for c in (events.t_us, events.x, events.y, events.p)] == [np.int64, np.uint16, np.uint16, np.uint8]
    for column in (events.t_us, events.x, events.y, events.p):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(AttributeError):
        events.sensor = Sensor(1, 1)  # type: ignore[misc]


def test_events_do_not_follow_later_changes_of_the_given_arrays() -> None:
    t = np.array([1, 2], np.int64)
    events = Events(t, [0, 0], [0, 0], [0, 0], (1, 1))
    t[0] = 99
    assert events.t_us.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 1], [0], [0, 0], [0, 0]), "one length"),
        (([1, 0], [0, 0], [0, 0], [0, 0]), "index 1, is earlier"),
        (([0, 1], [0, 20], [0, 0], [0, 0]), "index 1, is outside"),
        (([0, 1], [0, 0], [10, 0], [0, 0]), "index 0, is outside"),
        (([0, 1], [0, -1], [0, 0], [0, 0]), "x = -1"),
        (([0, 1], [0, 0], [0, 0], [0, 2]), "polarity 2"),
        (([0.5, 1], [0, 0], [0, 0], [0, 0]), "float64"),
        (([[0, 1]], [0, 0], [0, 0], [0, 0]), "one dimension"),
        ((np.array([2**63], np.uint64), [0], [0], [0]), "64-bit"),
    ],
)
def test_broken_columns_are_refused_with_the_value(columns: tuple[object, ...], message: str) -> None:
    with pytest.raises(FateError, match=message):
        Events(*columns, (10, 20))  # type: ignore[arg-type]


@pytest.mark.parametrize("sensor", [(0, 5), (5, -1), (1, 70000), "ab", (3,), None])
def test_impossible_sensors_are_refused(sensor: object) -> None:
    with pytest.raises(FateError, match="sensor"):
        Events([], [], [], [], sensor)  # type: ignore[arg-type]


@given(event_lists(), st.integers(-10, 10**7), st.integers(-10, 10**7))
def test_between_equals_a_linear_scan(events: Events, start: int, end: int) -> None:
    keep = (events.t_us >= start) & (events.t_us < end)
    part = events.between(start, end)
    assert part.t_us.tolist() == events.t_us[keep].tolist()
    assert part.x.tolist() == events.x[keep].tolist()


def test_spans_beyond_64_bits_are_open_ended() -> None:
    events = make_events(10)
    assert events.between(-(10**30), 10**30) == events
    assert len(events.between(10**30, 10**31)) == 0


@given(event_lists(), st.integers(0, 100), st.integers(0, 100))
def test_pieces_concatenate_to_the_whole(events: Events, a: int, b: int) -> None:
    first, last = sorted((a, b))
    assert Events.concatenate([events[:first], events[first:last], events[last:]]) == events


def test_concatenation_refuses_pieces_out_of_order_and_of_other_sensors() -> None:
    events = make_events(100)
    with pytest.raises(FateError, match="piece 1 starts at"):
        Events.concatenate([events[50:], events[:50]])
    with pytest.raises(FateError, match="piece 1 is of a"):
        Events.concatenate([events, Events.empty((1, 1))])
    with pytest.raises(FateError, match="nothing to concatenate"):
        Events.concatenate([])


def test_equality_is_by_value_and_sensor() -> None:
    events = make_events(10)
    same = Events(events.t_us, events.x, events.y, events.p, events.sensor)
    other = Events(events.t_us, events.x, events.y, 1 - events.p, events.sensor)
    assert events == same
    assert events != other
    assert events != Events(events.t_us, events.x, events.y, events.p, (100, 100))
    assert events != "events"


def test_a_slice_is_a_view_and_must_go_forward() -> None:
    events = make_events(100)
    assert np.shares_memory(events[10:20].t_us, events.t_us)
    for bad in (slice(None, None, -1), 3):
        with pytest.raises(FateError, match="forward slice"):
            events[bad]  # type: ignore[index]


def test_repr_tells_number_sensor_span_and_share() -> None:
    assert repr(Events([1, 2_000_001], [0, 0], [0, 0], [0, 1], (240, 304))) == (
        "Events(2 on 304×240, 1…2000001 µs, 2 s, 50 % ON)"
    )
    assert repr(Events.empty((240, 304))) == "Events(none, 304×240)"


def test_inside_keeps_coordinates_and_sensor() -> None:
    events = make_events(500)
    part = events.inside(10, 5, 20, 30)
    keep = (events.x >= 10) & (events.x < 20) & (events.y >= 5) & (events.y < 30)
    assert part.sensor == events.sensor
    assert part.t_us.tolist() == events.t_us[keep].tolist()


def test_events_survive_pickling() -> None:
    events = make_events(50)
    copy = pickle.loads(pickle.dumps(events))
    assert copy == events
    assert not copy.t_us.flags.writeable


def test_window_is_half_open_and_never_empty() -> None:
    window = Window(10, 20)
    assert 10 in window
    assert 20 not in window
    assert window.duration_us == 10
    with pytest.raises(FateError, match="end after it starts"):
        Window(5, 5)


def test_a_rate_gives_whole_microseconds() -> None:
    assert [window_us(hz) for hz in (20, 40, 80, 100, 200)] == [50_000, 25_000, 12_500, 10_000, 5_000]
    with pytest.raises(FateError, match="0 Hz"):
        window_us(0)


def test_every_public_name_can_be_reached() -> None:
    for name in fate.__all__:
        assert getattr(fate, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        fate.nonsense  # noqa: B018
