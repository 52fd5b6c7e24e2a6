"""``-`` as an output: results on standard output alone, words for the reader on standard error."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fate.cli.main import app
from fate.errors import FateError
from fate.formats.saving import write_events
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from tests.conftest import make_events
from tests.training.conftest import SENSOR, drive


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording of a second and a detector with fresh weights."""
    folder = tmp_path_factory.mktemp("standard-output")
    write_events(folder / "drive.npz", drive(0)[0])
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), folder / "nano.safetensors")
    return folder


def detecting(place: Path, *words: str) -> list[str]:
    model = str(place / "nano.safetensors")
    return ["detect", str(place / "drive.npz"), "--hz", "20", "--threshold", "0.0001", "--model", model, *words]


def test_info_has_json_and_nothing_else_on_standard_output(place: Path, tmp_path: Path) -> None:
    recording = str(place / "drive.npz")
    done = CliRunner().invoke(app, ["info", recording, "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["num_events"] == len(drive(0)[0])
    assert "events" in done.stderr
    written = CliRunner().invoke(app, ["info", recording, "--json", str(tmp_path / "a.json")], catch_exceptions=False)
    assert (tmp_path / "a.json").read_text() == done.stdout
    assert "events" in written.stdout


@pytest.mark.parametrize("option", ["--json", "--jsonl", "--csv", "--coco"])
def test_boxes_go_to_standard_output_as_into_a_file(place: Path, tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(app, detecting(place, option, "-"), catch_exceptions=False)
    assert done.exit_code == 0
    assert "windows at 20 Hz" in done.stderr
    assert not Path("-").exists()
    CliRunner().invoke(app, detecting(place, option, str(tmp_path / "file")), catch_exceptions=False)
    file = (tmp_path / "file").read_text()
    if option == "--csv":
        assert list(csv.DictReader(io.StringIO(done.stdout)))
        assert done.stdout == file
    elif option == "--coco":
        assert json.loads(done.stdout) == json.loads(file)
        assert json.loads(file)["annotations"]
    elif option == "--json":
        assert json.loads(done.stdout)["frames"] == json.loads(file)["frames"] != []
    else:
        head, *frames, end = (json.loads(line) for line in done.stdout.splitlines())
        assert (head["version"], head["classes"], head["sensor"]["width"]) == (1, ["square"], SENSOR[1])
        assert len(frames) == end["summary"]["windows"]
        assert sum(len(frame["boxes"]) for frame in frames) == end["summary"]["boxes"]["square"] > 0


def test_two_results_or_two_recordings_do_not_share_standard_output(place: Path) -> None:
    assert CliRunner().invoke(app, detecting(place, "--json", "-", "--csv", "-")).exit_code == 2
    assert CliRunner().invoke(app, detecting(place, "--json", "-", str(place / "drive.npz"))).exit_code == 2


def test_binary_results_refuse_standard_output(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recording = str(place / "drive.npz")
    for words in (["convert", recording, "-", "--to", "evt3"], ["convert", recording, "-", "--to", "npz"]):
        with pytest.raises(FateError, match="-: .* binary"):
            CliRunner().invoke(app, words, catch_exceptions=False)
    assert CliRunner().invoke(app, detecting(place, "--save", "-")).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_events_are_converted_to_text_on_standard_output(tmp_path: Path) -> None:
    write_events(tmp_path / "a.npz", make_events(50))
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "a.npz"), "-", "--to", "csv"], catch_exceptions=False)
    write_events(tmp_path / "a.csv", make_events(50))
    assert done.stdout == (tmp_path / "a.csv").read_text()
    assert "50 of 50 events" in done.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_that_cannot_take_a_format_are_refused_before_the_work(place: Path, tmp_path: Path) -> None:
    for name in ("a.mp4", "a.h5"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(FateError, match=r"--save .*a\.mp4: is a device or a pipe"):
        CliRunner().invoke(app, detecting(place, "--save", str(tmp_path / "a.mp4")), catch_exceptions=False)
    with pytest.raises(FateError, match=r"a\.h5: is a device or a pipe"):
        CliRunner().invoke(app, ["convert", "missing.raw", str(tmp_path / "a.h5")], catch_exceptions=False)
    assert all(stat.S_ISFIFO((tmp_path / name).lstat().st_mode) for name in ("a.mp4", "a.h5"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_files_are_written_before_words_that_cannot_be_printed(place: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fate.cli", *detecting(place, "--json", str(tmp_path / "a.json"))]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert json.loads((tmp_path / "a.json").read_text())["frames"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_standard_output_is_one_error(place: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fate.cli", "info", str(place / "drive.npz"), "--json", "-"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert "standard output" in error


def test_a_reader_of_standard_input_says_that_it_waits_before_bytes_come(place: Path) -> None:
    words = ["detect", "-", "--sensor", "64x48", "--model", str(place / "nano.safetensors"), "--jsonl", "-"]
    done = CliRunner().invoke(app, words, input=b"")
    assert isinstance(done.exception, FateError)
    assert "waiting for events from standard input" in done.stderr
