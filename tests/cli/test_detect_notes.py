"""What ``fate detect`` says beside its results: the device, and what bundled weights were trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fate.cli.main import app
from fate.formats.saving import write_events
from fate.inference import loading
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from tests.training.conftest import SENSOR, drive


def test_bundled_weights_say_what_they_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    save_model(build_model("fate-s-nano", ("square",), SENSOR), tmp_path / "small.safetensors")
    write_events(tmp_path / "drive.npz", drive(0)[0])
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    words = ["detect", str(tmp_path / "drive.npz"), "--hz", "20", "--end", "+200ms", "--model"]
    told = CliRunner().invoke(app, [*words, "small"], catch_exceptions=False)
    (line,) = (line for line in told.stderr.splitlines() if line.startswith("note: small"))
    assert all(fact in line for fact in ("simulated", "missed", "false", "fate train"))
    assert "docs/" not in line  # a wheel has no docs
    assert "device: " in told.stderr
    own = CliRunner().invoke(app, [*words, str(tmp_path / "small.safetensors")], catch_exceptions=False)
    assert "simulated" not in own.output
    quiet = CliRunner().invoke(app, [*words, "small", "-q"], catch_exceptions=False)
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert "windows at 20 Hz" in quiet.stdout
