"""Files of ours that somebody damaged: whatever is changed in them, reading works or gives one sentence."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save

import fate
from fate import FateError, Labels, open_dataset, read_labels, write_events, write_labels
from fate.boxes.dense_labels import begin_dense_labels, open_dense_labels
from fate.boxes.detection_files import DetectionLog, read_detections, read_frames
from fate.boxes.detections import DetectionFrame
from fate.boxes.predictions import read_predictions, write_predictions
from fate.data.manifests import find_listing
from fate.evaluation.evaluate import evaluate
from fate.inference.loading import bundled_weights
from fate.json_files import MAX_DEPTH, read_json
from fate.models.checkpoints import load_model, read_card
from fate.simulation.writing.manifest import load_manifest
from tests.conftest import make_events, write_detections
from tests.damage import damaged, nested

SENSOR = (48, 64)
CLASSES = ("car", "pedestrian")
SEEDS = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
LABELS = Labels(
    [100_000, 200_000], [1, 2], [3, 4], [20, 30], [25, 40], [0, 1], sensor=SENSOR, classes=CLASSES, track_id=[0, 1]
)


def survive(document: Any, write: Callable[[str], None], read: Callable[[], object], number: int, seed: int) -> None:
    """Damage a document in many ways; reading it raises FateError or nothing at all."""
    outcome: Counter[str] = Counter()
    for text in damaged(document, number, seed):
        write(text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read()
            outcome["read"] += 1
        except FateError as error:
            outcome["refused"] += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 2000
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} came of {text[:600]}") from error
    assert outcome["refused"] > number // 10  # the damage is noticed


def detections() -> DetectionLog:
    frames = [
        DetectionFrame(
            5000 * n, np.full((k, 4), [1, 2, 9, 9], np.float32), np.full(k, 0.5, np.float32), np.arange(k), np.arange(k)
        )
        for n, k in ((1, 2), (2, 0), (3, 1))
    ]
    return DetectionLog("drive.raw", SENSOR, CLASSES, 200.0, frames, {"model": "x", "summary": {"windows": 3}})


@SEEDS
def test_detections(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "a.json"

    def read() -> None:
        frames, _ = read_frames(path)
        assert all(frame.boxes.shape == (len(frame.scores), 4) for frame in frames)
        log = read_detections(path)
        write_detections(log, json=tmp_path / "again.json")  # what was read can be written
        write_detections(log, csv=tmp_path / "again.csv")

    write_detections(detections(), json=path)
    survive(json.loads(path.read_text()), path.write_text, read, 400, seed)


def test_a_class_id_that_is_no_whole_number_is_not_rounded(tmp_path: Path) -> None:
    write_detections(detections(), json=tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    document["frames"][0]["class_ids"] = [0.9, 1.2]
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(FateError, match=r"a\.json.*frames\[0\]\.class_ids\[0\] is 0\.9"):
        read_detections(tmp_path / "a.json")


@SEEDS
def test_manifest_of_dense_labels(tmp_path: Path, seed: int) -> None:
    options = {"thresholds": {"car": 0.6}, "other_threshold": 0.5, "min_steps": 3}
    facts = {
        "model": {"name": "x", "weights": "abc"},
        "dataset": {"name": "set", "kind": "own", "classes": list(CLASSES), "sensor": list(SENSOR), "downscale": 1},
        "options": options,
        "fate": "1",
    }
    begin_dense_labels(tmp_path, facts, (40, 200))
    path = tmp_path / "manifest.json"
    document = json.loads(path.read_text())

    def read() -> None:
        opened = open_dense_labels(tmp_path)
        assert all(hz > 0 for hz in opened.rates)
        assert all(isinstance(name, str) for name in opened.classes)
        assert opened.thresholds.keys() == set(opened.classes)
        begin_dense_labels(tmp_path, facts, (40,))

    survive(document, path.write_text, read, 300, seed)


@SEEDS
def test_coco_predictions(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "a.json"
    write_labels(path, LABELS)
    survive(json.loads(path.read_text()), path.write_text, lambda: read_predictions(path), 300, seed)
    results = [
        {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5},
        {"image_id": 2, "category_id": 2, "bbox": [1, 2, 3, 4], "score": 0.25},
    ]
    write_labels(tmp_path / "images.json", LABELS)
    survive(results, path.write_text, lambda: read_predictions(path, images=tmp_path / "images.json"), 200, seed)


def test_coco_labels_and_yolo_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_labels(path, LABELS)
    survive(json.loads(path.read_text()), path.write_text, lambda: read_labels(path), 300, 0)
    write_labels(tmp_path / "yolo", LABELS)
    meta = tmp_path / "yolo" / "fate.json"
    survive(json.loads(meta.read_text()), meta.write_text, lambda: read_labels(tmp_path / "yolo"), 200, 0)


@pytest.mark.slow
def test_facts_of_predictions(tmp_path: Path) -> None:
    write_events(tmp_path / "a.h5", make_events(500, SENSOR))
    write_labels(tmp_path / "a.npz", LABELS)
    dataset = open_dataset(tmp_path, kind="own")
    path = tmp_path / "p" / "20hz.npz"
    path.parent.mkdir()
    write_predictions(path, {"a": LABELS}, {"hz": 20, "model": {"name": "x"}, "shard": "1/1"})
    with np.load(path) as stored:
        arrays = dict(stored)

    def write(text: str) -> None:
        np.savez(path, **{**arrays, "facts": np.array(text)})

    document = {"format": "x", "hz": 20, "model": {"name": "x"}, "shard": "1/1"}
    survive(document, write, lambda: evaluate(path, dataset), 150, 0)


@pytest.mark.parametrize("name", ["labels", "predictions"])
def test_bytes_of_npz_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npz"
    if name == "labels":
        write_labels(path, LABELS)
    else:
        write_predictions(path, {"a": LABELS}, {"hz": 20})
    whole, random = path.read_bytes(), np.random.default_rng(0)
    read: Callable[[Path], object] = read_labels if name == "labels" else read_predictions
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(int(random.integers(1, 4))):
            data[int(random.integers(len(data)))] = int(random.integers(256))
        path.write_bytes(data[: int(random.integers(len(data)))] if random.random() < 0.1 else data)
        try:
            read(path)
        except FateError:
            refused += 1
    assert refused > 40


@pytest.mark.slow
def test_manifest_of_a_simulated_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "drives"
    fate.simulate(folder, recordings=1, seconds=0.2, shares=(1, 0, 0))
    path = folder / "manifest.json"

    document = json.loads(path.read_text())
    # each reader alone: one that refuses a manifest hides what the next would do
    reads = (lambda: (find_listing(folder), load_manifest(folder)), lambda: open_dataset(folder, kind="sim"))
    for read in reads:
        survive(document, path.write_text, read, 300, 0)
    for profile in ([], {}, ["gen1"]):
        path.write_text(json.dumps({**document, "arguments": {**document["arguments"], "profile": profile}}))
        with pytest.raises(FateError, match=r"manifest\.json"):
            open_dataset(folder)


@pytest.mark.slow
def test_simulating_goes_on_from_a_damaged_manifest_or_refuses_it(tmp_path: Path) -> None:
    folder = tmp_path / "drives"
    fate.simulate(folder, recordings=2, seconds=0.02, shares=(1, 0, 0), preview=False)
    path = folder / "manifest.json"
    document = json.loads(path.read_text())

    def read() -> None:
        manifest = load_manifest(folder)
        assert manifest is not None
        manifest.still_there(folder).save(folder)

    document["recordings"][1]["boxes"] = {"car": 3}
    huge = "1" + "0" * 400
    for seed in range(3):
        survive(document, path.write_text, read, 500, seed)
    for name, value in (("seconds", huge), ("at_rest", huge), ("shares", f"[{huge}, 1, 1]"), ("seed", "1e400")):
        changed = {**document, "arguments": {**document["arguments"], name: "HERE"}}
        path.write_text(json.dumps(changed).replace('"HERE"', value))
        with pytest.raises(FateError, match=r"manifest\.json"):
            load_manifest(folder)
    document["recordings"][0]["boxes"] = {"car": "many"}
    path.write_text(json.dumps(document))
    with pytest.raises(FateError, match=r"manifest\.json.*recordings\[0\].*boxes.*car.*many"):
        fate.simulate(folder, recordings=2, seconds=0.02, shares=(1, 0, 0), preview=False)
    assert json.loads(path.read_text()) == document  # a refused manifest stays for whoever repairs it


@pytest.mark.parametrize("number", [60, pytest.param(150, marks=pytest.mark.slow)])
def test_manifest_of_a_prepared_dataset(tmp_path: Path, number: int) -> None:
    source = tmp_path / "gen1" / "train"
    source.mkdir(parents=True)
    write_events(source / "a_td.dat", make_events(500, (240, 304)))
    write_labels(source / "a_bbox.npy", replace(LABELS, sensor=(240, 304)))
    target = tmp_path / "prepared"
    fate.prepare("gen1", source.parent, target)
    path = target / "manifest.json"

    def read() -> None:
        try:
            dataset = open_dataset(target)
            assert isinstance(dataset.faults, tuple)
        finally:
            fate.prepare("gen1", source.parent, target, hashed=False)  # a second run reads what the first wrote

    document = json.loads(path.read_text())
    survive(document, path.write_text, read, number, 0)
    document["recordings"][0]["note"] = "HERE"
    path.write_text(json.dumps(document).replace('"HERE"', "1e400"))
    with pytest.raises(FateError, match=r"manifest\.json.*1e400"):
        fate.prepare("gen1", source.parent, target)


def test_description_in_a_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    card = read_card(bundled_weights()["fate-s-nano"])

    def write(text: str) -> None:
        path.write_bytes(save({"a": torch.zeros(1)}, {"fate": text}))

    survive(card, write, lambda: read_card(path), 200, 0)
    for change in ({"name": []}, {"sensor": [10**30, 2]}, {"sensor": "wide"}, {"classes": 5}, {"options": {"x": 1}}):
        write(json.dumps({**card, "model": {**card["model"], **change}}))
        with pytest.raises(FateError):
            load_model(path)


@pytest.mark.parametrize("number", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_a_dataset_described_in_yaml(tmp_path: Path, number: int) -> None:
    write_events(tmp_path / "a.h5", make_events(500, SENSOR))
    write_labels(tmp_path / "a.json", LABELS)
    document = {
        "name": "set",
        "classes": ["car", "pedestrian"],
        "sensor": "64x48",
        "downscale": 1,
        "label_time_unit": "us",
        "recordings": [{"events": "a.h5", "labels": "a.json", "split": "train", "label_offset_us": 0}],
    }
    path = tmp_path / "mine.yaml"
    survive(document, path.write_text, lambda: open_dataset(path, "train").checked(), number, 0)  # JSON is YAML
    path.write_text(yaml.safe_dump(document))
    assert len(open_dataset(path)) == 1


def test_deep_and_special_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(nested(MAX_DEPTH)))
    read_json(path, "lists")
    path.write_text(json.dumps(nested(MAX_DEPTH + 1)))
    with pytest.raises(FateError, match=r"a\.json.*nested.*expected lists"):
        read_json(path, "lists")
    for text in ("1e400", "[-1e400]", "NaN", "-Infinity"):
        path.write_text(text)
        with pytest.raises(FateError, match=r"a\.json.*expected lists"):
            read_json(path, "lists")
    with pytest.raises(FateError, match="/dev/zero: is a device"):
        read_json(Path("/dev/zero"), "lists")
