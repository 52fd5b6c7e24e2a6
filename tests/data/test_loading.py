"""Clips off the disk: events and labels of each window, for any number of workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fate.boxes.labels import Labels
from fate.data import loading
from fate.data.clips import Clip, DrawTiming, Grid, Timing, TrainingPlan, evaluation_batches
from fate.data.loading import ClipBatch, ClipReader, load
from fate.data.transforms import Augmentation
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events

SENSOR = (24, 32)


class Reader:
    def __init__(self, events: Events, opened: list[int]) -> None:
        self.kept, self.opened = events, opened
        opened[0] += 1

    def read(self, start_us: int, end_us: int) -> Events:
        return self.kept.between(start_us, end_us)

    def close(self) -> None:
        self.opened[0] -= 1


class Source(NamedTuple):
    """A recording in memory: events at random, boxes every 100 ms whose class tells the time."""

    number: int
    start_us: int
    end_us: int
    opened: list[int]

    def open(self) -> Reader:
        random = np.random.default_rng(self.number)
        count = (self.end_us - self.start_us) // 200
        t = np.sort(random.integers(self.start_us, self.end_us, count))
        x, y, p = (random.integers(0, top, count) for top in (32, 24, 2))
        return Reader(Events(t, x, y, p, SENSOR), self.opened)

    @property
    def labels(self) -> Labels:
        t = np.arange(self.start_us + 100_000, self.end_us, 100_000)
        ones = np.ones(len(t), np.float32)
        return Labels(t, 3 * ones, 4 * ones, 9 * ones, 12 * ones, np.arange(len(t)))


OPENED = [0]
SOURCES = [Source(n, 1000 * n, 1000 * n + length, OPENED) for n, length in enumerate((700_000, 1_200_000, 450_000))]


def at_40_hz(_batch: int, _rate_quantile: float, _window_quantile: float) -> Timing:
    return Timing(40.0)


def training_plan() -> TrainingPlan:
    times = [source.labels.labelled_us for source in SOURCES]
    return TrainingPlan(SOURCES, times, steps=3, random=2, streams=2, timing=at_40_hz, seed=1)


def same(first: ClipBatch, second: ClipBatch) -> bool:
    tensors = torch.equal(first.events.block, second.events.block) and torch.equal(first.begins, second.begins)
    return tensors and first.labels == second.labels and np.array_equal(first.ends_us, second.ends_us)


def test_windows_hold_their_events_time_major() -> None:
    clips = [Clip(0, 40.0, 2, 3, True, 0), Clip(1, 200.0, 7, 3, False, 0)]
    batch = ClipReader(SOURCES, SENSOR).batch(clips)
    assert batch.events.durations == (25_000, 5_000) * 3
    for t in range(3):
        for lane, clip in enumerate(clips):
            window = Grid.of(SOURCES[clip.recording], clip.hz).window(clip.first + t)
            row = 2 * t + lane
            expected = SOURCES[clip.recording].open().read(window.start_us, window.end_us)
            part = slice(int(batch.events.offsets[row]), int(batch.events.offsets[row + 1]))
            assert np.array_equal(batch.events.t_us[part].numpy() + window.start_us, expected.t_us)
            assert np.array_equal(batch.events.x[part].numpy(), expected.x)
            assert batch.ends_us[t, lane] == window.end_us
    assert batch.begins.tolist() == [True, False]


def test_labels_stand_at_the_windows_that_end_nearest_to_them() -> None:
    batch = ClipReader(SOURCES, SENSOR).batch([Clip(1, 40.0, 0, 12, True, 0)])
    found = {
        int(batch.ends_us[t, 0]): part.class_id.tolist() for t, part in enumerate(batch.labels) if part is not None
    }
    assert found == {101_000: [0], 201_000: [1], 301_000: [2]}


def test_windows_of_one_length_at_a_dense_hop_share_events() -> None:
    batch = ClipReader(SOURCES, SENSOR).batch([Clip(1, 200.0, 9, 4, True, 0, window_us=50_000)])
    assert batch.events.durations == (50_000,) * 4
    assert np.diff(batch.ends_us[:, 0]).tolist() == [5_000] * 3
    expected = SOURCES[1].open().read(1000 + 5_000, 1000 + 55_000)
    assert batch.events.counts[1] == len(expected)


def test_a_window_may_begin_before_the_recording() -> None:
    batch = ClipReader(SOURCES, SENSOR).batch([Clip(1, 200.0, 0, 1, True, 0, window_us=50_000)])
    assert batch.events.counts[0] == len(SOURCES[1].open().read(1000, 6000))


def test_shorter_clips_and_empty_lanes_are_filled_up_with_nothing() -> None:
    batches = list(evaluation_batches(SOURCES, 40, batch_size=4, steps=20))
    reader = ClipReader(SOURCES, SENSOR)
    loaded = [reader.batch(clips) for clips in batches]
    last = loaded[-1]
    for lane, clip in enumerate(last.clips):
        assert (last.ends_us[clip.steps :, lane] == -1).all()
        assert (last.ends_us[: clip.steps, lane] > 0).all()
        for t in range(clip.steps, last.steps):
            assert last.events.counts[t * 4 + lane] == 0
            assert last.labels[t * 4 + lane] is None


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_workers_gives_the_same_batches(workers: int) -> None:
    plans = partial(_first_batches, 0, 7)
    alone = list(load(ClipReader(SOURCES, SENSOR), plans))
    shared = list(load(ClipReader(SOURCES, SENSOR), plans, workers=workers))
    assert len(alone) == len(shared) == 7
    assert all(same(first, second) for first, second in zip(alone, shared, strict=True))


def test_a_resumed_run_gets_the_batches_it_missed() -> None:
    whole = list(load(ClipReader(SOURCES, SENSOR), partial(_first_batches, 0, 9)))
    rest = list(load(ClipReader(SOURCES, SENSOR), partial(_first_batches, 4, 5)))
    assert all(same(first, second) for first, second in zip(whole[4:], rest, strict=True))


def test_labels_are_kept_until_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def labels_of(number: int, hz: float) -> Labels:
        asked.append(number)
        return SOURCES[number].labels

    reader = ClipReader(SOURCES, SENSOR, labels_of=labels_of)
    for number in (0, 1, 2, 0, 1, 2):
        reader.batch([Clip(number, 40.0, 0, 2, True, 0)])
    assert asked == [0, 1, 2]
    monkeypatch.setattr(loading, "MAX_LABEL_ROWS", 2 * len(SOURCES[1].labels))
    reader.batch([Clip(2, 20.0, 0, 2, True, 0)])  # another table, which leaves room for one of the others at most
    asked.clear()
    for number in (0, 1):
        reader.batch([Clip(number, 40.0, 0, 2, True, 0)])
    assert asked == [0, 1]


def test_few_recordings_are_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_OPEN", 2)
    OPENED[0] = 0
    reader = ClipReader(SOURCES, SENSOR)
    for clips in islice(training_plan().batches(), 12):
        reader.batch(clips)
        assert OPENED[0] <= 2
    reader.close()
    assert OPENED[0] == 0


def test_one_draw_changes_events_and_labels_of_a_whole_clip() -> None:
    always = ClipReader(SOURCES, SENSOR, augmentation=Augmentation(flip=1.0))
    clips = [Clip(1, 40.0, 0, 12, True, 5)]
    changed, before = always.batch(clips), ClipReader(SOURCES, SENSOR).batch(clips)
    assert torch.equal(changed.events.x, 31 - before.events.x)
    assert torch.equal(changed.events.t_us, before.events.t_us)
    boxes = [part.boxes.tolist() for part in changed.labels if part is not None]
    assert boxes == [[[23, 4, 29, 12]]] * 3


def test_the_seed_of_a_clip_decides_how_it_is_changed() -> None:
    reader = ClipReader(SOURCES, SENSOR, augmentation=Augmentation.paper())
    clips = [Clip(1, 40.0, 0, 4, True, seed) for seed in (5, 5, 6)]
    counts = np.array(reader.batch(clips).events.counts).reshape(4, 3)
    assert (counts[:, 0] == counts[:, 1]).all()
    assert (counts[:, 0] != counts[:, 2]).any()


def test_a_stream_is_changed_alike_from_its_first_clip_to_its_last() -> None:
    zoom = Augmentation(zoom=1.0, zoom_in_share=1.0, zoom_in_range=(1.4, 1.5))
    clips = [Clip(1, 40.0, first, 6, first == 0, 5, stream=True) for first in (0, 6, 12)]
    reader, plain = (ClipReader(SOURCES, SENSOR, augmentation=each) for each in (zoom, None))
    for clip in clips:  # zooming in depends on the boxes of a clip, so a stream does without it
        assert same(reader.batch([clip]), plain.batch([clip]))
    alone = clips[0]._replace(stream=False)
    assert not same(reader.batch([alone]), plain.batch([alone]))


def test_streams_may_have_an_augmentation_of_their_own() -> None:
    reader = ClipReader(SOURCES, SENSOR, augmentation=Augmentation(flip=1.0), stream_augmentation=Augmentation())
    alone, stream = (Clip(1, 40.0, 0, 3, True, 5, stream=stream) for stream in (False, True))
    plain = ClipReader(SOURCES, SENSOR).batch([alone])
    assert torch.equal(reader.batch([stream]).events.x, plain.events.x)
    assert torch.equal(reader.batch([alone]).events.x, 31 - plain.events.x)


class DenseLabels(NamedTuple):
    """At every window's end of a rate, a box whose class tells the rate."""

    asked: list[tuple[int, float]]

    def __call__(self, number: int, hz: float) -> Labels | None:
        self.asked.append((number, hz))
        if number == 2:
            return None
        ends = np.arange(1, 10) * round(1e6 / hz) + SOURCES[number].start_us
        ones = np.ones(9, np.float32)
        return Labels(ends, 3 * ones, 4 * ones, 9 * ones, 12 * ones, np.full(9, round(hz)))


def test_labels_may_come_from_elsewhere_for_each_rate() -> None:
    labels_of = DenseLabels([])
    reader = ClipReader(SOURCES, SENSOR, labels_of=labels_of)
    clips = [Clip(0, 40.0, 7, 3, True, 0), Clip(0, 200.0, 0, 3, True, 0), Clip(2, 20.0, 0, 3, True, 0)]
    for _ in range(2):
        batch = reader.batch(clips)
        found = [None if part is None else part.class_id.tolist() for part in batch.labels]
        assert found == [[40], [200], None, [40], [200], None, None, [200], None]
    assert labels_of.asked == [(0, 40.0), (0, 200.0), (2, 20.0)]  # kept from then on


def test_labels_from_elsewhere_reach_workers() -> None:
    plans = partial(_first_batches, 0, 4)
    reader = ClipReader(SOURCES, SENSOR, labels_of=DenseLabels([]))
    alone, shared = (list(load(reader, plans, workers=workers)) for workers in (0, 2))
    assert any(part is not None for batch in alone for part in batch.labels)
    assert all(same(first, second) for first, second in zip(alone, shared, strict=True))


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_hold_the_batch_that_one_process_would(world: int) -> None:
    settings = {"augmentation": Augmentation.paper(), "warmup": 2}
    whole = ClipReader(SOURCES, SENSOR, **settings)
    ranks = [ClipReader(SOURCES, SENSOR, rank=rank, world=world, **settings) for rank in range(world)]
    for clips in _first_batches(3, 5, at_any_rate):
        expected = whole.batch(clips)
        for rank, reader in enumerate(ranks):
            part = reader.batch(clips)
            assert part.clips == clips[rank::world]
            assert part.steps == expected.steps
            assert np.array_equal(part.ends_us, expected.ends_us[:, rank::world])
            assert torch.equal(part.begins, expected.begins[rank::world])
            lanes = [lane for step in range(part.steps) for lane in range(step * 4 + rank, step * 4 + 4, world)]
            assert part.labels == [expected.labels[row] for row in lanes]
            assert _rows(part.events) == [_rows(expected.events)[row] for row in lanes]
            _same_teacher(part, expected, rank, world)


def _same_teacher(part: ClipBatch, whole: ClipBatch, rank: int, world: int) -> None:
    assert part.teacher is not None
    assert whole.teacher is not None
    steps, each = whole.teacher.steps, 4 // world
    assert part.teacher.steps == steps
    lanes = [lane for step in range(steps) for lane in range(step * 4 + rank, step * 4 + 4, world)]
    assert _rows(part.teacher.events) == [_rows(whole.teacher.events)[row] for row in lanes]
    pairs = [(a // 4, b // 4, a % 4) for a, b in whole.teacher.shared.tolist() if a % 4 % world == rank]
    assert [(a // each, b // each, a % each * world + rank) for a, b in part.teacher.shared.tolist()] == pairs


def test_a_rank_opens_no_recording_but_those_of_its_lanes() -> None:
    OPENED[0] = 0
    reader = ClipReader(SOURCES, SENSOR, rank=1, world=2)
    reader.batch([Clip(0, 40.0, 0, 2, True, 0), Clip(1, 40.0, 0, 2, True, 0)])
    assert OPENED[0] == 1
    reader.close()


def test_lanes_that_cannot_be_shared_equally_are_refused() -> None:
    with pytest.raises(FateError, match="3 .* 2 processes"):
        ClipReader(SOURCES, SENSOR, rank=0, world=2).batch([Clip(0, 40.0, 0, 2, True, 0)] * 3)
    with pytest.raises(FateError, match="rank 2 of 2"):
        ClipReader(SOURCES, SENSOR, rank=2, world=2)


def at_any_rate(_batch: int, rate_quantile: float, window_quantile: float) -> Timing:
    """One of three rates; windows as long as the hop, or 50 ms."""
    return Timing((20.0, 40.0, 200.0)[int(3 * rate_quantile)], 50_000 if window_quantile < 0.5 else None)


def _rows(events: EventBatch) -> list[tuple[bytes, ...]]:
    """The columns of each window."""
    bounds = events.offsets.tolist()
    columns = [column.numpy() for column in (events.t_us, events.x, events.y, events.p)]
    return [tuple(column[a:b].tobytes() for column in columns) for a, b in pairwise(bounds)]


def _first_batches(first: int, count: int, timing: DrawTiming = at_40_hz) -> list[list[Clip]]:
    return list(islice(replace(training_plan(), timing=timing).batches(first), count))


KILLED = """
import sys
from tests.data.test_loading import SENSOR, SOURCES, training_plan
from fate.data.loading import ClipReader, load
import multiprocessing

if __name__ == "__main__":
    batches = iter(load(ClipReader(SOURCES, SENSOR), training_plan().batches, workers=1))
    next(batches)
    print(multiprocessing.active_children()[0].pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the states of processes are read from /proc")
@pytest.mark.slow
def test_a_worker_ends_when_the_main_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    state = Path("/proc") / process.stdout.readline().decode().strip() / "stat"
    assert state.exists()
    process.kill()
    process.wait()
    for _ in range(100):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the worker still runs")
