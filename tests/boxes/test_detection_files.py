"""Detections written to files come back as they were, and other tools read them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fate.boxes.detection_files import DetectionLog, read_detections, read_frames
from fate.boxes.detections import DetectionFrame
from fate.boxes.label_files import read_labels
from fate.boxes.predictions import read_predictions
from fate.errors import FormatError
from tests.conftest import write_detections


def log(tracked: bool = True) -> DetectionLog:
    random = np.random.default_rng(0)
    frames = []
    for number, count in enumerate((0, 2, 1, 0, 3)):
        corner = random.uniform(0, 50, (count, 2)).astype(np.float32)
        boxes = np.concatenate([corner, corner + 20], axis=1).round(2)
        scores = random.uniform(0.4, 1, count).astype(np.float32).round(4)
        tracks = np.arange(count) if tracked else None
        frames.append(DetectionFrame(5_000 * (number + 1), boxes, scores, random.integers(0, 2, count), tracks))
    return DetectionLog("drive.raw", (240, 304), ("car", "pedestrian"), 200.0, frames, {"model": "x", "threshold": 0.4})


@pytest.mark.parametrize("tracked", [True, False])
def test_json_comes_back_whole(tmp_path: Path, tracked: bool) -> None:
    given = log(tracked)
    write_detections(given, json=tmp_path / "a.json")
    back = read_detections(tmp_path / "a.json")
    assert back.labels() == given.labels()
    assert back.facts == given.facts
    assert (back.frames[1].track_ids is None) == (not tracked)
    assert (back.recording, back.sensor, back.classes, back.hz) == ("drive.raw", (240, 304), given.classes, 200.0)


def test_a_file_without_frames_is_whole_json(tmp_path: Path) -> None:
    write_detections(DetectionLog("a", (10, 10), ("car",), 20.0, []), json=tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["frames"] == []
    assert len(read_detections(tmp_path / "a.json").labels()) == 0


def test_csv_has_a_row_for_each_box(tmp_path: Path) -> None:
    write_detections(log(), csv=tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert len(rows) == 6
    assert {row["class"] for row in rows} <= {"car", "pedestrian"}
    table = log().labels()
    assert [int(row["t_us"]) for row in rows] == table.t_us.tolist()
    assert np.allclose([float(row["x1"]) for row in rows], table.x1, atol=0.006)


def test_coco_is_read_as_labels_and_as_predictions_with_empty_times(tmp_path: Path) -> None:
    write_detections(log(), coco=tmp_path / "drive.json")
    back = read_labels(tmp_path / "drive.json")
    assert np.allclose(back.boxes, log().labels().boxes, atol=1e-3)
    assert np.allclose(back.score, log().labels().score)
    assert back.labelled_us.tolist() == [5_000, 10_000, 15_000, 20_000, 25_000]
    assert len(next(iter(read_predictions(tmp_path / "drive.json", classes=("car", "pedestrian")).values()))) == 6


@pytest.mark.parametrize("change", ["{", "[]", '{"format": "other"}', "missing", "uneven"])
def test_damaged_files_are_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.json"
    write_detections(log(), json=path)
    document = json.loads(path.read_text())
    if change == "missing":
        del document["sensor"]
    elif change == "uneven":
        document["frames"][1]["scores"].append(0.5)
    path.write_text(json.dumps(document) if change in ("missing", "uneven") else change)
    with pytest.raises(FormatError, match=r"a\.json"):
        read_detections(path)


def test_frames_are_read_from_detections_and_from_labels_alike(tmp_path: Path) -> None:
    given = log()
    write_detections(given, json=tmp_path / "a.json")
    write_detections(given, coco=tmp_path / "coco.json")
    for name in ("a.json", "coco.json"):
        frames, classes = read_frames(tmp_path / name)
        assert classes == given.classes
        assert [frame.t_us for frame in frames] == [frame.t_us for frame in given.frames]
        for frame, wanted in zip(frames, given.frames, strict=True):
            assert np.allclose(frame.boxes, wanted.boxes, atol=1e-2)
    (tmp_path / "odd.json").write_text("[1]")
    with pytest.raises(FormatError):
        read_frames(tmp_path / "odd.json")
