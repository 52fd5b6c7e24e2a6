"""``fate demo`` makes all it promises, whatever the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fate.boxes.detection_files import read_detections
from fate.cli.main import app
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model


@pytest.mark.slow
def test_a_drive_is_seen_at_two_rates_and_shown(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("car", "pedestrian"), (240, 304)), tmp_path / "nano.safetensors")
    words = ["demo", "--out", str(tmp_path / "demo"), "--seconds", "1", "--model", str(tmp_path / "nano.safetensors")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    for name in ("comparison.mp4", "report.html"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000, name
        assert name in done.output
    slow, fast = (read_detections(tmp_path / "demo" / f"detections-{hz}hz.json") for hz in (20, 200))
    assert len(fast.frames) == pytest.approx(10 * len(slow.frames), abs=10)
    assert CliRunner().invoke(app, ["demo", "--seconds", "0"]).exit_code == 2


@pytest.mark.slow
def test_unless_told_otherwise_a_cpu_takes_the_fast_detector(tmp_path: Path) -> None:
    words = ["demo", "--out", str(tmp_path / "demo"), "--seconds", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "--model fate-s-tiny is slower" in done.output
    assert read_detections(tmp_path / "demo" / "detections-20hz.json").facts["model"] == "fate-s-nano"
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "20 Hz beside 200 Hz" in page
