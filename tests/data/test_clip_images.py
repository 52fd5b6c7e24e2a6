"""Clips of RVT's preprocessed data: images in place of events, at the ends that the files give."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fate import open_dataset
from fate.data.clips import NOTHING, Clip, Grid, Timing, TrainingPlan, evaluation_batches
from fate.data.dataset import Dataset
from fate.data.loading import ClipBatch, ClipReader, load, stack_images
from fate.data.transforms import Augmentation
from fate.errors import FateError
from tests.data.test_rvt_layout import write_sequence

SIZE = (24, 32)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two sequences of 12 and 7 images, the second of them 125 ms apart."""
    root = tmp_path_factory.mktemp("rvt")
    write_sequence(root / "train" / "a", images=12, size=SIZE)
    write_sequence(root / "train" / "b", images=7, size=SIZE, seed=1)
    for path in (root / "train" / "b").rglob("timestamps_us.npy"):
        np.save(path, 100_000 + (np.load(path) - 100_000) // 2 * 5)
    boxes = root / "train" / "b" / "labels_v2" / "labels.npz"
    with np.load(boxes) as stored:
        held = dict(stored)
    held["labels"]["t"] = 100_000 + (held["labels"]["t"] - 100_000) // 2 * 5
    np.savez(boxes, **held)
    return open_dataset(root, classes=("car", "pedestrian"))


def at_20_hz(_batch: int, _rate_quantile: float, _window_quantile: float) -> Timing:
    return Timing(20.0)


def plan(dataset: Dataset) -> TrainingPlan:
    times = [each.labels.labelled_us for each in dataset.labelled]
    return TrainingPlan(dataset.labelled, times, steps=4, random=2, streams=1, timing=at_20_hz, seed=2)


def images_of(batch: ClipBatch) -> Tensor:
    assert isinstance(batch.events, Tensor)
    return batch.events.unflatten(0, (batch.steps, len(batch.clips)))


def same(first: ClipBatch, second: ClipBatch) -> bool:
    return torch.equal(images_of(first), images_of(second)) and first.labels == second.labels


def test_a_batch_holds_the_stored_images_time_major(dataset: Dataset) -> None:
    batch = ClipReader(dataset.recordings, dataset.sensor).batch(
        [Clip(0, 20.0, 5, 3, True, 0), Clip(1, 20, 2, 3, True, 0)]
    )
    images = images_of(batch)
    assert images.dtype == torch.uint8
    for lane, (recording, first) in enumerate(((0, 5), (1, 2))):
        sequence = dataset.recordings[recording]
        assert np.array_equal(images[:, lane].numpy(), sequence.images(first, first + 3))  # type: ignore[attr-defined]
        assert batch.ends_us[:, lane].tolist() == sequence.timestamps_us[first : first + 3].tolist()  # type: ignore[attr-defined]
    inputs = batch.inputs("cpu")
    assert isinstance(inputs, Tensor)
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs.byte(), batch.events)  # type: ignore[arg-type]


def test_labels_stand_at_the_images_that_rvt_names(dataset: Dataset) -> None:
    reader = ClipReader(dataset.recordings, dataset.sensor)
    for number, sequence in enumerate(dataset.recordings):
        batch = reader.batch([Clip(number, 20.0, 0, sequence.num_images, True, 0)])  # type: ignore[attr-defined]
        found = {t: part for t, part in enumerate(batch.labels) if part is not None}
        assert sorted(found) == sequence.label_images.tolist()  # type: ignore[attr-defined]
        assert all(part.labelled_us.tolist() == [batch.ends_us[t, 0]] for t, part in found.items())


def test_behind_the_last_image_there_is_nothing(dataset: Dataset) -> None:
    batch = ClipReader(dataset.recordings, dataset.sensor).batch([Clip(1, 20.0, 5, 4, True, 0), NOTHING])
    images = images_of(batch)
    assert images[:2, 0].any()
    assert not images[2:, 0].any()
    assert not images[:, 1].any()
    assert np.diff(batch.ends_us[:, 0]).tolist() == [125_000, 50_000, 50_000]
    assert (batch.ends_us[:, 1] == -1).all()


def test_evaluation_sees_every_image_once_and_in_order(dataset: Dataset) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    for clips in evaluation_batches(dataset.recordings, 20, 2, 5):
        for clip in clips:
            if not clip.is_empty:
                seen[clip.recording] += range(clip.first, clip.first + clip.steps)
    assert seen == {0: list(range(12)), 1: list(range(7))}


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30, unique=True), st.integers(-(10**5), 11 * 10**5))
def test_a_time_belongs_to_the_image_that_ends_nearest(ends: list[int], time: int) -> None:
    times = np.sort(np.array(ends, np.int64))
    recording = SimpleNamespace(timestamps_us=times, window_us=50_000, start_us=int(times[0]) - 50_000, name="a")
    number = int(Grid.of(recording, 20).nearest(np.array([time]))[0])  # type: ignore[arg-type]
    away = np.abs(times - time)
    assert number == int(np.argmin(away))  # the earlier of two that are equally near, as in evaluation


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_the_same_seed_gives_the_same_images_with_workers_and_after_a_resume(dataset: Dataset, workers: int) -> None:
    reader = ClipReader(dataset.labelled, dataset.sensor, augmentation=Augmentation.rvt_random())
    whole = list(load(reader, partial(_first, dataset, 0, 6)))
    rest = list(load(reader, partial(_first, dataset, 2, 4), workers=workers))
    assert all(same(first, second) for first, second in zip(whole[2:], rest, strict=True))


def test_clips_end_at_labelled_images(dataset: Dataset) -> None:
    for clips in islice(plan(dataset).batches(), 20):
        for clip in clips[:2]:
            places = dataset.labelled[clip.recording].label_images.tolist()  # type: ignore[attr-defined]
            assert clip.first + clip.steps - 1 in places or clip.first == 0


def test_one_draw_changes_images_and_boxes(dataset: Dataset) -> None:
    clips = [Clip(0, 20.0, 0, 12, True, 5)]
    plain = ClipReader(dataset.recordings, dataset.sensor).batch(clips)
    flipped = ClipReader(dataset.recordings, dataset.sensor, augmentation=Augmentation(flip=1.0)).batch(clips)
    assert torch.equal(images_of(flipped), images_of(plain).flip(-1))
    for before, after in zip(plain.labels, flipped.labels, strict=True):
        if before is not None and after is not None:
            assert np.allclose(after.x1, 32 - before.x2)


def test_what_histograms_cannot_give_is_refused(dataset: Dataset) -> None:
    for hz in (40.0, 10.0):
        with pytest.raises(
            FateError, match="holds histograms of 50 ms, and windows of .* give 20 Hz, or the recordings"
        ):
            list(evaluation_batches(dataset.recordings, hz, 1, 1))
    with pytest.raises(FateError, match="a teacher needs events"):
        ClipReader(dataset.recordings, dataset.sensor, warmup=4)
    with pytest.raises(FateError, match="1 of 2 recordings hold histograms"):
        ClipReader([dataset.recordings[0], SimpleNamespace()], dataset.sensor)  # type: ignore[list-item]
    with pytest.raises(FateError, match="images of shapes"):
        stack_images([np.zeros((1, 20, 4, 4), np.uint8), np.zeros((1, 10, 4, 4), np.uint8)], 1, (4, 4))


def test_a_sequence_whose_images_and_times_disagree_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_sequence(tmp_path / "val" / name, size=SIZE)
    np.save(next((tmp_path / "val" / "b" / "event_representations_v2").rglob("timestamps_us.npy")), np.arange(13))
    with pytest.warns(UserWarning, match="holds 12 images, and 13 end times"):
        assert [each.name for each in open_dataset(tmp_path, classes=("car", "pedestrian"))] == ["val/a"]


def _first(dataset: Dataset, first: int, count: int) -> list[list[Clip]]:
    return list(islice(plan(dataset).batches(first), count))
