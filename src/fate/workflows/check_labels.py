"""``fate.check_labels``: measures dense labels against exact ground truth, next to plain interpolation.

Interpolation comes in two kinds: with the tracks of the sparse ground truth, which only some datasets have, and without
tracks. Precision and recall are computed twice: between the first and the last annotated time, where both methods have
labels and can be compared; and over all times of the recordings, which training uses.

Recorded datasets have no exact ground truth. There, the labels of the windows right before and after an annotated time
are compared with the boxes of that time, as in the paper: *beside annotated times*. This is biased upwards, because
labels were tracked through those very boxes, and downwards for objects that move fast.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.dense_labels import DenseLabels, open_dense_labels
from fate.boxes.iou import expand_ranges
from fate.boxes.labels import COLUMNS, Labels
from fate.data.clips import Grid
from fate.data.dataset import Dataset
from fate.data.labelled_recording import LabelledRecording
from fate.densify.interpolation import interpolate
from fate.densify.making import truth_of
from fate.densify.quality import Figures, Quality, SizeLimits
from fate.densify.sweep import streams_of
from fate.errors import FateError
from fate.evaluation.protocols import named_protocol
from fate.progress import Progress, scale
from fate.text import plural
from fate.view.page import write_figure
from fate.whole_files import find_target, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = dict[str, dict[str, list[float | None]]]

#: The labels that are compared, and the times.
METHODS = ("densified", "interpolated", "interpolated, tracks unknown")
SPANS = ("between annotated times", "all times")
#: The times for datasets without exact ground truth, where only dense labels are measured.
BESIDE = "beside annotated times"


@dataclass(frozen=True)
class QualityRow:
    """One row of the table."""

    span: str
    hz: float
    method: str
    name: str  #: of the class
    figures: Figures
    same_recall: float | None = None  #: precision of the best densified labels with the recall of interpolation


@dataclass(frozen=True)
class LabelCheck:
    """The quality of a folder of dense labels."""

    labels: str
    dataset: str
    recordings: int
    rows: tuple[QualityRow, ...]
    detections: dict[float, Curves]  #: by rate: of the detections before tracking, over their score
    thresholds: dict[str, float]  #: lowest score of a label, by class

    def row(self, hz: float, name: str, method: str = METHODS[0], span: str = SPANS[0]) -> Figures:
        """The figures of one row."""
        wanted = (span, hz, method, name)
        for row in self.rows:
            if (row.span, row.hz, row.method, row.name) == wanted:
                return row.figures
        raise FateError(f"{self.labels}: has no figures for {wanted}; see its rows")

    @property
    def truth(self) -> str:
        """Description of the ground truth."""
        return "the nearest annotated boxes" if self.rows[0].span == BESIDE else "the exact boxes"

    def table(self) -> str:
        """Markdown tables, one for each span of time."""
        spans = list(dict.fromkeys(row.span for row in self.rows))
        lines = [f"{self.labels} against {self.truth} of {plural(self.recordings, 'recording')} of {self.dataset}."]
        lines += ["A label is right at IoU ≥ 0.5; annotated times are left out.", ""]
        lines[1] += " Same recall: precision of the surest labels that find as much as interpolation does."
        head = "Hz | class | labels | precision | recall | same recall | median IoU | IoU > 0.5 | boxes | truth"
        for span in spans:
            lines += [f"{span}:", "", f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
            lines += [f"| {' | '.join(_cells(row))} |" for row in self.rows if row.span == span]
            lines.append("")
        return "\n".join(lines[:-1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {
            "labels": self.labels,
            "dataset": self.dataset,
            "recordings": self.recordings,
            "rows": [
                {"span": row.span, "hz": row.hz, "method": row.method, "class": row.name, **asdict(row.figures)}
                | {"precision_at_recall_of_interpolated": row.same_recall}
                for row in self.rows
            ],
            "detections": [{"hz": hz, "curves": curves} for hz, curves in self.detections.items()],
            "thresholds": self.thresholds,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, and next to it a picture of precision and recall.

        No picture is written for standard output (``"-"``) or a device.
        """
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
        write_whole(path, f"{text}\n".encode("utf-8", "backslashreplace"), text=True)
        if find_target(path, text=True).kind != "file":
            return
        draw_check(self, Path(path).with_suffix(".png"))


def check_labels(
    labels: str | os.PathLike[str] | DenseLabels,
    dataset: Dataset,
    hz: Sequence[float] | None = None,
    *,
    progress: Progress | None = None,
) -> LabelCheck:
    """Measure dense labels against exact ground truth or, without it, against the nearest annotated boxes.

    Args:
        labels: a folder that ``densify`` has written.
        dataset: that they were made for. Recordings without labels are left out, and recordings without exact ground
            truth if others have it (as in simulated datasets).
        hz: rates; all rates of the folder unless given.
        progress: called with the share that is done, 0 to 1.
    """
    folder = labels if isinstance(labels, DenseLabels) else open_dense_labels(labels)
    if folder.classes != tuple(dataset.classes):
        raise FateError(
            f"{folder.root}: has labels of {', '.join(folder.classes)}; {dataset.root} has"
            f" {', '.join(dataset.classes)}; expected the dataset they were made for"
        )
    rates = folder.rates if hz is None else tuple(float(rate) for rate in hz)
    exact = [recording for recording in dataset.recordings if recording.truth_file is not None]
    known = exact or dataset.recordings
    used = [recording for recording in known if any(folder.has(recording.name, rate) for rate in folder.rates)]
    if not used:
        raise FateError(f"{folder.root}: has labels of no recording of {dataset.root}; give the split they are of")
    rows: list[QualityRow] = []
    curves: dict[float, Curves] = {}
    for number, rate in enumerate(rates):
        part = None if progress is None else scale(progress, number / len(rates), (number + 1) / len(rates))
        found, curves[rate] = _measure_rate(folder, dataset, used, rate, bool(exact), part)
        rows += found
    rows.sort(key=lambda row: (*SPANS, BESIDE).index(row.span))
    return LabelCheck(str(folder.root), dataset.name, len(used), tuple(rows), curves, folder.thresholds)


def _measure_rate(
    folder: DenseLabels,
    dataset: Dataset,
    recordings: Sequence[LabelledRecording],
    hz: float,
    exact: bool,
    progress: Progress | None,
) -> tuple[list[QualityRow], Curves]:
    limits = size_limits(dataset)
    spans, methods = (SPANS, METHODS) if exact else ((BESIDE,), METHODS[:1])
    qualities = {kind: Quality(dataset.classes, limits) for kind in product(spans, methods)}
    detections = Quality(dataset.classes, limits)
    step = streams_of(hz).step_us
    for number, recording in enumerate(recordings):
        sparse, dense = truth_of(recording, dataset), folder.labels(recording.name, hz)
        seen = folder.predictions(recording.name, step)
        if exact:
            _add_exact(qualities, detections, sparse, dense, seen, recording, hz)
        else:
            qualities[BESIDE, METHODS[0]].add(dense, *annotated_boxes_near(sparse, recording, hz, (-1, 1)))
            if seen is not None:
                detections.add(seen, *annotated_boxes_near(sparse, recording, hz, (0,)))
        if progress is not None:
            progress((number + 1) / len(recordings))
    figures = {kind: quality.figures() for kind, quality in qualities.items()}
    rows = []
    for span, name, method in product(spans, dataset.classes, methods):
        recall = figures[span, METHODS[1]][name].recall if exact and method == METHODS[0] else None
        same = qualities[span, method].precision_at(name, recall) if recall else None
        rows.append(QualityRow(span, hz, method, name, figures[span, method][name], same))
    return rows, detections.curves()


def _add_exact(
    qualities: dict[tuple[str, str], Quality],
    detections: Quality,
    sparse: Labels,
    dense: Labels,
    seen: Labels | None,
    recording: LabelledRecording,
    hz: float,
) -> None:
    """Add a recording with exact ground truth, and the interpolation of its sparse labels."""
    truth = recording.truth
    if truth is None:
        return
    times = _free_times(sparse, recording, hz)
    naive = interpolate(sparse, times)
    blind = interpolate(replace(sparse, track_id=np.full(len(sparse), -1)), times)
    for span, compared in zip(SPANS, (naive.labelled_us, times), strict=True):
        for method, labels in zip(METHODS, (dense, naive, blind), strict=True):
            qualities[span, method].add(labels, truth, compared)
    if seen is not None:
        detections.add(seen, truth, times)


def annotated_boxes_near(
    sparse: Labels, recording: LabelledRecording, hz: float, steps: Sequence[int]
) -> tuple[Labels, NDArray[np.int64]]:
    """Annotated boxes, moved to the ends of windows ``steps`` away from the window of their time; and these ends.

    Windows that represent an annotated time themselves are left out, except for step 0.
    """
    grid = Grid.of(recording, hz)
    count = grid.count(recording.end_us)
    annotated = {number: time for number, time in grid.labelled(sparse.labelled_us).items() if number < count}
    target: dict[int, int] = {}  # end of a window → the nearest annotated time
    for number, time in annotated.items():
        for step in steps:
            if 0 <= number + step < count and (step == 0 or number + step not in annotated):
                end = grid.end_us(number + step)
                if end not in target or abs(time - end) < abs(target[end] - end):
                    target[end] = time
    ends = np.array(sorted(target), np.int64)
    against = np.array([target[end] for end in ends.tolist()], np.int64)
    first, last = (np.searchsorted(sparse.t_us, against, side).astype(np.int64) for side in ("left", "right"))
    which, rows = expand_ranges(first, last)
    columns = {name: getattr(sparse, name)[rows] for name in COLUMNS} | {"t_us": ends[which]}
    moved = Labels.from_unsorted(columns, labelled_us=ends, classes=sparse.classes, sensor=sparse.sensor)
    return moved, ends


def size_limits(dataset: Dataset) -> SizeLimits:
    """The smallest boxes that the dataset's protocol counts."""
    rules = named_protocol(dataset.protocol, dataset.sensor)
    return SizeLimits(rules.min_diagonal, rules.min_side)


def _free_times(sparse: Labels, recording: LabelledRecording, hz: float) -> NDArray[np.int64]:
    """Times of the rate that represent no annotated time."""
    grid = Grid.of(recording, hz)
    count = grid.count(recording.end_us)
    times = grid.ends_us(count)
    taken = [number for number in grid.labelled(sparse.labelled_us) if number < count]
    return np.setdiff1d(np.delete(times, taken), sparse.labelled_us)


def _cells(row: QualityRow) -> list[str]:
    figures = row.figures
    numbers = (figures.precision, figures.recall, row.same_recall, figures.median_iou, figures.above_half)
    cells = [f"{row.hz:g}", row.name, row.method, *("–" if value is None else f"{value:.3f}" for value in numbers)]
    return [*cells, str(figures.labels), str(figures.truth)]


#: Colours that colour-blind readers can distinguish (Okabe and Ito).
COLOURS = BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"
#: Precision is drawn from this recall on; below, it is that of a few boxes.
LEAST_RECALL = 0.005


def draw_check(check: LabelCheck, path: str | Path) -> None:
    """Draw a row for each class: detections over the threshold, precision over recall, and labels over the rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (a second to load)
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = list(check.thresholds)
    figure = Figure(figsize=(13, 3.6 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for name, axes in zip(names, figure.subplots(len(names), 3, squeeze=False), strict=True):
        _draw_thresholds(axes[0], check, name)
        _draw_curves(axes[1], check, name)
        _draw_rates(axes[2], check, name)
    title = f"{check.labels}: labels of {check.dataset} against {check.truth}, {check.rows[0].span}"
    figure.suptitle(title, fontsize=11)
    write_figure(figure, path, dpi=130)


def _draw_thresholds(axes: Axes, check: LabelCheck, name: str) -> None:
    hz = max(check.detections)
    draw_over_scores(axes, check.detections[hz][name], check.thresholds[name])
    axes.set(xlabel="score threshold", ylabel="share", title=f"{name}: detections, {hz:g} Hz")
    axes.legend(frameon=False)


def draw_over_scores(axes: Axes, curve: Mapping[str, list[float | None]], threshold: float) -> None:
    """Draw precision and recall of detections over their lowest score, and the threshold of labels."""
    recall = _numbers(curve["recall"])
    some = [value if found >= LEAST_RECALL else math.nan
            for value, found in zip(_numbers(curve["precision"]), recall, strict=True)]  # fmt: skip
    axes.plot(_numbers(curve["threshold"]), some, color=BLUE, label="precision")
    axes.plot(_numbers(curve["threshold"]), recall, color=ORANGE, label="recall")
    axes.axvline(threshold, color="0.5", linestyle=":", label="threshold of labels")
    axes.set(ylim=(0, 1.02), xlim=(0, 1))
    axes.grid(alpha=0.3)


def _draw_curves(axes: Axes, check: LabelCheck, name: str) -> None:
    """Draw detections as a curve, and the labels of each rate as points."""
    hz = max(check.detections)
    curve = check.detections[hz][name]
    axes.plot(_numbers(curve["recall"]), _numbers(curve["precision"]), color="0.4", label="detections")
    for (method, rows), colour, marker in zip(_methods(check, name).items(), COLOURS, "osv", strict=False):
        recall, precision = ([getattr(row.figures, figure) for row in rows] for figure in ("recall", "precision"))
        axes.plot(_numbers(recall), _numbers(precision), marker, color=colour, label=method)
    axes.set(xlabel="recall", ylabel="precision", title=f"{name}: one point a rate", ylim=(0, 1.02), xlim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _draw_rates(axes: Axes, check: LabelCheck, name: str) -> None:
    rates: list[float] = []
    for (method, rows), colour in zip(_methods(check, name).items(), COLOURS, strict=False):
        rates = [row.hz for row in rows]
        for figure, line in (("precision", "o-"), ("recall", "s--")):
            values = [getattr(row.figures, figure) for row in rows]
            axes.plot(rates, _numbers(values), line, color=colour, label=f"{method}: {figure}")
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set(xlabel="rate in Hz", ylabel="share", title=f"{name}: labels", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    if name == next(iter(check.thresholds)):  # once, because it is the same for all classes
        axes.legend(frameon=False, fontsize=8)


def _methods(check: LabelCheck, name: str) -> dict[str, list[QualityRow]]:
    """Rows of a class by method, in the first span."""
    span, found = check.rows[0].span, dict[str, list[QualityRow]]()
    for row in check.rows:
        if row.name == name and row.span == span:
            found.setdefault(row.method, []).append(row)
    return found


def _numbers(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
