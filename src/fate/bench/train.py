"""How fast detectors train: windows per second of whole steps, and the share of time spent waiting for data."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

import torch

from fate.bench.harness import BenchResult, Measurement, Report, now
from fate.errors import FateError
from fate.training.config import make_config
from fate.training.loop import TrainingParts, build, need_lightning

#: Steps before the measurement starts; compiling takes some of them.
WARMUP = 6
#: Least seconds before the measurement on a GPU: cuDNN tunes itself for every new batch size of a head.
WARMUP_S = 8.0


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
) -> BenchResult:
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
    machine = f"{name}, torch {torch.__version__}"
    return BenchResult(
        f"{machine}; {dataset}",
        {"device": machine, "dataset": dataset},
        "model | clip | batch | run | events | precision | windows / s | waiting for data | memory GB | labelled",
        "{model} | {steps} | {batch} | {way} | {events} | {precision} | {speed} | {waiting_for_data:.1%} | "
        "{memory_gb:.1f} | {labelled:.0%}",
        found,
        lambda each: {"speed": f"{each.windows_per_s:.{0 if each.windows_per_s >= 10 else 1}f}"},
        missing="–",
    )


def _measure(parts: TrainingParts, seconds: float) -> Measurement:
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
        module.step_alone(batch, optimiser)
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
    return Measurement(
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
