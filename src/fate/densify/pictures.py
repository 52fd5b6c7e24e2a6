"""The picture beside a check of labels: precision and recall of detections over thresholds, of labels over rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fate.view.page import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fate.densify.checking import LabelCheck, Row

#: Distinct for readers who do not see red and green apart (Okabe and Ito).
COLOURS = BLUE, ORANGE, GREEN = "#0072b2", "#e69f00", "#009e73"
#: Below this recall no precision is drawn.
LEAST_RECALL = 0.005


def draw_check(check: LabelCheck, path: str | Path) -> None:
    """A row for each class: detections over the threshold, their precision over recall, and labels over the rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (a second to load)
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = list(check.thresholds)
    figure = Figure(figsize=(13, 3.6 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for name, axes in zip(names, figure.subplots(len(names), 3, squeeze=False), strict=True):
        _draw_thresholds(axes[0], check, name)
        _draw_curves(axes[1], check, name)
        _draw_rates(axes[2], check, name)
    told = f"{check.labels}: labels of {check.dataset} against {check.truth}, {check.rows[0].span}"
    figure.suptitle(told, fontsize=11)
    write_figure(figure, path, dpi=130)


def _draw_thresholds(axes: Axes, check: LabelCheck, name: str) -> None:
    """Of detections at the densest rate, which sees all phases."""
    hz = max(check.detections)
    draw_over_scores(axes, check.detections[hz][name], check.thresholds[name])
    axes.set(xlabel="score threshold", ylabel="share", title=f"{name}: detections, {hz:g} Hz")
    axes.legend(frameon=False)


def draw_over_scores(axes: Axes, curve: Mapping[str, list[float | None]], sure: float) -> None:
    """Precision and recall of detections of at least each score; dotted where they are sure enough for a label.

    Precision is left out where next to nothing is found: it is that of a handful of boxes.
    """
    recall = _numbers(curve["recall"])
    some = [value if found >= LEAST_RECALL else math.nan
            for value, found in zip(_numbers(curve["precision"]), recall, strict=True)]  # fmt: skip
    axes.plot(_numbers(curve["threshold"]), some, color=BLUE, label="precision")
    axes.plot(_numbers(curve["threshold"]), recall, color=ORANGE, label="recall")
    axes.axvline(sure, color="0.5", linestyle=":", label="sure enough for a label")
    axes.set(ylim=(0, 1.02), xlim=(0, 1))
    axes.grid(alpha=0.3)


def _draw_curves(axes: Axes, check: LabelCheck, name: str) -> None:
    """Detections as a curve, labels of each rate as points."""
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
    if name == next(iter(check.thresholds)):  # once: it is the same for all classes, and in the way
        axes.legend(frameon=False, fontsize=8)


def _methods(check: LabelCheck, name: str) -> dict[str, list[Row]]:
    """Rows of a class by method, in the span where methods can be compared."""
    span, found = check.rows[0].span, dict[str, list["Row"]]()
    for row in check.rows:
        if row.name == name and row.span == span:
            found.setdefault(row.method, []).append(row)
    return found


def _numbers(values: list[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
