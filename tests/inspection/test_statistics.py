"""Statistics of events against counts made the slow and plain way, and against streams whose figures are known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from fate import Events, FateError, Recording, info, open_recording, write_events
from fate.inspection.statistics import (
    BURST_US,
    MAX_EVENTS,
    MAX_PILLARS,
    PILLAR,
    WINDOWS_US,
    event_statistics,
    pillar_statistics,
    spread,
)
from tests.conftest import event_lists, make_events


def opened(events: Events, folder: Path) -> Recording:
    write_events(folder / "drive.npz", events)
    return open_recording(folder / "drive.npz")


def heads(events: Events) -> list[bool]:
    """Which events stay when bursts are merged, by the definition."""
    last: dict[tuple[int, int, int], int] = {}
    kept = []
    for t, x, y, p in zip(events.t_us, events.x, events.y, events.p, strict=True):
        key = (int(x), int(y), int(p))
        kept.append(key not in last or int(t) - last[key] >= BURST_US)
        last[key] = int(t)
    return kept


def pillar_counts(events: Events, kept: list[bool], start: int, length: int) -> tuple[list[int], list[int]]:
    """Events in each active pillar of one window: all, and without those that follow in a burst."""
    raw: Counter[tuple[int, int]] = Counter()
    merged: Counter[tuple[int, int]] = Counter()
    for t, x, y, stays in zip(events.t_us, events.x, events.y, kept, strict=True):
        if start <= t < start + length:
            cell = (int(y) // PILLAR, int(x) // PILLAR)
            raw[cell] += 1
            merged[cell] += stays
    return list(raw.values()), [number for number in merged.values() if number]


def busy_events(seed: int, n: int = 6000) -> Events:
    """A small sensor with bursts, so that pillars overflow."""
    random = np.random.default_rng(seed)
    gaps = random.choice([0, 1, 30, 200, 1500], n)
    x, y = random.integers(0, 7, n), random.integers(0, 5, n)
    repeat = random.integers(1, 6, n)
    order = np.repeat(np.arange(n), repeat)[:n]
    return Events(np.cumsum(gaps), x[order], y[order], random.integers(0, 2, n)[order], (5, 7))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", WINDOWS_US)
def test_pillars_agree_with_a_plain_count(tmp_path: Path, seed: int, length: int) -> None:
    events = busy_events(seed)
    kept = heads(events)
    recording = opened(events, tmp_path)
    starts = spread(recording.start_us, recording.end_us, length, 15)
    found = pillar_statistics(recording, starts, length)
    windows = [pillar_counts(events, kept, start, length) for start in starts]
    active = [len(raw) for raw, _ in windows]
    assert found.num_pillars == 3 * 4
    assert found.active_share == pytest.approx(np.mean(active) / 12)
    assert found.active_max == max(active)
    for kind, occupancy in ((0, found.raw), (1, found.merged)):
        counts = np.array([number for window in windows for number in window[kind]])
        for share, value in ((0.5, occupancy.p50), (0.9, occupancy.p90), (0.99, occupancy.p99)):
            assert value == np.percentile(counts, 100 * share, method="inverted_cdf")
        assert occupancy.above_share == pytest.approx((counts > MAX_EVENTS).mean())
        assert occupancy.lost_share == pytest.approx(np.maximum(counts - MAX_EVENTS, 0).sum() / counts.sum())
        assert occupancy.histogram.sum() == len(counts)


@pytest.mark.parametrize("seed", range(3))
def test_whole_recording_figures_agree_with_a_plain_count(tmp_path: Path, seed: int) -> None:
    events = make_events(5000, seed=seed)
    found = event_statistics(opened(events, tmp_path), windows=3)
    told = info(tmp_path / "drive.npz")
    assert found.on_share == pytest.approx(told.on_share)
    assert found.rate_hz == pytest.approx(told.rate_hz)
    assert found.duplicate_share == pytest.approx(told.duplicates / len(events))
    assert found.merged_rate_hz == pytest.approx(sum(heads(events)) / told.duration_s)
    second = (events.t_us - events.t_us[0]) // 1_000_000
    assert found.rate_per_second.tolist() == np.bincount(second).tolist()
    whole = int(told.duration_s)
    fired = [
        len({*zip(events.x[second == s].tolist(), events.y[second == s].tolist(), strict=True)}) for s in range(whole)
    ]
    assert found.silent_share == pytest.approx(1 - np.mean(fired) / (48 * 64))
    assert found.busiest_hz == np.bincount(second)[:whole].max()
    assert found.busiest_start_us == events.t_us[0] + 1_000_000 * int(np.argmax(np.bincount(second)[:whole]))


def test_bursts_of_known_length_are_counted_and_merged(tmp_path: Path) -> None:
    starts = np.arange(200) * 10_000  # a burst of five events, 3 µs apart, every 10 ms, and single events between
    burst = (starts[:, None] + 3 * np.arange(5)).ravel()
    single = starts + 5000
    order = np.argsort(np.concatenate([burst, single]), kind="stable")
    t = np.concatenate([burst, single])[order]
    events = Events(t, np.full(len(t), 3), np.full(len(t), 2), np.ones(len(t), int), (4, 6))
    found = event_statistics(opened(events, tmp_path), windows=50)
    assert found.burst_share == pytest.approx(5 / 6)
    assert found.burst_length == pytest.approx(5)
    assert found.merged_rate_hz == pytest.approx(found.rate_hz / 3)
    assert found.interval_p1_us == 0  # 3 µs, in bins of 10
    assert found.merged_interval_p1_us == pytest.approx(5000, abs=20)
    assert found.pillars[10_000].raw.p50 == 6
    assert found.pillars[10_000].merged.p50 == 2
    assert found.pillars[10_000].active_share == pytest.approx(1 / 6)


def test_a_burst_that_began_before_the_window_does_not_count_in_it(tmp_path: Path) -> None:
    events = Events([0, 4990, 5010, 5020, 9000], [1, 1, 1, 1, 4], [1] * 5, [1] * 5, (4, 6))
    found = pillar_statistics(opened(events, tmp_path), [5000], 5000)
    assert found.raw.histogram[:4].tolist() == [0, 1, 1, 0]  # two events in one pillar, one in the other
    assert found.merged.histogram[:4].tolist() == [0, 1, 0, 0]


def test_windows_with_too_many_pillars_are_counted(tmp_path: Path) -> None:
    height, width = 400, 400  # 40 000 pillars
    y, x = np.divmod(np.arange(0, height * width), width)
    first, second = (y % 2 == 0) & (x % 2 == 0), (y % 2 == 0) & (x % 8 == 0)  # 40 000 and 10 000 pillars
    t = np.concatenate([np.full(first.sum(), 0), np.full(second.sum(), 5000), [10_000]])
    column = np.concatenate([x[first], x[second], [0]])
    row = np.concatenate([y[first], y[second], [0]])
    recording = opened(Events(t, column, row, np.ones(len(t), int), (height, width)), tmp_path)
    found = pillar_statistics(recording, [0, 5000], 5000)
    assert found.active_max == 40_000
    assert found.windows_above_share == 0.5
    assert found.pillars_lost_share == pytest.approx((40_000 - MAX_PILLARS) / 50_000)


@given(event_lists())
def test_any_recording_with_events_gives_figures_within_their_bounds(
    tmp_path_factory: pytest.TempPathFactory, events: Events
) -> None:
    if not len(events):
        return
    found = event_statistics(opened(events, tmp_path_factory.mktemp("any")), windows=4)
    for share in (found.on_share, found.duplicate_share, found.burst_share):
        assert 0 <= share <= 1
    assert found.merged_rate_hz <= found.rate_hz
    for pillars in (*found.pillars.values(), *found.busiest_pillars.values()):
        assert 0 <= pillars.active_share <= 1
        assert pillars.merged.p99 <= max(pillars.raw.p99, 1)


def test_windows_are_spread_evenly_inside_the_span() -> None:
    assert spread(100, 1100, 100, 20) == list(range(100, 1100, 100))
    starts = spread(0, 1_000_000, 5000, 11)
    assert starts == sorted(set(starts))
    assert (starts[0], starts[-1], len(starts)) == (0, 995_000, 11)
    assert spread(0, 3000, 5000, 4) == [0]
    assert spread(0, 100, 10, 1) == [45]


def test_progress_rises_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    event_statistics(opened(make_events(1000), tmp_path), windows=2, progress=lambda done, *more: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_impossible_requests_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="0 windows were asked for"):
        event_statistics(opened(make_events(10), tmp_path), windows=0)
    far = Events([0, 10**15], [0, 0], [0, 0], [0, 0], (4, 4))
    with pytest.raises(FateError, match="days, so their times jump"):
        event_statistics(opened(far, tmp_path))
