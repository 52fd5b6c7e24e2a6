"""Results of a live run are written as they come, and are complete however it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import fate
from fate.boxes.detection_files import read_detections, read_frames
from fate.boxes.label_files import read_labels
from fate.formats.saving import write_events
from fate.inference.live import stopping_gracefully
from fate.inference.sources import play
from fate.inference.stream_types import StreamFrame
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.workflows.detect_live import detect_live
from fate.workflows.summary import RunningQuantiles
from tests.cli.running import fate as run_command
from tests.training.conftest import SENSOR, drive

pytestmark = pytest.mark.filterwarnings("ignore::fate.FateWarning")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of a second, as EVT3 too, and a detector with fresh weights."""
    folder = tmp_path_factory.mktemp("live")
    write_events(folder / "drive.npz", drive(0)[0])
    write_events(folder / "drive.raw", drive(0)[0])
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), folder / "nano.safetensors")
    return folder


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C means something, also where the tests run in the background, whose processes start with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def detecting(place: Path, lines: Path, **outputs: object) -> Iterator[subprocess.Popen[bytes]]:
    """``fate detect -`` whose sender has sent a recording and sends no more; ``lines``, one of the outputs, has grown
    to more than five.
    """
    words = ["detect", "-", "--hz", "20", "--threshold", "0.0001", "--model", str(place / "nano.safetensors")]
    for option, path in outputs.items():
        words += [f"--{option}", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "fate.cli", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write((place / "drive.raw").read_bytes())
        process.stdin.flush()
        ends = time.monotonic() + 240
        while not (lines.exists() and lines.read_bytes().count(b"\n") > 5):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < ends
            time.sleep(0.05)
        yield process
        process.kill()


@pytest.fixture
def running(place: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``fate detect -`` with every kind of file; half of its windows are detected."""
    outputs = {option: tmp_path / f"{option}.{option}" for option in ("json", "jsonl", "csv", "coco")}
    with detecting(place, outputs["jsonl"], **outputs) as process:
        yield process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_live_run_with_every_file_complete(
    running: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    assert (tmp_path / "csv.csv").read_bytes().count(b"\n") > 1  # boxes are in their file before the source ends
    running.send_signal(number)
    assert running.wait(timeout=240) == 0  # standard input is still open
    assert running.stdout is not None
    assert b"it was stopped" in running.stdout.read()
    log = read_detections(tmp_path / "json.json")
    summary = log.facts["summary"]
    assert len(log.frames) == summary["windows"] > 0
    lines = read_detections(tmp_path / "jsonl.jsonl")
    assert lines.labels() == log.labels()
    assert lines.facts["summary"] == summary
    labels = read_labels(tmp_path / "coco.coco")
    assert np.array_equal(labels.labelled_us, log.labels().labelled_us)
    assert len(labels) == len(log.labels()) > 0
    assert len((tmp_path / "csv.csv").read_text().splitlines()) == len(labels) + 1
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
@pytest.mark.parametrize("listens", [True, False])
def test_ctrl_c_ends_a_run_whose_lines_go_to_a_listener(place: Path, tmp_path: Path, listens: bool) -> None:
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = f"tcp:127.0.0.1:{server.getsockname()[1]}"

        def listen() -> None:
            connection, _ = server.accept()
            while data := connection.recv(1 << 16):
                received.extend(data)

        listener = threading.Thread(target=listen, daemon=True)
        if listens:
            listener.start()
        else:
            server.close()
        rows, whole = tmp_path / "a.csv", tmp_path / "a.json"
        with detecting(place, rows, csv=rows, json=whole, jsonl=name) as process:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=240) == 0
            assert process.stdout is not None
            said = process.stdout.read().decode()
        if listens:
            listener.join(60)
    log = read_detections(whole)
    windows = log.facts["summary"]["windows"]
    assert len(log.frames) == windows > 0
    assert rows.read_text().count("\n") == len(log.labels()) + 1
    if listens:  # the head, all windows, and the summary
        (tmp_path / "a.jsonl").write_bytes(received)
        assert read_detections(tmp_path / "a.jsonl").labels() == log.labels()
        assert json.loads(received.splitlines()[-1])["summary"] == log.facts["summary"]
    else:
        assert f"{name} did not take {windows} lines" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_ctrl_c_in_a_file_says_which_files_have_boxes(place: Path, tmp_path: Path) -> None:
    grows, whole = tmp_path / "grows.csv", tmp_path / "whole.json"
    words = ["detect", str(place / "drive.raw"), "--hz", "1000", "--model", str(place / "nano.safetensors")]
    words += ["--threshold", "0.0001", "--csv", str(grows), "--json", str(whole)]
    with subprocess.Popen([sys.executable, "-m", "fate.cli", *words], stderr=subprocess.PIPE, text=True) as process:
        ends = time.monotonic() + 240
        while not (grows.exists() and grows.read_bytes().count(b"\n") > 2):
            assert process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 130
        assert process.stderr is not None
        said = process.stderr.read()
    assert f"boxes so far are in {grows}" in said
    assert f"not written: {whole}" in said
    assert "stopped (Ctrl-C)" in said
    assert not whole.exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system kills in another way")
def test_a_killed_live_run_leaves_the_lines_it_has_written(running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = (tmp_path / "jsonl.jsonl").read_bytes().count(b"\n") - 1
    running.send_signal(signal.SIGKILL)
    running.wait(60)
    log = read_detections(tmp_path / "jsonl.jsonl")
    assert len(log.frames) >= before >= 5
    assert log.classes == ("square",)
    assert (tmp_path / "csv.csv").read_text().startswith("t_us,x1")
    assert not (tmp_path / "json.json").exists()


def test_lines_that_end_within_a_line_are_read_up_to_there(tmp_path: Path, place: Path) -> None:
    detector = fate.load_detector(place / "nano.safetensors")
    fate.detect(place / "drive.npz", detector, 20, jsonl=tmp_path / "a.jsonl")
    whole = (tmp_path / "a.jsonl").read_bytes()
    cut = whole[: whole.index(b"\n", 1000) + 20]
    (tmp_path / "cut.jsonl").write_bytes(cut)
    with pytest.warns(fate.FateWarning, match=r"cut\.jsonl"):
        frames, classes = read_frames(tmp_path / "cut.jsonl")
    assert len(frames) == cut.count(b"\n") - 1
    assert classes == ("square",)
    (tmp_path / "cut.jsonl").write_bytes(whole.replace(b'"boxes"', b'"boxes', 1))
    with pytest.raises(fate.FateError, match=r"cut\.jsonl"):
        read_frames(tmp_path / "cut.jsonl")


def test_frames_of_a_live_source_are_not_kept(place: Path) -> None:
    detector = fate.load_detector(place / "nano.safetensors")
    seen: list[weakref.ref[StreamFrame]] = []
    most = 0

    def look(frame: StreamFrame) -> None:
        nonlocal most
        seen.append(weakref.ref(frame))
        most = max(most, sum(each() is not None for each in seen))

    done = detect_live(play(str(place / "drive.npz"), 20), detector, 20, on_frame=look)
    assert len(seen) == done.summary["windows"] > 5
    assert most <= 2


def test_an_error_in_a_live_run_is_raised_when_the_files_are_complete(place: Path, tmp_path: Path) -> None:
    detector = fate.load_detector(place / "nano.safetensors")

    def fail(frame: StreamFrame) -> None:
        if frame.t_us > 150_000:
            raise RuntimeError("the robot is gone")

    with pytest.raises(RuntimeError, match="the robot is gone"):
        detect_live(play(str(place / "drive.npz"), 20), detector, 20, on_frame=fail, json=tmp_path / "a.json")
    log = read_detections(tmp_path / "a.json")
    assert 0 < len(log.frames) == log.facts["summary"]["windows"]
    assert any("the robot is gone" in note for note in log.facts["summary"]["notes"])


def test_signals_mean_what_they_meant_when_the_run_is_over() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    reasons: list[str] = []
    with stopping_gracefully(reasons.append):
        signal.raise_signal(signal.SIGTERM)
        assert reasons == ["it was stopped (SIGTERM)"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert {number: signal.getsignal(number) for number in before} == before
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with stopping_gracefully(reasons.append):
            signal.raise_signal(signal.SIGTERM)  # the program's own wish is left alone
            assert len(reasons) == 1
    finally:
        signal.signal(signal.SIGTERM, before[signal.SIGTERM])


def test_a_live_source_says_what_to_use_instead_of_a_video(place: Path) -> None:
    done = run_command("detect", "-", "--save", "a.mp4", "--model", place / "nano.safetensors")
    assert done.returncode == 2
    assert "--save" in done.stderr
    assert "--jsonl" in done.stderr


@pytest.mark.parametrize("count", [1, 2, 100, 4096, 50_000])
def test_running_quantiles_are_those_of_all_values(count: int) -> None:
    values = np.random.default_rng(count).lognormal(1, 1.5, count)
    running = RunningQuantiles()
    for value in values:
        running.add(float(value))
    for share in (0.5, 0.99):
        assert running.at(share) == pytest.approx(np.quantile(values, share), rel=0.01)
    assert running.highest == values.max()


def test_json_lines_say_what_each_window_took(place: Path, tmp_path: Path) -> None:
    detector = fate.load_detector(place / "nano.safetensors")
    done = fate.detect(place / "drive.npz", detector, 20, track=True, threshold=0.0001, jsonl=tmp_path / "a.jsonl")
    head, *frames, end = (json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines())
    assert (head["format"], head["version"], head["hz"]) == ("fate-detections-lines", 1, 20)
    assert [frame["events"] for frame in frames] == [frame.num_events for frame in done.frames]
    assert all(frame["ms"] > 0 for frame in frames)
    tracks = {track for frame in frames for track in frame["track_ids"]}
    assert end["summary"]["tracks"] == len(tracks) > 0


@pytest.mark.slow
def test_lines_of_a_file_that_no_listener_takes_are_an_error_and_other_files_are_complete(
    place: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = f"tcp:127.0.0.1:{server.getsockname()[1]}"
    words = ["--model", place / "nano.safetensors", "--hz", "20", "--jsonl", name, "--csv", tmp_path / "a.csv"]
    done = run_command("detect", place / "drive.raw", *words)
    assert done.returncode == 1
    assert f"{name} did not take 20 lines" in done.stderr
    assert (tmp_path / "a.csv").read_text().startswith("t_us,")


@pytest.mark.slow
def test_bytes_that_are_no_events_are_a_failed_source(place: Path) -> None:
    model = str(place / "nano.safetensors")
    command = [sys.executable, "-m", "fate.cli", "detect", "-", "--model", model, "--sensor", "64x48", "--hz", "20"]
    done = subprocess.run(command, input=b"no events " * 1000, capture_output=True, timeout=240, check=False)
    assert done.returncode == 3, done.stderr
