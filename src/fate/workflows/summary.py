"""The summary of a run of detection, kept up to date frame by frame: its memory does not grow with the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fate.inference.stream_frames import STAGES, StreamFrame

#: Values that are kept as they are; the quantiles of more come from a histogram.
KEPT_VALUES = 4096
#: Each bin of the histogram is so much wider than the one before, so a quantile is exact to half of it.
BIN_RATIO = 1.01
#: Lower edge of the first bin, milliseconds; values below it count as this.
LOWEST_MS = 1e-4
#: 2600 bins reach from 0.1 µs to more than an hour.
NUM_BINS = 2600


class RunningQuantiles:
    """Quantiles of any number of values of 0 or more: exact for the first thousands, to 0.5 % after that."""

    def __init__(self) -> None:
        self.count, self.highest = 0, 0.0
        self._values: list[float] = []
        self._bins = np.zeros(NUM_BINS, np.int64)

    def add(self, value: float) -> None:
        """Take in one more value, milliseconds."""
        self.count += 1
        self.highest = max(self.highest, value)
        self._values.append(value)
        if len(self._values) > KEPT_VALUES:
            self._sort_in()

    def at(self, share: float) -> float:
        """The value that this share of all values do not exceed."""
        if not self._bins.any():
            return float(np.quantile(self._values, share))
        self._sort_in()
        place = int(np.searchsorted(np.cumsum(self._bins), share * (self.count - 1), side="right"))
        return float(min(LOWEST_MS * BIN_RATIO ** (place + 0.5), self.highest))

    def _sort_in(self) -> None:
        places = np.log(np.maximum(self._values, LOWEST_MS) / LOWEST_MS) / math.log(BIN_RATIO)
        np.add.at(self._bins, np.clip(places.astype(np.int64), 0, NUM_BINS - 1), 1)
        self._values = []


class RunningSummary:
    """Counts boxes, events, tracks and latencies of the frames it is given."""

    def __init__(self, classes: Sequence[str], hz: float, threshold: float) -> None:
        """Args:
        classes: names by id.
        hz: windows a second.
        threshold: the least score of a box.
        """
        self.classes, self.hz, self.threshold = tuple(classes), hz, threshold
        self.windows = self._events = self._in_time = 0
        self._boxes = np.zeros(len(self.classes), np.int64)
        self._latency = {stage: RunningQuantiles() for stage in (*STAGES, "total")}
        self._ages = RunningQuantiles()
        self._tracks: int | None = None
        self._highest_track = -1

    def add(self, frame: StreamFrame) -> None:
        """Take in the next frame."""
        self.windows += 1
        self._events += frame.num_events
        self._boxes += np.bincount(frame.class_ids, minlength=len(self.classes))[: len(self.classes)]
        for stage in STAGES:
            self._latency[stage].add(frame.ms.get(stage, 0.0))
        self._latency["total"].add(frame.total_ms)
        self._in_time += frame.total_ms <= 1e3 / self.hz
        if frame.age_ms is not None:
            self._ages.add(max(frame.age_ms, 0.0))
        if frame.track_ids is not None:  # numbers are given in rising order and never twice
            new = np.unique(frame.track_ids[frame.track_ids > self._highest_track])
            self._tracks = (self._tracks or 0) + len(new)
            self._highest_track = int(new.max(initial=self._highest_track))

    def result(self, took_s: float, counts: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
        """Plain values: boxes by class, latency by stage against the time a window lasts, what was dropped.

        Args:
            took_s: seconds that the run took.
            counts: of ``StreamCounts.to_dict``.
            notes: sentences for the reader.
        """
        budget = 1e3 / self.hz
        measured = {stage: found for stage, found in self._latency.items() if found.highest > 0 or stage == "total"}
        summary: dict[str, Any] = {
            "hz": self.hz,
            "windows": self.windows,
            "seconds": self.windows / self.hz,
            "took_s": round(took_s, 3),
            "windows_per_s": float(f"{self.windows / max(took_s, 1e-9):.4g}"),  # a slow machine is not 0
            "times_real_time": float(f"{self.windows / self.hz / max(took_s, 1e-9):.4g}"),
            "threshold": self.threshold,
            "boxes": {name: int(count) for name, count in zip(self.classes, self._boxes, strict=True)},
            "budget_ms": budget,
            "within_budget": round(self._in_time / self.windows, 4) if self.windows else 1.0,
            "latency_ms": {
                stage: (round(found.at(0.5), 3), round(found.at(0.99), 3))
                for stage, found in measured.items()
                if found.count
            },
            "events": self._events,
            "dropped": {name: counts[name] for name in
                        ("late_events", "excess_events", "skipped_windows", "windows_dropped",
                         "events_in_dropped_windows")
                        if name in counts},
            "notes": [*notes, *counts.get("restart_reasons", ())],
        }  # fmt: skip
        if self._tracks is not None:
            summary["tracks"] = self._tracks
        if self._ages.count:
            ages = (self._ages.at(0.5), self._ages.at(0.99), self._ages.highest)
            summary["age_ms"] = tuple(round(value, 3) for value in ages)
        return summary
