"""A dry run: build everything, check the data, and measure a training step on one or two batches.

A GPU tries whole batches. On a CPU these can take minutes, so it tries one clip, then two, and extrapolates time and
memory to the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fate.data.clips import Grid, canonical_steps
from fate.data.dataset import DataFaults, data_faults
from fate.data.loading import ClipBatch
from fate.processes import peak_memory_mb
from fate.progress import Progress, ignore
from fate.text import duration, plural
from fate.training.config import TrainConfig
from fate.training.loop import TrainingParts, build, need_lightning

#: Steps tried with each batch: the first warms up.
TRIED = 3
#: On a CPU no further step is tried after this time, in seconds.
ENOUGH_S = 4.0


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run."""

    parts: TrainingParts
    faults: DataFaults
    labelled_windows: int  #: of the first batch
    tried: int  #: clips that a step was tried with
    load_s: float  #: of a batch, in one process
    step_s: float  #: as it would be with all clips, like memory
    window_s: float  #: time to detect in one window, in validation
    memory_gb: float | None  #: None where the system does not tell it

    @property
    def validations(self) -> int:
        """How often the run validates."""
        run = self.parts.config.run
        return -(-run.epochs // run.validate_every)

    @property
    def validation_windows(self) -> int:
        """Windows of one validation, at all its rates."""
        rates, recordings = self.parts.config.run.validate_hz, self.parts.validation.labelled
        return sum(Grid.of(each, hz).count(each.end_us) for each in recordings for hz in rates)

    @property
    def validation_s(self) -> float:
        """Seconds of all validations; all processes share the work."""
        run = self.parts.config.run
        return self.validations * self.validation_windows * self.window_s / (run.devices * run.nodes)

    def lines(self) -> list[str]:
        """A human-readable summary."""
        parts, config = self.parts, self.parts.config
        run, data, size = config.run, config.data, config.batch_size
        weights = list(parts.detector.parameters())
        total, trained = (
            sum(each.numel() for each in weights if each.requires_grad or every) for every in (True, False)
        )
        labels = [recording.labels for recording in parts.dataset.labelled]
        waiting = self.load_s * run.accumulate / max(data.workers, 1)
        lines = [
            f"{config.model.name}: {total / 1e6:.2f} M parameters, {trained / 1e6:.2f} M of them trained",
            f"{len(labels)} recordings to learn from ({sum(len(each.labelled_us) for each in labels)} labelled times,"
            f" {sum(map(len, labels))} boxes), {len(parts.validation.labelled)} to validate on",
            f"strategy {config.strategy.name} at {', '.join(f'{hz:g}' for hz in config.rates)} Hz",
            f"{plural(run.epochs, 'epoch')} of {plural(run.epoch_steps, 'step')}; a step sees"
            f" {size * data.steps * run.accumulate} windows"
            f" ({data.random} random clips and {data.streams} streams of {data.steps},"
            f" {plural(run.accumulate, 'batch', 'batches')}),"
            f" {self.labelled_windows} labelled in the first batch",
            f"{self.step_s:.2f} s a step on {parts.device}, {self.load_s:.2f} s to load a batch in one process"
            f" ({data.workers} load): about {duration(config.steps * max(self.step_s, waiting))} in all",
            f"{plural(self.validations, 'validation')} of {plural(self.validation_windows, 'window')},"
            f" {1000 * self.window_s:.1f} ms each: about {duration(self.validation_s)} more",
        ]
        if self.memory_gb is not None:
            lines.append(f"{self.memory_gb:.1f} GB of {'GPU' if parts.device == 'cuda' else 'main'} memory")
        if self.tried != size:
            tried = f"{self.tried} of the {size} clips of a batch were tried, to be quick"
            lines.append(f"time and memory are estimates: {tried}")
        return [*lines, *(f"dataset: {fault}" for fault in self.faults.shown)]


def dry_run(config: TrainConfig, progress: Progress = ignore) -> DryRun:
    """Build everything, train on one or two batches, and predict time and memory; ``progress`` takes texts."""
    need_lightning()
    from fate.training.module import TrainingModule  # noqa: PLC0415  (Lightning takes seconds to load)

    parts = build(config)
    size = config.batch_size
    progress(0, None, f"loading a batch of {size} clips of {config.data.steps} windows")
    tries, labelled_windows, load_s = load_tries(parts)
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare(parts.device)
    optimiser = module.configure_optimizers()["optimizer"]
    step_s, memory = 0.0, dict[int, float]()
    for clips, batches in tries.items():
        progress(0, None, f"training on {clips} of {size} clips")
        module.memory = None  # its batch size was another
        fastest = []
        for batch in batches:
            spent: list[float] = []
            while len(spent) < TRIED and not (parts.device == "cpu" and sum(spent) > ENOUGH_S):
                spent.append(time_step(module, optimiser, batch))
            fastest.append(min(spent))
        step_s = sum(fastest) / len(fastest)
        peak = peak_gb(parts.device)
        if peak is not None:
            memory[clips] = peak
    least, most = min(tries), max(tries)
    growth = (memory[most] - memory[least]) / max(most - least, 1) if memory else 0.0
    return DryRun(
        parts=parts,
        faults=data_faults(parts.dataset, parts.validation),
        labelled_windows=labelled_windows,
        tried=most,
        load_s=load_s,
        step_s=step_s * size / most * config.run.accumulate,
        window_s=time_window(module, tries[most][0]),
        memory_gb=memory[most] + growth * (size - most) if memory else None,
    )


def load_tries(parts: TrainingParts) -> tuple[Mapping[int, Sequence[ClipBatch]], int, float]:
    """Load a batch of the first epoch and, with a curriculum, one of the last epoch; for a CPU only one and two clips.

    A curriculum begins at 20 Hz alone, where the teacher, which costs time and memory, is not used yet. Returns the
    batches by their number of clips, in rising order; the labelled windows of the first whole batch; and the seconds to
    load a whole batch.
    """
    plan, size = parts.plan, parts.config.batch_size
    last = parts.config.steps * parts.config.run.accumulate - 1
    late = replace(plan, timing=lambda _, rate_quantile, length: plan.timing(last, rate_quantile, length))
    planned = [next(each.batches()) for each in ([plan, late] if len(parts.config.rates) > 1 else [plan])]
    reader = parts.reader()
    began = time.perf_counter()
    whole = [reader.batch(clips) for clips in planned]
    seconds = (time.perf_counter() - began) / len(whole)
    tries: dict[int, list[ClipBatch]] = {size: whole}
    if parts.device == "cpu" and size > 2:
        tries = {1: [], 2: []}
        for clips in planned:  # a random clip and a stream, those with the most windows of the teacher
            busiest = sorted(clips, key=lambda clip: canonical_steps([clip], 0), reverse=True)
            others = [clip for clip in busiest if clip.stream != busiest[0].stream] or busiest[1:]
            for count in tries:
                tries[count].append(reader.batch([busiest[0], others[0]][:count]))
    reader.close()
    return tries, sum(labels is not None for labels in whole[0].labels), seconds


def time_step(module: Any, optimiser: torch.optim.Optimizer, batch: ClipBatch) -> float:
    """The time of one step in seconds."""
    began = time.perf_counter()
    module.step_alone(batch, optimiser)
    if module.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def time_window(module: Any, batch: ClipBatch) -> float:
    """The time of one window in validation, in seconds: the teacher detects, many windows at the same time."""
    detector = module.teacher.eval()
    inputs = batch.inputs(module.device)
    spent = []
    with torch.inference_mode():
        for _ in range(2):
            began = time.perf_counter()
            detector(inputs, None, batch.steps)
            if module.device.type == "cuda":
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - began)
    return min(spent) / len(batch.labels)


def peak_gb(device: str) -> float | None:
    """Peak of the memory in use so far, in GB; None if the system does not report it."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    peak = peak_memory_mb()
    return None if peak is None else peak / 1000
