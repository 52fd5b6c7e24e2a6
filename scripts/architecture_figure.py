"""Makes docs/images/architecture.png: the way from events to boxes.

python scripts/architecture_figure.py docs/images/architecture.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

#: Title, what it does, and the file that holds it; from left to right.
STAGES = (
    ("Events", "t, x, y, polarity\nof one window,\n5 to 50 ms", "events/events.py"),
    ("Pillar Encoding", "moments over time\nfor each cell of\n2 × 2 pixels", "encoding/pillars.py"),
    ("Backbone", "features at strides\n8, 16 and 32,\nwith recurrent state", "models/backbones/"),
    ("Neck", "fused features\n(EvRT-DETR: with\nrecurrent state)", "models/necks/"),
    ("Head", "boxes, classes,\nscores", "models/heads/"),
)
COLOURS = ("#e8eef7", "#d7e6fb", "#c5dcfb", "#d7e6fb", "#e8eef7")


def draw(path: Path) -> None:
    """Draw the stages as boxes with arrows, events on the left and a detected object on the right."""
    figure = Figure(figsize=(12, 3.1))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, 12), ylim=(0, 3.1))
    axes.axis("off")
    width, gap, left = 1.95, 0.42, 0.25
    for index, ((title, text, file), colour) in enumerate(zip(STAGES, COLOURS, strict=True)):
        x = left + index * (width + gap)
        axes.add_patch(FancyBboxPatch((x, 0.75), width, 1.75, "round,pad=0.04", facecolor=colour, edgecolor="#33548a"))
        axes.text(x + width / 2, 2.25, title, ha="center", va="center", fontsize=13, weight="bold", color="#1b2a41")
        axes.text(x + width / 2, 1.62, text, ha="center", va="center", fontsize=10.5, color="#1b2a41")
        axes.text(
            x + width / 2, 0.93, file, ha="center", va="center", fontsize=8.5, family="monospace", color="#5a6b85"
        )
        if index:
            start = (x - gap + 0.06, 1.62)
            axes.add_patch(
                FancyArrowPatch(start, (x - 0.06, 1.62), arrowstyle="-|>", mutation_scale=16, color="#33548a")
            )
    for index in (2, 3):
        centre = left + index * (width + gap) + width / 2
        loop = FancyArrowPatch(
            (centre + 0.5, 2.56), (centre - 0.5, 2.56), connectionstyle="arc3,rad=0.55", arrowstyle="-|>",
            mutation_scale=13, color="#d1495b" if index == 2 else "#d98b94",
        )  # fmt: skip
        axes.add_patch(loop)
    axes.text(
        6.0,
        0.33,
        "red: the recurrent state, carried from each window to the next and advanced by the elapsed time",
        ha="center",
        fontsize=10.5,
        color="#b23a4b",
    )
    random = np.random.default_rng(3)
    axes.scatter(
        0.35 + 1.75 * random.random(60),
        2.62 + 0.3 * random.random(60),
        s=3,
        c=random.choice(["#33548a", "#9db8dd"], 60),
    )
    figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})


def main() -> None:
    """Parse the name of the file and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("docs/images/architecture.png"))
    draw(parser.parse_args().out)


if __name__ == "__main__":
    main()
