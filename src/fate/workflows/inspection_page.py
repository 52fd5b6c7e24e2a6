"""The page of an inspection: its tables, plots, and sample frames with their boxes, in one HTML file.

A picture is the address of its data, with a caption.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fate.boxes.drawing import draw_events, draw_labels, enlargement
from fate.data.findings import LOOK_BACK_US
from fate.inspection import references
from fate.inspection.inspect import MEANINGS, Inspection
from fate.inspection.references import UNKNOWN
from fate.inspection.reports import ClassBoxes, RecordingReport
from fate.inspection.statistics import MAX_EVENTS
from fate.view.page import PLOT_COLOURS, PLOT_INK, draw_plot, log_axis, picture_address, write_page

SAMPLES = 6  # pictures on the page

Picture = tuple[str, str]
Reports = Sequence[RecordingReport]


def write_inspection_page(found: Inspection, path: str | os.PathLike[str]) -> None:
    """Write a page with plots and pictures, in one HTML file; recordings are opened again for sample frames."""
    colours = {"in": "good", "out": "bad"}  # of figures in and out of the accepted range
    shown = [found.reports[index] for index in _evenly(len(found.reports), SAMPLES)]
    classes = found.classes[: len(PLOT_COLOURS)]
    write_page(
        path,
        "inspection.html",
        title=found.dataset,
        lead=found.lead,
        found=found,
        sample_ms=LOOK_BACK_US // 1000,
        samples=[frame for report in shown for frame in _frames(report, max(1, SAMPLES // len(shown)))],
        rows=[(*row[:-1], (row[-1], colours[row[-1]]) if row[-1] in colours else row[-1]) for row in found.rows()],
        event_plots=[
            (draw_plot(_plot_rate, found.reports, found.is_gen1_like), "Event rate of each recording."),
            (
                draw_plot(_plot_occupancy, found.reports, found.is_gen1_like),
                "Pillars of 2 × 2 pixels with events, by window length.",
            ),
            (draw_plot(_plot_pillar, found.reports), "How full active pillars are; the dashed line is N = 32."),
            (draw_plot(_plot_seconds, found.reports), "Event rate over time."),
        ],
        box_columns=references.BOX_COLUMNS,
        real_boxes=references.REAL_BOXES,
        meanings=[(row.title.strip(), row.meaning) for row in references.ROWS],
        recordings=[_recording_row(report) for report in found.reports],
        box_plots=[
            (draw_plot(_plot_size, classes), "Sizes of boxes."),
            (draw_plot(_plot_speed, classes), "Speeds of box centres along tracks."),
        ]
        if classes
        else [],
        faults=[
            (
                each.kind,
                (each.text(), "bad" if each.number and "standing" not in each.kind else ""),
                MEANINGS[each.kind],
            )
            for each in found.faults
        ],
    )


def _recording_row(report: RecordingReport) -> tuple[str, ...]:
    events = report.events
    return (
        report.entry.name,
        report.format,
        f"{events.duration_s:.1f}",
        f"{events.rate_hz / 1e6:.3f}",
        f"{events.on_share:.3f}",
        UNKNOWN if events.silent_share is None else f"{100 * events.silent_share:.0f} %",
        f"{100 * events.pillars[5000].active_share:.1f} %",
        UNKNOWN if report.labels is None else str(report.labels.num_boxes),
    )


def _frames(report: RecordingReport, count: int) -> list[Picture]:
    """Frames at times with boxes, or spread over the recording if there are none."""
    labels = report.boxes
    with report.subject.open(report.sensor) as recording:
        start, end = recording.start_us, recording.end_us
        times: list[int] = []
        if labels is not None:
            filled = np.unique(labels.t_us)
            filled = filled[(filled >= start) & (filled <= end + LOOK_BACK_US)]
            times = [int(filled[index]) for index in _evenly(len(filled), count)]
        if not times:
            times = [start + (end - start) * (2 * index + 1) // (2 * count) for index in range(count)]
        frames = []
        factor = enlargement(recording.sensor, 700)
        for time in times:
            image = draw_events(recording.read(time - LOOK_BACK_US, time), factor=factor)
            if labels is not None and labels.is_labelled(time):
                image = draw_labels(image, labels.at(time), factor, report.classes)
            frames.append((picture_address(image), f"{report.entry.name}, {(time - start) / 1e6:.2f} s"))
        return frames


def _evenly(length: int, count: int) -> list[int]:
    """At most ``count`` indices, each in the middle of its share of ``length``."""
    count = min(length, count)
    return [length * (2 * index + 1) // (2 * count) for index in range(count)]


def _plot_rate(axes: Any, reports: Reports, is_gen1_like: bool) -> None:
    rising = sorted((report.events for report in reports), key=lambda events: events.rate_hz)
    rank = np.arange(1, len(rising) + 1)
    axes.plot(rank, [events.rate_hz / 1e6 for events in rising], "o", markersize=4, label="mean")
    axes.plot(rank, [events.busiest_hz / 1e6 for events in rising], "^", markersize=4, label="busiest second")
    if is_gen1_like:
        axes.axhspan(*references.RATE_RANGE_MEV_S, color=PLOT_COLOURS[2], alpha=0.15, label="accepted for each")
    axes.set(xlabel="recordings, sorted by rate", ylabel="Mev/s")
    log_axis(axes.yaxis)
    axes.set_xlim(0.5, len(rising) + 0.5)


def _plot_occupancy(axes: Any, reports: Reports, is_gen1_like: bool) -> None:
    accepted = next(row.accept for row in references.ROWS if row.keys[0] == "active_5ms")
    lengths = list(reports[0].events.pillars)
    for index, length in enumerate(lengths):
        shares = [100 * report.events.pillars[length].active_share for report in reports]
        busy = [100 * report.events.busiest_pillars[length].active_share for report in reports]
        jitter = np.linspace(-0.12, 0.12, len(shares)) if len(shares) > 1 else np.zeros(1)
        for offset, values, colour, name in ((-0.17, shares, 0, "whole recording"), (0.17, busy, 1, "busiest second")):
            axes.plot(index + offset + jitter, values, "o", markersize=3.5, color=PLOT_COLOURS[colour],
                      label=name if index == 0 else None)  # fmt: skip
        if is_gen1_like and accepted:
            low, high = accepted[index]
            axes.fill_between([index - 0.33, index], 100 * low, 100 * high, color=PLOT_COLOURS[2], alpha=0.2,
                              label="accepted" if index == 0 else None)  # fmt: skip
    axes.set_xticks(range(len(lengths)), [f"{length // 1000} ms" for length in lengths])
    axes.set_ylabel("active pillars, %")
    axes.set_ylim(bottom=0)


def _plot_pillar(axes: Any, reports: Reports) -> None:
    for index, length in enumerate(reports[0].events.pillars):
        for kind, style in (("raw", "-"), ("merged", ":")):
            histogram = sum(getattr(each.events.pillars[length], kind).histogram for each in reports)
            at_least = histogram[::-1].cumsum()[::-1]
            if at_least[1]:
                shown = np.flatnonzero(at_least[1:] > 0) + 1
                axes.plot(shown, at_least[shown] / at_least[1], style, color=PLOT_COLOURS[index], linewidth=1.4,
                          label=f"{length // 1000} ms{', bursts merged' if kind == 'merged' else ''}")  # fmt: skip
    axes.axvline(MAX_EVENTS, color=PLOT_INK, linestyle="--", linewidth=1)
    axes.set(xlabel="events in a pillar, n", ylabel="share with n or more")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis, (1,))


def _plot_seconds(axes: Any, reports: Reports) -> None:
    for number, index in enumerate(_evenly(len(reports), 6)):
        events = reports[index].events
        whole = events.rate_per_second[: max(1, int(events.duration_s))] / 1e6
        colour = PLOT_COLOURS[number % len(PLOT_COLOURS)]  # stairs ignore the cycle of colours
        name = reports[index].entry.name
        axes.stairs(whole, np.arange(len(whole) + 1), baseline=None, linewidth=1.2, color=colour, label=name)
    axes.set(xlabel="second of the recording", ylabel="Mev/s")
    axes.set_ylim(bottom=0)


def _plot_size(axes: Any, classes: Sequence[ClassBoxes]) -> None:
    for each in classes:
        size = each.size[_evenly(len(each.size), 2000)]
        axes.plot(size[:, 0], size[:, 1], ".", markersize=2.5, alpha=0.5, label=each.name)
    axes.set(xlabel="width, px", ylabel="height, px")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)


def _plot_speed(axes: Any, classes: Sequence[ClassBoxes]) -> None:
    bins = np.logspace(0, 3.5, 40)
    for each in classes:
        if len(each.speed):
            speed = np.clip(each.speed, bins[0], bins[-1])
            weights = np.full(len(speed), 100 / len(speed))
            axes.hist(speed, bins, weights=weights, histtype="step", linewidth=1.4, label=each.name)
    axes.set(xlabel="px/s (slower than 1 counts as 1)", ylabel="% of the class")
    log_axis(axes.xaxis, (1,))
