"""Run a study: train what is missing, make dense labels where a row needs them, evaluate, and write the table.

Everything lies in one folder and is made once: ``OUT/SEED/RECIPE`` are run directories (``run_directory``), beside each
its dense labels and its evaluation. Stopped in the middle, the same command goes on; a cell that was not run says so.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fate.data.dataset import Dataset, open_dataset
from fate.densify.checking import check_labels
from fate.densify.making import densify
from fate.errors import FateError
from fate.evaluation.evaluate import evaluate
from fate.models.checkpoints import load_model
from fate.simulation.dataset import simulate
from fate.training.config import TrainConfig, make_config
from fate.training.loop import train
from fate.training.studies import RATES, SIZES, Recipe, Row, Study, study_named
from fate.whole_files import write_whole

METRICS = ("AP50:95", "AP50", "AP75")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How large a study is: sizes of models, and settings of its runs."""

    sizes: str  #: a key of ``SIZES``
    settings: Mapping[str, Mapping[str, Any]]  #: of every run
    later: Mapping[str, Mapping[str, Any]]  #: on top, of runs that start from another's weights
    rates: tuple[float, ...] = RATES  #: that dense labels are made for


SCALES: Mapping[str, Scale] = {
    "paper": Scale("paper", {"data": {"steps": 21}}, {}),
    "sim": Scale(
        "small",
        {
            "data": {"steps": 10, "random": 16, "streams": 16, "augmentation": "rvt"},
            "strategy": {"decay": 0.999, "decay_warmup": 500},
            "optimiser": {"lr": 1e-3, "warmup": 0.05},
            "run": {"epochs": 20, "epoch_steps": 200, "validate_every": 20, "validate_recordings": 12, "log_every": 50},
        },
        {"optimiser": {"lr": 5e-4}, "run": {"epochs": 6}},
    ),
    "smoke": Scale(
        "small",
        {
            "data": {"steps": 3, "random": 1, "streams": 1, "augmentation": "none", "workers": 0},
            "strategy": {"decay": 0.9, "rates": [20, 200]},
            "optimiser": {"lr": 1e-3, "warmup": 0.1},
            "run": {"epochs": 2, "epoch_steps": 8, "precision": "float32", "validate_every": 2, "validate_hz": [20]},
        },
        {},
        (20.0, 200.0),
    ),
}


@dataclass(frozen=True)
class StudyResult:
    """A table: for every row and seed the figures by rate, or None where it was not run."""

    study: Study
    dataset: str
    kind: str  #: of the dataset
    seeds: tuple[int, ...]
    cells: dict[str, dict[int, dict[float, dict[str, float | None]] | None]]

    def mean(self, row: str, hz: float, metric: str = METRICS[0]) -> tuple[float, float, int] | None:
        """Mean over seeds in percent, their spread (highest − lowest), and how many there are."""
        found = [
            figures[hz][metric]
            for seed in self.seeds
            if (figures := self.cells[row][seed]) is not None and hz in figures
        ]
        known = [100 * value for value in found if value is not None]
        return (float(np.mean(known)), float(np.ptp(known)), len(known)) if known else None

    def table(self, metric: str = METRICS[0]) -> str:
        """As Markdown; where the paper has a number for this dataset, it stands behind ours with the difference."""
        head = ["", *(f"{hz:g} Hz" for hz in self.study.rates), "of 20 Hz"]
        lines = [f"{self.study.title}; {metric} in %, {self.dataset}, {len(self.seeds)} seeds", "",
                 f"| {' | '.join(head)} |", "|" + "---|" * len(head)]  # fmt: skip
        for row in self.study.rows:
            cells = [self._cell(row, hz, metric) for hz in self.study.rates]
            first, last = (self.mean(row.name, hz, metric) for hz in (20.0, self.study.rates[-1]))
            cells.append(f"{last[0] / first[0]:.0%}" if first and last and first[0] else "–")
            lines.append(f"| {' | '.join([row.name, *cells])} |")
        return "\n".join(lines)

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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = {
            name: {str(seed): None if found is None else {f"{hz:g}": figures for hz, figures in found.items()}
                   for seed, found in seeds.items()}
            for name, seeds in self.cells.items()
        }  # fmt: skip
        return {"study": self.study.name, "dataset": self.dataset, "seeds": list(self.seeds), "rows": rows}

    def save(self, folder: Path) -> None:
        """Markdown, CSV, JSON and a picture, named after the study."""
        base = folder / self.study.name
        write_whole(base.with_suffix(".md"), "\n\n".join(self.table(metric) for metric in METRICS).encode())
        write_whole(base.with_suffix(".json"), json.dumps(self.to_dict(), indent=1, allow_nan=False).encode())
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "seed", "hz", *METRICS])
        for name, seeds in self.cells.items():
            for seed, found in seeds.items():
                for hz, figures in (found or {}).items():
                    writer.writerow([name, seed, f"{hz:g}", *(figures.get(metric) for metric in METRICS)])
        write_whole(base.with_suffix(".csv"), text.getvalue().encode())
        if len(self.study.rates) > 1:
            from fate.training.study_picture import draw_study  # noqa: PLC0415  (matplotlib takes a second to load)

            draw_study(self, base.with_suffix(".png"))


class StudyStoppedError(Exception):
    """A run was asked to stop; the study ends with what there is."""


def run_study(
    name: str,
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    scale: str | None = None,
    seeds: int = 1,
    rows: Sequence[str] = (),
    device: str = "auto",
    workers: int = 4,
    settings: Sequence[str] = (),
    say: Say | None = None,
) -> StudyResult:
    """Run a study, or go on with one.

    Args:
        name: a key of ``STUDIES``.
        dataset: folder or YAML, with splits train, val and test.
        out: everything is kept here; several studies may share a folder, and then share runs.
        scale: a key of ``SCALES``; the paper's on Gen1 and 1Mpx, "sim" elsewhere, unless given.
        seeds: how many, from 0 on.
        rows: names of those to run; all unless given.
        device: cpu, cuda or auto.
        workers: processes that load.
        settings: ``key.sub=value`` changes to every run.
        say: is told what goes on.
    """
    study = study_named(name)
    opened = open_dataset(dataset)
    chosen = scale or ("smoke" if name == "smoke" else "paper" if opened.kind in ("gen1", "1mpx") else "sim")
    if chosen not in SCALES:
        raise FateError(f"scale {chosen!r} was given; there are {', '.join(SCALES)}")
    unknown = [row for row in rows if row not in [each.name for each in study.rows]]
    if unknown:
        raise FateError(f"row {unknown[0]!r} was given; {name} has {', '.join(each.name for each in study.rows)}")
    runner = _Runner(
        str(dataset), opened, Path(out), SCALES[chosen], device, workers, tuple(settings), say or (lambda _: None)
    )
    cells: dict[str, dict[int, Any]] = {row.name: dict.fromkeys(range(seeds)) for row in study.rows}
    stopped = False
    for seed in range(seeds):
        for row in study.rows:
            wanted = not rows or row.name in rows
            try:
                cells[row.name][seed] = runner.figures(row.recipe, seed, study, wanted and not stopped)
            except StudyStoppedError:
                stopped = True
    result = StudyResult(study, opened.name, opened.kind, tuple(range(seeds)), cells)
    result.save(runner.out)
    return result


def drives(size: str, out: str | os.PathLike[str], device: str = "cpu") -> Path:
    """Simulated drives of a study, ``sim`` or ``smoke``, made once: OUT/SIZE-drives."""
    folder = Path(out) / f"{size}-drives"
    if size == "smoke":  # one for each split
        simulate(folder, recordings=3, seconds=1.0, seed=11, preview=False, shares=(1 / 3, 1 / 3, 1 / 3))
    else:
        simulate(folder, recordings=300, seconds=3.0, seed=3, preview=False, device=device)
    return folder


@dataclass(frozen=True)
class _Runner:
    path: str
    dataset: Dataset
    out: Path
    scale: Scale
    device: str
    workers: int
    settings: tuple[str, ...]
    say: Say

    def figures(self, recipe: Recipe, seed: int, study: Study, may_run: bool) -> dict[float, Any] | None:
        """By rate; what is on disk, else made now, else None."""
        file = self.folder(recipe, seed) / "evaluation.json"
        known: dict[float, Any] = {}
        if file.exists():
            known = {float(hz): figures for hz, figures in json.loads(file.read_text()).items()}
        missing = [hz for hz in study.rates if hz not in known]
        if study.kind == "labels":
            return self.label_figures(recipe, seed) if may_run else None
        if missing and may_run:
            weights = self.trained(recipe, seed)
            self.say(f"{recipe.slug}, seed {seed}: evaluating at {', '.join(f'{hz:g}' for hz in missing)} Hz")
            found = evaluate(
                load_model(weights),
                self.dataset.split("test"),
                missing,
                device=self.where,
                lanes=64,
                workers=self.workers,
            )
            for at in found.rates:
                known[at.hz] = {metric: at.scores[metric] for metric in METRICS}
                if at.delays is not None:
                    known[at.hz] |= {
                        "delay_p50_ms": at.delays.quantile_ms(0.5),
                        "delay_p90_ms": at.delays.quantile_ms(0.9),
                    }
            write_whole(file, json.dumps({f"{hz:g}": known[hz] for hz in sorted(known)}, indent=1).encode())
        return {hz: known[hz] for hz in study.rates if hz in known} or None

    def label_figures(self, recipe: Recipe, seed: int) -> dict[float, Any]:
        """Quality of the dense labels that a recipe makes, all classes together by rate."""
        folder = self.dense(recipe, seed, "test")
        checked = check_labels(folder, self.dataset.split("test"))
        checked.save(self.folder(recipe, seed) / "labels.json")
        self.say(checked.table())
        return {}

    def trained(self, recipe: Recipe, seed: int) -> Path:
        """The weights of a recipe, trained now where they are not there."""
        folder = self.folder(recipe, seed)
        config = self.config(recipe, seed)
        self.say(f"{recipe.slug}, seed {seed}: training for {config.steps} steps in {folder}")
        done = train(config, folder, show=lambda at, of, text: self.say(f"  step {at} of {of}: {text}"))
        if not done.finished:
            raise StudyStoppedError
        return folder / "best.safetensors"

    def dense(self, recipe: Recipe, seed: int, split: str = "train") -> Path:
        """The dense labels that a recipe makes."""
        weights = self.trained(recipe, seed)
        folder = self.folder(recipe, seed) / f"dense-{split}"
        self.say(f"{recipe.slug}, seed {seed}: dense labels of {split}")
        densify(
            load_model(weights), self.dataset.split(split), folder, self.scale.rates, device=self.where, lanes=128,
            workers=self.workers,
        )  # fmt: skip
        return folder

    def config(self, recipe: Recipe, seed: int) -> TrainConfig:
        """The settings of a recipe's run; what it builds on is made first."""
        role = SIZES[self.scale.sizes][recipe.role]
        content: dict[str, dict[str, Any]] = {name: dict(part) for name, part in self.scale.settings.items()}
        if recipe.start is not None:
            for name, part in self.scale.later.items():
                content[name] = {**content.get(name, {}), **part}
        model = {**role, "encoder_options": {**role.get("encoder_options", {}), **dict(recipe.encoder_options)}}
        if recipe.start is not None:
            model["weights"] = str(self.trained(recipe.start, seed))
        content["model"] = model
        content["data"] = {"workers": self.workers, **content.get("data", {}), "path": self.path}
        content["strategy"] = {**content.get("strategy", {}), "name": recipe.strategy}
        if recipe.labels is not None:
            content["strategy"]["labels"] = str(self.dense(recipe.labels, seed))
        content["run"] = {**content.get("run", {}), "seed": seed, "device": self.device}
        return make_config(content, self.settings, recipe.slug)

    def folder(self, recipe: Recipe, seed: int) -> Path:
        """Of a recipe's run."""
        return self.out / f"seed-{seed}" / recipe.slug

    @property
    def where(self) -> str:
        """The device that evaluation and labelling use."""
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"
