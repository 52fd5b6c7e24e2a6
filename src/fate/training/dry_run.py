"""A dry run: build everything, check the data, and measure a training step on one or two batches.

A GPU tries small batches to find settings that fit in its memory, and then a whole batch. On a CPU a whole batch can
take minutes, so time and memory are extrapolated from one and two clips.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple, get_args

import torch

from fate.data.clips import Clip, Grid, canonical_steps
from fate.data.dataset import DataFaults, data_faults
from fate.data.loading import ClipBatch
from fate.data.resident import BYTES_PER_EVENT
from fate.errors import FateError
from fate.processes import main_memory_mb, peak_memory_mb
from fate.progress import Progress, ignore
from fate.text import duration, plural
from fate.threads import limit_threads
from fate.training.config import Checkpointing, TrainConfig
from fate.training.loop import TrainingParts, build, need_lightning

#: Steps tried with each batch: the first warms up.
TRIED = 3
#: The share of a GPU's memory that a step may use; fragments and graphs of other shapes need the rest.
USABLE = 0.93
#: On a CPU no further step is tried after this time, in seconds.
ENOUGH_S = 4.0


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run."""

    parts: TrainingParts  #: with settings that fit in memory
    given: TrainConfig  #: the settings that were given
    faults: DataFaults
    labelled_windows: int  #: of the first batch
    tried: int  #: clips that a step was tried with
    load_s: float  #: time to load a batch, in one process
    step_s: float  #: as it would be with all clips, like memory
    window_s: float  #: time to detect in one window, in validation
    memory_gb: float | None  #: None where the system does not tell it
    limit_gb: float | None = None  #: memory that a step may use; None where the system does not tell it
    largest: int | None = None  #: most clips in a batch that fit; None if that is unknown

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
        loading, load_s = f"{self.load_s:.2f} s to load a batch in one process ({data.workers} load)", self.load_s
        waiting = load_s * run.accumulate / max(data.workers, 1)
        if parts.resident:
            loading, waiting = "all events on the GPU", 0.0
        elif parts.compact:
            loading, waiting = f"{load_s:.2f} s to load a batch from compact files", load_s * run.accumulate
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
            f"{self.step_s:.2f} s a step on {parts.device}, {loading}: about"
            f" {duration(config.steps * max(self.step_s, waiting))} in all",
            f"{plural(self.validations, 'validation')} of {plural(self.validation_windows, 'window')},"
            f" {1000 * self.window_s:.1f} ms each: about {duration(self.validation_s)} more",
        ]
        if self.memory_gb is not None:
            lines.append(f"{self.memory_gb:.1f} GB of {'GPU' if parts.device == 'cuda' else 'main'} memory")
        if self.largest is not None:
            lines.append(
                f"the largest batch that fits in {self.limit_gb:.0f} GB has about {plural(self.largest, 'clip')}"
                " (data.random + data.streams)"
            )
        if changes := changed_settings(self.given, config):
            lines.append(f"the given settings do not fit in memory; these do, and were tried: {changes}")
        if self.tried != size:
            reason = "to be quick" if parts.device == "cpu" else "the share of one process"
            tried = f"{self.tried} of the {size} clips of a batch were tried, {reason}"
            lines.append(f"time and memory are estimates: {tried}")
        return [*lines, *(f"dataset: {fault}" for fault in self.faults.shown)]


def dry_run(config: TrainConfig, progress: Progress = ignore, *, allow_missing: bool = False) -> DryRun:
    """Build everything, train on one or two batches, and predict time and memory; ``progress`` takes texts.

    Incomplete data is refused first, unless ``allow_missing`` is True.
    """
    need_lightning()
    parts = build(config)
    faults = data_faults(parts.dataset, parts.validation)
    if not allow_missing and faults.missing:
        faults.tell(lambda fault: progress(0, None, fault))
        faults.refuse(allow_missing)
    with limit_threads(parts.device):
        return _try(config, parts, faults, progress)


def _try(given: TrainConfig, parts: TrainingParts, faults: DataFaults, progress: Progress) -> DryRun:
    """Train on one or two batches with the ``given`` settings, or with others that fit in memory."""
    config, processes = given, given.run.devices * given.run.nodes
    size, limit = config.batch_size, memory_limit_gb(parts.device)
    progress(0, None, f"loading a batch of {size} clips of {config.data.steps} windows")
    counts: Sequence[int] = (1, 2)
    if parts.device == "cuda":
        counts = (max(size // 8, 1), min(max(size // 4, 2), size)) if processes == 1 else (size // processes,)
    tries = load_tries(parts, counts)
    if limit is not None and parts.resident:
        limit -= sum(recording.num_events for recording in parts.dataset.labelled) * BYTES_PER_EVENT / 1e9
    largest = None
    if parts.device == "cuda" and processes == 1:
        found, parts, tries, largest = _try_gpu(parts, tries, (counts[0], counts[1]), limit, progress)
    elif parts.device == "cuda":
        progress(0, None, f"training on {size // processes} of {size} clips, the share of one process")
        try:
            found = measure_steps(parts, tries.batches[size // processes])
        except torch.OutOfMemoryError:
            raise FateError(
                f"{size // processes} clips, the share of one process, do not fit in the memory of a GPU; save memory"
                " with run.activation_checkpointing=all, or with smaller batches and run.accumulate=2"
            ) from None
    else:
        measured: dict[int, float] = {}
        for count in sorted({min(count, size) for count in counts}):
            progress(0, None, f"training on {count} of {size} clips")
            found = measure_steps(parts, tries.batches[count])
            if found.memory_gb is not None:
                measured[count] = found.memory_gb
        memory = predict_memory(measured, size) if measured else None
        found = Measured(count, found.step_s * size / count, found.window_s, memory)
        grows = len(measured) > 1 and measured[max(measured)] > measured[min(measured)]
        largest = largest_batch(measured, limit) if grows and limit is not None else None
    return DryRun(
        parts=parts,
        given=given,
        faults=faults,
        labelled_windows=tries.labelled_windows,
        tried=found.clips,
        load_s=tries.load_s,
        step_s=found.step_s * parts.config.run.accumulate,
        window_s=found.window_s,
        memory_gb=found.memory_gb,
        limit_gb=limit,
        largest=largest,
    )


def _try_gpu(
    parts: TrainingParts, tries: Tries, counts: tuple[int, int], limit: float | None, progress: Progress
) -> tuple[Measured, TrainingParts, Tries, int | None]:
    """Find settings that fit on the GPU, and measure a whole batch with them."""
    size = parts.config.batch_size

    def memory_of(choice: Checkpointing, count: int) -> float:
        progress(0, None, f"training on {count} of {size} clips, activation checkpointing: {choice}")
        run = parts.config.run.model_copy(update={"activation_checkpointing": choice})
        try:
            found = measure_steps(
                replace(parts, config=parts.config.model_copy(update={"run": run})), tries.batches[count]
            )
        except torch.OutOfMemoryError:
            return math.inf
        return found.memory_gb or 0.0

    limit = math.inf if limit is None else limit
    while True:
        fit = find_fit(parts.config, memory_of, (min(counts), max(counts)), limit)
        fitting = build(fit.config)
        progress(0, None, f"training on a whole batch of {fit.config.batch_size} clips")
        whole = load_tries(fitting, (fit.config.batch_size,))
        try:
            return measure_steps(fitting, whole.batches[fit.config.batch_size]), fitting, whole, fit.largest
        except torch.OutOfMemoryError:  # the prediction was too low
            limit *= 0.9


class Measured(NamedTuple):
    """Time and memory of training steps."""

    clips: int
    step_s: float
    window_s: float  #: time to detect in one window, in validation
    memory_gb: float | None


def measure_steps(parts: TrainingParts, batches: Sequence[ClipBatch]) -> Measured:
    """Train on each of the batches a few times, from a fresh training module; the detector is trained in place."""
    from fate.training.module import TrainingModule  # noqa: PLC0415  (Lightning takes seconds to load)

    on_gpu = parts.device == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    module = TrainingModule(parts.detector, parts.strategy, parts.config)
    module.prepare(parts.device)
    optimiser = module.configure_optimizers()["optimizer"]
    fastest = []
    for batch in batches:
        spent: list[float] = []
        while len(spent) < TRIED and not (not on_gpu and sum(spent) > ENOUGH_S):
            spent.append(time_step(module, optimiser, batch))
        fastest.append(min(spent))
    memory = peak_gb(parts.device)
    return Measured(len(batches[0].clips), sum(fastest) / len(fastest), time_window(module, batches[0]), memory)


class Tries(NamedTuple):
    """Batches to measure."""

    batches: Mapping[int, Sequence[ClipBatch]]  #: by their number of clips
    labelled_windows: int  #: of the first whole batch
    load_s: float  #: time to load a whole batch in one process


def load_tries(parts: TrainingParts, counts: Sequence[int]) -> Tries:
    """Load a batch of the first epoch and, with a curriculum, one of the last epoch, with these numbers of clips.

    A curriculum begins at 20 Hz alone, where the teacher, which costs time and memory, is not used yet. A part of a
    batch has the clips with the most windows of the teacher, random ones and streams in turn.
    """
    plan, size = parts.plan, parts.config.batch_size
    last = parts.config.steps * parts.config.run.accumulate - 1
    late = replace(plan, timing=lambda _, rate_quantile, length: plan.timing(last, rate_quantile, length))
    planned = [next(each.batches()) for each in ([plan, late] if len(parts.config.rates) > 1 else [plan])]
    reader = parts.reader(resident=parts.compact)
    complete = parts.events_on_device().complete if parts.compact else _same
    began = time.perf_counter()
    whole = [complete(reader.batch(clips)) for clips in planned]
    seconds = (time.perf_counter() - began) / len(whole)
    batches: dict[int, list[ClipBatch]] = {size: whole}
    for count in counts:
        if count < size:
            batches[count] = [complete(reader.batch(_busiest(clips, count))) for clips in planned]
    reader.close()
    return Tries(batches, sum(labels is not None for labels in whole[0].labels), seconds)


def _same(batch: ClipBatch) -> ClipBatch:
    return batch


def _busiest(clips: Sequence[Clip], count: int) -> list[Clip]:
    """The clips with the most windows of the teacher, random clips and streams in turn."""
    ordered = sorted(clips, key=lambda clip: canonical_steps([clip], 0), reverse=True)
    same = [clip for clip in ordered if clip.stream == ordered[0].stream]
    others = [clip for clip in ordered if clip.stream != ordered[0].stream]
    return [clip for pair in zip_longest(same, others) for clip in pair if clip is not None][:count]


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
    if device == "cuda":  # reserved memory includes that of CUDA graphs, which nothing else can use
        return torch.cuda.max_memory_reserved() / 1e9
    peak = peak_memory_mb()
    return None if peak is None else peak / 1000


def memory_limit_gb(device: str) -> float | None:
    """Memory in GB that a training step may use; None if the system does not report it."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        return USABLE * (free + torch.cuda.memory_reserved()) / 1e9
    size = main_memory_mb()
    return None if size is None else size / 1000


# ---- settings that fit in memory ------------------------------------------------------------------------------------
#
# The memory of a training step grows linearly with the number of clips in a batch, so two small batches predict all
# others. If the batch does not fit, more blocks run again in the backward pass (activation checkpointing), which
# changes no result. If it still does not fit, it becomes several smaller batches whose gradients are accumulated. The
# optimiser step then sees as many clips as before, but BatchNorm sees fewer at a time.


#: Peak memory in GB of a training step with this activation checkpointing and number of clips; infinite if it failed.
MemoryOf = Callable[[Checkpointing, int], float]


class Fit(NamedTuple):
    """Settings that fit in memory."""

    config: TrainConfig
    largest: int  #: most clips in a batch that fit with the same activation checkpointing


def predict_memory(measured: Mapping[int, float], clips: int) -> float:
    """Peak memory in GB for a number of clips, from measurements in GB by number of clips."""
    least, most = min(measured), max(measured)
    growth = (measured[most] - measured[least]) / max(most - least, 1)
    return measured[most] + growth * (clips - most)


def largest_batch(measured: Mapping[int, float], limit_gb: float) -> int:
    """The largest number of clips that fits; 0 if none does."""
    least, most = min(measured), max(measured)
    growth = (measured[most] - measured[least]) / max(most - least, 1)
    if not math.isfinite(measured[most]):
        return least if measured[least] <= limit_gb else 0
    if growth <= 0:
        return most if measured[most] <= limit_gb else 0
    return max(math.floor(most + (limit_gb - measured[most]) / growth), 0)


def find_fit(config: TrainConfig, memory_of: MemoryOf, counts: tuple[int, int], limit_gb: float) -> Fit:
    """Find settings with which a configuration fits in memory; they are the given ones if these fit.

    Args:
        config: the given settings.
        memory_of: measures the peak memory of a training step.
        counts: numbers of clips to measure, the smaller first.
        limit_gb: memory that a step may use.
    """
    choices: tuple[Checkpointing, ...] = get_args(Checkpointing)
    largest = 0
    for choice in choices[choices.index(config.run.activation_checkpointing) :]:
        largest = largest_batch({count: memory_of(choice, count) for count in counts}, limit_gb)
        if largest >= config.batch_size:
            return Fit(_changed(config, choice, 1), largest)
    random, streams = config.data.random, config.data.streams
    for parts in range(2, math.gcd(random, streams) + 1):
        if random % parts == streams % parts == 0 and config.batch_size // parts <= largest:
            return Fit(_changed(config, "all", parts), largest)
    raise FateError(
        f"a batch of {random} random clips and {streams} streams of {config.data.steps} windows does not fit in"
        f" {limit_gb:.0f} GB, and no equal parts of it do (about {largest} clips would); use shorter clips"
        " (data.steps), or numbers of clips with more common divisors (data.random and data.streams)"
    )


def _changed(config: TrainConfig, choice: Checkpointing, parts: int) -> TrainConfig:
    """The same optimiser step with other activation checkpointing, in batches ``parts`` times smaller."""
    data, run = config.data, config.run
    smaller = {"random": data.random // parts, "streams": data.streams // parts}
    other = {"activation_checkpointing": choice, "accumulate": run.accumulate * parts}
    return config.model_copy(update={"data": data.model_copy(update=smaller), "run": run.model_copy(update=other)})


def changed_settings(given: TrainConfig, found: TrainConfig) -> str:
    """The settings of ``found`` that differ, as ``fate train`` takes them."""
    pairs = [(section, getattr(given, section), getattr(found, section)) for section in ("data", "run")]
    return " ".join(
        f"{section}.{name}={getattr(after, name)}"
        for section, before, after in pairs
        for name in type(before).model_fields
        if getattr(before, name) != getattr(after, name)
    )
