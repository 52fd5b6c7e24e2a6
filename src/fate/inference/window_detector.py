"""Detects one window after another: boxes in pixels of the sensor, track ids, and the time of each stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.boxes.tracking import Tracker
from fate.compiled import compiled, inlined
from fate.encoding.batch import EventBatch
from fate.events.events import Events, Sensor
from fate.events.filters import EventFilters
from fate.events.window import Window
from fate.formats.recording import Recording
from fate.inference.adapting import Adaptation
from fate.inference.score_calibration import ScoreCalibration
from fate.inference.stream_types import StreamCounts, StreamFrame, StreamOptions
from fate.inference.streaming_step import MIN_CAPACITY, GraphStep, Precision, StreamingStep, compile_for_streaming
from fate.inference.windowing import ClosedWindow, LookBack, Windower
from fate.models.nms import Detections

#: How long an object may be unseen and keep its track, µs. Longer than for dense labels, where a wrong connection
#: becomes a wrong box: on a street, one car hides another for 0.3 to 0.4 s.
UNSEEN_US = 500_000
#: IoU from which a detection may continue a track; lower than for dense labels, because boxes often jump when cars come
#: close to each other.
LEAST_OVERLAP = 0.2
#: Windows that are detected before the first one that counts, to fill caches and allocate memory.
WARM_UP = 3


class WindowDetector:
    """``frame = detect(closed)``; state and tracks are kept inside."""

    def __init__(
        self,
        adaptation: Adaptation,
        options: StreamOptions,
        device: str | torch.device,
        precision: Precision | None,
        calibration: ScoreCalibration,
        prepared: StreamingStep | None = None,
    ) -> None:
        """Compile and record everything, so that the first windows need not wait for it.

        ``prepared`` is a step of the same network. On a CPU, its copy of the network is used in place of a new one.
        """
        self.adaptation, self.options, self.counts = adaptation, options, StreamCounts()
        self.calibration = calibration
        self.threshold = calibration.threshold if options.threshold is None else float(options.threshold)
        self.merge = adaptation.merger()
        #: where frames read events to draw them; None if they keep those of their window
        self.source: Recording | Events | None = None
        self.step = compile_for_streaming(
            adaptation.model, device, precision=precision, hop_us=options.hop_us,
            confidence=calibration.confidence(options.weakest(self.threshold)),
            score=options.score, max_overlap=options.max_overlap, most=options.most, prepared=prepared,
        )  # fmt: skip
        self.stale = None if options.stale_us is None else StaleBoxes(adaptation.sensor, options.stale_us)
        self.filters = EventFilters(options.filters, adaptation.sensor)
        self.counts.filtered_events = self.filters.dropped
        self.tracker = Tracker(LEAST_OVERLAP, UNSEEN_US, self.threshold) if options.track else None
        self.back = LookBack(options.length_us) if options.length_us > options.hop_us else None
        self._warm_up()

    def windower(self, start_us: int | None = None) -> Windower:
        """Cuts the windows of the stream; the first begins at ``start_us``, or with the first event."""
        options = self.options
        return Windower(
            self.adaptation.sensor, options.hop_us, start_us=start_us, max_back_us=options.max_back_us,
            max_gap_us=options.gap_us, counts=self.counts, filters=self.filters,
        )  # fmt: skip

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame:
        """Detect objects in the next window; ``decode_ms`` and ``waited_ms`` are measured by the caller."""
        return replace(self.clip([closed], decode_ms)[0], waited_ms=waited_ms)

    def clip(self, windows: Sequence[ClosedWindow], decode_ms: float = 0.0) -> list[StreamFrame]:
        """Detect objects in the next windows in one call; only the first may follow a restart.

        The times of a window are those of the call, divided by the number of windows, like ``decode_ms``.
        """
        if windows[0].restarted:
            self.reset()
        begin = time.perf_counter()
        seen = [(closed.window, self.merge(closed.events)) for closed in windows]
        if self.back is not None:
            seen = [self.back.add(*each) for each in seen]
        found = self.step(EventBatch.from_windows(seen), len(windows))
        end = time.perf_counter()
        # the stages of a graph cannot be measured from outside
        encoded, predicted = (begin, end) if self.step.marks is None else self.step.marks
        spent = {"encode": encoded - begin, "model": predicted - encoded, "post": end - predicted}
        ms = {"decode": decode_ms, **{stage: 1e3 * seconds for stage, seconds in spent.items()}}
        each_ms = {stage: value / len(windows) for stage, value in ms.items()}
        return [self._frame(closed, one, each_ms) for closed, one in zip(windows, found, strict=True)]

    def _frame(self, closed: ClosedWindow, found: Detections, ms: dict[str, float]) -> StreamFrame:
        """The frame of a window: calibrated scores, boxes in pixels of the sensor, and tracks."""
        begin = time.perf_counter()
        best = slice(self.options.most)
        scores, class_ids, track_ids = found.scores.numpy()[best], found.class_ids.numpy()[best], None
        if self.options.score != "product" and found.objectness is not None:
            chances = self.calibration(scores * found.objectness.numpy()[best])
        else:
            scores = chances = self.calibration(scores)
        boxes = self.adaptation.boxes(found.boxes.numpy()[best])
        shown = chances >= np.float32(self.threshold)
        if self.stale is not None:
            self.stale.add(closed.events)
            stays = ~self.stale.find(boxes, closed.window.end_us)
            self.counts.stale_boxes += int(np.count_nonzero(shown & ~stays))
            boxes, shown = boxes[stays], shown[stays]
            scores, chances, class_ids = scores[stays], chances[stays], class_ids[stays]
        if self.tracker is not None:  # a box that is too weak to start a track has the id -1
            track_ids = self.tracker.step(closed.window.end_us, boxes, chances, class_ids)[shown]
        ms = {**ms, "post": ms["post"] + 1e3 * (time.perf_counter() - begin)}
        self.counts.windows += 1
        self.counts.empty_windows += not len(closed.events)
        self.counts.events += len(closed.events)
        self.counts.boxes += int(np.count_nonzero(shown))
        return StreamFrame(
            closed.window.end_us, boxes[shown], scores[shown], class_ids[shown], track_ids, closed.window,
            len(closed.events), ms, restarted=closed.restarted, classes=tuple(self.adaptation.model.classes),
            source=closed.events if self.source is None else self.source,
        )  # fmt: skip

    def reset(self) -> None:
        """Reset state and tracks."""
        self.step.reset()
        self.merge.reset()
        if self.back is not None:
            self.back.reset()
        if self.stale is not None:
            self.stale.reset()
        if self.tracker is not None:
            self.tracker.reset()

    def _warm_up(self) -> None:
        duration_us = self.options.length_us
        if isinstance(self.step, GraphStep):
            self.step.prepare(MIN_CAPACITY, duration_us)
        sensor, index = self.step.detector.sensor, np.arange(256)  # events on a diagonal, all at one time
        events = Events(np.zeros(256, np.int64), index % sensor.width, index % sensor.height, index % 2, sensor)
        event = Events([0], [0], [0], [1], self.adaptation.sensor)
        EventFilters(self.options.filters, event.sensor)(event)  # compiles their loops
        self.merge(event)
        self.merge.reset()
        if self.stale is not None:
            self.stale.add(Events.empty(self.adaptation.sensor))  # the same
            self.stale.find(np.zeros((1, 4), np.float32), 0)
        batch = EventBatch.from_windows([(Window(0, duration_us), events)])
        for _ in range(WARM_UP):
            self.step(batch)
        self.step.reset()
        if self.tracker is not None:
            import_module("scipy.optimize")  # tracks that cross need it; in a thread, it would delay the first windows
            tracker = Tracker(LEAST_OVERLAP, UNSEEN_US, 0.0)
            for t_us in range(WARM_UP):
                tracker.step(t_us, np.array([[0, 0, 9, 9]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))


#: Side of a block, pixels.
BLOCK = 8
#: The time of a block without events.
NEVER = np.iinfo(np.int64).min


class StaleBoxes:
    """Finds boxes where no event has occurred for a while: their object has gone, or there never was one.

    A recurrent detector remembers objects that stand still. If an object leaves unseen, its box could stay for as long
    as the memory lasts. The sensor is divided into blocks of 8 × 8 pixels, each with the time of its latest event.
    """

    def __init__(self, sensor: Sensor, stale_us: int) -> None:
        """Args:
        sensor: (height, width) of the events.
        stale_us: a box without events for longer than this is stale.
        """
        self.stale_us = stale_us
        self._latest: NDArray[np.int64] = np.full([-(-length // BLOCK) for length in sensor], NEVER, np.int64)

    def add(self, events: Events) -> None:
        """Take the next events of the stream, which are in order of time."""
        _note_latest(events.t_us, events.x, events.y, self._latest)

    def find(self, boxes: NDArray[np.float32], now_us: int) -> NDArray[np.bool_]:
        """Whether each box [M, 4] (xyxy in pixels) had no event in its blocks within ``stale_us`` before ``now_us``."""
        return _find_stale(boxes, self._latest, now_us - self.stale_us)

    def reset(self) -> None:
        """Forget all events."""
        self._latest[:] = NEVER


@compiled
def _note_latest(t_us: Any, x: Any, y: Any, latest: Any) -> None:
    """Write the time of each event to its block."""
    for index in range(len(t_us)):
        latest[y[index] // BLOCK, x[index] // BLOCK] = t_us[index]


@compiled
def _find_stale(boxes: NDArray[np.float32], latest: NDArray[np.int64], oldest_us: int) -> NDArray[np.bool_]:
    """Whether the latest event in the blocks of each box was before ``oldest_us``; most boxes have a recent one."""
    rows, columns = latest.shape
    stale = np.empty(len(boxes), np.bool_)
    for m in range(len(boxes)):
        left, right = _block_of(boxes[m, 0], columns), _block_of(boxes[m, 2], columns)
        top, bottom = _block_of(boxes[m, 1], rows), _block_of(boxes[m, 3], rows)
        stale[m] = not (latest[top : bottom + 1, left : right + 1] >= oldest_us).any()
    return stale


@inlined
def _block_of(pixel: np.float32, blocks: int) -> int:
    """The block of a coordinate, the nearest one if it is outside the sensor."""
    block: int = min(max(int(np.floor(pixel / BLOCK)), 0), blocks - 1)
    return block
