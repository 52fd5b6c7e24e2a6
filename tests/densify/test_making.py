"""Dense labels of a dataset, end to end: resumed, sharded, extended by a rate, and checked against exact truth."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fate
from fate.boxes.dense_labels import open_dense_labels
from fate.boxes.labels import LabelSource
from fate.data.clips import Grid
from fate.data.dataset import Dataset
from fate.densify.making import densify, truth_of, weights_hash
from fate.densify.tracklets import TrackletOptions
from fate.errors import FateError
from fate.models.detector import Detector
from fate.workflows.check_labels import BESIDE, METHODS, SPANS, LabelCheck, annotated_boxes_near, check_labels
from tests.densify.squares import CLASSES, LENGTHS_US, SENSOR, seeing_detector, squares

#: An untrained detector is sure of little.
LENIENT = TrackletOptions(0.15, {"car": 0.2, "pedestrian": 0.2}, min_steps=2, with_truth=False)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return squares(tmp_path_factory.mktemp("squares"))


@pytest.fixture(scope="module")
def detector() -> Detector:
    return seeing_detector()


@pytest.fixture(scope="module")
def whole(dataset: Dataset, detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels at two rates, made in one go."""
    out = tmp_path_factory.mktemp("made") / "dense"
    densify(detector, dataset, out, (40, 80), options=LENIENT)
    return out


def same(first: Path, second: Path, dataset: Dataset, rates: tuple[float, ...] = (40, 80)) -> bool:
    left, right = open_dense_labels(first), open_dense_labels(second)
    return all(left.labels(each.name, hz) == right.labels(each.name, hz) for each in dataset for hz in rates)


def test_labels_have_all_times_of_the_rate_and_truth_as_it_was(dataset: Dataset, whole: Path) -> None:
    opened = open_dense_labels(whole)
    made = 0
    for recording in dataset:
        for hz in (40, 80):
            labels, grid = opened.labels(recording.name, hz), Grid.of(recording, hz)
            numbers = grid.nearest(labels.labelled_us)
            assert numbers.tolist() == list(range(grid.count(recording.end_us)))  # each window stands for one time
            truth = labels.select(labels.source == LabelSource.GROUND_TRUTH)
            assert replace(truth, labelled_us=recording.labels.labelled_us) == recording.labels
            assert not np.isin(labels.t_us[labels.source != 0], recording.labels.labelled_us).any()
            made += int((labels.source != 0).sum())
    assert made > 100


def test_a_recording_that_is_done_is_not_done_again_and_a_lost_one_is(
    dataset: Dataset, detector: Detector, whole: Path
) -> None:
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("*.npz")}
    done = densify(detector, dataset, whole, (40, 80), options=LENIENT)
    assert (done.skipped, done.windows) == (3, 0)
    lost = next(iter(whole.glob("labels/80hz/*.npz")))
    content = lost.read_bytes()
    lost.unlink()
    done = densify(detector, dataset, whole, (40, 80), options=LENIENT)
    assert (done.skipped, done.windows) == (2, 0)  # what the detector saw was kept
    assert lost.read_bytes() == content
    changed = {file for file, time in before.items() if file.stat().st_mtime_ns != time}
    assert changed == {lost}


def test_shards_give_what_one_run_gives(dataset: Dataset, detector: Detector, whole: Path, tmp_path: Path) -> None:
    for shard in ((1, 2), (2, 2)):
        densify(detector, dataset, tmp_path / "parts", (40, 80), options=LENIENT, shard=shard, batch_size=4)
    assert same(whole, tmp_path / "parts", dataset)


def test_a_run_that_another_one_overtakes_gives_the_same(
    dataset: Dataset, detector: Detector, whole: Path, tmp_path: Path
) -> None:
    made = partial(densify, detector, dataset, tmp_path / "both", (40, 80), options=LENIENT)
    overtaken: list[float] = []

    def overtake(share: float) -> None:
        if not overtaken:
            overtaken.append(share)
            made()

    made(progress=overtake)
    assert overtaken
    assert same(whole, tmp_path / "both", dataset)


@pytest.mark.slow
def test_several_processes_give_what_one_gives_and_count_the_same(
    dataset: Dataset, detector: Detector, whole: Path, tmp_path: Path
) -> None:
    made = partial(densify, detector, dataset, hz=(40, 80), options=LENIENT)
    counts = [made(out=tmp_path / str(workers), workers=workers).boxes for workers in (0, 2)]
    assert same(tmp_path / "2", whole, dataset)
    assert counts[0] == counts[1]


def test_a_denser_rate_looks_only_at_what_is_new(
    dataset: Dataset, detector: Detector, whole: Path, tmp_path: Path
) -> None:
    steps = sum(-(-length // 50_000) for length in LENGTHS_US)
    first = densify(detector, dataset, tmp_path / "grown", (40,), options=LENIENT)
    second = densify(detector, dataset, tmp_path / "grown", (80,), options=LENIENT)
    assert (first.windows, second.windows) == (2 * steps, 2 * steps)
    assert same(whole, tmp_path / "grown", dataset)
    shares: list[float] = []
    third = densify(detector, dataset, tmp_path / "grown", (100,), options=LENIENT, progress=shares.append)
    assert third.windows == 4 * steps  # of 10, 20, 30, 40 and 50 ms the last was seen
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_other_rates_work_too(dataset: Dataset, detector: Detector, tmp_path: Path) -> None:
    densify(detector, dataset, tmp_path / "odd", (10, 30), options=LENIENT)
    opened = open_dense_labels(tmp_path / "odd")
    assert set(np.diff(opened.labels("square_0", 30).labelled_us).tolist()) & {33_333}
    assert len(opened.labels("square_0", 10).labelled_us) == 3


def test_what_does_not_fit_is_refused(dataset: Dataset, detector: Detector, whole: Path, tmp_path: Path) -> None:
    other = seeing_detector(seed=4)
    assert weights_hash(other) != weights_hash(detector) == weights_hash(seeing_detector())
    with pytest.raises(FateError, match=r"begun with other settings: model\.weights"):
        densify(other, dataset, whole, (40,), options=LENIENT)
    with pytest.raises(FateError, match=r"options\.min_steps was 2 and is 6"):
        densify(detector, dataset, whole, (40,), options=replace(LENIENT, min_steps=6))
    with pytest.raises(FateError, match="shard 3/2 was given"):
        densify(detector, dataset, tmp_path / "a", shard=(3, 2))
    with pytest.raises(FateError, match="shard 4/4 of 3 recordings is empty"):
        densify(detector, dataset, tmp_path / "a", shard=(4, 4))
    with pytest.raises(FateError, match="expected 1 to 1000"):
        densify(detector, dataset, tmp_path / "a", (0,))
    with pytest.raises(FateError, match="knows car, pedestrian on .* has truck"):
        densify(detector, replace(dataset, classes=("truck",)), tmp_path / "a")
    small = fate.build_model("fate-s-nano", CLASSES, (32, 64))
    with pytest.raises(FateError, match="on a 64×32 sensor; .* on a 64×64 one"):
        densify(small, dataset, tmp_path / "a")
    with pytest.raises(FateError, match="dense labels need the events"):
        densify(detector, replace(dataset, kind="rvt"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def with_truth(dataset: Dataset, folder: Path, shift: float = 0.0) -> Dataset:
    """The same with exact boxes at 200 Hz beside each recording."""
    recordings = []
    for recording, length in zip(dataset.recordings, LENGTHS_US, strict=True):
        times = np.arange(5_000, length, 5_000) + recording.start_us
        left = (10 + shift + 30 * (times - recording.start_us) / length).astype(np.float32)
        ones, none = np.ones_like(left), np.zeros(len(times), int)
        truth = fate.Labels(times, left, 20 * ones, left + 12, 35 * ones, none, none, classes=CLASSES, sensor=SENSOR)
        fate.write_labels(folder / f"{recording.name}_truth.npz", truth)
        recordings.append(replace(recording, truth_file=folder / f"{recording.name}_truth.npz"))
    return replace(dataset, recordings=tuple(recordings))


def row_of(check: LabelCheck, hz: float, method: str = METHODS[0], span: str = SPANS[0]) -> dict[str, Any]:
    """The row of cars."""
    named = {"hz": hz, "class": "car", "method": method, "span": span}
    (row,) = (row for row in check.rows if row.items() >= named.items())
    return row


def test_a_check_has_figures_for_every_rate_class_and_method(dataset: Dataset, whole: Path, tmp_path: Path) -> None:
    check = check_labels(whole, with_truth(dataset, tmp_path))
    assert len(check.rows) == 2 * len(CLASSES) * len(METHODS) * len(SPANS)
    naive = row_of(check, 80, "interpolated")
    assert (naive["precision"], naive["recall"]) == (1, 1)  # the square moves in a straight line
    assert row_of(check, 80, "interpolated, tracks unknown")["recall"] == 0.5  # the short ones' boxes do not overlap
    everywhere = row_of(check, 80, "interpolated", "all times")
    assert 0.1 < everywhere["recall"] < 0.7  # but between the first annotated time and the last only
    assert "| 80 | car | densified |" in check.table()
    check.save(tmp_path / "quality.json")
    content = json.loads((tmp_path / "quality.json").read_text())
    assert {row["hz"] for row in content["rows"]} == {40, 80}
    assert content["detections"][0]["curves"]["car"]["threshold"][0] == 0
    assert (tmp_path / "quality.png").stat().st_size > 10_000


def test_without_exact_truth_labels_are_held_against_the_annotated_boxes_beside_them(
    dataset: Dataset, whole: Path, tmp_path: Path
) -> None:
    check = check_labels(whole, dataset)
    assert {(row["span"], row["method"]) for row in check.rows} == {(BESIDE, "densified")}
    assert "against the nearest annotated boxes" in check.table()
    check.save(tmp_path / "quality.json")
    assert (tmp_path / "quality.png").stat().st_size > 10_000
    folder = open_dense_labels(whole)
    for hz in (40.0, 80.0):  # by hand: windows next to the one that stands for an annotated time
        hop, right, made, truth = round(1e6 / hz), 0, 0, 0
        for recording in dataset.recordings:
            sparse, dense = truth_of(recording, dataset), folder.labels(recording.name, hz)
            stands = {round((int(t) - recording.start_us) / hop) * hop + recording.start_us: int(t)
                      for t in sparse.labelled_us}  # fmt: skip
            beside = {end + way * hop: time for end, time in stands.items() for way in (-1, 1)}
            for end, time in beside.items():
                if end in stands or not recording.start_us < end < recording.end_us + hop:  # the last may reach past
                    continue
                given = dense.boxes[(dense.t_us == end) & (dense.class_id == 0)].tolist()
                true = sparse.boxes[(sparse.t_us == time) & (sparse.class_id == 0)].tolist()
                made, truth = made + len(given), truth + len(true)
                right += sum(max([iou_of(box, other) for box in given], default=0.0) >= 0.5 for other in true)
        figures = row_of(check, hz, span=BESIDE)
        assert (figures["labels"], figures["truth"]) == (made, truth)
        assert truth > 0
        assert figures["recall"] == pytest.approx(right / truth)


@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=30, unique=True), st.sampled_from([20.0, 60.0, 100.0]))
def test_a_window_beside_annotated_times_is_held_against_the_nearest(times: list[int], hz: float) -> None:
    annotated = np.array(sorted(times), np.int64)
    place = annotated.astype(np.float32) / 1e4  # each time has a box of its own
    ones, none = np.ones_like(place), np.zeros(len(times), int)
    sparse = fate.Labels(annotated, place, ones, place + 5, 9 * ones, none, none, classes=CLASSES, sensor=SENSOR)
    recording = SimpleNamespace(start_us=0, end_us=400_000)
    moved, ends = annotated_boxes_near(sparse, recording, hz, (-1, 1))  # type: ignore[arg-type]
    grid = Grid.of(recording, hz)
    stands = grid.labelled(annotated)
    beside = {number + way for number in stands for way in (-1, 1)} - stands.keys()
    assert ends.tolist() == sorted(grid.end_us(n) for n in beside if 0 <= n < grid.count(400_000))
    for end, left in zip(moved.t_us.tolist(), moved.x1.tolist(), strict=True):
        number = round(end / grid.hop_us) - 1
        near = [stands[n] for n in (number - 1, number + 1) if n in stands]
        assert left == np.float32(min(near, key=lambda time: abs(time - end))) / np.float32(1e4)
    assert len(moved) == len(ends)


def iou_of(a: list[float], b: list[float]) -> float:
    """Of two boxes xyxy."""
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0.0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return shared / (sum(areas) - shared)


def test_a_check_without_labels_is_refused(dataset: Dataset, whole: Path, tmp_path: Path) -> None:
    exact = with_truth(dataset, tmp_path)
    with pytest.raises(FateError, match="has no labels of .* at 100 Hz"):
        check_labels(whole, exact, (100,))
    with pytest.raises(FateError, match="expected the dataset they were made for"):
        check_labels(whole, replace(exact, classes=("car",)))
    strangers = tuple(replace(each, name=f"other/{each.name}") for each in exact)
    with pytest.raises(FateError, match="has labels of no recording"):
        check_labels(whole, replace(exact, recordings=strangers))
