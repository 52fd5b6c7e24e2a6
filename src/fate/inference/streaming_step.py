"""Runs a detector on one window after another as fast as the device allows.

    step = compile_for_streaming(detector, "cuda")
    found = step(batch)          # a list of Detections, one for each stream; the state is kept inside

On a GPU, a step is some hundred short kernels, and starting them from Python takes many times longer than running them.
They are recorded once as a CUDA graph and started with one call. A graph has fixed shapes, so there is one for each
capacity, four times as many events as the one before. Unused capacity becomes one more window whose image is ignored;
Pillar Encoding does not touch its events. The best proposals come back in one copy, and overlapping ones are suppressed
on the CPU.

Recording takes as long as some dozen windows. So that a stream does not wait at every busier window, the second window
of a length makes all graphs that this sensor probably needs (``LIKELY_EVENTS``); ``GraphStep.prepare`` does it before
the first window. On a CPU the model runs as it is, with BatchNorm folded into convolutions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from fate.encoding.batch import EventBatch, copy_events
from fate.encoding.kernels.cpu_inference import ImageMemory
from fate.encoding.pillars import PillarEncoder
from fate.encoding.window_length import WindowLength
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.backends.sessions import BF16
from fate.inference.fusing import fused, lay_out_for_cpu_
from fate.inference.fusing_network import fuse_network_
from fate.models import nms
from fate.models import state as states
from fate.models.backbones.maxvit import MaxViT
from fate.models.detector import Detector, step_scale_of
from fate.models.fused.yolox import FusedYOLOXHead
from fate.models.heads.yolox import YOLOXHead
from fate.models.layers.norm import HAS_TRITON
from fate.models.nms import Detections, Score
from fate.models.state import State
from fate.rates import CANONICAL_US

#: Precision of matrix products: "float32"; "tf32" rounds inputs to 10 bits of mantissa (tensor cores); "bfloat16"
#: rounds to 7 bits where that is safe (S5 layers, boxes and scores stay in float32); "float16" stores weights and maps
#: of RVT, S5-ViT and EvRT-DETR with 10 bits and computes them in few kernels (states, boxes and scores stay in
#: float32).
Precision = Literal["float32", "tf32", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
#: Events that the smallest graph can take, and the ratio of the capacities of two neighbouring graphs.
MIN_CAPACITY, CAPACITY_GROWTH = 1 << 13, 4
#: Events per pixel that windows rarely exceed; a car that passes close by makes one or two in 50 ms.
LIKELY_EVENTS = 4
#: Calls before a graph is recorded: the first calls compile kernels and choose algorithms, which cannot be recorded.
FIRST_CALLS, LATER_CALLS = 3, 1
#: Window lengths that graphs are kept for, so that a source whose windows all differ does not fill the memory.
MAX_SCALES = 16
#: Proposals that a graph returns, best first.
CANDIDATES = 512


def capacities_up_to(events: int) -> list[int]:
    """Capacities of the graphs for windows of up to so many events, smallest first."""
    capacities = [MIN_CAPACITY]
    while capacities[-1] < events:
        capacities.append(capacities[-1] * CAPACITY_GROWTH)
    return capacities


def compile_for_streaming(
    detector: Detector,
    device: str | torch.device = "cpu",
    *,
    streams: int = 1,
    precision: Precision | None = None,
    confidence: float = 0.01,
    compiler: bool = False,
    hop_us: int | None = None,
    score: Score = "class",
    max_overlap: float | None = None,
    most: int = 300,
    prepared: StreamingStep | None = None,
) -> StreamingStep:
    """Prepare a detector for calls with one window of each stream.

    Args:
        detector: it is copied, not changed.
        device: where to run.
        streams: B, windows in a call.
        precision: of matrix products; None for "tf32" on a GPU, elsewhere for that of the detector's backend.
        confidence: lowest confidence of a detection.
        compiler: on a GPU, let ``torch.compile`` fuse small kernels first; it takes a minute or two at the start.
        hop_us: time from one window to the next if windows overlap; the state is advanced by it. None to advance it by
            the length of each window.
        score, max_overlap, most: of ``nms.detections``.
        prepared: an earlier result for the same detector. On a CPU its copy of the detector is shared, but not its
            state. On a GPU it is not used: graphs keep the addresses of the copy's tensors.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise FateError(f"device {str(device)!r} was asked for; expected cpu or cuda, with a GPU that torch can use")
    if streams < 1:
        raise FateError(f"streams={streams} was given; expected 1 or more")
    on_cpu: Precision = "bfloat16" if isinstance(detector, GraphDetector) and detector.backend == BF16 else "float32"
    chosen = ("tf32" if kind == "cuda" else on_cpu) if precision is None else precision
    possible = PRECISIONS if kind == "cuda" else (on_cpu,)
    if chosen not in possible:
        raise FateError(f"precision={precision!r} was given for {kind}; expected one of {', '.join(possible)}")
    if score not in get_args(Score):
        raise FateError(f"score={score!r} was given; expected one of {', '.join(get_args(Score))}")
    if max_overlap is not None:
        nms.check_max_overlap(max_overlap)
    if kind == "cuda" and isinstance(detector, GraphDetector):
        raise FateError(f"an exported detector runs on the CPU, and {device} was asked for; give device=cpu")
    options = {"confidence": confidence, "score": score, "max_overlap": max_overlap, "most": most}
    if kind == "cuda":
        model = fused(detector).to(device)
        encoder = model.encoder.encoder if isinstance(model.encoder, WindowLength) else model.encoder
        if isinstance(encoder, PillarEncoder):
            encoder.fold_norm_()
        if chosen == "float16":
            _fuse_network(model, compiler)
        elif HAS_TRITON and chosen != "bfloat16" and not compiler:  # the compiler fuses by itself
            from fate.inference.fusing_gpu import fuse_for_gpu_  # noqa: PLC0415  (needs triton)

            fuse_for_gpu_(model)
        return GraphStep(model, streams, chosen, hop_us, options, compiler)
    if prepared is not None:
        return StreamingStep(prepared.detector, streams, chosen, hop_us, options)
    model = fused(detector).to(device)
    lay_out_for_cpu_(model)
    return StreamingStep(model, streams, chosen, hop_us, options)


def _fuse_network(model: Detector, compiler: bool) -> None:
    """Prepare a detector for the precision "float16"."""
    if not HAS_TRITON or compiler:
        reason = "with compiler=True" if compiler else "without Triton"
        raise FateError(f"precision='float16' was given {reason}; it needs Triton (pip install triton) and no compiler")
    from fate.models.fused import kernels  # noqa: PLC0415  (needs triton)

    fuse_network_(model, kernels, torch.float16)


@dataclass(eq=False, repr=False)
class StreamingStep:
    """``found = step(batch)``; the state of B streams is kept inside, and detections are on the CPU."""

    detector: Detector
    streams: int  #: B
    precision: Precision
    hop_us: int | None  #: see :func:`compile_for_streaming`
    options: dict[str, Any]  #: of ``nms.detections``
    #: Windows of a stream that are worth detecting in one call, if they are known already. On a CPU, starting many
    #: small operations takes longer than computing them.
    clip_windows: ClassVar[int] = 16

    def __post_init__(self) -> None:
        self.state: State = None
        self.marks: tuple[float, float] | None = None  #: when the last window was encoded and predicted; of no graph
        self._scales: set[float] = set()
        self._follows_time = self.detector.follows_time
        # A stream is done with the image of a window before the next one; several streams may share the network.
        spare = int(isinstance(self.detector.encoder, WindowLength))
        self._memory = ImageMemory(spare) if self.device.type == "cpu" else None

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.detector.device

    def __call__(self, batch: EventBatch, steps: int = 1) -> list[Detections]:
        """Detections of the next window of each of the B streams; windows may have any durations.

        With ``steps``, of the next T windows of each stream, time-major [T · B]; T is at most ``clip_windows``.
        """
        self._check(batch, steps)
        with torch.inference_mode(), self._precision():
            images = self._encode(batch.to(self.device), steps)
            encoded = time.perf_counter()
            scale = self._step_scale(batch)
            outputs, self.state = self.detector(images, self.state, steps, step_scale=scale, reuse_state=True)
            self.marks = encoded, time.perf_counter()
            return self.detector.detections(outputs, **self.options)

    def _encode(self, batch: EventBatch, steps: int) -> Tensor:
        """The images of a call; only that of a single window is kept, since those of a clip take a gigabyte."""
        encoder = self.detector.encoder
        inner = encoder.encoder if isinstance(encoder, WindowLength) else encoder
        keeps = steps == 1 and isinstance(inner, PillarEncoder)
        images: Tensor = encoder(batch, self._memory) if keeps else encoder(batch)
        return images

    def stages(self, batches: Sequence[EventBatch]) -> dict[str, list[float]]:
        """Milliseconds of each window for encoder, model and post-processing; the state is left as it was."""
        times: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
        state = states.mapped(Tensor.clone, self.state)  # the detector changes that of the step in place
        for batch in batches:
            begin = time.perf_counter()
            self(batch)
            moments = (begin, *(self.marks or ()), time.perf_counter())
            for stage, spent in zip(times, np.diff(moments), strict=True):
                times[stage].append(1e3 * float(spent))
        self.state = state
        return times

    def reset(self, mask: Tensor | None = None) -> None:
        """Reset the state of the streams where ``mask`` [B] is true, or of all."""
        self.state = None if mask is None or self.state is None else states.reset(self.state, mask)

    def _step_scale(self, batch: EventBatch) -> float | Tensor:
        """The step scale of a call; what depends only on it and on the weights is precomputed for the first scales."""
        scale = step_scale_of(batch) if self.hop_us is None else self.hop_us / CANONICAL_US
        if isinstance(self.detector, GraphDetector):
            return scale
        if not self._follows_time:
            return 1.0
        if isinstance(scale, float) and scale not in self._scales:
            if len(self._scales) == MAX_SCALES:
                return batch.duration_us / CANONICAL_US
            if isinstance(self.detector.backbone, MaxViT):
                self.detector.backbone.freeze(scale)
            self._scales.add(scale)
        return scale

    def _check(self, batch: EventBatch, steps: int = 1) -> None:
        if len(batch) != self.streams * steps or steps > self.clip_windows:
            raise FateError(
                f"{len(batch)} windows were given; this step has {self.streams} streams, one window each, times"
                f" steps={steps}, at most {self.clip_windows}"
            )
        if batch.sensor != self.detector.sensor:
            raise FateError(f"windows of a {batch.sensor} sensor were given; the detector has {self.detector.sensor}")

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Set the precision of matrix products, and restore it on exit; on a CPU only autocast changes it."""
        if self.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
            yield
            return
        matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matrices.allow_tf32, convolutions.allow_tf32
        matrices.allow_tf32 = convolutions.allow_tf32 = self.precision != "float32"
        try:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
                yield
        finally:
            matrices.allow_tf32, convolutions.allow_tf32 = before


class _Recorded(NamedTuple):
    """A CUDA graph with its inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    events: EventBatch  #: B windows, and one more for the unused capacity
    block: Tensor | None  #: [bytes] uint8, from which the graph unpacks the events; None to copy them column by column
    found: Tensor  #: [B, K, 8] box, confidence, score, class, objectness


@dataclass(eq=False, repr=False)
class GraphStep(StreamingStep):
    """A :class:`StreamingStep` on a GPU, which replays CUDA graphs."""

    compiler: bool  #: whether ``torch.compile`` fuses small kernels
    clip_windows: ClassVar[int] = 1  #: a graph has one window of each stream

    def __post_init__(self) -> None:
        super().__post_init__()
        self._predict = torch.compile(self._propose) if self.compiler else self._propose
        self._recorded: dict[tuple[int, float | None], _Recorded] = {}
        self._seen: set[float | None] = set()  # step scales that have occurred once
        self._ready: set[float | None] = set()  # those with all likely graphs recorded
        self._pool: Any = None
        self._host: Tensor | None = None

    def __call__(self, batch: EventBatch, steps: int = 1) -> list[Detections]:
        self._check(batch, steps)
        with torch.inference_mode(), torch.cuda.device(self.device):
            scale = self._step_scale(batch)
            self._record_ahead(scale)
            recorded = self._graph_for(batch.num_events, scale)
            _fill(recorded, batch)
            recorded.graph.replay()
            return self._read(recorded.found)

    def reset(self, mask: Tensor | None = None) -> None:
        """Reset the state of the streams where ``mask`` [B] is true, or of all."""
        if self.state is not None:
            chosen = torch.ones(self.streams, dtype=torch.bool) if mask is None else mask
            with torch.inference_mode():
                _write(self.state, states.reset(self.state, chosen))

    def prepare(self, most_events: int, duration_us: int) -> None:
        """Record all likely graphs for windows of a length now, and those for up to ``most_events`` of all streams."""
        with torch.inference_mode(), torch.cuda.device(self.device):
            window = Window(0, duration_us), Events.empty(self.detector.sensor)
            scale = self._step_scale(EventBatch.from_windows([window] * self.streams))
            self._seen.add(_constant(scale))
            self._record_ahead(scale)
            for capacity in capacities_up_to(most_events):
                self._graph_for(capacity, scale)

    def stages(self, batches: Sequence[EventBatch]) -> dict[str, list[float]]:
        """Milliseconds of each window by stage; the encoder is measured by a graph of its own."""
        times: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
        with torch.inference_mode(), torch.cuda.device(self.device):
            before, encoding = None, {}
            for batch in batches:
                recorded = self._graph_for(batch.num_events, self._step_scale(batch))
                before = states.mapped(Tensor.clone, self.state) if before is None else before
                if id(recorded) not in encoding:
                    encoding[id(recorded)] = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(encoding[id(recorded)]):
                        self.detector.encoder(recorded.events)
                copy_events(batch, recorded.events)
                _fill(recorded, batch)
                alone, whole = _timed(encoding[id(recorded)].replay), _timed(recorded.graph.replay)
                read = _timed(lambda found=recorded.found: self._read(found))  # type: ignore[misc]
                for stage, ms in zip(times, (alone, whole - alone, read), strict=True):
                    times[stage].append(ms)
            _write(self.state, before)
        return times

    def _graph_for(self, events: int, scale: float | Tensor) -> _Recorded:
        """The graph for so many events; windows of equal length have their own graphs."""
        key = capacities_up_to(events)[-1], _constant(scale)
        if key not in self._recorded:
            self._recorded[key] = self._record(*key)
        return self._recorded[key]

    def _record_ahead(self, scale: float | Tensor) -> None:
        """Record all likely graphs when a length of windows occurs twice: for some sources all lengths differ."""
        known = _constant(scale)
        if known in self._seen and known not in self._ready:
            for capacity in capacities_up_to(LIKELY_EVENTS * math.prod(self.detector.sensor) * self.streams):
                self._graph_for(capacity, scale)
            self._ready.add(known)
        self._seen.add(known)

    @torch.inference_mode()
    def _record(self, capacity: int, scale: float | None) -> _Recorded:
        batch = self._empty_batch(capacity, scale)
        block = self._empty_block(capacity) if HAS_TRITON else None
        calls = LATER_CALLS if self._recorded else FIRST_CALLS
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), self._precision():
            if self.state is None:
                _, after = self.detector(self.detector.encoder(batch)[: self.streams])
                self.state = states.mapped(torch.zeros_like, after)
            before = states.mapped(Tensor.clone, self.state)
            for _ in range(calls):
                self._run(batch, block, scale)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with self._precision(), torch.cuda.graph(graph, pool=self._pool):
            found = self._run(batch, block, scale)
        self._pool = graph.pool()
        _write(self.state, before)
        return _Recorded(graph, batch, block, found)

    def _empty_batch(self, capacity: int, scale: float | None) -> EventBatch:
        """A batch whose last window takes the unused capacity; its events are spread over the frame.

        If the step scale gives the duration of the windows, the batch has it: events of short windows need fewer bits.
        """
        height, width = self.detector.sensor
        batch = EventBatch.of_counts([capacity] + [0] * self.streams, self.detector.sensor, self.device, has_spare=True)
        index = torch.arange(capacity, device=self.device)
        batch.x.copy_(index % width)
        batch.y.copy_(torch.div(index, width, rounding_mode="floor") % height)
        batch.duration_us.fill_(CANONICAL_US)
        if scale is not None and self._follows_time and self.hop_us is None:
            batch.durations = (round(scale * CANONICAL_US),) * len(batch)
        return batch

    def _empty_block(self, capacity: int) -> Tensor:
        """The block of a batch without events, with room for them."""
        batch = EventBatch.of_counts([capacity] + [0] * (self.streams - 1), self.detector.sensor, self.device)
        batch.offsets.zero_()
        batch.duration_us.fill_(CANONICAL_US)
        return batch.block

    def _run(self, batch: EventBatch, block: Tensor | None, scale: float | None) -> Tensor:
        """Events to proposals; the state is updated in place."""
        if block is not None:
            from fate.encoding.kernels.unpacking_gpu import unpack_events  # noqa: PLC0415  (needs triton)

            unpack_events(block, batch, self.streams)
        images = self.detector.encoder(batch)[: self.streams]
        step_scale = batch.duration_us[: self.streams] / CANONICAL_US if scale is None else scale
        found, after = self._predict(images, self.state, step_scale)
        _write(self.state, after)
        return found

    def _propose(self, images: Tensor, state: State, step_scale: float | Tensor) -> tuple[Tensor, State]:
        outputs, after = self.detector(images, state, step_scale=step_scale)
        if self.precision == "float16":
            from fate.models.nms_gpu import best_pairs, best_rows  # noqa: PLC0415  (needs triton)

            if outputs.objectness is None:
                return best_pairs(outputs, self.options["confidence"], self.options["most"]), after
            return best_rows(outputs, self.options["confidence"], CANDIDATES), after
        if outputs.objectness is None:
            found = nms.best_classes(outputs, self.options["confidence"], self.options["most"])
        else:
            found = nms.best_proposals(outputs, self.options["confidence"], CANDIDATES)
        objectness = found.scores if found.objectness is None else found.objectness
        columns = (found.confidences, found.scores, found.class_ids.to(found.scores.dtype), objectness)
        return torch.cat([found.boxes, torch.stack(columns, -1)], -1), after

    def _read(self, found: Tensor) -> list[Detections]:
        """Copy proposals to the CPU at once, and suppress overlapping ones there."""
        if self._host is None:
            self._host = torch.empty(found.shape, pin_memory=True)
        self._host.copy_(found)
        return nms.detections_of_rows(
            self._host,
            self.detector.sensor,
            self.options["score"],
            self.options["max_overlap"],
            objectness=isinstance(self.detector.head, YOLOXHead | FusedYOLOXHead),
        )


def _constant(scale: float | Tensor) -> float | None:
    """The step scale that all windows of a call share; None if they differ."""
    return scale if isinstance(scale, float) else None


def _fill(recorded: _Recorded, batch: EventBatch) -> None:
    """Give a batch to a graph."""
    if recorded.block is None:
        copy_events(batch, recorded.events)
    else:
        recorded.block[: len(batch.block)].copy_(batch.block, non_blocking=True)


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def _write(own: State, new: State) -> None:
    """Copy a state by one kernel for each type; parts that have been overwritten already are left out."""
    pairs = [
        (target, source)
        for target, source in zip(states.tensors(own), states.tensors(new), strict=True)
        if target.data_ptr() != source.data_ptr()
    ]
    for dtype in {target.dtype for target, _ in pairs}:
        targets, sources = zip(*((to, given) for to, given in pairs if to.dtype == dtype), strict=True)
        torch._foreach_copy_(targets, sources)
