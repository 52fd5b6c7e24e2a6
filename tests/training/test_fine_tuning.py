"""Fine-tuning: trained weights on another sensor and other classes, with settings that follow from the dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.errors import FateError
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.training.fine_tuning import fine_tuning
from fate.training.loop import build, train, transfer
from fate.training.module import TrainingModule

TINY = {"dims": (8, 16, 32, 64), "head_dim": 8}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector of other classes and of another sensor."""
    torch.manual_seed(5)
    file = tmp_path_factory.mktemp("weights") / "start.safetensors"
    save_model(build_model("fate-s-nano", ("car", "square"), (48, 64), **TINY), file)
    return file


@pytest.mark.parametrize("name", ["fate-s-nano", "fate-e-tiny"])
def test_all_layers_but_those_of_new_classes_are_taken_over(name: str) -> None:
    options = TINY if name == "fate-s-nano" else {}
    torch.manual_seed(0)
    given = build_model(name, ("car", "dog"), (48, 64), **options)
    detector = build_model(name, ("van", "Dog"), (60, 76), **options)  # as many classes, so all shapes are equal
    before = {key: value.clone() for key, value in detector.state_dict().items()}
    transfer(given, detector)
    theirs = given.state_dict()
    changed_rows = 0
    for key, value in detector.state_dict().items():
        if torch.equal(value, theirs[key]):
            continue
        changed_rows += 1
        assert torch.equal(value[1], theirs[key][1]), key  # dog
        assert torch.equal(value[0], before[key][0]), key  # van is new
    assert changed_rows >= 3


def test_weights_of_another_architecture_are_refused() -> None:
    given, other = (
        build_model("fate-s-nano", ("car",), (48, 64)),
        build_model("fate-s-nano", ("car",), (48, 64), **TINY),
    )
    with pytest.raises(FateError, match="do not fit the weights"):
        transfer(given, other)


def test_settings_follow_from_the_labels_and_can_be_changed(drives: Path, weights: Path) -> None:
    found = fine_tuning(drives, weights, ["optimiser.lr=1e-3"], epochs=3, batch=6, device="cpu")
    config = found.config
    assert config.run.epochs == 3
    assert config.batch_size == 6
    assert config.optimiser.lr == 1e-3
    assert config.model.options["head_dim"] == 8
    said = " ".join(found.about)
    assert "keeps the layers of the classes square" in said
    assert "18 labelled times in 2 recordings of 76×60" in said
    usual = fine_tuning(drives, weights, device="cpu").config
    assert usual.steps == 150  # few labels: the fewest steps
    with pytest.raises(FateError, match=r"data\.steps"):
        fine_tuning(drives, weights, ["data.steps=no"], device="cpu")


def test_a_frozen_backbone_stays_and_the_head_learns(drives: Path, weights: Path, tmp_path: Path) -> None:
    changes = ["run.epoch_steps=2", "data.steps=2", "run.validate_every=1"]
    config = fine_tuning(drives, weights, changes, epochs=1, batch=2, freeze="backbone", device="cpu").config
    start = build(config).detector.state_dict()
    assert train(config, tmp_path / "run").finished
    from fate.models.checkpoints import load_model

    end = load_model(tmp_path / "run" / "last.safetensors").state_dict()
    moved = {key.partition(".")[0] for key, value in end.items() if not torch.equal(value, start[key])}
    assert "head" in moved
    assert not moved & {"encoder", "backbone"}


def test_the_backbone_learns_more_slowly(drives: Path, weights: Path) -> None:
    config = fine_tuning(drives, weights, device="cpu").config
    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config)
    optimiser = module.configure_optimizers()["optimizer"]
    rate_of = {id(weight): group["initial_lr"] for group in optimiser.param_groups for weight in group["params"]}
    rates = {part: {rate_of[id(weight)] for weight in getattr(parts.detector, part).parameters()} for part in
             ("encoder", "backbone", "neck", "head")}  # fmt: skip
    lr = config.optimiser.lr
    assert rates == {"encoder": {0.2 * lr}, "backbone": {0.2 * lr}, "neck": {lr}, "head": {lr}}


def test_the_command_needs_no_configuration(drives: Path, weights: Path, tmp_path: Path) -> None:
    words = ["train", str(drives), "run.epoch_steps=2", "data.steps=2", "--model", str(weights), "--epochs", "1"]
    words += ["--batch", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "keeps the layers of the classes square" in done.output
    assert (tmp_path / "run" / "last.safetensors").exists()
    refused = CliRunner().invoke(app, ["train", "fate-s-nano-20hz", "--freeze", "backbone"])
    assert refused.exit_code == 2
    assert "is for fate train DATASET --model NAME" in " ".join(refused.output.split())


@pytest.mark.slow
def test_the_gain_is_measured_against_weights_that_know_the_classes(
    drives: Path, weights: Path, tmp_path: Path
) -> None:
    changes = ["run.epoch_steps=2", "data.steps=2", "run.validate_every=1"]
    config = fine_tuning(drives, weights, changes, epochs=1, batch=2, device="cpu").config
    start = build(config).detector.eval()
    done = train(config, tmp_path / "run")
    expected = fate.evaluate(start, fate.open_dataset(drives, "val"), (20,), device="cpu").rates[0].scores["AP50:95"]
    assert expected is not None
    assert done.before == pytest.approx(expected, abs=1e-6)
    assert done.best is not None
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validated = [line for line in lines if "validation" in line]
    assert [line["step"] for line in validated] == [0, 2]
    assert not validated[0]["is_best"]  # the best weights are those of the training
    other = tmp_path / "other.safetensors"
    save_model(build_model("fate-s-nano", ("car", "dog"), (48, 64), **TINY), other)
    config = fine_tuning(drives, other, changes, epochs=1, batch=2, device="cpu").config
    assert train(config, tmp_path / "new").before is None  # it cannot find squares yet


@pytest.mark.slow
def test_dense_labels_need_only_their_folder(drives: Path, weights: Path, tmp_path: Path) -> None:
    known = tmp_path / "square.safetensors"
    save_model(build_model("fate-s-nano", ("square",), (60, 76), **TINY), known)
    fate.densify(known, fate.open_dataset(drives, "train"), tmp_path / "dense", (20, 40), device="cpu")
    changes = [f"strategy.labels={tmp_path / 'dense'}", "run.epoch_steps=2", "data.steps=2", "run.validate_every=1"]
    found = fine_tuning(drives, known, changes, epochs=1, batch=2, device="cpu")
    assert found.config.strategy.name == "fat"
    assert found.config.strategy.rates == (20, 40)
    assert any("dense labels" in sentence and "20, 40 Hz" in sentence for sentence in found.about)
    assert train(found.config, tmp_path / "run").finished
