"""Detections that lie beside a recording, or are named as labels, are refused: they are no ground truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fate
from fate.boxes.detection_files import DetectionLog
from fate.boxes.detections import DetectionFrame
from fate.boxes.labels import Labels, LabelSource
from fate.boxes.predictions import write_predictions
from fate.errors import FateError
from tests.conftest import make_events, write_detections

SENSOR = (48, 64)


def frames() -> list[DetectionFrame]:
    box, score, ids = np.array([[1, 2, 20, 30]], np.float32), np.array([0.8], np.float32), np.array([0])
    return [DetectionFrame(time, box, score, ids, None) for time in (50_000, 100_000)]


def table(**more: object) -> Labels:
    given: dict[str, object] = {"classes": ("car",), "sensor": SENSOR, **more}
    return Labels([50_000], [1], [2], [20], [30], [0], **given)  # type: ignore[arg-type]


def write_as(kind: str, folder: Path) -> None:
    log = DetectionLog("drive.npz", SENSOR, ("car",), 20, frames())
    if kind in ("json", "coco"):
        write_detections(log, **{kind: folder / "drive.json"})
    elif kind == "predictions":
        write_predictions(folder / "drive_bbox.npz", {"drive": log.labels()})
    elif kind == "npz":
        fate.write_labels(folder / "drive_bbox.npz", log.labels())
    else:
        fate.write_labels(folder / "drive", log.labels())


@pytest.mark.parametrize("kind", ["json", "coco", "predictions", "npz", "yolo"])
def test_a_dataset_refuses_detections_as_labels(tmp_path: Path, kind: str) -> None:
    fate.write_events(tmp_path / "drive.dat", make_events(sensor=SENSOR))
    write_as(kind, tmp_path)
    with pytest.raises(FateError, match="no ground truth") as caught:
        for recording in fate.open_dataset(tmp_path, kind="own"):
            assert len(recording.labels) == 0
    assert str(tmp_path / "drive") in str(caught.value)


def test_labels_of_a_person_and_dense_labels_are_accepted(tmp_path: Path) -> None:
    fate.write_events(tmp_path / "drive.dat", make_events(sensor=SENSOR))
    for labels in (table(), table(score=[0.6], source=[LabelSource.TRACKED])):
        fate.write_labels(tmp_path / "drive_bbox.npz", labels)
        (recording,) = fate.open_dataset(tmp_path, kind="own")
        assert len(recording.labels) == 1
