"""``fate train`` on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fate.cli.main import app
from fate.errors import FateError
from fate.training.config import read_config
from tests.training.conftest import small_config, write_drives

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The YAML file of a small dataset."""
    return write_drives(tmp_path_factory.mktemp("drives"))


@pytest.mark.slow
def test_a_run_a_second_look_at_it_and_a_dry_run(drives: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(small_config(drives, run={"epochs": 1}).to_yaml())
    out = str(tmp_path / "run")
    first = CliRunner().invoke(app, ["train", str(file), "--out", out], catch_exceptions=False)
    assert first.exit_code == 0
    assert "step 2 of 2: loss" in first.output
    assert "2 steps; the best weights are" in first.output
    second = CliRunner().invoke(app, ["train", str(file), "--out", out], catch_exceptions=False)
    assert "2 steps" in second.output
    assert "step 1" not in second.output
    plan = CliRunner().invoke(app, ["train", str(file), "run.epochs=50", "--dry-run"], catch_exceptions=False)
    assert plan.exit_code == 0
    for words in (
        "M parameters",
        "2 recordings to learn from",
        "50 epochs of 2 steps",
        "s a step on cpu",
        " in all",
        "GB",
    ):
        assert words in plan.output


def test_a_dry_run_says_what_it_does_before_it_does_it(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fate.training import dry_run as planning

    def ends(*given: object, **options: object) -> None:
        raise FateError("everything that takes time comes now")

    monkeypatch.setattr(planning, "dry_run", ends)
    file = tmp_path / "small.yaml"
    file.write_text(small_config(drives).to_yaml())
    with pytest.raises(FateError, match="comes now"):
        app(["train", str(file), "--dry-run"])
    assert capsys.readouterr().err == f"building fate-s, reading {drives}\n"


def test_mistakes_are_one_sentence(drives: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(small_config(drives).to_yaml())
    for number, (arguments, words) in enumerate((
        ([str(tmp_path / "none.yaml")], "no such configuration"),
        ([str(file), "run.device=gpu"], "cuda:N"),
        ([str(file), "data.path=/nowhere"], "/nowhere"),
        ([str(file), "model.name=fate-x"], "did you mean"),
        ([str(file), "model.weights=none.safetensors"], "none.safetensors"),
        ([str(file), "data.train=test"], "test"),
    )):  # fmt: skip
        out = ["--out", str(tmp_path / f"run {number}")]
        with pytest.raises(FateError, match=words):
            CliRunner().invoke(app, ["train", *arguments, *out], catch_exceptions=False)
    wrong = CliRunner().invoke(app, ["train", str(file), "--device", "gpu"])
    assert wrong.exit_code == 2
    assert "cuda:1" in wrong.output


@pytest.mark.slow
def test_bench_train_measures_each_model(drives: Path) -> None:
    words = ["bench", "train", str(drives), "fate-s-nano", "--clips", "2", "--batch", "2", "--device", "cpu",
             "--precision", "float32", "--workers", "0", "--seconds", "0.1"]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "| fate-s-nano | 2 | 2 | eager | from disk | float32 |" in done.output
    assert CliRunner().invoke(app, [*words, "--clips", "a"]).exit_code == 2


def test_configurations_and_settings_are_listed_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from fate.cli.main import app; app(sys.argv[1:], standalone_mode=False);"
        " assert 'torch' not in sys.modules"
    )
    for words, facts in (
        (["train", "--list"], ["sim/fate-s-nano-20hz", "gen1/fate-e", "1mpx/fate-e"]),
        (["train", "--settings"], ["lr: 0.0002", "device: auto"]),
        (["train", "fate-s-nano-20hz", "--settings", "--device", "cuda:1"], ["lr: 0.001", "device: cuda:1"]),
    ):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False,
                              cwd=tmp_path, env=os.environ)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all(fact in done.stdout for fact in facts)


def test_a_missing_dataset_is_refused_before_torch_is_loaded_and_steps_are_announced(tmp_path: Path) -> None:
    code = (
        "import sys; from fate.cli.main import app; from fate.errors import FateError\n"
        "try: app(['train', 'fate-s-nano-20hz', 'data.path=nowhere'], standalone_mode=False)\n"
        "except FateError as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
                          env=os.environ)  # fmt: skip
    assert done.stdout.startswith("nowhere: ")
    assert done.stdout.endswith("False\n")
    assert "steps" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_device_of_the_command_line_is_used(drives: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(small_config(drives, run={"epochs": 1, "device": "auto"}).to_yaml())
    words = ["train", str(file), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert read_config(tmp_path / "run" / "config.yaml").run.device == "cpu"
