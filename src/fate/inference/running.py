"""A detector over whole recordings at one rate: predictions, what the encoder's caps left out, and how long it took.

Recordings run side by side as streams of one batch, each with its own memory from its start to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.data.batches import ClipBatch, Source
from fate.data.clips import evaluation_batches
from fate.data.dataset import Dataset
from fate.data.loading import ClipReader, load
from fate.encoding.batch import EventBatch
from fate.encoding.grids import StackedHistogram
from fate.errors import FateError
from fate.events.window import window_us as hop_of
from fate.inference.fusing import fused
from fate.models import state as states
from fate.models.detector import CANONICAL_US, Detector
from fate.models.nms import Detections, Score

STAGES = ("load", "encode", "model", "post")


@dataclass
class Run:
    """What came of it."""

    hz: float
    predictions: dict[str, Labels]  #: by the recording's name; labelled times are the ends of all windows kept
    windows: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  #: spent in each of ``STAGES``, all windows together
    events: int = 0
    events_dropped: int = 0  #: by the encoder's caps
    pillars_dropped: int = 0
    score: Score | None = None  #: what ranks predictions; None of a head without objectness

    def ms_per_window(self) -> dict[str, float]:
        """Of each stage; streams share a batch, so this is throughput, not the delay of one window."""
        return {stage: 1e3 * spent / max(self.windows, 1) for stage, spent in self.seconds.items()}


def predict(
    detector: Detector,
    recordings: Sequence[Any],
    hz: float,
    *,
    device: str | torch.device = "cpu",
    lanes: int = 8,
    steps: int = 1,
    window_us: int | None = None,
    confidence: float = 0.001,
    keep: Callable[[str, NDArray[np.int64]], NDArray[np.bool_]] | None = None,
    most: int = 100,
    score: Score = "product",
    workers: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Run:
    """Run a detector over recordings.

    Args:
        detector: it is copied, not changed.
        recordings: of a dataset (``name``, ``start_us``, ``end_us``, ``open()``).
        hz: rate; window and hop are 1 / hz.
        device: where the detector runs.
        lanes: recordings side by side.
        steps: windows of a recording in one call.
        window_us: length of windows where it is not 1 / hz; they may overlap.
        confidence: the least score.
        keep: which windows' predictions to keep, by the recording's name and their ends [W]; None for all.
        most: predictions of a window.
        score: what ranks predictions of heads with objectness: "product", objectness · class; or "class" alone, as the
            public evaluation of RVT does. Nothing in training keeps the class low where there is no object.
        workers: processes that load.
        progress: is told the share that is done.
        options: as of ``nms.detections``.
    """
    for recording in recordings:
        if tuple(recording.sensor) != tuple(detector.sensor):
            raise FateError(
                f"{recording.name} is of a {recording.sensor} sensor, the detector of a {detector.sensor} one;"
                " expected the same"
            )
    reader = ClipReader(recordings, detector.sensor, window_us, with_labels=False)
    if reader.holds_images:
        check_histograms(detector, recordings[0])
    model = fused(detector).to(device)
    plans = partial(_plans, recordings, hz, lanes, steps, window_us)
    collected = _Collected(recordings, model.classes, keep, most)
    run = Run(hz, {}, seconds=dict.fromkeys(STAGES, 0.0))
    total = max(sum(recording.end_us - recording.start_us for recording in recordings), 1)
    state, last, hop_us = None, time.perf_counter(), hop_of(hz)
    with torch.inference_mode():
        for batch in load(reader, plans, workers, pin_memory=torch.device(device).type == "cuda"):
            loaded = _spent(run, "load", last, device)
            state = None if state is None else states.reset(state, batch.begins)
            shown = batch.inputs(device)
            events = shown if isinstance(shown, EventBatch) else None
            images = shown if events is None else model.encoder(events)
            encoded = _spent(run, "encode", loaded, device)
            # memory goes on by the hop, also where windows overlap; images of a dataset count as one canonical step
            # each, as their detectors were trained
            scale = 1.0 if events is None else hop_us / CANONICAL_US
            outputs, state = model(images, state, batch.steps, step_scale=scale)
            predicted = _spent(run, "model", encoded, device)
            collected.add(batch, model.detections(outputs, confidence=confidence, most=most, score=score, **options))
            run.score = score if outputs.objectness is not None else None
            _count(run, batch, model)
            last = _spent(run, "post", predicted, device)
            if progress is not None:
                progress(min(collected.seen_us / total, 1.0))
    run.predictions = collected.labels()
    return run


def check_histograms(detector: Detector, recording: Any) -> None:
    """Images are no use to a detector that makes others: EvRT-DETR's have as many channels, in another order."""
    encoder = detector.encoder
    if not isinstance(encoder, StackedHistogram) or encoder.stride != 1:
        raise FateError(
            f"{recording.name} holds RVT's histograms, and the detector sees events through {encoder}; give one whose"
            " encoder is RVT's histogram (rvt-b, s5-vit-b), or the recordings that the histograms were made from"
        )


def _plans(recordings: Sequence[Source], hz: float, lanes: int, steps: int, window_us: int | None) -> Any:
    return evaluation_batches(recordings, hz, min(lanes, len(recordings)), steps, window_us)


def _spent(run: Run, stage: str, since: float, device: str | torch.device) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    now = time.perf_counter()
    run.seconds[stage] += now - since
    return now


def _count(run: Run, batch: ClipBatch, model: Detector) -> None:
    run.windows += int((batch.ends_us >= 0).sum())
    if not isinstance(batch.events, EventBatch):
        return
    run.events += batch.events.num_events
    counts = getattr(model.encoder, "last_stats", None)
    if counts is not None:
        run.events_dropped += counts.events_dropped + counts.events_dropped_with_pillars
        run.pillars_dropped += counts.pillars_dropped


class _Collected:
    """Predictions of all recordings, as they come."""

    def __init__(
        self,
        recordings: Sequence[Any],
        classes: Sequence[str],
        keep: Callable[[str, NDArray[np.int64]], NDArray[np.bool_]] | None,
        most: int,
    ) -> None:
        self.recordings, self.classes, self.keep, self.most = recordings, tuple(classes), keep, most
        self.times: dict[int, list[int]] = {number: [] for number in range(len(recordings))}
        self.rows: dict[int, list[tuple[int, Detections]]] = {number: [] for number in range(len(recordings))}
        self.seen_us = 0

    def add(self, batch: ClipBatch, found: Sequence[Detections]) -> None:
        lanes = len(batch.clips)
        for lane, clip in enumerate(batch.clips):
            if clip.is_empty:
                continue
            ends = batch.ends_us[: clip.steps, lane]
            name = self.recordings[clip.recording].name
            wanted = np.ones(clip.steps, bool) if self.keep is None else self.keep(name, ends)
            self.seen_us += clip.steps * round(1e6 / clip.hz)
            for t in np.flatnonzero(wanted).tolist():
                self.times[clip.recording].append(int(ends[t]))
                self.rows[clip.recording].append((int(ends[t]), found[t * lanes + lane]))

    def labels(self) -> dict[str, Labels]:
        return {recording.name: self._labels(number) for number, recording in enumerate(self.recordings)}

    def _labels(self, number: int) -> Labels:
        rows = [(end, part) for end, part in self.rows[number] if len(part.boxes)]
        times = np.array(sorted(self.times[number]), np.int64)
        if not rows:
            return Labels.empty(times, classes=self.classes)
        boxes = torch.cat([part.boxes[: self.most] for _, part in rows]).numpy()
        scores = torch.cat([part.scores[: self.most] for _, part in rows]).numpy().clip(0, 1)
        ids = torch.cat([part.class_ids[: self.most] for _, part in rows]).numpy()
        counts = [min(len(part.boxes), self.most) for _, part in rows]
        t_us = np.repeat(np.array([end for end, _ in rows], np.int64), counts)
        x1, y1, x2, y2 = boxes.T
        return Labels(t_us, x1, y1, x2, y2, ids, score=scores, labelled_us=times, classes=self.classes)


def at_once(dataset: Dataset, windows: int) -> tuple[int, int]:
    """How many recordings a GPU runs side by side, and how many windows of each it takes in one call.

    Args:
        dataset: its labelled recordings are counted.
        windows: all windows of one call together; a batch of training of this size fits into the memory.
    """
    lanes = max(1, min(64, len(dataset.labelled)))
    return lanes, max(1, windows // lanes)
