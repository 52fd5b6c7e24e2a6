"""``fate study`` from one command to a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.errors import FateError
from fate.models.zoo import MODELS
from fate.training.config import read_config
from fate.workflows.studies.declared import SCALES, SIZES, STUDIES
from fate.workflows.studies.runner import Runner

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")
CONFIGS = Path(fate.__file__).parent / "configs" / "sim"


@pytest.mark.slow
def test_the_smallest_study_runs_on_a_cpu_and_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    words = ["study", "smoke", "--out", str(tmp_path), "--device", "cpu", "--set", "run.epoch_steps=2", "--set",
             "data.steps=2"]  # fmt: skip
    first = CliRunner().invoke(app, words, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    assert "| S5-ViT + PE + FAT |" in first.output
    assert "not run" not in first.output.split("written:")[0].rsplit("|  |", 1)[-1]
    told = json.loads((tmp_path / "smoke.json").read_text())
    assert told["rows"]["S5-ViT + PE + FAT"]["0"]["200"].keys() >= {"AP50:95", "AP50", "delay_p50_ms"}
    files = sorted((tmp_path / "seed-0" / "fate-s_supervised").glob("hours-*.json"))
    assert [file.stem for file in files] == ["hours-dense-labels", "hours-evaluation", "hours-training"]
    assert told["hours"]["CPU"] > sum(json.loads(file.read_text())["CPU"] for file in files) > 0
    assert "Time to detection: median in ms" in (tmp_path / "smoke.md").read_text()
    for name in ("smoke.md", "smoke.csv", "smoke.png"):
        assert (tmp_path / name).stat().st_size > 0
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "training" not in again.output.split("written:")[0].rsplit("Training,")[0]
    _check_that_weights_are_enough(tmp_path, words)
    other = CliRunner().invoke(app, [*words, "--set", "optimiser.lr=1e-5"])
    assert isinstance(other.exception, FateError)  # not the figures of the run that is there
    assert "holds a run with other settings: optimiser.lr" in str(other.exception)


def _check_that_weights_are_enough(folder: Path, words: list[str]) -> None:
    """Who deletes checkpoints and labels of what is finished can still evaluate it."""
    run = folder / "seed-0" / "fate-s_fat"
    for gone in ("fate-s_fat/last.ckpt", "fate-s_fat/last.safetensors", "fate-s_supervised/best.safetensors"):
        (folder / "seed-0" / gone).unlink()
    before = (run / "evaluation.json").read_text()
    (run / "evaluation.json").unlink()
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "fate-s_fat, seed 0: evaluating at 20, 200 Hz" in done.output
    assert "training for" not in done.output
    assert (run / "evaluation.json").read_text() == before


@pytest.mark.slow
def test_a_row_that_was_not_asked_for_says_so(tmp_path: Path) -> None:
    words = ["study", "smoke", "--out", str(tmp_path), "--device", "cpu", "--row", "S5-ViT + PE", "--set",
             "run.epoch_steps=1", "--set", "run.epochs=1", "--set", "data.steps=2"]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    line = next(line for line in done.output.splitlines() if line.startswith("| S5-ViT + PE + FAT |"))
    assert line.count("not run") == 2


@pytest.mark.slow
def test_a_seed_that_is_run_elsewhere_says_so_and_is_counted_when_it_is_there(tmp_path: Path) -> None:
    words = ["study", "smoke", "--out", str(tmp_path), "--device", "cpu", "--row", "S5-ViT + PE", "--seeds", "2",
             "--set", "run.epoch_steps=1", "--set", "run.epochs=1", "--set", "data.steps=2"]  # fmt: skip
    done = CliRunner().invoke(app, [*words, "--seed", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    assert not (tmp_path / "seed-0").exists()
    assert "(1 of 2)" in (tmp_path / "smoke.md").read_text()
    assert CliRunner().invoke(app, [*words, "--seed", "2"]).exit_code == 2


@pytest.mark.slow
def test_runs_side_by_side_make_the_same_table(tmp_path: Path) -> None:
    words = ["study", "smoke", "--out", str(tmp_path), "--device", "cpu", "--row", "S5-ViT + PE", "--seeds", "2",
             "--jobs", "2", "--set", "run.epoch_steps=1", "--set", "run.epochs=1", "--set", "data.steps=2"]  # fmt: skip
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "smoke.json").read_text())["rows"]
    assert all(told["S5-ViT + PE"][seed]["200"].keys() >= {"AP50:95", "delay_p50_ms"} for seed in "01")
    assert told["S5-ViT + PE + FAT"] == {"0": None, "1": None}
    assert not list(tmp_path.glob("seed-*/fate-s_supervised/dense-*"))  # nothing needs them


def test_a_small_study_may_show_it_with_a_smaller_detector() -> None:
    study = STUDIES["pillar-size"]
    recipe = study.rows[0].recipe.played_by(study.small)
    assert [one.role for one in recipe.needed()] == ["fate-s"] * 3
    assert recipe.encoder_options == recipe.needed()[1].encoder_options == (("pillar", 8),)
    assert recipe.needed()[2].encoder_options == ()  # labels are those of the usual size


def test_every_recipe_names_a_model_and_every_row_is_told_apart() -> None:
    for study in STUDIES.values():
        assert len({row.name for row in study.rows}) == len(study.rows)
        assert len({row.recipe.slug for row in study.rows}) == len(study.rows)
        for row in study.rows:
            for sizes in SIZES.values():
                assert sizes[row.recipe.role]["name"] in MODELS


@pytest.mark.parametrize(
    "words",
    [["nothing"], ["components"], ["smoke", "--seeds", "0"], ["smoke", "--device", "x"], ["smoke", "--jobs", "0"]],
)
def test_bad_usage_is_told(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["study", *words]).exit_code == 2


@pytest.mark.parametrize("extra", [["--row", "nothing"], ["--scale", "nothing"], ["--seed", "3"]])
def test_bad_usage_is_told_before_anything_is_simulated(extra: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "labels", "--dataset", "sim", "--out", str(tmp_path / "out"), *extra])
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_rows_that_differ_in_one_option_of_the_encoder_do_so_at_any_size() -> None:
    """A small detector has other channels than the paper's by itself; every row says how many."""
    study = STUDIES["channels"]
    widths = [dict(row.recipe.played_by(study.small).encoder_options)["channels"] for row in study.rows]
    assert widths == [32, 48, 64, 80, 96]


def test_a_study_of_simulated_drives_trains_as_the_configurations_for_them_do() -> None:
    runner = Runner(STUDIES["components"], "drives", Path("out"), SCALES["sim"], "cuda")
    for row in (*STUDIES["components-s"].rows, *STUDIES["components-e"].rows):
        ours = runner.config(row.recipe, 0)
        name = ours.model.name + ("" if row.recipe.strategy == "fat" else "-20hz")
        if not (CONFIGS / f"{name}.yaml").exists():  # twins with histograms
            continue
        theirs = read_config(CONFIGS / f"{name}.yaml")
        assert ours.optimiser == theirs.optimiser
        assert ours.data.model_copy(update={"path": "", "workers": 0}) == theirs.data.model_copy(
            update={"path": "", "workers": 0}
        )
        for field in ("decay", "decay_warmup", "rates", "consistency_weight"):
            assert getattr(ours.strategy, field) == getattr(theirs.strategy, field)
