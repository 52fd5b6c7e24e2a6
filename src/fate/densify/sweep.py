"""A detector at dense times: canonical windows of 50 ms, ending at every time of a rate.

A detector that remembers was trained on steps of 50 ms, and keeps them here: the times of a rate f fall into f / 20
interleaved *streams*, each stepping by 50 ms with a memory of its own, run side by side as a batch (the step that S5 is
told stays 1). A stream is known by its *phase*, the end of its first window after the recording's start, so what one
rate has seen serves every other: 80 Hz is the phases 12.5, 25, 37.5 and 50 ms, of which 200 Hz has two already.

Rates whose hop does not divide 50 ms (60 Hz is 16 667 µs, 30 Hz 33 333) have streams of their own: as many as bring the
step nearest to 50 ms, and S5 is told its true length. Below 20 Hz, 10 Hz and other whole parts of it take their times
from the stream of 20 Hz.

Windows of one recording overlap; its events are read once for all streams of a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.boxes.labels import Labels, LabelSource
from fate.data.clips import Clip, Grid, evaluation_batches
from fate.data.loading import load
from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.window import Window, window_us
from fate.inference.fusing import fused
from fate.models import state as states
from fate.models.detector import CANONICAL_US, Detector
from fate.models.nms import Detections
from fate.models.state import State

#: Scores from which predictions are kept, well below what tracking takes: for curves over thresholds.
FLOOR = 0.1
#: Detections of a window.
MOST = 100


class Streams(NamedTuple):
    """Interleaved streams: stream i has windows that end at ``start + phases_us[i] + j · step_us``, j = 0, 1, …"""

    step_us: int
    phases_us: tuple[int, ...]


def streams_of(hz: float) -> Streams:
    """The streams that together see every time of a rate.

    Example:
        >>> streams_of(80)
        Streams(step_us=50000, phases_us=(12500, 25000, 37500, 50000))
    """
    hop = window_us(hz)
    if hop % CANONICAL_US == 0:
        return Streams(CANONICAL_US, (CANONICAL_US,))
    count = max(1, round(CANONICAL_US / hop))
    return Streams(count * hop, tuple(range(hop, count * hop + 1, hop)))


def phases_in(predictions: Labels, start_us: int, streams: Streams) -> tuple[int, ...]:
    """The phases of these streams that predictions of a recording hold already."""
    return tuple(phase for phase in streams.phases_us if predictions.is_labelled(start_us + phase))


def sweep(
    detector: Detector,
    recordings: Sequence[Any],
    streams: Streams,
    *,
    device: str | torch.device = "cpu",
    lanes: int = 64,
    workers: int = 0,
    floor: float = FLOOR,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Labels]]:
    """Predictions of each recording, by its number, as soon as it is through; several recordings go side by side.

    The score of a prediction is the class probability, or where the head has objectness, the smaller of the two: a
    threshold on it is a threshold on both.

    Args:
        detector: it is copied, not changed.
        recordings: of a dataset, of the detector's sensor.
        streams: which to run.
        device: where the detector runs.
        lanes: windows side by side, about.
        workers: processes that load.
        floor: the least score.
        progress: is told of windows that are done, batch by batch.
    """
    rate = 1e6 / streams.step_us
    counts = [Grid.of(recording, rate).count(recording.end_us) for recording in recordings]
    facts: dict[str, Any] = {"classes": detector.classes, "sensor": tuple(detector.sensor)}
    for number in np.flatnonzero(np.array(counts) == 0).tolist():
        yield number, Labels.empty(**facts)
    if not any(counts):
        return
    model = fused(detector).to(device)
    model.eval()
    phases = len(streams.phases_us)
    side_by_side = max(1, min(lanes // phases, len(recordings)))
    reader = cast(Any, _Reader(recordings, detector.sensor, streams))  # all that is asked of a reader of clips
    plans = partial(evaluation_batches, recordings, rate, side_by_side, 1)
    found: dict[int, _Found] = defaultdict(_Found)
    state = None
    for batch in load(reader, plans, workers, pin_memory=torch.device(device).type == "cuda"):
        seen, state = _step(model, batch, state, streams.step_us / CANONICAL_US, floor)
        for place, clip in enumerate(batch.clips):
            if clip.is_empty:
                continue
            for lane in range(place * phases, (place + 1) * phases):
                found[clip.recording].add(batch.ends_us[lane], seen[lane], floor)
            if progress is not None:
                progress(phases)
            if clip.first + 1 == counts[clip.recording]:
                yield clip.recording, found.pop(clip.recording).labels(facts)


@torch.inference_mode()
def _step(
    model: Detector, batch: _Batch, state: State, step_scale: float, floor: float
) -> tuple[list[Detections], State]:
    state = None if state is None else states.reset(state, batch.begins)
    images = model.encoder(batch.events.to(model.device, non_blocking=True))
    outputs, state = model(images, state, step_scale=step_scale)
    # both probabilities at least the floor: their product, which candidates are chosen by, is at least its square
    confidence = floor if outputs.objectness is None else floor**2
    return model.detections(outputs, confidence=confidence, most=MOST), state


class _Batch(NamedTuple):
    """One window of each of B lanes: first all streams of the first recording, then those of the next."""

    events: EventBatch
    clips: list[Clip]  #: of each recording, the step it is at
    begins: Tensor  #: [B] bool, whose memory begins anew
    ends_us: list[int]  #: [B] when each window ends

    def pin_memory(self) -> _Batch:
        """The events in page-locked memory; called by the loader."""
        return self._replace(events=self.events.pin_memory())


class _Reader:
    """Loads a step of several recordings; their files stay open while they are gone through."""

    def __init__(self, recordings: Sequence[Any], sensor: Sequence[int], streams: Streams) -> None:
        self.recordings, self.sensor, self.streams = recordings, tuple(sensor), streams
        self._open: dict[int, Any] = {}

    def batch(self, clips: Sequence[Clip]) -> _Batch:
        """The windows that the recordings' streams are at."""
        wanted = {clip.recording for clip in clips}
        for number in self._open.keys() - wanted:
            self._open.pop(number).close()
        pairs = [pair for clip in clips for pair in self._windows(clip)]
        begins = [clip.begins for clip in clips for _ in self.streams.phases_us]
        return _Batch(
            EventBatch.from_windows(pairs), list(clips), torch.tensor(begins), [window.end_us for window, _ in pairs]
        )

    def _windows(self, clip: Clip) -> list[tuple[Window, Events]]:
        phases = self.streams.phases_us
        if clip.is_empty:
            return [(Window(0, CANONICAL_US), Events.empty(self.sensor))] * len(phases)
        recording = self.recordings[clip.recording]
        if clip.recording not in self._open:
            self._open[clip.recording] = recording.open()
        begin = recording.start_us + clip.first * self.streams.step_us
        windows = [Window(begin + phase - CANONICAL_US, begin + phase) for phase in phases]
        whole = self._open[clip.recording].read(windows[0].start_us, windows[-1].end_us)
        return [(window, whole.between(window.start_us, window.end_us)) for window in windows]

    def close(self) -> None:
        """Let go of all files."""
        while self._open:
            self._open.popitem()[1].close()


@dataclass
class _Rows:
    t_us: int
    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int64]


class _Found:
    """What was seen in one recording, as it comes."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.rows: list[_Rows] = []

    def add(self, t_us: int, seen: Detections, floor: float) -> None:
        self.times.append(t_us)
        scores = seen.scores.numpy()
        if seen.objectness is not None:
            scores = np.minimum(scores, seen.objectness.numpy())
        keep = np.flatnonzero(scores >= floor)[:MOST]  # they come best first
        if len(keep):
            boxes, class_ids = seen.boxes.numpy()[keep], seen.class_ids.numpy()[keep]
            self.rows.append(_Rows(t_us, boxes, scores[keep].clip(0, 1), class_ids))

    def labels(self, facts: dict[str, Any]) -> Labels:
        if not self.rows:
            return Labels.empty(sorted(self.times), **facts)
        x1, y1, x2, y2 = np.concatenate([part.boxes for part in self.rows]).T
        columns = {
            "t_us": np.repeat([part.t_us for part in self.rows], [len(part.scores) for part in self.rows]),
            "class_id": np.concatenate([part.class_ids for part in self.rows]),
            "score": np.concatenate([part.scores for part in self.rows]),
            "x1": x1, "y1": y1, "x2": x2, "y2": y2,
        }  # fmt: skip
        columns["source"] = np.full(len(columns["t_us"]), LabelSource.TRACKED)
        return Labels.from_unsorted(columns, labelled_us=self.times, **facts)
