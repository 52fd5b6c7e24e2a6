"""Pictures of an evaluation: accuracy over rate, precision over recall, and labels beside predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fate.boxes.drawing import Picture, draw_events, draw_labels, enlargement, side_by_side
from fate.data.dataset import Dataset
from fate.data.rvt_layout import RvtSequence
from fate.evaluation.error_kinds import MATCH_IOU
from fate.evaluation.evaluate import AtRate, Evaluation
from fate.events.events import Events
from fate.rates import CANONICAL_US
from fate.view.page import new_figure, rate_axis, write_figure
from fate.whole_files import find_target

#: Distinct with red-green blindness too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
RECORDINGS = 3  # in a picture of samples
THRESHOLD = 0.3  # score of the predictions that are drawn
EVENTS_US = 20_000  # events of this time before a label are drawn
SETTLED_US = 500_000  # windows after this time are preferred, because the state is empty at the start


def save_with_picture(evaluation: Evaluation, path: str | Path) -> None:
    """Write the figures as JSON and, if that is a regular file, a picture of the same name as PNG."""
    evaluation.save(path)
    if find_target(path, text=True).kind == "file":
        draw_rates(evaluation, Path(path).with_suffix(".png"))


def draw_rates(evaluation: Evaluation, path: str | Path) -> None:
    """Draw AP over rate, and precision over recall at IoU 0.5 for each rate, averaged over classes."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    rates = [rate.hz for rate in evaluation.rates]
    for metric, colour in zip(("AP50:95", "AP50", "AP75"), COLOURS, strict=False):
        values = [rate.scores[metric] for rate in evaluation.rates]
        percent = [float("nan") if value is None else 100 * value for value in values]
        left.plot(rates, percent, "o-", color=colour, label=metric)
        left.annotate(f"{percent[-1]:.1f}", (rates[-1], percent[-1]), (6, 0), textcoords="offset points", va="center",
                      color=colour, fontsize=9)  # fmt: skip
    rate_axis(left, rates)
    left.margins(x=0.12)
    left.set(xlabel="rate in Hz (window = 1 / rate)", ylabel="%", title="accuracy", ylim=(0, None))
    right.set_prop_cycle(color=COLOURS)
    plot_recall(right, evaluation.rates)
    right.set_title("at IoU 0.5, mean of classes")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(f"{evaluation.what} on {evaluation.dataset}, protocol {evaluation.protocol.name}", fontsize=11)
    write_figure(figure, path, dpi=150)


def plot_recall(axes: Any, rates: Sequence[AtRate]) -> None:
    """Draw precision over recall at IoU 0.5, the mean of all classes, a line for each rate."""
    for at in rates:
        curves = list(at.scores.average_precision.curves.values())
        if curves:
            mean = sum(curve.at(MATCH_IOU) for curve in curves) / len(curves)
            axes.plot(100 * curves[0].recall, 100 * mean, label=f"{at.hz:g} Hz")
    axes.set(xlabel="recall in %", ylabel="precision in %", ylim=(0, 102))


def draw_samples(at: AtRate, dataset: Dataset, path: Path) -> None:
    """Write the pictures of :func:`sample_pictures`, one below the other; nothing if there are none."""
    rows = [picture for _, picture in sample_pictures(at, dataset)]
    if rows:
        Image.fromarray(np.concatenate(rows)).save(path)


def sample_pictures(at: AtRate, dataset: Dataset) -> list[tuple[str, Picture]]:
    """Draw labels and predictions of a few recordings, each in the window with most boxes; with the recordings' names.

    There are none of predictions from a file.
    """
    rows = []
    for recording in dataset.labelled[:RECORDINGS]:
        labels, predicted = recording.labels, at.run.predictions.get(recording.name) if at.run else None
        if predicted is None or not len(labels):
            continue
        times, counts = np.unique(labels.t_us, return_counts=True)
        late = times >= recording.start_us + SETTLED_US
        chosen = np.where(late, counts, 0) if late.any() else counts
        time = int(times[np.argmax(chosen)])
        known_us = predicted.labelled_us
        near = known_us[np.argmin(np.abs(known_us - time))] if len(known_us) else None
        factor = enlargement(recording.sensor)
        picture = draw_events(_events_before(recording, time), factor=factor)
        truth, found = draw_labels(picture, labels.at(time), factor), picture
        if near is not None:
            boxes = predicted.at(int(near))
            strong = boxes.select(boxes.score >= THRESHOLD)
            found = draw_labels(picture, strong, factor, dataset.classes, with_scores=True)
        captions = [f"{recording.name} at {time / 1e6:.2f} s: labels", f"found at {at.hz:g} Hz"]
        rows.append((recording.name, side_by_side([truth, found], captions)))
    return rows


def _events_before(recording: Any, time_us: int) -> Events:
    """Return the events before a time; from an image, one event per non-zero pixel, of the more frequent polarity."""
    if not isinstance(recording, RvtSequence):
        with recording.open() as reader:
            events: Events = reader.read(time_us - EVENTS_US, time_us)
            return events
    images, _ = recording.read_images(time_us - CANONICAL_US, time_us)
    sensor = images.shape[2:]
    if not len(images):
        return Events.empty(sensor)
    off, on = images[-1].reshape(2, -1, *sensor).sum(axis=1, dtype=np.int64)
    y, x = np.nonzero(off + on)
    return Events(np.full(len(x), time_us - 1), x, y, (on > off)[y, x], sensor)
