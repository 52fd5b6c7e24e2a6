"""Several processes give the gradient that one gives for the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from fate.data.clips import Clip, TrainingPlan
from fate.errors import FateError
from fate.training.curriculum import OneRate
from fate.training.loop import build
from fate.training.module import TrainingModule
from fate.training.together import TogetherBatchNorm, check_processes, join_norms
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs the extra train")
pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this torch has no gloo to join processes")
ROOT = Path(__file__).parents[2]
PATIENCE_S = 240


class Step(nn.Module):
    """A training step as a forward pass, which is what DistributedDataParallel watches."""

    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        return self.module.training_step(batch, 0)


CASES = ("plain", "a process without boxes", "a process without windows that the teacher sees")


def settings(drives: Path, case: str) -> Any:
    strategy = {"name": "consistency", "consistency_score": 0.0} if "teacher" in case else {"name": "multi_frequency"}
    return small_config(drives, strategy=strategy, data={"random": 2, "streams": 2, "steps": 2})


def clips_of(plan: TrainingPlan, case: str) -> list[Clip]:
    """Of 20 Hz; with a teacher, those of the second process of 40 Hz."""
    canonical, faster = (next(replace(plan, rate=OneRate(hz)).batches()) for hz in (20.0, 40.0))
    return [faster[lane] if "teacher" in case and lane % 2 else clip for lane, clip in enumerate(canonical)]


def gradients(drives: Path, rank: int, world: int, case: str) -> dict[str, Tensor]:
    """Of one step on a share of the same batch; without boxes, those of the second process are taken away."""
    config = settings(drives, case)
    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config).train()
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
    step: nn.Module = Step(module)
    if world > 1:
        join_norms(module.student)
        step = DistributedDataParallel(step)
    step(batch).backward()
    return {name: weight.grad.clone() for name, weight in module.student.named_parameters() if weight.grad is not None}


def work(rank: int, folder: str, drives: str) -> None:
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=PATIENCE_S / 2)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    for case in CASES:
        found = gradients(Path(drives), rank, 2, case)
        if rank == 0:
            torch.save(found, f"{folder}/{case}.pt")
    distributed.destroy_process_group()


def test_two_processes_give_the_gradient_of_one_also_when_one_has_no_boxes_or_nothing_to_follow(
    drives: Path, tmp_path: Path
) -> None:
    context = multiprocessing.spawn(work, (str(tmp_path), str(drives)), nprocs=2, join=False)
    deadline = time.monotonic() + PATIENCE_S
    while not context.join(timeout=1):
        assert time.monotonic() < deadline, "the processes wait for each other"
    for case in CASES:
        together = torch.load(tmp_path / f"{case}.pt", weights_only=True)
        alone = gradients(drives, 0, 1, case)
        assert together.keys() == alone.keys()
        assert any(value.abs().max() > 0 for value in alone.values())
        for name, value in alone.items():
            assert torch.allclose(together[name], value, rtol=1e-3, atol=1e-3 * float(value.abs().max()) + 1e-6), name


def test_a_joined_norm_alone_is_the_plain_one() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    joined = join_norms(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)))
    joined.load_state_dict(plain.state_dict())
    assert isinstance(joined[1], TogetherBatchNorm)  # type: ignore[index]
    image = torch.randn(4, 2, 5, 5)
    for mode in (True, False):
        assert torch.equal(plain.train(mode)(image), joined.train(mode)(image))
    assert torch.equal(plain[1].running_var, joined[1].running_var)  # type: ignore[index, union-attr, arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
