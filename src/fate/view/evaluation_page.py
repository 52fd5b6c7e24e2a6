"""The page of an evaluation: figures, curves, confusion matrices, kinds of errors and sample frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fate.data.dataset import Dataset
from fate.errors import FateError
from fate.evaluation.error_kinds import KINDS, ErrorKinds
from fate.evaluation.evaluate import AtRate, Evaluation
from fate.text import or_dash
from fate.view.evaluation_pictures import plot_recall, sample_pictures
from fate.view.page import draw_plot, log_axis, percent, picture_address, write_page

METRICS = ("AP50:95", "AP50", "AP75")


def write_evaluation_page(evaluation: Evaluation, dataset: Dataset, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all.

    Args:
        evaluation: with the kinds of errors: ``evaluate(…, errors=True)``.
        dataset: what was evaluated; its recordings are opened for sample frames.
        path: an ``.html``; replaced if it exists.
    """
    rates = [
        {
            "hz": f"{at.hz:g}",
            "classes": _class_rows(at),
            "columns": list(_errors_of(at).classes),
            "confusion": _confusion_rows(_errors_of(at)),
            "threshold": f"{_errors_of(at).threshold:g}",
            "tide": _tide_rows(_errors_of(at)),
        }
        for at in evaluation.rates
    ]
    plots = [
        (draw_plot(_plot_accuracy, evaluation.rates), "Accuracy over rate, in %."),
        (draw_plot(plot_recall, evaluation.rates), "Precision over recall at IoU 0.5, mean of classes, in %."),
        (draw_plot(_plot_gain, evaluation.rates), "Points of AP50 that repairing each kind of error would gain."),
    ]
    samples = [
        (picture_address(picture), f"{at.hz:g} Hz, {name}: labels on the left, detections on the right.")
        for at in evaluation.rates[-1:]
        for name, picture in sample_pictures(at, dataset)
    ]
    write_page(
        path, "evaluation.html", title=f"{evaluation.what} on {evaluation.dataset}",
        lead=f"Protocol {evaluation.protocol.name}; {evaluation.rates[0].scores.describe_counts()}.",
        header=("Hz", *METRICS, "of 20 Hz", "false positives / min"), rows=[_rate_row(evaluation, at) for at in
        evaluation.rates], plots=plots, rates=rates, samples=samples, metrics=METRICS,
        meanings=[meaning.split(": ", 1) for meaning in KINDS.values()],
        notes=[*evaluation.notes, *(note for at in evaluation.rates for note in at.scores.notes)],
    )  # fmt: skip


def _errors_of(at: AtRate) -> ErrorKinds:
    if at.scores.errors is None:
        raise FateError("the evaluation has no kinds of errors; evaluate with errors=True for a page")
    return at.scores.errors


def _rate_row(evaluation: Evaluation, at: AtRate) -> list[str]:
    figures = [*(at.scores[metric] for metric in METRICS), evaluation.kept(at)]
    return [f"{at.hz:g}", *map(percent, figures), or_dash(at.scores.false_positives.per_minute, ".1f")]


def _class_rows(at: AtRate) -> list[list[str]]:
    counts = at.scores.counts
    return [
        [name, *(percent(figures[metric]) for metric in METRICS), str(counts.truth_by_class[name])]
        for name, figures in at.scores.by_class.items()
    ]


def _confusion_rows(errors: ErrorKinds) -> list[list[Any]]:
    """A row per class of the ground truth, with each count and its share of the row; right ones are marked good."""
    rows: list[list[Any]] = []
    for index, name in enumerate((*errors.classes, "background")):
        total = int(errors.confusion[index].sum())
        is_object = index < len(errors.classes)  # shares of the background mean nothing: it has no number of objects
        row: list[Any] = [name]
        for column, count in enumerate(errors.confusion[index].tolist()):
            text = f"{count} ({count / total:.0%})" if is_object and total else str(count)
            row.append((text, "good") if column == index and is_object else text)
        row[-1] = row[-1] if is_object else "–"
        rows.append(row)
    return rows


def _tide_rows(errors: ErrorKinds) -> list[list[str]]:
    return [[_kind_name(kind), str(errors.counts[kind]), f"{100 * errors.ap_gain[kind]:.1f}"] for kind in KINDS]


def _kind_name(kind: str) -> str:
    """The first word of the meaning of a kind of TIDE, such as ``"localisation"`` for ``"Loc"``."""
    return KINDS[kind].partition(":")[0]


def _plot_accuracy(axes: Any, rates: Sequence[AtRate]) -> None:
    hz = [at.hz for at in rates]
    for metric in METRICS:
        values = [at.scores[metric] for at in rates]
        axes.plot(hz, [float("nan") if v is None else 100 * v for v in values], "o-", label=metric)
    log_axis(axes.xaxis)
    axes.set(xlabel="rate in Hz", ylabel="%", ylim=(0, None))
    axes.set_xticks(hz, [f"{rate:g}" for rate in hz])


def _plot_gain(axes: Any, rates: Sequence[AtRate]) -> None:
    width = 0.8 / len(rates)
    for number, at in enumerate(rates):
        gains = [100 * _errors_of(at).ap_gain[kind] for kind in KINDS]
        lefts = [index - 0.4 + (number + 0.5) * width for index in range(len(KINDS))]
        axes.bar(lefts, gains, width, label=f"{at.hz:g} Hz")
    axes.set_xticks(range(len(KINDS)), [_kind_name(kind) for kind in KINDS], rotation=20)
    axes.set(ylabel="points of AP50", ylim=(0, None))
