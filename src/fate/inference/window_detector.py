"""One closed window after another through a detector: boxes of the sensor, track ids, and the time of each stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fate.boxes.tracking import Tracker
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.events.window import Window
from fate.inference.adapting import Adaptation
from fate.inference.stream_frames import StreamCounts, StreamFrame
from fate.inference.streaming_step import LEAST_ROOM, GraphStep, StreamingStep
from fate.inference.windowing import ClosedWindow, LookBack

#: Detections down to this share of the threshold go on with a track that is there; they begin none, and are not shown.
WEAK = 0.5
#: How long an object may go unseen and keep its number, µs. Longer than for labels (``densify.tracker``), where a wrong
#: connection becomes a wrong box: one car hides another for 0.3 to 0.4 s on a street.
UNSEEN_US = 500_000
#: IoU of an object's expected box and a detection, from which they may be one object; lower than for labels, because a
#: box often jumps when cars come close to one another.
LEAST_OVERLAP = 0.2
#: Windows that are detected before the first one that counts: caches fill, memory is taken.
WARM_UP = 3


class Ids:
    """The tracker, run on one window after another. Numbers are never given twice, whatever restarts."""

    def __init__(self, begin_score: float, max_age_us: int = UNSEEN_US, min_overlap: float = LEAST_OVERLAP) -> None:
        """Args:
        begin_score: the least score that begins a track.
        max_age_us: how long an object may go unseen and keep its number, µs.
        min_overlap: the least IoU of an object's expected box and a detection of it.
        """
        self._tracker = Tracker(min_overlap, max_age_us, begin_score)
        self._first = self._next = 0

    def step(
        self, t_us: int, boxes: NDArray[Any], scores: NDArray[Any], class_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """[M] the number of each box; -1 where it is too weak to begin a track."""
        ids = self._tracker.step(t_us, boxes, scores, class_ids)
        ids[ids >= 0] += self._first
        self._next = max(self._next, int(ids.max(initial=-1)) + 1)
        return ids

    def reset(self) -> None:
        """All tracks end."""
        self._tracker.reset()
        self._first = self._next


class WindowDetector:
    """``frame = detect(closed)``; memory and tracks are carried inside."""

    def __init__(
        self,
        step: StreamingStep,
        adaptation: Adaptation,
        *,
        threshold: float,
        most: int,
        ids: Ids | None,
        counts: StreamCounts,
        back: LookBack | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Args:
        step: of the adapted model, for one stream.
        adaptation: how events come in and boxes come back.
        threshold: the least confidence that is shown.
        most: boxes of a window.
        ids: for track ids; None for none.
        counts: where to count.
        back: for windows longer than the hop; None where each is looked at by itself.
        now: seconds.
        """
        self.step, self.adaptation, self.threshold, self.most = step, adaptation, threshold, most
        self.ids, self.counts, self.back, self._now = ids, counts, back, now
        self._moments: dict[str, float] = {}
        if not isinstance(step, GraphStep):  # a graph's stages cannot be told apart from outside
            step.detector.encoder.register_forward_hook(self._moment("encoded"))
            step.detector.register_forward_hook(self._moment("predicted"))

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame:
        """What is seen in the next window.

        Args:
            closed: it begins where the one before ended, or later.
            decode_ms, waited_ms: what the caller measured.
        """
        if closed.restarted:
            self.restart()
        begin = self._now()
        seen = closed.window, self.adaptation.events(closed.events)
        batch = EventBatch.from_windows([seen if self.back is None else self.back.add(*seen)])
        found = self.step(batch)[0]
        best = slice(self.most)
        scores, class_ids, track_ids = found.scores.numpy()[best], found.class_ids.numpy()[best], None
        confidences = scores
        if self.step.options.get("score") != "product" and found.objectness is not None:
            confidences = scores * found.objectness.numpy()[best]
        boxes = self.adaptation.boxes(found.boxes.numpy()[best])
        shown = confidences >= np.float32(self.threshold)
        if self.ids is not None:
            track_ids = self.ids.step(closed.window.end_us, boxes, confidences, class_ids)[shown]
        ms = {"decode": decode_ms, **self._stages(begin, self._now())}
        self._count(closed, int(np.count_nonzero(shown)))
        return StreamFrame(
            closed.window.end_us, boxes[shown], scores[shown], class_ids[shown], track_ids, closed.window,
            len(closed.events), ms, closed.restarted, waited_ms,
        )  # fmt: skip

    def restart(self) -> None:
        """Memory and tracks begin anew."""
        self.step.reset()
        if self.back is not None:
            self.back.forget()
        if self.ids is not None:
            self.ids.reset()

    def warm_up(self, duration_us: int) -> None:
        """Compile and record what the first windows would have to wait for, suppression and copies too."""
        if isinstance(self.step, GraphStep):
            self.step.prepare(LEAST_ROOM, duration_us)
        batch = EventBatch.from_windows([(Window(0, duration_us), _some_events(self.step.detector.sensor))])
        for _ in range(WARM_UP):
            self.step(batch)
        self.step.reset()
        if self.ids is not None:
            follower = Ids(begin_score=0.0)
            for t_us in range(WARM_UP):
                follower.step(t_us, np.array([[0, 0, 9, 9]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int64))

    def _moment(self, name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self._moments[name] = self._now()

        return note

    def _stages(self, begin: float, end: float) -> dict[str, float]:
        if not self._moments:
            return {"encode": 0.0, "model": 1e3 * (end - begin), "post": 0.0}
        encoded, predicted = self._moments["encoded"], self._moments["predicted"]
        return {
            "encode": 1e3 * (encoded - begin),
            "model": 1e3 * (predicted - encoded),
            "post": 1e3 * (end - predicted),
        }

    def _count(self, closed: ClosedWindow, boxes: int) -> None:
        self.counts.windows += 1
        self.counts.empty_windows += not len(closed.events)
        self.counts.events += len(closed.events)
        self.counts.boxes += boxes


def _some_events(sensor: Sensor) -> Events:
    """At one time, along a diagonal."""
    place = np.arange(256)
    return Events(np.zeros(256, np.int64), place % sensor.width, place % sensor.height, place % 2, sensor)


def check_threshold(threshold: float) -> float:
    """A share of 1."""
    if not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise FateError(f"a threshold of {threshold!r} was given; expected the least score to show, 0 to 1")
    return float(threshold)


def set_threads(threads: int | None) -> None:
    """CPU threads of this whole process, as torch counts them; None leaves them."""
    if threads is None:
        return
    if threads < 1:
        raise FateError(f"threads={threads} was given; expected 1 or more")
    torch.set_num_threads(threads)
