"""``fate study`` from one command to a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fate.cli.main import app
from fate.errors import FateError
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.training.config import read_config
from fate.workflows.studies.declared import STUDIES, read_recipe
from fate.workflows.studies.runner import Runner
from tests.models.small_detectors import small_detector
from tests.training.conftest import SENSOR, write_drives

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

#: Settings with which a run takes seconds.
SHORT = ("--device", "cpu", "--set", "run.epoch_steps=1", "--set", "run.epochs=1", "--set", "data.steps=2")


@pytest.fixture
def smoke(tmp_path: Path) -> list[str]:
    """The smallest study, on squares that cross a small frame; its results are in the folder ``out``."""
    dataset = write_drives(tmp_path, ("train", "val", "test"))
    words = ["study", "smoke", "--dataset", str(dataset), "--out", str(tmp_path / "out"), *SHORT]
    return [*words, "--row", "S5-ViT + PE"]


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
    files = sorted((tmp_path / "seed-0" / "fate-s-nano-20hz").glob("hours-*.json"))
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
    run = folder / "seed-0" / "fate-s-nano"
    for gone in ("fate-s-nano/last.ckpt", "fate-s-nano/last.safetensors", "fate-s-nano-20hz/best.safetensors"):
        (folder / "seed-0" / gone).unlink()
    before = (run / "evaluation.json").read_text()
    (run / "evaluation.json").unlink()
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "sim/fate-s-nano, seed 0: evaluating at 20, 200 Hz" in done.output
    assert "training for" not in done.output
    assert (run / "evaluation.json").read_text() == before


@pytest.mark.slow
def test_a_row_that_was_not_asked_for_says_so(smoke: list[str]) -> None:
    done = CliRunner().invoke(app, smoke, catch_exceptions=False)
    assert done.exit_code == 0
    line = next(line for line in done.output.splitlines() if line.startswith("| S5-ViT + PE + FAT |"))
    assert line.count("not run") == 2


@pytest.mark.slow
def test_a_seed_that_is_run_elsewhere_says_so_and_is_counted_when_it_is_there(smoke: list[str], tmp_path: Path) -> None:
    words = [*smoke, "--seeds", "2"]
    done = CliRunner().invoke(app, [*words, "--seed", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    assert not (tmp_path / "out" / "seed-0").exists()
    assert "(1 of 2)" in (tmp_path / "out" / "smoke.md").read_text()
    assert CliRunner().invoke(app, [*words, "--seed", "2"]).exit_code == 2


@pytest.mark.slow
def test_runs_side_by_side_make_the_same_table(smoke: list[str], tmp_path: Path) -> None:
    weights = tmp_path / "given.safetensors"
    save_model(build_model("fate-s-nano", ("square",), SENSOR), weights)
    words = [*smoke, "--weights", f"fate-s-nano-20hz={weights}", "--seeds", "2", "--jobs", "2"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "out" / "smoke.json").read_text())["rows"]
    assert all(told["S5-ViT + PE"][seed]["200"].keys() >= {"AP50:95", "AP50"} for seed in "01")
    assert told["S5-ViT + PE + FAT"] == {"0": None, "1": None}
    assert not list(tmp_path.glob("out/seed-*/fate-s-nano-20hz/dense-*"))  # nothing needs them


#: The paper has two tables for 1Mpx.
TABLES = [(name, folder) for name in STUDIES for folder in ("gen1", "sim")] + [
    ("frequency", "1mpx"),
    ("labels", "1mpx"),
]


@pytest.mark.parametrize(("name", "folder"), TABLES)
def test_a_row_is_trained_as_its_configuration_file_says(name: str, folder: str) -> None:
    runner = Runner(STUDIES[name], "data", Path("out"))
    recipes = [row.recipe(folder) for row in STUDIES[name].rows]
    assert len({recipe.name for recipe in recipes}) == len(recipes)
    for needed in {needed for recipe in recipes for needed in recipe.needed()}:
        ours, theirs = runner.config(needed, 3), read_config(needed)
        paths = {"path": "", "weights": "", "labels": "", "seed": 0, "workers": 0}
        for section in ("model", "data", "strategy", "optimiser", "run"):
            changed = {key: value for key, value in paths.items() if hasattr(getattr(theirs, section), key)}
            assert getattr(ours, section).model_copy(update=changed) == getattr(theirs, section).model_copy(
                update=changed
            )
        assert (ours.data.path, ours.run.seed) == ("data", 3)
        assert (ours.model.weights is None) == (theirs.model.weights is None)
        assert (ours.strategy.labels is None) == (theirs.strategy.labels is None)


def test_the_configurations_are_the_published_recipes() -> None:
    """Clip lengths, batch sizes, weight decay and precision of the paper and of the public code."""
    for folder, steps in (("gen1", 21), ("1mpx", 10)):
        for name in ("fate-s-20hz", "fate-s", "fate-e-20hz", "fate-e"):
            config = read_config(f"{folder}/{name}")
            clips = config.batch_size * config.run.accumulate  # of one step
            assert (config.data.steps, clips, config.optimiser.weight_decay) == (steps, 32, 1e-4)
    batches = {"gen1": {"rvt-b": 8, "get-b": 8, "s5-vit-b": 8}, "1mpx": {"rvt-b": 24, "get-b": 24, "s5-vit-b": 12}}
    for folder, sizes in batches.items():
        for name, size in sizes.items():
            config = read_config(f"{folder}/{name}")
            assert (config.batch_size, config.data.augmentation, config.optimiser.weight_decay) == (size, "rvt", 0)
            assert (config.run.precision == "float32") == (name == "s5-vit-b")
        stages = [read_config(f"{folder}/evrt-detr-b{stage}") for stage in ("-frame", "")]
        assert [(stage.data.steps == 1, stage.optimiser.only, stage.run.epochs) for stage in stages] == [
            (True, "all", 400),
            (False, "memory", 200),
        ]
    for size in (1, 4, 8):
        options = read_config(f"gen1/fate-e-pillar-{size}").model.encoder_options
        assert options.get("center_offsets", False) == (size > 2)


def test_an_ablation_has_the_phases_and_labels_of_its_reference() -> None:
    reference = read_recipe("gen1/fate-e")
    for study in ("strategies", "pillar-size", "channels"):
        for row in STUDIES[study].rows:
            recipe = row.recipe("gen1")
            if recipe.config.strategy.name == "supervised":
                continue
            assert recipe.start is not None
            assert read_recipe(recipe.start).config.run == read_recipe("gen1/fate-e-20hz").config.run
            assert recipe.config.run == reference.config.run
            if recipe.config.strategy.name == "fat":
                assert recipe.labels == reference.labels
            if study == "strategies":
                assert recipe.start == reference.start
    assert STUDIES["channels"].rows[2].recipe("gen1") == reference  # C = 64 is not trained again


def test_the_plan_names_what_is_left_and_given_weights_are_not_trained(tmp_path: Path) -> None:
    words = ["study", "components-s", "--dataset", "sim", "--out", str(tmp_path / "out"), "--dry-run"]
    plan = CliRunner().invoke(app, words, catch_exceptions=False).output
    for part in ("train sim/s5-vit-nano,", "train sim/fate-s-nano-20hz,", "label sim/s5-vit-nano,", "sim-drives"):
        assert part in plan
    weights = tmp_path / "public.safetensors"
    save_model(small_detector("s5"), weights)
    plan = CliRunner().invoke(app, [*words, "--weights", f"s5-vit-nano={weights}"], catch_exceptions=False).output
    assert "train sim/s5-vit-nano," not in plan
    assert "train sim/s5-vit-nano-fat," in plan
    assert "evaluate sim/s5-vit-nano," in plan
    assert not (tmp_path / "out").exists()
    for wrong in ("s5-vit-nano", f"s5-vit-nono={weights}", f"s5-vit-nano={tmp_path / 'nothing'}"):
        assert CliRunner().invoke(app, [*words, "--weights", wrong]).exit_code != 0


def test_the_plan_keeps_to_the_seed_and_the_kind_of_the_study(tmp_path: Path) -> None:
    words = ["--dataset", "sim", "--out", str(tmp_path / "out"), "--dry-run"]
    plan = CliRunner().invoke(app, ["study", "moments", *words, "--seeds", "2", "--seed", "1"], catch_exceptions=False)
    assert "seed 1" in plan.output
    assert "seed 0" not in plan.output
    plan = CliRunner().invoke(app, ["study", "labels", *words], catch_exceptions=False)
    assert "label the split test with sim/fate-s-nano-20hz" in plan.output
    assert "evaluate" not in plan.output
    missing = CliRunner().invoke(app, ["study", "moments", "--dataset", str(tmp_path / "gone"), "--dry-run"])
    assert missing.exit_code != 0


def test_a_list_names_every_study_and_configuration() -> None:
    listed = CliRunner().invoke(app, ["study", "--list"], catch_exceptions=False).output
    for study in STUDIES.values():
        assert f"{study.name}: " in listed
        assert all(f"gen1/{row.config}" in listed for row in study.rows)


@pytest.mark.parametrize(
    "words",
    [[], ["nothing"], ["components"], ["smoke", "--seeds", "0"], ["smoke", "--device", "x"], ["smoke", "--jobs", "0"]],
)
def test_bad_usage_is_told(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["study", *words]).exit_code == 2


@pytest.mark.parametrize("extra", [["--row", "nothing"], ["--scale", "nothing"], ["--seed", "3"]])
def test_bad_usage_is_told_before_anything_is_simulated(extra: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["study", "labels", "--dataset", "sim", "--out", str(tmp_path / "out"), *extra])
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()
