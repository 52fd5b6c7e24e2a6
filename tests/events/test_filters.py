"""Filters of events: each against a plain loop, whatever the pieces, and on scenes whose noise is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.errors import FateError
from fate.events.events import Events
from fate.events.filters import FILTERS, EventFilters, HotPixels, check_filters
from tests.conftest import event_lists

SIZE = (6, 8)
Row = tuple[int, int, int, int]


def rows_of(events: Events) -> list[Row]:
    return list(zip(*(column.tolist() for column in (events.t_us, events.x, events.y, events.p)), strict=True))


def made(rows: list[Row], sensor: tuple[int, int] = SIZE) -> Events:
    t, x, y, p = zip(*sorted(rows), strict=True)
    return Events(t, x, y, p, sensor)


# ---- plain loops: the definition of each filter ---------------------------------------------------------------------


def background(rows: list[Row], support_us: int) -> Iterator[bool]:
    """All events before within the time, on one of the eight pixels around."""
    for index, (t, x, y, _) in enumerate(rows):
        yield any(
            t - other_t <= support_us and max(abs(x - other_x), abs(y - other_y)) == 1
            for other_t, other_x, other_y, _ in rows[:index]
        )


def refractory(rows: list[Row], period_us: int) -> Iterator[bool]:
    kept: dict[tuple[int, int], int] = {}
    for t, x, y, _ in rows:
        fires = (x, y) not in kept or t - kept[x, y] >= period_us
        if fires:
            kept[x, y] = t
        yield fires


def hot_pixels(rows: list[Row], learning_us: int) -> Iterator[bool]:
    first = [(x, y) for t, x, y, _ in rows if t < rows[0][0] + learning_us]
    around = [(dx, dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0)]
    for t, x, y, _ in rows:
        beside = np.median([first.count((x + dx, y + dy)) for dx, dy in around])
        count = first.count((x, y))
        hot = count >= 25 * learning_us / 1e6 and count > 5 * beside
        yield t < rows[0][0] + learning_us or not hot


def flicker(rows: list[Row], low_hz: int, high_hz: int) -> Iterator[bool]:
    """The times at which a pixel changed from OFF to ON decide; three good periods are needed, and six are counted."""
    changes: dict[tuple[int, int], list[int]] = defaultdict(list)
    polarity: dict[tuple[int, int], int] = {}
    score: dict[tuple[int, int], int] = defaultdict(int)
    for t, x, y, p in rows:
        pixel = x, y
        if not changes[pixel] or t - changes[pixel][-1] > round(1e6 / low_hz):
            score[pixel] = 0
        if p and polarity.get(pixel, 1) == 0:
            if changes[pixel] and t - changes[pixel][-1] <= round(1e6 / low_hz):
                inside = t - changes[pixel][-1] >= round(1e6 / high_hz)
                score[pixel] = min(6, score[pixel] + 1) if inside else max(0, score[pixel] - 1)
            changes[pixel].append(t)
        polarity[pixel] = p
        yield score[pixel] < 3


def region(rows: list[Row], x1: int, y1: int, x2: int, y2: int) -> Iterator[bool]:
    for _, x, y, _ in rows:
        yield x1 <= x < x2 and y1 <= y < y2


def rate(rows: list[Row], most: int) -> Iterator[bool]:
    """At most ``most`` events of a millisecond; evenly spaced ones if the millisecond before had more."""
    for index, (t, *_) in enumerate(rows):
        now = [number for number, row in enumerate(rows) if row[0] // 1000 == t // 1000]
        before = max(most, sum(row[0] // 1000 == t // 1000 - 1 for row in rows))
        place = index - now[0]  # of the event in its millisecond
        yield (place + 1) * most // before > place * most // before and place * most // before < most


REFERENCES: dict[str, Callable[[list[Row]], Iterator[bool]]] = {
    "background:5ms": lambda rows: background(rows, 5000),
    "background:64us": lambda rows: background(rows, 64),
    "refractory:4096us": lambda rows: refractory(rows, 4096),
    "hot-pixels": lambda rows: hot_pixels(rows, 1_000_000),
    "hot-pixels:100ms": lambda rows: hot_pixels(rows, 100_000),
    "flicker:90-130": lambda rows: flicker(rows, 90, 130),
    "flicker:1-10000": lambda rows: flicker(rows, 1, 10_000),
    "roi:1,2,4,5": lambda rows: region(rows, 1, 2, 4, 5),
    "rate:3k": lambda rows: rate(rows, 3),
}


@pytest.mark.parametrize("spec", REFERENCES)
@settings(max_examples=25)
@given(event_lists(st.just(SIZE), max_size=40, max_gap=9000), st.lists(st.integers(0, 80)))
def test_pieces_of_any_size_give_what_a_plain_loop_gives(spec: str, events: Events, cuts: list[int]) -> None:
    filters = EventFilters(spec, SIZE)
    pieces = [filters(events[first:last]) for first, last in pairwise([0, *sorted(cuts), len(events)])]
    rows = rows_of(events)
    expected = [row for row, keep in zip(rows, REFERENCES[spec](rows), strict=True) if keep]
    assert rows_of(Events.concatenate([Events.empty(SIZE), *pieces])) == expected
    assert filters.dropped == {spec: len(rows) - len(expected)}


@st.composite
def flickering(draw: st.DrawFn) -> list[Row]:
    """Two pixels that alternate, with periods near the band and some noise."""
    rows, now = [], 10**9
    for _ in range(draw(st.integers(1, 25))):
        half = draw(st.sampled_from([2000, 3900, 5000, 5500, 9000]))
        for p in (1, 0):
            rows += [(now + 10 * n, draw(st.integers(0, 1)), 0, p) for n in range(draw(st.integers(0, 3)))]
            now += half
    return rows


@given(flickering(), st.integers(0, 100))
def test_flicker_is_found_as_by_a_plain_loop(rows: list[Row], cut: int) -> None:
    if not rows:
        return
    events = made(rows)
    filters = EventFilters("flicker:90-130", SIZE)
    found = rows_of(filters(events[:cut])) + rows_of(filters(events[cut:]))
    given_rows = rows_of(events)
    assert found == [row for row, keep in zip(given_rows, flicker(given_rows, 90, 130), strict=True) if keep]


# ---- what filters are for -------------------------------------------------------------------------------------------


def moving_edge(speed_us: int = 2000) -> list[Row]:
    """A vertical edge that moves over a sensor of 64 × 64 pixels, one column after another."""
    return [(speed_us * x + 7 * y, x, y, 1) for x in range(64) for y in range(64)]


def noise(count: int, length_us: int) -> list[Row]:
    rng = np.random.default_rng(0)
    t, x, y, p = (rng.integers(0, high, count).tolist() for high in (length_us, 64, 64, 2))
    return list(zip(t, x, y, p, strict=True))


def test_background_activity_is_dropped_and_a_moving_edge_stays() -> None:
    sensor = (64, 64)
    edge = EventFilters("background:5ms", sensor)(made(moving_edge(), sensor))
    assert len(edge) >= 64 * 64 - 1  # the first event has no neighbour before it
    rare = noise(2000, 10_000_000)  # 0.05 events per pixel and second: 8 neighbours · 5 ms · 0.05 Hz = 0.2 % supported
    assert len(EventFilters("background:5ms", sensor)(made(rare, sensor))) < 20


def test_a_hot_pixel_is_dropped_after_the_first_second_and_a_moving_edge_is_not() -> None:
    hot = [(t, 20, 30, t // 1000 % 2) for t in range(0, 3_000_000, 5000)]
    edges = [(t + 400_000 * n, x, y, p) for n in range(7) for t, x, y, p in moving_edge()]
    events = made([*hot, *edges], (64, 64))
    filters = EventFilters(["hot-pixels"], (64, 64))
    kept = filters(events)
    assert filters.dropped == {"hot-pixels": len([t for t, *_ in hot if t >= 1_000_000]) + 4}  # 4 edges pass it later
    assert len(kept.inside(20, 30, 21, 31).between(1_000_000, 3_000_000)) == 0
    learned = HotPixels((64, 64))
    learned(events)
    assert learned.hot is not None
    assert np.argwhere(learned.hot).tolist() == [[30, 20]]


def test_lamps_inside_the_band_are_dropped_and_others_stay() -> None:
    def lamp(hz: float, x: int) -> list[Row]:
        times = np.arange(0, 1_000_000, 5e5 / hz).astype(int)
        return [(int(t) + 20 * n, x, 3, 1 - i % 2) for i, t in enumerate(times) for n in range(3)]

    filters = EventFilters("flicker:90-130", SIZE)
    kept = filters(made([*lamp(100, 0), *lamp(120, 2), *lamp(50, 4), *lamp(200, 6)]))
    counts = np.bincount(kept.x, minlength=8)
    assert counts[4] == len(lamp(50, 4))
    assert counts[6] == len(lamp(200, 6))
    assert max(counts[0], counts[2]) < 0.06 * len(lamp(100, 0))  # until the flicker is known, after four periods
    later = made([(1_500_000, 0, 3, 1)])  # it was switched off in the meantime
    assert len(filters(later)) == 1


def test_a_flood_is_thinned_to_the_limit_all_over_the_sensor() -> None:
    rng = np.random.default_rng(1)
    t = np.sort(rng.integers(0, 1_000_000, 1_000_000))
    x = np.arange(len(t)) % 64  # rows are read out from left to right
    flood = Events(t, x, np.zeros(len(t), int), np.ones(len(t), int), (64, 64))
    kept = EventFilters("rate:100k", (64, 64))(flood)
    assert 95_000 <= len(kept) <= 100_000
    assert np.bincount(kept.t_us // 1000).max() <= 100
    columns = np.bincount(kept.x, minlength=64)
    assert columns.min() > 0.7 * columns.mean()
    few = flood[::20]  # 50 000 per second
    assert EventFilters("rate:100k", (64, 64))(few) == few


def test_filters_run_in_their_order_and_count_what_each_has_dropped() -> None:
    events = made([(0, 1, 1, 1), (10, 2, 1, 1), (20, 2, 1, 0), (9000, 5, 5, 1)])
    filters = EventFilters(["background:5ms", "refractory:1ms"], SIZE)
    assert rows_of(filters(events)) == [(10, 2, 1, 1)]
    assert filters.dropped == {"background:5ms": 2, "refractory:1ms": 1}
    swapped = EventFilters(["refractory:1ms", "background:5ms"], SIZE)
    swapped(events)
    assert swapped.dropped == {"refractory:1ms": 1, "background:5ms": 2}


@pytest.mark.parametrize("spec", [kind.example for kind in FILTERS.values() if not kind.example.startswith("roi")])
def test_a_reset_filter_is_as_new_and_keeps_its_counts(spec: str) -> None:
    events = made([(t, 3, 3, t // 5000 % 2) for t in range(0, 2_000_000, 500)])
    filters, fresh = EventFilters(spec, SIZE), EventFilters(spec, SIZE)
    first = filters(events)
    assert len(first) < len(events) or spec == "rate:5M"
    filters.reset()
    assert filters(events) == fresh(events) == first
    assert filters.dropped[spec] == 2 * fresh.dropped[spec]


# ---- wrong texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["background", "background:", "background:5", "background:0ms", "background:2min", "background:90s", "refractory:x",
     "hot-pixels:", "hot-pixels:9", "flicker:100", "flicker:130-90", "flicker:0-50", "flicker:nan-90", "roi:1,2,3",
     "roi:4,4,4,8", "rate:999", "rate:many", "rate:-5"],
)  # fmt: skip
def test_a_wrong_value_names_what_was_given_and_an_example(spec: str) -> None:
    with pytest.raises(FateError) as error:
        check_filters([spec])
    name = spec.partition(":")[0]
    assert f"filter {spec} was given" in str(error.value)
    assert FILTERS[name].example in str(error.value)


def test_an_unknown_filter_lists_all_and_the_nearest() -> None:
    with pytest.raises(FateError, match="'background'") as error:
        check_filters("backgroud:5ms")
    assert all(kind.example in str(error.value) for kind in FILTERS.values())


def test_a_filter_given_twice_is_refused() -> None:
    with pytest.raises(FateError, match=r"roi:0,0,2,2 .* 2 times"):
        check_filters(["roi:0,0,2,2", "rate:5M", "roi:0,0,2,2"])


def test_a_region_or_events_of_another_sensor_are_refused() -> None:
    with pytest.raises(FateError, match="8×6"):
        EventFilters("roi:0,0,9,6", SIZE)
    with pytest.raises(FateError, match="64×64.*8×6"):
        EventFilters("refractory:1ms", SIZE)(made(noise(3, 9), (64, 64)))
