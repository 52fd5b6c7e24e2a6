"""How long a detector takes for one window, from the file to the boxes, stage by stage."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fate.bench import harness
from fate.bench.harness import Measurement, now, time_call
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window, window_us
from fate.formats.opening import open_recording
from fate.formats.saving import write_events
from fate.inference.backends.bfloat16 import refuse_detector
from fate.inference.backends.choosing import run_in
from fate.inference.backends.sessions import BF16, check_backend
from fate.inference.streaming_step import PRECISIONS, StreamingStep, compile_for_streaming
from fate.models.detector import Detector, step_scale_of
from fate.models.zoo import build_model, model_named

#: Number of windows that are measured, and of windows before them that are not.
CALLS, FIRST_CALLS = 60, 5
#: How a detector can be run: from Python, as a streaming step, as one after ``torch.compile``, and in other runtimes.
WAYS = ("eager", "streaming", "compiled", "onnxruntime", "openvino", BF16)
#: Ways that need a GPU, and those that run on a CPU only.
GPU_WAYS, CPU_WAYS = ("compiled",), ("onnxruntime", "openvino", BF16)
DEFAULT_MODELS = ("fate-s", "s5-vit-b", "fate-e", "evrt-detr-b", "rvt-b", "get-b")


def bench_detect(
    events: Events,
    models: Sequence[str] = DEFAULT_MODELS,
    device: str = "cpu",
    hz: Sequence[float] = (20, 200),
    ways: Sequence[str] = ("eager", "streaming"),
    precision: str | None = None,
    progress: harness.Report | None = None,
) -> harness.BenchResult:
    """Measure detectors with fresh weights on one stream, window after window.

    ``ms`` is the median of each stage; p50 and p99 are from events on the device to boxes on the CPU, without decoding.

    Args:
        events: part of a recording; if it is short, its windows repeat.
        models: names of detectors.
        device: "cpu" or "cuda".
        hz: rates in Hz; a window lasts 1 / hz.
        ways: some of ``WAYS``; "compiled" needs a GPU, other runtimes a CPU. All but "eager" take turns, window by
            window, so that their ratio does not depend on what else the machine does.
        precision: of the streaming step: "float32", "tf32", "bfloat16" or "float16"; None for the device's default.
        progress: called with a line about the next measurement.
    """
    check_request(models, device, ways, precision)
    found = []
    for rate in hz:
        windows = harness.cut_windows(events, window_us(rate), CALLS)
        decode_ms = _decode_ms(events, [window for window, _ in windows])
        batches = [EventBatch.from_windows([pair]).to(device) for pair in windows]
        per_window = float(np.mean([batch.num_events for batch in batches]))
        calls = [batches[index % len(batches)] for index in range(CALLS + FIRST_CALLS)]
        for name in models:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # the same weights in every run, so that their graph is exported once
                detector = build_model(name, ("car", "pedestrian"), events.sensor).eval().to(device)
            if progress is not None:
                progress(f"{name}, {rate:g} Hz, {', '.join(ways)}")
            measured = {"eager": _run_eager(detector, calls, device)} if "eager" in ways else {}
            steps = {way: _prepare(detector, way, device, precision) for way in ways if way != "eager"}
            measured |= _run_in_turns(steps, calls, device)
            for way in ways:
                used, stages, total_s = measured[way]
                ms = {"decode": decode_ms, **{stage: float(np.median(times)) for stage, times in stages.items()}}
                p50, p99 = harness.quantiles_ms(total_s)
                about = {"model": name, "hz": rate, "way": way, "precision": used, "events": per_window}
                found.append(Measurement(**about, ms=ms, p50_ms=p50, p99_ms=p99))
    where = harness.describe_device(device) + ("" if device == "cuda" else f", {os.cpu_count()} cores")
    return harness.BenchResult(
        harness.describe_torch(where, events.sensor, "one stream"),
        {"device": where, "threads": torch.get_num_threads(), "sensor": tuple(events.sensor)},
        "model | Hz | run | precision | events | decode | encode | model | post | p50 ms | p99 ms | of 1/f",
        "{model} | {hz:g} | {way} | {precision} | {events:.0f} | {ms[decode]:.2f} | {ms[encode]:.2f} | {ms[model]:.2f}"
        " | {ms[post]:.2f} | {p50_ms:.2f} | {p99_ms:.2f} | {share:.0f} %",
        found,
        lambda each: {"share": each.p50_ms * each.hz / 10},
    )


def check_request(models: Sequence[str], device: str, ways: Sequence[str], precision: str | None) -> None:
    """Refuse what cannot be measured; takes the arguments of :func:`bench_detect` of the same names."""
    if not ways:
        raise FateError(f"no way to run was given; choose among {', '.join(WAYS)}")
    for name in ways:
        if name not in WAYS or name in (CPU_WAYS if device == "cuda" else GPU_WAYS):
            possible = [way for way in WAYS if way not in (CPU_WAYS if device == "cuda" else GPU_WAYS)]
            raise FateError(f"{name!r} was asked for on {device}; choose among {', '.join(possible)}")
    for name in ways if precision is not None else ():
        precisions = PRECISIONS if device == "cuda" else ("bfloat16" if name == BF16 else "float32",)
        if precision not in precisions:
            expected = " or ".join(precisions)
            raise FateError(f"precision {precision!r} was given for {device} and {name}; expected {expected}")
    for name in set(ways) & set(CPU_WAYS):
        check_backend(name)
    harness.check_device(device)
    for name in models:
        model_named(name)
        if BF16 in ways:
            with torch.device("meta"):
                refuse_detector(build_model(name, ("car",), (240, 304)), name)


def _decode_ms(events: Events, windows: Sequence[Window]) -> float:
    """Return the median time to read one window from an EVT3 file, window after window."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drive.raw"
        write_events(path, events)
        with open_recording(path, cache=False) as recording:
            recording.read(windows[0].start_us, windows[0].end_us)
            times = [time_call(partial(recording.read, window.start_us, window.end_us)) for window in windows]
    return 1000 * float(np.median(times))


#: Precision, milliseconds by stage, seconds of whole windows.
_Measured = tuple[str, dict[str, list[float]], list[float]]


def _run_eager(detector: Detector, batches: Sequence[EventBatch], device: str) -> _Measured:
    """Measure the stages one after the other, called from Python."""
    stages: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
    state = None
    with torch.inference_mode():
        for batch in batches:
            times = [now(device)]
            images = detector.encoder(batch)
            times.append(now(device))
            outputs, state = detector(images, state, step_scale=step_scale_of(batch))
            times.append(now(device))
            detector.detections(outputs, confidence=0.01)
            times.append(now(device))
            for stage, seconds in zip(stages, np.diff(times), strict=True):
                stages[stage].append(1000 * seconds)
    stages = {stage: times[FIRST_CALLS:] for stage, times in stages.items()}
    return "float32", stages, [sum(parts) / 1000 for parts in zip(*stages.values(), strict=True)]


def _prepare(detector: Detector, way: str, device: str, precision: str | None) -> StreamingStep:
    """The streaming step of a way."""
    model = run_in(detector, way) if way in CPU_WAYS else detector  # type: ignore[arg-type]
    return compile_for_streaming(model, device, precision=precision, compiler=way == "compiled")  # type: ignore[arg-type]


def _run_in_turns(
    steps: Mapping[str, StreamingStep], batches: Sequence[EventBatch], device: str
) -> dict[str, _Measured]:
    """Measure streaming steps. On a GPU a step is one graph, and it measures its encoder in a second one."""
    total_s: dict[str, list[float]] = {way: [] for way in steps}
    for batch in batches:
        for way, step in steps.items():
            total_s[way].append(time_call(partial(step, batch), device))
    return {
        way: (step.precision, step.stages(list(batches[FIRST_CALLS:])), total_s[way][FIRST_CALLS:])
        for way, step in steps.items()
    }
