"""A dataset that takes a second to make: squares that cross a small frame, with a box every 100 ms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fate.boxes.label_files import write_labels
from fate.boxes.labels import Labels
from fate.events.events import Events
from fate.formats.saving import write_events
from fate.training.config import TrainConfig, make_config

SENSOR = (60, 76)
SECONDS = 1.0


def drive(seed: int) -> tuple[Events, Labels]:
    """Events at the edges of a square that moves, and noise; a label every 100 ms."""
    random = np.random.default_rng(seed)
    size, speed = int(random.integers(14, 24)), random.uniform(20, 40)
    left, top = random.uniform(0, 10), random.uniform(2, 30)

    def place(t_us: Any) -> Any:
        return left + speed * np.asarray(t_us) / 1e6

    count = int(20_000 * SECONDS)
    t = np.sort(random.integers(0, int(SECONDS * 1e6), count))
    along, edge = random.uniform(0, size, count), random.integers(0, 2, count)
    x, y = place(t) + np.where(edge == 0, 0, size), top + along
    noise = random.random(count) < 0.1
    x = np.where(noise, random.uniform(0, SENSOR[1], count), x)
    y = np.where(noise, random.uniform(0, SENSOR[0], count), y)
    inside = (x >= 0) & (x < SENSOR[1]) & (y >= 0) & (y < SENSOR[0])
    events = Events(t[inside], x[inside].astype(int), y[inside].astype(int), edge[inside], SENSOR)
    times = np.arange(100_000, int(SECONDS * 1e6), 100_000)
    lefts = place(times)
    boxes = np.stack([lefts, np.full(len(times), top), lefts + size, np.full(len(times), top + size)], axis=1)
    boxes = np.clip(boxes, 0, [SENSOR[1], SENSOR[0], SENSOR[1], SENSOR[0]])
    return events, Labels(times, *boxes.T, np.zeros(len(times), int), np.zeros(len(times), int))


def write_drives(folder: Path, splits: Sequence[str] = ("train", "train", "val")) -> Path:
    """A dataset of one's own: YAML, events, labels; ``splits`` has the split of each recording."""
    entries = []
    for number, split in enumerate(splits):
        events, labels = drive(number)
        write_events(folder / f"drive_{number}.npz", events)
        write_labels(folder / f"drive_{number}_labels.npz", labels)
        entries.append({"events": f"drive_{number}.npz", "labels": f"drive_{number}_labels.npz", "split": split})
    document = {"classes": ["square"], "sensor": f"{SENSOR[1]}x{SENSOR[0]}", "recordings": entries}
    path = folder / "drives.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="session")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML file of a small dataset."""
    return write_drives(tmp_path_factory.mktemp("drives"))


SMALL = {"dims": [8, 16, 24, 32], "bottlenecks": 1}
#: Options of a fate-e.
SMALL_DETR = {"depth": 18, "widths": [8, 16, 24, 32], "hidden": 32, "feedforward": 48, "layers": 2, "queries": 20}


def small_config(dataset: Path, *overrides: str, **sections: dict[str, Any]) -> TrainConfig:
    """A run that takes seconds on a CPU."""
    content: dict[str, dict[str, Any]] = {
        "model": {"name": "fate-s", "encoder_options": {"channels": 8}, "options": SMALL},
        "data": {"path": str(dataset), "steps": 3, "random": 1, "streams": 1, "augmentation": "rvt", "workers": 0},
        "strategy": {"decay": 0.9},
        "optimiser": {"lr": 1e-3, "warmup": 0.1},
        "run": {"epochs": 3, "epoch_steps": 2, "precision": "float32", "device": "cpu", "validate_every": 100,
                "validate_hz": [20], "save_every": 2, "log_every": 1},
    }  # fmt: skip
    for name, section in sections.items():
        content[name] |= section
    return make_config(content, overrides)
