"""The picture of an evaluation: accuracy over rate, and precision over recall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fate.view.page import write_figure
from fate.whole_files import find_target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fate.evaluation.evaluate import Evaluation

#: Distinct with red-green blindness too (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")


def draw_rates(evaluation: Evaluation, path: str | Path) -> None:
    """Draw AP over rate, and precision over recall at IoU 0.5 for each rate, averaged over classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (a second to load)
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_accuracy(left, evaluation)
    _draw_curves(right, evaluation)
    figure.suptitle(f"{evaluation.what} on {evaluation.dataset}, protocol {evaluation.protocol.name}", fontsize=11)
    write_figure(figure, path, dpi=150)


def _draw_accuracy(axes: Axes, evaluation: Evaluation) -> None:
    rates = [rate.hz for rate in evaluation.rates]
    for metric, colour in zip(("AP50:95", "AP50", "AP75"), COLOURS, strict=False):
        values = [rate.scores[metric] for rate in evaluation.rates]
        percent = [float("nan") if value is None else 100 * value for value in values]
        axes.plot(rates, percent, "o-", color=colour, label=metric)
        axes.annotate(f"{percent[-1]:.1f}", (rates[-1], percent[-1]), (6, 0), textcoords="offset points", va="center",
                      color=colour, fontsize=9)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set(xlabel="rate in Hz (window = 1 / rate)", ylabel="%", title="accuracy", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _draw_curves(axes: Axes, evaluation: Evaluation) -> None:
    for rate, colour in zip(evaluation.rates, COLOURS * 9, strict=False):
        curves = list(rate.scores.average_precision.curves.values())
        if curves:
            mean = sum(curve.at(0.5) for curve in curves) / len(curves)
            axes.plot(100 * curves[0].recall, 100 * mean, color=colour, label=f"{rate.hz:g} Hz")
    axes.set(xlabel="recall in %", ylabel="precision in %", title="at IoU 0.5, mean of classes", ylim=(0, 102))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def save_with_picture(evaluation: Evaluation, path: str | Path) -> None:
    """Write the figures as JSON and, if that is a regular file, a picture of the same name as PNG."""
    evaluation.save(path)
    if find_target(path, text=True).kind == "file":
        draw_rates(evaluation, Path(path).with_suffix(".png"))
