"""A detector over recordings, and the table that comes of it: streams side by side, shards, files of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import fate
from fate.boxes.labels import Labels
from fate.boxes.predictions import write_predictions
from fate.data.dataset import Dataset
from fate.data.opening import open_dataset
from fate.encoding.batch import EventBatch
from fate.encoding.grids import StackedHistogram
from fate.errors import FateError
from fate.evaluation.evaluate import evaluate
from fate.evaluation.protocols import named_protocol
from fate.inference.running import predict
from fate.models.detector import Detector
from fate.models.layers.image_history import ImageHistory
from fate.models.zoo import build_model
from tests.models.small_detectors import stirred

SENSOR = (64, 64)
LENGTHS_US = (400_000, 250_000, 330_000)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Three short recordings of a square that moves, with a box every 100 ms."""
    folder = tmp_path_factory.mktemp("squares")
    (folder / "classes.txt").write_text("car\npedestrian\n")
    for number, length in enumerate(LENGTHS_US):
        random = np.random.default_rng(number)
        t = np.sort(random.integers(0, length, length // 100))
        x = (10 + 30 * t / length + random.integers(0, 12, len(t))).astype(int)
        events = fate.Events(t, x, 20 + random.integers(0, 15, len(t)), random.integers(0, 2, len(t)), SENSOR)
        fate.write_events(folder / f"square_{number}.npz", events)
        times = np.arange(100_000, length, 100_000)
        left = (10 + 30 * times / length).astype(np.float32)
        top, ids = np.full_like(left, 20), np.zeros(len(times), int)
        boxes = Labels(times, left, top, left + 12, top + 15, ids,
                       classes=("car", "pedestrian"), sensor=SENSOR)  # fmt: skip
        fate.write_labels(folder / f"square_{number}_bbox.npz", boxes)
    return open_dataset(folder, kind="own")


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(3)
    model = build_model("fate-s-nano", ("car", "pedestrian"), SENSOR, dims=(8, 16, 32, 64), head_dim=8)
    with torch.no_grad():
        for layer in [*model.head.class_predictions, *model.head.object_predictions]:  # type: ignore[union-attr]
            layer.bias.fill_(-1.0)  # otherwise nothing passes the floor
    return model.eval()


def close(first: Labels, second: Labels) -> bool:
    same = np.array_equal(first.labelled_us, second.labelled_us) and len(first) == len(second)
    return same and np.allclose(np.sort(first.score), np.sort(second.score), atol=1e-4)


@pytest.mark.parametrize("streams", [None, 1, 2])
def test_the_streaming_step_finds_the_same(dataset: Dataset, detector: Detector, streams: int | None) -> None:
    usual = predict(detector, dataset.recordings, 40, window_us=50_000)
    run = predict(detector, dataset.recordings, 40, window_us=50_000, precision="float32", streams=streams)
    assert run.windows == usual.windows
    assert run.score == usual.score
    assert run.seconds["model"] > 0
    assert all(close(run.predictions[name], labels) for name, labels in usual.predictions.items())
    assert sum(map(len, run.predictions.values())) > 0


def test_a_precision_that_the_device_lacks_is_refused(dataset: Dataset, detector: Detector) -> None:
    with pytest.raises(FateError, match="precision='float16' was given for cpu; expected one of float32"):
        predict(detector, dataset.recordings, 40, precision="float16")


def test_every_window_of_every_recording_is_predicted_at_its_end(dataset: Dataset, detector: Detector) -> None:
    run = predict(detector, dataset.recordings, 40, streams=2)
    for recording, length in zip(dataset.recordings, LENGTHS_US, strict=True):
        times = run.predictions[recording.name].labelled_us
        assert len(times) == -(-(recording.end_us - recording.start_us) // 25_000)
        assert set(np.diff(times)) == {25_000}
        assert times[-1] >= length - 1000
    assert run.windows == sum(len(part.labelled_us) for part in run.predictions.values())


@pytest.mark.parametrize(("streams", "steps"), [(3, 1), (2, 4), (8, 3), (None, None)])
def test_streams_side_by_side_see_what_each_sees_alone(
    dataset: Dataset, detector: Detector, streams: int | None, steps: int | None
) -> None:
    alone = predict(detector, dataset.recordings, 20, streams=1, steps=1).predictions
    together = predict(detector, dataset.recordings, 20, streams=streams, steps=steps).predictions
    assert all(close(alone[name], together[name]) for name in alone)


@pytest.mark.parametrize(("streams", "steps"), [(3, 1), (2, 4)])
def test_each_recording_has_a_history_of_images_of_its_own(dataset: Dataset, streams: int, steps: int) -> None:
    torch.manual_seed(3)
    options: dict[str, Any] = {"dims": (8, 16, 32, 64), "head_dim": 8, "image_history": True}
    detector = stirred(build_model("fate-s-nano", ("car", "pedestrian"), SENSOR, **options)).eval()
    together = predict(detector, dataset.recordings, 100, streams=streams, steps=steps).predictions
    assert isinstance(detector.history, ImageHistory)
    detector.history.compiled = False
    alone = predict(detector, dataset.recordings, 100, streams=1, steps=1).predictions
    assert all(close(alone[name], together[name]) for name in alone)
    detector.history.gain.data.zero_()
    without = predict(detector, dataset.recordings, 100, streams=1, steps=1).predictions
    assert not any(close(alone[name], without[name]) for name in alone)


@pytest.mark.parametrize("window_us", [None, 50_000])
def test_memory_goes_on_by_the_hop_also_where_windows_overlap(
    dataset: Dataset, detector: Detector, monkeypatch: pytest.MonkeyPatch, window_us: int | None
) -> None:
    told, forward = set(), Detector.forward

    def listened(self: Detector, *given: Any, step_scale: float, **more: Any) -> Any:
        told.add(step_scale)
        return forward(self, *given, step_scale=step_scale, **more)

    monkeypatch.setattr(Detector, "forward", listened)
    predict(detector, dataset.recordings, 200, window_us=window_us, steps=10)
    assert told == {0.1}


def test_the_table_names_its_protocol_and_has_a_row_for_each_rate(dataset: Dataset, detector: Detector) -> None:
    result = evaluate(detector, dataset, (20, 100))
    text = result.table()
    assert text.startswith("protocol custom")
    assert sum(line.startswith(("| 20 |", "| 100 |")) for line in text.splitlines()) == 2
    assert [rate.scores.counts.frames for rate in result.rates] == [0, 0]  # the first half second is skipped


def test_boxes_are_ranked_by_objectness_times_class_unless_asked(dataset: Dataset, detector: Detector) -> None:
    recordings = dataset.labelled[:1]
    by_both, by_class = (predict(detector, recordings, 20.0, score=score) for score in ("product", "class"))
    (both,), (alone,) = by_both.predictions.values(), by_class.predictions.values()
    assert predict(detector, recordings, 20.0).score == by_both.score == "product"
    assert len(both) == len(alone)
    assert (both.score <= alone.score).all()
    assert (both.score < alone.score).any()
    found = evaluate(detector, dataset, [20.0], score="class")
    assert "class alone" in found.table()
    assert "objectness · class" in evaluate(detector, dataset, [20.0]).table()


def test_shards_merge_to_the_whole(dataset: Dataset, detector: Detector, tmp_path: Path) -> None:
    rules = named_protocol("custom", SENSOR, skip_us=0)
    whole = evaluate(detector, dataset, (20, 100), protocol=rules, steps=8)
    for shard in ((1, 2), (2, 2)):
        evaluate(detector, dataset, (20, 100), protocol=rules, shard=shard, predictions_to=tmp_path / "parts", steps=8)
    merged = evaluate(tmp_path / "parts", dataset, (20, 100), protocol=rules)
    for first, second in zip(whole.rates, merged.rates, strict=True):
        assert first.scores.counts.frames == second.scores.counts.frames == 8
        assert first.scores["AP50"] == pytest.approx(second.scores["AP50"], abs=1e-6)
        assert first.scores.counts.predictions == second.scores.counts.predictions


def test_truth_as_predictions_is_perfect_at_its_own_times(dataset: Dataset, tmp_path: Path) -> None:
    rules = named_protocol("custom", SENSOR, skip_us=0)
    exact = {recording.name: recording.labels for recording in dataset.recordings}
    write_predictions(tmp_path / "exact.npz", exact)
    result = evaluate(tmp_path / "exact.npz", dataset, (20,), protocol=rules)
    assert result.rates[0].scores["AP50:95"] == pytest.approx(1.0)
    result.save(tmp_path / "figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["rates"][0]["hz"] == 20


@pytest.fixture(scope="module")
def histograms(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The same recordings as RVT would have preprocessed them."""
    root, encoder = tmp_path_factory.mktemp("rvt"), StackedHistogram(SENSOR)
    for recording in dataset.recordings:
        home = root / "test" / recording.name / "event_representations_v2" / "stacked_histogram_dt=50_nbins=10"
        home.mkdir(parents=True)
        with recording.open() as reader:
            shown = list(reader.windows(hz=20))
        images = encoder(EventBatch.from_windows(shown)).byte().numpy()
        with h5py.File(home / "event_representations.h5", "w") as file:
            file.create_dataset("data", data=images)
        np.save(home / "timestamps_us.npy", np.array([window.end_us for window, _ in shown]))
        fate.write_labels(home / "boxes_bbox.npy", recording.labels)
        (root / "test" / recording.name / "labels_v2").mkdir()
        np.savez(root / "test" / recording.name / "labels_v2" / "labels.npz", labels=np.load(home / "boxes_bbox.npy"))
        (home / "boxes_bbox.npy").unlink()
    return open_dataset(root, classes=("car", "pedestrian"))


def test_histograms_are_seen_as_the_events_they_were_made_of(dataset: Dataset, histograms: Dataset) -> None:
    torch.manual_seed(3)
    model = build_model("s5-vit-nano", ("car", "pedestrian"), SENSOR, dims=(8, 16, 32, 64), head_dim=8).eval()
    with torch.no_grad():
        for layer in [*model.head.class_predictions, *model.head.object_predictions]:  # type: ignore[union-attr]
            layer.bias.fill_(-1.0)
    of_events = predict(model, dataset.recordings, 20, streams=2)
    of_images = predict(model, histograms.recordings, 20, streams=2, steps=3)
    assert of_images.windows == of_events.windows
    for recording in dataset.recordings:
        first, second = (each.predictions[name] for each, name in
                         ((of_events, recording.name), (of_images, f"test/{recording.name}")))  # fmt: skip
        assert len(first)
        assert close(first, second)
    rules = named_protocol("custom", SENSOR, skip_us=0)
    result = evaluate(model, histograms, (20,), protocol=rules)
    assert result.rates[0].scores.counts.frames == 8


def test_histograms_have_no_streaming_step(histograms: Dataset) -> None:
    torch.manual_seed(0)
    model = build_model("rvt-s", ("car", "pedestrian"), SENSOR, dims=(8, 16, 32, 64)).eval()
    with pytest.raises(FateError, match="a precision was given with a dataset of histograms"):
        predict(model, histograms.recordings, 20, precision="float32")


def test_histograms_go_with_rvt_s_encoder_and_their_own_rate_alone(histograms: Dataset, detector: Detector) -> None:
    with pytest.raises(FateError, match="holds RVT's histograms, and the detector sees events through PillarEncoder"):
        evaluate(detector, histograms, (20,))
    with pytest.raises(FateError, match="holds histograms of 50 ms, and windows of 5 ms were asked for"):
        evaluate(detector, histograms, (20, 200))
    other = build_model("evrt-detr-tiny", ("car", "pedestrian"), SENSOR)
    with pytest.raises(FateError, match="sees events through EvrtHistogram"):
        evaluate(other, histograms, (20,))


def test_what_cannot_be_evaluated_is_refused(dataset: Dataset, detector: Detector, tmp_path: Path) -> None:
    with pytest.raises(FateError, match="shard 3/2 was given"):
        evaluate(detector, dataset, (20,), shard=(3, 2))
    with pytest.raises(FateError, match="shard 9/9 of 3 recordings is empty"):
        evaluate(detector, dataset, (20,), shard=(9, 9))
    other = build_model("fate-s-nano", ("car", "pedestrian"), (32, 64))
    with pytest.raises(FateError, match="is of a 64×64 sensor, the detector of a 64×32 one"):
        evaluate(other, dataset, (20,))
    with pytest.raises(FateError, match="no such file or folder"):
        evaluate(tmp_path / "nothing.npz", dataset, (20,))
