"""The study of dense labels as a table and a picture: how good they are by detector, rate and class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fate.workflows.check_labels import BESIDE, METHODS, SPANS
from fate.workflows.check_labels import draw_over_scores
from fate.workflows.studies.table import StudyResult, seeds_in_words
from fate.view.page import write_figure

FIGURES = {"precision": "precision", "recall": "recall", "median_iou": "median IoU", "above_half": "IoU > 0.5"}
#: What training draws on; of recorded sets, what can be known.
SHOWN = (SPANS[1], BESIDE)
_NAIVE = {METHODS[1]: "naive interpolation, tracks known", METHODS[2]: "naive interpolation, tracks unknown"}

#: The paper's figures on Gen1, of cars and of pedestrians, as ``FIGURES`` has them.
PUBLISHED: Mapping[str, Mapping[float, tuple[float, ...]]] = {
    "PE + S5-ViT": {
        20.0: (0.78, 0.64, 0.62, 0.78, 0.68, 0.52, 0.54, 0.68),
        40.0: (0.75, 0.60, 0.59, 0.74, 0.65, 0.48, 0.51, 0.64),
        80.0: (0.70, 0.54, 0.55, 0.69, 0.60, 0.43, 0.47, 0.60),
        100.0: (0.66, 0.50, 0.52, 0.66, 0.57, 0.40, 0.44, 0.56),
        200.0: (0.60, 0.42, 0.47, 0.45, 0.49, 0.32, 0.40, 0.49),
    },
    "PE + EvRT-DETR": {
        20.0: (0.83, 0.68, 0.65, 0.83, 0.72, 0.56, 0.57, 0.72),
        40.0: (0.80, 0.64, 0.62, 0.80, 0.69, 0.52, 0.54, 0.69),
        80.0: (0.75, 0.58, 0.58, 0.75, 0.64, 0.47, 0.50, 0.48),
        100.0: (0.72, 0.54, 0.55, 0.72, 0.61, 0.44, 0.47, 0.44),
        200.0: (0.65, 0.46, 0.48, 0.47, 0.53, 0.36, 0.42, 0.38),
    },
}
_PUBLISHED_CLASSES = ("car", "pedestrian")


def figures_of(check: Mapping[str, Any]) -> dict[float, dict[str, Any]]:
    """By rate, from what ``LabelCheck`` keeps as JSON: ``METHOD CLASS FIGURE`` → value; ``curves``, ``thresholds``."""
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
    """Rows are detectors, whose dense labels are held against truth."""

    def text(self) -> str:
        """The table and what it took, as Markdown."""
        return "\n\n".join(part for part in (self.table(), self.conditions()) if part) + "\n"

    def table(self, metric: str = "") -> str:
        """A line for each detector and rate, then for naive interpolation, which needs none; of all figures at once."""
        words = [f"{name}: {word}" if number == 0 else word
                 for name in self._classes() for number, word in enumerate(FIGURES.values())]  # fmt: skip
        head = ["", "Hz", *(words or ["labels"])]
        known = list(self._known())
        span = known[0][2]["span"] if known else "no labels yet"
        lines = [f"{self.study.title}; {span}, {self.dataset}, {seeds_in_words(len(self.seeds))}", "",
                 f"| {' | '.join(head)} |", "|" + "---|" * len(head)]  # fmt: skip
        not_run = ["not run", *[""] * (len(head) - 3)]
        for row in self.study.rows:
            count = sum(name == row.name for name, _, _ in known)
            called = f"{row.name} ({count} of {len(self.seeds)})" if 0 < count < len(self.seeds) else row.name
            for hz in self.study.rates:
                was_run = any(hz in (found or {}) for found in self.cells[row.name].values())
                shares = self._shares(row.name, hz, METHODS[0]) if was_run else not_run
                lines.append(f"| {' | '.join([called, f'{hz:g}', *shares])} |")
        naive = [(called, hz, self._shares(known[0][0], hz, method))
                 for method, called in _NAIVE.items() if known for hz in self.study.rates]  # fmt: skip
        lines += [
            f"| {' | '.join([called, f'{hz:g}', *shares])} |" for called, hz, shares in naive if set(shares) - {"–"}
        ]
        return "\n".join(lines)

    def csv_rows(self) -> Iterator[list[Any]]:
        """A head, then a line for each row, seed, rate, method and class."""
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
        """Precision and recall of detections over their score, by detector and class; dotted: where labels begin."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (a second to load)
        from matplotlib.figure import Figure  # noqa: PLC0415

        drawn = {name: at for name, _, at in reversed(list(self._known())) if "curves" in at}  # of the first seed
        rows, classes = [row.name for row in self.study.rows if row.name in drawn], self._classes()
        if not rows or not classes:
            return
        figure = Figure(figsize=(4.2 * len(classes), 3.2 * len(rows)), layout="constrained")
        FigureCanvasAgg(figure)
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
        """Row, seed and figures at the highest rate, of what was run."""
        for row, seeds in self.cells.items():
            for seed, found in seeds.items():
                if found:
                    yield row, seed, found[max(found)]

    def _classes(self) -> list[str]:
        return list(dict.fromkeys(name for _, _, at in self._known() for name in at["thresholds"]))

    def _shares(self, row: str, hz: float, method: str) -> list[str]:
        """A cell for each class and figure."""
        cells = [self._share(row, hz, method, name, figure) for name in self._classes() for figure in FIGURES]
        return ["–" if cell is None else cell for cell in cells]

    def _share(self, row: str, hz: float, method: str, name: str, figure: str) -> str | None:
        found = self.mean(row, hz, _key(method, name, figure))
        if found is None:
            return None
        mean, spread, count = found[0] / 100, found[1] / 100, found[2]
        text = f"{mean:.2f}" + (f" ± {spread / 2:.2f}" if count > 1 and method == METHODS[0] else "")
        if self.kind != "gen1" or name not in _PUBLISHED_CLASSES or method != METHODS[0]:
            return text
        place = _PUBLISHED_CLASSES.index(name) * len(FIGURES) + list(FIGURES).index(figure)
        published = PUBLISHED.get(row, {}).get(hz)
        return text if published is None else f"{text} [paper {published[place]:.2f}, {mean - published[place]:+.2f}]"
