"""``fate.check_labels``: measures dense labels against exact ground truth, next to plain interpolation.

Interpolation comes in two kinds: with the tracks of the sparse ground truth, which only some datasets have, and without
tracks. Precision and recall are computed twice: between the first and the last annotated time, where both methods have
labels and can be compared; and over all times of the recordings, which training uses.

Recorded datasets have no exact ground truth. There, the labels of the windows right before and after an annotated time
are compared with the boxes of that time, as in the paper: *beside annotated times*. This is biased upwards, because
labels were tracked through those very boxes, and downwards for objects that move fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.dense_labels import DenseLabels, open_dense_labels
from fate.boxes.iou import expand_ranges
from fate.boxes.labels import COLUMNS as LABEL_COLUMNS
from fate.boxes.labels import Labels
from fate.data.clips import Grid
from fate.data.dataset import Dataset
from fate.data.labelled_recording import LabelledRecording
from fate.data.opening import as_dataset
from fate.densify.interpolation import interpolate
from fate.densify.making import truth_of
from fate.densify.quality import Quality
from fate.densify.sweep import streams_of
from fate.errors import FateError
from fate.evaluation.protocols import named_protocol
from fate.json_files import write_json
from fate.progress import Progress, scale
from fate.text import format_markdown_table, plural
from fate.view.evaluation_pictures import COLOURS
from fate.view.page import new_figure, rate_axis, write_figure
from fate.whole_files import find_target

Curves = dict[str, dict[str, list[float | None]]]

#: The labels that are compared, and the times.
METHODS = ("densified", "interpolated", "interpolated, tracks unknown")
SPANS = ("between annotated times", "all times")
#: The times for datasets without exact ground truth, where only dense labels are measured.
BESIDE = "beside annotated times"


#: Columns of the table, and the values of a row that they show.
COLUMNS = {
    "precision": "precision", "recall": "recall", "same recall": "precision_at_recall_of_interpolated",
    "median IoU": "median_iou", "IoU > 0.5": "above_half", "boxes": "labels", "truth": "truth",
}  # fmt: skip


@dataclass(frozen=True)
class LabelCheck:
    """The quality of a folder of dense labels."""

    labels: str
    dataset: str
    recordings: int
    rows: tuple[dict[str, Any], ...]  #: span, hz, method, class, and the values of ``Figures``
    detections: dict[float, Curves]  #: by rate: of the detections before tracking, over their score
    thresholds: dict[str, float]  #: lowest score of a label, by class
    sample: int | None = None  #: number of labels of each rate that were drawn at random; None for all

    @property
    def truth(self) -> str:
        """Description of the ground truth."""
        return "the nearest annotated boxes" if self.rows[0]["span"] == BESIDE else "the exact boxes"

    def table(self) -> str:
        """Markdown tables, one for each span of time."""
        lines = [
            f"{self.labels} against {self.truth} of {plural(self.recordings, 'recording')} of {self.dataset}.",
            "A label is right at IoU ≥ 0.5; annotated times are left out."
            " Same recall: precision of the surest labels that find as much as interpolation does.",
        ]
        if self.sample is not None:
            lines[1] += (
                f" Of each rate, up to {self.sample} labels were drawn at random, and the same share of the truth."
            )
        for span in dict.fromkeys(row["span"] for row in self.rows):
            cells = []
            for row in (row for row in self.rows if row["span"] == span):
                values = [row[value] for value in COLUMNS.values()]
                texts = [
                    "–" if each is None else f"{each:.3f}" if isinstance(each, float) else str(each) for each in values
                ]
                cells.append([f"{row['hz']:g}", row["class"], row["method"], *texts])
            lines += ["", f"{span}:", "", format_markdown_table(("Hz", "class", "labels", *COLUMNS), cells)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        detections = [{"hz": hz, "curves": curves} for hz, curves in self.detections.items()]
        return {**vars(self), "rows": list(self.rows), "detections": detections}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, and next to it a picture of precision and recall.

        No picture is written for standard output (``"-"``) or a device.
        """
        write_json(path, self.to_dict())
        if find_target(path, text=True).kind == "file":
            draw_check(self, Path(path).with_suffix(".png"))


def check_labels(
    labels: str | os.PathLike[str] | DenseLabels,
    dataset: str | os.PathLike[str] | Dataset,
    hz: Sequence[float] | None = None,
    *,
    split: str | None = None,
    kind: str | None = None,
    sample: int | None = None,
    progress: Progress | None = None,
) -> LabelCheck:
    """Measure dense labels against exact ground truth or, without it, against the nearest annotated boxes.

    Args:
        labels: a folder that ``fate.densify`` has written.
        dataset: the dataset of these labels: a folder, a YAML file, or an open dataset. Recordings without labels are
            left out, and recordings without exact ground truth if others have it (as in simulated datasets).
        hz: rates; all rates of the folder unless given.
        split, kind: see ``fate.densify``.
        sample: number of labels of each rate that are drawn at random and measured; all unless given. The paper draws
            10 000.
        progress: called with the share that is done, 0 to 1.
    """
    if sample is not None and sample < 1:
        raise FateError(f"sample={sample} was given; expected a number of labels, at least 1")
    dataset = as_dataset(dataset, split, kind=kind, usual="train")
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
    rows: list[dict[str, Any]] = []
    curves: dict[float, Curves] = {}
    for number, rate in enumerate(rates):
        part = None if progress is None else scale(progress, number / len(rates), (number + 1) / len(rates))
        found, curves[rate] = _measure_rate(folder, dataset, used, rate, bool(exact), sample, part)
        rows += found
    rows.sort(key=lambda row: (*SPANS, BESIDE).index(row["span"]))
    return LabelCheck(str(folder.root), dataset.name, len(used), tuple(rows), curves, folder.thresholds, sample)


def _measure_rate(
    folder: DenseLabels,
    dataset: Dataset,
    recordings: Sequence[LabelledRecording],
    hz: float,
    exact: bool,
    sample: int | None,
    progress: Progress | None,
) -> tuple[list[dict[str, Any]], Curves]:
    """Rows of one rate, and the curves of its detections."""
    rules = named_protocol(dataset.protocol, dataset.sensor)
    limits = rules.min_diagonal, rules.min_side  # of the smallest boxes that the protocol counts
    spans, methods = (SPANS, METHODS) if exact else ((BESIDE,), METHODS[:1])
    qualities = {kind: Quality(dataset.classes, *limits) for kind in product(spans, methods)}
    detections = Quality(dataset.classes, *limits)
    for number, recording in enumerate(recordings):
        sparse, dense, truth = truth_of(recording, dataset), folder.labels(recording.name, hz), recording.truth
        truth = None if truth is None else truth.objects
        seen = folder.predictions(recording.name, streams_of(hz).step_us)
        if truth is not None:
            grid = Grid.of(recording, hz)
            count = grid.count(recording.end_us)
            taken = [index for index in grid.labelled(sparse.labelled_us) if index < count]
            # the times of the rate that represent no annotated time
            times = np.setdiff1d(np.delete(grid.ends_us(count), taken), sparse.labelled_us)
            naive = interpolate(sparse, times)
            blind = interpolate(replace(sparse, track_id=np.full(len(sparse), -1)), times)
            for span, compared in zip(SPANS, (naive.labelled_us, times), strict=True):
                for method, labels in zip(METHODS, (dense, naive, blind), strict=True):
                    qualities[span, method].add(labels, truth, compared)
            if seen is not None:
                detections.add(seen, truth, times)
        else:
            qualities[BESIDE, METHODS[0]].add(dense, *annotated_boxes_near(sparse, recording, hz, (-1, 1)))
            if seen is not None:
                detections.add(seen, *annotated_boxes_near(sparse, recording, hz, (0,)))
        if progress is not None:
            progress((number + 1) / len(recordings))
    if sample is not None:
        for quality in qualities.values():
            quality.draw(sample)
    figures = {kind: quality.figures() for kind, quality in qualities.items()}
    rows = []
    for span, name, method in product(spans, dataset.classes, methods):
        recall = figures[span, METHODS[1]][name].recall if exact and method == METHODS[0] else None
        same = qualities[span, method].precision_at(name, recall) if recall else None
        row = {"span": span, "hz": hz, "method": method, "class": name, **asdict(figures[span, method][name])}
        rows.append(row | {"precision_at_recall_of_interpolated": same})
    return rows, detections.curves()


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
    columns = {name: getattr(sparse, name)[rows] for name in LABEL_COLUMNS} | {"t_us": ends[which]}
    moved = Labels.from_unsorted(columns, labelled_us=ends, classes=sparse.classes, sensor=sparse.sensor)
    return moved, ends


#: Precision is drawn from this recall on; below, it is that of a few boxes.
LEAST_RECALL = 0.005


def draw_check(check: LabelCheck, path: str | Path) -> None:
    """Draw a row for each class: detections over the threshold, precision over recall, and labels over the rate."""
    names, span, highest = list(check.thresholds), check.rows[0]["span"], max(check.detections)
    figure = new_figure(13, 3.6 * len(names))
    for name, (scores, recalls, rates) in zip(names, figure.subplots(len(names), 3, squeeze=False), strict=True):
        curve = check.detections[highest][name]
        draw_over_scores(scores, curve, check.thresholds[name])
        scores.set(xlabel="score threshold", ylabel="share", title=f"{name}: detections, {highest:g} Hz")
        recalls.plot(_numbers(curve["recall"]), _numbers(curve["precision"]), color="0.4", label="detections")
        hz: list[float] = []
        for method, colour, marker in zip(METHODS, COLOURS[:3], "osv", strict=True):
            rows = [row for row in check.rows if (row["span"], row["method"], row["class"]) == (span, method, name)]
            if not rows:
                continue
            hz = [row["hz"] for row in rows]
            shares = {figure: _numbers([row[figure] for row in rows]) for figure in ("precision", "recall")}
            recalls.plot(shares["recall"], shares["precision"], marker, color=colour, label=method)
            rates.plot(hz, shares["precision"], "o-", color=colour, label=f"{method}: precision")
            rates.plot(hz, shares["recall"], "s--", color=colour, label=f"{method}: recall")
        recalls.set(
            xlabel="recall", ylabel="precision", title=f"{name}: one point a rate", ylim=(0, 1.02), xlim=(0, 1.02)
        )
        rate_axis(rates, hz)
        rates.set(xlabel="rate in Hz", ylabel="share", title=f"{name}: labels", ylim=(0, 1.02))
        scores.legend(frameon=False)
        recalls.legend(frameon=False)
        if name == names[0]:  # once, because it is the same for all classes
            rates.legend(frameon=False, fontsize=8)
        for axes in (recalls, rates):
            axes.grid(alpha=0.3)
    figure.suptitle(f"{check.labels}: labels of {check.dataset} against {check.truth}, {span}", fontsize=11)
    write_figure(figure, path, dpi=130)


def draw_over_scores(axes: Any, curve: Mapping[str, list[float | None]], threshold: float) -> None:
    """Draw precision and recall of detections over their lowest score, and the threshold of labels."""
    recall, precision = _numbers(curve["recall"]), _numbers(curve["precision"])
    precision[~(recall >= LEAST_RECALL)] = np.nan
    axes.plot(_numbers(curve["threshold"]), precision, color=COLOURS[0], label="precision")
    axes.plot(_numbers(curve["threshold"]), recall, color=COLOURS[1], label="recall")
    axes.axvline(threshold, color="0.5", linestyle=":", label="threshold of labels")
    axes.set(ylim=(0, 1.02), xlim=(0, 1))
    axes.grid(alpha=0.3)


def _numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array(values, np.float64)  # None becomes NaN
