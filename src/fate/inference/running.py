"""Runs a detector over recordings, and collects its detections in tables.

Several recordings run side by side as the rows of one batch, each with its own state from its start to its end.
Evaluation (:func:`predict`) and ``densify.sweep`` use the same :class:`Runner` and :class:`DetectionCollector`. With a
``precision``, evaluation uses a :class:`StepRunner` instead, which computes what a stream does on this device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.data.clips import evaluation_batches
from fate.data.loading import ClipBatch, ClipReader, load
from fate.encoding.batch import EventBatch
from fate.encoding.grids import StackedHistogram
from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.window import window_us as hop_of
from fate.inference.backends.graph_detector import GraphDetector
from fate.inference.fusing import fused
from fate.inference.streaming_step import Precision, compile_for_streaming
from fate.models import state as states
from fate.models.detector import Detector
from fate.models.heads.yolox import YOLOXHead
from fate.models.nms import Detections, Score
from fate.progress import Progress
from fate.rates import CANONICAL_US

#: Windows that a GPU detects at once; more are not faster.
MOST_WINDOWS = 320
#: Recordings that run side by side.
MOST_STREAMS = 64
#: The same with a streaming step, whose graphs have room for busy windows of all of them.
STEP_STREAMS = 16
#: Limit of pixels · µs of the windows that are detected at once, for the memory that their events need.
MOST_PIXEL_US = 500_000_000_000
#: GPU memory of a window, in bytes for each pixel; the largest detectors need about 600.
BYTES_PER_PIXEL = 1_000

STAGES = ("load", "encode", "model", "post")


@dataclass
class Run:
    """The predictions of a detector at one rate, and how they were made."""

    hz: float
    predictions: dict[str, Labels] = field(default_factory=dict)  #: by recording; labelled times are window ends
    windows: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))  #: of all windows, by stage
    events: int = 0
    events_dropped: int = 0  #: by the encoder's caps
    pillars_dropped: int = 0
    score: Score | None = None  #: what ranks predictions; None for a head without objectness

    def ms_per_window(self) -> dict[str, float]:
        """Time per window by stage. Recordings share a batch, so this is throughput and not latency."""
        return {stage: 1e3 * spent / max(self.windows, 1) for stage, spent in self.seconds.items()}


class Runner:
    """Runs a detector on one batch after another, and carries the state of each row from batch to batch."""

    def __init__(
        self, detector: Detector, device: str | torch.device, hop_us: int, run: Run | None = None, **options: Any
    ) -> None:
        """The state advances by ``hop_us`` with each window; ``options`` are arguments of ``nms.detections``.

        Windows, events and the time of each stage are counted in ``run``. Without it a GPU never waits for the clock.
        """
        if isinstance(detector, GraphDetector) and torch.device(device).type != "cpu":
            raise FateError(f"an exported detector runs on the CPU, and {device} was asked for; give device=cpu")
        self.model, self.device, self.options = fused(detector).to(device), torch.device(device), options
        self._step_scale, self._run = hop_us / CANONICAL_US, run
        self._state: states.State = None
        self._last = time.perf_counter()

    @torch.inference_mode()
    def __call__(self, batch: ClipBatch) -> list[tuple[int, int, Detections]]:
        """The detections of each window of a batch: (recording, end of the window in µs, detections)."""
        self._add_time("load")
        if self._state is not None:
            self._state = states.reset(self._state, batch.begins)
        inputs = batch.inputs(self.device)
        is_events = isinstance(inputs, EventBatch)
        images = self.model.encoder(inputs) if is_events else inputs
        self._add_time("encode")
        # each image of a dataset of histograms is one canonical step, as in the training of its detectors
        step_scale = self._step_scale if is_events else 1.0
        outputs, self._state = self.model(images, self._state, batch.steps, step_scale=step_scale, reuse_state=True)
        self._add_time("model")
        found = self.model.detections(outputs, **self.options)
        rows = len(batch.clips)
        windows = [
            (clip.recording, int(batch.ends_us[t, row]), found[t * rows + row])
            for row, clip in enumerate(batch.clips)
            for t in range(clip.steps)
        ]
        if (run := self._run) is not None:
            run.windows += len(windows)
            run.score = self.options.get("score") if outputs.objectness is not None else None
            if isinstance(batch.events, EventBatch):
                run.events += batch.events.num_events
                if (counts := getattr(self.model.encoder, "last_stats", None)) is not None:
                    run.events_dropped += counts.events_dropped + counts.events_dropped_with_pillars
                    run.pillars_dropped += counts.pillars_dropped
        self._add_time("post")
        return windows

    def _add_time(self, stage: str) -> None:
        if self._run is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._run.seconds[stage] += now - self._last
        self._last = now


class StepRunner:
    """A :class:`Runner` whose batches have one window of each row, by the streaming step in one of its precisions.

    The step does not separate its stages or count what the encoder leaves out, so all of its time is that of the model.
    """

    def __init__(
        self,
        detector: Detector,
        device: str | torch.device,
        hop_us: int,
        run: Run,
        streams: int,
        precision: Precision,
        **options: Any,
    ) -> None:
        """``streams`` are the rows of a batch, ``precision`` and ``options`` are of ``compile_for_streaming``."""
        self.device, self._run = torch.device(device), run
        self._step = compile_for_streaming(
            detector, device, streams=streams, precision=precision, hop_us=hop_us, **options
        )
        run.score = options.get("score") if isinstance(detector.head, YOLOXHead) else None
        self._last = time.perf_counter()

    def __call__(self, batch: ClipBatch) -> list[tuple[int, int, Detections]]:
        """See ``Runner``."""
        self._add_time("load")
        inputs = batch.inputs(self.device)
        if not isinstance(inputs, EventBatch):
            raise FateError("a precision was given with a dataset of histograms; it is for recordings of events")
        if bool(batch.begins.any()):
            self._step.reset(batch.begins)
        found = self._step(inputs)
        windows = [
            (clip.recording, int(batch.ends_us[0, row]), found[row])
            for row, clip in enumerate(batch.clips)
            if not clip.is_empty
        ]
        self._run.windows += len(windows)
        self._add_time("model")
        return windows

    def _add_time(self, stage: str) -> None:
        now = time.perf_counter()
        self._run.seconds[stage] += now - self._last
        self._last = now


@dataclass
class DetectionCollector:
    """Collects detections window by window, and makes a table for each recording."""

    classes: tuple[str, ...]
    most: int  #: most detections of a window, best first
    sensor: Sensor | None = None  #: of the tables
    source: LabelSource | None = None  #: of the rows; None for the default
    _windows: dict[Hashable, list[tuple[int, Detections]]] = field(default_factory=dict)

    def add(self, recording: Hashable, t_us: int, found: Detections) -> None:
        """Add the detections of a window that ends at ``t_us``."""
        best = slice(self.most)
        kept = Detections(found.boxes[best], found.scores[best], found.class_ids[best])
        self._windows.setdefault(recording, []).append((t_us, kept))

    def take(self, recording: Hashable) -> Labels:
        """The table of a recording, which is then forgotten; its labelled times are the ends of all windows."""
        windows = self._windows.pop(recording, [])
        times = np.array([t_us for t_us, _ in windows], np.int64)
        counts = [len(found.boxes) for _, found in windows]
        if not sum(counts):
            return Labels.empty(np.sort(times), classes=self.classes, sensor=self.sensor)
        boxes, scores, class_ids = (
            torch.cat([getattr(found, name) for _, found in windows]).numpy()
            for name in ("boxes", "scores", "class_ids")
        )
        columns: dict[str, Any] = dict(zip(("x1", "y1", "x2", "y2"), boxes.T, strict=True))
        columns |= {"t_us": np.repeat(times, counts), "class_id": class_ids, "score": scores.clip(0, 1)}
        if self.source is not None:
            columns["source"] = np.full(sum(counts), self.source)
        return Labels.from_unsorted(columns, labelled_us=times, classes=self.classes, sensor=self.sensor)


def predict(
    detector: Detector,
    recordings: Sequence[Any],
    hz: float,
    *,
    device: str | torch.device = "cpu",
    streams: int | None = None,
    steps: int | None = None,
    window_us: int | None = None,
    confidence: float = 0.001,
    keep: Callable[[str, NDArray[np.int64]], NDArray[np.bool_]] | None = None,
    most: int = 100,
    score: Score = "product",
    workers: int = 0,
    precision: Precision | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """Run a detector, which is copied, over the recordings of a dataset at one rate.

    Args:
        hz: windows per second; window and hop are 1 / hz, unless ``window_us`` gives another length of the windows.
        streams, steps: recordings that run side by side, and windows of each in one call; None for :func:`at_once`.
        keep: selects the windows whose predictions are kept, by the recording's name and their ends [W]; None for all.
        most: most predictions of a window.
        score: what ranks predictions of heads with objectness: "product", objectness · class; or "class" alone, as in
            the public evaluation of RVT. Nothing in training keeps the class low where there is no object.
        workers: processes that load events.
        precision: run the streaming step in this precision, one window of each recording in a call; see ``StepRunner``.
            None for clips of windows in float32.
        progress: called with the share that is done, 0 to 1.
        options: of ``nms.detections``, like ``confidence``, ``most`` and ``score``.
    """
    for recording in recordings:
        if tuple(recording.sensor) != tuple(detector.sensor):
            raise FateError(
                f"{recording.name} is of a {recording.sensor} sensor, the detector of a {detector.sensor} one;"
                " expected the same"
            )
    reader = ClipReader(recordings, detector.sensor, with_labels=False)
    if reader.holds_images:
        check_histograms(detector, recordings[0])
    run, hop_us = Run(hz), hop_of(hz)
    most_windows = windows_at_once(detector, torch.device(device), max(hop_us, window_us or 0))
    if precision is not None:
        streams, steps = streams or min(STEP_STREAMS, most_windows), 1
    streams, usual_steps = at_once(len(recordings), max(most_windows, streams or 1), streams)
    plans = partial(evaluation_batches, recordings, hz, streams, steps or usual_steps, window_us)
    options |= {"confidence": confidence, "most": most, "score": score}
    runner: Runner | StepRunner
    if precision is None:
        runner = Runner(detector, device, hop_us, run, **options)
    else:
        runner = StepRunner(detector, device, hop_us, run, streams, precision, **options)
    collector = DetectionCollector(detector.classes, most)
    total = max(sum(recording.end_us - recording.start_us for recording in recordings), 1)
    for batch in load(reader, plans, workers, pin_memory=runner.device.type == "cuda"):
        for index, windows in groupby(runner(batch), key=itemgetter(0)):
            name, found = recordings[index].name, list(windows)
            ends = np.array([t_us for _, t_us, _ in found], np.int64)
            kept = np.ones(len(ends), bool) if keep is None else keep(name, ends)
            for row in np.flatnonzero(kept).tolist():
                collector.add(name, *found[row][1:])
        if progress is not None:
            progress(min(run.windows * hop_us / total, 1.0))
    run.predictions = {recording.name: collector.take(recording.name) for recording in recordings}
    return run


def check_histograms(detector: Detector, recording: Any) -> None:
    """Refuse a detector whose encoder does not make RVT's histograms; EvRT-DETR's have another order of channels."""
    encoder = detector.encoder
    if type(encoder) is not StackedHistogram or encoder.stride != 1:
        raise FateError(
            f"{recording.name} holds RVT's histograms, and the detector sees events through {encoder}; give one whose"
            " encoder is RVT's histogram (rvt-b, s5-vit-b) without length_affine, or the recordings that the histograms"
            " were made from"
        )


def at_once(recordings: int, windows: int, streams: int | None = None) -> tuple[int, int]:
    """The number of recordings that run side by side, at most ``streams``, and of windows of each in one call.

    Together these are at most ``windows``.
    """
    streams = max(1, min(MOST_STREAMS if streams is None else streams, recordings, windows))
    return streams, max(1, windows // streams)


def windows_at_once(detector: Detector, device: torch.device, length_us: int) -> int:
    """How many windows of ``length_us`` a detector takes in one call: few on a CPU, more as a GPU has free memory.

    A small detector is several times as fast with 16 windows as with one, because starting its many small operations
    takes longer than computing them.
    """
    if device.type != "cuda":
        return 16
    pixels = detector.sensor[0] * detector.sensor[1]
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(MOST_WINDOWS, free // 2 // (BYTES_PER_PIXEL * pixels), MOST_PIXEL_US // (pixels * length_us)))
