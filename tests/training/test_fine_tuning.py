"""Fine-tuning: trained weights on another sensor and other classes, with settings that follow from the dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

import fate
from fate.cli.main import app
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.window import Window
from fate.inference.loading import find_weights
from fate.models.checkpoints import save_model
from fate.models.zoo import build_model
from fate.training.fine_tuning import fine_tuning
from fate.training.loop import build, train, transfer
from fate.training.module import TrainingModule
from tests.conftest import make_events
from tests.training.conftest import small_config

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


@pytest.mark.parametrize("name", ["fate-s-nano", "fate-e-tiny", "evrt-detr-tiny"])
def test_a_detector_that_depends_on_the_length_of_windows_starts_with_the_outputs_of_one_that_does_not(
    name: str,
) -> None:
    options = TINY if name == "fate-s-nano" else {}
    torch.manual_seed(0)
    given = build_model(name, ("car", "dog"), (48, 64), **options).eval()
    detector = build_model(name, ("car", "dog"), (48, 64), **options, length_affine=True).eval()
    transfer(given, detector)
    events = make_events(sensor=(48, 64))
    batch = EventBatch.from_windows([(Window(0, int(events.t_us[-1]) + 1), events)])
    with torch.no_grad():
        (expected, _), (found, _) = given(batch), detector(batch)
    assert torch.equal(found.boxes, expected.boxes)
    assert torch.equal(found.class_logits, expected.class_logits)
    with pytest.raises(FateError, match="length_affine"):  # these parameters would be lost
        transfer(detector, given)


@pytest.mark.slow
def test_bundled_weights_start_a_run_at_any_rate_with_parameters_for_the_length_of_windows(
    drives: Path, tmp_path: Path
) -> None:
    document = yaml.safe_load(drives.read_text())
    for entry in document["recordings"]:  # the labels of the dataset stand for exact ones
        paths = {part: str(drives.with_name(entry[part])) for part in ("events", "labels")}
        entry.update(paths | {"truth": paths["labels"]})
    (tmp_path / "drives.yaml").write_text(yaml.safe_dump(document))
    config = small_config(
        tmp_path / "drives.yaml",
        model={"name": "fate-s-nano", "encoder_options": {}, "options": {"length_affine": True},
               "weights": str(find_weights("fate-s-nano")), "transfer": True},
        strategy={"name": "any_rate", "labels": "truth", "rates": [20, 200], "hop_share": 1.0, "first_alpha": 1.0,
                  "last_alpha": 1.0, "decay": 0.0},
        data={"steps": 2, "random": 2},
        run={"epochs": 1, "epoch_steps": 2},
    )  # fmt: skip
    start = build(config).detector.state_dict()
    own = [name for name in start if ".length_affine." in name]
    assert len(own) == 8
    assert not any(bool(start[name].any()) for name in own)
    assert train(config, tmp_path / "run").finished
    from fate.models.checkpoints import load_model

    end = load_model(tmp_path / "run" / "last.safetensors").state_dict()
    assert all(bool(end[name].any()) for name in own)


@pytest.mark.parametrize("option", ["length_affine", "image_history"])
def test_fine_tuning_says_that_parameters_are_new(drives: Path, weights: Path, option: str) -> None:
    found = fine_tuning(drives, weights, [f"model.options.{option}=true"], device="cpu")
    assert "length of windows are new" in found.about[0]
    assert "length of windows" not in fine_tuning(drives, weights, device="cpu").about[0]


def test_the_refusal_of_lost_parameters_names_all_options_of_the_weights() -> None:
    """Without ``recurrence: time``, the detector would count steps, and no parameter would be missing."""
    sensor = (64, 96)
    given = build_model("fate-e-tiny", ("car",), sensor, recurrence="time", image_history=True)
    with pytest.raises(FateError, match="model.options=") as refused:
        transfer(given, build_model("fate-e-tiny", ("car",), sensor))
    assert 'recurrence: "time"' in str(refused.value)
    assert "image_history: true" in str(refused.value)


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
