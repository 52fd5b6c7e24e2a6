"""``prepare``: what it writes down is what is there, goes on where something is broken, and again after a stop."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate import FateError, FateWarning, Labels, open_dataset, open_recording, prepare, write_events, write_labels
from fate.data import opening
from fate.data.findings import Finding
from fate.formats import index
from fate.formats import recording as recording_module
from fate.inspection import prepare as prepare_module
from tests.conftest import make_events
from tests.data.test_rvt_layout import write_sequence

GEN1 = (240, 304)
LABELS = Labels([100_000, 200_000], [1, 2], [3, 4], [40, 50], [25, 40], [0, 1])


def put(folder: Path, name: str, labels: Labels | None = LABELS, n: int = 2000, sensor: Any = GEN1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / f"{name}_td.dat", make_events(n, sensor, seed=n))
    if labels is not None:
        write_labels(folder / f"{name}_bbox.npy", labels)
    return folder / f"{name}_td.dat"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    home = tmp_path / "gen1"
    for split, names in (("train", "ab"), ("val", "c"), ("test", "d")):
        for name in names:
            put(home / split, name)
    return home


def entries(target: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((target / "manifest.json").read_text())
    return {entry["name"]: entry for entry in document["recordings"]}


def test_the_manifest_holds_what_the_files_hold(source: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    done = prepare("gen1", source, tmp_path / "out" / "prepared")
    assert [path.name for path in (tmp_path / "out" / "prepared").iterdir()] == ["manifest.json"]
    assert before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    listed = entries(tmp_path / "out" / "prepared")
    assert list(listed) == ["test/d", "train/a", "train/b", "val/c"]
    for name, entry in listed.items():
        events = open_recording(source / f"{name}_td.dat")
        assert (entry["start_us"], entry["end_us"]) == (events.start_us, events.end_us)
        assert entry["num_events"] == len(events.read())
        assert entry["boxes"] == {"car": 1, "pedestrian": 1}
        assert entry["labelled_times"] == 2
        assert sorted(entry["files"]) == [f"{name}_bbox.npy", f"{name}_td.dat"]
        for file, state in entry["files"].items():
            data = (source / file).read_bytes()
            assert state["bytes"] == len(data)
            assert state["sha256"] == hashlib.sha256(data).hexdigest()
    totals = done.document["totals"]
    assert list(totals) == ["train", "val", "test", "all"]
    assert totals["all"]["events"] == 8000
    assert totals["all"]["boxes"] == {"car": 4, "pedestrian": 4}
    assert totals["all"]["bytes"] == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert done.document["finished"]
    assert done.document["missing"] == [
        "train: 1457 of 1459 published recordings are missing",
        "val: 428 of 429 published recordings are missing",
        "test: 469 of 470 published recordings are missing",
    ]
    assert not done.document["complete"]
    assert "train" in done.text()


def test_published_numbers_are_reported_as_missing_and_not_required(source: Path, tmp_path: Path) -> None:
    done = prepare("gen1", source, tmp_path / "p")
    assert done.faults[:3] == (
        "train: 1457 of 1459 published recordings are missing",
        "val: 428 of 429 published recordings are missing",
        "test: 469 of 470 published recordings are missing",
    )
    put(tmp_path / "mpx" / "train", "a", sensor=(720, 1280))
    faults = prepare("1mpx", tmp_path / "mpx", tmp_path / "q").faults
    assert faults[0] == "0.00 of 14.65 published hours are here; the rest is missing"


def test_recordings_of_another_sensor_than_the_published_ones_are_named_as_such(tmp_path: Path) -> None:
    put(tmp_path / "set" / "train", "a")
    done = prepare("1mpx", tmp_path / "set", tmp_path / "out")
    assert "its recordings are 304×240, while 1mpx is 1280×720" in [
        fault["sentence"] for fault in done.document["faults"]
    ]


def test_a_prepared_dataset_opens_without_a_look_at_any_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = open_dataset(source)
    prepare("gen1", source, tmp_path / "p")
    opened: list[str] = []
    usual = builtins.open

    def watched(file: Any, *rest: Any, **more: Any) -> Any:
        opened.append(str(file))
        return usual(file, *rest, **more)

    monkeypatch.setattr(builtins, "open", watched)
    monkeypatch.setattr(opening, "read_head", None)
    dataset = open_dataset(tmp_path / "p")
    spans = [(r.start_us, r.end_us, r.num_events) for r in dataset]
    assert [path for path in opened if str(source) in path] == []
    monkeypatch.undo()
    assert (dataset.kind, dataset.classes, dataset.sensor) == (direct.kind, direct.classes, direct.sensor)
    assert dataset.root == source
    assert [r.name for r in dataset] == [r.name for r in direct]
    assert spans == [(r.start_us, r.end_us, r.num_events) for r in direct]
    for one, other in zip(dataset, direct, strict=True):
        assert one.labels == other.labels
        with one.open() as mine, other.open() as theirs:
            assert mine.read() == theirs.read()
    assert [r.name for r in open_dataset(tmp_path / "p", "train")] == ["train/a", "train/b"]
    assert open_dataset(tmp_path / "p", "train").faults == ("train: 1457 of 1459 published recordings are missing",)
    assert open_dataset(tmp_path / "p", classes=["pedestrian"])["val/c"].labels.class_id.tolist() == [0]
    with pytest.raises(FateError, match="was prepared as gen1, and kind='1mpx' was given"):
        open_dataset(tmp_path / "p", kind="1mpx")


def test_time_indexes_are_made_so_that_reading_finds_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source / "train", "long", n=150_000)  # indexes of small files are not kept
    prepare("gen1", source, tmp_path / "p", hashed=False)
    usual = index.build_index
    built: list[Path] = []

    def watched(file: Any, *rest: Any, **more: Any) -> Any:
        built.append(file.path)
        return usual(file, *rest, **more)

    monkeypatch.setattr(recording_module, "build_index", watched)
    for place in (source, tmp_path / "p"):
        with open_dataset(place)["train/long"].open() as reader:
            assert len(reader.read(0, 10**12)) == 150_000
    assert built == []
    shutil.rmtree(os.environ["FATE_CACHE_DIR"])
    prepare("gen1", source, tmp_path / "p", hashed=False)
    assert source / "train" / "long_td.dat" in built


def test_what_is_broken_or_missing_is_named_and_the_rest_is_used(source: Path, tmp_path: Path) -> None:
    train = source / "train"
    put(train, "corrupt").write_bytes(b"% Version 2\n% Height 240\n% Width 304\n\x0c\x08" + bytes(range(256)) * 300)
    put(train, "unlabelled", None)
    put(train, "outside", Labels([100_000], [-30], [3], [40], [25], [0]))
    put(train, "other", sensor=(480, 640))
    put(train, "late", Labels([10**9], [1], [3], [40], [25], [0]))
    put(train, "alien", Labels([100_000], [1], [3], [40], [25], [7]))
    put(train, "lonely").unlink()
    bad = put(train, "torn").with_name("torn_bbox.npy")
    bad.write_bytes(bad.read_bytes()[:-30])
    done = prepare("gen1", source, tmp_path / "p")
    expected = {
        "train/corrupt": "left out",
        "train/unlabelled": "has no labels",
        "train/outside": "1 box reaches out of frame; clipped there",
        "train/other": "left out: it is 640×480, the others 304×240",
        "train/late": "the recording may be cut short",
        "train/alien": "boxes of unknown classes were dropped: id 7 (1)",
        "train/lonely_bbox.npy": "the recording of these labels is missing",
        "train/torn": "its labels are not used",
    }
    for name, words in expected.items():
        found = [fault for fault in done.faults if fault.startswith(f"{name}: ")]
        assert any(words in fault for fault in found), name
    with pytest.warns(FateWarning, match="2 of 9 recordings are left out"):
        dataset = open_dataset(tmp_path / "p", "train")
    assert [r.name for r in dataset] == [
        f"train/{n}" for n in ("a", "alien", "b", "late", "outside", "torn", "unlabelled")
    ]
    assert not dataset["train/torn"].labelled
    with pytest.warns(FateWarning):
        assert [r.name for r in open_dataset(source, "train")] == [r.name for r in dataset]


def counting(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[str]:
    """Names of the recordings that are examined."""
    names: list[str] = []
    usual = prepare_module.examine

    def examine(root: Path, entry: Any, kind: str) -> dict[str, Any]:
        if stop_after is not None and len(names) >= stop_after:
            raise KeyboardInterrupt
        names.append(entry.name)
        return usual(root, entry, kind)

    monkeypatch.setattr(prepare_module, "examine", examine)
    return names


def test_a_second_run_looks_only_at_what_has_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare("gen1", source, tmp_path / "p", hashed=False)
    names = counting(monkeypatch)
    assert prepare("gen1", source, tmp_path / "p", hashed=False).document == first.document
    assert names == []
    put(source / "train", "a", n=2100)
    put(source / "train", "new")
    os.utime(source / "val" / "c_bbox.npy", ns=(1, 1))
    (source / "test" / "d_td.dat").unlink()
    second = prepare("gen1", source, tmp_path / "p", hashed=False)
    assert sorted(names) == ["train/a", "train/new", "val/c"]
    assert entries(tmp_path / "p")["train/a"]["num_events"] == 2100
    assert "test/d: was there before and is missing now" in second.faults
    names.clear()
    hashed = prepare("gen1", source, tmp_path / "p")  # hashes were not taken before
    assert sorted(names) == ["train/a", "train/b", "train/new", "val/c"]
    assert hashed.document["hashed"]


def test_a_run_that_was_stopped_goes_on(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = counting(monkeypatch, stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        prepare("gen1", source, tmp_path / "p", workers=1)
    assert len(names) == 2
    assert sorted(entries(tmp_path / "p")) == sorted(names)
    half = open_dataset(tmp_path / "p")
    assert any("fate prepare did not finish" in fault for fault in half.faults)
    monkeypatch.undo()
    rest = counting(monkeypatch)
    prepare("gen1", source, tmp_path / "p")
    assert sorted(names + rest) == ["test/d", "train/a", "train/b", "val/c"]
    assert not any("did not finish" in fault for fault in open_dataset(tmp_path / "p").faults)


def test_the_number_of_workers_changes_nothing(source: Path, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    one = prepare("gen1", source, tmp_path / "p", workers=1, progress=lambda *state: done.append(state))
    many = prepare("gen1", source, tmp_path / "p4", workers=4)
    assert one.document["recordings"] == many.document["recordings"]
    assert [state[0] for state in done] == sorted(state[0] for state in done)
    assert done[-1][0] == done[-1][1]


def test_a_dataset_that_moved_with_its_manifest_is_found_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    put(tmp_path / "here" / "data" / "train", "a")
    prepare("gen1", tmp_path / "here" / "data", tmp_path / "here" / "p")
    (tmp_path / "here").rename(tmp_path / "there")
    assert open_dataset(tmp_path / "there" / "p").root == tmp_path / "there" / "data"
    shutil.rmtree(tmp_path / "there" / "data")
    with pytest.raises(FateError, match="here.data.* run fate prepare again"):
        open_dataset(tmp_path / "there" / "p")


def test_a_foreign_manifest_is_neither_believed_nor_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "p"
    target.mkdir()
    path = target / "manifest.json"
    for text in ("{}", '{"format": "fate-simulated-dataset", "schema": 1}'):
        path.write_text(text)
        with pytest.raises(FateError, match="fate prepare did not write it; choose another folder"):
            prepare("gen1", source, target)
        assert path.read_text() == text
    path.unlink()
    prepare("gen1", source, target)
    with pytest.raises(FateError, match="is of gen1 in "):
        prepare("1mpx", source, target)
    good = json.loads(path.read_text())
    for spoil, words in (
        (lambda d: d["recordings"][0].update(events="../../etc/passwd"), "no path inside the dataset"),
        (lambda d: d["recordings"][0].update(labels="/etc/passwd"), "no path inside the dataset"),
        (lambda d: d["recordings"][0].pop("start_us"), "is damaged"),
        (lambda d: d.update(kind="own"), "is damaged"),
        (lambda d: d.update(schema=9), "schema is 9, and 1 is known"),
        (lambda d: d.update(recordings=5), "is damaged"),
        (lambda d: d.update(recordings=[]), "lists no usable recording"),
    ):
        document = json.loads(json.dumps(good))
        spoil(document)  # type: ignore[no-untyped-call]
        path.write_text(json.dumps(document))
        with pytest.raises(FateError, match=words):
            open_dataset(target)
    path.write_text(json.dumps(good)[:500])
    with pytest.raises(FateError, match="is damaged"):
        open_dataset(target)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gen2", "gen1", "p"), "expected one of gen1, 1mpx, rvt"),
        (("gen1", "nowhere", "p"), "no such folder or file"),
        (("gen1", "gen1/train/a_td.dat", "p"), "is not a folder"),
        (("rvt", "nowhere", "p"), "no such folder"),
        (("rvt", "gen1", "p"), "has no sequences in RVT's layout"),
        (("gen1", "gen1", "gen1/train/a_td.dat"), "no folder can be made there"),
    ],
)
def test_bad_arguments_get_a_sentence(source: Path, arguments: tuple[str, str, str], words: str) -> None:
    kind, place, target = arguments
    with pytest.raises(FateError) as caught:
        prepare(kind, source.parent / place, source.parent / target)
    assert words in str(caught.value)
    with pytest.raises(FateError, match="whole number from 1 to 256"):
        prepare("gen1", source, source.parent / "p", workers=0)


def test_rvt_data_is_checked_and_opens_from_its_manifest(tmp_path: Path) -> None:
    root = tmp_path / "rvt"
    for name in ("a", "b", "short", "apart", "cut"):
        write_sequence(root / "val" / name, images=6)
    usual = "event_representations_v2/stacked_histogram_dt=50_nbins=10"
    np.save(root / "val" / "short" / usual / "timestamps_us.npy", np.arange(9) * 50_000)
    np.save(root / "val" / "apart" / usual / "objframe_idx_2_repr_idx.npy", np.array([1, 4]))
    images = root / "val" / "cut" / usual / "event_representations.h5"
    images.write_bytes(images.read_bytes()[:4000])
    done = prepare("rvt", root, tmp_path / "p")
    assert [fault.split(": ")[0] for fault in done.faults] == ["val/apart", "val/cut", "val/short"]
    assert "2 of 2 labelled times are at the end of no image" in done.faults[0]
    with pytest.warns(FateWarning):
        dataset, direct = open_dataset(tmp_path / "p"), open_dataset(root)
    assert (dataset.holds, dataset.protocol, dataset.kind) == ("histograms", "gen1", "rvt")
    assert [r.name for r in dataset] == ["val/a", "val/apart", "val/b"]
    assert dataset["val/a"].labels == direct["val/a"].labels
    assert (dataset["val/a"].start_us, dataset["val/a"].end_us) == (direct["val/a"].start_us, direct["val/a"].end_us)
    assert len(entries(tmp_path / "p")["val/a"]["files"]) == 5
    names = [Finding(**each).kind for each in done.document["faults"]]
    assert names == ["clock", "damaged", "damaged"]
