"""The result of a study: a table of means over seeds, as Markdown, CSV, JSON and a picture.

``StudyResult`` holds AP by rate, ``LabelStudyResult`` the quality of dense labels by detector, rate and class.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fate.json_files import write_json
from fate.models.nms import Score
from fate.text import format_markdown_table, plural
from fate.view.page import new_figure, rate_axis, write_figure
from fate.whole_files import write_whole
from fate.workflows.check_labels import BESIDE, METHODS, SPANS, draw_over_scores
from fate.workflows.studies.declared import PUBLISHED_LABELS, Row, Study

METRICS = ("AP50:95", "AP50", "AP75")
#: Time to detection: the median of the objects that were found, and the shares of all objects found early and missed.
DELAYS = ("delay_p50_ms", "delay_within_100", "delay_missed")
#: Stages of a window that the table of latency shows; on a GPU all of them are one graph, which counts as model.
LATENCY_STAGES = ("encode", "model", "post")
#: Colours that colour-blind people can tell apart (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


@dataclass(frozen=True)
class StudyResult:
    """A table: for every row and seed the figures by rate, or None if it was not run."""

    study: Study
    dataset: str
    kind: str  #: kind of the dataset
    seeds: tuple[int, ...]
    cells: dict[str, dict[int, dict[float, dict[str, Any]] | None]]
    hours: Mapping[str, float]  #: hours of all runs so far, by device
    parameters: Mapping[str, float] = field(default_factory=dict)  #: millions of parameters, by row
    latency: Mapping[str, Mapping[float, Mapping[str, float]]] = field(default_factory=dict)
    """Median milliseconds of a window by row, rate and stage; only of the study of efficiency."""
    score: Score = "product"  #: what ranks boxes of YOLOX heads

    def mean(self, row: str, hz: float, metric: str = METRICS[0]) -> tuple[float, float, int] | None:
        """The mean over seeds (in percent, except times), their spread (highest − lowest) and their number."""
        found = [
            figures[hz].get(metric)
            for seed in self.seeds
            if (figures := self.cells[row][seed]) is not None and hz in figures
        ]
        known = [value * (1 if metric.endswith("_ms") else 100) for value in found if value is not None]
        return (float(np.mean(known)), float(np.ptp(known)), len(known)) if known else None

    def table(self, metric: str = METRICS[0]) -> str:
        """A Markdown table; a number of the paper for this dataset follows ours, with the difference."""
        rates = self.study.rates
        kept = [f"{rates[-1]:g} of 20 Hz"] if 20.0 in rates[:-1] else []
        rows = []
        for row in self.study.rows:
            cells = [row.name, *(self._cell(row, hz, metric) for hz in rates)]
            if kept:
                first, last = (self.mean(row.name, hz, metric) for hz in (20.0, rates[-1]))
                cells.append(f"{last[0] / first[0]:.0%}" if first and last and first[0] else "–")
            rows.append([*cells, self._size(row)])
        title = f"{self.study.title}; {metric} in %, {self._about}"
        header = ["", *(f"{hz:g} Hz" for hz in rates), *kept, "M parameters"]
        return f"{title}\n\n{format_markdown_table(header, rows)}"

    def latency_table(self) -> str:
        """The median time of a window by rate, all stages and each; empty for other studies."""
        if self.study.kind != "efficiency":
            return ""
        rows = []
        for row in self.study.rows:
            found = self.latency.get(row.name, {})
            for hz in self.study.rates:
                stages, published = found.get(hz), row.latency_ms if self.kind == "gen1" else None
                cells = [row.name, f"{hz:g}"]
                cells.append("not run" if stages is None else _beside_paper(stages["total"], None, published, 2))
                rows.append(
                    [
                        *cells,
                        *(
                            "" if stages is None else f"{stages[name]:.2f}" if name in stages else "–"
                            for name in LATENCY_STAGES
                        ),
                    ]
                )
        header = ["", "Hz", "ms per window", *LATENCY_STAGES]
        title = "Latency: events to boxes, median; the paper's figures are on an NVIDIA T4"
        return f"{title}\n\n{format_markdown_table(header, rows)}"

    def delay_table(self) -> str:
        """The time from half visible to the first correct box, by rate; empty if that is not known for the dataset.

        The median of found objects alone favours a detector that finds only easy ones, so the table also has the shares
        of all objects.
        """
        known, rows = False, []
        for row in self.study.rows:
            cells = [row.name]
            for hz in self.study.rates:
                median, early, missed = (self.mean(row.name, hz, metric) for metric in DELAYS)
                known |= missed is not None
                shares = " / ".join("–" if share is None else f"{share[0]:.0f} %" for share in (early, missed))
                found = "–" if median is None else f"{median[0]:.0f}"
                cells.append(found if missed is None else f"{found} ({shares})")
            rows.append(cells)
        title = "Time to detection: median in ms of the objects found (of all, found within 100 ms / missed)"
        table = format_markdown_table(["", *(f"{hz:g} Hz" for hz in self.study.rates)], rows)
        return f"{title}, {self._about}\n\n{table}" if known else ""

    @property
    def _about(self) -> str:
        return f"{self.dataset}, {plural(len(self.seeds), 'seed')}"

    def _size(self, row: Row) -> str:
        """Millions of parameters, beside the paper's if the dataset is one of the paper's."""
        published = row.parameters if self.kind in row.published else None
        known = self.parameters.get(row.name)
        return "–" if known is None else _beside_paper(known, None, published, 3)

    def _cell(self, row: Row, hz: float, metric: str) -> str:
        found = self.mean(row.name, hz, metric)
        if found is None:
            return "not run"
        published = row.published.get(self.kind, {}).get(metric, {}).get(hz)
        count = f" ({found[2]} of {len(self.seeds)})" if found[2] < len(self.seeds) else ""
        return _beside_paper(found[0], found[1] if found[2] > 1 else None, published, 1, count)

    def text(self) -> str:
        """All tables as Markdown."""
        measured = [self.table()]
        if self.study.kind != "labels":
            measured = [*map(self.table, METRICS), self.latency_table(), self.delay_table()]
        spent = ", ".join(f"{hours:.2f} hours on {device}" for device, hours in self.hours.items())
        ranked = "Boxes of YOLOX heads are ranked by their class score alone." if self.score == "class" else ""
        parts = [*measured, ranked, f"Training, labels and evaluation: {spent}." if spent else ""]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {
            name: {str(seed): None if found is None else {f"{hz:g}": figures for hz, figures in found.items()}
                   for seed, found in seeds.items()}
            for name, seeds in self.cells.items()
        }  # fmt: skip
        head: dict[str, Any] = {"study": self.study.name, "dataset": self.dataset, "seeds": list(self.seeds)}
        if self.score != "product":
            head["score"] = self.score
        if self.latency:
            head["latency_ms"] = {
                row: {f"{hz:g}": dict(stages) for hz, stages in rates.items()} for row, rates in self.latency.items()
            }
        return head | {"million_parameters": dict(self.parameters), "hours": dict(self.hours), "rows": rows}

    def save(self, folder: Path) -> None:
        """Write Markdown, CSV, JSON and a picture, named after the study."""
        base = folder / self.study.name
        write_whole(base.with_suffix(".md"), self.text().encode())
        write_json(base.with_suffix(".json"), self.to_dict())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.csv_rows())
        write_whole(base.with_suffix(".csv"), text.getvalue().encode())
        if len(self.study.rates) > 1:
            self.draw(base.with_suffix(".png"))

    def csv_rows(self) -> Iterator[list[Any]]:
        """A header, then a line for each row, seed and rate."""
        yield ["row", "seed", "hz", *METRICS, *DELAYS]
        for name, seeds in self.cells.items():
            for seed, found in seeds.items():
                for hz, figures in (found or {}).items():
                    yield [name, seed, f"{hz:g}", *(figures.get(metric) for metric in METRICS + DELAYS)]

    def draw(self, path: Path) -> None:
        """Draw AP50:95 over the rate, mean and spread over seeds, without rows that were not run."""
        figure = new_figure(7.5, 4.5)
        axes = figure.subplots()
        rates = self.study.rates
        for row, colour in zip(self.study.rows, COLOURS, strict=False):
            found = [self.mean(row.name, hz) for hz in rates]
            mean = np.array([np.nan if each is None else each[0] for each in found])
            spread = np.array([0.0 if each is None else each[1] / 2 for each in found])
            if np.isfinite(mean).any():
                axes.errorbar(rates, mean, spread, fmt="o-", color=colour, label=row.name, capsize=3)
        rate_axis(axes, rates)
        axes.set(xlabel="rate in Hz (window = 1 / rate)", ylabel="AP50:95, %", title=self.study.title, ylim=(0, None))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=9)
        write_figure(figure, path, dpi=150)


FIGURES = {"precision": "precision", "recall": "recall", "median_iou": "median IoU", "above_half": "IoU > 0.5"}
#: Spans of time that the table can show: all times, which training uses, or, for recorded datasets, annotated ones.
SHOWN = (SPANS[1], BESIDE)
_NAIVE = {METHODS[1]: "naive interpolation, tracks known", METHODS[2]: "naive interpolation, tracks unknown"}

_PUBLISHED_CLASSES = ("car", "pedestrian")


def figures_of(check: Mapping[str, Any]) -> dict[float, dict[str, Any]]:
    """The JSON of a ``LabelCheck`` by rate: ``METHOD CLASS FIGURE`` → value, and its curves and thresholds."""
    found: dict[float, dict[str, Any]] = {}
    for row in check["rows"]:
        if row["span"] in SHOWN:
            at = found.setdefault(row["hz"], {"span": row["span"], "thresholds": check["thresholds"]})
            at |= {_key(row["method"], row["class"], figure): row[figure] for figure in FIGURES}
    for each in check["detections"]:
        found[each["hz"]]["curves"] = each["curves"]
    return found


def _key(method: str, name: str, figure: str) -> str:
    return f"{method} {name} {figure}"


class LabelStudyResult(StudyResult):
    """The quality of the dense labels that each detector makes, compared with the ground truth."""

    def table(self, metric: str = "") -> str:
        """A line for each detector and rate, then for naive interpolation, with all figures."""
        words = [f"{name}: {word}" if number == 0 else word
                 for name in self._classes() for number, word in enumerate(FIGURES.values())]  # fmt: skip
        head = ["", "Hz", *(words or ["labels"])]
        known = list(self._known())
        span = known[0][2]["span"] if known else "no labels yet"
        not_run = ["not run", *[""] * (len(head) - 3)]
        rows = []
        for row in self.study.rows:
            count = sum(name == row.name for name, _, _ in known)
            called = f"{row.name} ({count} of {len(self.seeds)})" if 0 < count < len(self.seeds) else row.name
            for hz in self.study.rates:
                was_run = any(hz in (found or {}) for found in self.cells[row.name].values())
                shares = self._shares(row.name, hz, METHODS[0]) if was_run else not_run
                rows.append([called, f"{hz:g}", *shares])
        for method, called in _NAIVE.items() if known else ():
            naive = ((hz, self._shares(known[0][0], hz, method)) for hz in self.study.rates)
            rows += [[called, f"{hz:g}", *shares] for hz, shares in naive if set(shares) - {"–"}]
        return f"{self.study.title}; {span}, {self._about}\n\n{format_markdown_table(head, rows)}"

    def csv_rows(self) -> Iterator[list[Any]]:
        """A header, then a line for each row, seed, rate, method and class."""
        yield ["row", "seed", "hz", "span", "method", "class", *FIGURES]
        for row, seeds in self.cells.items():
            for seed, found in seeds.items():
                for hz, at in (found or {}).items():
                    for method in METHODS:
                        for name in self._classes():
                            values = [at.get(_key(method, name, figure)) for figure in FIGURES]
                            if any(value is not None for value in values):
                                yield [row, seed, f"{hz:g}", at["span"], method, name, *values]

    def draw(self, path: Path) -> None:
        """Draw precision and recall of detections over their score; a dotted line marks the threshold of labels."""
        drawn = {name: at for name, _, at in reversed(list(self._known())) if "curves" in at}  # of the first seed
        rows, classes = [row.name for row in self.study.rows if row.name in drawn], self._classes()
        if not rows or not classes:
            return
        figure = new_figure(4.2 * len(classes), 3.2 * len(rows))
        panels = figure.subplots(len(rows), len(classes), squeeze=False, sharex=True, sharey=True)
        for row, line in zip(rows, panels, strict=True):
            for name, axes in zip(classes, line, strict=True):
                draw_over_scores(axes, drawn[row]["curves"][name], drawn[row]["thresholds"][name])
                axes.set_title(f"{row}: {name}")
        for axes in panels[-1]:
            axes.set_xlabel("score of detections, at least")
        panels[0][0].legend(frameon=False)
        figure.suptitle(f"Detections at the times of {max(self.study.rates):g} Hz, from 50 ms each", fontsize=11)
        write_figure(figure, path, dpi=150)

    def _known(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Row, seed and figures at the highest rate, of each row and seed that was run."""
        for row, seeds in self.cells.items():
            for seed, found in seeds.items():
                if found:
                    yield row, seed, found[max(found)]

    def _classes(self) -> list[str]:
        return list(dict.fromkeys(name for _, _, at in self._known() for name in at["thresholds"]))

    def _shares(self, row: str, hz: float, method: str) -> list[str]:
        """A cell for each class and figure; dense labels on Gen1 are followed by the number of the paper."""
        cells = []
        paper = PUBLISHED_LABELS.get(row, {}).get(hz) if self.kind == "gen1" and method == METHODS[0] else None
        columns = [(name, figure) for name in _PUBLISHED_CLASSES for figure in FIGURES]
        for name, figure in product(self._classes(), FIGURES):
            found = self.mean(row, hz, _key(method, name, figure))
            published = paper[columns.index((name, figure))] if paper and (name, figure) in columns else None
            if found is None:
                cells.append("–")
            else:
                spread = found[1] / 100 if found[2] > 1 and method == METHODS[0] else None
                cells.append(_beside_paper(found[0] / 100, spread, published, 2))
        return cells


def _beside_paper(mean: float, spread: float | None, published: float | None, digits: int, more: str = "") -> str:
    """A mean with half the spread over seeds, if there are several, then the paper's number and the difference."""
    text = f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread / 2:.{digits}f}") + more
    return text if published is None else f"{text} [paper {published:.{digits}f}, {mean - published:+.{digits}f}]"
