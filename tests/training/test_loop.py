"""Whole runs on a small dataset: what strategies share, going on after any stop, and stopping in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fate
from fate.data.opening import open_dataset
from fate.data.resident import ResidentEvents
from fate.errors import FateError
from fate.models.checkpoints import load_model, read_card
from fate.models.layers.s5 import S5
from fate.training import loop
from fate.training.config import TrainConfig
from fate.training.loop import build, train
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.view.evaluation_pictures import draw_samples
from tests.training.conftest import SMALL_DETR, small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Student and teacher of a run's checkpoint."""
    found: dict[str, torch.Tensor] = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    return found


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def command(config: TrainConfig, folder: Path) -> list[str]:
    settings = folder.parent / f"{folder.name}.yaml"
    settings.write_text(config.to_yaml())
    return [sys.executable, "-m", "fate.cli", "train", str(settings), "--out", str(folder)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def ran(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, env=environment(), capture_output=True, check=False)


def reached(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run has written a line for that step."""
    deadline = time.monotonic() + PATIENCE_S
    path = folder / "metrics.jsonl"
    while not (path.exists() and any(f'"step": {step},' in line for line in path.read_text().splitlines())):
        assert process.poll() is None, "the run ended too soon"
        assert time.monotonic() < deadline, "the run takes too long"
        time.sleep(0.05)


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_events_that_stay_on_the_device_train_the_same_and_are_read_once(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(drives, strategy={"name": "consistency", "rates": [20, 200]}, run={"epoch_steps": 3})
    train(config, tmp_path / "read")
    made = []

    class Counted(ResidentEvents):
        def __init__(self, *given: Any) -> None:
            made.append(self)
            super().__init__(*given)

    monkeypatch.setattr(loop, "ResidentEvents", Counted)
    monkeypatch.setattr(loop.TrainingParts, "resident", True)
    train(config, tmp_path / "resident")
    assert len(made) == 1
    assert_same(weights(tmp_path / "read"), weights(tmp_path / "resident"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_fat_with_one_rate_and_no_generated_labels_is_supervised_training_step_for_step(
    drives: Path, tmp_path: Path
) -> None:
    for name, settings in (("supervised", {}), ("consistency", {}), ("fat", {"labels": "unused"})):
        strategy = {"name": name, "rates": [20], "decay": 0.0, **settings}
        config = small_config(drives, strategy=strategy, run={"epochs": 2, "save_every": 1})
        if name == "fat":
            write_no_labels(config, tmp_path / "unused")
            config = small_config(drives, strategy={**strategy, "labels": str(tmp_path / "unused")},
                                  run={"epochs": 2, "save_every": 1})  # fmt: skip
        train(config, tmp_path / name)
    assert_same(weights(tmp_path / "supervised"), weights(tmp_path / "fat"))
    assert_same(weights(tmp_path / "supervised"), weights(tmp_path / "consistency"))


def write_no_labels(config: TrainConfig, folder: Path) -> None:
    """A folder of dense labels that has no rate at all."""
    from fate.boxes.dense_labels import begin_dense_labels

    begin_dense_labels(folder, {"model": {}, "dataset": {"classes": ["square"]}, "options": {}}, [])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_after_kill_9_a_run_goes_on_to_the_same_weights_bit_for_bit(drives: Path, tmp_path: Path) -> None:
    config = small_config(
        drives,
        strategy={"name": "consistency", "consistency_score": 0.0, "rates": [20, 40, 200]},
        run={"epochs": 3, "epoch_steps": 3, "save_every": 2, "validate_every": 2, "accumulate": 2},
        data={"workers": 1},
    )
    straight = ran(command(config, tmp_path / "straight"))
    assert straight.returncode == 0, straight.stderr.decode()
    step = int(np.random.default_rng().integers(1, 8))
    process = subprocess.Popen(command(config, tmp_path / "killed"), env=environment(), stdout=subprocess.DEVNULL)
    reached(tmp_path / "killed", step, process)
    process.kill()
    process.wait()
    again = ran(command(config, tmp_path / "killed"))
    assert again.returncode == 0, again.stderr.decode()
    assert_same(weights(tmp_path / "straight"), weights(tmp_path / "killed"))
    steps = [line["step"] for line in lines(tmp_path / "killed") if "loss" in line]
    assert steps == list(range(1, 10)), "every step is told once"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_detector_with_queries_goes_on_after_a_stop_to_the_same_weights_bit_for_bit(
    drives: Path, tmp_path: Path
) -> None:
    """Its noisy queries are drawn anew in each step, so that the generators must go on too."""
    config = small_config(
        drives,
        model={"name": "fate-e", "options": SMALL_DETR},
        data={"steps": 2},
        strategy={"name": "consistency", "consistency_score": 0.0, "rates": [20, 200]},
        run={"epochs": 2, "save_every": 100, "accumulate": 2},
    )

    def stop_soon(done: int, total: int, text: str) -> None:
        if done == 1:
            signal.raise_signal(signal.SIGTERM)

    assert train(config, tmp_path / "straight").finished
    stopped = train(config, tmp_path / "stopped", progress=stop_soon)
    assert (stopped.step, stopped.finished) == (2, False)
    assert train(config, tmp_path / "stopped").finished
    assert_same(weights(tmp_path / "straight"), weights(tmp_path / "stopped"))
    terms = [{name: line[name] for name in line if "_denoising" in name} for line in lines(tmp_path / "straight")]
    assert any(value > 0 for term in terms for value in term.values()), "no noise was drawn"


def test_what_a_run_told_before_its_first_checkpoint_is_told_once(drives: Path, tmp_path: Path) -> None:
    config = small_config(drives, run={"epochs": 1})
    begun = RunDirectory(tmp_path / "run")
    begun.begin(config)
    begun.add_metrics({"step": 1, "loss": 3.0})  # then the power went
    begun.close()
    train(config, tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_saves_and_exits_in_order_and_the_same_command_goes_on(
    drives: Path, tmp_path: Path, asked: signal.Signals
) -> None:
    config = small_config(drives, run={"epochs": 200, "save_every": 1000})
    folder = tmp_path / "run"
    process = subprocess.Popen(command(config, folder), env=environment(), stdout=subprocess.PIPE)
    reached(folder, 2, process)
    process.send_signal(asked)
    said = process.communicate(timeout=PATIENCE_S)[0].decode()
    assert process.returncode == 0
    assert "the same command goes on" in said
    stopped = int(torch.load(folder / "last.ckpt", weights_only=True)["global_step"])
    assert stopped >= 2
    assert read_card(folder / "last.safetensors")["training"]["step"] == stopped


def test_a_program_that_is_stopped_does_not_go_on_with_half_trained_weights(drives: Path, tmp_path: Path) -> None:
    config = small_config(drives, run={"epochs": 200, "log_every": 1})
    before = signal.getsignal(signal.SIGINT)

    def stop(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        if done == 1:
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt, match="stopped at step"):
            fate.train(config, tmp_path / "run", progress=stop)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "run" / "last.ckpt").exists()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"step 1 of {config.steps}: loss" in log


def test_other_settings_are_refused_with_what_differs(drives: Path, tmp_path: Path) -> None:
    train(small_config(drives, run={"epochs": 1}), tmp_path / "run")
    with pytest.raises(FateError, match="optimiser.lr was 0.001, now 0.002"):
        train(small_config(drives, "optimiser.lr=0.002", run={"epochs": 1}), tmp_path / "run")
    with pytest.raises(FateError, match="OneCycle cannot be stretched"):
        train(small_config(drives, run={"epochs": 2}), tmp_path / "run")
    done = train(small_config(drives, run={"epochs": 1, "log_every": 5}), tmp_path / "run")  # not a matter of training
    assert done.finished


def test_a_run_leaves_all_that_its_folder_promises(drives: Path, tmp_path: Path) -> None:
    config = small_config(drives, run={"epochs": 2, "validate_every": 1})
    train(config, tmp_path / "run", draw_samples=draw_samples)
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} >= {
        "config.yaml", "environment.json", "data.json", "metrics.jsonl", "last.ckpt", "last.safetensors",
        "best.safetensors", "log.txt", "pictures",
    }  # fmt: skip
    assert list((folder / "pictures").glob("*.png"))
    card = read_card(folder / "best.safetensors")
    assert card["validation"]["20"].keys() >= {"AP50:95", "AP50"}
    said = [line for line in lines(folder) if "validation" in line]
    assert [line["step"] for line in said] == [2, 4]
    loss = next(line for line in lines(folder) if "loss" in line)
    terms = [value for name, value in loss.items() if name in ("iou", "objectness", "class")]
    assert sum(terms) == pytest.approx(loss["loss"], rel=1e-5)
    assert load_model(folder / "last.safetensors").classes == ("square",)


def test_a_full_disk_keeps_the_last_good_checkpoint(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pytorch_lightning import Trainer

    save, count = Trainer.save_checkpoint, [0]

    def full_later(self: Trainer, path: Any, *rest: Any, **options: Any) -> None:
        count[0] += 1
        if count[0] > 1:
            Path(path).write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        save(self, path, *rest, **options)

    monkeypatch.setattr(Trainer, "save_checkpoint", full_later)
    with pytest.raises(FateError, match="No space left on device.*goes on from step 2"):
        train(small_config(drives), tmp_path / "run")
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == 2
    assert not list((tmp_path / "run").glob("*.part"))
    assert "the last good one stays" in capsys.readouterr().out


def test_best_weights_that_cannot_be_kept_do_not_stop_the_run_and_are_tried_again(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fate.training import callbacks

    save, count = callbacks.save_model, [0]

    def full_at_first(*given: Any, **options: Any) -> None:
        count[0] += Path(given[1]).name == "best.safetensors"
        if count[0] == 1:
            raise OSError(28, "No space left on device")
        save(*given, **options)

    monkeypatch.setattr(callbacks, "save_model", full_at_first)
    assert train(small_config(drives, run={"epochs": 2, "validate_every": 1}), tmp_path / "run").finished
    assert "step 2: not all of the validation could be kept" in capsys.readouterr().out
    assert read_card(tmp_path / "run" / "best.safetensors")["training"]["step"] == 4


def test_s5_remembers_no_longer_than_the_longest_training_recording(drives: Path) -> None:
    recordings = open_dataset(drives, "train").labelled
    longest_s = max(each.end_us - each.start_us for each in recordings) / 1e6
    detector = build(small_config(drives)).detector
    assert detector.description["options"]["longest_memory_s"] == pytest.approx(longest_s, abs=0.05)
    assert {part.longest_memory_s for part in detector.modules() if isinstance(part, S5)} == {
        detector.description["options"]["longest_memory_s"]
    }
    own = build(small_config(drives, model={"name": "fate-s-nano", "options": {"longest_memory_s": 9.0}})).detector
    assert own.description["options"]["longest_memory_s"] == 9.0
    without = build(small_config(drives, model={"name": "rvt-s", "encoder_options": {}, "options": {}})).detector
    assert "longest_memory_s" not in without.description["options"]


def test_options_of_a_wrong_type_are_said(drives: Path) -> None:
    with pytest.raises(FateError, match="model.options = {'dims': 3}.*expected values of other types"):
        build(small_config(drives, model={"options": {"dims": 3}}))


def test_a_loss_that_is_no_number_stops_the_run_with_its_batch(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainingModule.training_step

    def breaks(self: TrainingModule, batch: Any, number: int) -> torch.Tensor:
        return step(self, batch, number) * (float("nan") if self.batches == 4 else 1.0)

    monkeypatch.setattr(TrainingModule, "training_step", breaks)
    with pytest.raises(FateError, match="loss of step 4 is not a number.*bad-batch-4.npz"):
        train(small_config(drives), tmp_path / "run")
    with np.load(tmp_path / "run" / "bad-batch-4.npz") as saved:
        assert saved["offsets"][-1] == len(saved["t_us"]) > 0
        assert len(saved["label_boxes"]) == len(saved["label_class"])
    kept = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 2
    assert all(torch.isfinite(value).all() for value in kept["state_dict"].values() if value.is_floating_point())


def test_a_first_loss_that_is_no_number_promises_no_checkpoint(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainingModule.training_step
    monkeypatch.setattr(TrainingModule, "training_step", lambda *given: step(*given) * float("nan"))
    with pytest.raises(FateError, match="bad-batch-1.npz") as caught:
        train(small_config(drives), tmp_path / "run")
    assert not (tmp_path / "run" / "last.ckpt").exists()
    assert "last.ckpt" not in str(caught.value)


def test_a_run_is_announced_only_when_everything_was_checked(drives: Path, tmp_path: Path) -> None:
    announced: list[tuple[int, str]] = []

    def begins(step: int, device: str) -> None:
        announced.append((step, device))

    for wrong in ({"data": {"path": "/nowhere"}}, {"model": {"name": "fate-x"}}, {"data": {"train": "test"}}):
        with pytest.raises(FateError):
            train(small_config(drives, **wrong), tmp_path / "wrong", begins=begins)
    assert announced == []
    train(small_config(drives, run={"epochs": 1}), tmp_path / "run", begins=begins)
    assert announced == [(0, "cpu")]


def test_two_processes_may_not_train_in_one_folder(drives: Path, tmp_path: Path) -> None:
    config = small_config(drives)
    first = RunDirectory(tmp_path / "run")
    first.begin(config)
    with pytest.raises(FateError, match="another process trains here"):
        RunDirectory(tmp_path / "run").begin(config)
    first.close()
    assert not RunDirectory(tmp_path / "run").begin(config)


@pytest.mark.slow
def test_a_memory_of_its_own_can_be_trained_alone_from_a_detector_of_single_windows(
    drives: Path, tmp_path: Path
) -> None:
    model = {"name": "fate-e", "options": {**SMALL_DETR, "remember": False}}
    frame = small_config(drives, model=model, data={"steps": 1, "random": 2, "streams": 0}, run={"epochs": 1})
    train(frame, tmp_path / "frame")
    second = small_config(
        drives,
        model={"name": "fate-e", "options": SMALL_DETR, "weights": str(tmp_path / "frame" / "last.safetensors")},
        optimiser={"only": "memory"},
        run={"epochs": 1},
    )
    start = build(second).detector.state_dict()
    train(second, tmp_path / "memory")
    moved = {
        name.removeprefix("student.") for name, value in weights(tmp_path / "memory").items()
        if name.startswith("student.") and not torch.equal(value, start[name.removeprefix("student.")])
    }  # fmt: skip
    assert moved
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert all(name.startswith("memory.") or (name.startswith("head.") and name.endswith(statistics)) for name in moved)
