"""Datasets of one's own: a YAML file, a folder, and the example in the documentation."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate import FateError, FateWarning, Labels, open_dataset, open_recording, read_labels, write_events, write_labels
from tests.conftest import REAL, make_events

ROOT = Path(__file__).resolve().parents[2]
SENSOR = (48, 64)
LABELS = Labels([100_000, 200_000], [1, 2], [3, 4], [20, 30], [25, 40], [0, 1], sensor=SENSOR)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Recordings and labels of several formats, in several folders."""
    (tmp_path / "drives").mkdir()
    (tmp_path / "boxes").mkdir()
    for name, start in (("one.raw", 0), ("two.h5", 0), ("three.dat", 0), ("four.csv", 0)):
        write_events(tmp_path / "drives" / name, make_events(2000, SENSOR, start=start))
    write_labels(tmp_path / "boxes" / "one.json", LABELS)
    write_labels(tmp_path / "boxes" / "two_bbox.npy", LABELS)
    write_labels(tmp_path / "boxes" / "three", LABELS)  # YOLO
    write_labels(tmp_path / "boxes" / "four.npz", LABELS)
    return tmp_path


WHOLE = """
name: my drives
classes: [car, pedestrian]
sensor: 64x48
recordings:
  - {events: drives/one.raw, labels: boxes/one.json, split: train}
  - {events: drives/two.h5, labels: boxes/two_bbox.npy, split: train, name: second}
  - {events: drives/three.dat, labels: boxes/three, split: val}
  - {events: drives/four.csv, labels: boxes/four.npz}
"""


def write(home: Path, text: str, name: str = "mine.yaml") -> Path:
    path = home / name
    path.write_text(text)
    return path


def test_a_yaml_brings_any_events_and_any_labels_together(home: Path) -> None:
    dataset = open_dataset(write(home, WHOLE))
    assert (dataset.name, dataset.kind, dataset.protocol) == ("my drives", "own", "custom")
    assert dataset.root == home
    assert (dataset.classes, dataset.sensor) == (("car", "pedestrian"), SENSOR)
    assert [(r.name, r.split) for r in dataset] == [
        ("drives/four", None),
        ("drives/one", "train"),
        ("drives/three", "val"),
        ("second", "train"),
    ]
    assert dataset.faults == ()
    for recording in dataset:
        assert np.allclose(recording.labels.boxes, LABELS.boxes, atol=1e-5)
        assert recording.labels.class_id.tolist() == [0, 1]
        with recording.open() as reader:
            assert len(reader.read()) == 2000
    assert [r.name for r in open_dataset(home / "mine.yaml", "train")] == ["drives/one", "second"]
    with pytest.raises(FateError, match="no recordings of the split 'test'; its splits are train, val"):
        open_dataset(home / "mine.yaml", "test")
    (home / "mine.yaml").rename(home / "dataset.yaml")
    assert len(open_dataset(home)) == 4


def test_a_yaml_may_name_a_folder_for_each_split(home: Path) -> None:
    for split in ("a", "b"):
        (home / split).mkdir()
        write_events(home / split / "x_td.dat", make_events(500, SENSOR))
        write_labels(home / split / "x_bbox.npy", LABELS)
    text = "classes: {car: 0, walker: 1}\nrecordings: {train: a, val: [b]}\ndownscale: 2\nprotocol: gen1\n"
    dataset = open_dataset(write(home, text))
    assert [(r.name, r.split) for r in dataset] == [("train/x", "train"), ("val/x", "val")]
    assert (dataset.sensor, dataset.downscale, dataset.protocol) == ((24, 32), 2, "gen1")
    assert np.array_equal(dataset["val/x"].labels.boxes, LABELS.boxes / 2)
    assert open_dataset(home / "mine.yaml", downscale=1).sensor == SENSOR


def test_label_times_are_brought_to_the_clock_of_the_events(home: Path) -> None:
    ms = Labels([100, 200], [1, 2], [3, 4], [20, 30], [25, 40], [0, 1])
    write_labels(home / "boxes" / "ms_bbox.npy", ms)
    text = (
        "classes: [car, pedestrian]\nlabel_time_unit: ms\nrecordings:\n"
        "  - {events: drives/one.raw, labels: boxes/ms_bbox.npy, label_offset_us: 7}\n"
        "  - {events: drives/two.h5, labels: boxes/two_bbox.npy, label_time_unit: us}\n"
    )
    dataset = open_dataset(write(home, text))
    assert dataset["drives/one"].labels.labelled_us.tolist() == [100_007, 200_007]
    assert dataset["drives/two"].labels.labelled_us.tolist() == [100_000, 200_000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("classes: [car]\nrecording: []", "unknown key 'recording' at the top; did you mean 'recordings'?"),
        ("clases: [car]\nrecordings: []", "unknown key 'clases' at the top; did you mean 'classes'?"),
        ("recordings: [{event: a.raw}]", "unknown key 'event' in recording 1; did you mean 'events'?"),
        (
            "recordings: [{events: a.raw, label_offset: 3}]",
            "unknown key 'label_offset' in recording 1; did you mean 'label_offset_us'?",
        ),
        ("zzz: 1\nrecordings: []", "unknown key 'zzz' at the top; known are sensor, format, columns"),
        ("classes: [car]", "recordings is empty; expected a list"),
        ("recordings: []", "recordings is empty"),
        ("recordings: 5", "recordings is empty; expected a list"),
        ("recordings: [a.raw]", "'a.raw' stands in recording 1; expected keys such as events and labels"),
        ("recordings: [{labels: a.npz}]", "events is missing in recording 1"),
        ("recordings: [{events: 3}]", "events is 3 in recording 1; expected a valid text"),
        (
            "recordings: [{events: a.raw, split: dev}]",
            "split is 'dev' in recording 1; expected 'train', 'val' or 'test'",
        ),
        ("recordings: {dev: drives}", "recordings names the split 'dev'"),
        ("recordings: {training: drives}", "recordings names the split 'training'; expected train, val, test"),
        (
            "recordings: [{events: a.raw, split: training}]",
            "split is 'training' in recording 1; expected 'train', 'val' or 'test'",
        ),
        ("recordings: {train: trian}", "mine.yaml: "),
        ("path: images\ntrain: a\nval: b\nnames: {0: car}", "images, as ultralytics does"),
        ("train: a\nnc: 1\nnames: [car]", "recordings: [{events: drive.raw, labels: drive.json, split: train}]"),
        ("recordings: {train: nowhere}", "nowhere: no such folder or file"),
        ("recordings: [{events: a.raw}, {events: a.raw}]", "two recordings are called 'a'"),
        ("sensor: [48, 64]\nrecordings: [{events: a.raw}]", "sensor is [48, 64] at the top; expected WIDTHxHEIGHT"),
        ("downscale: half\nrecordings: [{events: a.raw}]", "downscale is 'half'; expected a whole number from 1 to 64"),
        ("protocol: coco\nrecordings: [{events: a.raw}]", "protocol is 'coco' at the top; expected 'custom', 'gen1'"),
        ("label_offset_us: 1.5\nrecordings: [{events: a.raw}]", "label_offset_us, in microseconds, is 1.5"),
        ("label_time_unit: h\nrecordings: [{events: a.raw}]", "expected one of us, ms, s, ns"),
        ("recordings: [{events: a.raw, split: [train]}]", "split is ['train'] in recording 1"),
        ("label_time_unit: [us]\nrecordings: [{events: a.raw}]", "expected one of us, ms, s, ns"),
        ("recordings: {train: null}", "events is None of the split 'train'"),
        ("1: 2\nrecordings: []", "unknown key 1 at the top"),
        ("sensor: 5x0\nrecordings: [{events: a.raw}]", "each side must be 1 to 65536 pixels"),
        ("classes: car\nrecordings: [{events: a.raw}]", "classes is 'car' at the top; expected a valid list"),
        ("columns: 5\nrecordings: [{events: a.raw}]", "columns is 5 at the top; expected a valid text"),
        ("[1, 2", "is not valid YAML"),
        ("just text", "holds str; expected keys such as classes and recordings"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_a_yaml_that_cannot_be_meant_gets_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(FateError) as caught:
        open_dataset(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(tmp_path))
    assert "\n" not in message


def test_files_that_a_yaml_names_and_that_are_missing_are_faults_and_no_more(home: Path) -> None:
    text = (
        "classes: [car, pedestrian]\nrecordings:\n"
        "  - {events: drives/one.raw, labels: boxes/nowhere.npz}\n"
        "  - {events: drives/nowhere.raw}\n"
        "  - {events: drives/two.h5, labels: boxes/two_bbox.npy}\n"
    )
    with pytest.warns(FateWarning, match="1 of 3 recordings are left out"):
        dataset = open_dataset(write(home, text))
    assert [r.name for r in dataset] == ["drives/one", "drives/two"]
    assert [r.name for r in dataset.labelled] == ["drives/two"]
    assert len(dataset.faults) == 2
    assert any("nowhere.npz" in fault for fault in dataset.faults)


def test_a_folder_with_classes_txt_needs_no_yaml(home: Path) -> None:
    for name in ("one.raw", "three.dat"):
        stem = name.split(".")[0]
        write_labels(home / "drives" / f"{stem}_bbox.npy", LABELS)
    (home / "drives" / "classes.txt").write_text("car\n\npedestrian \n")
    for name in ("two.h5", "four.csv"):
        (home / "drives" / name).unlink()
    dataset = open_dataset(home / "drives")
    assert (dataset.kind, dataset.classes, len(dataset.labelled)) == ("own", ("car", "pedestrian"), 2)
    assert open_dataset(home / "drives", classes={"any": [0, 1]})["one"].labels.class_id.tolist() == [0, 0]
    (home / "drives" / "classes.txt").write_text("car\n")
    short = open_dataset(home / "drives")
    assert len(short.faults) == 2
    assert all("boxes of unknown classes were dropped: id 1 (1)" in fault for fault in short.faults)
    (home / "drives" / "classes.txt").write_text("")
    with pytest.raises(FateError, match="is empty; expected one class name a line"):
        open_dataset(home / "drives")


def test_classes_txt_of_a_dataset_serves_its_splits(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write_events(tmp_path / "train" / "a.raw", make_events(500, SENSOR))
    write_labels(tmp_path / "train" / "a_bbox.npy", LABELS)
    (tmp_path / "classes.txt").write_text("car\npedestrian\n")
    assert open_dataset(tmp_path / "train").classes == ("car", "pedestrian")


def test_recordings_without_any_labels_are_a_dataset_for_detection(tmp_path: Path) -> None:
    write_events(tmp_path / "a.raw", make_events(500, SENSOR))
    dataset = open_dataset(tmp_path)
    assert (dataset.classes, len(dataset), dataset.labelled) == ((), 1, ())
    assert dataset.faults == ("a: has no labels; it can be used for detection, not for training",)
    one = open_dataset(tmp_path / "a.raw")
    assert [r.name for r in one] == ["a"]


def test_label_files_of_another_sensor_are_refused(tmp_path: Path) -> None:
    write_events(tmp_path / "a.raw", make_events(500, (100, 100)))
    write_labels(tmp_path / "a.npz", LABELS)
    dataset = open_dataset(tmp_path, classes=["car", "pedestrian"]).checked()
    assert dataset.labelled == ()
    assert "labels are of a 64×48 sensor, events of a 100×100 one" in dataset.faults[0]


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_recording_damaged_in_the_middle_is_left_out_once_it_was_gone_through(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        write_events(tmp_path / f"{name}{suffix}", make_events(2000, SENSOR))
        write_labels(tmp_path / f"{name}_bbox.npz", LABELS)
    bad = bytearray((tmp_path / f"b{suffix}").read_bytes())
    bad[len(bad) // 2 : len(bad) // 2 + 20] = b"?" * 20
    (tmp_path / f"b{suffix}").write_bytes(bad)
    dataset = open_dataset(tmp_path, classes=["car", "pedestrian"]).checked()
    assert [recording.name for recording in dataset] == ["a"]
    (fault,) = dataset.faults
    assert fault.startswith("b: left out: ")
    assert dataset.recordings[0].known_span is not None  # and is not looked for again


needs_real = pytest.mark.skipif(
    not (REAL / "aedat4").is_dir(), reason="the folder of real recordings is not on this machine"
)


@needs_real
def test_labels_of_a_real_recording_lie_on_its_events_once_their_offset_is_given(tmp_path: Path) -> None:
    text = f"""
classes: [car]
recordings:
  - events: {REAL / "aedat4" / "davis346_traffic.aedat4"}
    labels: {REAL / "labels" / "davis346_traffic_bbox.npy"}
    label_offset_us: 1589163147365215
    split: test
    name: street
"""
    dataset = open_dataset(write(tmp_path, text))
    street = dataset["street"]
    assert dataset.sensor == (260, 346)
    labels = street.labels
    assert len(labels) == 147
    raw = read_labels(REAL / "labels" / "davis346_traffic_bbox.npy")
    assert np.array_equal(labels.labelled_us - 1589163147365215, raw.labelled_us)
    inside = []
    with street.open() as reader:
        for time in labels.labelled_us.tolist():
            events = reader.read(time - 40_000, time)
            share = len(events) / (260 * 346)
            for x1, y1, x2, y2 in labels.at(time).boxes.tolist():
                within = events.inside(int(x1), int(y1), int(x2) + 1, int(y2) + 1)
                area = max((int(x2) + 1 - int(x1)) * (int(y2) + 1 - int(y1)), 1)
                inside.append(len(within) / area > share)
    assert np.mean(inside) > 0.9  # moving cars are denser than the street around them


# ---- the example in the documentation -----------------------------------------------------------------------------


def example() -> str:
    """The code block that adds a new dataset."""
    text = (ROOT / "docs" / "guides" / "datasets.md").read_text()
    blocks: list[str] = re.findall(r"```python\n(.*?)```", text, re.S)
    return next(block for block in blocks if "class " in block)


def run_example(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("pedro")
    monkeypatch.setitem(sys.modules, "pedro", module)
    exec(compile(example(), "docs/guides/datasets.md", "exec"), module.__dict__)  # our own page, whose code must run
    return module


VOC = """<annotation><size><width>346</width><height>260</height></size>{}</annotation>"""
SIDES = "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
BOX = f"<object><name>person</name><bndbox>{SIDES}</bndbox></object>"


def test_the_example_that_adds_a_dataset_has_thirty_lines_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(example().strip().splitlines()) <= 30
    events = make_events(2000, (260, 346))
    for split, boxes in (("train", [(10, 20, 30, 60), (100, 5, 400, 100)]), ("val", [])):
        (tmp_path / "numpy" / split).mkdir(parents=True)
        (tmp_path / "xml" / split).mkdir(parents=True)
        table = np.stack([events.t_us, events.x, events.y, events.p], 1).astype(np.int64)
        np.save(tmp_path / "numpy" / split / "frame1.npy", table)
        text = VOC.format("".join(BOX.format(*box) for box in boxes))
        (tmp_path / "xml" / split / "frame1.xml").write_text(text)
    dataset = run_example(monkeypatch).open_pedro(tmp_path)
    assert [(r.name, r.split) for r in dataset] == [("train/frame1", "train"), ("val/frame1", "val")]
    train, val = dataset.recordings
    with train.open() as reader:
        assert reader.read() == events
    assert train.labels.boxes.tolist() == [[10, 20, 30, 60], [100, 5, 346, 100]]
    assert train.labels.classes == ("person",)
    assert val.labels.labelled_us.tolist() == [val.end_us]
    assert len(val.labels) == 0
    assert dataset.faults == ("train/frame1: 1 box reaches out of frame; clipped there",)


@needs_real
def test_the_example_reads_real_pedro_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (REAL / "pedro").iterdir():
        split, name = path.name.split("_", 1)
        folder = tmp_path / ("numpy" if path.suffix == ".npy" else "xml") / split
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(path)
    dataset = run_example(monkeypatch).open_pedro(tmp_path)
    assert len(dataset) == 5
    assert dataset.faults == ()
    for recording in dataset:
        with open_recording(recording.events_file, sensor=(260, 346), columns="txyp") as events:
            assert recording.num_events == events.num_events
        assert len(recording.labels) >= 1


def test_a_dataset_whose_only_label_file_is_damaged_is_refused_with_that_file(tmp_path: Path) -> None:
    write_events(tmp_path / "a.raw", make_events(500))
    (tmp_path / "a.json").write_text('{"images": [{"id": 1, "fil')
    with pytest.raises(FateError, match=r"a\.json.*classes\.txt"):
        open_dataset(tmp_path).refuse_without_classes()


def test_detections_of_fate_detect_are_no_labels_and_the_error_says_so(tmp_path: Path) -> None:
    (tmp_path / "drive.json").write_text('{"format": "fate-detections", "version": 1, "frames": []}')
    with pytest.raises(FateError, match=r"drive\.json.*fate detect.*ground truth"):
        read_labels(tmp_path / "drive.json")
