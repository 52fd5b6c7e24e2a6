"""``fate models``: a line for every detector, the same numbers as JSON, bad usage before any work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.errors import FateError
from fate.inference import loading
from fate.models import zoo
from fate.models.zoo import MODELS, build_model


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The whole list for Gen1, and its file."""
    file = tmp_path_factory.mktemp("models") / "models.json"
    return CliRunner().invoke(app, ["models", "--json", str(file)]), file


def test_every_detector_has_a_line(listed: tuple[Result, Path]) -> None:
    result, _ = listed
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["name", "parameters", "GFLOPs", "encoder", "weights", "what", "it", "is"]
    assert [line.split()[0] for line in lines[1 : 1 + len(MODELS)]] == list(MODELS)
    for line, model in zip(lines[1:], MODELS.values(), strict=False):
        assert model.encoder in line
        assert line.endswith(model.about)
    assert "rvt-b           18 536 469    9.85  histogram " in result.output
    assert "304×240 pixels and the classes car, pedestrian" in result.output
    assert "a multiplication and its addition count as two" in result.output


def test_the_file_has_the_same_numbers(listed: tuple[Result, Path]) -> None:
    result, file = listed
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["sensor"] == [240, 304]
    assert content["classes"] == ["car", "pedestrian"]
    assert [entry["name"] for entry in content["models"]] == list(MODELS)
    for entry in content["models"]:
        assert f"{entry['parameters']:,}".replace(",", " ") in result.output
        assert f"{entry['gflops']:.2f}" in result.output


def test_names_whose_weights_are_in_the_package_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WEIGHTS", tmp_path)
    (tmp_path / "fate-s-nano.safetensors").touch()
    result = CliRunner().invoke(app, ["models", "--json", str(tmp_path / "models.json")])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines()[1 : 1 + len(MODELS)]}
    assert [name for name, line in lines.items() if "bundled" in line] == ["fate-s-nano"]
    assert "fate detect FILE --model fate-s-nano" in result.output
    written = json.loads((tmp_path / "models.json").read_text())["models"]
    assert [entry["name"] for entry in written if entry["bundled"]] == ["fate-s-nano"]


def test_the_usual_table_is_printed_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['fate', 'models']; from fate.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "18 331 029" in done.stdout


def test_sensor_and_classes_are_those_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "MODELS", {"s5-vit-nano": MODELS["s5-vit-nano"]})
    result = CliRunner().invoke(app, ["models", "--sensor", "640x360", "--classes", "pedestrian, two-wheeler,car"])
    assert result.exit_code == 0, result.output
    asked = build_model("s5-vit-nano", ("pedestrian", "two-wheeler", "car"), (360, 640))
    count = sum(weight.numel() for weight in asked.parameters())
    assert f"{count:,}".replace(",", " ") in result.output
    assert "640×360 pixels and the classes pedestrian, two-wheeler, car" in result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--sensor", "304"),
        ("--sensor", "0x240"),
        ("--classes", ""),
        ("--classes", "car,,pedestrian"),
        ("--classes", "car,car"),
    ],
)
def test_bad_usage_is_refused_before_any_work(option: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "list_models", None)
    result = CliRunner().invoke(app, ["models", option, value])
    assert result.exit_code == 2
    assert option in result.output


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "list_models", None)
    result = CliRunner().invoke(app, ["models", "--json", str(tmp_path / "none" / "models.json")])
    assert isinstance(result.exception, FateError)
    assert "does not exist; make it first" in str(result.exception)


def test_help_has_an_example() -> None:
    assert "Example" in CliRunner().invoke(app, ["models", "--help"]).output


def test_names_for_python_lead_to_the_functions() -> None:
    assert fate.list_models is zoo.list_models
    assert fate.build_model.__module__ == "fate.models.zoo"
    assert fate.load_model.__module__ == "fate.models.checkpoints.saved"
