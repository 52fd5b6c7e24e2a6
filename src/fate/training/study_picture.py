"""A study as a picture: accuracy over rate, a line for each row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fate.view.page import write_figure

if TYPE_CHECKING:
    from fate.training.study_table import StudyResult

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
