"""``inspect`` measures the events and boxes of a dataset, compares them with real data, and names faults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fate.data.class_maps import describe_unknown
from fate.data.dataset import Dataset
from fate.data.manifests import MANIFEST, find_listing
from fate.data.opening import path_of
from fate.errors import FateError
from fate.events.events import GEN1_SENSOR, MPX_SENSOR
from fate.inspection import references
from fate.inspection.label_statistics import FAULTS
from fate.inspection.references import UNKNOWN, Row
from fate.inspection.reports import ClassBoxes, RecordingReport, boxes_by_class, find_subjects, report_on
from fate.progress import Progress, ignore, scale
from fate.text import format_table, plural

HASHING = 100  # thousandths of the work on a recording that hashing its files takes, roughly
SHOWN_FLAGS = 20  # in the text

HEADER = ("", "this dataset", "real Gen1", "real 1Mpx")

#: Sensors of the public datasets, 1Mpx also at the half resolution of RVT.
COMPARED_SENSORS = (GEN1_SENSOR, MPX_SENSOR, (360, 640))


#: Kinds of faults, and what each means.
UNKNOWN_CLASS = "unknown class"
MEANINGS = {**FAULTS, UNKNOWN_CLASS: "a class that the dataset does not name; training refuses the dataset"}


class FaultCount(NamedTuple):
    """How often a kind of fault occurs in a dataset, and where it is worst."""

    kind: str  #: a key of ``MEANINGS``
    number: int
    checked: int  #: boxes or tracks in which it was looked for
    worst: str  #: where, when and what the largest box with this fault is, or the unknown classes; empty without one

    def text(self) -> str:
        """Such as ``12 of 340 (3.5 %)``."""
        if not self.checked:
            return "nothing to check"
        if not self.number:
            return f"none of {self.checked}"
        return f"{self.number} of {self.checked} ({100 * self.number / self.checked:.1f} %)"


@dataclass(frozen=True)
class Inspection:
    """The reports on all recordings of a dataset. Made by :func:`inspect`."""

    dataset: str
    split: str | None
    reports: tuple[RecordingReport, ...]  #: one for each recording that could be read
    unreadable: tuple[str, ...]  #: a sentence for each recording that could not
    files_compared: int | None = None  #: files that a manifest lists, which were compared with it; None without one
    flags: tuple[str, ...] = ()  #: a sentence for each file that is not as the manifest says, or about the manifest

    @cached_property
    def figures(self) -> dict[str, float]:
        """Figures by name, means over recordings; :data:`fate.inspection.references.ROWS` says what each means."""
        events = [report.events for report in self.reports]
        rates = np.array([each.rate_hz for each in events]) / 1e6
        low, high = references.RATE_RANGE_MEV_S
        values: dict[str, Any] = {
            "rate_mev_s": rates,
            "rate_inside_share": (rates >= low) & (rates <= high),
            "merged_rate_mev_s": [each.merged_rate_hz / 1e6 for each in events],
            "busiest_mev_s": [each.busiest_hz / 1e6 for each in events],
            "on_share": [each.on_share for each in events],
            "duplicate_share": [each.duplicate_share for each in events],
            "burst_share": [each.burst_share for each in events],
            "silent_share": [each.silent_share for each in events if each.silent_share is not None],
            "burst_length": [each.burst_length for each in events if each.burst_length],
            "interval_p1_ms": [each.merged_interval_p1_us / 1000 for each in events],
        }
        for length in events[0].pillars:
            pillars, busy = [each.pillars[length] for each in events], [each.busiest_pillars[length] for each in events]
            of_length = {
                "active": [each.active_share for each in pillars],
                "above": [each.raw.above_share for each in pillars],
                "lost": [each.raw.lost_share for each in pillars],
                "merged_above": [each.merged.above_share for each in pillars],
                "merged_p99": [each.merged.p99 for each in pillars],
                "windows_above": [each.windows_above_share for each in pillars],
                "pillars_lost": [each.pillars_lost_share for each in pillars],
                "p50": [each.raw.p50 for each in pillars],
                "p90": [each.raw.p90 for each in pillars],
                "p99": [each.raw.p99 for each in pillars],
                "active_busy": [each.active_share for each in busy],
            }
            values |= {f"{name}_{length // 1000}ms": listed for name, listed in of_length.items()}
        means = {name: float(np.mean(listed)) for name, listed in values.items() if len(listed)}
        return means | self._label_figures()

    def _label_figures(self) -> dict[str, float]:
        """Figures of labels, over all boxes."""
        labels = [report.labels for report in self.reports if report.labels is not None]
        found: dict[str, float] = {}
        if rates := [each.rate_hz for each in labels if each.rate_hz]:
            found["label_rate_hz"] = float(np.median(rates))
        if labels and len(counts := np.concatenate([each.boxes_per_time for each in labels])):
            found |= {f"boxes_p{share}": float(np.percentile(counts, share)) for share in (5, 50, 95)}
        if labels and len(lives := np.concatenate([each.life_s for each in labels])):
            found["life_p50_s"] = float(np.median(lives))
        return found

    @property
    def is_gen1_like(self) -> bool:
        """Whether all recordings are of Gen1's sensor, so that its ranges apply."""
        return all(report.sensor == GEN1_SENSOR for report in self.reports)

    @property
    def outside(self) -> tuple[Row, ...]:
        """Rows with a figure outside the range for Gen1-like data; empty for other sensors."""
        return tuple(row for row in references.ROWS if self.is_gen1_like and row.judge(self.figures))

    @cached_property
    def classes(self) -> list[ClassBoxes]:
        """Boxes by class."""
        return boxes_by_class(self.reports)

    @cached_property
    def faults(self) -> list[FaultCount]:
        """Faults of the labels by kind."""
        labelled = [(report, report.labels) for report in self.reports if report.labels is not None]
        counts = []
        for kind in FAULTS:
            listed = [(report, fault) for report, labels in labelled for fault in labels.faults if fault.kind == kind]
            number, checked = (
                sum(each[kind] for each in (getattr(labels, name) for _, labels in labelled))
                for name in ("counts", "checked")
            )
            worst = ""
            if listed:
                report, fault = max(listed, key=lambda pair: pair[1].area)
                x1, y1, x2, y2 = fault.box
                name = report.class_name(fault.class_id) + (
                    f" of track {fault.track_id}" if fault.track_id >= 0 else ""
                )
                where = f"{x2 - x1:.0f}×{y2 - y1:.0f} px at x {x1:.0f}, y {y1:.0f}"
                worst = f"worst: {report.entry.name} at {fault.t_us / 1e6:.3f} s, {name}, {where}"
            counts.append(FaultCount(kind, number, checked, worst))
        return [*counts, self._unknown_classes()]

    def _unknown_classes(self) -> FaultCount:
        """Boxes of classes that the dataset does not name."""
        unknown: Counter[str] = Counter()
        names: set[str] = set()
        for report in self.reports:
            unknown.update(report.unknown)
            names.update(() if report.subject.class_map is None else report.subject.class_map.names)
        checked = sum(len(report.boxes) for report in self.reports if report.boxes is not None)
        return FaultCount(UNKNOWN_CLASS, unknown.total(), checked, describe_unknown(unknown, sorted(names)))

    def rows(self) -> list[tuple[str, ...]]:
        """The table against real data: title, this dataset, Gen1, 1Mpx and, for Gen1's sensor, range and verdict."""
        rows = []
        for row in references.ROWS:
            shown = row.show(self.figures)
            cells = [row.title, shown, row.gen1, row.mpx]
            if self.is_gen1_like:
                judged = row.accept is not None and shown != UNKNOWN  # what was not measured is neither in nor out
                verdict = "" if not judged else ("out" if row.judge(self.figures) else "in")
                cells += [row.accepted_text(), verdict]
            rows.append(tuple(cells))
        return rows

    @property
    def header(self) -> tuple[str, ...]:
        """The header of :meth:`rows`."""
        return (*HEADER, "accepted", "") if self.is_gen1_like else HEADER

    @property
    def lead(self) -> str:
        """One line about the whole dataset."""
        number, labelled = len(self.reports), sum(report.labels is not None for report in self.reports)
        events = sum(report.events.num_events for report in self.reports)
        seconds = sum(report.events.duration_s for report in self.reports)
        sensors = Counter(str(report.sensor) for report in self.reports)
        sizes = ", ".join(f"{size} ({count})" if len(sensors) > 1 else size for size, count in sensors.items())
        split = f"split {self.split}: " if self.split else ""
        return (
            f"{split}{plural(number, 'recording')}, {labelled} with labels; {seconds:.1f} s,"
            f" {events / 1e6:.2f} million events; {sizes}"
        )

    @property
    def verdict(self) -> str:
        """Whether Gen1-like data is accepted, and if not, which figures are outside; empty for other sensors."""
        if not self.is_gen1_like:
            return ""
        listed = [
            f"{row.title.strip()} = {row.show(self.figures)} (accepted: {row.accepted_text()})" for row in self.outside
        ]
        if not listed:
            return "inside all ranges for Gen1-like data"
        return f"outside the ranges for Gen1-like data: {'; '.join(listed)}"

    @property
    def motion_source(self) -> str:
        """Where speeds, track lives and faults come from; empty if that is the labels alone."""
        labelled = [report.labels for report in self.reports if report.labels is not None]
        exact = [labels.truth_hz for labels in labelled if labels.truth_hz is not None]
        if not exact:
            return ""
        rest = len(labelled) - len(exact)
        return (
            f"speeds, track lives and boxes that look wrong: from the exact boxes at {np.median(exact):g} Hz"
            f" (_truth.npz) of {plural(len(exact), 'recording')}"
            + (f", from the labels of {rest} without them" if rest else "")
        )

    @property
    def file_summary(self) -> str:
        """One line about all files that were compared with a manifest; empty if there is none."""
        if self.files_compared is None:
            return ""
        if not self.files_compared:
            return "files were not compared with the manifest"
        if not self.flags:
            return f"{MANIFEST}: all {self.files_compared} files have the size and SHA-256 that it lists"
        return f"{MANIFEST}: {len(self.flags)} of {self.files_compared} files are not as it lists them"

    @property
    def remarks(self) -> list[str]:
        """Sentences about recordings that cannot be read, and labels that do not fit."""
        return [*self.unreadable, *(note for report in self.reports for note in report.notes)]

    @property
    def is_compared(self) -> bool:
        """Whether the text has the figures of the public datasets too: for their sensors, and for simulated drives."""
        return self.files_compared is not None or all(report.sensor in COMPARED_SENSORS for report in self.reports)

    def text(self) -> str:
        """Everything as plain text; only a few figures if no public dataset has this sensor."""
        if self.is_compared:
            table = _table(self.header, self.rows())
        else:
            own = [(row.title, row.show(self.figures)) for row in references.ROWS if row.own]
            table = _table(HEADER[:2], [cells for cells in own if cells[1] != UNKNOWN])
        parts = [f"{self.dataset}: {self.lead}", "", table]
        if self.verdict:
            parts += ["", self.verdict]
        if self.classes:
            cells = [each.cells for each in self.classes]
            real = references.REAL_BOXES if self.is_compared else ()
            parts += ["", _table(references.BOX_COLUMNS, [*cells, *real])]
            if self.motion_source:
                parts += ["", self.motion_source]
            faults = [(each.kind, each.text(), each.worst) for each in self.faults]
            parts += ["", _table(("boxes that look wrong", "", ""), faults, left=3)]
        if self.file_summary:
            parts += ["", self.file_summary]
            parts += [f"flag: {flag}" for flag in self.flags[:SHOWN_FLAGS]]
            if len(self.flags) > SHOWN_FLAGS:
                parts.append(f"and {len(self.flags) - SHOWN_FLAGS} more flags; the page and the JSON have all")
        parts += [f"note: {remark}" for remark in self.remarks]
        if not self.is_compared:
            parts += ["", "The page has more figures, beside those of Gen1 and 1Mpx, and pictures of the boxes."]
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: figures of the dataset, its faults, and a report on each recording."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "figures": self.figures,
            "gen1_like": self.is_gen1_like,
            "outside": [key for row in self.outside for key in row.judge(self.figures)],
            "faults": {
                each.kind: {"meaning": MEANINGS[each.kind], "number": each.number, "checked": each.checked}
                for each in self.faults
            },
            "motion_source": self.motion_source,
            "files_compared": self.files_compared,
            "flags": list(self.flags),
            "recordings": [
                {
                    "name": report.entry.name,
                    "split": report.entry.split,
                    "format": report.format,
                    "events": _to_plain(report.events),
                    "labels": report.labels and report.labels.to_dict(),
                }
                for report in self.reports
            ],
            "notes": self.remarks,
        }


def inspect(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    split: str | None = None,
    windows: int = 200,
    progress: Progress | None = None,
    **options: Any,
) -> Inspection:
    """Inspect a dataset of any known layout, or one recording.

    Args:
        dataset: a folder (see :mod:`fate.data.layout`), a YAML file, a folder with a ``dataset.yaml``, a recording, or
            an open dataset (whole, or one split of it).
        split: only ``"train"``, ``"val"`` or ``"test"``.
        windows: at most this many windows of each length, and labelled frames, in each recording.
        progress: called with (done, in all), in thousandths of a recording.
        options: arguments of :func:`fate.open_recording`; they override those of a YAML file.

    A recording that cannot be read is noted and left out; if none can be read, that is an error. If the simulator has
    written exact boxes beside the labels, speeds, track lives and faults are those of the exact boxes. If it has
    written a manifest, every file is compared with it.

    Example:
        >>> print(inspect("gen1", split="test").text())            # doctest: +SKIP
    """
    if isinstance(dataset, Dataset):
        dataset, only = path_of(dataset)
        split = split or only
    if windows < 1:
        raise FateError(f"windows = {windows} was given; expected at least 1")
    subjects = find_subjects(dataset, split, options)
    listing = find_listing(dataset, split)
    reports: list[RecordingReport] = []
    unreadable: list[str] = []
    hashing = 0 if listing is None else HASHING * len(subjects)
    total = 1000 * len(subjects) + hashing
    flags = () if listing is None else listing.compare(scale(progress or ignore, 0, hashing, total))
    for index, subject in enumerate(subjects):
        share = scale(progress or ignore, hashing + 1000 * index, hashing + 1000 * (index + 1), total)
        try:
            reports.append(report_on(subject, windows=windows, progress=share))
        except FateError as error:
            unreadable.append(str(error))
    if not reports:
        more = f" (and {len(unreadable) - 1} more like it)" if len(unreadable) > 1 else ""
        raise FateError(f"no recording can be read; {unreadable[0]}{more}")
    num_files = None if listing is None else len(listing.files)
    return Inspection(str(dataset), split, tuple(reports), tuple(unreadable), num_files, flags)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table with a line under its header; the first ``left`` columns are aligned to the left."""
    top, *lines = format_table([header, *rows], range(left)).split("\n")
    return "\n".join([top, "─" * max(map(len, [top, *lines])), *lines])


def _to_plain(value: Any) -> Any:
    """Values for JSON: dataclasses without their histograms as objects, arrays as lists, keys as text."""
    if is_dataclass(value):
        plain = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "histogram"}
        return {name: _to_plain(part) for name, part in plain.items()}
    if isinstance(value, dict):
        return {str(key): _to_plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
