"""How long a detector takes for one window, from the file to the boxes, stage by stage."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window, window_us
from fate.formats.opening import open_recording
from fate.formats.saving import write_events
from fate.inference.streaming_step import PRECISIONS, compile_for_streaming
from fate.models.detector import Detector, step_scale_of
from fate.models.zoo import build_model, model_named

#: Windows that are measured, after some that are not.
CALLS, FIRST_CALLS = 60, 5
#: How a detector can be run: as it is, as a streaming step, and that after ``torch.compile``.
WAYS = ("eager", "streaming", "compiled")
DEFAULT_MODELS = ("fate-s", "s5-vit-b", "fate-e", "evrt-detr-b", "rvt-b", "get-b")
STAGES = ("decode", "encode", "model", "post")


@dataclass(frozen=True)
class DetectMeasurement:
    """One detector, run one way, on windows of one length."""

    model: str
    hz: float
    way: str
    precision: str
    events: float  #: in a window, on average
    ms: dict[str, float]  #: median of each of ``STAGES``
    p50_ms: float  #: from events on the device to boxes on the CPU; decoding is not in it
    p99_ms: float


@dataclass(frozen=True)
class DetectBench:
    """All measurements of one run."""

    device: str
    threads: int
    sensor: tuple[int, int]
    measurements: list[DetectMeasurement]

    def to_dict(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def bench_detect(
    events: Events,
    models: Sequence[str] = DEFAULT_MODELS,
    device: str = "cpu",
    hz: Sequence[float] = (20, 200),
    ways: Sequence[str] = ("eager", "streaming"),
    precision: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> DetectBench:
    """Time detectors with fresh weights, one stream, window after window.

    Args:
        events: a piece of a recording; its windows repeat if it is short.
        models: names of the zoo.
        device: "cpu" or "cuda".
        hz: rates; a window lasts 1 / hz.
        ways: of ``WAYS``; "compiled" needs a GPU.
        precision: as of ``compile_for_streaming``.
        progress: is told what is measured next.
    """
    check_request(models, device, ways, precision)
    found = []
    for rate in hz:
        windows = _windows(events, rate)
        decode_ms = _decoding(events, [window for window, _ in windows])
        batches = [EventBatch.from_windows([pair]).to(device) for pair in windows]
        for name in models:
            detector = build_model(name, ("car", "pedestrian"), events.sensor).eval().to(device)
            for way in ways:
                if progress is not None:
                    progress(f"{name}, {rate:g} Hz, {way}")
                run = _eager if way == "eager" else _streaming
                chosen, stages, total = run(detector, batches, device, precision, way == "compiled")
                per_window = float(np.mean([batch.num_events for batch in batches]))
                ms = {"decode": decode_ms, **{stage: float(np.median(times)) for stage, times in stages.items()}}
                p50, p99 = (float(q) for q in np.percentile(total, (50, 99)))
                found.append(DetectMeasurement(name, rate, way, chosen, per_window, ms, p50, p99))
    where = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    return DetectBench(where, torch.get_num_threads(), (events.sensor.height, events.sensor.width), found)


def check_request(models: Sequence[str], device: str, ways: Sequence[str], precision: str | None) -> None:
    """Refuse what cannot be measured, before any work."""
    if not ways:
        raise FateError(f"no way to run was given; choose among {', '.join(WAYS)}")
    for name in ways:
        if name not in WAYS or (name == "compiled" and device != "cuda"):
            raise FateError(f"{name!r} was asked for on {device}; choose among {', '.join(WAYS)} (the last on cuda)")
    possible = PRECISIONS if device == "cuda" else ("float32",)
    if precision is not None and precision not in possible:
        raise FateError(f"precision {precision!r} was given for {device}; expected one of {', '.join(possible)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise FateError("device cuda was asked for, but torch sees no CUDA GPU; give cpu")
    for name in models:
        model_named(name)


def detect_table(result: DetectBench) -> str:
    """The measurements as a Markdown table."""
    height, width = result.sensor
    lines = [
        f"{result.device}, {result.threads} threads, torch {torch.__version__}; {width}×{height}, one stream",
        "",
        "| model | Hz | run | precision | events | decode | encode | model | post | p50 ms | p99 ms | of 1/f |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for m in result.measurements:
        stages = " | ".join(f"{m.ms[stage]:.2f}" for stage in STAGES)
        lines.append(
            f"| {m.model} | {m.hz:g} | {m.way} | {m.precision} | {m.events:.0f} | {stages} | {m.p50_ms:.2f} |"
            f" {m.p99_ms:.2f} | {m.p50_ms * m.hz / 10:.0f} % |"
        )
    return "\n".join(lines)


Measured = tuple[str, dict[str, list[float]], list[float]]


def _windows(events: Events, hz: float) -> list[tuple[Window, Events]]:
    """As many windows as are measured, or as there are."""
    if not len(events):
        raise FateError("no events were given; a measurement needs a piece of a recording")
    start, length = int(events.t_us[0]), window_us(hz)
    count = max(1, min(CALLS, (int(events.t_us[-1]) + 1 - start) // length))
    spans = [Window(start + k * length, start + (k + 1) * length) for k in range(count)]
    return [(window, events.between(window.start_us, window.end_us)) for window in spans]


def _decoding(events: Events, windows: Sequence[Window]) -> float:
    """ms to read a window's events out of a file in a camera's format (EVT3), one window after another."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drive.raw"
        write_events(path, events)
        with open_recording(path, cache=False) as recording:
            recording.read(windows[0].start_us, windows[0].end_us)
            times = [_ms(lambda w=window: recording.read(w.start_us, w.end_us)) for window in windows]  # type: ignore[misc]
    return float(np.median(times))


def _eager(detector: Detector, batches: Sequence[EventBatch], device: str, _precision: str | None, _: bool) -> Measured:
    """Called from Python, stage after stage."""
    stages: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
    state = None
    with torch.inference_mode():
        for batch in _repeated(batches):
            moments = [_now(device)]
            images = detector.encoder(batch)
            moments.append(_now(device))
            outputs, state = detector(images, state, step_scale=step_scale_of(batch))
            moments.append(_now(device))
            detector.detections(outputs, confidence=0.01)
            moments.append(_now(device))
            for stage, span in zip(stages, np.diff(moments), strict=True):
                stages[stage].append(1e3 * span)
    stages = {stage: times[FIRST_CALLS:] for stage, times in stages.items()}
    return "float32", stages, [sum(parts) for parts in zip(*stages.values(), strict=True)]


def _streaming(
    detector: Detector, batches: Sequence[EventBatch], device: str, precision: str | None, compiler: bool
) -> Measured:
    """As a streaming step; on a GPU the stages are in one graph, and the encoder's part is measured in its own."""
    step = compile_for_streaming(detector, device, precision=precision, compiler=compiler)  # type: ignore[arg-type]
    total = [_ms(lambda b=batch: step(b), device) for batch in _repeated(batches)][FIRST_CALLS:]  # type: ignore[misc]
    stages = step.stages(list(_repeated(batches))[FIRST_CALLS:])
    return step.precision, stages, total


def _repeated(batches: Sequence[EventBatch]) -> Iterable[EventBatch]:
    return (batches[number % len(batches)] for number in range(CALLS + FIRST_CALLS))


def _ms(work: Callable[[], object], device: str = "cpu") -> float:
    start = _now(device)
    work()
    return 1e3 * (_now(device) - start)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
