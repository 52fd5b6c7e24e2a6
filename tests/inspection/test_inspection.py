"""``inspect`` from Python and from the command line, on a dataset made up here and on real recordings."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from fate import Events, FateError, Labels, open_dataset, read_labels, write_events, write_labels
from fate.cli.inspect import inspect as command
from fate.cli.main import app
from fate.inspection.inspect import inspect
from fate.inspection.prepare import prepare
from fate.inspection.references import ROWS, Row
from fate.workflows.inspection_page import write_inspection_page
from tests.cli.running import fate
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


@pytest.mark.slow
def test_gen1_sensors_are_judged_and_others_are_not(dataset: Path, tmp_path: Path) -> None:
    found = inspect(dataset, windows=10)
    assert found.is_gen1_like
    assert "rate_inside_share" in found.to_dict()["outside"]
    assert "on_share" not in found.to_dict()["outside"]
    assert "outside the ranges for Gen1-like data: recordings at 0.2–2 Mev/s = 67 % (accepted: 100 %)" in found.text()
    write_events(tmp_path / "other.raw", make_events(2000))
    other = inspect(tmp_path, windows=3)
    assert not other.is_gen1_like
    assert other.outside == ()
    assert "accepted" not in other.text()


def test_the_text_about_other_sensors_has_only_figures_of_the_dataset(dataset: Path, tmp_path: Path) -> None:
    assert "real 1Mpx" in inspect(dataset, windows=3).text()
    write_events(tmp_path / "other.raw", make_events(2000))
    other = inspect(tmp_path, windows=3)
    text = other.text()
    assert "event rate" in text
    assert "real" not in text
    assert len(text.splitlines()) < 20
    write_inspection_page(other, tmp_path / "page.html")
    assert "real 1Mpx" in (tmp_path / "page.html").read_text("utf-8")


def test_every_row_shows_a_figure_where_there_are_labels(dataset: Path) -> None:
    found = inspect(dataset, split="train", windows=5)
    for row, cells in zip(ROWS, found.rows(), strict=True):
        assert set(row.keys) <= found.figures.keys() or row.keys == ["burst_length"]
        assert len(cells) == len(found.header)


def test_ranges_hold_their_edges() -> None:
    row = Row(("a", "b"), "two", "", accept=((0.1, 0.2), (1, 2)), percent=True)
    assert row.judge({"a": 0.1, "b": 2.0}) == []
    assert row.judge({"a": 0.0999, "b": 2.01}) == ["a", "b"]
    assert row.judge({}) == []
    assert row.show({"a": 0.125}) == "12.50 / – %"
    assert row.accepted_text() == "10–20 / 100–200 %"


def test_the_verdict_names_the_row_and_shows_what_is_outside(dataset: Path) -> None:
    found = inspect(dataset, split="train", windows=3)
    events = tuple(replace(each.events, rate_hz=390_000.0) for each in found.reports)
    found = replace(found, reports=tuple(replace(a, events=b) for a, b in zip(found.reports, events, strict=True)))
    assert "event rate, Mev/s = 0.390 (accepted: 0.4–0.8)" in found.verdict
    assert found.rows()[0][1] == "0.390"


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


def test_labels_after_the_end_tell_that_the_recording_may_be_cut_short(tmp_path: Path) -> None:
    write_events(tmp_path / "a.npz", drive(0, 100_000, seconds=2.0))
    for times, facts in (
        ([1_000_000, 9_000_000], ("a: ", "2.000 s", "9.000 s", "may be cut short")),
        ([5_000_000, 9_000_000], ("a: ", "2.000 s", "9.000 s", "may be cut short")),
        ([10**15], ("a: labels run from 1000000000.000 to 1000000000.000 s",)),
    ):
        n = len(times)
        write_labels(tmp_path / "a_bbox.npy", Labels(times, [1] * n, [150] * n, [40] * n, [190] * n, [0] * n))
        (remark,) = inspect(tmp_path, windows=2).remarks
        assert remark.startswith("a: ")
        assert all(fact in remark for fact in facts)
        assert ("different clocks" in remark) == (times[0] == 10**15)
    write_labels(tmp_path / "a_bbox.npy", Labels([1_000_000], [1], [150], [40], [190], [0]))
    assert inspect(tmp_path, windows=2).remarks == []


def exact_track(track_id: int, speed: float, top: float, until_us: int = 2_000_000) -> list[tuple[float, ...]]:
    """Rows every 5 ms of a 20 × 20 box that moves to the right from x = 10, at px/s."""
    return [
        (t, 10 + speed * t / 1e6, top, 30 + speed * t / 1e6, top + 20, 0, track_id)
        for t in range(5000, until_us + 1, 5000)
    ]


def table(rows: list[tuple[float, ...]], labelled_us: list[int]) -> Labels:
    names = ("t_us", "x1", "y1", "x2", "y2", "class_id", "track_id")
    columns = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
    whole = {name: columns[name].astype(np.int64) for name in ("t_us", "class_id", "track_id")}
    return Labels.from_unsorted({**columns, **whole}, labelled_us=labelled_us, classes=("van", "child"), sensor=GEN1)


@pytest.fixture
def with_truth(tmp_path: Path) -> Path:
    """A moving car in labels at 1 Hz and in exact boxes at 200 Hz, which alone show a box out of frame and a
    frozen one, each between two labels."""
    write_events(tmp_path / "a_td.dat", drive(0, 500_000))
    moving = exact_track(1, 60, 150)
    outside = [(t, -20, 130, 8, 160, 1, 2) for t in range(300_000, 400_000, 5000)]
    frozen = [(t, 200, 180, 240, 200, 0, 3) for t in range(5000, 1_100_000, 5000) if t != 1_000_000]
    exact = table([*moving, *outside, *frozen], list(range(5000, 2_000_001, 5000)))
    write_labels(tmp_path / "a_truth.npz", exact)
    write_labels(tmp_path / "a_bbox.npy", table([row for row in moving if row[0] % 1_000_000 == 0], [10**6, 2 * 10**6]))
    return tmp_path


def test_speeds_lives_and_faults_are_those_of_exact_boxes_where_there_are_any(with_truth: Path) -> None:
    found = inspect(with_truth, windows=50)
    assert found.figures["label_rate_hz"] == 1
    assert {each.name: len(each.size) for each in found.classes} == {"van": 2, "child": 0}
    (van, child) = found.classes
    assert len(van.speed) > 500
    assert np.median(van.speed[van.speed > 1]) == pytest.approx(60, rel=1e-3)
    assert sorted(van.life_s.tolist()) == pytest.approx([1.09, 1.995])
    assert child.life_s.tolist() == pytest.approx([0.095])
    faults = {each.kind: each.number for each in found.faults if each.number}
    assert faults == {"out of frame": 20, "frozen": 1}
    said = "speeds, track lives and boxes that look wrong: from the exact boxes at 200 Hz (_truth.npz) of 1 recording"
    assert said in found.text()
    assert found.to_dict()["motion_source"] == said
    assert found.to_dict()["recordings"][0]["labels"]["truth_hz"] == 200
    write_inspection_page(found, with_truth / "page.html")
    assert said[1:] in (with_truth / "page.html").read_text("utf-8")
    assert found.remarks == []


def test_without_exact_boxes_the_labels_are_used_as_ever(with_truth: Path) -> None:
    (with_truth / "a_truth.npz").unlink()
    found = inspect(with_truth, windows=50)
    assert found.motion_source == ""
    assert "exact boxes" not in found.text()
    assert not any(each.number for each in found.faults)
    assert found.classes[0].speed.tolist() == pytest.approx([60])


def test_exact_boxes_that_cannot_be_read_are_noted_and_the_labels_used(with_truth: Path) -> None:
    (with_truth / "a_truth.npz").write_bytes(b"nonsense")
    found = inspect(with_truth, windows=5)
    assert found.motion_source == ""
    assert found.classes[0].speed.tolist() == pytest.approx([60])
    assert [remark.partition(":")[0] for remark in found.remarks] == ["exact boxes not read"]


def test_labels_that_cannot_be_read_leave_the_exact_boxes(with_truth: Path) -> None:
    (with_truth / "a_bbox.npy").write_bytes(b"nonsense")
    found = inspect(with_truth, windows=5)
    assert found.figures["label_rate_hz"] == 200
    assert [remark.partition(":")[0] for remark in found.remarks] == ["labels not read"]
    write_inspection_page(found, with_truth / "page.html")


def test_labels_that_differ_from_the_exact_boxes_are_noted(with_truth: Path) -> None:
    moved = [(t, x1 + 3 * (t == 2 * 10**6), *rest) for t, x1, *rest in exact_track(1, 60, 150) if t % 10**6 == 0]
    for rows, number, first in ((moved, 1, 2), (moved[1:], 2, 1)):
        write_labels(with_truth / "a_bbox.npy", table(rows, [10**6, 2 * 10**6]))
        (remark,) = inspect(with_truth, windows=2).remarks
        assert remark.startswith(f"a: at {number} of 2 times the label file and the exact boxes beside it differ")
        assert f"first at {first}.000 s" in remark


def test_progress_rises_to_the_end(dataset: Path) -> None:
    seen: list[tuple[int, int]] = []
    inspect(dataset, windows=2, progress=lambda done, total, *more: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (3000, 3000)


def test_the_command_writes_table_page_and_json(dataset: Path, tmp_path: Path) -> None:
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    words = ["inspect", str(dataset), "--windows", "5"]
    done = fate(*words, "--report", page, "--json", figures)
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
        (["--windows", "0"], 2, "--windows"),
        (["--sensor", "big"], 2, "WIDTHxHEIGHT"),
    ):
        done = fate(*words, *arguments)
        assert done.returncode == code
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_outputs_that_cannot_be_are_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.inspection.inspect.inspect", lambda *_, **__: pytest.fail("work was begun"))
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path / "a.npz", make_events(50))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.html").symlink_to("page.html")
    for report, json_file, error, words in (
        ("folder", None, FateError, "--report folder: is a folder; give the name of a file"),
        (None, "folder", FateError, "--json folder: is a folder"),
        (None, "folder/in/file", FateError, "the folder folder/in does not exist"),
        ("a.npz/page.html", None, FateError, "does not exist"),
        ("x" * 300, None, FateError, "too long"),
        ("page.html", "folder/../page.html", typer.BadParameter, "--report and --json both name the file"),
        ("page.html", "link.html", typer.BadParameter, "both name the file"),
        ("a.npz", None, typer.BadParameter, "would replace what is read"),
    ):
        with pytest.raises(error, match=words):
            command("a.npz", None, report, json_file, 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "folder", "link.html"]


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


# ---- datasets of one's own ----------------------------------------------------------------------------------------


def own_dataset(folder: Path) -> Path:
    """CSV events without a sensor and plain YOLO labels, each in a folder of its own; returns the YAML file."""
    (folder / "events").mkdir(parents=True)
    for name in ("one", "two"):
        rows = [f"{1000 * n},{(7 * n) % 64},{(5 * n) % 48},{n % 2}" for n in range(900)]
        (folder / "events" / f"{name}.csv").write_text("t,x,y,p\n" + "\n".join(rows))
        (folder / "boxes" / name).mkdir(parents=True)
        # milliseconds; a van of 32×24 px and a bike of 8×12 px
        (folder / "boxes" / name / "400.txt").write_text("0 0.5 0.5 0.5 0.5\n2 0.25 0.25 0.125 0.25\n")
    text = (
        "classes: {bike: 2, van: 0}\nsensor: 64x48\nlabel_time_unit: ms\nrecordings:\n"
        "- {events: events/one.csv, labels: boxes/one, split: train}\n"
        "- {events: events/two.csv, labels: boxes/two, split: val}\n"
    )
    (folder / "mine.yaml").write_text(text)
    return folder / "mine.yaml"


@pytest.mark.slow
def test_a_yaml_dataset_is_inspected_as_it_is_opened(tmp_path: Path) -> None:
    path = own_dataset(tmp_path / "set")
    found = inspect(path)
    opened = open_dataset(path)
    assert [report.entry.name for report in found.reports] == [recording.name for recording in opened]
    assert all(report.labels is not None for report in found.reports)
    assert {report.sensor for report in found.reports} == {(48, 64)}
    sizes = {each.name: each.size[0].tolist() for each in found.classes}
    assert sizes == {"van": [32.0, 24.0], "bike": [8.0, 12.0]}
    assert found.remarks == []  # milliseconds became microseconds: labels lie inside the recordings
    assert [report.entry.name for report in inspect(path, split="val").reports] == ["events/two"]
    write_inspection_page(found, tmp_path / "page.html")
    assert "van" in (tmp_path / "page.html").read_text()
    path.rename(path.with_name("dataset.yaml"))
    assert inspect(path.parent).to_dict()["figures"] == found.to_dict()["figures"]


@pytest.mark.slow
def test_the_command_takes_a_yaml_and_says_what_a_broken_one_lacks(tmp_path: Path) -> None:
    path = own_dataset(tmp_path / "set")
    done = CliRunner().invoke(app, ["inspect", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 recordings, 2 with labels" in done.output
    assert "van" in done.output
    path.write_text(path.read_text().replace("classes", "clases"))
    with pytest.raises(FateError, match=r"mine\.yaml: unknown key 'clases'"):
        CliRunner().invoke(app, ["inspect", str(path)], catch_exceptions=False)


def test_yolo_labels_of_a_plain_folder_use_the_size_of_the_recording_and_names_of_classes_txt(tmp_path: Path) -> None:
    for name, sensor in (("known", (48, 64)), ("guessed", None)):
        folder = tmp_path / name
        folder.mkdir()
        rows = [f"{1000 * n},{(7 * n) % 64},{(5 * n) % 48},{n % 2}" for n in range(900)]
        if sensor is None:
            (folder / "a.csv").write_text("t,x,y,p\n" + "\n".join(rows))
        else:
            write_events(folder / "a.h5", make_events(2000, sensor))
        (folder / "a").mkdir()
        (folder / "a" / "400000.txt").write_text("0 0.5 0.5 0.5 0.5\n1 0.25 0.25 0.125 0.25\n7 0.5 0.5 0.5 1\n")
        (folder / "classes.txt").write_text("van\nbike\n")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = inspect(folder)
        sizes = {each.name: each.size[0].tolist() for each in found.classes}
        height, width = found.reports[0].sensor
        assert (height, width) == (sensor or (128, 128))  # the smallest known camera that holds the events
        assert sizes == {
            "van": [width / 2, height / 2],
            "bike": [width / 8, height / 4],
            "id 7": [width / 2, height],
        }
        (remark,) = found.remarks
        assert "id 7 (1)" in remark
    with pytest.raises(FateError, match=r"sensor=\(height, width\)"):
        read_labels(tmp_path / "known" / "a")


def test_a_prepared_dataset_is_inspected(tmp_path: Path, dataset: Path) -> None:
    prepare("gen1", dataset, tmp_path / "prepared")
    assert inspect(tmp_path / "prepared").figures == inspect(dataset).figures
