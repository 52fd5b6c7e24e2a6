"""``inspect`` measures the events and boxes of a dataset, compares them with real data, and names faults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from fate.data.dataset import Dataset, path_of
from fate.data.manifests import Comparison, find_listing
from fate.errors import FateError
from fate.events.sensors import GEN1_SENSOR, MPX_SENSOR
from fate.inspection import references
from fate.inspection.page import Contents, write_inspection_page
from fate.inspection.references import Row
from fate.inspection.reports import (
    ClassBoxes,
    FaultCount,
    RecordingReport,
    boxes_by_class,
    count_faults,
    figures,
    find_subjects,
    motion_source,
    report_on,
)
from fate.progress import Progress, ignore, scale
from fate.text import plural

HASHING = 100  # thousandths of the work on a recording that hashing its files takes, roughly
SHOWN_FLAGS = 20  # in the text

HEADER = ("", "this dataset", "real Gen1", "real 1Mpx")

#: Sensors of the public datasets, 1Mpx also at the half resolution of RVT.
COMPARED_SENSORS = (GEN1_SENSOR, MPX_SENSOR, (360, 640))
#: Rows of the text for a dataset with another sensor, whose figures cannot be compared with the public ones.
OWN_ROWS = (
    references.RATE, references.BUSIEST, references.ON, references.SILENT, references.REPEATS, references.ACTIVE,
    references.LABEL_RATE, references.PER_FRAME, references.LIFE,
)  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """The reports on all recordings of a dataset. Made by :func:`inspect`."""

    dataset: str
    split: str | None
    reports: tuple[RecordingReport, ...]  #: one for each recording that could be read
    unreadable: tuple[str, ...]  #: a sentence for each recording that could not
    comparison: Comparison | None = None  #: with the manifest of a simulated dataset; None without one

    @property
    def figures(self) -> dict[str, float]:
        """Figures by name; :data:`fate.inspection.references.ROWS` says what each means."""
        return figures(self.reports)

    @property
    def is_gen1_like(self) -> bool:
        """Whether all recordings are of Gen1's sensor, so that its ranges apply."""
        return all(report.sensor == GEN1_SENSOR for report in self.reports)

    @property
    def outside(self) -> tuple[Row, ...]:
        """Rows with a figure outside the range for Gen1-like data; empty for other sensors."""
        if not self.is_gen1_like:
            return ()
        found = self.figures
        return tuple(row for row in references.ROWS if row.judge(found))

    @property
    def classes(self) -> list[ClassBoxes]:
        """Boxes by class."""
        return boxes_by_class(self.reports)

    @property
    def faults(self) -> list[FaultCount]:
        """Faults of the labels by kind."""
        return count_faults(self.reports)

    def rows(self) -> list[tuple[str, ...]]:
        """The table against real data: title, this dataset, Gen1, 1Mpx and, for Gen1's sensor, range and verdict."""
        found = self.figures
        rows = []
        for row in references.ROWS:
            shown = row.show(found, judged=self.is_gen1_like)
            cells = [row.title, shown, row.gen1, row.mpx]
            if self.is_gen1_like:
                judged = row.accept is not None and shown != "–"  # a figure that was not measured is neither in nor out
                verdict = "" if not judged else ("out" if row.judge(found) else "in")
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
        sensors = Counter(f"{width}×{height}" for height, width in (report.sensor for report in self.reports))
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
        found = self.figures
        listed = [
            f"{row.title.strip()} = {row.show(found, judged=True)} (accepted: {row.accepted_text()})"
            for row in self.outside
        ]
        return (
            f"outside the ranges for Gen1-like data: {'; '.join(listed)}"
            if listed
            else "inside all ranges for Gen1-like data"
        )

    @property
    def motion_source(self) -> str:
        """Where speeds, track lives and faults come from; empty if that is the labels alone."""
        return motion_source(self.reports)

    @property
    def flags(self) -> tuple[str, ...]:
        """A sentence for each file of a simulated dataset that is not as its manifest says."""
        return () if self.comparison is None else self.comparison.flags

    @property
    def remarks(self) -> list[str]:
        """Sentences about recordings that cannot be read, and labels that do not fit."""
        return [*self.unreadable, *(note for report in self.reports for note in report.notes)]

    @property
    def is_compared(self) -> bool:
        """Whether the text has the figures of the public datasets too: for their sensors, and for simulated drives."""
        return self.comparison is not None or all(report.sensor in COMPARED_SENSORS for report in self.reports)

    def _own_rows(self) -> list[tuple[str, ...]]:
        """The figures of :data:`OWN_ROWS` that were measured, without those of other datasets."""
        found = self.figures
        shown = ((row.title, row.show(found)) for row in OWN_ROWS)
        return [cells for cells in shown if cells[1] != references.UNKNOWN]

    def text(self) -> str:
        """Everything as plain text; only a few figures if no public dataset has this sensor."""
        compared = self.is_compared
        table = _table(self.header, self.rows()) if compared else _table(HEADER[:2], self._own_rows())
        parts = [f"{self.dataset}: {self.lead}", "", table]
        if self.verdict:
            parts += ["", self.verdict]
        classes = self.classes
        if classes:
            cells = [each.cells() for each in classes]
            real = references.REAL_BOXES if compared else ()
            parts += ["", _table(references.BOX_COLUMNS, [*cells, *real])]
            if self.motion_source:
                parts += ["", self.motion_source]
            faults = [(each.kind, each.text(), each.worst_text()) for each in self.faults]
            parts += ["", _table(("boxes that look wrong", "", ""), faults, left=3)]
        if self.comparison is not None:
            parts += ["", self.comparison.summary]
            parts += [f"flag: {flag}" for flag in self.flags[:SHOWN_FLAGS]]
            if len(self.flags) > SHOWN_FLAGS:
                parts.append(f"and {len(self.flags) - SHOWN_FLAGS} more flags; the page and the JSON have all")
        parts += [f"note: {remark}" for remark in self.remarks]
        if not compared:
            parts += ["", "The page has more figures, beside those of Gen1 and 1Mpx, and pictures of the boxes."]
        return "\n".join(parts)

    def page(self, path: str | os.PathLike[str]) -> None:
        """Write a page with plots and pictures, in one HTML file."""
        write_inspection_page(
            path,
            Contents(
                title=f"{self.dataset}",
                lead=self.lead,
                header=self.header,
                rows=self.rows(),
                verdict=self.verdict,
                figures=self.figures,
                gen1_like=self.is_gen1_like,
                reports=self.reports,
                classes=self.classes,
                faults=self.faults,
                motion_source=self.motion_source,
                files="" if self.comparison is None else self.comparison.summary,
                flags=self.flags,
                remarks=self.remarks,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: figures of the dataset, its faults, and a report on each recording."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "figures": self.figures,
            "gen1_like": self.is_gen1_like,
            "outside": [key for row in self.outside for key in row.judge(self.figures)],
            "faults": {
                each.kind: {"meaning": each.meaning, "number": each.number, "checked": each.checked}
                for each in self.faults
            },
            "motion_source": self.motion_source,
            "files_compared": None if self.comparison is None else self.comparison.num_files,
            "flags": list(self.flags),
            "recordings": [_report_dict(report) for report in self.reports],
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

    comparison = None if listing is None else listing.compare(scale(progress or ignore, 0, hashing, total))
    for index, subject in enumerate(subjects):
        share = scale(progress or ignore, hashing + 1000 * index, hashing + 1000 * (index + 1), total)
        try:
            reports.append(report_on(subject, windows=windows, progress=share))
        except FateError as error:
            unreadable.append(str(error))
    if not reports:
        more = f" (and {len(unreadable) - 1} more like it)" if len(unreadable) > 1 else ""
        raise FateError(f"no recording can be read; {unreadable[0]}{more}")
    return Inspection(str(dataset), split, tuple(reports), tuple(unreadable), comparison)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int = 1) -> str:
    """A table with aligned columns: the first ``left`` ones to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    made = [
        "  ".join(
            f"{cell:<{width}}" if column < left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([made[0], "─" * max(len(line) for line in made), *made[1:]])


def _report_dict(report: RecordingReport) -> dict[str, Any]:
    labels = report.labels
    return {
        "name": report.entry.name,
        "split": report.entry.split,
        "format": report.format,
        "events": _to_plain(report.events),
        "labels": labels
        and {
            "num_boxes": labels.num_boxes,
            "num_times": labels.num_times,
            "rate_hz": labels.rate_hz,
            "truth_hz": labels.truth_hz,
            "faults": labels.counts,
            "checked": labels.checked,
            "worst": [vars(fault) for fault in labels.faults],
        },
    }


def _to_plain(value: Any) -> Any:
    """Values for JSON: dataclasses without their histograms as objects, arrays as lists, keys as text."""
    if is_dataclass(value):
        plain = {each.name: getattr(value, each.name) for each in fields(value) if each.name != "histogram"}
        return {name: _to_plain(part) for name, part in plain.items()}
    if isinstance(value, dict):
        return {str(key): _to_plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
