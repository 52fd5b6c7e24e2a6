"""How fast detectors train: windows per second of whole steps, and the share of time spent waiting for data."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from fate.bench.harness import BenchResult, Report, now
from fate.errors import FateError
from fate.training.config import make_config
from fate.training.loop import Parts, build, need_lightning

#: Steps before the measurement starts; compiling takes some of them.
WARMUP = 6
#: Least seconds before the measurement on a GPU: cuDNN tunes itself for every new batch size of a head.
WARMUP_S = 8.0


@dataclass(frozen=True)
class TrainMeasurement:
    """One model at one length of clips."""

    model: str
    steps: int  #: windows in a clip, T
    batch: int  #: clips in a batch, B
    way: str  #: how backbone and neck run: "eager", "graphs" or "compiled"
    events: str  #: "from disk" or "on the GPU"
    precision: str
    workers: int
    batches: int
    windows_per_s: float
    waiting_for_data: float  #: share of the time
    labelled: float  #: share of the windows
    events_per_window: float
    memory_gb: float | None  #: peak on the GPU; None on a CPU


@dataclass(frozen=True)
class TrainBench(BenchResult):
    """Speed of training."""

    COLUMNS = ("model", "clip", "batch", "run", "events", "precision", "windows / s", "waiting for data", "memory GB",
               "labelled")  # fmt: skip

    device: str
    dataset: str
    measurements: list[TrainMeasurement]

    def describe(self) -> str:
        return f"{self.device}; {self.dataset}"

    def rows(self) -> Iterable[Sequence[str]]:
        for m in self.measurements:
            speed = f"{m.windows_per_s:.{0 if m.windows_per_s >= 10 else 1}f}"
            memory = "–" if m.memory_gb is None else f"{m.memory_gb:.1f}"
            yield (m.model, str(m.steps), str(m.batch), m.way, m.events, m.precision, speed,
                   f"{m.waiting_for_data:.1%}", memory, f"{m.labelled:.0%}")  # fmt: skip


def bench_train(
    dataset: str,
    models: Sequence[str] = ("fate-s-nano", "fate-s-tiny"),
    steps: Sequence[int] = (10, 21),
    batch: int = 16,
    *,
    device: str = "auto",
    precision: str = "auto",
    compiled: bool = False,
    plain: bool = False,
    workers: int = 4,
    augmentation: str = "rvt",
    strategy: str = "supervised",
    seconds: float = 10.0,
    progress: Report | None = None,
) -> TrainBench:
    """Train each model for some seconds on clips of each length; half of a batch are random clips, half streams.

    Args:
        dataset: folder or YAML file; its split "train" is used.
        models: names of detectors.
        steps: numbers of windows in a clip.
        batch: number of clips in a batch.
        device: "cpu", "cuda" or "auto".
        precision: "float32", "bf16", or "auto", which is bf16 on a GPU.
        compiled: compile backbone and neck with ``torch.compile``.
        plain: use no CUDA graphs and keep no events in GPU memory.
        workers: number of loading processes.
        augmentation: "paper", "rvt" or "none".
        strategy: a training strategy that needs no dense labels.
        seconds: length of each measurement.
        progress: called with a line about the next measurement.
    """
    if batch < 2 or batch % 2:
        raise FateError(f"batches of {batch} clips were asked for; expected an even number, half of them streams")
    found = []
    for model in models:
        for length in steps:
            if progress is not None:
                progress(f"{model}, clips of {length}")
            content = {
                "model": {"name": model},
                "data": {"path": dataset, "validate": "train", "steps": length, "random": batch // 2,
                         "streams": batch // 2, "workers": workers, "augmentation": augmentation,
                         **({"resident_gb": 0} if plain else {})},
                "strategy": {"name": strategy},
                "run": {"device": device, "precision": precision, "compile": compiled, "graphs": not plain},
            }  # fmt: skip
            parts = build(make_config(content))
            found.append(_measure(parts, seconds))
            del parts
            gc.collect()
    used = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if used == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return TrainBench(f"{name}, torch {torch.__version__}", dataset, found)


def _measure(parts: Parts, seconds: float) -> TrainMeasurement:
    need_lightning()
    from fate.training.module import TrainingModule  # noqa: PLC0415  (Lightning takes seconds to load)

    config, device = parts.config, parts.device
    module = TrainingModule(parts.detector, parts.strategy, config)
    module.prepare(device)
    optimiser = module.configure_optimizers()["optimizer"]
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    batches = iter(parts.batches())
    count = windows = labelled = events = 0
    waited = spent = 0.0
    warm, began = False, time.perf_counter()
    while not warm or count == 0 or spent < seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        with torch.autocast(device, torch.bfloat16, enabled=config.halves(device)):
            loss = module.training_step(batch, 0)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.student.parameters(), config.optimiser.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        module.follow(config.strategy.decay)
        count += 1
        windows += len(batch.labels)
        labelled += sum(each is not None for each in batch.labels)
        events += getattr(batch.events, "num_events", 0)
        spent = time.perf_counter() - began
        if not warm and count >= WARMUP and (not on_gpu or spent >= WARMUP_S):
            warm, count, windows, labelled, events, waited = True, 0, 0, 0, 0, 0.0
            began, spent = now(device), 0.0
        elif on_gpu and warm and spent >= seconds:
            spent = now(device) - began
    del batches
    way = "compiled" if config.run.compile else "graphs" if module.records else "eager"
    module.teardown("fit")
    return TrainMeasurement(
        model=config.model.name,
        steps=config.data.steps,
        batch=config.batch_size,
        way=way,
        events="on the GPU" if parts.resident else "from disk",
        precision="bf16" if config.halves(device) else "float32",
        workers=config.data.workers,
        batches=count,
        windows_per_s=windows / spent,
        waiting_for_data=waited / spent,
        labelled=labelled / windows,
        events_per_window=events / windows,
        memory_gb=torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None,
    )
