"""``fate detect`` on the command line: a recording in, boxes out in every form."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from imageio_ffmpeg import read_frames
from typer.testing import CliRunner

import fate
from fate.boxes.detection_files import read_detections
from fate.boxes.drawing import class_colour
from fate.boxes.label_files import read_labels
from fate.cli.main import app
from fate.errors import FateError
from fate.formats.saving import write_events
from fate.inference.sources import play
from fate.inference.stream_types import StreamFrame
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.workflows.detect import detect
from fate.workflows.detect_live import detect_live
from tests.training.conftest import SENSOR, drive


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of a second and a detector with fresh weights."""
    folder = tmp_path_factory.mktemp("detect")
    write_events(folder / "drive.npz", drive(0)[0])
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), folder / "nano.safetensors")
    return folder


def test_every_output_tells_the_same(place: Path) -> None:
    outputs = {"--save": "a.mp4", "--report": "a.html", "--json": "a.json", "--csv": "a.csv", "--coco": "coco.json"}
    outputs["--jsonl"] = "a.jsonl"
    words = ["detect", str(place / "drive.npz"), "--model", str(place / "nano.safetensors"), "--hz", "40"]
    words += ["--threshold", "0.0001", "--keep-stale", "--track", "--end", "0.5s", "--slow", "2"]
    words += [word for option, name in outputs.items() for word in (option, str(place / name))]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "20 windows at 40 Hz" in done.output
    assert "dropped: nothing" in done.output
    log = read_detections(place / "a.json")
    assert [frame.t_us for frame in log.frames] == [25_000 * k + log.frames[0].t_us for k in range(20)]
    table = log.labels()
    assert len(table) == sum(log.facts["summary"]["boxes"].values()) > 0
    assert len(list(csv.reader((place / "a.csv").open()))) == len(table) + 1
    assert len(read_labels(place / "coco.json")) == len(table)
    lines = read_detections(place / "a.jsonl")
    assert lines.labels() == table
    assert lines.facts["summary"] == log.facts["summary"]
    assert (place / "a.mp4").stat().st_size > 1000
    assert "<video" in (place / "a.html").read_text()
    height, width = SENSOR
    assert table.x2.max() <= width
    assert table.y2.max() <= height
    assert (table.track_id >= -1).all()


def test_auto_chooses_a_rate_and_says_it(place: Path) -> None:
    words = ["detect", str(place / "drive.npz"), "--model", str(place / "nano.safetensors"), "--end", "0.3s"]
    done = CliRunner().invoke(app, [*words, "--hz", "auto", "--json", str(place / "auto.json")], catch_exceptions=False)
    assert done.exit_code == 0
    hz = read_detections(place / "auto.json").hz
    assert f"note: {hz:g} Hz: a window takes" in done.output
    refused = CliRunner().invoke(app, [*words, "--hz", "fast"])
    assert refused.exit_code == 2
    assert "fast was given" in " ".join(refused.output.split())


def test_windows_that_overlap_are_told_and_give_as_many_frames(place: Path) -> None:
    words = [
        "detect",
        str(place / "drive.npz"),
        "--model",
        str(place / "nano.safetensors"),
        "--hz",
        "40",
        "--end",
        "0.5s",
    ]
    words += ["--window", "50ms", "--threshold", "0.0001", "--json", str(place / "overlapping.json")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "note: windows of 50 ms, one every 25 ms" in done.output
    assert len(read_detections(place / "overlapping.json").frames) == 20
    played = CliRunner().invoke(app, [*words, "--realtime"], catch_exceptions=False)
    assert "note: windows of 50 ms, one every 25 ms" in played.output


def test_several_recordings_get_outputs_of_their_own(place: Path) -> None:
    (place / "other.npz").write_bytes((place / "drive.npz").read_bytes())
    words = ["detect", str(place / "drive.npz"), str(place / "other.npz"), "--model", str(place / "nano.safetensors"),
             "--hz", "20", "--end", "0.2s", "--json", str(place / "out.json")]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    first, second = (json.loads((place / f"out_{name}.json").read_text()) for name in ("drive", "other"))
    assert first["frames"] == second["frames"]


@pytest.mark.parametrize(
    "words",
    [["--hz", "0"], ["--hz", "2000"], ["--palette", "pink"], ["--threshold", "2"], ["--acc", "soon"], ["--acc", "50"],
     ["--fps", "0"], ["--slow", "0"], ["--device", "abacus"], ["--start", "2s", "--end", "1s"], ["--window", "50"],
     ["--window", "4ms"], ["--window", "2s"], ["--window", "10ms", "--hz", "50"], ["--max-overlap", "1.5"]],
)  # fmt: skip
def test_bad_usage_is_told_before_any_work(place: Path, words: list[str]) -> None:
    assert CliRunner().invoke(app, ["detect", str(place / "drive.npz"), *words]).exit_code == 2


def test_a_missing_file_and_a_missing_model_are_one_sentence(place: Path) -> None:
    with pytest.raises(FateError, match="none.raw"):
        CliRunner().invoke(app, ["detect", str(place / "none.raw"), "--model", str(place / "nano.safetensors")],
                           catch_exceptions=False)  # fmt: skip
    with pytest.raises(FateError, match="fate-s-giant"):
        CliRunner().invoke(app, ["detect", str(place / "drive.npz"), "--model", "fate-s-giant"], catch_exceptions=False)


@pytest.mark.parametrize("part", [["--start", "+5s"], ["--end", "500us"]])
def test_a_part_without_events_is_refused_with_the_times_of_the_recording(place: Path, part: list[str]) -> None:
    write_events(place / "later.npz", replace(drive(0)[0], t_us=drive(0)[0].t_us + 10**9))
    words = ["detect", str(place / "later.npz"), "--model", str(place / "nano.safetensors"), *part]
    with pytest.raises(
        FateError, match=r"later\.npz: a part that (start|end)s at \d+ µs was asked for, and .* from 1000\d+ to"
    ):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_a_part_that_reaches_beyond_the_recording_ends_with_it(place: Path) -> None:
    words = ["detect", str(place / "later.npz"), "--model", str(place / "nano.safetensors"), "--hz", "20"]
    write_events(place / "later.npz", replace(drive(0)[0], t_us=drive(0)[0].t_us + 10**9))
    told = [CliRunner().invoke(app, [*words, *part]).output for part in ([], ["--end", "+60s"])]
    windows = [next(line for line in text.splitlines() if " at 20 Hz" in line).split(" in ")[0] for text in told]
    assert windows[0] == windows[1]
    assert all("dropped: nothing" in text for text in told)


def test_the_boxes_of_a_window_that_ends_after_the_last_event_are_on_the_video(place: Path) -> None:
    """A recording shorter than one window has all its boxes there."""
    events = drive(0)[0]
    write_events(place / "short.npz", events.between(int(events.t_us[0]), int(events.t_us[0]) + 30_000))
    detector = fate.load_detector(place / "nano.safetensors")
    done = detect(place / "short.npz", detector, 20, threshold=0.0, save=place / "short.mp4")
    assert "1 window at 20 Hz" in done.lines()[0]
    reader = read_frames(str(place / "short.mp4"))
    facts = next(reader)
    width, height = facts["size"]
    pictures = [np.frombuffer(picture, np.uint8).reshape(height, width, 3) for picture in reader]
    assert len(pictures) >= 0.05 * facts["fps"]
    boxed = [int((np.abs(picture.astype(int) - class_colour(0)).max(axis=2) < 40).sum()) for picture in pictures]
    assert boxed[0] == 0 < boxed[-1]


def test_a_file_at_real_speed_is_detected_live_and_accounts_for_every_event(place: Path) -> None:
    words = ["detect", str(place / "drive.npz"), "--realtime", "--model", str(place / "nano.safetensors"), "--hz", "20",
             "--json", str(place / "live.json")]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "the source ended" in done.output
    summary = read_detections(place / "live.json").facts["summary"]
    lost = sum(
        summary["dropped"].get(name, 0) for name in ("late_events", "excess_events", "events_in_dropped_windows")
    )
    assert summary["events"] + lost == len(drive(0)[0])


def test_live_sources_make_no_videos_and_sockets_need_a_sensor(place: Path) -> None:
    model = ["--model", str(place / "nano.safetensors")]
    assert CliRunner().invoke(app, ["detect", "-", "--save", "a.mp4", *model]).exit_code == 2
    for words in (["tcp:9000"], ["tcp:99999", "--sensor", "64x64"], ["-", "--start", "1s"], ["-", "-"]):
        assert CliRunner().invoke(app, ["detect", *words, *model]).exit_code == 2


def test_a_part_of_a_file_is_played_and_neither_it_nor_another_output_is_written_over(place: Path) -> None:
    events, model = drive(0)[0], ["--model", str(place / "nano.safetensors"), "--hz", "20"]
    write_events(place / "later.npz", replace(events, t_us=events.t_us + 10**9))
    before = (place / "later.npz").read_bytes()
    words = ["detect", str(place / "later.npz"), "--realtime", *model]
    assert CliRunner().invoke(app, [*words, "--json", str(place / "later.npz")]).exit_code == 2
    assert (place / "later.npz").read_bytes() == before
    # from before the first event on, it does not wait for that for minutes
    for part, windows in ((["--start", "+0.2s", "--end", "+0.4s"], 4), (["--start", "1s", "--end", "+0.1s"], 2)):
        done = CliRunner().invoke(app, [*words, *part, "--json", str(place / "part.json")], catch_exceptions=False)
        assert "from a window's end to its boxes: " in done.output
        summary = read_detections(place / "part.json").facts["summary"]
        assert summary["windows"] + summary["dropped"]["windows_dropped"] == windows
    for wrong in (["--save", "a.avi"], ["--report", "a.txt"]):
        assert CliRunner().invoke(app, ["detect", str(place / "later.npz"), *model, *wrong]).exit_code == 2
    (place / "other").mkdir(exist_ok=True)
    write_events(place / "other" / "later.npz", events)
    both = ["detect", str(place / "later.npz"), str(place / "other" / "later.npz"), *model]
    assert CliRunner().invoke(app, [*both, "--json", str(place / "o.json")]).exit_code == 2


def test_a_page_without_a_video_of_its_own_leaves_other_videos_alone(place: Path) -> None:
    (place / "page.mp4").write_text("precious")
    words = ["detect", str(place / "drive.npz"), "--model", str(place / "nano.safetensors"), "--hz", "20"]
    done = CliRunner().invoke(app, [*words, "--report", str(place / "page.html")], catch_exceptions=False)
    assert done.exit_code == 0
    assert (place / "page.mp4").read_text() == "precious"
    assert 'id="video-data"' in (place / "page.html").read_text()


def test_a_live_source_that_is_stopped_keeps_what_was_found(place: Path) -> None:
    detector = fate.load_detector(place / "nano.safetensors")

    def stop(frame: StreamFrame) -> None:
        if frame.t_us > 150_000:
            raise KeyboardInterrupt

    files = {"json": place / "stopped.json", "jsonl": place / "stopped.jsonl", "coco": place / "stopped-coco.json"}
    done = detect_live(play(str(place / "drive.npz"), 20), detector, 20, on_frame=stop, **files)
    assert "note: it was stopped (Ctrl-C)" in done.lines()
    assert 0 < done.summary["windows"] < 20
    for file in (files["json"], files["jsonl"]):
        assert len(read_detections(file).frames) == read_detections(file).facts["summary"]["windows"]
    assert len(read_labels(files["coco"]).labelled_us) == done.summary["windows"]


def test_one_bad_file_does_not_keep_the_others_from_being_detected(place: Path) -> None:
    (place / "empty.raw").write_bytes(b"")
    write_events(place / "second.npz", drive(1)[0])
    files = [str(place / name) for name in ("empty.raw", "drive.npz", "second.npz")]
    done = CliRunner().invoke(app, ["detect", *files, "--model", str(place / "nano.safetensors"), "--hz", "20"])
    assert done.exit_code == 1
    assert done.output.count(" at 20 Hz (") == 2
