"""The page of an inspection: tables, plots, and sample frames with their boxes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fate.data.findings import LOOK_BACK_US
from fate.inspection import references
from fate.inspection.reports import ClassBoxes, FaultCount, RecordingReport
from fate.inspection.statistics import MAX_EVENTS
from fate.view.drawing import draw_boxes, draw_events, enlargement
from fate.view.page import PLOT_COLOURS, PLOT_INK, log_axis, picture_address, plot, plot_address, write_page

SAMPLES = 6  # pictures on the page


@dataclass(frozen=True)
class Contents:
    """What the page shows."""

    title: str
    lead: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    verdict: str
    figures: dict[str, float]
    gen1_like: bool
    reports: tuple[RecordingReport, ...]
    classes: list[ClassBoxes]
    faults: list[FaultCount]
    motion_source: str
    files: str
    flags: tuple[str, ...]
    remarks: list[str]


def write_inspection_page(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the page; recordings are opened again for the sample frames."""
    classes, faults = contents.classes, contents.faults
    write_page(
        path,
        "inspection.html",
        title=contents.title,
        lead=contents.lead,
        verdict=_sentence(contents.verdict),
        sample_ms=LOOK_BACK_US // 1000,
        samples=_samples(contents.reports),
        header=contents.header,
        rows=[(*row[:-1], _marked(row[-1])) for row in contents.rows],
        event_plots=[draw(contents) for draw in (_rate_plot, _occupancy_plot, _pillar_plot, _seconds_plot)],
        box_columns=references.BOX_COLUMNS,
        boxes=[*(each.cells() for each in classes), *references.REAL_BOXES] if classes else [],
        box_plots=[draw(contents) for draw in (_size_plot, _speed_plot)] if classes else [],
        motion_source=_sentence(contents.motion_source),
        faults=[
            (each.kind, (each.text(), "bad" if each.number and "standing" not in each.kind else ""), each.meaning)
            for each in faults
        ],
        worst=[f"{each.kind}: {each.worst_text()}" for each in faults if each.worst],
        files=_sentence(contents.files),
        flags=contents.flags,
        remarks=contents.remarks,
        meanings=[(row.title.strip(), row.meaning) for row in references.ROWS],
        recordings=[_recording_row(report) for report in contents.reports],
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _marked(cell: str) -> str | tuple[str, str]:
    """Return a cell with its colour: figures inside the accepted range are good, others bad."""
    marks = {"in": "good", "out": "bad"}
    return (cell, marks[cell]) if cell in marks else cell


def _recording_row(report: RecordingReport) -> tuple[str, ...]:
    events = report.events
    return (
        report.entry.name,
        report.format,
        f"{events.duration_s:.1f}",
        f"{events.rate_hz / 1e6:.3f}",
        f"{events.on_share:.3f}",
        references.UNKNOWN if events.silent_share is None else f"{100 * events.silent_share:.0f} %",
        f"{100 * events.pillars[5000].active_share:.1f} %",
        references.UNKNOWN if report.labels is None else str(report.labels.num_boxes),
    )


# ---- pictures ---------------------------------------------------------------------------------------------------


def _samples(reports: Sequence[RecordingReport]) -> list[tuple[str, str]]:
    """Return pictures and captions: one frame of each of several recordings, or several of a single recording."""
    chosen = [reports[index] for index in _evenly(len(reports), SAMPLES)]
    return [frame for report in chosen for frame in _frames(report, max(1, SAMPLES // len(chosen)))]


def _frames(report: RecordingReport, count: int) -> list[tuple[str, str]]:
    """Return frames at times with boxes, or spread over the recording if there are none."""
    labels = report.read_boxes()
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
            here = labels.at(time) if labels is not None and labels.is_labelled(time) else None
            if here is not None:
                texts = [report.class_name(each) for each in here.class_id.tolist()]
                image = draw_boxes(image, here.boxes, labels=texts, class_ids=here.class_id, scale=factor)
            frames.append((picture_address(image), f"{report.entry.name}, {(time - start) / 1e6:.2f} s"))
        return frames


def _evenly(length: int, count: int) -> list[int]:
    """Return at most ``count`` indices, each in the middle of its share of ``length``."""
    count = min(length, count)
    return [length * (2 * index + 1) // (2 * count) for index in range(count)]


# ---- plots ------------------------------------------------------------------------------------------------------


def _rate_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    rates = sorted(report.events.rate_hz / 1e6 for report in contents.reports)
    busiest = [report.events.busiest_hz / 1e6 for report in sorted(contents.reports, key=lambda r: r.events.rate_hz)]
    place = np.arange(1, len(rates) + 1)
    axes.plot(place, rates, "o", markersize=4, label="mean")
    axes.plot(place, busiest, "^", markersize=4, label="busiest second")
    if contents.gen1_like:
        axes.axhspan(*references.RATE_RANGE_MEV_S, color=PLOT_COLOURS[2], alpha=0.15, label="accepted for each")
    axes.set(xlabel="recordings, sorted by rate", ylabel="Mev/s")
    log_axis(axes.yaxis)
    axes.set_xlim(0.5, len(rates) + 0.5)
    return _finish(figure, axes), "Event rate of each recording."


def _occupancy_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    lengths = list(contents.reports[0].events.pillars)
    for index, length in enumerate(lengths):
        shares = [100 * report.events.pillars[length].active_share for report in contents.reports]
        busy = [100 * report.events.busiest_pillars[length].active_share for report in contents.reports]
        jitter = np.linspace(-0.12, 0.12, len(shares)) if len(shares) > 1 else np.zeros(1)
        for offset, values, colour, name in ((-0.17, shares, 0, "whole recording"), (0.17, busy, 1, "busiest second")):
            axes.plot(index + offset + jitter, values, "o", markersize=3.5, color=PLOT_COLOURS[colour],
                      label=name if index == 0 else None)  # fmt: skip
        if contents.gen1_like and references.ACTIVE.accept:
            low, high = references.ACTIVE.accept[index]
            axes.fill_between([index - 0.33, index], 100 * low, 100 * high, color=PLOT_COLOURS[2], alpha=0.2,
                              label="accepted" if index == 0 else None)  # fmt: skip
    axes.set_xticks(range(len(lengths)), [f"{length // 1000} ms" for length in lengths])
    axes.set_ylabel("active pillars, %")
    axes.set_ylim(bottom=0)
    return _finish(figure, axes), "Pillars of 2 × 2 pixels with events, by length of the window."


def _pillar_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    for index, length in enumerate(contents.reports[0].events.pillars):
        for kind, style in (("raw", "-"), ("merged", ":")):
            histogram = sum(getattr(each.events.pillars[length], kind).histogram for each in contents.reports)
            at_least = histogram[::-1].cumsum()[::-1]
            if at_least[1]:
                shown = np.flatnonzero(at_least[1:] > 0) + 1
                axes.plot(shown, at_least[shown] / at_least[1], style, color=PLOT_COLOURS[index], linewidth=1.4,
                          label=f"{length // 1000} ms{', bursts merged' if kind == 'merged' else ''}")  # fmt: skip
    axes.axvline(MAX_EVENTS, color=PLOT_INK, linestyle="--", linewidth=1)
    axes.set(xlabel="events in a pillar, n", ylabel="share with n or more")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis, (1,))
    return _finish(figure, axes), "How full active pillars are; the dashed line is N = 32."


def _seconds_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    for number, index in enumerate(_evenly(len(contents.reports), 6)):
        events = contents.reports[index].events
        whole = events.rate_per_second[: max(1, int(events.duration_s))] / 1e6
        colour = PLOT_COLOURS[number % len(PLOT_COLOURS)]  # stairs ignore the cycle of colours
        name = contents.reports[index].entry.name
        axes.stairs(whole, np.arange(len(whole) + 1), baseline=None, linewidth=1.2, color=colour, label=name)
    axes.set(xlabel="second of the recording", ylabel="Mev/s")
    axes.set_ylim(bottom=0)
    return _finish(figure, axes), "Event rate over time."


def _size_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    for each in contents.classes[: len(PLOT_COLOURS)]:
        size = each.size[_evenly(len(each.size), 2000)]
        axes.plot(size[:, 0], size[:, 1], ".", markersize=2.5, alpha=0.5, label=each.name)
    axes.set(xlabel="width, px", ylabel="height, px")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    return _finish(figure, axes), "Sizes of boxes."


def _speed_plot(contents: Contents) -> tuple[str, str]:
    figure, axes = plot()
    bins = np.logspace(0, 3.5, 40)
    for each in contents.classes[: len(PLOT_COLOURS)]:
        if len(each.speed):
            speed = np.clip(each.speed, bins[0], bins[-1])
            weights = np.full(len(speed), 100 / len(speed))
            axes.hist(speed, bins, weights=weights, histtype="step", linewidth=1.4, label=each.name)
    axes.set(xlabel="px/s (slower than 1 counts as 1)", ylabel="% of the class")
    log_axis(axes.xaxis, (1,))
    return _finish(figure, axes), "Speeds of box centres along tracks."


def _finish(figure: Any, axes: Any) -> str:
    """Add a legend if anything has a name, and return the address of the plot."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False, labelcolor=PLOT_INK)
    return plot_address(figure)
