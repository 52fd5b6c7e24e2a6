"""Outputs never replace files of the dataset that a command reads; new files and earlier reports stay allowed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fate
from fate.boxes.predictions import write_predictions
from fate.cli.main import app
from tests.conftest import make_events

SENSOR = (48, 64)
LABELS = fate.Labels([100, 200], [1, 2], [3, 4], [20, 30], [25, 40], [0, 0], sensor=SENSOR, classes=("car",))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two recordings, labels as npz and as COCO, and a YAML file elsewhere that lists them."""
    folder = tmp_path / "ds"
    folder.mkdir()
    for name, suffix in (("a", "_bbox.npz"), ("b", "_labels.json")):
        fate.write_events(folder / f"{name}.h5", make_events(500, SENSOR))
        fate.write_labels(folder / f"{name}{suffix}", LABELS)
    (folder / "classes.txt").write_text("car\n")
    rows = "".join(f"  - {{events: ds/{name}.h5, labels: ds/{name}{end}}}\n"
                   for name, end in (("a", "_bbox.npz"), ("b", "_labels.json")))  # fmt: skip
    (tmp_path / "listed.yaml").write_text(f"classes: [car]\nrecordings:\n{rows}")
    write_predictions(tmp_path / "boxes.npz", {"a": LABELS, "b": LABELS}, {"hz": 20})
    return tmp_path


def hashes(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, f"{result.output} {result.exception}"


@pytest.mark.parametrize("dataset", ["ds", "listed.yaml"])
@pytest.mark.parametrize("victim", ["a.h5", "a_bbox.npz", "b_labels.json"])
def test_recordings_and_labels_are_not_replaced(data: Path, dataset: str, victim: str) -> None:
    before = hashes(data)
    link = data / "link.json"
    for file in (data / "ds" / victim, data / "ds" / ".." / "ds" / victim, link):
        link.unlink(missing_ok=True)
        link.symlink_to(data / "ds" / victim)
        for words in (
            ("inspect", data / dataset, "--json", file),
            ("inspect", data / dataset, "--report", file),
            ("evaluate", data / "boxes.npz", data / dataset, "--hz", "20", "--json", file),
            ("densify", "--check", data / dataset, "--labels", data / "dense", "--json", file),
            ("bench", "data", data / dataset, "--json", file),
        ):
            code, text = run(*words)
            assert code == 2, text
            assert "give another file" in text
        link.unlink()
    assert hashes(data) == before


def test_other_files_of_the_folder_are_not_replaced(data: Path) -> None:
    (data / "ds" / "manifest.json").write_text("{}")
    (data / "ds" / "notes.txt").write_text("mine")
    before = hashes(data)
    for name in ("classes.txt", "manifest.json", "notes.txt"):
        code, text = run("inspect", data / "ds", "--json", data / "ds" / name)
        assert code == 2, text
    assert hashes(data) == before


def test_labels_that_are_called_like_predictions_are_not_replaced(data: Path) -> None:
    fate.write_events(data / "ds" / "20hz.h5", make_events(500, SENSOR))
    fate.write_labels(data / "ds" / "20hz.npz", LABELS)
    before = hashes(data)
    code, text = run("evaluate", "fate-s-nano", data / "ds", "--hz", "20", "--predictions", data / "ds")
    assert code == 2, text
    assert hashes(data) == before


def test_predictions_and_dense_labels_that_are_read_are_not_replaced(data: Path) -> None:
    folder = data / "boxes"
    folder.mkdir()
    (data / "boxes.npz").rename(folder / "20hz.npz")
    dense = data / "dense" / "labels" / "40hz"
    dense.mkdir(parents=True)
    fate.write_labels(dense / "a.npz", LABELS)
    (data / "dense" / "manifest.json").write_text("{}")
    before = hashes(data)
    for words in (
        ("evaluate", folder, data / "ds", "--json", folder / "20hz.npz"),
        ("densify", "--check", data / "ds", "--labels", data / "dense", "--json", dense / "a.npz"),
        ("densify", "--check", data / "ds", "--labels", data / "dense", "--json", data / "dense" / "manifest.json"),
    ):
        code, text = run(*words)
        assert code == 2, text
    assert hashes(data) == before


def test_a_report_in_the_folder_may_be_written_again(data: Path) -> None:
    outputs = ("--json", data / "ds" / "report.json", "--report", data / "ds" / "page.html")
    before = hashes(data)
    for _ in range(2):
        code, text = run("inspect", data / "ds", *outputs)
        assert code == 0, text
    assert hashes(data).keys() - before.keys() == {str(file) for file in outputs[1::2]}
    assert before.items() <= hashes(data).items()
