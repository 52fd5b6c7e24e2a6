"""Datasets read in place: what is found, how it is read, and what happens to recordings that are not as they should."""

from __future__ import annotations

import builtins
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fate
from fate import (
    Events,
    FateError,
    FateWarning,
    Labels,
    open_dataset,
    open_recording,
    write_events,
    write_labels,
)
from fate.data import labelled_recording
from fate.data.findings import LISTED, Finding, sentences
from fate.formats import recording as recording_module
from tests.conftest import make_events

GEN1, MPX = (240, 304), (720, 1280)
TIMES = [1_000_000, 2_000_000]


def boxes(*ids: int, sensor: tuple[int, int] = GEN1) -> Labels:
    """One box for each class id at each of two times."""
    n = len(ids)
    right, bottom = sensor[1] - 10, sensor[0] - 20
    t = np.repeat(TIMES, n)
    return Labels(t, [11] * 2 * n, [21] * 2 * n, [right] * 2 * n, [bottom] * 2 * n, [*ids, *ids])


def put(folder: Path, name: str, labels: Labels | None, sensor: tuple[int, int] = GEN1, n: int = 3000) -> Path:
    """One recording as the public datasets have it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / f"{name}_td.dat", make_events(n, sensor, seed=len(name)))
    if labels is not None:
        write_labels(folder / f"{name}_bbox.npy", labels)
    return folder / f"{name}_td.dat"


@pytest.fixture
def gen1(tmp_path: Path) -> Path:
    for split, names in (("train", "abc"), ("val", "d"), ("test", "ef")):
        for name in names:
            put(tmp_path / "gen1" / split, name, boxes(0, 1))
    return tmp_path / "gen1"


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "drives"
    fate.simulate(folder, recordings=1, seconds=1.0, preview=False, shares=(1, 0, 0))
    return folder


# ---- what is found ------------------------------------------------------------------------------------------------


def test_the_public_layout_is_gen1_with_its_two_classes_and_three_splits(gen1: Path) -> None:
    dataset = open_dataset(gen1)
    assert (dataset.kind, dataset.protocol, dataset.holds) == ("gen1", "gen1", "events")
    assert dataset.classes == ("car", "pedestrian")
    assert (dataset.sensor, dataset.downscale) == (GEN1, 1)
    assert [r.name for r in dataset] == ["test/e", "test/f", "train/a", "train/b", "train/c", "val/d"]
    assert dataset.splits == ("train", "val", "test")
    assert dataset.faults == ()
    for split in dataset.splits:
        alone = open_dataset(gen1, split)
        assert [r.name for r in alone] == [r.name for r in dataset.split(split)]
        assert {r.split for r in alone} == {split}
    assert len(open_dataset(gen1 / "train")) == 3
    assert len(open_dataset(gen1, "validation")) == 1


def test_1mpx_gives_three_of_seven_classes_at_half_resolution(tmp_path: Path) -> None:
    path = put(tmp_path / "test", "a", boxes(0, 1, 2, 3, 4, 5, 6, sensor=MPX), MPX)
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.downscale, dataset.sensor) == ("1mpx", 2, (360, 640))
    assert dataset.classes == ("pedestrian", "two wheeler", "car")
    recording = dataset["test/a"]
    labels, raw = recording.labels, boxes(0, 1, 2, sensor=MPX)
    assert labels.class_id.tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(labels.boxes, raw.boxes / 2)
    assert labels.sensor == (360, 640)
    assert labels.labelled_us.tolist() == TIMES
    assert dataset.faults == ()  # what RVT leaves out is no fault
    whole = open_recording(path).read()
    with recording.open() as reader:
        events = reader.read(0, 10**12)
    assert events.sensor == reader.sensor == (360, 640)
    assert np.array_equal(events.x, whole.x // 2)
    assert np.array_equal(events.y, whole.y // 2)
    assert np.array_equal(events.t_us, whole.t_us)
    assert np.array_equal(events.p, whole.p)
    full = open_dataset(tmp_path, downscale=1)
    assert full.sensor == MPX
    assert np.array_equal(full["test/a"].labels.boxes, raw.boxes)


def test_a_sensor_that_cannot_be_halved_keeps_its_last_row_and_column(tmp_path: Path) -> None:
    path = put(tmp_path, "a", boxes(0, sensor=(49, 65)), (49, 65))
    dataset = open_dataset(tmp_path, downscale=2, classes=["car"])
    assert dataset.sensor == (25, 33)
    with dataset["a"].open() as reader:
        assert len(reader.read()) == len(open_recording(path).read())


def test_a_simulated_dataset_has_the_classes_of_its_manifest_and_exact_boxes(simulated: Path) -> None:
    dataset = open_dataset(simulated)
    assert (dataset.kind, dataset.protocol, dataset.sensor) == ("sim", "sim", GEN1)
    assert dataset.classes == ("car", "pedestrian")
    assert len(dataset) == 1
    train = open_dataset(simulated / "train")  # its manifest is one folder up
    assert train.kind == "sim"
    recording = train.recordings[0]
    truth, labels = recording.truth, recording.labels
    assert truth is not None
    assert truth.classes == labels.classes == dataset.classes
    for time in labels.labelled_us.tolist():
        mine, exact = labels.at(time), truth.at(time)
        assert np.allclose(np.sort(mine.boxes, axis=0), np.sort(exact.boxes, axis=0), atol=0.05)
    assert [r.name for r in open_dataset(simulated / "manifest.json")] == [r.name for r in dataset]
    alone = open_dataset(recording.events_file)
    assert (alone.kind, len(alone)) == ("sim", 1)
    only = open_dataset(simulated, classes=["pedestrian"])
    assert only.classes == ("pedestrian",)
    assert only.faults == ()
    kept = sum(int((r.labels.class_id == 1).sum()) for r in dataset)
    assert sum(len(r.labels) for r in only) == kept


@pytest.mark.parametrize(
    ("classes", "names", "ids"),
    [
        (("car", "truck"), ("car", "truck"), [0, 1]),
        (["Two-Wheeler"], ("two wheeler",), [0]),
        ({"person": 0, "vehicle": (2, 3, 4)}, ("person", "vehicle"), [0, 1, 1, 1]),
        ({"light": 6}, ("light",), [0]),
    ],
)
def test_class_maps_are_data_that_a_user_can_give(
    tmp_path: Path, classes: Any, names: tuple[str, ...], ids: list[int]
) -> None:
    put(tmp_path, "a", boxes(0, 1, 2, 3, 4, 5, 6, sensor=MPX), MPX)
    dataset = open_dataset(tmp_path, classes=classes)
    assert (dataset.kind, dataset.classes) == ("1mpx", names)
    assert sorted(dataset["a"].labels.at(TIMES[0]).class_id.tolist()) == ids
    assert dataset["a"].labels.classes == names
    assert dataset.faults == ()


def test_names_in_a_label_file_count_before_places(tmp_path: Path) -> None:
    put(tmp_path, "a", None)
    put(tmp_path, "b", None)
    write_labels(tmp_path / "a.npz", replace(boxes(0, 1), classes=("dog", "cat")))
    write_labels(tmp_path / "b.npz", replace(boxes(0, 1, 2), classes=("cat", "dog", "cow")))
    dataset = open_dataset(tmp_path)
    assert (dataset.kind, dataset.classes) == ("own", ("dog", "cat"))
    assert dataset["a"].labels.at(TIMES[0]).class_id.tolist() == [0, 1]
    assert dataset["b"].labels.at(TIMES[0]).class_id.tolist() == [1, 0]
    assert dataset.faults == (
        "b: boxes of unknown classes were dropped: cow (2); name them in classes, or give a mapping from names to ids"
        " to leave them out",
    )


def test_a_dataset_that_could_be_of_two_kinds_is_asked_for(tmp_path: Path) -> None:
    write_events(tmp_path / "a_td.h5", make_events(2000, MPX))
    write_labels(tmp_path / "a_bbox.npy", boxes(0, 1, sensor=MPX))
    with pytest.raises(FateError, match=r"could be 1mpx or a dataset of your own .* pass kind='1mpx', or classes="):
        open_dataset(tmp_path)
    assert open_dataset(tmp_path, kind="1mpx").classes == ("pedestrian", "two wheeler", "car")
    assert open_dataset(tmp_path, classes=["drone", "bird"]).kind == "own"
    put(tmp_path / "b", "b", boxes(0, 9, sensor=MPX), MPX)
    with pytest.raises(FateError, match="could be 1mpx or a dataset of your own"):
        open_dataset(tmp_path / "b")
    put(tmp_path / "c", "c", boxes(3, 1, sensor=(480, 640)), (480, 640))
    with pytest.raises(FateError, match=r"have class ids \(1, 3\) and no names; pass classes="):
        open_dataset(tmp_path / "c")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split": "holdout"}, "expected train, val or test"),
        ({"kind": "gen2"}, "expected one of gen1, 1mpx, sim, rvt, own"),
        ({"kind": "sim"}, "has no manifest.json of a simulated dataset"),
        ({"kind": "rvt"}, "has no sequences in RVT's layout"),
        ({"downscale": 0}, "expected a whole number from 1 to 64"),
        ({"downscale": 1.5}, "expected a whole number from 1 to 64"),
        ({"classes": "car", "kind": "gen1"}, "expected a list of names"),
        ({"classes": ["car", "car"], "kind": "gen1"}, "each name may occur once"),
        ({"classes": ["tram"], "kind": "gen1"}, "gen1 has car, pedestrian"),
        ({"classes": {"car": -1}}, "expected a whole number from 0"),
        ({"classes": {"car": 0, "van": [1, 0]}}, "class id 0 was given to 'car' and to 'van'"),
        ({"classes": {"two wheeler": 0, "two-wheeler": 1}}, "differ only in spelling"),
        ({"sensor": (240,)}, "expected (height, width)"),
    ],
)
def test_bad_arguments_get_a_sentence(gen1: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(FateError) as caught:
        open_dataset(gen1, **arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- opening and reading ------------------------------------------------------------------------------------------


def test_opening_lists_folders_and_goes_through_no_recording(gen1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a recording was gone through")

    monkeypatch.setattr(recording_module, "build_index", refuse)
    monkeypatch.setattr(recording_module, "load_index", refuse)
    monkeypatch.setattr(labelled_recording, "open_recording", refuse)
    dataset = open_dataset(gen1)
    spans = [(r.start_us, r.end_us, r.num_events) for r in dataset]
    monkeypatch.undo()
    for recording, span in zip(dataset, spans, strict=True):
        with open_recording(recording.events_file) as events:
            assert span == (events.start_us, events.end_us, events.num_events)


def test_files_other_than_dat_tell_their_span_from_their_index(tmp_path: Path) -> None:
    write_events(tmp_path / "a.raw", make_events(3000, GEN1, start=5000))
    write_labels(tmp_path / "a_bbox.npy", boxes(0))
    (recording,) = open_dataset(tmp_path, classes=["car"])
    with open_recording(tmp_path / "a.raw") as events:
        assert (recording.start_us, recording.end_us) == (events.start_us, events.end_us)
        assert recording.num_events == len(events.read())


def test_a_reader_gives_what_the_file_holds_and_travels_between_processes(gen1: Path) -> None:
    recording = open_dataset(gen1)["train/b"]
    whole = open_recording(recording.events_file).read()
    again = pickle.loads(pickle.dumps(recording))
    assert again == recording
    with recording.open() as reader:
        sent = pickle.loads(pickle.dumps(reader))
        for start, end in ((0, 50_000), (123_456, 900_000), (10**9, 10**9 + 1)):
            assert reader.read(start, end) == whole.between(start, end)
            assert sent.read(start, end) == whole.between(start, end)
        windows = [events for _, events in reader.windows(hz=20)]
        assert Events.concatenate(windows) == whole
        sent.close()
    with pytest.raises(FateError, match="the recording is closed"):
        reader.read(0, 1)


def test_labels_are_not_kept(gen1: Path) -> None:
    dataset = open_dataset(gen1)
    size = len(pickle.dumps(dataset))
    first = dataset["train/a"].labels
    assert len(dataset.faults) == 0
    assert len(pickle.dumps(dataset)) < size + 100
    write_labels(dataset["train/a"].label_file or "", boxes(1))
    assert len(dataset["train/a"].labels) < len(first)


def test_a_dataset_in_two_formats_counts_once(gen1: Path) -> None:
    write_events(gen1 / "train" / "a_td.dat.h5", make_events(100, GEN1))
    dataset = open_dataset(gen1, "train")
    assert sorted(r.events_file.name for r in dataset) == ["a_td.dat", "b_td.dat", "c_td.dat"]
    assert len(dataset.faults) == 1
    assert "it has the same labels as train/a_td.dat, which is used" in dataset.faults[0]


# ---- faults -------------------------------------------------------------------------------------------------------


def cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(50_000))


def noise_behind_the_header(path: Path) -> None:
    head = path.read_bytes()[:60]
    start = head.index(b"\x0c\x08") + 2
    path.write_bytes(head[:start] + np.random.default_rng(0).bytes(80_000))


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def only_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"\x0c\x08") + 2])


@pytest.mark.parametrize("damage", [cut_header, noise, noise_behind_the_header, nothing, only_a_header])
def test_a_faulty_dataset_is_used_as_far_as_it_can_be_and_each_fault_is_named_once(gen1: Path, damage: Any) -> None:
    train = gen1 / "train"
    damage(put(train, "corrupt", boxes(0)))
    put(train, "unlabelled", None)
    far = Labels(np.repeat(TIMES, 2), [-30, 290, 11, 400], [21] * 4, [50, 330, 90, 500], [220] * 4, [0, 1, 0, 1])
    put(train, "outside", far)
    put(train, "other", boxes(0, sensor=(480, 640)), (480, 640))
    with pytest.warns(FateWarning, match="2 of 7 recordings are left out") as said:
        dataset = open_dataset(gen1, "train")
    assert [each.category for each in said].count(FateWarning) == 1
    assert [r.name for r in dataset] == [f"train/{name}" for name in ("a", "b", "c", "outside", "unlabelled")]
    assert [r.name for r in dataset.labelled] == [f"train/{name}" for name in ("a", "b", "c", "outside")]
    for name, words in (
        ("corrupt", "left out: "),
        ("unlabelled", "has no labels"),
        ("outside", "3 boxes reach out of frame; clipped there, 1 wholly outside and dropped"),
        ("other", "left out: it is 640×480, the others are 304×240"),
    ):
        (fault,) = [fault for fault in dataset.faults if fault.startswith(f"train/{name}: ")]
        assert words in fault
        assert "\n" not in fault
    assert len(dataset.faults) == 4
    labels = dataset["train/outside"].labels
    assert np.array_equal(labels.boxes[:, [0, 2]], [[0, 50], [290, 304], [11, 90]])  # the last one was wholly outside
    assert labels.labelled_us.tolist() == TIMES
    with dataset["train/unlabelled"].open() as reader:
        assert len(reader.read()) == 3000
    with pytest.raises(FateError, match="has no labels"):
        _ = dataset["train/unlabelled"].labels
    assert open_dataset(gen1, "val").faults == ()


def test_if_all_recordings_agree_on_another_sensor_it_is_used(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path, name, boxes(0, sensor=(480, 640)), (480, 640))
    dataset = open_dataset(tmp_path, kind="gen1")
    assert (len(dataset), dataset.sensor) == (2, (480, 640))
    assert dataset.faults == ("its recordings are 640×480, while gen1 is 304×240",)


def test_files_that_do_not_say_their_sensor_get_that_of_the_dataset(tmp_path: Path) -> None:
    path = put(tmp_path, "a", boxes(0))
    data = path.read_bytes()
    path.write_bytes(b"% Version 2\n" + data[data.index(b"\x0c\x08") :])
    put(tmp_path, "b", boxes(1))
    dataset = open_dataset(tmp_path)
    assert dataset.kind == "gen1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dataset["a"].open() as reader:
            assert reader.read().sensor == GEN1
    (tmp_path / "b_td.dat").unlink()
    with pytest.raises(FateError, match=r"no recording says how large its sensor is; pass sensor=\(height, width\)"):
        open_dataset(tmp_path, kind="own", classes=["car"])
    assert open_dataset(tmp_path, classes=["car"], sensor=GEN1).sensor == GEN1


@pytest.mark.parametrize("cut", [False, True])
def test_unreadable_labels_make_a_recording_unlabelled_and_no_more(gen1: Path, cut: bool) -> None:
    path = gen1 / "train" / "b_bbox.npy"
    if cut:
        path.write_bytes(path.read_bytes()[:-50])
    else:
        table = np.load(path)
        table["w"][1] = np.nan
        np.save(path, table)
    dataset = open_dataset(gen1, "train").checked()
    assert [r.name for r in dataset.labelled] == ["train/a", "train/c"]
    assert [r.name for r in dataset] == ["train/a", "train/b", "train/c"]
    (fault,) = dataset.faults
    assert fault.startswith("train/b: its labels are not used: ")
    assert ("cut short" in fault) == cut


def test_events_out_of_order_or_out_of_frame_are_repaired_and_a_cut_tail_is_left(gen1: Path) -> None:
    path = gen1 / "val" / "d_td.dat"
    good = open_recording(path).read()
    data = bytearray(path.read_bytes())
    start = data.index(b"\x0c\x08") + 2
    record = np.frombuffer(bytes(data[start:]), "<u4").reshape(-1, 2).copy()
    record[5, 1] = 33_014 % 16_384 << 14  # a row that the sensor does not have
    record[[100, 2000]] = record[[2000, 100]]
    path.write_bytes(bytes(data[:start]) + record.tobytes() + b"\x01\x02\x03")
    dataset = open_dataset(gen1, "val")
    with pytest.warns(FateWarning), dataset["val/d"].open() as reader:
        events = reader.read()
    assert len(events) == len(good) - 1
    assert (np.diff(events.t_us) >= 0).all()


def test_labels_on_another_clock_are_named(gen1: Path) -> None:
    shifted = replace(boxes(0), t_us=np.array(TIMES) + 10**12, labelled_us=np.array(TIMES) + 10**12)
    write_labels(gen1 / "val" / "d_bbox.npy", shifted)
    (fault,) = open_dataset(gen1, "val").faults
    assert "different clocks: give the difference as label_offset_us" in fault


def test_nothing_usable_is_an_error_with_the_reason(tmp_path: Path) -> None:
    for name in "ab":
        nothing(put(tmp_path, name, boxes(0)))
    with pytest.raises(FateError, match=r"no recording can be read; .*is empty \(0 bytes\).* \(and 1 more like it\)"):
        open_dataset(tmp_path, kind="gen1")
    with pytest.raises(FateError, match="no such folder or file"):
        open_dataset(tmp_path / "nowhere")


def test_many_faults_of_a_kind_are_counted_after_the_first() -> None:
    findings = [Finding("no labels", f"{i}: has no labels") for i in range(LISTED + 5)]
    findings.insert(3, Finding("sensor", "x: left out"))
    told = sentences(findings)
    assert len(told) == LISTED + 2
    assert told[-1] == "5 more recordings have no labels"
    assert told[3] == "x: left out"


# ---- small things ----------------------------------------------------------------------------------------------------


def test_a_dataset_shows_what_it_is_and_finds_recordings_by_name(gen1: Path) -> None:
    dataset = open_dataset(gen1)
    assert repr(dataset) == "Dataset('gen1', gen1, 6 recordings, 6 with labels, 304×240, car/pedestrian)"
    with pytest.raises(FateError, match="has no recording 'x'; names are paths inside the dataset, such as 'test/e'"):
        _ = dataset["x"]
    with pytest.raises(FateError, match="has no recordings of the split 'test'; its splits are train"):
        open_dataset(gen1, "train").split("test")


def test_each_folder_is_listed_once(gen1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand recordings on a network disk, every file is opened a fixed number of times."""
    opened: list[str] = []
    usual = builtins.open

    def counting(file: Any, *rest: Any, **more: Any) -> Any:
        opened.append(str(file))
        return usual(file, *rest, **more)

    monkeypatch.setattr(builtins, "open", counting)
    open_dataset(gen1, kind="gen1")
    files = [path for path in opened if str(gen1) in path]
    assert len([path for path in files if path.endswith(".npy")]) == 6
    assert len([path for path in files if path.endswith(".dat")]) <= 2 * 6
