"""``fate prepare`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fate import Labels, open_dataset, write_events, write_labels
from fate.cli import prepare as command
from fate.inspection.prepare import KINDS
from tests.cli.running import fate
from tests.conftest import make_events
from tests.data.test_rvt_layout import write_sequence


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "gen1" / "train"
    folder.mkdir(parents=True)
    for name in "ab":
        write_events(folder / f"{name}_td.dat", make_events(2000, (240, 304)))
        write_labels(folder / f"{name}_bbox.npy", Labels([100_000], [1], [3], [40], [25], [0]))
    return tmp_path / "gen1"


def test_a_dataset_is_checked_and_what_is_broken_does_not_stop_it(source: Path, tmp_path: Path) -> None:
    (source / "train" / "b_td.dat").write_bytes(b"nothing of this kind")
    done = fate("prepare", "gen1", source, tmp_path / "p", "--workers", "2", "--allow-missing")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["split", "recordings", "usable", "labelled", "hours", "Mev", "car", "pedestrian", "GB"]
    assert lines[1].split()[:4] == ["train", "2", "1", "1"]
    assert "fault: train: 1457 of 1459 published recordings are missing" in lines
    assert any(line.startswith("fault: train/b: left out: ") for line in lines)
    assert lines[-1] == f"manifest written to {tmp_path / 'p' / 'manifest.json'}"
    with pytest.warns(UserWarning, match="1 of 2 recordings are left out"):
        assert [r.name for r in open_dataset(tmp_path / "p")] == ["train/a"]
    again = fate("prepare", "gen1", source, tmp_path / "p", "--workers", "1")
    assert again.stdout == done.stdout
    assert again.returncode == 1
    assert "1457 of 1459" in again.stderr
    assert "--allow-missing" in again.stderr
    document = json.loads((tmp_path / "p" / "manifest.json").read_text())
    assert document["complete"] is False
    assert any(sentence.startswith("train/b: left out: ") for sentence in document["missing"])


def test_an_incomplete_dataset_exits_with_1_and_its_manifest_says_so(source: Path, tmp_path: Path) -> None:
    done = fate("prepare", "gen1", source, tmp_path / "p")  # 2 of the 1459 recordings of its first split
    assert done.returncode == 1
    assert json.loads((tmp_path / "p" / "manifest.json").read_text())["complete"] is False


def test_a_whole_dataset_exits_with_0(tmp_path: Path) -> None:
    write_sequence(tmp_path / "rvt" / "val" / "s")  # the number of sequences of RVT's layout is nowhere published
    done = fate("prepare", "rvt", tmp_path / "rvt", tmp_path / "p")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "p" / "manifest.json").read_text())
    assert (document["complete"], document["missing"]) == (True, [])


def test_hashes_can_be_left_out(source: Path, tmp_path: Path) -> None:
    done = fate("prepare", "gen1", source, tmp_path / "p", "--no-hash")
    assert done.stdout.splitlines()[-1].endswith("manifest.json, without hashes")
    document = json.loads((tmp_path / "p" / "manifest.json").read_text())
    states = [state for entry in document["recordings"] for state in entry["files"].values()]
    assert [state["sha256"] for state in states] == [None] * 4


def test_bad_usage_is_2_and_bad_input_1(source: Path, tmp_path: Path) -> None:
    assert fate("prepare", "gen9", source, tmp_path / "p").returncode == 2
    assert fate("prepare", "gen1", source).returncode == 2
    assert fate("prepare", "gen1", source, tmp_path / "p", "--workers", "0").returncode == 2
    done = fate("prepare", "1mpx", tmp_path / "nowhere", tmp_path / "p")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'nowhere'}: no such folder")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p").exists()


def test_help_has_an_example_and_the_kinds_are_those_of_the_function() -> None:
    done = fate("prepare", "--help")
    assert done.returncode == 0
    assert "fate prepare gen1 /data/gen1 gen1-prepared" in done.stdout
    assert command.KINDS == KINDS
