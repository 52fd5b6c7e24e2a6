"""The summary of a run of detection: its numbers, updated frame by frame in constant memory, and its text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fate.inference.stream_types import STAGES, StreamFrame
from fate.text import duration, frequency, grouped, plural, significant

#: Number of values that are kept; quantiles of more values come from a histogram.
KEPT_VALUES = 4096
#: Ratio of the widths of neighbouring bins of the histogram; a quantile is exact to half of it.
BIN_RATIO = 1.01
#: Lower edge of the first bin, milliseconds; smaller values count as this.
LOWEST_MS = 1e-4
#: Number of bins; they reach from 0.1 µs to more than an hour.
NUM_BINS = 2600
#: Boxes per window that are few, and the threshold that shows weaker boxes.
FEW, WEAK = 0.1, 0.3


class RunningQuantiles:
    """Quantiles of any number of values, at least 0: exact up to ``KEPT_VALUES`` values, then to 0.5 %."""

    def __init__(self) -> None:
        self.count, self.highest = 0, 0.0
        self._values: list[float] = []
        self._bins = np.zeros(NUM_BINS, np.int64)

    def add(self, value: float) -> None:
        """Add a value, milliseconds."""
        self.count += 1
        self.highest = max(self.highest, value)
        self._values.append(value)
        if len(self._values) > KEPT_VALUES:
            self._move_to_bins()

    def at(self, share: float) -> float:
        """The quantile of a share, 0 to 1."""
        if not self._bins.any():
            return float(np.quantile(self._values, share))
        self._move_to_bins()
        index = int(np.searchsorted(np.cumsum(self._bins), share * (self.count - 1), side="right"))
        return float(min(LOWEST_MS * BIN_RATIO ** (index + 0.5), self.highest))

    def _move_to_bins(self) -> None:
        indices = np.log(np.maximum(self._values, LOWEST_MS) / LOWEST_MS) / math.log(BIN_RATIO)
        np.add.at(self._bins, np.clip(indices.astype(np.int64), 0, NUM_BINS - 1), 1)
        self._values = []


class RunningSummary:
    """Counts boxes, events, tracks and latencies of the frames it is given."""

    def __init__(self, classes: Sequence[str], hz: float, threshold: float) -> None:
        self.classes, self.hz, self.threshold = tuple(classes), hz, threshold
        self.windows = self._events = self._in_time = 0
        self._boxes = np.zeros(len(self.classes), np.int64)
        self._latency = {stage: RunningQuantiles() for stage in (*STAGES, "total")}
        self._ages = RunningQuantiles()
        self._tracks: int | None = None
        self._highest_track = -1

    def add(self, frame: StreamFrame) -> None:
        """Add the next frame."""
        self.windows += 1
        self._events += frame.num_events
        self._boxes += np.bincount(frame.class_ids, minlength=len(self.classes))[: len(self.classes)]
        for stage in STAGES:
            self._latency[stage].add(frame.ms.get(stage, 0.0))
        self._latency["total"].add(frame.total_ms)
        self._in_time += frame.total_ms <= 1e3 / self.hz
        if frame.age_ms is not None:
            self._ages.add(max(frame.age_ms, 0.0))
        if frame.track_ids is not None:  # ids rise and are never used twice
            new = np.unique(frame.track_ids[frame.track_ids > self._highest_track])
            self._tracks = (self._tracks or 0) + len(new)
            self._highest_track = int(new.max(initial=self._highest_track))

    def describe_few_boxes(self) -> str:
        """A sentence that names a lower threshold if hardly any box reached this one; empty otherwise."""
        boxes = int(self._boxes.sum())
        if self.threshold <= WEAK or boxes > FEW * self.windows or not self._events:
            return ""
        return (
            f"only {plural(boxes, 'box', 'boxes')} in {plural(self.windows, 'window')} at the detector's threshold of"
            f" {self.threshold:.2f}; a lower one, such as {WEAK:g}, shows weaker boxes too"
        )

    def result(self, took_s: float, counts: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
        """Plain values: boxes by class, latency by stage, how many windows took less than 1 / hz, what was dropped.

        ``counts`` are from ``StreamCounts.to_dict``, ``notes`` are sentences for the user.
        """
        budget = 1e3 / self.hz
        measured = {stage: found for stage, found in self._latency.items() if found.highest > 0 or stage == "total"}
        summary: dict[str, Any] = {
            "hz": self.hz,
            "windows": self.windows,
            "seconds": self.windows / self.hz,
            "took_s": round(took_s, 3),
            "windows_per_s": float(f"{self.windows / max(took_s, 1e-9):.4g}"),  # digits also for a slow machine
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
                         "events_in_dropped_windows", "events_in_unfinished_window", "stale_boxes")
                        if name in counts},
            "filtered": dict(counts.get("filtered_events", {})),
            "notes": [*notes, *counts.get("restart_reasons", ())],
        }  # fmt: skip
        if self._tracks is not None:
            summary["tracks"] = self._tracks
        if self._ages.count:
            ages = (self._ages.at(0.5), self._ages.at(0.99), self._ages.highest)
            summary["age_ms"] = tuple(round(value, 3) for value in ages)
        return summary


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The lines that are printed after a run."""
    took_s = max(summary["took_s"], 1e-9)
    speed = frequency(summary["windows"] / took_s, "window")
    kinds = [f"{count} {name}" for name, count in summary["boxes"].items()]
    if "tracks" in summary:
        kinds.append(f"{plural(summary['tracks'], 'track')} in all")
    spent = [f"{name} {p50:.2f} / {p99:.2f}" for name, (p50, p99) in summary["latency_ms"].items()]
    latency = (
        f"latency p50 / p99, ms: {', '.join(spent)} (without decode); a window ends every"
        f" {summary['budget_ms']:g} ms, and {summary['within_budget']:.1%} were done in that time"
    )
    lost = [f"{count} {name.replace('_', ' ')}" for name, count in summary["dropped"].items() if count]
    lines = [
        f"{plural(summary['windows'], 'window')} at {summary['hz']:g} Hz ({summary['seconds']:.2f} s) in"
        f" {duration(summary['took_s'])}: {speed}, {significant(summary['seconds'] / took_s)} × real time",
        f"boxes of score ≥ {summary['threshold']:.3g}: {', '.join(kinds)}",
        latency if summary["windows"] else "no window: no events came",
    ]
    if "age_ms" in summary:  # live
        p50, p99, highest = summary["age_ms"]
        lines.append(f"from a window's end to its boxes: {p50:.2f} ms (p50), {p99:.2f} (p99), {highest:.2f} at most")
    lines.append(f"dropped: {', '.join(lost) or 'nothing'}")
    if filtered := summary["filtered"]:
        unseen = ("events_in_dropped_windows", "events_in_unfinished_window")
        given = summary["events"] + sum(summary["dropped"].get(name, 0) for name in unseen) + sum(filtered.values())
        each = [f"{name} {grouped(count)} ({count / max(given, 1):.1%})" for name, count in filtered.items()]
        lines.append(f"filtered out of {plural(given, 'event')}: {', '.join(each)}")
    return lines + [f"note: {note}" for note in summary["notes"] if note != summary["adaptation"]]  # that was a warning


def summary_table(summary: Mapping[str, Any], sensor: tuple[int, int], extra: Mapping[str, str]) -> dict[str, Any]:
    """The values of a run that the report lists, by their names for readers; ``extra`` follows the sensor."""
    table = {
        "sensor": f"{sensor[1]} × {sensor[0]} pixels",
        **extra,
        "least score of a box": summary["threshold"],
        "events": summary["events"],
        "seconds of recording": summary["seconds"],
        "seconds it took": summary["took_s"],
        "windows a second": summary["windows_per_s"],
        "times real time": summary["times_real_time"],
        "windows done in their own time": f"{summary['within_budget']:.1%}",
    }
    if summary["notes"]:
        table["notes"] = "; ".join(summary["notes"])
    if summary["filtered"]:
        table["events filtered out"] = summary["filtered"]
    return {**table, "dropped": {name.replace("_", " "): count for name, count in summary["dropped"].items()}}
