"""How long encoders take on real event statistics, each compared with its peers in the same run."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fate.bench import harness
from fate.bench.harness import BenchResult, Measurement, Report
from fate.encoding.batch import EventBatch
from fate.encoding.grids import build_grid
from fate.encoding.kernels import reference
from fate.encoding.kernels.cpu_inference import ImageMemory
from fate.encoding.pillars import PillarEncoder
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window

#: The first is ours; the ratios of the others are against it.
ENCODERS = ("pillars", "dense", "dense-compiled", "histogram", "evrt-histogram")
#: Consecutive windows that a stream repeats.
STREAM_WINDOWS = 32


def bench_encode(
    events: Events,
    device: str = "cpu",
    windows_ms: Sequence[float] = (5, 10, 25, 50),
    batches: Sequence[int] = (1, 32),
    encoders: Sequence[str] = ENCODERS,
    progress: Report | None = None,
) -> BenchResult:
    """Measure encoders on windows of a recording.

    Args:
        events: part of a recording, at least as long as the longest window.
        device: "cpu" or "cuda".
        windows_ms: lengths of windows in ms.
        batches: numbers of windows per call; if the events hold fewer, windows repeat.
        encoders: some of ``ENCODERS``.
        progress: called with a line about each measurement as soon as it is made.
    """
    unknown = [name for name in encoders if name not in ENCODERS]
    if unknown:
        raise FateError(f"there is no encoder {unknown[0]!r} to measure; choose among {', '.join(ENCODERS)}")
    harness.check_device(device)
    span_us = int(events.t_us[-1] - events.t_us[0]) if len(events) else 0
    if span_us < max(windows_ms) * 1000:
        raise FateError(
            f"the events span {span_us / 1000:g} ms; give at least the longest window, {max(windows_ms):g} ms"
        )
    found = []
    for window_ms in windows_ms:
        for batch_size in batches:
            batch = _make_batch(events, round(window_ms * 1000), batch_size).to(device)
            for name in encoders:
                measured = _measure(name, batch, window_ms)
                if name == ENCODERS[0] and device == "cpu" and batch_size == 1:
                    measured = chain(measured, [_measure_stream(events, window_ms)])
                for each in measured:
                    found.append(each)
                    if progress is not None:
                        time = each.note if each.p50_ms is None else f"{each.p50_ms:.3f} ms"
                        progress(f"{name}, {window_ms:g} ms × {batch_size}, {each.mode}: {time}")
    return _result(found, harness.describe_device(device), events.sensor, len(events) / span_us * 1e6)


def _result(found: list[Measurement], device: str, sensor: Sensor, events_per_s: float) -> BenchResult:
    """Return the measurements with the ratio of each peer's time to ours."""
    ours = {(each.window_ms, each.batch, each.mode): each for each in found if each.encoder == ENCODERS[0]}

    def show(each: Measurement) -> dict[str, str]:
        own = ours.get((each.window_ms, each.batch, each.mode))
        compared = own and own.p50_ms and each.p50_ms is not None and each is not own
        return {
            "time": each.note if each.p50_ms is None else f"{each.p50_ms:.3f}",
            "ratio": f"{each.p50_ms / own.p50_ms:.1f} ×" if own and compared else "",
        }

    return BenchResult(
        harness.describe_torch(device, sensor, f"{events_per_s / 1e6:.2f} Mev/s"),
        {"device": device, "threads": torch.get_num_threads(), "sensor": sensor, "events_per_s": events_per_s},
        "encoder | window ms | batch | events | what | p50 ms | p99 ms | peak MB | pillars are",
        "{encoder} | {window_ms:g} | {batch} | {events} | {mode} | {time} | {p99_ms:.3f} | {peak_mb:.0f} | {ratio}",
        found,
        show,
    )


class _Dense(nn.Module):
    """The dense reference of Pillar Encoding as a module with the same parameters."""

    def __init__(self, sensor: Sequence[int], compiled: bool) -> None:
        super().__init__()
        self.own = PillarEncoder(sensor)
        self._compiled: Any = torch.compile(reference.latent_image) if compiled else None

    def forward(self, batch: EventBatch) -> Tensor:
        own = self.own
        pooling: Any = (own.alpha, own.beta)
        running: Any = None if self.training else (own.norm.running_mean, own.norm.running_var)
        parameters = reference.Parameters(own.linear.weight, own.linear.bias, own.norm.weight, own.norm.bias, *pooling)
        return reference.encode(batch, own.spec, 0, parameters, running, compiled=self._compiled)[0]


def _make_encoder(name: str, batch: EventBatch) -> nn.Module:
    """Build one of ``ENCODERS`` for the sensor and the device of a batch."""
    torch.manual_seed(0)
    if name == ENCODERS[0]:
        return PillarEncoder(batch.sensor).to(batch.device)
    if name.startswith("dense"):
        return _Dense(batch.sensor, compiled="compiled" in name).to(batch.device)
    return build_grid(name, batch.sensor).to(batch.device)


def _make_batch(events: Events, window_us: int, count: int) -> EventBatch:
    """Return ``count`` windows; a single one is the window with the median number of events."""
    busy = sorted(harness.cut_windows(events, window_us), key=lambda pair: len(pair[1]))
    middle = busy[len(busy) // 2 :] + busy[: len(busy) // 2]
    return EventBatch.from_windows([middle[n % len(middle)] for n in range(count)])


def _measure(name: str, batch: EventBatch, window_ms: float) -> Iterator[Measurement]:
    """Measure forward, forward as a CUDA graph on a GPU, and forward with backward if there are parameters."""
    encoder = _make_encoder(name, batch)
    device, is_dense = batch.device.type, name.startswith("dense")
    modes = ["forward"]
    if device == "cuda" and not is_dense:  # the dense encoder waits for the host to know sizes
        modes.append("forward, graph")
    if any(True for _ in encoder.parameters()):
        modes.append("forward + backward")
    for mode in modes:
        found = Measurement(
            encoder=name, window_ms=window_ms, batch=len(batch), mode=mode, events=batch.num_events, p50_ms=None,
            p99_ms=None, peak_mb=None, note="",
        )  # fmt: skip
        tensors = len(batch) * (8 if mode == "forward + backward" else 1) + 3  # that the dense encoder keeps, about
        needed, free = tensors * 64 * 16_000 * 32 * 4.0 if is_dense else 0.0, _free_bytes(device)
        if needed > 0.7 * free:
            found.note = f"would need about {needed / 1e9:.0f} GB of {free / 1e9:.0f} GB"
            yield found
            continue
        encoder.train(mode == "forward + backward")
        try:
            call = _make_call(encoder, batch, mode)
            found.p50_ms, found.p99_ms = harness.quantiles_ms(harness.time_repeated(call, device))
            if device == "cuda" and mode != "forward, graph":
                found.peak_mb = _peak_on_gpu_mb(call)
            elif device == "cpu" and len(batch) == 1 and mode == "forward":
                arguments = (name, batch.block.numpy(), batch.counts, batch.sensor, torch.get_num_threads())
                with suppress(FateError):  # the process may end by lack of memory; the time was measured all the same
                    found.peak_mb = harness.run_in_process(peak_of_forward, *arguments)
        except (RuntimeError, torch._dynamo.exc.BackendCompilerFailed) as error:  # no compiler, or not enough memory
            found.note = str(error).strip().splitlines()[0][:120]
        yield found
    del encoder
    gc.collect()


def _measure_stream(events: Events, window_ms: float) -> Measurement:
    """Measure Pillar Encoding on a CPU as streams use it: each call has the next window and clears the image before."""
    windows = harness.cut_windows(events, round(window_ms * 1000), STREAM_WINDOWS)
    batches = [EventBatch.from_windows([window]) for window in windows]
    encoder, memory, following = _make_encoder(ENCODERS[0], batches[0]).eval(), ImageMemory(), cycle(batches)

    def encode_next() -> Tensor:
        with torch.no_grad():
            image: Tensor = encoder(next(following), memory)
            return image

    p50_ms, p99_ms = harness.quantiles_ms(harness.time_repeated(encode_next, "cpu"))
    return Measurement(
        encoder=ENCODERS[0], window_ms=window_ms, batch=1, mode="forward, stream",
        events=round(np.median([each.num_events for each in batches])), p50_ms=p50_ms, p99_ms=p99_ms, peak_mb=None,
        note="",
    )  # fmt: skip


def _make_call(encoder: nn.Module, batch: EventBatch, mode: str) -> Callable[[], object]:
    """Return the call that is timed."""
    forward = partial(_forward, encoder, batch)
    if mode == "forward":
        return forward
    if mode == "forward, graph":
        return _capture(forward)
    gradient = torch.ones_like(forward())

    def both() -> None:
        for parameter in encoder.parameters():
            parameter.grad = None
        encoder(batch).backward(gradient)

    return both


def _forward(encoder: nn.Module, batch: EventBatch) -> Tensor:
    with torch.no_grad():
        image: Tensor = encoder(batch)
        return image


def _capture(forward: Callable[[], Tensor]) -> Callable[[], object]:
    """Return a call that replays ``forward`` as a CUDA graph."""
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


def peak_of_forward(
    name: str, block: NDArray[np.uint8], counts: tuple[int, ...], sensor: Sensor, threads: int
) -> float | None:
    """Return the peak memory of one forward call in MB; meant for a fresh process."""
    torch.set_num_threads(threads)
    batch = EventBatch(torch.from_numpy(block.copy()), counts, sensor)
    encoder = _make_encoder(name, batch).eval()
    if not name.startswith("dense"):  # load compiled loops, on a small frame that leaves no memory behind
        small = EventBatch.from_windows([(Window(0, 10), Events([1], [1], [1], [1], sensor=(16, 16)))])
        _forward(_make_encoder(name, small).eval(), small)
    return harness.peak_on_cpu_mb(partial(_forward, encoder, batch))


def _peak_on_gpu_mb(call: Callable[[], object]) -> float:
    """Return the MB of GPU memory that a call allocates on top of what is allocated already, its result included."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def _free_bytes(device: str) -> float:
    """Return the free memory of a device in bytes, or infinity if the system does not tell it."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    with suppress(AttributeError, ValueError):  # not on Windows; the second not on macOS
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return float("inf")
