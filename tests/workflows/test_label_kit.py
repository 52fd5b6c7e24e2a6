"""From a recording to labels through a labelling program: pictures, their times, the first guess, the export."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fate
from fate.boxes.drawing import draw_events
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.models.checkpoints import save_model
from tests.cli.running import fate as run
from tests.densify.squares import CLASSES, seeing_detector, squares


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a bright square that moves to the right."""
    opened = squares(tmp_path_factory.mktemp("drives"))
    return Path(opened.recordings[0].events_file)


def rows_of(table: Path) -> list[tuple[int, str, int]]:
    with table.open(newline="") as file:
        return [(int(row["frame"]), row["file"], int(row["t_us"])) for row in csv.DictReader(file)]


def write_video_export(path: Path, labels: Labels, rows: list[tuple[int, str, int]]) -> None:
    """Write labels with tracks as CVAT exports a task of pictures with "CVAT for video 1.1"."""
    height, width = labels.sensor or (0, 0)
    frame_at = {time: frame for frame, _, time in rows}
    root = ET.Element("annotations")
    ET.SubElement(root, "version").text = "1.1"
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    for tag, text in (("size", len(rows)), ("mode", "annotation"), ("start_frame", 0), ("stop_frame", len(rows) - 1)):
        ET.SubElement(task, tag).text = str(text)
    names = ET.SubElement(task, "labels")
    for name in labels.classes or ():
        ET.SubElement(ET.SubElement(names, "label"), "name").text = name
    size = ET.SubElement(task, "original_size")
    ET.SubElement(size, "width").text, ET.SubElement(size, "height").text = str(width), str(height)
    for track in np.unique(labels.track_id):
        its = labels.select(labels.track_id == track)
        name = (labels.classes or ())[int(its.class_id[0])]
        element = ET.SubElement(root, "track", id=str(track), label=name, source="manual")
        for time, box in zip(its.t_us.tolist(), its.boxes.tolist(), strict=True):
            corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), (f"{value:.2f}" for value in box), strict=True))
            flags = {"frame": str(frame_at[time]), "keyframe": "1", "outside": "0", "occluded": "0", "z_order": "0"}
            ET.SubElement(element, "box", {**flags, **corners})
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def test_labels_come_back_from_the_kit_through_cvat_and_convert(recording: Path, tmp_path: Path) -> None:
    done = run("label-kit", recording, tmp_path / "kit", "--hz", "20", "--classes", "car,dog")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "kit" / "frames.csv")
    with fate.open_recording(recording) as opened:
        sensor, start = opened.sensor, opened.start_us
    times = np.array([time for _, _, time in rows])
    assert np.array_equal(times, start + 50_000 * (1 + np.arange(len(rows))))
    frames = np.array([0, 1, 2, 4, 5, 5])
    left = np.array([1, 2.25, 3.5, 8, 9, 20], np.float32)
    boxes = np.stack([left, left, left + 10, left + 12], axis=1)
    labels = Labels(
        times[frames], *boxes.T, [0, 0, 0, 1, 1, 0], [3, 3, 3, 4, 4, 9], labelled_us=times, classes=["car", "dog"],
        sensor=(sensor.height, sensor.width),
    )  # fmt: skip
    write_video_export(tmp_path / "annotations.xml", labels, rows)
    given = ("--recording", recording, "--frames", tmp_path / "kit" / "frames.csv")
    for name in ("labels.npz", "labels.json"):
        done = run("convert", tmp_path / "annotations.xml", tmp_path / name, *given)
        assert done.returncode == 0, done.stderr
        assert fate.read_labels(tmp_path / name) == labels
    done = run("convert", tmp_path / "annotations.xml", tmp_path / "labels_bbox.npy", *given)
    assert done.returncode == 0, done.stderr
    read = fate.read_labels(tmp_path / "labels_bbox.npy", sensor=labels.sensor, classes=labels.classes)
    assert read == labels


def test_a_picture_shows_the_events_before_its_time_in_the_pixels_of_the_sensor(
    recording: Path, tmp_path: Path
) -> None:
    kit = fate.label_kit(recording, tmp_path / "kit", 13, window_us=30_000, palette="light")
    rows = rows_of(tmp_path / "kit" / "frames.csv")
    assert [frame for frame, _, _ in rows] == list(range(kit.num_frames))
    with fate.open_recording(recording) as opened:
        for _, file, time in rows[:: max(1, len(rows) // 4)]:
            expected = draw_events(opened.read(time - 30_000, time), "light")
            assert np.array_equal(np.asarray(Image.open(tmp_path / "kit" / "frames" / file)), expected)


@pytest.mark.slow
def test_detections_are_a_guess_at_the_times_of_the_pictures_and_not_taken_as_labels(
    recording: Path, tmp_path: Path
) -> None:
    save_model(seeing_detector(), tmp_path / "seeing.safetensors")
    words = ("--hz", "13", "--model", tmp_path / "seeing.safetensors", "--threshold", "0.1", "--device", "cpu")
    done = run("label-kit", recording, tmp_path / "kit", *words)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "kit" / "frames.csv")
    root = ET.parse(tmp_path / "kit" / "first_guess.xml").getroot()
    assert [image.get("name") for image in root.iter("image")] == [file for _, file, _ in rows]
    boxes = list(root.iter("box"))
    assert boxes
    assert {box.get("source") for box in boxes} == {"auto"}
    assert {box.get("label") for box in boxes} <= set(CLASSES)
    out = tmp_path / "labels.npz"
    done = run("convert", tmp_path / "kit" / "first_guess.xml", out, "--frames", tmp_path / "kit" / "frames.csv")
    assert done.returncode == 1
    assert "no ground truth" in done.stderr
    assert not out.exists()


def test_the_time_table_of_another_recording_is_refused(recording: Path, tmp_path: Path) -> None:
    other = tmp_path / "other one.npz"
    with fate.open_recording(recording) as opened:
        fate.write_events(other, opened.read())
    fate.label_kit(other, tmp_path / "kit", 20)
    rows = rows_of(tmp_path / "kit" / "frames.csv")
    assert all(file.startswith("other-one_") for _, file, _ in rows)
    readme = (tmp_path / "kit" / "README.txt").read_text()
    assert f"{tmp_path}/other one_bbox.npz" in readme  # beside the recording
    export = tmp_path / "exported" / "annotations.xml"
    export.parent.mkdir()
    write_video_export(export, Labels.empty(classes=["car"], sensor=(48, 64)), rows)
    table, out = tmp_path / "kit" / "frames.csv", tmp_path / "labels.npz"
    with pytest.raises(FateError, match="other-one") as error:
        fate.read_export(export, frames=table, recording=recording)
    assert str(recording) in str(error.value)
    done = run("convert", export, out, "--frames", table, "--recording", recording)
    assert (done.returncode, out.exists()) == (1, False)
    with pytest.raises(FateError, match=r"CVAT.*annotations\.xml"):
        fate.read_export(export.parent, frames=table)


def test_a_folder_with_files_is_not_mixed_with_pictures(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FateError, match="not empty"):
        fate.label_kit(recording, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_problems_of_an_export_are_listed_and_nothing_is_written(recording: Path, tmp_path: Path) -> None:
    export = tmp_path / "gt.txt"
    export.write_text("1,1,2,3,4,5,1,car,1\n2,1,2,3,400,5,1,car,1\n3,1,2,3,4,5,1,cra,1\n9999,1,2,3,4,5,1,car,1\n")
    out = tmp_path / "labels.npz"
    done = run("convert", export, out, "--recording", recording, "--fps", "20", "--classes", "car,dog")
    assert done.returncode == 1
    listed = done.stderr.splitlines()
    assert [f"{export}: line {number}:" in done.stderr for number in (1, 2, 3, 4)] == [False, True, True, True]
    assert "'car'" in next(line for line in listed if "line 3:" in line)
    assert listed[-1].startswith("error:")
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--classes", "car"),
        ("--clip",),
        ("--fps", "10", "--frames", "t.csv"),
        ("--fps", "10", "--to", "npz"),
        ("--frames", "t.csv", "--start", "0"),
        ("--fps", "10", "--start", "+1s"),
        ("--fps", "10", "--sensor", "100x80"),
    ],
)
def test_options_that_do_not_go_together_are_bad_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "a.xml").write_text("<annotations/>")
    assert run("convert", tmp_path / "a.xml", tmp_path / "o.npz", *words).returncode in (1, 2)
    assert not (tmp_path / "o.npz").exists()
