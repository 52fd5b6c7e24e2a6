"""A finished run ends by itself, and nothing that it started stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fate.training.loop import train
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs pytorch-lightning")

#: Enough for any run here on a busy machine; only a process that hangs takes longer.
HANGS_S = 900.0
#: So many runs are started at the same time: they also keep each other waiting, as on a busy machine.
RUNS = 4


#: ``fate`` whose last act before the interpreter takes itself apart is to count what its collector will visit.
COUNTING = """
import atexit, gc
atexit.register(lambda: print("left to visit:", len(gc.get_objects()), flush=True))
from fate.cli.main import main
main()
"""


def members(session: int) -> list[str]:
    """What the system lists of a session of processes, without those that have ended."""
    listed = subprocess.run(["ps", "-eo", "sess=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [" ".join(row) for row in rows if row[0] == str(session) and not row[1].startswith("Z")]


def run_to_its_end(config: Path, out: Path) -> None:
    """Start a run, wait until it has ended by itself, and check that no process of it is left."""
    command = [sys.executable, "-m", "fate.cli", "train", str(config), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        text = process.communicate(timeout=HANGS_S)[0].decode()
        assert process.returncode == 0, text
        assert "next: fate evaluate" in text
        until = time.monotonic() + HANGS_S
        while (left := members(process.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert left == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no groups of processes")
def test_runs_with_loader_processes_end_by_themselves(drives: Path, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    workers = {"workers": 2, "steps": 2}
    config.write_text(small_config(drives, data=workers, run={"epochs": 1, "save_every": 10}).to_yaml())
    with ThreadPoolExecutor(RUNS) as pool:
        started = [pool.submit(run_to_its_end, config, tmp_path / f"run {number}") for number in range(RUNS)]
    for each in started:
        each.result()
    assert len(list(tmp_path.glob("run */last.safetensors"))) == RUNS


@pytest.mark.slow
def test_processes_that_load_end_with_the_run_even_if_the_engine_lives_on(
    drives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pytorch_lightning

    kept = []
    fit = pytorch_lightning.Trainer.fit

    def fit_and_keep(trainer: pytorch_lightning.Trainer, *given: object, **options: object) -> None:
        kept.append(options["train_dataloaders"])  # as a user does who looks into the engine, or an uncollected cycle
        fit(trainer, *given, **options)

    monkeypatch.setattr(pytorch_lightning.Trainer, "fit", fit_and_keep)
    train(small_config(drives, data={"workers": 1}, run={"epochs": 1}), tmp_path / "run")
    assert kept
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_finished_run_leaves_the_collector_nothing_to_visit(drives: Path, tmp_path: Path) -> None:
    """At its end Python visits every object several times; those of torch kept a finished run for seconds of work."""
    config = tmp_path / "small.yaml"
    config.write_text(small_config(drives, data={"steps": 2}, run={"epochs": 1, "epoch_steps": 1}).to_yaml())
    command = [sys.executable, "-c", COUNTING, "train", str(config), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    assert "next: fate evaluate" in done.stdout
    assert int(done.stdout.rsplit("left to visit:", 1)[1]) < 20_000  # hundreds of thousands otherwise
