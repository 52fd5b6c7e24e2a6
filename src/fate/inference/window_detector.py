"""Detects one window after another: boxes in pixels of the sensor, track ids, and the time of each stage."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.boxes.tracking import Tracker
from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.adapting import Adaptation
from fate.inference.stream_frames import StreamCounts, StreamFrame
from fate.inference.stream_options import StreamOptions
from fate.inference.streaming_step import MIN_CAPACITY, GraphStep, Precision, compile_for_streaming
from fate.inference.windowing import ClosedWindow, LookBack, Windower

#: How long an object may be unseen and keep its track, µs. Longer than for dense labels, where a wrong connection
#: becomes a wrong box: on a street, one car hides another for 0.3 to 0.4 s.
UNSEEN_US = 500_000
#: IoU from which a detection may continue a track; lower than for dense labels, because boxes often jump when cars come
#: close to each other.
LEAST_OVERLAP = 0.2
#: Windows that are detected before the first one that counts, to fill caches and allocate memory.
WARM_UP = 3


class TrackIds:
    """A tracker that never uses an id twice, also after a restart."""

    def __init__(self, begin_score: float) -> None:
        self._tracker = Tracker(LEAST_OVERLAP, UNSEEN_US, begin_score)
        self._first = self._next = 0

    def step(
        self, t_us: int, boxes: NDArray[Any], scores: NDArray[Any], class_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Track ids [M] of the boxes; -1 for a box that is too weak to start a track."""
        ids = self._tracker.step(t_us, boxes, scores, class_ids)
        ids[ids >= 0] += self._first
        self._next = max(self._next, int(ids.max(initial=-1)) + 1)
        return ids

    def reset(self) -> None:
        """End all tracks."""
        self._tracker.reset()
        self._first = self._next


class WindowDetector:
    """``frame = detect(closed)``; state and tracks are kept inside."""

    def __init__(
        self, adaptation: Adaptation, options: StreamOptions, device: str | torch.device, precision: Precision | None
    ) -> None:
        """Compile and record everything, so that the first windows need not wait for it."""
        self.adaptation, self.options, self.counts = adaptation, options, StreamCounts()
        self.step = compile_for_streaming(
            adaptation.model, device, precision=precision, confidence=options.confidence, hop_us=options.hop_us,
            score=options.score, max_overlap=options.max_overlap, most=options.most,
        )  # fmt: skip
        self.ids = TrackIds(begin_score=float(options.threshold)) if options.track else None
        self.back = LookBack(options.length_us) if options.length_us > options.hop_us else None
        self._warm_up()

    def windower(self, start_us: int | None = None) -> Windower:
        """Cuts the windows of the stream; the first begins at ``start_us``, or with the first event."""
        options = self.options
        return Windower(
            self.adaptation.sensor, options.hop_us, start_us=start_us, max_back_us=options.max_back_us,
            max_gap_us=options.gap_us, counts=self.counts,
        )  # fmt: skip

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame:
        """Detect objects in the next window; ``decode_ms`` and ``waited_ms`` are measured by the caller."""
        if closed.restarted:
            self.reset()
        begin = time.perf_counter()
        seen = closed.window, self.adaptation.events(closed.events)
        batch = EventBatch.from_windows([seen if self.back is None else self.back.add(*seen)])
        found = self.step(batch)[0]
        best = slice(self.options.most)
        scores, class_ids, track_ids = found.scores.numpy()[best], found.class_ids.numpy()[best], None
        confidences = scores
        if self.options.score != "product" and found.objectness is not None:
            confidences = scores * found.objectness.numpy()[best]
        boxes = self.adaptation.boxes(found.boxes.numpy()[best])
        shown = confidences >= np.float32(self.options.threshold)
        if self.ids is not None:
            track_ids = self.ids.step(closed.window.end_us, boxes, confidences, class_ids)[shown]
        ms = {"decode": decode_ms, **self._stages(begin, time.perf_counter())}
        self.counts.windows += 1
        self.counts.empty_windows += not len(closed.events)
        self.counts.events += len(closed.events)
        self.counts.boxes += int(np.count_nonzero(shown))
        return StreamFrame(
            closed.window.end_us, boxes[shown], scores[shown], class_ids[shown], track_ids, closed.window,
            len(closed.events), ms, closed.restarted, waited_ms,
        )  # fmt: skip

    def reset(self) -> None:
        """Reset state and tracks."""
        self.step.reset()
        if self.back is not None:
            self.back.reset()
        if self.ids is not None:
            self.ids.reset()

    def _warm_up(self) -> None:
        duration_us = self.options.length_us
        if isinstance(self.step, GraphStep):
            self.step.prepare(MIN_CAPACITY, duration_us)
        sensor, index = self.step.detector.sensor, np.arange(256)  # events on a diagonal, all at one time
        events = Events(np.zeros(256, np.int64), index % sensor.width, index % sensor.height, index % 2, sensor)
        batch = EventBatch.from_windows([(Window(0, duration_us), events)])
        for _ in range(WARM_UP):
            self.step(batch)
        self.step.reset()
        if self.ids is not None:
            ids = TrackIds(begin_score=0.0)
            for t_us in range(WARM_UP):
                ids.step(t_us, np.array([[0, 0, 9, 9]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))

    def _stages(self, begin: float, end: float) -> dict[str, float]:
        if self.step.marks is None:  # the stages of a graph cannot be measured from outside
            return {"encode": 0.0, "model": 1e3 * (end - begin), "post": 0.0}
        encoded, predicted = self.step.marks
        spent = {"encode": encoded - begin, "model": predicted - encoded, "post": end - predicted}
        return {stage: 1e3 * seconds for stage, seconds in spent.items()}
