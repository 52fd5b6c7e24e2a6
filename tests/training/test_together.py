"""Several processes give the gradient that one gives for the whole batch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from fate.training.loop import build
from fate.training.module import TrainingModule
from fate.training.together import TogetherBatchNorm, join_norms
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


def settings(drives: Path) -> Any:
    return small_config(drives, strategy={"name": "multi_frequency"}, data={"random": 2, "streams": 2, "steps": 2})


def gradients(drives: Path, rank: int, world: int, without_boxes: bool) -> dict[str, Tensor]:
    """Of one step on a share of the same batch; without boxes, those of the second half of the lanes are taken away."""
    config = settings(drives)
    parts = build(config)
    module = TrainingModule(parts.detector, parts.strategy, config).train()
    clips = next(parts.plan.batches())
    batch = parts.reader(rank, world).batch(clips)
    if without_boxes:
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
    for without in (False, True):
        found = gradients(Path(drives), rank, 2, without)
        if rank == 0:
            torch.save(found, f"{folder}/{without}.pt")
    distributed.destroy_process_group()


def test_two_processes_give_the_gradient_of_one_also_when_one_of_them_has_no_boxes(
    drives: Path, tmp_path: Path
) -> None:
    context = multiprocessing.spawn(work, (str(tmp_path), str(drives)), nprocs=2, join=False)
    deadline = time.monotonic() + PATIENCE_S
    while not context.join(timeout=1):
        assert time.monotonic() < deadline, "the processes wait for each other"
    for without in (False, True):
        together = torch.load(tmp_path / f"{without}.pt", weights_only=True)
        alone = gradients(drives, 0, 1, without)
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
