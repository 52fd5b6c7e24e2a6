"""How long encoders take on real event statistics, each beside its peers in the same run."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fate.bench.encode_memory import peak_in_process, peak_on_gpu
from fate.bench.encode_peers import ENCODERS, make_encoder
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window

#: A measurement takes at least this many calls, and goes on for about this many seconds.
CALLS, SECONDS = 5, 0.5


@dataclass(frozen=True)
class EncodeMeasurement:
    """One encoder on windows of one length."""

    encoder: str
    window_ms: float
    batch: int
    mode: str  #: "forward", "forward, graph" or "forward + backward"
    events: int  #: in the batch
    p50_ms: float | None = None
    p99_ms: float | None = None
    peak_mb: float | None = None  #: memory taken above what lay there before, its output included; see bench_memory.py
    note: str = ""  #: why it was not measured


@dataclass(frozen=True)
class EncodeBench:
    """All measurements of one run."""

    device: str
    threads: int
    sensor: tuple[int, int]
    events_per_s: float
    measurements: list[EncodeMeasurement]

    def to_dict(self) -> dict[str, Any]:
        """All numbers."""
        return asdict(self)


def bench_encode(
    events: Events,
    device: str = "cpu",
    windows_ms: Sequence[float] = (5, 10, 25, 50),
    batches: Sequence[int] = (1, 32),
    encoders: Sequence[str] = ENCODERS,
    progress: Callable[[str], None] | None = None,
) -> EncodeBench:
    """Time encoders on windows cut out of a recording.

    Args:
        events: a piece of a recording, at least as long as the longest window.
        device: "cpu" or "cuda".
        windows_ms: lengths of windows.
        batches: how many windows to a call; where the piece has fewer, they repeat.
        encoders: of ``ENCODERS``.
        progress: is told what is measured next.
    """
    unknown = [name for name in encoders if name not in ENCODERS]
    if unknown:
        raise FateError(f"there is no encoder {unknown[0]!r} to measure; choose among {', '.join(ENCODERS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise FateError("device cuda was asked for, but torch sees no CUDA GPU; give cpu")
    span_us = int(events.t_us[-1] - events.t_us[0]) if len(events) else 0
    if span_us < max(windows_ms) * 1000:
        raise FateError(
            f"the events span {span_us / 1000:g} ms; give at least the longest window, {max(windows_ms):g} ms"
        )
    found = []
    for window_ms in windows_ms:
        for batch_size in batches:
            batch = _batch(events, round(window_ms * 1000), batch_size).to(device)
            for name in encoders:
                if progress is not None:
                    progress(f"{name}, {window_ms:g} ms × {batch_size}")
                found += list(_measure(name, batch, window_ms))
    return EncodeBench(
        device=torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        threads=torch.get_num_threads(),
        sensor=events.sensor,
        events_per_s=len(events) / span_us * 1e6,
        measurements=found,
    )


def encode_table(result: EncodeBench) -> str:
    """The measurements as a Markdown table; ratios are against ours in the same mode."""
    ours = {(m.window_ms, m.batch, m.mode): m for m in result.measurements if m.encoder == "pillars"}
    height, width = result.sensor
    lines = [
        f"{result.device}, {result.threads} threads, torch {torch.__version__}; {width}×{height},"
        f" {result.events_per_s / 1e6:.2f} Mev/s",
        "",
        "| encoder | window ms | batch | events | what | p50 ms | p99 ms | peak MB | pillars are |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for m in result.measurements:
        start = f"| {m.encoder} | {m.window_ms:g} | {m.batch} | {m.events} | {m.mode} |"
        if m.p50_ms is None:
            lines.append(f"{start} {m.note} | | | |")
            continue
        own = ours.get((m.window_ms, m.batch, m.mode))
        ratio = f"{m.p50_ms / own.p50_ms:.1f} ×" if own and own.p50_ms and m is not own else ""
        peak = "" if m.peak_mb is None else f"{m.peak_mb:.0f}"
        lines.append(f"{start} {m.p50_ms:.3f} | {m.p99_ms:.3f} | {peak} | {ratio} |")
    return "\n".join(lines)


def _batch(events: Events, window_us: int, count: int) -> EventBatch:
    """Windows one after the other, from the start again when the events end; at most as many as fill the recording."""
    start, whole = int(events.t_us[0]), max((int(events.t_us[-1]) - int(events.t_us[0])) // window_us, 1)
    spans = [Window(start + n * window_us, start + (n + 1) * window_us) for n in range(whole)]
    busy = sorted(spans, key=lambda span: len(events.between(span.start_us, span.end_us)))
    middle = busy[len(busy) // 2 :] + busy[: len(busy) // 2]  # a single window is the median one
    chosen = [middle[n % len(middle)] for n in range(count)]
    return EventBatch.from_windows([(span, events.between(span.start_us, span.end_us)) for span in chosen])


def _measure(name: str, batch: EventBatch, window_ms: float) -> Iterator[EncodeMeasurement]:
    """Forward, in a graph where that is possible, and forward with backward where there is something to learn."""
    encoder = make_encoder(name, batch)
    learns = any(True for _ in encoder.parameters())
    for mode in ("forward", "forward, graph", "forward + backward"):
        if (mode == "forward + backward" and not learns) or (mode == "forward, graph" and batch.device.type != "cuda"):
            continue
        if mode == "forward, graph" and name.startswith("dense"):
            continue  # it waits for the host to learn sizes
        about = (name, window_ms, len(batch), mode, batch.num_events)
        needed, free = _needed_bytes(name, mode, batch), _free_bytes(batch.device)
        if needed > 0.7 * free:
            note = f"would need about {needed / 1e9:.0f} GB of {free / 1e9:.0f} GB"
            yield EncodeMeasurement(*about, note=note)
            continue
        encoder.train(mode == "forward + backward")
        try:
            call = _call(encoder, batch, mode)
            times = _time(call, batch.device)
        except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:  # no compiler, or not enough memory
            yield EncodeMeasurement(*about, note=str(error).strip().splitlines()[0][:120])
            continue
        p50, p99 = np.percentile(times, [50, 99]) * 1000
        peak = peak_on_gpu(call) if batch.device.type == "cuda" and mode != "forward, graph" else None
        if batch.device.type == "cpu" and len(batch) == 1 and mode == "forward":
            peak = peak_in_process(name, batch)
        yield EncodeMeasurement(*about, p50_ms=float(p50), p99_ms=float(p99), peak_mb=peak)
    del encoder
    gc.collect()


def _call(encoder: nn.Module, batch: EventBatch, mode: str) -> Callable[[], object]:
    """What is timed."""

    def forward() -> Tensor:
        with torch.no_grad():
            image: Tensor = encoder(batch)
            return image

    if mode == "forward":
        return forward
    if mode == "forward, graph":
        return _captured(forward)
    gradient = torch.ones_like(forward())

    def both() -> None:
        for parameter in encoder.parameters():
            parameter.grad = None
        encoder(batch).backward(gradient)

    return both


def _captured(forward: Callable[[], Tensor]) -> Callable[[], object]:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = forward()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def _time(call: Callable[[], object], device: torch.device) -> list[float]:
    """Seconds of each call, after two that do not count."""
    for _ in range(2):
        call()
    times: list[float] = []
    while len(times) < CALLS or (sum(times) < SECONDS and len(times) < 500):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1000)
        else:
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return times


def _needed_bytes(name: str, mode: str, batch: EventBatch) -> float:
    """About what the dense tensors of a batch take; nothing to speak of for the others."""
    if not name.startswith("dense"):
        return 0.0
    tensors = 8 if mode == "forward + backward" else 1
    return (len(batch) * tensors + 3) * 64 * 16_000 * 32 * 4.0


def _free_bytes(device: torch.device) -> float:
    """Memory that is free, or infinity where the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    names = getattr(os, "sysconf_names", {})
    if "SC_PAGE_SIZE" not in names or "SC_AVPHYS_PAGES" not in names:
        return float("inf")
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
