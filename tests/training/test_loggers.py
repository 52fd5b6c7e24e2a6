"""Loggers by name, and the learning curves of a run."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path

import pytest

from fate.errors import FateError, MissingDependencyError
from fate.training.loop import train
from fate.view.learning_curves import draw_curves
from tests.training.conftest import small_config


def loss_by_step(run: Path) -> dict[int, float]:
    """Of metrics.jsonl, which every run has."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.mark.slow
def test_each_logger_has_the_numbers_of_the_metrics_file(drives: Path, tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, names = tmp_path / "run", {"loggers": ["csv", "tensorboard"], "epochs": 2, "validate_every": 1}
    train(small_config(drives, run=names), run, draw_curves=draw_curves)
    with (run / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = loss_by_step(run)
    assert list(expected) == [1, 2, 3, 4]
    assert {int(row["step"]): float(row["loss"]) for row in rows if row["loss"]} == pytest.approx(expected)
    assert "validation/20hz/AP50-95" in rows[0]
    board = event_accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert {each.step: each.value for each in board.Scalars("loss")} == pytest.approx(expected, rel=1e-5)
    assert (run / "curves.png").exists()
    assert "Learning curves" in (run / "curves.html").read_text()


@pytest.mark.slow
def test_mlflow_has_the_numbers_of_the_metrics_file_in_a_database(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs pip install mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = tmp_path / "run"
    train(small_config(drives, run={"loggers": ["mlflow"], "epochs": 1, "validate_every": 1}), run)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    (logged,) = client.search_runs([client.get_experiment_by_name("fate").experiment_id])
    assert (logged.info.run_name, logged.info.status) == ("run", "FINISHED")
    losses = {each.step: each.value for each in client.get_metric_history(logged.info.run_id, "loss")}
    assert losses == pytest.approx(loss_by_step(run))
    assert "validation/20hz/AP50-95" in logged.data.metrics


@pytest.mark.slow
def test_wandb_keeps_the_numbers_in_a_file_without_an_account(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    train(small_config(drives, run={"loggers": ["wandb"], "epochs": 1, "validate_every": 1}), run)
    (kept,) = run.glob("wandb/offline-run-*/*.wandb")
    ends = time.monotonic() + 60
    while b"validation/20hz/AP50-95" not in kept.read_bytes():  # a process of wandb writes it, and may be late
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert "failed" not in (run / "log.txt").read_text()


def test_a_missing_package_is_named_before_anything_is_written(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"run.loggers=\[wandb\].*pip install wandb"):
        train(small_config(drives, run={"loggers": ["csv", "wandb"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(FateError, match=r"run.loggers.*jotter.*csv"):
        small_config(drives, run={"loggers": ["jotter"]})


@pytest.mark.parametrize("fails_in", ["__init__", "log_metrics", "finalize"])
def test_a_logger_that_fails_does_not_stop_training(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails_in: str
) -> None:
    def fails(*given: object, **more: object) -> None:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(f"pytorch_lightning.loggers.CSVLogger.{fails_in}", fails)
    assert train(small_config(drives, run={"epochs": 1, "loggers": ["csv"]}), tmp_path / "run").finished
    assert list(loss_by_step(tmp_path / "run")) == [1, 2]
    assert capsys.readouterr().out.count("disk on fire") == 1
