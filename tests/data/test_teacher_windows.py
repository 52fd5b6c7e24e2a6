"""What a teacher sees beside a clip: canonical windows over the same time, and earlier ones to warm up on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fate.boxes.labels import Labels
from fate.data.clips import NOTHING, Clip, Grid, canonical_numbers, canonical_steps
from fate.data.loading import ClipBatch, ClipReader, TeacherPart, load
from fate.data.transforms import Augmentation
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events

SENSOR = (24, 32)
RATES = [10.0, 30.0, 40.0, 80.0, 100.0, 200.0, 333.0]


@dataclass(frozen=True)
class Source:
    """A recording in memory: an event every 100 µs, anywhere."""

    start_us: int
    end_us: int

    def open(self) -> Source:
        return self

    def close(self) -> None:
        pass

    @property
    def events(self) -> Events:
        t = np.arange(self.start_us, self.end_us, 100)
        random = np.random.default_rng(self.start_us)
        x, y, p = (random.integers(0, top, len(t)) for top in (32, 24, 2))
        return Events(t, x, y, p, SENSOR)

    def read(self, start_us: int, end_us: int) -> Events:
        return self.events.between(start_us, end_us)

    @property
    def labels(self) -> Labels:
        return Labels.empty([self.start_us + 300_000])


SOURCES = [Source(7_000, 900_000), Source(0, 1_500_000)]


def batch_of(clips: list[Clip], warmup: int = 4, **settings: object) -> tuple[ClipBatch, TeacherPart]:
    batch = ClipReader(SOURCES, SENSOR, warmup=warmup, **settings).batch(clips)  # type: ignore[arg-type]
    assert batch.teacher is not None
    return batch, batch.teacher


def row(events: EventBatch, number: int) -> np.ndarray:
    """t since the window's start, x and y of one window's events."""
    part = slice(int(events.offsets[number]), int(events.offsets[number + 1]))
    return np.stack([events.t_us[part].numpy(), events.x[part].numpy(), events.y[part].numpy()])


@given(st.sampled_from(RATES), st.integers(0, 300), st.integers(1, 30), st.integers(0, 6))
def test_canonical_windows_cover_a_clip_and_the_warm_up_before(hz: float, first: int, steps: int, warmup: int) -> None:
    clip, recording = Clip(0, hz, first, steps, True, 0), SOURCES[0]
    grid, canonical = Grid.of(recording, hz), Grid.of(recording, 20)
    numbers = canonical_numbers(clip, canonical_steps([clip], warmup))
    span = grid.end_us(first - 1), grid.end_us(first + steps - 1)
    within = [number for number in range(2000) if span[0] < canonical.end_us(number) <= span[1]]
    last = int((span[1] - recording.start_us) // 50_000) - 1
    assert numbers == range(last + 1 - max(len(within) + warmup, 1), last + 1)
    assert within == list(numbers)[len(numbers) - len(within) :]


@pytest.mark.parametrize("hz", [40.0, 80.0, 100.0, 200.0])
def test_every_canonical_end_within_a_clip_is_shared_at_the_rates_of_the_paper(hz: float) -> None:
    batch, teacher = batch_of([Clip(0, hz, 13, 21, True, 0), Clip(1, hz, 40, 21, True, 0)])
    ends, theirs = batch.ends_us.ravel(), teacher.ends_us.ravel()
    assert (ends[teacher.shared[:, 0]] == theirs[teacher.shared[:, 1]]).all()
    assert (teacher.shared[:, 0] % 2 == teacher.shared[:, 1] % 2).all()
    for lane in range(2):
        own = {int(end) for end in batch.ends_us[:, lane]}
        grid = Grid.of(SOURCES[lane], 20)
        expected = [grid.end_us(number) for number in range(30) if grid.end_us(number) in own]
        assert ends[teacher.shared[:, 0]][teacher.shared[:, 0] % 2 == lane].tolist() == expected


def test_at_twenty_hertz_the_teacher_has_nothing_to_say() -> None:
    slow, fast = Clip(0, 20.0, 6, 5, True, 0), Clip(0, 100.0, 30, 5, True, 0)
    assert ClipReader(SOURCES, SENSOR, warmup=4).batch([slow, slow]).teacher is None
    _, teacher = batch_of([slow, fast])
    assert (teacher.shared % 2 == 1).all()  # rows of the second lane alone
    assert len(teacher.shared) == 1


def test_a_rate_that_does_not_divide_shares_only_equal_times() -> None:
    _, teacher = batch_of([Clip(0, 30.0, 0, 12, True, 0)])  # 33 333 µs never meets 50 000 µs here
    assert teacher.shared.shape == (0, 2)
    _, teacher = batch_of([Clip(1, 10.0, 0, 3, True, 0)])
    assert len(teacher.shared) == 3


def test_all_lanes_end_together_and_have_real_windows_before() -> None:
    clips = [Clip(0, 40.0, 16, 12, True, 0), Clip(1, 200.0, 177, 6, True, 0)]
    _, teacher = batch_of(clips, warmup=2)
    assert teacher.steps == 8  # 6 within the slow clip
    assert (np.diff(teacher.ends_us, axis=0) == 50_000).all()
    assert teacher.ends_us[-1].tolist() == [7_000 + 14 * 50_000, 18 * 50_000]
    for t in range(8):
        for lane, end in enumerate(teacher.ends_us[t].tolist()):
            expected = SOURCES[lane].read(end - 50_000, end)
            assert np.array_equal(row(teacher.events, 2 * t + lane)[0], expected.t_us - (end - 50_000))


def test_before_the_recording_there_is_nothing() -> None:
    _, teacher = batch_of([Clip(0, 100.0, 0, 10, True, 0)], warmup=3)
    assert teacher.ends_us[:, 0].tolist() == [7_000 + 50_000 * k for k in (-2, -1, 0, 1, 2)]
    assert teacher.events.counts == (0, 0, 0, 500, 500)


def test_a_clip_too_short_to_hold_a_canonical_end_shares_nothing() -> None:
    _, teacher = batch_of([Clip(1, 200.0, 11, 5, True, 0)], warmup=0)  # 55 to 80 ms
    assert teacher.steps == 1
    assert teacher.ends_us.tolist() == [[50_000]]
    assert teacher.shared.shape == (0, 2)


def test_a_lane_that_has_run_out_shares_nothing() -> None:
    batch, teacher = batch_of([NOTHING, Clip(1, 40.0, 4, 6, True, 0)])
    assert (teacher.ends_us[:, 0] == -1).all()
    assert set(teacher.shared[:, 0] % 2) == {1}
    assert sum(teacher.events.counts[0::2]) == 0
    assert (batch.ends_us[:, 0] == -1).all()


@pytest.mark.parametrize("hz", [40.0, 200.0])
def test_teacher_and_student_are_changed_alike(hz: float) -> None:
    changes = Augmentation(flip=0.5, rotate=1.0, scale=1.0, erase=1.0)
    for seed in range(4):
        batch, teacher = batch_of([Clip(1, hz, 40, 20, True, seed)], augmentation=changes)
        for student, other in teacher.shared.tolist():
            ours, theirs = row(batch.events, student), row(teacher.events, other)
            window_us = round(1e6 / hz)
            late = theirs[:, theirs[0] >= 50_000 - window_us]  # what the student's shorter window has seen too
            late[0] -= 50_000 - window_us
            assert ours.shape[1]
            assert np.array_equal(ours, late)


def test_windows_of_another_length_leave_the_canonical_ones_as_they_are() -> None:
    _, plain = batch_of([Clip(1, 100.0, 20, 10, True, 0)])
    _, long = batch_of([Clip(1, 100.0, 20, 10, True, 0, window_us=80_000)])
    assert torch.equal(plain.events.block, long.events.block)


def test_the_part_of_a_teacher_comes_out_of_workers() -> None:
    clips = [[Clip(0, 40.0, 4, 6, True, 0), Clip(1, 200.0, 70, 6, True, 0)]] * 2
    alone, shared = (
        list(load(ClipReader(SOURCES, SENSOR, warmup=4), partial(list, clips), workers=workers)) for workers in (0, 1)
    )
    for one, other in zip(alone, shared, strict=True):
        assert torch.equal(one.teacher.events.block, other.teacher.events.block)
        assert np.array_equal(one.teacher.shared, other.teacher.shared)
        assert one.teacher.steps == other.teacher.steps


def test_without_a_warm_up_there_is_no_teacher_and_a_negative_one_is_refused() -> None:
    assert ClipReader(SOURCES, SENSOR).batch([Clip(0, 20.0, 0, 2, True, 0)]).teacher is None
    with pytest.raises(FateError, match="warmup=-1 was given"):
        ClipReader(SOURCES, SENSOR, warmup=-1)
