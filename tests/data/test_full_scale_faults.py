"""Faults among as many files as Gen1 has: each is named before training starts, which needs an explicit flag."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import fate
from fate import Events, FateError, Labels, write_events, write_labels
from fate.data.class_maps import EXPECTED_RECORDINGS
from fate.data.dataset import data_faults
from fate.training.loop import train
from tests.training.conftest import small_config

SENSOR = (240, 304)
COUNTS = EXPECTED_RECORDINGS["gen1"]


@pytest.fixture
def gen1(tmp_path: Path) -> Path:
    """as many recordings as Gen1 has; 3 lack events, one is cut, and one has labels beyond its end."""
    folder = tmp_path / "gen1"
    t = np.arange(0, 1_000_000, 500)
    write_events(tmp_path / "one_td.dat", Events(t, t % SENSOR[1], t % SENSOR[0], t % 2, SENSOR))
    labels = Labels([700_000, 800_000], [50, 60], [50, 60], [110, 120], [110, 120], [0, 1], sensor=SENSOR)
    write_labels(tmp_path / "one_bbox.npy", labels)
    for split, count in COUNTS.items():
        (folder / split).mkdir(parents=True)
        for number in range(count):
            for ending in ("_td.dat", "_bbox.npy"):
                os.link(tmp_path / f"one{ending}", folder / split / f"{split}-{number:04}{ending}")
    train = folder / "train"
    for number in (7, 700, 1400):
        (train / f"train-{number:04}_td.dat").unlink()
    content = (train / "train-0100_td.dat").read_bytes()
    (train / "train-0100_td.dat").unlink()
    (train / "train-0100_td.dat").write_bytes(content[:-5])
    boxes = np.load(train / "train-0200_bbox.npy")
    boxes[boxes.dtype.names[0]][-1] += 10**9
    (train / "train-0200_bbox.npy").unlink()
    np.save(train / "train-0200_bbox.npy", boxes)
    return folder


@pytest.mark.slow
def test_every_fault_among_1459_recordings_is_named_before_training(gen1: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "prepared"
    report = fate.prepare("gen1", gen1, prepared, hashed=False)
    dataset = fate.open_dataset(prepared, "train")
    named = "\n".join(data_faults(dataset).missing)
    for number in (7, 100, 200, 700, 1400):
        assert f"train-{number:04}" in named
        assert any(f"train-{number:04}" in fault for fault in report.missing)
    assert "train-0300" not in named
    (gen1 / "val" / "val-0005_td.dat").unlink()  # nothing of it is left, so that only their number tells
    (gen1 / "val" / "val-0005_bbox.npy").unlink()
    in_place = fate.open_dataset(gen1, "val", kind="gen1")
    assert "1 of 429 published recordings" in " ".join(data_faults(in_place).missing)
    run = {"epochs": 1, "epoch_steps": 1, "validate_recordings": 2}
    config = small_config(prepared, data={"train": "train", "validate": "val"}, run=run)
    with pytest.raises(FateError, match="allow_missing"):
        train(config, tmp_path / "refused")
    assert not (tmp_path / "refused" / "last.safetensors").exists()
    done = train(config, tmp_path / "accepted", allow_missing=True)
    assert done.finished
