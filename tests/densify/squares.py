"""A small dataset of squares that move, and a small detector, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import fate
from fate.boxes.labels import Labels
from fate.data.dataset import Dataset
from fate.data.opening import open_dataset
from fate.models.detector import Detector
from tests.models.small_detectors import small_detector

SENSOR, CLASSES = (64, 64), ("car", "pedestrian")
LENGTHS_US = (330_000, 210_000, 270_000)


def squares(folder: Path, start_us: int = 1_000_007, lengths_us: Sequence[int] = LENGTHS_US) -> Dataset:
    """Three short recordings, or others, that begin at an odd time, with a box every 100 ms."""
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    for number, length in enumerate(lengths_us):
        random = np.random.default_rng(number)
        t = np.sort(random.integers(0, length, length // 100))
        t[0] = 0
        x = (10 + 30 * t / length + random.integers(0, 12, len(t))).astype(int)
        events = fate.Events(
            t + start_us, x, 20 + random.integers(0, 15, len(t)), random.integers(0, 2, len(t)), SENSOR
        )
        fate.write_events(folder / f"square_{number}.npz", events)
        times = np.arange(100_000, length, 100_000) + start_us
        left = (10 + 30 * (times - start_us) / length).astype(np.float32)
        top, ids = np.full_like(left, 20), np.zeros(len(times), int)
        boxes = Labels(times, left, top, left + 12, top + 15, ids, ids, classes=CLASSES, sensor=SENSOR)
        fate.write_labels(folder / f"square_{number}_bbox.npz", boxes)
    return open_dataset(folder, kind="own")


def seeing_detector(family: str = "s5", seed: int = 3) -> Detector:
    """Untrained, but sure enough of something to pass thresholds, and with a memory that shows in what it sees."""
    detector = small_detector(family, seed=seed, sensor=SENSOR)
    with torch.no_grad():
        for name, parameter in detector.head.named_parameters():
            if name.startswith(("class_predictions", "object_predictions")) and name.endswith("bias"):
                parameter.fill_(-0.5)
    return detector
