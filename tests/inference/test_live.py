"""Live: sources that stall, flood, jump or die, detectors that are slow; no window and no event is lost uncounted."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.live import LiveStream, NewestWins
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import StreamCounts
from fate.inference.windowing import ClosedWindow, Windower
from fate.workflows import detect_live as detecting_live
from tests.inference.streams import SENSOR, Noted, dots, drive, small_detector

PATIENCE = 5_000


class Clock:
    """It goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Told:
    """A source that gives what it is told to, piece by piece; a function is called, an error raised."""

    sensor = SENSOR

    def __init__(self, pieces: Iterable[object]) -> None:
        self.pieces, self.closed = pieces, threading.Event()
        self.counts: dict[str, int] = {}

    def __iter__(self) -> Iterator[Events]:
        for piece in self.pieces:
            if callable(piece):
                piece()
            elif isinstance(piece, Exception):
                raise piece
            elif isinstance(piece, Events):
                yield piece

    def close(self) -> None:
        self.closed.set()


def live(source: Told, clock: Clock, *, waiting: int = 4, budget_ms: float = 20) -> tuple[LiveStream, Noted]:
    counts = StreamCounts()
    detect = Noted(counts)
    windower = Windower(SENSOR, 10_000, start_us=0, counts=counts)
    stream = LiveStream(
        source,
        windower,
        detect,  # type: ignore[arg-type]
        budget_ms=budget_ms,
        waiting=waiting,
        patience_us=PATIENCE,
        clock=clock,
    )
    return stream, detect


def window(number: int, events: int = 1, restarted: str = "") -> ClosedWindow:
    return ClosedWindow(Window(number, number + 1), dots([number] * events), restarted)


def accounted(counts: StreamCounts) -> int:
    return (
        counts.events
        + counts.events_in_dropped_windows
        + counts.events_in_unfinished_window
        + counts.late_events
        + counts.excess_events
    )


# ---- the queue ------------------------------------------------------------------------------------------------------


def test_fresh_windows_come_out_in_order() -> None:
    queue = NewestWins(4, 1.0, StreamCounts())
    for number in range(3):
        queue.put(window(number), number / 10)
    taken = [queue.take(0.5) for _ in range(4)]
    assert [each and each.window.start_us for each in taken] == [0, 1, 2, None]
    assert queue.counts.windows_dropped == 0


def test_once_the_oldest_is_too_old_only_the_newest_is_left() -> None:
    queue = NewestWins(4, 1.0, StreamCounts())
    for number in range(3):
        queue.put(window(number, events=2), number / 10)
    taken = queue.take(1.05)
    assert taken is not None
    assert taken.window.start_us == 2
    assert (queue.counts.windows_dropped, queue.counts.events_in_dropped_windows) == (2, 4)


def test_a_single_window_is_never_too_old() -> None:
    queue = NewestWins(4, 1.0, StreamCounts())
    queue.put(window(0), 0.0)
    assert queue.take(100.0) is not None


def test_a_restart_is_not_dropped_with_its_window() -> None:
    queue = NewestWins(2, 1.0, StreamCounts())
    for number, reason in enumerate(["", "time went back", "", ""]):
        queue.put(window(number, restarted=reason), 0.0)
    taken = queue.take(0.0)
    assert taken is not None
    assert (taken.window.start_us, taken.restarted) == (2, "time went back")


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=60), st.integers(1, 5))
def test_every_window_is_taken_dropped_or_waiting(steps: list[tuple[bool, float]], room: int) -> None:
    queue, now, put, taken = NewestWins(room, 1.0, StreamCounts()), 0.0, 0, list[int]()
    for is_put, passed in steps:
        now += passed
        if is_put:
            queue.put(window(put), now)
            put += 1
        elif (each := queue.take(now)) is not None:
            taken.append(each.window.start_us)
        assert len(queue) <= room
    assert taken == sorted(set(taken))
    assert len(taken) + queue.counts.windows_dropped + len(queue) == put


@pytest.mark.parametrize(("room", "budget"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_queue_without_room_or_time_is_refused(room: int, budget: float) -> None:
    with pytest.raises(FateError, match="expected"):
        NewestWins(room, budget, StreamCounts())


# ---- sources that misbehave -----------------------------------------------------------------------------------------


def test_a_source_that_ends_is_detected_to_its_last_event() -> None:
    stream, detect = live(Told([dots([0, 12_000]), dots([25_000])]), Clock())
    frames = list(stream)
    assert [frame.t_us for frame in frames] == [10_000, 20_000, 30_000]
    assert [len(each.events) for each in detect.seen] == [1, 1, 1]
    assert stream.ended == "the source ended"
    assert next(stream, None) is None


@pytest.mark.parametrize("error", [OSError("the cable is out"), FateError("the stream is damaged")])
def test_a_source_that_dies_is_survived_and_says_why(error: Exception) -> None:
    source = Told([dots([0, 12_000]), error])
    stream, _ = live(source, Clock())
    with pytest.warns(FateWarning, match=str(error)):
        frames = list(stream)
    assert [frame.num_events for frame in frames] == [1, 1]
    assert str(error) in stream.ended
    assert source.closed.is_set()


def test_a_mistake_in_a_source_is_raised_where_it_is_seen() -> None:
    stream, _ = live(Told([dots([0, 12_000]), ZeroDivisionError("a mistake")]), Clock())
    assert [next(stream).t_us, next(stream).t_us] == [10_000, 20_000]
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        next(stream)


def test_a_flood_at_ten_times_the_speed_drops_windows_and_counts_all() -> None:
    """While one window is detected ten come; all is fed before the first is done."""
    clock, fed = Clock(), threading.Event()
    events = drive(1_000_000, start_us=0)
    source = Told([*(events[first : first + 97] for first in range(0, len(events), 97)), fed.set])
    stream, detect = live(source, clock)

    def slow() -> None:
        assert fed.wait(30)
        clock.now += 0.1

    detect.meanwhile = slow  # type: ignore[method-assign]
    frames = list(stream)
    counts = stream.counts
    assert counts.windows + counts.windows_dropped == 100
    assert counts.windows_dropped >= 90
    assert accounted(counts) == len(events)
    assert frames[-1].t_us == 1_000_000  # the newest wins
    assert all(frame.late for frame in frames)
    assert counts.windows_late == counts.windows


def test_a_detector_that_keeps_up_sees_every_window() -> None:
    clock = Clock()
    gates = [threading.Event() for _ in range(5)]

    def pieces() -> Iterator[object]:
        for number in range(5):
            yield dots([10_000 * number, 10_000 * number + 9_000])
            if number:
                assert gates[number - 1].wait(30)  # the next comes when the last window was detected

    stream, detect = live(Told(pieces()), clock)

    def seen() -> None:
        gates[len(detect.seen) - 1].set()

    detect.meanwhile = seen  # type: ignore[method-assign]
    frames = list(stream)
    assert [frame.t_us for frame in frames] == [10_000, 20_000, 30_000, 40_000, 50_000]
    assert not any(frame.late for frame in frames)
    assert (stream.counts.windows_dropped, stream.counts.windows_late) == (0, 0)


def test_a_source_that_stalls_has_its_windows_closed_by_the_clock() -> None:
    clock, going_on = Clock(), threading.Event()
    begins = lambda: setattr(clock, "now", 0.02)  # noqa: E731 - after the first events were heard
    source = Told([dots([0, 9_000]), begins, lambda: going_on.wait(30), dots([2_000_000])])
    stream, detect = live(source, clock, waiting=1000, budget_ms=1e6)

    def pass_time() -> None:
        if clock.now >= 1.5:
            clock.now = 1.991  # when the event of 2 s comes
            going_on.set()
        else:
            clock.now += 0.1

    detect.meanwhile = pass_time  # type: ignore[method-assign]
    frames = list(stream)
    assert [frame.t_us for frame in frames] == list(range(10_000, 2_010_001, 10_000))
    assert [frame.num_events for frame in frames if frame.num_events] == [2, 1]
    assert stream.counts.stalls == 1
    assert stream.counts.late_events == 0


def test_events_that_were_on_their_way_when_the_clock_passed_their_window_are_in_time() -> None:
    clock = Clock()

    def look(now: float) -> None:
        clock.now = now
        with stream._change:
            stream._close_by_clock()

    on_the_way = [dots([0, 9_000]), lambda: look(0.004), dots([9_500]), lambda: look(0.014), dots([9_900])]
    stream, _ = live(Told(on_the_way), clock)
    assert [frame.num_events for frame in stream] == [3]
    assert stream.counts.late_events == 1  # the last came after 5 ms of patience


def test_a_source_that_jumps_back_in_time_begins_anew() -> None:
    source = Told([dots([5_000_000, 5_012_000]), dots([100, 12_000])])
    counts = StreamCounts()
    detect = Noted(counts)
    stream = LiveStream(
        source,
        Windower(SENSOR, 10_000, counts=counts),
        detect,  # type: ignore[arg-type]
        budget_ms=1e6,
        waiting=100,
        patience_us=PATIENCE,
        clock=Clock(),
    )
    frames = list(stream)
    assert [frame.num_events for frame in frames] == [1, 1, 1, 1]
    assert [bool(frame.restarted) for frame in frames] == [False, False, True, False]
    assert accounted(counts) == 4


def test_closing_ends_the_source_and_counts_what_waited() -> None:
    going_on = threading.Event()
    source = Told([dots([0, 12_000, 31_000]), lambda: going_on.wait(30)])
    stream, _ = live(source, Clock())
    with stream:
        assert next(stream).t_us == 10_000
        going_on.set()
    assert source.closed.is_set()
    assert accounted(stream.counts) == 3
    assert stream.counts.windows + stream.counts.windows_dropped == 3  # the fourth window had not ended
    assert stream.counts.events_in_unfinished_window == 1
    assert next(stream, None) is None


@given(st.lists(st.lists(st.integers(0, 3_000_000), max_size=8), max_size=10), st.integers(1, 6))
def test_no_event_is_lost_uncounted_whatever_time_does(times: list[list[int]], waiting: int) -> None:
    pieces = [dots(sorted(each)) for each in times]
    stream, _ = live(Told(pieces), Clock(), waiting=waiting)
    for _ in stream:
        pass
    assert accounted(stream.counts) == sum(len(piece) for piece in pieces)


def test_a_detector_runs_live_on_a_source_and_gives_the_frames_of_a_stream() -> None:
    detector, events = StreamingDetector(small_detector()), drive(100_000)
    source = Told([events[first : first + 50] for first in range(0, len(events), 50)])
    frames = list(detector.live(source, 100, threshold=0.05, budget_ms=1e6, waiting=1000, track=True))
    stream = detector.open_stream(SENSOR, 100, threshold=0.05, track=True)
    expected = stream.feed(events) + stream.close()
    assert [frame.t_us for frame in frames] == [frame.t_us for frame in expected]
    assert all(np.array_equal(a.boxes, b.boxes) for a, b in zip(frames, expected, strict=True))
    assert all(np.array_equal(a.track_ids, b.track_ids) for a, b in zip(frames, expected, strict=True))


def test_frames_say_how_old_they_are_where_the_source_knows() -> None:
    clock = Clock()

    class Timed(Told):
        def age_s(self, t_us: int) -> float:
            return clock.now - t_us / 1e6

    stream, detect = live(Timed([dots([0, 12_000, 24_000])]), clock)
    clock.now = 0.1

    def slow() -> None:
        clock.now += 0.004

    detect.meanwhile = slow  # type: ignore[method-assign]
    ages = [frame.age_ms for frame in stream]
    assert ages[:2] == [pytest.approx(94.0), pytest.approx(88.0)]
    untimed, _ = live(Told([dots([0, 12_000])]), Clock())
    assert {frame.age_ms for frame in untimed} == {None}


def test_what_live_changes_in_python_is_as_before_when_the_last_has_ended() -> None:
    before = sys.getswitchinterval()
    first, second = detecting_live.low_latency(), detecting_live.low_latency()
    with first:
        assert gc.get_freeze_count() > 0
        second.__enter__()
    assert sys.getswitchinterval() == pytest.approx(detecting_live.SWITCH_S)
    assert gc.get_freeze_count() > 0
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before)
    assert gc.get_freeze_count() == 0
