"""A small detector learns a simulated recording by heart: the whole chain from events to AP works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from fate.training.config import make_config
from fate.training.loop import train
from fate.workflows.simulate import simulate

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


@pytest.mark.slow
def test_fate_s_nano_learns_one_recording_of_a_second(tmp_path: Path) -> None:
    simulate(tmp_path / "one", recordings=1, seconds=1.0, profile="park", seed=5, preview=False)
    events = next((tmp_path / "one").rglob("*_td.dat"))
    truth = events.with_name(events.name.replace("_td.dat", "_truth.npz"))
    document = {
        "classes": ["van", "cyclist", "dog"], "sensor": "240x180", "protocol": "sim",
        "recordings": [{"events": str(events), "labels": str(truth), "split": "train"}],
    }  # fmt: skip
    dataset = tmp_path / "one.yaml"
    dataset.write_text(yaml.safe_dump(document))
    config = make_config({
        "model": {"name": "fate-s-nano"},
        "data": {"path": str(dataset), "validate": "train", "steps": 5, "random": 2, "streams": 0, "workers": 0,
                 "augmentation": "none"},
        "strategy": {"decay": 0.9},
        "optimiser": {"lr": 4e-3, "warmup": 0.1},
        "run": {"epochs": 1, "epoch_steps": 110, "precision": "float32", "device": "cpu", "validate_hz": [20]},
    })  # fmt: skip
    train(config, tmp_path / "run")
    last = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    found = next(line["validation"]["20"] for line in reversed(last) if "validation" in line)
    assert found["AP50"] > 0.9
