"""Runs a detector at dense times, with canonical windows of 50 ms that end at every time of a rate.

A recurrent detector was trained with steps of 50 ms and keeps them: the times of a rate f are split into f / 20
interleaved *streams*, each stepping by 50 ms with its own state. They run side by side as a batch. A stream is
identified by its *phase*, the end of its first window after the recording's start, so rates share streams: 80 Hz has
the phases 12.5, 25, 37.5 and 50 ms, two of which belong to 200 Hz too.

Rates whose hop does not divide 50 ms (60 Hz is 16 667 µs, 30 Hz 33 333) have their own streams, as many as bring the
step nearest to 50 ms, and S5 layers scale their step to it. 10 Hz and other rates that divide 20 Hz use the stream of
20 Hz.

Windows of one recording overlap; its events are read once for all streams of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fate.boxes.labels import Labels, LabelSource
from fate.data.class_maps import plain
from fate.data.clips import Clip, Grid, evaluation_batches
from fate.data.loading import ClipBatch, load
from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.window import Window, WindowGrid, window_us
from fate.inference.running import DetectionCollector, Runner
from fate.models.detector import Detector
from fate.models.nms import Detections
from fate.rates import CANONICAL_HZ, CANONICAL_US

#: Lowest score of the predictions that are kept; far below the score of tracking, for curves over thresholds.
FLOOR = 0.1
#: Most detections of a window.
MOST = 100


class Streams(NamedTuple):
    """Interleaved streams: stream i has windows that end at ``start + phases_us[i] + j · step_us``, j = 0, 1, …"""

    step_us: int
    phases_us: tuple[int, ...]

    def grids(self, start_us: int) -> list[WindowGrid]:
        """The canonical windows of each stream of a recording that starts at ``start_us``."""
        return [WindowGrid(start_us + phase - self.step_us, self.step_us, CANONICAL_US) for phase in self.phases_us]


def streams_of(hz: float) -> Streams:
    """The streams that together have a window at every time of a rate.

    Example:
        >>> streams_of(80)
        Streams(step_us=50000, phases_us=(12500, 25000, 37500, 50000))
    """
    hop = window_us(hz)
    if hop % CANONICAL_US == 0:
        return Streams(CANONICAL_US, (CANONICAL_US,))
    count = max(1, round(CANONICAL_US / hop))
    return Streams(count * hop, tuple(range(hop, count * hop + 1, hop)))


def sweep(
    detector: Detector,
    recordings: Sequence[Any],
    streams: Streams,
    *,
    classes: Sequence[str] | None = None,
    device: str = "cpu",
    batch_size: int = 64,
    workers: int = 0,
    floor: float = FLOOR,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Labels | None]]:
    """The predictions of each recording, by its index, as soon as it is finished; several recordings run side by side.

    Without any stream to run, each recording has None.

    The score of a prediction is the class probability or, if the head has objectness, the smaller of the two: a
    threshold on it is a threshold on both.

    Args:
        detector: it is copied, not changed; it has the sensor of the recordings.
        recordings: of a dataset.
        streams: to run.
        classes: names of the classes that count, in the order of their ids; by default those of the detector.
        device, batch_size, workers: see ``densify``.
        floor: lowest score.
        progress: called with the number of windows of each batch.
    """
    if not streams.phases_us:
        yield from ((index, None) for index in range(len(recordings)))
        return
    rate = 1e6 / streams.step_us
    counts = [Grid.of(recording, rate).count(recording.end_us) for recording in recordings]
    names = tuple(detector.classes) if classes is None else tuple(classes)
    known = {plain(name): number for number, name in enumerate(names)}
    numbers = torch.tensor([known.get(plain(name), -1) for name in detector.classes])
    collector = DetectionCollector(names, MOST, detector.sensor, LabelSource.TRACKED)
    for index in np.flatnonzero(np.array(counts) == 0).tolist():
        yield index, collector.take(index)
    if not any(counts):
        return
    # both probabilities are at least the floor, so their product is at least its square
    runner = Runner(detector, device, streams.step_us, confidence=floor**2, most=MOST)
    side_by_side = max(1, min(batch_size // len(streams.phases_us), len(recordings)))
    reader = cast(Any, _Reader(recordings, detector.sensor, streams))  # it has the methods that `load` calls
    plans = partial(evaluation_batches, recordings, rate, side_by_side, 1)
    for batch in load(reader, plans, workers, pin_memory=runner.device.type == "cuda"):
        windows = runner(batch)
        for index, t_us, found in windows:
            collector.add(index, t_us, _counted(found, floor, numbers))
        if progress is not None:
            progress(len(windows))
        for clip in dict.fromkeys(batch.clips):
            if not clip.is_empty and clip.first + 1 == counts[clip.recording]:
                yield clip.recording, collector.take(clip.recording)


def _counted(found: Detections, floor: float, numbers: torch.Tensor) -> Detections:
    """The detections with class probability and objectness of at least ``floor``; their score is the smaller one.

    ``numbers`` [classes of the detector] are the class ids in the result; detections with -1 do not count.
    """
    scores = found.scores if found.objectness is None else torch.minimum(found.scores, found.objectness)
    class_ids = numbers.to(found.class_ids.device)[found.class_ids]
    keep = (scores >= floor) & (class_ids >= 0)
    return Detections(found.boxes[keep], scores[keep], class_ids[keep])


class _Reader:
    """Loads one step of several recordings; their files stay open until they are finished."""

    def __init__(self, recordings: Sequence[Any], sensor: Sequence[int], streams: Streams) -> None:
        self.recordings, self.sensor, self.streams = recordings, tuple(sensor), streams
        self._open: dict[int, Any] = {}

    def batch(self, clips: Sequence[Clip]) -> ClipBatch:
        """One window of each row: first all streams of the first recording, then those of the next."""
        for index in self._open.keys() - {clip.recording for clip in clips}:
            self._open.pop(index).close()
        rows = [clip for clip in clips for _ in self.streams.phases_us]
        windows = [window for clip in clips for window in self._windows(clip)]
        ends = np.array([[window.end_us for window, _ in windows]], np.int64)
        begins = torch.tensor([clip.begins for clip in rows])
        return ClipBatch(EventBatch.from_windows(windows), [None] * len(rows), 1, rows, begins, ends)

    def _windows(self, clip: Clip) -> list[tuple[Window, Events]]:
        if clip.is_empty:
            return [(Window(0, CANONICAL_US), Events.empty(self.sensor))] * len(self.streams.phases_us)
        recording = self.recordings[clip.recording]
        if clip.recording not in self._open:
            self._open[clip.recording] = recording.open()
        windows = [grid.window(clip.first) for grid in self.streams.grids(Grid.of(recording, CANONICAL_HZ).start_us)]
        whole = self._open[clip.recording].read(windows[0].start_us, windows[-1].end_us)
        return [(window, whole.between(window.start_us, window.end_us)) for window in windows]

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()
