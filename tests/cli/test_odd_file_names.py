"""A recording whose name is not UTF-8 is detected like any other, and keeps its report and its boxes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fate.cli.main import app
from fate.formats.saving import write_events
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from tests.cli.running import fate
from tests.training.conftest import SENSOR, drive


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="names of any bytes are there on Linux")
def test_report_and_boxes_are_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), tmp_path / "nano.safetensors")
    path = tmp_path / os.fsdecode(b"bad\xff.npz")
    write_events(path, drive(0)[0])
    words = ["detect", str(path), "--model", str(tmp_path / "nano.safetensors"), "--hz", "20", "--end", "+200ms"]
    words += ["--report", str(tmp_path / "r.html"), "--json", str(tmp_path / "j.json"), "--device", "cpu"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "j.json").read_bytes())["recording"] == "bad\\xff.npz"
    assert "bad\\xff.npz" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="names of any bytes are there on Linux")
def test_a_dataset_is_inspected_with_a_page(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_events(tmp_path / "data" / os.fsdecode(b"bad\xff.npz"), drive(0)[0])
    words = ["inspect", str(tmp_path / "data"), "--windows", "2", "--report", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "bad\\xff" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["info", "detect"])
def test_an_empty_name_is_refused(command: str) -> None:
    done = fate(command, "")
    assert done.returncode == 1
    assert "empty name" in done.stderr
