"""``fate export`` as a user runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fate import FateError
from fate.cli.main import app
from fate.events.events import Sensor
from fate.inference import export as exporting
from fate.inference.export import Exported
from fate.inference.graph_check import Differences
from tests.cli.running import fate


def test_the_largest_differences_are_printed_beside_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def export(model: str, out: str, **options: Any) -> Exported:
        given.update(options, model=model)
        Path(out).write_bytes(bytes(1_250_000))
        inputs: dict[str, tuple[int | str, ...]] = {"image": (1, 20, 60, 90), "state.backbone.0": (1, 16, 24, 8)}
        outputs: dict[str, tuple[int | str, ...]] = {"boxes": (1, 30, 4), "class_scores": (1, 30, 1)}
        found = Differences(3.1e-5, 2e-7, 4e-7, 0.0)
        return Exported(Path(out), Sensor(60, 90), 18, inputs, outputs, 20, 25.0, found, "small, fresh")

    monkeypatch.setattr(exporting, "export", export)
    monkeypatch.chdir(tmp_path)
    for name in ("drive.raw", "small.safetensors"):
        Path(name).touch()
    options = [
        "--recording",
        "drive.raw",
        "--hz",
        "25",
        "--with-encoder",
        "--sensor",
        "90x60",
        "--classes",
        "car, bus",
        "--fresh",
    ]
    done = CliRunner().invoke(app, ["export", "small.safetensors", "small.onnx", *options])
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        "small.onnx: 1.2 MB, fp32, opset 18\n"
        "for recordings of 90×60 pixels; --sensor WIDTHxHEIGHT exports for others\n"
        "weights: small, fresh\n"
        "  in   image [1, 20, 60, 90]\n"
        "       state.backbone.0 [1, 16, 24, 8]\n"
        "  out  boxes [1, 30, 4]\n"
        "       class_scores [1, 30, 1]\n"
        "largest differences from PyTorch over 20 windows at 25 Hz of drive.raw:\n"
        "  boxes   3.1e-05 pixels  (allowed: 0.05)\n"
        "  scores  2.0e-07         (allowed: 0.0001)\n"
        "  states  4.0e-07         (allowed: 0.001)\n"
        "  choice  0.0e+00 logits  (allowed: 0.001)\n"
        "TensorRT, which was not run here: trtexec --onnx=small.onnx --saveEngine=small.engine"
        " --timingCacheFile=small.timing\n"
    )
    assert (given["model"], given["recording"], given["hz"]) == ("small.safetensors", "drive.raw", 25.0)
    assert (given["with_encoder"], given["sensor"], given["classes"]) == (True, (60, 90), ["car", "bus"])
    assert given["fresh"] is True


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--steps", "19"], "--steps"),
        (["--streams", "0"], "--streams"),
        (["--opset", "9"], "--opset"),
        (["--hz", "0"], "0.0 Hz"),
        (["--sensor", "big"], "WIDTHxHEIGHT"),
    ],
)
def test_bad_values_on_the_command_line_are_bad_usage(extra: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["export", "fate-s-nano", "graph.onnx", *extra])
    assert done.exit_code == 2
    assert words in done.output


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    done = fate("export", tmp_path / "no.safetensors", tmp_path / "graph.onnx")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'no.safetensors'}: ")
    assert ".safetensors file" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FateError, match="does not exist"):
        CliRunner().invoke(app, ["export", "rvt-b", str(tmp_path / "no" / "graph.onnx")], catch_exceptions=False)


def test_help_has_an_example() -> None:
    done = CliRunner().invoke(app, ["export", "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
