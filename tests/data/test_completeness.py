"""What makes a dataset incomplete, and that training says so before it starts."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import fate
from fate import FateError, Labels, open_dataset, read_labels, write_events, write_labels
from fate.cli.main import app
from fate.data.dataset import data_faults
from fate.training.dry_run import dry_run
from tests.conftest import make_events
from tests.training.conftest import small_config, write_drives

SENSOR = (48, 64)
LABELS = Labels([100_000, 200_000], [1, 2], [3, 4], [20, 30], [25, 40], [0, 1], sensor=SENSOR)


def put(folder: Path, name: str, labels: Labels | None = LABELS, ending: str = "_td.dat") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_events(folder / f"{name}{ending}", make_events(2000, SENSOR))
    if labels is not None:
        write_labels(folder / f"{name}_bbox.npy", labels)
    (folder / "classes.txt").write_text("car\npedestrian\n")
    return folder / f"{name}{ending}"


def missing(path: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return data_faults(open_dataset(path)).missing


def test_small_and_clipped_boxes_and_recordings_without_labels_leave_a_dataset_complete(tmp_path: Path) -> None:
    put(tmp_path, "a")
    put(tmp_path, "b", None)
    put(tmp_path, "c", Labels([100_000], [-30], [3], [1], [5], [0]))
    faults = data_faults(open_dataset(tmp_path))
    assert len(faults.findings) == 2
    assert faults.missing == []
    faults.refuse(allow_missing=False)


@pytest.mark.parametrize("ending", ["_td.dat", ".raw", ".npy"])
def test_a_recording_that_ends_early_is_named(tmp_path: Path, ending: str) -> None:
    put(tmp_path, "a")
    path = put(tmp_path, "b", ending=ending)
    path.write_bytes(path.read_bytes()[: -(3 if ending == ".npy" else 1)])
    (fault,) = missing(tmp_path)
    assert fault.startswith("b: ends early")


def test_what_is_damaged_unknown_or_late_makes_a_dataset_incomplete(tmp_path: Path) -> None:
    put(tmp_path, "a")
    put(tmp_path, "b").write_bytes(b"no recording")
    put(tmp_path, "c").with_name("c_bbox.npy").write_bytes(b"no labels")
    put(tmp_path, "d", replace(LABELS, class_id=[0, 9]))
    put(tmp_path, "e", Labels([100_000, 10**9], [1, 2], [3, 4], [20, 30], [25, 40], [0, 1]))
    found = missing(tmp_path)
    assert sorted(fault[0] for fault in found) == ["b", "c", "d", "e"]
    with pytest.raises(FateError, match="allow_missing"):
        data_faults(open_dataset(tmp_path)).refuse(allow_missing=False)


def test_a_file_that_a_yaml_names_and_nobody_has_is_missing(tmp_path: Path) -> None:
    put(tmp_path / "data", "a")
    text = "classes: [car, pedestrian]\nrecordings:\n- {events: data/a_td.dat, labels: data/a_bbox.npy}\n"
    (tmp_path / "set.yaml").write_text(text + "- {events: data/gone.dat, labels: data/gone_bbox.npy}\n")
    (fault,) = missing(tmp_path / "set.yaml")
    assert "gone" in fault


@pytest.mark.slow
def test_files_of_a_simulated_dataset_that_are_gone_or_cut_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "drives"
    fate.simulate(folder, recordings=2, seconds=0.3, shares=(1, 0, 0))
    assert missing(folder) == []
    (folder / "train" / "preview.mp4").unlink()  # a picture is no data
    assert missing(folder) == []
    first, second = sorted((folder / "train").glob("*_td.dat"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-80])
    found = missing(folder)
    assert any(first.name in fault and "missing" in fault for fault in found)
    assert any(second.name in fault and "cut short" in fault for fault in found)


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    """A dataset with one box of a class that nobody named, and one recording that cannot be read."""
    path = write_drives(tmp_path)
    labels = read_labels(tmp_path / "drive_0_labels.npz")
    write_labels(tmp_path / "drive_0_labels.npz", replace(labels, class_id=[9, *labels.class_id[1:]]))
    document = yaml.safe_load(path.read_text())
    (tmp_path / "broken.dat").write_bytes(b"no recording")
    document["recordings"].append({"events": "broken.dat", "split": "train"})
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.slow
def test_training_names_faults_on_screen_in_the_log_and_in_data_json_and_stops(faulty: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
    file = tmp_path / "small.yaml"
    file.write_text(small_config(faulty, run={"epochs": 1}).to_yaml())
    out = tmp_path / "run"
    words = ("id 9 (1)", "broken: left out")
    with pytest.raises(FateError, match="incomplete.*allow_missing=True"):
        CliRunner().invoke(app, ["train", str(file), "--out", str(out)], catch_exceptions=False)
    assert not (out / "last.ckpt").exists()
    for place in ("log.txt", "data.json"):
        assert all(word in (out / place).read_text() for word in words), place
    facts = json.loads((out / "data.json").read_text())
    assert (facts["complete"], len(facts["missing"])) == (False, 2)
    done = CliRunner().invoke(app, ["train", str(file), "--out", str(out), "--allow-missing"], catch_exceptions=False)
    assert done.exit_code == 0
    assert all(word in done.output for word in words)
    assert (out / "last.safetensors").exists()


@pytest.mark.slow
def test_a_dry_run_and_the_python_function_refuse_and_accept_as_well(faulty: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
    config = small_config(faulty, run={"epochs": 1})
    with pytest.raises(FateError, match="allow_missing=True"):
        fate.train(config, tmp_path / "run")
    assert fate.train(config, tmp_path / "run", allow_missing=True).finished
    file = tmp_path / "small.yaml"
    file.write_text(config.to_yaml())
    with pytest.raises(FateError, match="incomplete"):
        CliRunner().invoke(app, ["train", str(file), "--dry-run"], catch_exceptions=False)
    assert CliRunner().invoke(app, ["train", str(file), "--dry-run", "--allow-missing"]).exit_code == 0


def test_training_reads_in_the_manifest_of_a_prepared_dataset_that_it_is_incomplete(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
    for split in ("train", "val"):
        folder = tmp_path / "gen1" / split
        folder.mkdir(parents=True)
        write_events(folder / "a_td.dat", make_events(2000, (240, 304)))
        write_labels(folder / "a_bbox.npy", Labels([700_000], [10], [30], [100], [90], [0]))
    fate.prepare("gen1", tmp_path / "gen1", tmp_path / "prepared")
    with pytest.raises(FateError, match="1458 of 1459 published recordings are missing"):
        fate.train(small_config(tmp_path / "prepared"), tmp_path / "run")


# ---- recordings of the public datasets --------------------------------------------------------------------------

GEN1 = (240, 304)
GEN1_LABELS = Labels([100_000, 200_000], [1, 2], [3, 4], [40, 50], [25, 40], [0, 1])


def gen1(folder: Path) -> Path:
    for split, names in (("train", "abc"), ("val", "d")):
        (folder / split).mkdir(parents=True)
        for name in names:
            write_events(folder / split / f"{name}_td.dat", make_events(2000, GEN1, seed=ord(name)))
            write_labels(folder / split / f"{name}_bbox.npy", GEN1_LABELS)
    return folder


def test_of_a_public_dataset_a_missing_recording_and_missing_labels_are_named(tmp_path: Path) -> None:
    folder = gen1(tmp_path / "gen1")
    assert missing(folder) == []
    (folder / "train" / "a_td.dat").unlink()
    (folder / "train" / "b_bbox.npy").unlink()
    lonely, unlabelled = missing(folder)
    assert lonely.startswith("train/a_bbox.npy: the recording")
    assert unlabelled.startswith("train/b: has no labels")
    assert data_faults(open_dataset(folder, "val")).missing == []  # only the training split lacks something
    with pytest.raises(FateError, match="incomplete"):
        data_faults(open_dataset(folder, "train")).refuse(allow_missing=False)


def test_a_prepared_dataset_is_compared_with_its_files_again(tmp_path: Path) -> None:
    folder, prepared = gen1(tmp_path / "gen1"), tmp_path / "prepared"
    fate.prepare("gen1", folder, prepared)
    before = missing(prepared)
    (folder / "train" / "a_td.dat").unlink()
    with (folder / "train" / "b_td.dat").open("r+b") as file:
        file.truncate(5000)
    gone, cut = (fault for fault in missing(prepared) if fault not in before)
    assert "train/a_td.dat is missing" in gone
    assert "train/b_td.dat" in cut
    assert "5000" in cut
    assert [each.name for each in open_dataset(prepared, "train").recordings] == ["train/c"]


def test_labels_on_another_clock_are_refused_with_both_times_and_the_key(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
    for split in ("train", "val"):
        put(tmp_path / split, "a", replace(LABELS, t_us=[10_200_000, 11_800_000], labelled_us=None))
    path = tmp_path / "set.yaml"
    path.write_text("classes: [car, pedestrian]\nrecordings: {train: train, val: val}\n")
    for train in (
        lambda: fate.train(small_config(path), tmp_path / "run"),
        lambda: fate.fine_tune(path, "fate-s-nano", tmp_path / "run"),
    ):
        with pytest.raises(FateError, match=r"set\.yaml: .*10\.200 to 11\.800 s.*label_offset_us"):
            train()


def test_a_class_with_a_spelling_mistake_is_named_before_a_dry_run_and_by_an_inspection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
    for split in ("train", "val"):
        path = put(tmp_path / split, "a", None)
        write_labels(path.with_name("a_bbox.npz"), replace(LABELS, classes=("van", "dog")))
    path = tmp_path / "set.yaml"
    path.write_text("classes: [van, dgo]\nrecordings: {train: train, val: val}\n")
    monkeypatch.setattr("fate.training.dry_run.load_tries", lambda *_: pytest.fail("a step was tried first"))
    with pytest.raises(FateError, match=r"set\.yaml: .*dog \(1\).*'dog'.*'dgo'"):
        dry_run(small_config(path))
    found = {each.kind: each for each in fate.inspect(path, windows=2).faults}
    assert (found["unknown class"].number, found["unknown class"].checked) == (2, 4)
    assert all(name in found["unknown class"].worst for name in ("'dog'", "'dgo'"))
