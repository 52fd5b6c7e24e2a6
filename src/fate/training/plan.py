"""The plan of a run: build everything, check the data, and measure a training step on one or two batches.

A GPU tries whole batches. On a CPU these can take minutes, so it tries one clip, then two, and extrapolates time and
memory to the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fate.data.batches import ClipBatch
from fate.data.clips import Clip, canonical_steps
from fate.data.dataset import DataFaults, data_faults
from fate.processes import peak_memory_mb
from fate.progress import Progress, ignore
from fate.text import duration, plural
from fate.training.config import TrainConfig
from fate.training.curriculum import OneRate
from fate.training.loop import Parts, build, need_lightning

#: Steps tried with each batch: the first warms up.
TRIED = 3
#: On a CPU no further step is tried after this time, in seconds.
ENOUGH_S = 4.0


@dataclass(frozen=True)
class Plan:
    """The result of a dry run."""

    config: TrainConfig
    device: str
    parameters: int
    trained_parameters: int
    recordings: int
    labelled_times: int
    boxes: int
    validation_recordings: int
    faults: DataFaults
    windows: int  #: of a step, all processes
    labelled_windows: int  #: of the first batch
    tried: int  #: clips that a step was tried with
    load_s: float  #: in one process
    step_s: float  #: as it would be with all clips, like memory
    memory_gb: float | None  #: None where the system does not tell it

    def lines(self) -> list[str]:
        """A human-readable summary."""
        run, data = self.config.run, self.config.data
        waiting = self.load_s * run.accumulate / max(data.workers, 1)
        whole = duration(self.config.steps * max(self.step_s, waiting))
        return [
            f"{self.config.model.name}: {self.parameters / 1e6:.2f} M parameters,"
            f" {self.trained_parameters / 1e6:.2f} M of them trained",
            f"{self.recordings} recordings to learn from ({self.labelled_times} labelled times, {self.boxes} boxes),"
            f" {self.validation_recordings} to validate on",
            f"strategy {self.config.strategy.name} at {', '.join(f'{hz:g}' for hz in self.config.rates)} Hz",
            f"{plural(run.epochs, 'epoch')} of {plural(run.epoch_steps, 'step')}; a step sees {self.windows} windows"
            f" ({data.random} random clips and {data.streams} streams of {data.steps},"
            f" {plural(run.accumulate, 'batch', 'batches')}),"
            f" {self.labelled_windows} labelled in the first batch",
            f"{self.step_s:.2f} s a step on {self.device}, {self.load_s:.2f} s to load a batch in one process"
            f" ({data.workers} load): about {whole} in all",
            *self._memory(),
            *self._scaled(),
            *(f"dataset: {fault}" for fault in self.faults.shown),
        ]

    def _memory(self) -> list[str]:
        if self.memory_gb is None:
            return []
        return [f"{self.memory_gb:.1f} GB of {'GPU' if self.device == 'cuda' else 'main'} memory"]

    def _scaled(self) -> list[str]:
        size = self.config.batch_size
        if self.tried == size:
            return []
        return [f"time and memory are estimates: {self.tried} of the {size} clips of a batch were tried, to be quick"]


def plan(config: TrainConfig, progress: Progress = ignore) -> Plan:
    """Build everything, train on one or two batches, and predict time and memory.

    Args:
        config: the configuration of the run.
        progress: takes a text about the next step.
    """
    need_lightning()
    from fate.training.module import TrainingModule  # noqa: PLC0415  (Lightning takes seconds to load)

    parts = build(config)
    progress(0, None, f"loading a batch of {config.batch_size} clips of {config.data.steps} windows")
    loaded = _load(parts)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare(parts.device)
    step_s, memory_gb = _measure(module, loaded.tries, parts.device, progress)
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
        faults=data_faults(parts.dataset, parts.validation),
        windows=config.batch_size * config.data.steps * config.run.accumulate,
        labelled_windows=loaded.labelled_windows,
        tried=max(loaded.tries),
        load_s=loaded.seconds,
        step_s=step_s * config.run.accumulate,
        memory_gb=memory_gb,
    )


@dataclass(frozen=True)
class _Loaded:
    """The batches that are tried."""

    tries: Mapping[int, Sequence[ClipBatch]]  #: by their number of clips, in rising order
    labelled_windows: int  #: of the first whole batch
    seconds: float  #: that a whole batch took


def _load(parts: Parts) -> _Loaded:
    """Load a batch of the first epoch and, with a curriculum, one of the last epoch; for a CPU only one and two clips.

    A curriculum begins at 20 Hz alone, where the teacher, which costs time and memory, is not used yet.
    """
    plan = parts.plan
    last = parts.config.steps * parts.config.run.accumulate - 1
    late = replace(plan, timing=lambda _, rate_quantile, length: plan.timing(last, rate_quantile, length))
    planned = [next(each.batches()) for each in ([plan] if isinstance(plan.timing, OneRate) else [plan, late])]
    reader = parts.reader()
    began = time.perf_counter()
    whole = [reader.batch(clips) for clips in planned]
    seconds = (time.perf_counter() - began) / len(whole)
    tries: dict[int, Sequence[ClipBatch]] = {parts.config.batch_size: whole}
    if parts.device == "cpu" and parts.config.batch_size > 2:
        tries = {size: [reader.batch(_pair(clips)[:size]) for clips in planned] for size in (1, 2)}
    reader.close()
    return _Loaded(tries, sum(labels is not None for labels in whole[0].labels), seconds)


def _pair(clips: Sequence[Clip]) -> list[Clip]:
    """Two clips that represent the batch: a random clip and a stream, those with the most windows of the teacher."""
    busiest = sorted(clips, key=lambda clip: canonical_steps([clip], 0), reverse=True)
    others = [clip for clip in busiest if clip.stream != busiest[0].stream]
    return [busiest[0], (others or busiest[1:])[0]]


def _measure(
    module: Any, tries: Mapping[int, Sequence[ClipBatch]], device: str, progress: Progress
) -> tuple[float, float | None]:
    """Seconds and GB of a step with the whole batch; GB is None if the system does not report memory."""
    config: TrainConfig = module.config
    optimiser = module.configure_optimizers()["optimizer"]
    spent, memory = 0.0, dict[int, float]()
    for clips, batches in tries.items():
        progress(0, None, f"training on {clips} of {config.batch_size} clips")
        module.memory = None  # its batch size was another
        spent = sum(_fastest(module, optimiser, batch, device) for batch in batches) / len(batches)
        peak = _memory(device)
        if peak is not None:
            memory[clips] = peak
    least, most = min(tries), max(tries)
    if not memory:
        return spent * config.batch_size / most, None
    growth = (memory[most] - memory[least]) / max(most - least, 1)
    return spent * config.batch_size / most, memory[most] + growth * (config.batch_size - most)


def _fastest(module: Any, optimiser: torch.optim.Optimizer, batch: ClipBatch, device: str) -> float:
    """The shortest time of a few steps, in seconds."""
    spent: list[float] = []
    while len(spent) < TRIED and not (device == "cpu" and sum(spent) > ENOUGH_S):
        spent.append(_step(module, optimiser, batch, device))
    return min(spent)


def _step(module: Any, optimiser: torch.optim.Optimizer, batch: ClipBatch, device: str) -> float:
    began = time.perf_counter()
    with torch.autocast(device, torch.bfloat16, enabled=module.config.halves(device)):
        loss = module.training_step(batch, 0)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _memory(device: str) -> float | None:
    """Peak of the memory in use so far, in GB."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    peak = peak_memory_mb()
    return None if peak is None else peak / 1000
