"""One report for each recording of a dataset, and what they say together: means, quantiles, boxes and faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.data.layout import Entry
from fate.errors import FateError
from fate.events.events import Sensor
from fate.inspection import references
from fate.inspection.label_statistics import FAULTS, Fault, LabelStatistics, label_statistics
from fate.inspection.misfits import misfits
from fate.inspection.statistics import EventStatistics, PillarStatistics, event_statistics
from fate.inspection.subjects import Subject
from fate.progress import Progress, scale


@dataclass(frozen=True)
class RecordingReport:
    """What was found in one recording."""

    subject: Subject  #: the recording and its files, to be read again
    format: str
    events: EventStatistics
    labels: LabelStatistics | None  #: None where it has none
    classes: tuple[str, ...] | None  #: names by class id, where they are known
    notes: tuple[str, ...] = ()  #: sentences about what does not fit together
    boxes_from: str | None = None  #: ``"labels"``, or ``"truth"`` where there are no others; whose boxes are counted

    @property
    def entry(self) -> Entry:
        """Its name, split and files."""
        return self.subject.entry

    @property
    def sensor(self) -> tuple[int, int]:
        """``(height, width)``."""
        return self.events.height, self.events.width

    def class_name(self, class_id: int) -> str:
        """A name to show."""
        return self.classes[class_id] if self.classes and class_id < len(self.classes) else f"class {class_id}"

    def read_boxes(self) -> Labels | None:
        """The boxes that are counted, read again; None where there are none."""
        if self.boxes_from is None:
            return None
        size = Sensor(*self.sensor)
        return self.subject.read_labels(size) if self.boxes_from == "labels" else self.subject.read_truth(size)


def report_on(subject: Subject, *, windows: int, progress: Progress) -> RecordingReport:
    """Open a recording and its labels, and measure both.

    Args:
        subject: from :func:`fate.inspection.subjects.find_subjects`.
        windows: at most this many windows of each length, and labelled frames, are looked at.
        progress: called with the share that is done.
    """
    with subject.open() as recording:
        events = event_statistics(recording, windows=windows, progress=scale(progress, 0.0, 0.7))
        notes: list[str] = []
        # without labels the events are worth a look all the same
        labels = _read(subject.read_labels, recording.sensor, "labels", notes)
        truth = _read(subject.read_truth, recording.sensor, "exact boxes", notes)
        boxes = truth if labels is None else labels
        if boxes is None:
            progress(1.0)
            return RecordingReport(subject, recording.format, events, None, None, tuple(notes))
        measured = label_statistics(recording, boxes, truth=truth, frames=windows, progress=scale(progress, 0.7, 1.0))
        progress(1.0)
        classes = names_of(boxes, recording.sensor, truth)
        notes += _unknown_classes(subject, boxes)
        notes += misfits(subject.entry.name, recording, boxes, truth)
        source = "truth" if labels is None else "labels"
        return RecordingReport(subject, recording.format, events, measured, classes, tuple(notes), source)


def _read(read: Callable[[Sensor], Labels | None], sensor: Sensor, what: str, notes: list[str]) -> Labels | None:
    """A label file; what cannot be read is noted."""
    try:
        return read(sensor)
    except FateError as error:
        notes.append(f"{what} not read: {error}")
        return None


def _unknown_classes(subject: Subject, labels: Labels) -> list[str]:
    """Boxes of classes that the dataset does not have, which training would not see."""
    if subject.class_map is None or labels.classes is None:
        return []
    known = len(subject.class_map.names)
    counts = Counter(labels.classes[number] for number in labels.class_id.tolist() if number >= known)
    listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
    return [f"{subject.entry.name}: boxes of classes that the dataset does not name: {listed}"] if counts else []


def names_of(labels: Labels, sensor: tuple[int, int], truth: Labels | None = None) -> tuple[str, ...] | None:
    """Class names of a label file: its own, those of the exact boxes beside it, or those of the public dataset of this
    sensor."""
    if labels.classes or truth is None or not truth.classes:
        highest = int(labels.class_id.max(initial=-1))
        return labels.classes or references.class_names((sensor[0], sensor[1]), highest)
    return truth.classes


# ---- all recordings together ----------------------------------------------------------------------------------


def figures(reports: Sequence[RecordingReport]) -> dict[str, float]:
    """Every figure of :data:`fate.inspection.references.ROWS`: the mean over recordings, for labels over all boxes."""
    found: dict[str, float] = {}
    events = [report.events for report in reports]
    rates = np.array([each.rate_hz for each in events]) / 1e6
    low, high = references.RATE_RANGE_MEV_S
    found["rate_mev_s"] = float(rates.mean())
    found["rate_inside_share"] = float(((rates >= low) & (rates <= high)).mean())
    found["merged_rate_mev_s"] = _mean(each.merged_rate_hz / 1e6 for each in events)
    found["busiest_mev_s"] = _mean(each.busiest_hz / 1e6 for each in events)
    for name in ("on_share", "duplicate_share", "burst_share"):
        found[name] = _mean(getattr(each, name) for each in events)
    silent = [each.silent_share for each in events if each.silent_share is not None]
    lengths = [each.burst_length for each in events if each.burst_length]
    found |= {name: _mean(values) for name, values in (("silent_share", silent), ("burst_length", lengths)) if values}
    found["interval_p1_ms"] = _mean(each.merged_interval_p1_us / 1000 for each in events)
    for length in events[0].pillars:
        whole = [each.pillars[length] for each in events]
        found |= _pillar_figures(whole, f"{length // 1000}ms")
        busy = [each.busiest_pillars[length] for each in events]
        found[f"active_busy_{length // 1000}ms"] = _mean(each.active_share for each in busy)
    labels = [report.labels for report in reports if report.labels is not None]
    return found | _label_figures(labels)


def _pillar_figures(pillars: list[PillarStatistics], ending: str) -> dict[str, float]:
    found = {
        "active": _mean(each.active_share for each in pillars),
        "above": _mean(each.raw.above_share for each in pillars),
        "lost": _mean(each.raw.lost_share for each in pillars),
        "merged_above": _mean(each.merged.above_share for each in pillars),
        "merged_p99": _mean(each.merged.p99 for each in pillars),
        "windows_above": _mean(each.windows_above_share for each in pillars),
        "pillars_lost": _mean(each.pillars_lost_share for each in pillars),
    }
    found |= {name: _mean(getattr(each.raw, name) for each in pillars) for name in ("p50", "p90", "p99")}
    return {f"{name}_{ending}": value for name, value in found.items()}


def _label_figures(labels: list[LabelStatistics]) -> dict[str, float]:
    found: dict[str, float] = {}
    rates = [each.rate_hz for each in labels if each.rate_hz]
    if rates:
        found["label_rate_hz"] = float(np.median(rates))
    counts = np.concatenate([each.boxes_per_time for each in labels] or [np.zeros(0, np.int64)])
    if len(counts):
        for name, value in zip(("p5", "p50", "p95"), np.percentile(counts, (5, 50, 95)), strict=True):
            found[f"boxes_{name}"] = float(value)
    lives = np.concatenate([each.life_s for each in labels] or [np.zeros(0, np.float32)])
    if len(lives):
        found["life_p50_s"] = float(np.median(lives))
    return found


@dataclass(frozen=True)
class ClassBoxes:
    """All boxes of one class in a dataset."""

    name: str
    size: NDArray[np.float32]  #: [N, 2] width and height, px
    speed: NDArray[np.float32]  #: [V] px/s
    life_s: NDArray[np.float32]  #: [K]

    def cells(self) -> tuple[str, ...]:
        """In the columns of :data:`fate.inspection.references.BOX_COLUMNS`."""
        number = f"{len(self.size):,}".replace(",", " ")
        wide = self.size[self.size[:, 1] > 0]
        ratio = f"{np.median(wide[:, 0] / wide[:, 1]):.2f}" if len(wide) else references.UNKNOWN
        return (
            self.name,
            number,
            _quantiles(self.size[:, 0], (5, 50, 95)),
            _quantiles(self.size[:, 1], (5, 50, 95)),
            ratio,
            _quantiles(self.speed, (50, 95)),
            _quantiles(self.life_s, (50,), 2),
        )


def boxes_by_class(reports: Sequence[RecordingReport]) -> list[ClassBoxes]:
    """The boxes of all recordings, by the name of their class; the most frequent class first."""
    parts: dict[str, list[tuple[Any, Any, Any]]] = {}
    for report in reports:
        if report.labels is None:
            continue
        labels = report.labels
        # an object may pass between two labels and be seen by the exact boxes alone
        for class_id in np.unique(np.concatenate([labels.class_id, labels.speed_class, labels.life_class])).tolist():
            parts.setdefault(report.class_name(class_id), []).append(
                (
                    labels.size[labels.class_id == class_id],
                    labels.speed[labels.speed_class == class_id],
                    labels.life_s[labels.life_class == class_id],
                )
            )
    found = [
        ClassBoxes(name, *(np.concatenate(column) for column in zip(*rows, strict=True)))
        for name, rows in parts.items()
    ]
    return sorted(found, key=lambda each: -len(each.size))


def motion_source(reports: Sequence[RecordingReport]) -> str:
    """What speeds, lives and faults are taken from; empty where it is the label files alone."""
    labelled = [report.labels for report in reports if report.labels is not None]
    exact = [labels.truth_hz for labels in labelled if labels.truth_hz is not None]
    if not exact:
        return ""
    rest = len(labelled) - len(exact)
    return (
        f"speeds, track lives and boxes that look wrong: from the exact boxes at {np.median(exact):g} Hz (_truth.npz)"
        f" of {len(exact)} recording{'' if len(exact) == 1 else 's'}"
        + (f", from the labels of {rest} without them" if rest else "")
    )


@dataclass(frozen=True)
class FaultCount:
    """How often a kind of fault occurs in a dataset, and where it is worst."""

    kind: str
    meaning: str
    number: int
    checked: int
    worst: tuple[tuple[RecordingReport, Fault], ...]  #: largest boxes first

    def text(self) -> str:
        """Such as ``12 of 340 (3.5 %)``."""
        if not self.checked:
            return "nothing to check"
        if not self.number:
            return f"none of {self.checked}"
        return f"{self.number} of {self.checked} ({100 * self.number / self.checked:.1f} %)"

    def worst_text(self) -> str:
        """Where, when and what the worst one is; empty without one."""
        if not self.worst:
            return ""
        report, fault = self.worst[0]
        x1, y1, x2, y2 = fault.box
        name = report.class_name(fault.class_id) + (f" of track {fault.track_id}" if fault.track_id >= 0 else "")
        return (
            f"worst: {report.entry.name} at {fault.t_us / 1e6:.3f} s, {name},"
            f" {x2 - x1:.0f}×{y2 - y1:.0f} px at x {x1:.0f}, y {y1:.0f}"
        )


def count_faults(reports: Sequence[RecordingReport]) -> list[FaultCount]:
    """All kinds of faults over all recordings that have labels."""
    labelled = [(report, report.labels) for report in reports if report.labels is not None]
    counts = []
    for kind, meaning in FAULTS.items():
        listed = [(report, fault) for report, labels in labelled for fault in labels.faults if fault.kind == kind]
        listed.sort(key=lambda pair: -_area(pair[1]))
        counts.append(
            FaultCount(
                kind,
                meaning,
                sum(labels.counts[kind] for _, labels in labelled),
                sum(labels.checked[kind] for _, labels in labelled),
                tuple(listed[:10]),
            )
        )
    return counts


def _area(fault: Fault) -> float:
    x1, y1, x2, y2 = fault.box
    return (x2 - x1) * (y2 - y1)


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _quantiles(values: NDArray[Any], percents: tuple[int, ...], digits: int = 0) -> str:
    if not len(values):
        return references.UNKNOWN
    return " / ".join(f"{value:.{digits}f}" for value in np.percentile(values, percents))
