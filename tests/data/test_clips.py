"""Plans of batches: which windows, in which order, and what they stand for."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.data.clips import NOTHING, Clip, Grid, Timing, TrainingPlan, evaluation_batches
from fate.errors import FateError
from fate.evaluation.labelled_frames import nearest_times


class Recording(NamedTuple):
    start_us: int
    end_us: int


def at_20_hz(_batch: int, _rate_quantile: float, _window_quantile: float) -> Timing:
    return Timing(20.0)


def mixed_rates(batch: int, rate_quantile: float, _window_quantile: float) -> Timing:
    return Timing(20.0 if rate_quantile < 0.5 else 200.0) if batch < 50 else Timing(80.0)


RECORDINGS = [Recording(0, 3_000_000), Recording(1_000, 2_001_000), Recording(500, 900_500), Recording(0, 10_000_000)]
LABELLED = [
    np.arange(250_000, 3_000_000, 250_000),
    np.array([1_300_000, 1_900_123]),
    np.array([], np.int64),
    np.arange(1_000_000, 9_000_000, 1_000_000),
]


def plan(**changes: object) -> TrainingPlan:
    settings: dict[str, object] = {"steps": 5, "random": 2, "streams": 3, "timing": mixed_rates, "seed": 4}
    return TrainingPlan(RECORDINGS, LABELLED, **{**settings, **changes})  # type: ignore[arg-type]


@given(
    st.integers(-(10**9), 10**9),
    st.sampled_from([20.0, 40.0, 80.0, 100.0, 200.0, 30.0, 1000.0]),
    st.integers(0, 10**7),
)
def test_a_time_belongs_to_the_window_whose_end_is_nearest(start: int, hz: float, since: int) -> None:
    grid = Grid.of(Recording(start, start + 10**8), hz)
    number = int(grid.nearest(np.array([start + since]))[0])
    away = abs(start + since - grid.end_us(number))
    assert all(away <= abs(start + since - grid.end_us(other)) for other in (max(number - 1, 0), number + 1))
    assert number == 0 or 2 * away <= grid.hop_us


def test_windows_end_at_multiples_of_the_hop_and_keep_their_length() -> None:
    grid = Grid.of(RECORDINGS[1], 80)
    assert (grid.hop_us, grid.window_us) == (12_500, 12_500)
    assert grid.window(0).start_us == 1_000
    assert grid.window(3).end_us == 1_000 + 4 * 12_500
    dense = Grid.of(RECORDINGS[1], 200, length_us=50_000)
    assert dense.window(3).duration_us == 50_000
    assert dense.window(3).end_us == 1_000 + 4 * 5_000
    assert grid.count(1_000 + 25_000) == 2
    assert grid.count(1_000 + 25_001) == 3


def test_of_several_labelled_times_a_window_stands_for_the_nearest() -> None:
    grid = Grid(0, 50_000, 50_000)
    found = grid.labelled(np.array([16_667, 33_333, 49_000, 66_667, 83_333, 110_000, 125_001]))
    assert found == {0: 49_000, 1: 110_000, 2: 125_001}


@given(st.integers(0, 10**6), st.sampled_from([20.0, 40.0, 80.0, 200.0, 30.0]), st.lists(st.integers(0, 10**6)))
def test_a_label_is_learnt_at_the_window_that_it_is_evaluated_at(start: int, hz: float, since: list[int]) -> None:
    grid = Grid.of(Recording(start, start + 10**6), hz)
    halves = grid.start_us + grid.hop_us * np.arange(1, 9) // 2  # ties
    times = np.concatenate([np.array(since, np.int64) + start, halves])
    ends = np.array([grid.end_us(number) for number in range(grid.count(start + 2 * 10**6))])
    evaluated = nearest_times(ends, times, grid.hop_us // 2)
    near = evaluated >= 0
    assert np.array_equal(grid.nearest(times)[near], evaluated[near])


def test_a_label_long_before_the_first_end_belongs_to_no_window() -> None:
    assert Grid(0, 50_000, 50_000).labelled(np.array([10_000])) == {}


def test_the_same_seed_gives_the_same_batches_and_another_gives_others() -> None:
    first, again, other = (list(islice(plan(seed=seed).batches(), 60)) for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_a_resumed_plan_goes_on_where_it_stopped() -> None:
    whole = list(islice(plan().batches(), 90))
    for stopped in (1, 17, 60):
        assert list(islice(plan().batches(stopped), 90 - stopped)) == whole[stopped:]


def test_streams_stay_in_order_and_reset_their_state_only_at_a_new_recording_or_rate() -> None:
    batches = list(islice(plan(random=0).batches(), 300))
    for lane in range(3):
        clips = [batch[lane] for batch in batches]
        assert clips[0].begins
        for before, after in pairwise(clips):
            grid = Grid.of(RECORDINGS[before.recording], before.hz)
            end_us = grid.end_us(before.first + before.steps - 1)
            if not after.begins:
                assert after == before._replace(first=before.first + before.steps, begins=False)
            elif after.recording == before.recording and after.hz != before.hz:
                start_us = Grid.of(RECORDINGS[after.recording], after.hz).window(after.first).start_us
                assert 0 <= start_us - end_us < 1e6 / after.hz  # it goes on at the same time
            else:
                coarsest = Grid.of(RECORDINGS[before.recording], after.hz)
                last_label = int(LABELLED[before.recording][-1])
                assert end_us >= last_label - max(grid.hop_us, coarsest.hop_us)


def test_a_stream_begins_a_clip_before_the_first_label() -> None:
    for batch in islice(plan(random=0, timing=at_20_hz).batches(), 100):
        for clip in batch:
            if clip.begins:
                first = int(Grid.of(RECORDINGS[clip.recording], clip.hz).nearest(LABELLED[clip.recording][:1])[0])
                assert clip.first == max(first - clip.steps + 1, 0)


def test_streams_see_all_of_a_recording_whatever_their_rates() -> None:
    seen_us: dict[tuple[int, int], int] = {}
    order: list[tuple[int, int]] = []
    for batch in islice(plan(random=0, streams=1, rate_clips=3).batches(), 3000):
        clip = batch[0]
        grid = Grid.of(RECORDINGS[clip.recording], clip.hz)
        if clip.begins and (not order or order[-1][0] != clip.recording):
            order.append((clip.recording, len(order)))
        seen_us[order[-1]] = seen_us.get(order[-1], 0) + clip.steps * grid.hop_us
    for (recording, _), total in list(seen_us.items())[:-1]:
        wanted = int(LABELLED[recording][-1] - LABELLED[recording][0])
        assert total > 0.9 * wanted


def test_every_stream_has_an_order_of_its_own_and_goes_through_all_labelled_recordings() -> None:
    seen: list[list[int]] = [[], [], []]
    for batch in islice(plan(random=0, timing=at_20_hz).batches(), 400):
        for lane, clip in enumerate(batch):
            if clip.begins:
                seen[lane].append(clip.recording)
    for order in seen:
        assert {0, 1, 3} == set(order[:3]) == set(order[3:6])
    assert len({tuple(order[:9]) for order in seen}) > 1


def test_a_random_clip_ends_with_a_labelled_window_and_begins_anew() -> None:
    for batch in islice(plan(streams=0).batches(), 200):
        for clip in batch:
            grid = Grid.of(RECORDINGS[clip.recording], clip.hz)
            assert clip.begins
            assert (
                clip.first + clip.steps - 1 in {int(n) for n in grid.nearest(LABELLED[clip.recording])}
                or not clip.first
            )


def test_all_labelled_times_are_equally_likely() -> None:
    clips = [clip for batch in islice(plan(random=8, streams=0, timing=at_20_hz).batches(), 500) for clip in batch]
    share = np.mean([clip.recording == 0 for clip in clips])
    assert share == pytest.approx(11 / 21, abs=0.03)  # recording 0 has 11 of 21 labelled times


def test_rates_follow_the_step_of_training() -> None:
    late = [clip.hz for batch in islice(plan(streams=0).batches(60), 20) for clip in batch]
    early = [clip.hz for batch in islice(plan(streams=0).batches(), 40) for clip in batch]
    assert set(late) == {80.0}
    assert set(early) == {20.0, 200.0}


@pytest.mark.parametrize("lanes", [1, 3, 9])
@pytest.mark.parametrize("steps", [1, 4])
def test_evaluation_sees_every_window_once_and_in_order(lanes: int, steps: int) -> None:
    seen: dict[int, list[int]] = {}
    where: dict[int, int] = {}
    for batch in evaluation_batches(RECORDINGS, 40, lanes, steps):
        assert len(batch) == lanes
        for lane, clip in enumerate(batch):
            if clip.is_empty:
                continue
            assert clip.begins == (clip.first == 0)
            assert where.setdefault(clip.recording, lane) == lane
            seen.setdefault(clip.recording, []).extend(range(clip.first, clip.first + clip.steps))
    for number, recording in enumerate(RECORDINGS):
        assert seen[number] == list(range(Grid.of(recording, 40).count(recording.end_us)))


def test_a_row_without_a_recording_is_empty() -> None:
    last = list(evaluation_batches(RECORDINGS, 20, 6, 10))[-1]
    assert NOTHING in last
    assert Clip(3, 20.0, 190, 10, False, 0) in last


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(FateError, match="clips of 0 windows"):
        plan(steps=0)
    with pytest.raises(FateError, match="0 random and 0 stream rows"):
        plan(random=0, streams=0)
    with pytest.raises(FateError, match="no recording has labels"):
        TrainingPlan(RECORDINGS[2:3], LABELLED[2:3], 5, 1, 0, at_20_hz)
