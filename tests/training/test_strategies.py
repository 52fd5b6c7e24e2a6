"""What each strategy learns from: weights of targets, labels between labelled ones, and folders that do not fit."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR

from fate.boxes.dense_labels import begin_dense_labels, label_file, write_in_folder
from fate.boxes.label_files import read_labels, write_labels
from fate.boxes.labels import Labels, LabelSource
from fate.data.clips import Grid
from fate.data.opening import open_dataset
from fate.errors import FateError
from fate.training.config import OptimiserConfig, TrainConfig
from fate.training.loop import build, own_labels, train
from fate.training.run_directory import data_facts
from fate.training.strategies import FAT, STRATEGIES, Interpolation, make_targets
from fate.view.evaluation_pictures import draw_samples
from tests.data.test_rvt_layout import write_sequence
from tests.training.conftest import SENSOR, small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


def test_targets_weigh_one_where_they_are_truth_and_their_score_where_they_were_made() -> None:
    sources = [LabelSource.GROUND_TRUTH, LabelSource.TRACKED, LabelSource.INTERPOLATED]
    corner, far = np.zeros(3), np.full(3, 9.0)
    labels = Labels(np.zeros(3, int), corner, corner, far, far, np.zeros(3, int), score=np.array([0.2, 0.7, 0.3]),
                    source=np.array(sources))  # fmt: skip
    found = make_targets(labels)
    assert found is not None
    assert found.weights.tolist() == pytest.approx([1.0, 0.7, 0.3])
    assert make_targets(None) is None


def test_interpolation_adds_boxes_between_annotated_times_and_leaves_those_as_they_are(drives: Path) -> None:
    dataset = open_dataset(drives, "train").checked()
    own = own_labels(dataset)
    strategy = Interpolation(small_config(drives, strategy={"name": "interpolation"}))
    made = strategy.labels(dataset.labelled, own)(0, 200.0)
    given = own(0, 200.0)
    assert made is not None
    assert given is not None
    truth = made.select(made.source == LabelSource.GROUND_TRUTH)
    assert truth.t_us.tolist() == given.t_us.tolist()
    assert np.array_equal(truth.boxes, given.boxes)
    between = made.select(made.source == LabelSource.INTERPOLATED)
    assert len(between) >= 10 * (len(given) - 1)  # 100 ms between labels are 20 windows
    line = np.interp(between.t_us, given.t_us, given.x1)
    assert between.x1 == pytest.approx(line, abs=0.01)


@pytest.mark.parametrize("hz", [20.0, 80.0, 200.0])
def test_exact_labels_lie_on_the_object_at_the_end_of_every_window(drives: Path, hz: float) -> None:
    times = np.arange(5_000, 1_000_001, 5_000)  # an object that accelerates
    x1, ones = (20 * (times / 1e6) ** 2).astype(np.float32), np.ones(len(times), np.float32)
    truth = Labels(times, x1, ones, x1 + 10, 9 * ones, 0 * times, 0 * times, classes=("square",), sensor=SENSOR)
    recording = SimpleNamespace(start_us=0, end_us=1_000_000, truth=truth, images=None)
    strategy = FAT(small_config(drives, strategy={"name": "fat", "labels": "truth"}))
    found = strategy.labels([recording], lambda *_: None)(0, hz)
    assert found is not None
    hop = round(1e6 / hz)
    assert found.t_us.tolist() == list(range(hop, 1_000_001, hop))
    assert found.x1 == pytest.approx(20 * (found.t_us / 1e6) ** 2, abs=1e-3)
    targets = make_targets(found)
    assert targets is not None
    assert targets.weights.unique().tolist() == [1.0]


def test_exact_labels_are_refused_where_no_simulator_made_them(drives: Path) -> None:
    with pytest.raises(FateError, match=r"2 of 2 recordings, such as .*drive_0, have no exact boxes"):
        build(small_config(drives, strategy={"name": "fat", "labels": "truth"}))


def test_a_run_with_exact_labels_trains_at_every_rate(drives: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(drives.read_text())
    for entry in document["recordings"]:  # the labels of the dataset stand for exact ones
        paths = {part: str(drives.with_name(entry[part])) for part in ("events", "labels")}
        entry.update(paths | {"truth": paths["labels"]})
    with_truth = tmp_path / "drives.yaml"
    with_truth.write_text(yaml.safe_dump(document))
    strategy = {"name": "any_rate", "labels": "truth", "rates": [20, 40]}
    trained = train(small_config(with_truth, strategy=strategy), tmp_path / "run")
    assert (trained.step, trained.finished) == (6, True)
    hashes = {data_facts(open_dataset(with_truth, "train").recordings, labels)["hash"] for labels in ("truth", None)}
    assert len(hashes) == 2


@pytest.mark.parametrize(("name", "at_200_hz"), [("any_rate", {5_000, 50_000}), ("fat", {5_000})])
def test_the_share_of_windows_as_long_as_the_hop_is_a_setting_of_any_rate(
    drives: Path, name: str, at_200_hz: set[int]
) -> None:
    strategy = {"name": name, "labels": "truth", "hop_share": 0.6, "first_alpha": 1.0}
    timing = STRATEGIES[name](small_config(drives, strategy=strategy)).timing()
    drawn = [timing(0, 0.999, (k + 0.5) / 100) for k in range(100)]
    lengths = [each.window_us or round(1e6 / each.hz) for each in drawn]
    assert at_200_hz <= set(lengths)
    assert lengths.count(5_000) == (60 if name == "any_rate" else 100)


def dense(folder: Path, drives: Path, rates: list[float], classes: tuple[str, ...] = ("square",)) -> Path:
    """Dense labels: the truth moved to every window's end, with a score of 0.5."""
    begin_dense_labels(folder, {"model": {}, "dataset": {"classes": list(classes)}, "options": {}}, rates)
    for recording in open_dataset(drives, "train").checked().labelled:
        for hz in rates:
            times = np.arange(round(1e6 / hz), 1_000_000, round(1e6 / hz))
            x1, y1, x2, y2 = (np.repeat(column[:1], len(times)) for column in recording.labels.boxes.T)
            made = {"score": np.full(len(times), 0.5), "source": np.full(len(times), LabelSource.TRACKED)}
            labels = Labels(times, x1, y1, x2, y2, np.zeros(len(times), int), **made, classes=classes, sensor=SENSOR)
            write_in_folder(label_file(folder, recording.name, hz), labels)
    return folder


def fat(drives: Path, folder: Path, **more: Any) -> TrainConfig:
    strategy = {"name": "fat", "labels": str(folder), "rates": [20, 40], "consistency_score": 0.0, **more}
    return small_config(drives, strategy=strategy, data={"random": 2}, run={"epochs": 2})


def test_fat_learns_from_dense_labels_at_every_window_and_from_its_teacher(drives: Path, tmp_path: Path) -> None:
    config = fat(drives, dense(tmp_path / "dense", drives, [20, 40]))
    parts = build(config)
    batch = parts.reader().batch(next(parts.plan.batches()))
    assert all(labels is not None for labels in batch.labels)
    weights = torch.cat([targets.weights for labels in batch.labels if (targets := make_targets(labels)) is not None])
    assert weights.unique().tolist() == [0.5]
    assert train(config, tmp_path / "run").finished
    assert "consistency_class" in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_with_a_consistency_weight_of_0_the_windows_of_the_teacher_are_neither_read_nor_detected(
    drives: Path, tmp_path: Path
) -> None:
    folder = dense(tmp_path / "dense", drives, [20, 40])
    for weight, terms in ((1.0, True), (0.0, False)):
        parts = build(fat(drives, folder, consistency_weight=weight))
        batches = map(parts.reader().batch, islice(parts.plan.batches(), 20))
        assert any(batch.teacher is not None for batch in batches) is terms
        assert train(parts.config, tmp_path / f"run-{weight}").finished
        assert ("consistency_class" in (tmp_path / f"run-{weight}" / "metrics.jsonl").read_text()) is terms


def test_dense_labels_that_do_not_fit_are_refused_before_training_begins(drives: Path, tmp_path: Path) -> None:
    with pytest.raises(FateError, match=r"no manifest.json; expected a folder that fate densify has written"):
        build(fat(drives, tmp_path / "nowhere"))
    with pytest.raises(FateError, match="dense labels of car, and the dataset has square"):
        build(fat(drives, dense(tmp_path / "others", drives, [40], ("car",))))
    folder = dense(tmp_path / "dense", drives, [40])
    with pytest.raises(FateError, match=r"has no labels of .* at 200 Hz.*--hz 200"):
        build(fat(drives, folder, rates=[20, 40, 200]))
    build(fat(drives, folder))  # at 20 Hz the recordings' own serve
    label_file(folder, open_dataset(drives, "train").recordings[1].name, 40).unlink()
    with pytest.raises(FateError, match=r"no labels of 1 of 2 recordings .*such as .*drive_1 at 40 Hz"):
        build(fat(drives, folder))


def test_the_learning_rate_is_that_of_one_cycle() -> None:
    from fate.training.module import one_cycle

    settings = OptimiserConfig(lr=1.0, warmup=0.05)  # type: ignore[call-arg]
    optimiser = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    wanted = OneCycleLR(optimiser, max_lr=1.0, total_steps=200, pct_start=0.05, anneal_strategy="linear",
                        div_factor=settings.start_divisor, final_div_factor=settings.end_divisor / 20.0,
                        cycle_momentum=False)  # fmt: skip
    for step in range(200):
        assert one_cycle(step, 200, settings) == pytest.approx(wanted.get_last_lr()[0], rel=1e-6, abs=1e-9), step
        optimiser.step()
        if step < 199:
            wanted.step()


def histograms(folder: Path) -> Path:
    for split in ("train", "val"):
        write_sequence(folder / split / "a", size=(240, 304))
    return folder


@pytest.mark.slow
def test_a_dataset_of_histograms_trains_and_validates(tmp_path: Path) -> None:
    config = small_config(
        histograms(tmp_path / "gen1"), model={"name": "s5-vit-nano", "encoder_options": {}, "options": {}},
        run={"epochs": 1, "validate_every": 1},
    )  # fmt: skip
    assert train(config, tmp_path / "run", draw_samples=draw_samples).finished
    assert list((tmp_path / "run" / "pictures").glob("*.png"))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"name": "fate-s-nano"}}, "holds RVT's histograms, and the detector sees events through"),
        ({"strategy": {"name": "multi_frequency"}}, "histograms cannot be cut: give 20 Hz"),
        ({"run": {"validate_hz": [20, 200]}}, "histograms cannot be cut: give 20 Hz"),
    ],
)
def test_what_histograms_cannot_do_is_said_before_training_begins(
    tmp_path: Path, sections: dict[str, Any], words: str
) -> None:
    model = {"name": "s5-vit-nano", "encoder_options": {}, "options": {}}
    given = {**sections, "model": {**model, **sections.get("model", {})}}
    with pytest.raises(FateError, match=words):
        build(small_config(histograms(tmp_path / "gen1"), **given))


def test_dense_labels_of_another_making_are_other_data(drives: Path, tmp_path: Path) -> None:
    recordings = open_dataset(drives, "train").labelled
    made = {"dataset": {"classes": ["square"]}, "options": {}}
    for name, model in (("a", "first"), ("b", "second"), ("c", "first")):
        begin_dense_labels(tmp_path / name, {**made, "model": {"hash": model}}, [20, 40] if name == "c" else [20])
    hashes = [data_facts(recordings, str(tmp_path / name))["hash"] for name in "abc"]
    assert hashes[0] != hashes[1]
    assert hashes[0] == hashes[2]
    assert data_facts(recordings)["hash"] not in hashes


def test_labels_after_the_last_event_of_a_recording_are_not_trained_on(drives: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(drives.parent, tmp_path / "drives")
    labels = read_labels(folder / "drive_0_labels.npz")
    times = np.append(labels.t_us, labels.t_us[-1] + 3_600_000_000)
    boxes, zeros = np.concatenate([labels.boxes, labels.boxes[-1:]]), np.zeros(len(times), int)
    write_labels(folder / "drive_0_labels.npz", Labels(times, *boxes.T, zeros, zeros))
    parts = build(small_config(folder / drives.name, strategy={"name": "multi_frequency", "rates": [20, 200]}))
    recordings = parts.dataset.labelled
    begins = [
        Grid.of(recordings[clip.recording], clip.hz).end_us(clip.first)
        for batch in islice(parts.plan.batches(), 300)
        for clip in batch
    ]
    assert max(begins) <= max(recording.end_us for recording in recordings)


def test_a_protocol_without_limits_for_the_sensor_is_refused_before_training(drives: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(drives.parent, tmp_path / "drives")
    document = yaml.safe_load(drives.read_text()) | {"protocol": "gen1"}
    (folder / drives.name).write_text(yaml.safe_dump(document))
    with pytest.raises(FateError, match=r"'gen1'.* 76×60 pixels"):
        build(small_config(folder / drives.name))
