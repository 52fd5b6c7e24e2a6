"""What a study found: a table of means over seeds, as text, values, and a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fate.workflows.studies.tables import Row, Study
from fate.view.page import write_figure
from fate.whole_files import write_whole

METRICS = ("AP50:95", "AP50", "AP75")
#: Time to detection: of the objects that were found the median; of all objects the shares found early, and missed.
DELAYS = ("delay_p50_ms", "delay_within_100", "delay_missed")


@dataclass(frozen=True)
class StudyResult:
    """A table: for every row and seed the figures by rate, or None where it was not run."""

    study: Study
    dataset: str
    kind: str  #: of the dataset
    seeds: tuple[int, ...]
    cells: dict[str, dict[int, dict[float, dict[str, Any]] | None]]
    hours: Mapping[str, float]  #: of all its runs so far, by device

    def mean(self, row: str, hz: float, metric: str = METRICS[0]) -> tuple[float, float, int] | None:
        """Mean over seeds (in percent, but for ms), their spread (highest − lowest), and how many there are."""
        found = [
            figures[hz].get(metric)
            for seed in self.seeds
            if (figures := self.cells[row][seed]) is not None and hz in figures
        ]
        known = [value * (1 if metric.endswith("_ms") else 100) for value in found if value is not None]
        return (float(np.mean(known)), float(np.ptp(known)), len(known)) if known else None

    def table(self, metric: str = METRICS[0]) -> str:
        """As Markdown; where the paper has a number for this dataset, it stands behind ours with the difference."""
        kept = [f"{self.study.rates[-1]:g} of 20 Hz"] if 20.0 in self.study.rates[:-1] else []
        head = ["", *(f"{hz:g} Hz" for hz in self.study.rates), *kept]
        lines = [f"{self.study.title}; {metric} in %, {self.dataset}, {seeds_in_words(len(self.seeds))}", "",
                 f"| {' | '.join(head)} |", "|" + "---|" * len(head)]  # fmt: skip
        for row in self.study.rows:
            cells = [self._cell(row, hz, metric) for hz in self.study.rates]
            if kept:
                first, last = (self.mean(row.name, hz, metric) for hz in (20.0, self.study.rates[-1]))
                cells.append(f"{last[0] / first[0]:.0%}" if first and last and first[0] else "–")
            lines.append(f"| {' | '.join([row.name, *cells])} |")
        return "\n".join(lines)

    def delay_table(self) -> str:
        """From half visible to the first right box, by rate; empty where no truth says when things appeared.

        A median of what was found alone would praise a detector that finds only what is easy: the shares of all objects
        stand beside it.
        """
        lines = ["Time to detection: median in ms of the objects found (of all, found within 100 ms / missed),"
                 f" {self.dataset}, {seeds_in_words(len(self.seeds))}", "",
                 f"| | {' | '.join(f'{hz:g} Hz' for hz in self.study.rates)} |",
                 "|" + "---|" * (len(self.study.rates) + 1)]  # fmt: skip
        known = False
        for row in self.study.rows:
            cells = []
            for hz in self.study.rates:
                median, early, missed = (self.mean(row.name, hz, metric) for metric in DELAYS)
                known |= missed is not None
                shares = " / ".join("–" if share is None else f"{share[0]:.0f} %" for share in (early, missed))
                found = "–" if median is None else f"{median[0]:.0f}"
                cells.append(found if missed is None else f"{found} ({shares})")
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
        return "\n".join(lines) if known else ""

    def conditions(self) -> str:
        """What it took."""
        spent = [f"{hours:.2f} hours on {device}" for device, hours in self.hours.items()]
        return f"Training, labels and evaluation: {', '.join(spent)}." if spent else ""

    def _cell(self, row: Row, hz: float, metric: str) -> str:
        found = self.mean(row.name, hz, metric)
        if found is None:
            return "not run"
        mean, spread, count = found
        text = f"{mean:.1f}" + (f" ± {spread / 2:.1f}" if count > 1 else "")
        if count < len(self.seeds):
            text += f" ({count} of {len(self.seeds)})"
        published = row.published.get(self.kind, {}).get(hz) if metric == METRICS[0] else None
        return text if published is None else f"{text} [paper {published:.1f}, {mean - published:+.1f}]"

    def text(self) -> str:
        """All tables, as Markdown."""
        parts = [*(self.table(metric) for metric in METRICS), self.delay_table(), self.conditions()]
        return "\n\n".join(part for part in parts if part) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = {
            name: {str(seed): None if found is None else {f"{hz:g}": figures for hz, figures in found.items()}
                   for seed, found in seeds.items()}
            for name, seeds in self.cells.items()
        }  # fmt: skip
        told = {"study": self.study.name, "dataset": self.dataset, "seeds": list(self.seeds)}
        return told | {"hours": dict(self.hours), "rows": rows}

    def save(self, folder: Path) -> None:
        """Markdown, CSV, JSON and a picture, named after the study."""
        base = folder / self.study.name
        write_whole(base.with_suffix(".md"), self.text().encode())
        write_whole(base.with_suffix(".json"), json.dumps(self.to_dict(), indent=1, allow_nan=False).encode())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self.csv_rows())
        write_whole(base.with_suffix(".csv"), text.getvalue().encode())
        if len(self.study.rates) > 1:
            self.draw(base.with_suffix(".png"))

    def csv_rows(self) -> Iterator[list[Any]]:
        """A head, then a line for each row, seed and rate."""
        yield ["row", "seed", "hz", *METRICS, *DELAYS]
        for name, seeds in self.cells.items():
            for seed, found in seeds.items():
                for hz, figures in (found or {}).items():
                    yield [name, seed, f"{hz:g}", *(figures.get(metric) for metric in METRICS + DELAYS)]

    def draw(self, path: Path) -> None:
        """Accuracy over rate."""
        draw_study(self, path)


def seeds_in_words(count: int) -> str:
    """How many."""
    return "1 seed" if count == 1 else f"{count} seeds"


#: Told apart by colour-blind people too (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def draw_study(result: StudyResult, path: Path) -> None:
    """AP50:95 over rate, mean and spread over seeds; rows that were not run are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (a second to load)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rates = result.study.rates
    for row, colour in zip(result.study.rows, COLOURS, strict=False):
        found = [result.mean(row.name, hz) for hz in rates]
        mean = np.array([np.nan if each is None else each[0] for each in found])
        spread = np.array([0.0 if each is None else each[1] / 2 for each in found])
        if np.isfinite(mean).any():
            axes.errorbar(rates, mean, spread, fmt="o-", color=colour, label=row.name, capsize=3)
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{hz:g}" for hz in rates])
    axes.minorticks_off()
    axes.set(xlabel="rate in Hz (window = 1 / rate)", ylabel="AP50:95, %", title=result.study.title, ylim=(0, None))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9)
    write_figure(figure, path, dpi=150)
