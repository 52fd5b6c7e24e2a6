"""Learning curves of a training run: ``curves.png`` and ``curves.html`` in its folder, from ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fate.training.run_directory import read_metrics
from fate.view.page import PLOT_COLOURS, draw_plot, new_figure, percent, picture_address, write_figure, write_page

Line = Mapping[str, Any]
#: Numbers of a line that are not terms of the loss.
OTHERS = ("step", "epoch", "lr", "loss", "windows_per_s", "waiting_for_data", "step_s", "rates")


def draw_curves(run: Path) -> None:
    """Write the picture and the page of a run; nothing as long as it has no metrics.

    Args:
        run: folder of the run, with ``metrics.jsonl`` and ``pictures/``.
    """
    lines = read_metrics(run / "metrics.jsonl")
    steps = [line for line in lines if "loss" in line]
    validations = [line for line in lines if "validation" in line]
    if not steps and not validations:
        return
    panels = [(_plot_loss, steps), (_plot_accuracy, validations), (_plot_lr, steps)]
    panels = [(draw, rows) for draw, rows in panels if rows]  # before the first validation there is no accuracy
    figure = new_figure(4 * len(panels), 3.6)
    for axes, (draw, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.set_prop_cycle(color=PLOT_COLOURS)
        axes.grid(alpha=0.3)
        draw(axes, rows)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(run.resolve().name, fontsize=11)
    write_figure(figure, run / "curves.png", dpi=120)
    captions = [
        (_plot_loss, steps, "Loss and its terms, means over the steps between two lines."),
        (_plot_accuracy, validations, "AP50:95 of the teacher on the validation data, in %."),
        (_plot_lr, steps, "Learning rate; that of the backbone may be lower (optimiser.backbone_lr)."),
        (_plot_speed, steps, "Share of the time that training waits for data, in %."),
    ]
    plots = [(draw_plot(draw, rows), caption) for draw, rows, caption in captions if rows]
    pictures = sorted((run / "pictures").glob("step-*.png"))
    newest = [each for each in pictures if each.name.split("-")[1] == pictures[-1].name.split("-")[1]]
    last = (steps or validations)[-1]["step"]
    best = max((line["score"] for line in validations if line["score"] is not None), default=None)
    write_page(
        run / "curves.html", "curves.html", title=run.resolve().name, plots=plots,
        lead=f"Step {last}" + ("" if best is None else f"; best mean AP50:95 {100 * best:.1f} %"),
        header=("step", "Hz", "AP50:95 %", "AP50 %", "AP75 %", "best"), rows=_validation_rows(validations),
        samples=[(picture_address(np.asarray(Image.open(each).convert("RGB"))), each.stem) for each in newest],
    )  # fmt: skip


def _validation_rows(validations: Sequence[Line]) -> list[list[str]]:
    return [
        [str(line["step"]), hz, *map(percent, figures.values()), "best so far" if line["is_best"] else ""]
        for line in reversed(validations)
        for hz, figures in line["validation"].items()
    ]


def _plot_loss(axes: Any, steps: Sequence[Line]) -> None:
    at = [line["step"] for line in steps]
    axes.plot(at, [line["loss"] for line in steps], linewidth=2, label="loss")
    for term in dict.fromkeys(name for line in steps for name in line if name not in OTHERS):
        axes.plot(at, [line.get(term, float("nan")) for line in steps], linewidth=1, label=term.replace("_", " "))
    axes.set(xlabel="step", ylabel="loss")


def _plot_accuracy(axes: Any, validations: Sequence[Line]) -> None:
    for hz in dict.fromkeys(hz for line in validations for hz in line["validation"]):
        known = [(line["step"], line["validation"][hz]["AP50:95"]) for line in validations if hz in line["validation"]]
        axes.plot([step for step, _ in known], [float("nan") if ap is None else 100 * ap for _, ap in known], "o-",
                  label=f"{hz} Hz", clip_on=False)  # fmt: skip
    axes.set(xlabel="step", ylabel="AP50:95 in %", xlim=(0, None), ylim=(0, None))


def _plot_lr(axes: Any, steps: Sequence[Line]) -> None:
    axes.plot([line["step"] for line in steps], [line["lr"] for line in steps])
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))


def _plot_speed(axes: Any, steps: Sequence[Line]) -> None:
    axes.plot([line["step"] for line in steps], [100 * line["waiting_for_data"] for line in steps])
    axes.set(xlabel="step", ylabel="waiting in %", ylim=(0, 100))
