"""A finished run ends by itself, and nothing that it started stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fate.training.loop import train
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs pytorch-lightning")

#: Enough for any run here on a busy machine; only a process that hangs takes longer.
HANGS_S = 300.0
#: Twenty runs in one process each would load torch twenty times: several runs in a row share a process.
STARTS, RUNS_EACH = 5, 4
SCRIPT = """
import sys
from pathlib import Path
from fate.cli.main import app, main

if __name__ == "__main__":
    config, out, runs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    for run in range(runs - 1):
        app(["train", config, "--out", str(out / str(run))], standalone_mode=False)
    sys.argv = ["fate", "train", config, "--out", str(out / "last")]
    main()
"""


def members(group: int) -> list[str]:
    """What the system lists of a group of processes, without those that have ended."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [" ".join(row) for row in rows if row[0] == str(group) and not row[1].startswith("Z")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
def test_twenty_runs_with_loader_processes_end_by_themselves(drives: Path, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    workers = {"workers": 2, "steps": 2}
    config.write_text(small_config(drives, data=workers, run={"epochs": 1, "save_every": 10}).to_yaml())
    script = tmp_path / "runs.py"
    script.write_text(SCRIPT)
    ended = 0
    for start in range(STARTS):
        out = tmp_path / str(start)
        command = [sys.executable, str(script), str(config), str(out), str(RUNS_EACH)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            text = process.communicate(timeout=HANGS_S)[0].decode()
            assert process.returncode == 0, text
            until = time.monotonic() + HANGS_S
            while (left := members(process.pid)) and time.monotonic() < until:
                time.sleep(0.1)
            assert left == []
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended += len(list(out.glob("*/best.safetensors")))
    assert ended == STARTS * RUNS_EACH


def test_processes_that_load_end_with_the_run_even_if_the_engine_lives_on(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pytorch_lightning

    kept = []
    fit = pytorch_lightning.Trainer.fit

    def fit_and_keep(trainer: pytorch_lightning.Trainer, *given: object, **options: object) -> None:
        loader = options["train_dataloaders"]
        loader_type = type(loader)
        take = loader_type.__iter__

        def take_and_keep(batches: object) -> object:
            iterator = take(batches)
            kept.append(iterator)  # as a user does who looks into the engine, or an uncollected cycle
            return iterator

        monkeypatch.setattr(loader_type, "__iter__", take_and_keep)
        fit(trainer, *given, **options)

    monkeypatch.setattr(pytorch_lightning.Trainer, "fit", fit_and_keep)
    train(small_config(drives, data={"workers": 1}, run={"epochs": 1}), tmp_path / "run")
    assert kept
    assert multiprocessing.active_children() == []
