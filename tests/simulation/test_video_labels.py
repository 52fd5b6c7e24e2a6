"""The boxes of labelled videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate.errors import FateError
from fate.events.events import Sensor
from fate.simulation.video.frames import Fit
from fate.simulation.video.labels import CLASSES, Tracks, read_tracks

PICTURE, SENSOR = Sensor(720, 1280), Sensor(360, 640)
FIT = Fit.of(PICTURE, SENSOR)


def time_of(frame: int) -> int:
    return frame * 40_000


def read(path: Path, content: str, num_frames: int | None = 100) -> Tracks:
    path.write_text(content)
    return read_tracks(path, time_of, PICTURE, num_frames)


def coco(**changes: Any) -> str:
    document = {
        "images": [{"id": 1, "frame_id": 1, "width": 1280, "height": 720}, {"id": 2, "frame_id": 3}],
        "categories": [{"id": 5, "name": "Bicycle"}, {"id": 6, "name": "bus"}],
        "annotations": [
            {"image_id": 1, "category_id": 5, "bbox": [100, 100, 40, 80], "track_id": 4},
            {"image_id": 2, "category_id": 5, "bbox": [140, 100, 80, 80], "track_id": 4},
            {"image_id": 1, "category_id": 6, "bbox": [0, 0, 40, 80]},
        ],
    }
    return json.dumps(document | changes)


MOT = "2,4,100,100,40,80,1,4,1\n4,4,140,100,80,80,1,bicycle,1\n2,-1,0,0,40,80,1,bus\n3,9,0,0,40,80,0,3\n\n"


@pytest.mark.parametrize("kind", ["mot", "coco"])
def test_boxes_are_interpolated_along_their_tracks(tmp_path: Path, kind: str) -> None:
    is_mot = kind == "mot"
    tracks = read(tmp_path / ("labels.txt" if is_mot else "labels.json"), MOT if is_mot else coco())
    times = np.array([39_999, 40_000, 60_000, 80_000, 120_000, 120_001])
    t_us, rows, found = tracks.boxes_at(times, FIT, SENSOR)
    assert t_us.tolist() == times.tolist()
    assert rows.tolist() == [0, 1, 1, 1, 1, 0]
    corners = [[50, 50, 70, 90], [55, 50, 80, 90], [60, 50, 90, 90], [70, 50, 110, 90]]
    assert found.boxes.tolist() == corners
    assert {CLASSES[each] for each in found.class_id} == {"two wheeler"}
    assert set(found.track_id.tolist()) == {4}
    assert tracks.dropped == ({"bus": 1, "confidence 0": 1} if is_mot else {"bus": 1})
    assert tracks.times_until(100_000).tolist() == ([40_000, 80_000] if is_mot else [40_000])


def test_boxes_are_cut_at_the_frame_and_left_out_if_little_is_seen(tmp_path: Path) -> None:
    lines = "1,1,-20,0,40,40,1,1\n1,2,-36,0,40,40,1,1\n1,3,1270,700,100,100,1,3"
    found = read(tmp_path / "a.txt", lines).boxes_at(np.array([0]), FIT, SENSOR).boxes
    assert found.boxes.tolist() == [[0, 0, 10, 20]]
    assert found.visible.tolist() == [0.5]


def test_boxes_without_a_track_are_not_interpolated(tmp_path: Path) -> None:
    tracks = read(tmp_path / "a.txt", "1,-1,0,0,40,40\n3,-1,80,0,40,40")
    assert tracks.boxes_at(np.array([0, 40_000, 80_000]), FIT, SENSOR).rows.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1,1,5,5", "4 columns"),
        ("0,1,5,5,9,9", "frame is '0'.*from 1 to 100"),
        ("101,1,5,5,9,9", "frame is '101'"),
        ("1.5,1,5,5,9,9", "whole number"),
        ("1,1,nan,5,9,9", "x is 'nan'"),
        ("1,1,5,5,9,none", "h is 'none'"),
        ("1,1,5,5,0,9", "0×9"),
        ("1,1,5,5,9,9,1,77", "class is 77"),
        ("7,3,5,5,9,9", "line 1"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(FateError, match=rf"labels\.txt line 2: .*{words}"):
        read(tmp_path / "labels.txt", f"7,3,5,5,9,9,1,1\n{line}\n")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [{"id": 1, "frame_id": 100}]}, "frame_id of image 0.*100"),
        ({"images": [{"id": 1}]}, "image 1 has no time"),
        ({"images": [{"id": 1, "frame_id": 1, "width": 64, "height": 48}, {"id": 2, "frame_id": 3}]}, "64×48"),
        ({"annotations": [{"image_id": 1, "category_id": 5, "bbox": [1, 2]}]}, "annotation 0"),
    ],
)
def test_errors_name_the_entry_of_coco_files(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FateError, match=rf"labels\.json: .*{words}"):
        read(tmp_path / "labels.json", coco(**changes))
