"""``fate record``, listeners of ``fate detect``, and the exit codes that supervisors see."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fate
from fate.errors import FateError
from fate.formats.saving import write_events
from fate.inference.sources import LiveSource, play
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.workflows.detect_live import detect_live
from tests.boxes.test_line_outputs import listening, times, wait_for
from tests.cli.running import fate as run_command
from tests.inference.streams import SENSOR, QuickDetector, drive, pieces
from tests.inference.test_recording_source import ComingBack, Given, largest_file, read


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of 0.2 s, and a detector with fresh weights."""
    folder = tmp_path_factory.mktemp("record")
    write_events(folder / "drive.raw", drive(200_000))
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), folder / "nano.safetensors")
    return folder


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """SIGTERM means what it does by default, also where the tests run in the background."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


class Failing(Given):
    """Half a drive, then an error."""

    def __init__(self) -> None:
        super().__init__([drive()[:2000], self.fail])

    def fail(self) -> None:
        raise FateError("the cable was pulled; check it")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every live source fails."""

    def open_failing(*_: object, **__: object) -> LiveSource:
        return Failing()

    monkeypatch.setattr("fate.inference.sources.open_source", open_failing)


def test_a_file_is_recorded_with_its_boxes_and_the_command_that_gives_them_again(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.raw"
    done = run_command("record", place / "drive.raw", out, "--model", place / "nano.safetensors", "--hz", "20")
    assert done.returncode == 0, done.stderr
    assert read(out) == drive(200_000)
    assert (tmp_path / "out.jsonl").exists()
    (command,) = [line for line in done.stdout.splitlines() if "fate detect" in line]
    words = command.partition("fate ")[2].split()
    again = run_command(*words, "--jsonl", tmp_path / "again.jsonl")
    assert again.returncode == 0, again.stderr


def test_exit_codes_of_a_recording(place: Path, tmp_path: Path) -> None:
    assert run_command("record", place / "drive.raw", tmp_path / "a.raw").returncode == 0
    for words in (
        ["record", place / "drive.raw", tmp_path / "b.raw", "--hz", "20"],  # without a detector
        ["record", place / "drive.raw", tmp_path / "b.raw", "--reconnect"],
        ["record", "-", tmp_path / "b.raw", "--reconnect"],
        ["record", "tcp:9000", tmp_path / "b.raw"],  # without a sensor
        ["detect", "-", "--rotate", "100"],
        ["live", "-", "--rotate", "4kX"],
        ["detect", "-", "--reconnect"],
        ["detect", place / "drive.raw", "--reconnect"],
    ):
        done = run_command(*words)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
    for words in (
        ["record", place / "drive.raw", tmp_path / "a.raw"],  # it exists now
        ["record", place / "drive.raw", tmp_path / "a.h5"],
        ["record", tmp_path / "missing.raw", tmp_path / "b.raw"],
        ["detect", place / "drive.raw", "--jsonl", "tcp:9000"],
        ["detect", place / "drive.raw", "--json", "tcp:localhost:9000"],
    ):
        done = run_command(*words)
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("error: ") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.raw"]


@pytest.mark.usefixtures("failing")
def test_a_source_that_fails_gives_code_3_and_leaves_its_results(place: Path, tmp_path: Path) -> None:
    done = run_command("record", "tcp:9000", tmp_path / "a.raw", "--sensor", "64x64")
    assert done.returncode == 3, done.stderr
    assert "the cable was pulled" in done.stdout
    assert read(tmp_path / "a.raw") == drive()[:2000]
    words = ["--sensor", "64x64", "--model", place / "nano.safetensors", "--hz", "20"]
    done = run_command("detect", "tcp:9000", *words, "--jsonl", tmp_path / "a.jsonl")
    assert done.returncode == 3, done.stderr
    assert '"source_failed": true' in (tmp_path / "a.jsonl").read_text()


def test_a_full_disk_gives_code_1_and_says_what_was_kept(place: Path, tmp_path: Path) -> None:
    with largest_file(4000):
        done = run_command("record", place / "drive.raw", tmp_path / "a.raw")
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert str(tmp_path / "a.raw") in done.stderr
    kept = read(tmp_path / "a.raw")
    assert kept == drive(200_000)[: len(kept)]
    assert 0 < len(kept) < 2000


def test_sigterm_ends_a_run_and_its_listener_has_every_line_and_the_summary(tmp_path: Path) -> None:
    write_events(tmp_path / "drive.npz", drive(3_000_000))
    with listening() as listener:

        def look(frame: fate.StreamFrame) -> None:
            if len(times(listener.lines())) > 3:
                signal.raise_signal(signal.SIGTERM)

        detector, name = QuickDetector(), f"tcp:127.0.0.1:{listener.port}"
        source = play(str(tmp_path / "drive.npz"), 50)
        done = detect_live(source, detector, 50, budget_ms=1e6, on_frame=look, jsonl=name)  # type: ignore[arg-type]
        wait_for(lambda: "summary" in listener.lines()[-1])
        assert any("SIGTERM" in note for note in done.summary["notes"])
        assert done.summary["windows"] == len([line for line in listener.lines() if "t_us" in line]) < 150
        assert listener.lines()[-1]["summary"]["windows"] == done.summary["windows"]


def test_the_files_of_all_connections_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ComingBack([drive(), drive(), drive()])
    monkeypatch.setattr("fate.inference.sources.open_source", lambda *_: source)
    done = run_command("record", "tcp:9000", tmp_path / "a.raw", "--sensor", "64x64", "--reconnect")
    assert done.returncode == 0, done.stderr
    files = [str(tmp_path / name) for name in ("a.raw", "a.001.raw", "a.002.raw")]
    assert ", ".join(files) in done.stdout
    assert all(file in done.stderr for file in files[1:])


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent in another way there")
def test_sigterm_completes_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = pieces(drive(), [1500])
    source = Given([])

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        source.closed.wait(60)

    source.given = [first, stop, second]
    monkeypatch.setattr("fate.inference.sources.open_source", lambda *_: source)
    done = run_command("record", "tcp:9000", tmp_path / "a.raw", "--sensor", "64x64")
    assert done.returncode == 0, done.stderr
    assert "SIGTERM" in done.stdout
    assert read(tmp_path / "a.raw") == first
