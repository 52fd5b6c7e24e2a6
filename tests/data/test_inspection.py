"""``inspect`` from Python and from the command line, on a dataset made up here and on real recordings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fate import Events, FateError, Labels, read_labels, write_events, write_labels
from fate.data import inspect
from fate.data.references import ROWS, Row
from tests.conftest import REAL, make_events

GEN1 = (240, 304)


def drive(seed: int, rate: float, seconds: float = 2.0, on: float = 0.42) -> Events:
    """Noise over the lower half of a Gen1 sensor, as many events a second as asked for."""
    random = np.random.default_rng(seed)
    n = round(rate * seconds)
    t = np.sort(random.integers(0, round(seconds * 1e6), n))
    t[-1] = round(seconds * 1e6) - 1
    return Events(
        t, random.integers(0, 304, n), random.integers(120, 240, n), (random.random(n) < on).astype(int), GEN1
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drives with labels and one without; one box lies in the dark upper half, where nothing happens."""
    root = tmp_path_factory.mktemp("set")
    for split, name, rate in (("train", "a", 500_000), ("train", "b", 700_000), ("test", "c", 100_000)):
        (root / split).mkdir(exist_ok=True)
        write_events(root / split / f"{name}_td.dat", drive(len(name), rate))
    times = np.array([500_000, 1_000_000, 1_500_000, 1_000_000])
    x1, y1 = np.array([10.0, 20, 30, 100]), np.array([150.0, 150, 150, 20])
    labels = Labels.from_unsorted(
        {
            "t_us": times,
            "x1": x1,
            "y1": y1,
            "x2": x1 + 40,
            "y2": y1 + 30,
            "class_id": np.array([0, 0, 0, 1]),
            "track_id": np.array([1, 1, 1, 2]),
        }
    )
    for name in ("a", "b"):
        write_labels(root / "train" / f"{name}_bbox.npy", labels)
    return root


def test_figures_are_means_over_recordings_and_boxes_over_all(dataset: Path) -> None:
    found = inspect(dataset, windows=10)
    assert [report.entry.name for report in found.reports] == ["test/c", "train/a", "train/b"]
    assert found.figures["rate_mev_s"] == pytest.approx((0.1 + 0.5 + 0.7) / 3, rel=1e-3)
    assert found.figures["rate_inside_share"] == pytest.approx(2 / 3)
    assert found.figures["on_share"] == pytest.approx(0.42, abs=0.01)
    assert found.figures["label_rate_hz"] == pytest.approx(2)
    assert {each.name: len(each.size) for each in found.classes} == {"car": 6, "pedestrian": 2}
    (car, _) = found.classes
    assert np.allclose(car.speed, 20)
    faults = {each.kind: each.number for each in found.faults if each.number}
    assert faults == {"without events": 2}


def test_gen1_sensors_are_judged_and_others_are_not(dataset: Path, tmp_path: Path) -> None:
    found = inspect(dataset, windows=10)
    assert found.is_gen1_like
    assert "rate_inside_share" in found.to_dict()["outside"]
    assert "on_share" not in found.to_dict()["outside"]
    assert "rate_inside_share = 0.667" in found.text()
    write_events(tmp_path / "other.raw", make_events(2000))
    other = inspect(tmp_path, windows=3)
    assert not other.is_gen1_like
    assert other.outside == ()
    assert "accepted" not in other.text()


def test_every_row_shows_a_figure_where_there_are_labels(dataset: Path) -> None:
    found = inspect(dataset, split="train", windows=5)
    for row, cells in zip(ROWS, found.rows(), strict=True):
        assert set(row.keys) <= found.figures.keys() or row.keys == ("burst_length",)
        assert len(cells) == len(found.header)


def test_ranges_hold_their_edges() -> None:
    row = Row(("a", "b"), "two", "", accept=((0.1, 0.2), (1, 2)), percent=True)
    assert row.judge({"a": 0.1, "b": 2.0}) == []
    assert row.judge({"a": 0.0999, "b": 2.01}) == ["a", "b"]
    assert row.judge({}) == []
    assert row.show({"a": 0.125}) == "12.50 / – %"
    assert row.accepted_text() == "10–20 / 100–200 %"


def test_what_cannot_be_read_is_noted_and_the_rest_inspected(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "set")
    (tmp_path / "set" / "train" / "broken.raw").write_bytes(b"")
    (tmp_path / "set" / "train" / "b_bbox.npy").write_bytes(b"nonsense")
    found = inspect(tmp_path / "set", windows=3)
    assert len(found.reports) == 3
    assert any("broken.raw: is empty" in remark for remark in found.remarks)
    assert any("labels not read" in remark and "b_bbox.npy" in remark for remark in found.remarks)
    shutil.rmtree(tmp_path / "set")
    (tmp_path / "only.raw").write_bytes(b"")
    with pytest.raises(FateError, match="no recording can be read; .*is empty"):
        inspect(tmp_path)


def test_labels_on_another_clock_are_noted(tmp_path: Path) -> None:
    write_events(tmp_path / "a.npz", make_events(500, start=10**15))
    write_labels(tmp_path / "a_bbox.npy", Labels([1000], [1], [1], [9], [9], [0]))
    found = inspect(tmp_path, windows=2)
    assert any("different clocks" in remark for remark in found.remarks)
    assert {each.kind: each.number for each in found.faults if each.number} == {"outside the recording": 1}


def test_progress_rises_to_the_end(dataset: Path) -> None:
    seen: list[tuple[int, int]] = []
    inspect(dataset, windows=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (3000, 3000)


def test_the_command_writes_table_page_and_json(dataset: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    command = [sys.executable, "-m", "fate.cli", "inspect", str(dataset), "--windows", "5"]
    done = subprocess.run(
        [*command, "--report", str(page), "--json", str(figures)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert "real Gen1" in done.stdout
    assert "without events" in done.stdout
    told = json.loads(figures.read_text())
    assert told["figures"]["on_share"] == pytest.approx(0.42, abs=0.01)
    assert [each["name"] for each in told["recordings"]] == ["test/c", "train/a", "train/b"]
    text = page.read_text("utf-8")
    assert text.count("data:image/png;base64,") == 6 + 6  # two frames of each recording, and the plots
    assert "<script" not in text
    for arguments, code, sentence in (
        (["--split", "holdout"], 2, "expected one of train, val, test"),
        (["--split", "val"], 1, "its splits are train, test"),
        (["--report", "missing/page.html"], 1, "does not exist; make it first"),
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == code
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real recordings is not on this machine")
def test_hand_drawn_boxes_on_a_real_street_hold_events(tmp_path: Path) -> None:
    name, shift = "davis346_traffic", 1589163147365215  # the labels' clock starts there
    shutil.copy(REAL / "aedat4" / f"{name}.aedat4", tmp_path)
    drawn = read_labels(REAL / "labels" / f"{name}_bbox.npy")
    columns = {each: getattr(drawn, each) for each in ("x1", "y1", "x2", "y2", "class_id", "track_id")}
    write_labels(tmp_path / f"{name}_bbox.npy", Labels.from_unsorted({"t_us": drawn.t_us + shift, **columns}))
    found = inspect(tmp_path)
    assert not any(each.number for each in found.faults)
    assert found.figures["label_rate_hz"] == pytest.approx(25)
    assert found.reports[0].events.on_share == pytest.approx(41257 / 78830)
