"""One window after another, as fast as the device allows.

    step = detector.compile_for_streaming("cuda")
    found = step(batch)          # a list of Detections, one for each stream; the memory is carried inside

On a GPU the way from events to boxes is some hundred short kernels, and starting them from Python takes many times
longer than running them. Here they are recorded once, as a CUDA graph, and started with one call. A graph has fixed
shapes, but windows do not hold a fixed number of events: there are graphs with room for more and more, each four times
as large as the one before, and what is left of a room is given to one more window, whose image nobody looks at. (That
costs next to nothing: sorting 100 000 events too many takes a GPU some hundredths of a ms.) The best proposals come
back in one copy; overlapping ones are suppressed on the CPU.

Recording takes as long as some dozen windows, and a stream must not wait for it whenever a few more events come than
before. So the second window of a length, which says that more will follow, has all graphs recorded that this sensor is
likely to need (``likely_rooms``); only a window with more events than that is late once more. Whoever cannot wait for
the first two either calls ``GraphStep.prepare``.

On a CPU the model runs as it is, with BatchNorm folded away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window
from fate.inference.fusing import fused, lay_out_for_cpu_
from fate.models import state as states
from fate.models.backbones.maxvit import MaxViT
from fate.models.detector import CANONICAL_US, Detector, step_scale_of
from fate.models.heads.yolox import YOLOXHead
from fate.models.nms import (
    Candidates,
    Detections,
    Score,
    best_classes,
    best_proposals,
    check_max_overlap,
    finished,
    kept,
)
from fate.models.state import State

#: "float32": as the eager model; "tf32": matrix products round their inputs to 10 bits of mantissa (a GPU's tensor
#: cores); "bfloat16": to 7 bits, where that is safe (the S5 layer, boxes and scores stay in float32).
Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
#: Events that the smallest graph has room for, and how much more each larger one has.
LEAST_ROOM, ROOM_GROWTH = 1 << 13, 4
#: Events a pixel that a window is likely to stay below; a car passing close by makes one or two in 50 ms.
LIKELY_EVENTS = 4
#: Calls before a recording: the first of all compile kernels and choose algorithms, which no graph can hold.
FIRST_CALLS, LATER_CALLS = 3, 1
#: Lengths of windows that are prepared for; a source whose windows all differ must not fill the memory.
RATES = 16
#: Proposals that a graph hands over, best first.
CANDIDATES = 512


def room_for(events: int) -> int:
    """Events that the smallest graph for so many has room for."""
    room = LEAST_ROOM
    while room < events:
        room *= ROOM_GROWTH
    return room


def likely_rooms(sensor: Sensor, streams: int) -> list[int]:
    """Rooms of the graphs that windows of ``streams`` such sensors are likely to need, smallest first."""
    rooms = [LEAST_ROOM]
    while rooms[-1] < LIKELY_EVENTS * sensor.height * sensor.width * streams:
        rooms.append(rooms[-1] * ROOM_GROWTH)
    return rooms


def compile_for_streaming(
    detector: Detector,
    device: str | torch.device = "cpu",
    *,
    streams: int = 1,
    precision: Precision | None = None,
    confidence: float = 0.01,
    compiler: bool = False,
    hop_us: int | None = None,
    **options: Any,
) -> StreamingStep:
    """The detector as a step that is called with one window of each stream.

    Args:
        detector: it is copied, not changed.
        device: where to run.
        streams: B, windows in a call.
        precision: of matrix products; None for "tf32" on a GPU, "float32" elsewhere.
        confidence: the least score of a detection.
        compiler: on a GPU, let ``torch.compile`` join small kernels first: a minute or two at the start, then faster.
        hop_us: from one window's end to the next one's, where windows overlap: memory goes on by so much. None: they
            do not, and it goes on by the length of each.
        options: ``score``, ``max_overlap``, ``most``, as of ``nms.detections``.
    """
    try:
        where = torch.device(device)
    except RuntimeError:
        raise FateError(f"device {device!r} was asked for; expected cpu or cuda") from None
    if where.type not in ("cpu", "cuda"):
        raise FateError(f"device {str(device)!r} was asked for; expected cpu or cuda")
    if streams < 1:
        raise FateError(f"streams={streams} was given; expected 1 or more")
    chosen = ("tf32" if where.type == "cuda" else "float32") if precision is None else precision
    possible = PRECISIONS if where.type == "cuda" else ("float32",)
    if chosen not in possible:
        raise FateError(f"precision={precision!r} was given for {where.type}; expected one of {', '.join(possible)}")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise FateError("device cuda was asked for; this machine has no GPU that torch can use")
    for name, value in options.items():
        if name not in ("score", "max_overlap", "most"):
            raise FateError(f"{name}={value!r} was given; expected score, max_overlap or most")
        if name == "score" and value not in get_args(Score):
            raise FateError(f"score={value!r} was given; expected one of {', '.join(get_args(Score))}")
        if name == "max_overlap" and value is not None:
            check_max_overlap(value)
    model = fused(detector).to(where)
    if where.type == "cuda":
        step: StreamingStep = GraphStep(model, streams, chosen, confidence, options, compiler)
    else:
        lay_out_for_cpu_(model)
        step = StreamingStep(model, streams, chosen, confidence, options)
    step.hop_us = hop_us
    return step


class StreamingStep:
    """``found = step(batch)``, with the memory of B streams inside; what is found is on the CPU."""

    def __init__(
        self, detector: Detector, streams: int, precision: Precision, confidence: float, options: dict[str, Any]
    ) -> None:
        self.detector, self.streams, self.precision = detector, streams, precision
        self.confidence, self.options = confidence, options
        self.hop_us: int | None = None
        self.state: State = None
        self._scales: set[float] = set()

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.detector.device

    def __call__(self, batch: EventBatch) -> list[Detections]:
        """What is seen in the next window of each stream.

        Args:
            batch: one window for each of the B streams, of any durations.
        """
        self._check(batch)
        with torch.inference_mode(), self._precision():
            step_scale = self._step_scale(batch)
            outputs, self.state = self.detector(batch.to(self.device), self.state, step_scale=step_scale)
            return self.detector.detections(outputs, confidence=self.confidence, **self.options)

    def stages(self, batches: Sequence[EventBatch]) -> dict[str, list[float]]:
        """ms that windows take to be encoded, to go through the model, and to be read back; the memory is as before."""
        times: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
        with torch.inference_mode(), self._precision():
            state = self.state
            for batch in batches:
                step_scale, moments = self._step_scale(batch), [time.perf_counter()]
                images = self.detector.encoder(batch.to(self.device))
                moments.append(time.perf_counter())
                outputs, state = self.detector(images, state, step_scale=step_scale)
                moments.append(time.perf_counter())
                self.detector.detections(outputs, confidence=self.confidence, **self.options)
                moments.append(time.perf_counter())
                for stage, spent in zip(times, np.diff(moments), strict=True):
                    times[stage].append(1e3 * float(spent))
        return times

    def reset(self, mask: Tensor | None = None) -> None:
        """Streams where ``mask`` [B] is true begin anew; all without one."""
        self.state = None if mask is None or self.state is None else states.reset(self.state, mask)

    def _step_scale(self, batch: EventBatch) -> float | Tensor:
        """Of this call; what depends on it and on the weights alone is computed the first time, for the first RATES."""
        if not isinstance(self.detector.backbone, MaxViT):
            return 1.0  # they count windows, however long
        scale = step_scale_of(batch) if self.hop_us is None else self.hop_us / CANONICAL_US
        if isinstance(scale, float) and scale not in self._scales:
            if len(self._scales) == RATES:
                return batch.duration_us / CANONICAL_US
            self.detector.backbone.freeze(scale)
            self._scales.add(scale)
        return scale

    def _check(self, batch: EventBatch) -> None:
        if len(batch) != self.streams:
            raise FateError(f"{len(batch)} windows were given; this step has {self.streams} streams, one window each")
        if batch.sensor != self.detector.sensor:
            raise FateError(f"windows of a {batch.sensor} sensor were given; the detector has {self.detector.sensor}")

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Products as asked for, and other people's settings as they were afterwards."""
        matrices, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matrices.allow_tf32, convolutions.allow_tf32
        matrices.allow_tf32 = convolutions.allow_tf32 = self.precision != "float32"
        try:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
                yield
        finally:
            matrices.allow_tf32, convolutions.allow_tf32 = before


class _Recorded(NamedTuple):
    """A graph and the memory it reads and writes."""

    graph: torch.cuda.CUDAGraph
    events: EventBatch  #: B windows, and one more for what is left of the room
    found: Tensor  #: [B, K, 8], see ``_packed``


class GraphStep(StreamingStep):
    """The same on a GPU, recorded."""

    def __init__(
        self,
        detector: Detector,
        streams: int,
        precision: Precision,
        confidence: float,
        options: dict[str, Any],
        compiler: bool,
    ) -> None:
        super().__init__(detector, streams, precision, confidence, options)
        self._predict = torch.compile(self._predicted) if compiler else self._predicted
        self._recorded: dict[tuple[int, float | None], _Recorded] = {}
        self._seen: set[float | None] = set()  # lengths of windows that have come once
        self._ready: set[float | None] = set()  # those whose likely graphs are all there
        self._pool: Any = None
        self._host: Tensor | None = None

    def __call__(self, batch: EventBatch) -> list[Detections]:
        self._check(batch)
        with torch.inference_mode(), torch.cuda.device(self.device):
            scale = self._step_scale(batch)
            self._record_ahead(scale)
            recorded = self._for(batch.num_events, scale)
            _fill(recorded.events, batch)
            recorded.graph.replay()
            return self._read(recorded.found)

    def reset(self, mask: Tensor | None = None) -> None:
        """Streams where ``mask`` [B] is true begin anew; all without one."""
        if self.state is not None:
            chosen = torch.ones(self.streams, dtype=torch.bool) if mask is None else mask
            with torch.inference_mode():
                _write(self.state, states.reset(self.state, chosen))

    def prepare(self, most_events: int, duration_us: int) -> None:
        """Record the graphs for windows of up to so many events now, and those that are likely besides.

        Args:
            most_events: in the windows of all streams together.
            duration_us: of a window.
        """
        with torch.inference_mode(), torch.cuda.device(self.device):
            window = Window(0, duration_us), Events.empty(self.detector.sensor)
            scale = self._step_scale(EventBatch.from_windows([window] * self.streams))
            self._seen.add(_known(scale))
            self._record_ahead(scale)
            room = LEAST_ROOM
            while room <= room_for(most_events):
                self._for(room, scale)
                room *= ROOM_GROWTH

    def stages(self, batches: Sequence[EventBatch]) -> dict[str, list[float]]:
        """ms that windows take to be encoded, to go through the model, and to be read back; the memory is as before.

        The first two are one graph; the encoder's part is measured by a graph of its own.
        """
        times: dict[str, list[float]] = {"encode": [], "model": [], "post": []}
        with torch.inference_mode(), torch.cuda.device(self.device):
            before, encoding = None, {}
            for batch in batches:
                recorded = self._for(batch.num_events, self._step_scale(batch))
                before = states.mapped(Tensor.clone, self.state) if before is None else before
                if id(recorded) not in encoding:
                    encoding[id(recorded)] = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(encoding[id(recorded)]):
                        self.detector.encoder(recorded.events)
                _fill(recorded.events, batch)
                alone, whole = _timed(encoding[id(recorded)].replay), _timed(recorded.graph.replay)
                read = _timed(lambda found=recorded.found: self._read(found))  # type: ignore[misc]
                for stage, ms in zip(times, (alone, whole - alone, read), strict=True):
                    times[stage].append(ms)
            _write(self.state, before)
        return times

    def _for(self, events: int, scale: float | Tensor) -> _Recorded:
        """The graph with room for so many events; where windows last equally long, one for their duration."""
        room, known = room_for(events), _known(scale)
        if (room, known) not in self._recorded:
            self._recorded[room, known] = self._record(room, known)
        return self._recorded[room, known]

    def _record_ahead(self, scale: float | Tensor) -> None:
        """All graphs that are likely, when windows of this length come for the second time.

        A source whose windows all differ in length would otherwise have a set recorded for every one of them.
        """
        known = _known(scale)
        if known in self._seen and known not in self._ready:
            for room in likely_rooms(self.detector.sensor, self.streams):
                self._for(room, scale)
            self._ready.add(known)
        self._seen.add(known)

    @torch.inference_mode()
    def _record(self, room: int, scale: float | None) -> _Recorded:
        batch = _with_room(room, self.streams, self.detector, self.device)
        calls = LATER_CALLS if self._recorded else FIRST_CALLS
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), self._precision():
            if self.state is None:
                _, after = self.detector(self.detector.encoder(batch)[: self.streams])
                self.state = states.mapped(torch.zeros_like, after)
            before = states.mapped(Tensor.clone, self.state)
            for _ in range(calls):
                self._run(batch, scale)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with self._precision(), torch.cuda.graph(graph, pool=self._pool):
            found = self._run(batch, scale)
        self._pool = graph.pool()
        _write(self.state, before)
        return _Recorded(graph, batch, found)

    def _run(self, batch: EventBatch, scale: float | None) -> Tensor:
        """Events to proposals; the memory is written where it was read."""
        images = self.detector.encoder(batch)[: self.streams]
        step_scale = batch.duration_us[: self.streams] / CANONICAL_US if scale is None else scale
        found, after = self._predict(images, self.state, step_scale)
        _write(self.state, after)
        return found

    def _predicted(self, images: Tensor, state: State, step_scale: float | Tensor) -> tuple[Tensor, State]:
        outputs, after = self.detector(images, state, step_scale=step_scale)
        if outputs.objectness is None:
            found = best_classes(outputs, self.confidence, self.options.get("most", 300))
        else:
            found = best_proposals(outputs, self.confidence, CANDIDATES)
        return _packed(found), after

    def _read(self, found: Tensor) -> list[Detections]:
        """The one copy to the CPU, and suppression there."""
        if self._host is None:
            self._host = torch.empty(found.shape, pin_memory=True)
        self._host.copy_(found)
        candidates = _unpacked(self._host, self.detector.head)
        stays = kept(candidates, self.options.get("max_overlap"))
        return finished(candidates, stays, self.detector.sensor, self.options.get("score", "class"))


def _known(scale: float | Tensor) -> float | None:
    """A length that all windows of a call have in common; None where only the device knows."""
    return scale if isinstance(scale, float) else None


def _timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def _packed(found: Candidates) -> Tensor:
    """[N, K, 8]: box, confidence, score, class, objectness."""
    objectness = found.scores if found.objectness is None else found.objectness
    columns = (found.confidences, found.scores, found.class_ids.to(found.scores.dtype), objectness)
    return torch.cat([found.boxes, torch.stack(columns, -1)], -1)


def _unpacked(packed: Tensor, head: nn.Module) -> Candidates:
    """The same back, as far as some window has candidates."""
    rows = packed.numpy()
    most = max(int((rows[..., 4] >= 0).sum(1).max()), 1)
    boxes, confidences, scores, class_ids, objectness = np.split(rows[:, :most], (4, 5, 6, 7), axis=-1)
    return Candidates(
        torch.from_numpy(boxes),
        torch.from_numpy(confidences[..., 0]),
        torch.from_numpy(scores[..., 0]),
        torch.from_numpy(class_ids[..., 0]).long(),
        torch.from_numpy(objectness[..., 0]) if isinstance(head, YOLOXHead) else None,
    )


def _write(own: State, new: State) -> None:
    for target, source in zip(states.tensors(own), states.tensors(new), strict=True):
        target.copy_(source)


def _with_room(room: int, streams: int, detector: Detector, device: torch.device) -> EventBatch:
    """A batch whose last window holds what the others leave of ``room`` events, at first spread over the frame."""
    batch = EventBatch.with_room(room, streams + 1, detector.sensor, device)
    place = torch.arange(room, device=device)
    batch.x.copy_(place % detector.sensor.width)
    batch.y.copy_(torch.div(place, detector.sensor.width, rounding_mode="floor") % detector.sensor.height)
    batch.duration_us.fill_(CANONICAL_US)
    return batch


def _fill(room: EventBatch, batch: EventBatch) -> None:
    """Events of a batch into the first windows of a larger one; of those that were there before, the times go."""
    events, windows = batch.num_events, len(batch)
    room.t_us[events:].zero_()  # the last window must be possible too: its times must not fall
    for name in ("t_us", "x", "y", "p"):
        getattr(room, name)[:events].copy_(getattr(batch, name), non_blocking=True)
    for name in ("start_us", "duration_us"):
        getattr(room, name)[:windows].copy_(getattr(batch, name), non_blocking=True)
    room.offsets[: windows + 1].copy_(batch.offsets, non_blocking=True)
