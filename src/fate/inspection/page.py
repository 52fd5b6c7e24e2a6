"""The page of an inspection: the tables of the text, plots, and a strip of sample frames with their boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fate.data.findings import LOOK_BACK_US
from fate.inspection import references
from fate.inspection.reports import ClassBoxes, FaultCount, RecordingReport
from fate.inspection.statistics import MAX_EVENTS
from fate.view.drawing import Picture, draw_boxes, draw_events, enlargement
from fate.view.page import PLOT_COLOURS, PLOT_INK, Cell, Page, log_axis, plot

SAMPLES = 6  # pictures on the page


@dataclass(frozen=True)
class Contents:
    """What goes on the page."""

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


def build_page(contents: Contents) -> Page:
    """All sections in order; recordings are opened again for the pictures."""
    page = Page(contents.title, contents.lead)
    if contents.verdict:
        page.paragraph(_sentence(contents.verdict))
    page.heading("Sample frames")
    page.paragraph(f"Events of {LOOK_BACK_US // 1000} ms: light is ON, blue is OFF; boxes as labelled at the end.")
    images, captions = _samples(contents.reports)
    page.pictures(images, captions)
    page.heading("Beside real data")
    page.table(contents.header, [[*row[:-1], _marked(row[-1])] for row in contents.rows])
    page.paragraph("Means over recordings. A burst is a run of events of one pixel and polarity less than 1 ms apart.")
    page.heading("Events")
    _add_plots(page, _rate_plot(contents), _occupancy_plot(contents), _pillar_plot(contents), _seconds_plot(contents))
    if contents.classes:
        page.heading("Boxes")
        page.table(references.BOX_COLUMNS, [*(each.cells() for each in contents.classes), *references.REAL_BOXES])
        _add_plots(page, _size_plot(contents), _speed_plot(contents))
        if contents.motion_source:
            page.paragraph(_sentence(contents.motion_source))
        page.heading("Boxes that look wrong")
        bad = [each.number and "standing" not in each.kind for each in contents.faults]
        page.table(
            ("kind", "found", "what it means"),
            [
                (each.kind, Cell(each.text(), "bad" if is_bad else None), each.meaning)
                for each, is_bad in zip(contents.faults, bad, strict=True)
            ],
            words=True,
        )
        page.bullets([f"{each.kind}: {each.worst_text()}" for each in contents.faults if each.worst])
    if contents.files:
        page.heading("Files")
        page.paragraph(_sentence(contents.files))
        if contents.flags:
            page.bullets(contents.flags)
    if contents.remarks:
        page.heading("Notes")
        page.bullets(contents.remarks)
    page.heading("What the rows mean")
    page.table(("row", "meaning"), [(row.title.strip(), row.meaning) for row in references.ROWS], words=True)
    page.heading("Recordings")
    page.table(
        ("name", "format", "seconds", "Mev/s", "ON", "silent", "active 5 ms", "boxes"),
        [_recording_row(report) for report in contents.reports],
    )
    return page


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_plots(page: Page, *plots: tuple[Any, str]) -> None:
    page.plots([figure for figure, _ in plots], [caption for _, caption in plots])


def _marked(cell: str) -> str | Cell:
    return Cell(cell, "bad") if cell == "out" else Cell(cell, "good") if cell == "in" else cell


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


def _samples(reports: Sequence[RecordingReport]) -> tuple[list[Picture], list[str]]:
    """One frame each of recordings spread over the dataset; of a single recording, several."""
    chosen = [reports[index] for index in _evenly(len(reports), SAMPLES)]
    each = max(1, SAMPLES // len(chosen))
    images, captions = [], []
    for report in chosen:
        for image, caption in _frames(report, each):
            images.append(image)
            captions.append(caption)
    return images, captions


def _frames(report: RecordingReport, count: int) -> list[tuple[Picture, str]]:
    """Frames at labelled times, those with boxes first choice, else spread over the recording."""
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
            frames.append((image, f"{report.entry.name}, {(time - start) / 1e6:.2f} s"))
        return frames


def _evenly(length: int, count: int) -> list[int]:
    """At most ``count`` indices, each in the middle of its share of ``length``."""
    count = min(length, count)
    return [length * (2 * index + 1) // (2 * count) for index in range(count)]


# ---- plots ------------------------------------------------------------------------------------------------------


def _rate_plot(contents: Contents) -> tuple[Any, str]:
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
    _legend(axes)
    return figure, "Event rate of each recording."


def _occupancy_plot(contents: Contents) -> tuple[Any, str]:
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
    _legend(axes)
    return figure, "Pillars of 2 × 2 pixels with events, by length of the window."


def _pillar_plot(contents: Contents) -> tuple[Any, str]:
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
    _legend(axes)
    return figure, "How full active pillars are; the dashed line is N = 32."


def _seconds_plot(contents: Contents) -> tuple[Any, str]:
    figure, axes = plot()
    for number, index in enumerate(_evenly(len(contents.reports), 6)):
        events = contents.reports[index].events
        whole = events.rate_per_second[: max(1, int(events.duration_s))] / 1e6
        colour = PLOT_COLOURS[number % len(PLOT_COLOURS)]  # stairs ignore the cycle of colours
        name = contents.reports[index].entry.name
        axes.stairs(whole, np.arange(len(whole) + 1), baseline=None, linewidth=1.2, color=colour, label=name)
    axes.set(xlabel="second of the recording", ylabel="Mev/s")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure, "Event rate over time."


def _size_plot(contents: Contents) -> tuple[Any, str]:
    figure, axes = plot()
    for each in contents.classes[: len(PLOT_COLOURS)]:
        size = each.size[_evenly(len(each.size), 2000)]
        axes.plot(size[:, 0], size[:, 1], ".", markersize=2.5, alpha=0.5, label=each.name)
    axes.set(xlabel="width, px", ylabel="height, px")
    log_axis(axes.xaxis)
    log_axis(axes.yaxis)
    _legend(axes)
    return figure, "Sizes of boxes."


def _speed_plot(contents: Contents) -> tuple[Any, str]:
    figure, axes = plot()
    bins = np.logspace(0, 3.5, 40)
    for each in contents.classes[: len(PLOT_COLOURS)]:
        if len(each.speed):
            speed = np.clip(each.speed, bins[0], bins[-1])
            weights = np.full(len(speed), 100 / len(speed))
            axes.hist(speed, bins, weights=weights, histtype="step", linewidth=1.4, label=each.name)
    axes.set(xlabel="px/s (slower than 1 counts as 1)", ylabel="% of the class")
    log_axis(axes.xaxis, (1,))
    _legend(axes)
    return figure, "Speeds of box centres along tracks."


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False, labelcolor=PLOT_INK)
