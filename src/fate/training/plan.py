"""What a run would do, before it does it: everything is built, the data is looked at, a batch or two trained on."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from fate.data.loading import ClipBatch
from fate.training.config import TrainConfig
from fate.training.curriculum import OneRate
from fate.training.loop import Parts, build, need_lightning

#: Steps tried: the first warms up.
TRIED = 3


@dataclass(frozen=True)
class Plan:
    """What was found."""

    config: TrainConfig
    device: str
    parameters: int
    trained_parameters: int
    recordings: int
    labelled_times: int
    boxes: int
    validation_recordings: int
    faults: tuple[str, ...]
    windows: int  #: of a step, all processes
    labelled_windows: int  #: of the batch that was tried
    load_s: float  #: in one process
    step_s: float
    memory_gb: float

    @property
    def rates(self) -> tuple[float, ...]:
        """That clips are drawn at, Hz."""
        every = self.config.strategy.rates
        return every[:1] if self.config.strategy.name == "supervised" else every

    def lines(self) -> list[str]:
        """For people."""
        run, data = self.config.run, self.config.data
        waiting = self.load_s * run.accumulate / max(data.workers, 1)
        hours = self.config.steps * max(self.step_s, waiting) / 3600
        return [
            f"{self.config.model.name}: {self.parameters / 1e6:.2f} M parameters,"
            f" {self.trained_parameters / 1e6:.2f} M of them trained",
            f"{self.recordings} recordings to learn from ({self.labelled_times} labelled times, {self.boxes} boxes),"
            f" {self.validation_recordings} to validate on",
            f"strategy {self.config.strategy.name} at {', '.join(f'{hz:g}' for hz in self.rates)} Hz",
            f"{run.epochs} epochs of {run.epoch_steps} steps; a step sees {self.windows} windows"
            f" ({data.random} random clips and {data.streams} streams of {data.steps}, {run.accumulate} batches),"
            f" {self.labelled_windows} labelled in the batch that was tried",
            f"{self.step_s:.2f} s a step on {self.device}, {self.load_s:.2f} s to load a batch in one process"
            f" ({data.workers} load): about {hours:.1f} hours",
            f"{self.memory_gb:.1f} GB of {'GPU' if self.device == 'cuda' else 'main'} memory",
            *(f"dataset: {fault}" for fault in self.faults),
        ]


def plan(config: TrainConfig) -> Plan:
    """Build everything, train on a batch or two, and say what to expect."""
    need_lightning()
    from fate.training.module import TrainingModule  # noqa: PLC0415  (Lightning takes seconds to load)

    parts = build(config)
    batches, load_s = _tried(parts)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.place(parts.device)
    wanted: Any = module.configure_optimizers()
    spent = [
        min(_step(module, wanted["optimizer"], batch, config, parts.device) for _ in range(TRIED)) for batch in batches
    ]
    own = [recording.labels for recording in parts.dataset.labelled]
    return Plan(
        config=config,
        device=parts.device,
        parameters=sum(weight.numel() for weight in parts.detector.parameters()),
        trained_parameters=sum(weight.numel() for weight in parts.detector.parameters() if weight.requires_grad),
        recordings=len(parts.dataset.labelled),
        labelled_times=sum(len(labels.labelled_us) for labels in own),
        boxes=sum(len(labels) for labels in own),
        validation_recordings=len(parts.validation.labelled),
        faults=parts.dataset.faults,
        windows=config.lanes * config.data.steps * config.run.accumulate,
        labelled_windows=sum(labels is not None for labels in batches[0].labels),
        load_s=load_s,
        step_s=sum(spent) / len(spent) * config.run.accumulate,
        memory_gb=_memory(parts.device),
    )


def _tried(parts: Parts) -> tuple[list[ClipBatch], float]:
    """A batch of the first epoch and, where rates change, one as in the last; and how long one took to load.

    A curriculum begins at 20 Hz alone: a teacher, which costs time and memory, has nothing to say there yet.
    """
    plan = parts.plan
    last = parts.config.steps * parts.config.run.accumulate - 1
    late = replace(plan, rate=lambda _, generator: plan.rate(last, generator))
    reader = parts.reader()
    began = time.perf_counter()
    tried = [plan] if isinstance(plan.rate, OneRate) else [plan, late]
    batches = [reader.batch(next(each.batches())) for each in tried]
    load_s = (time.perf_counter() - began) / len(batches)
    reader.close()
    return batches, load_s


def _step(module: Any, optimiser: torch.optim.Optimizer, batch: Any, config: TrainConfig, device: str) -> float:
    began = time.perf_counter()
    with torch.autocast(device, torch.bfloat16, enabled=config.halves(device)):
        loss = module.training_step(batch, 0)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _memory(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts kilobytes
