"""Several processes give the gradient that one gives for the whole batch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from fate.data.clips import Clip, TrainingPlan
from fate.errors import FateError
from fate.evaluation.evaluate import Evaluation
from fate.training.callbacks import Validation
from fate.training.config import TrainConfig
from fate.training.loop import build
from fate.training.module import TrainingModule
from fate.training.run_directory import RunDirectory
from fate.training.several_processes import CpuSyncBatchNorm, check_processes, synchronise_norms
from fate.training.strategies import Curriculum
from tests.training.conftest import SMALL_DETR, small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")
pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo to join processes")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240
#: How long steps are waited for in a trial of waiting, s.
SHORT_S = 2.0


class Step(nn.Module):
    """A training step as a forward pass, which is what DistributedDataParallel watches."""

    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        return self.module.training_step(batch, 0)


#: What the batch of a step is like, and for which head.
CASES = (
    "plain",
    "a process without boxes",
    "a process without windows that the teacher sees",
    "queries",
    "queries, a process without boxes",
    "queries, a process without windows that the teacher sees",
)
#: Of these only processes are compared with each other.
NOISY = "queries and noise, a process without boxes"


def settings(drives: Path, case: str) -> TrainConfig:
    strategy = {"name": "consistency", "consistency_score": 0.0} if "teacher" in case else {"name": "multi_frequency"}
    model = {"name": "fate-e", "options": SMALL_DETR} if "queries" in case else {}
    return small_config(drives, model=model, strategy=strategy, data={"random": 2, "streams": 2, "steps": 2})


def precision(case: str) -> torch.dtype:
    """With queries, float64: a deep backbone with ReLU has kinks, at which rounding decides between two gradients."""
    return torch.float64 if "queries" in case else torch.float32


def clips_of(plan: TrainingPlan, case: str) -> list[Clip]:
    """Of 20 Hz; with a teacher, those of the second process of 40 Hz."""
    canonical, faster = (next(replace(plan, timing=Curriculum([hz], 1, 1)).batches()) for hz in (20.0, 40.0))
    return [faster[lane] if "teacher" in case and lane % 2 else clip for lane, clip in enumerate(canonical)]


def gradients(drives: Path, rank: int, world: int, case: str) -> dict[str, Tensor]:
    """Of one step on a share of the same batch; without boxes, those of the second process are taken away."""
    config = settings(drives, case)
    parts = build(config)
    if "queries" in case and case != NOISY:
        # Each process would draw its own noise. Weights without a gradient would be waited for, so they go too.
        parts.detector.head.denoising = 0  # type: ignore[assignment]
        del parts.detector.head.denoising_classes
    module = TrainingModule(parts.detector, parts.strategy, config)
    if world > 1:
        synchronise_norms(module.student)
    module.to(precision(case)).train()
    batch = parts.reader(rank, world).batch(clips_of(parts.plan, case))
    if "teacher" in case:
        assert batch.teacher is not None
        assert bool(len(batch.teacher.shared)) == ((rank, world) != (0, 2))
    if "boxes" in case:
        lanes = range(4)[rank::world]
        empty = [lane for lane in lanes if lane % 2 == 1]
        labels = [
            None if given is None else given.select(given.class_id < 0) if lanes[row % len(lanes)] in empty else given
            for row, given in enumerate(batch.labels)
        ]
        batch = batch._replace(labels=labels)
        if world == 2:
            assert bool(sum(len(of) for of in labels if of is not None)) == (rank == 0)
    step: nn.Module = Step(module)
    if world > 1:
        step = DistributedDataParallel(step)
    step(batch).backward()
    return {name: weight.grad.clone() for name, weight in module.student.named_parameters() if weight.grad is not None}


def validated(drives: Path, folder: Path) -> Evaluation | None:
    """The validation of a fresh detector on the recordings to learn from, which are two; each process takes one."""
    config = small_config(drives, data={"validate": "train"}, run={"validate_hz": [20, 40]})
    parts = build(config)
    validation = Validation(RunDirectory(folder / "run"), config, parts.validation)
    validation.setup(None, None, "fit")  # type: ignore[arg-type]
    return validation.evaluate(TrainingModule(parts.detector, parts.strategy, config))


def work(rank: int, folder: str, drives: str) -> None:
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=PATIENCE_S / 2)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    for case in (*CASES, NOISY):
        torch.save(gradients(Path(drives), rank, 2, case), f"{folder}/{case} {rank}.pt")
    found = validated(Path(drives), Path(folder))
    assert (found is None) == (rank == 1)
    if found is not None:
        Path(folder, "validated").write_text(json.dumps([at.scores.to_dict() for at in found.rates]))
    distributed.destroy_process_group()
    wait_for_the_first(rank, folder)


@pytest.fixture(scope="module")
def together(drives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have found, each in files of its own; they are started once, which takes longer than all."""
    folder = tmp_path_factory.mktemp("together")
    context = multiprocessing.spawn(work, (str(folder), str(drives)), nprocs=2, join=False)
    deadline = time.monotonic() + PATIENCE_S
    while not context.join(timeout=1):
        assert time.monotonic() < deadline, "the processes wait for each other"
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_gradient_of_one_also_when_one_has_no_boxes_or_nothing_to_follow(
    drives: Path, together: Path, case: str
) -> None:
    found = torch.load(together / f"{case} 0.pt", weights_only=True)
    alone = gradients(drives, 0, 1, case)
    assert found.keys() == alone.keys()
    assert any(value.abs().max() > 0 for value in alone.values())
    near, smallest = (1e-3, 1e-6) if precision(case) == torch.float32 else (1e-5, 1e-12)
    for name, value in alone.items():
        assert torch.allclose(found[name], value, rtol=near, atol=near * float(value.abs().max()) + smallest), name


@pytest.mark.slow
def test_noise_beside_a_process_without_boxes_gives_both_the_same_gradient(together: Path) -> None:
    """A window without boxes has no noisy queries: nothing may be waited for that only one process has."""
    first, second = (torch.load(together / f"{NOISY} {rank}.pt", weights_only=True) for rank in range(2))
    assert first.keys() == second.keys()
    assert first["head.denoising_classes.weight"].abs().max() > 0
    assert all(torch.equal(value, second[name]) and value.isfinite().all() for name, value in first.items())


@pytest.mark.slow
def test_two_processes_validate_as_one(drives: Path, together: Path, tmp_path: Path) -> None:
    alone = validated(drives, tmp_path)
    assert alone is not None
    expected = json.loads(json.dumps([at.scores.to_dict() for at in alone.rates]))
    found = json.loads((together / "validated").read_text())
    assert [at["metrics"] for at in found] == [at["metrics"] for at in expected]
    assert [at["counts"] for at in found] == [at["counts"] for at in expected]
    assert found[0]["counts"]["recordings"] == 2


def wait_for_the_first(rank: int, folder: str) -> None:
    """A validation that takes longer than steps are waited for; then the same wait without patience."""
    place, patience = Path(folder), timedelta(seconds=SHORT_S)
    (place / f"ready {rank}").touch()
    while not (place / f"ready {1 - rank}").exists():  # meeting, too, is waited for no longer than a step
        time.sleep(0.01)
    distributed.init_process_group("gloo", init_method=f"file://{place}/again", rank=rank, world_size=2,
                                   timeout=patience)  # fmt: skip
    config = small_config(place)
    validation = Validation(RunDirectory(place), config, None)  # type: ignore[arg-type]
    validation.evaluate = lambda *_: time.sleep(0 if rank else 2 * SHORT_S)  # type: ignore[assignment, method-assign]
    trainer: Any = SimpleNamespace(is_global_zero=rank == 0, global_step=config.steps, accumulate_grad_batches=1)
    validation.setup(trainer, None, "fit")
    began = time.monotonic()
    validation.on_train_batch_end(trainer, None, None, None, 0)
    (place / f"waited {rank}").write_text(str(time.monotonic() - began))
    if rank == 0:
        time.sleep(2 * SHORT_S)
    try:
        distributed.barrier()
    except RuntimeError:
        (place / f"gave up {rank}").touch()


@pytest.mark.slow
def test_a_validation_may_take_longer_than_a_step_is_waited_for(together: Path) -> None:
    assert float((together / "waited 1").read_text()) >= SHORT_S
    assert (together / "gave up 1").exists(), "steps are waited for as long: nothing was tried"


def test_a_joined_norm_alone_is_the_plain_one() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    joined = synchronise_norms(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))
    joined.load_state_dict(plain.state_dict())
    assert isinstance(joined[1], CpuSyncBatchNorm)  # type: ignore[index]
    image = torch.randn(4, 2, 5, 5)
    for mode in (True, False):
        assert torch.equal(plain.train(mode)(image), joined.train(mode)(image))
    assert torch.equal(plain[1].running_var, joined[1].running_var)  # type: ignore[index, union-attr, arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_two_nodes_under_torchrun_train_one_run(drives: Path, tmp_path: Path) -> None:
    config = small_config(drives, run={"nodes": 2, "epochs": 1, "epoch_steps": 3}, data={"random": 2, "streams": 2})
    file = tmp_path / "run.yaml"
    file.write_text(config.to_yaml())
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    port = str(free_port())
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
             "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port,
             "-m", "fate.cli", "train", str(file), "--out", str(tmp_path / "run")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for node in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=PATIENCE_S)[0].decode() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
    kept = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 3
    assert len(kept["fate"]) == 2  # what each process remembers


@pytest.mark.parametrize(
    ("started", "devices", "nodes", "words"),
    [("2", 1, 1, "2 processes were started"), ("2", 2, 2, "2 processes were started"), (None, 2, 2, "with torchrun")],
)
def test_other_numbers_of_processes_than_were_started_are_refused(
    monkeypatch: pytest.MonkeyPatch, started: str | None, devices: int, nodes: int, words: str
) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    check_processes(2, 1)  # the engine starts the second by itself
    if started is not None:
        monkeypatch.setenv("WORLD_SIZE", started)
        check_processes(1, 2)
    with pytest.raises(FateError, match=words):
        check_processes(devices, nodes)
