"""Train the recipes of a study, make their dense labels and evaluate them.

Everything is in one folder and made once: ``OUT/SEED/RECIPE`` is a run directory, which also holds the dense labels of
the recipe, its evaluation and the hours they took. A runner continues work that was stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fate.data.dataset import Dataset, open_dataset
from fate.densify.making import densify
from fate.densify.tracklets import TrackletOptions
from fate.evaluation.evaluate import evaluate
from fate.inference.running import at_once
from fate.json_files import read_object
from fate.models.checkpoints import load_model, read_card
from fate.progress import Progress
from fate.rates import PAPER_RATES
from fate.training.config import TrainConfig, make_config, read_config
from fate.training.loop import train
from fate.view.samples import draw_samples
from fate.whole_files import write_whole
from fate.workflows.check_labels import check_labels
from fate.workflows.studies.declared import SIZES, Recipe, Study
from fate.workflows.studies.table import METRICS, figures_of

#: About the number of windows that a GPU evaluates or labels at the same time.
AT_ONCE = 320
FIGURES = "figures of a study; delete it to measure them again"


@dataclass(frozen=True)
class Scale:
    """How large a study is: sizes of models, and settings of its runs."""

    sizes: str  #: a key of ``SIZES``
    settings: Mapping[str, Mapping[str, Any]]  #: settings of every run
    later: Mapping[str, Mapping[str, Any]]  #: changes to them for runs that start from the weights of another run
    rates: tuple[float, ...] = PAPER_RATES  #: rates of the dense labels in Hz
    lr_factor: Mapping[str, float] = field(default_factory=dict)  #: factor of the learning rate, by role


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
        lr_factor={"evrt": 0.4, "fate-e": 0.4},  # as in the configurations sim/*: transformers take smaller steps
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


class StudyStoppedError(Exception):
    """A run was asked to stop; the study ends with the results so far."""


def _has_settings(folder: Path, config: TrainConfig) -> bool:
    """Whether the run in this folder has these settings; training refuses to continue a run with others."""
    file = folder / "config.yaml"
    return file.exists() and read_config(file).fingerprint() == config.fingerprint()


def _is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether a run with these settings is finished, by the step in its weights; its checkpoint may be deleted."""
    best, last = folder / "best.safetensors", folder / "last.safetensors"
    if not best.exists() or not _has_settings(folder, config):
        return False
    cards = [read_card(file).get("training") or {} for file in (last, best) if file.exists()]
    return any(card.get("step", 0) >= config.steps for card in cards)


@dataclass(frozen=True)
class Runner:
    """Does the work of one study in one folder.

    Attributes:
        study: the study.
        path: folder or YAML file of the dataset.
        out: folder of all runs.
        scale: size of models and runs.
        device: cpu, cuda or auto.
        workers: processes of each run that load data.
        settings: ``key.sub=value`` changes to every run.
        threads: CPU threads of a process, if several run in parallel.
        progress: takes a text about each step.
    """

    study: Study
    path: str
    out: Path
    scale: Scale
    device: str = "auto"
    workers: int = 4
    settings: tuple[str, ...] = ()
    threads: int = 1
    progress: Progress | None = None

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, opened on first use."""
        return open_dataset(self.path)

    def report(self, text: str) -> None:
        """Report a step of the work."""
        if self.progress is not None:
            self.progress(0, None, text)

    def figures(self, recipe: Recipe, seed: int, may_run: bool) -> dict[float, Any] | None:
        """Figures by rate, from the disk or, if ``may_run``, measured now; None if there are none."""
        if self.study.kind == "labels":
            return self._label_figures(recipe, seed, may_run)
        known = self.measured(recipe, seed)
        missing = [hz for hz in self.study.rates if hz not in known]
        if missing and may_run:
            known |= self._evaluate(recipe, seed, missing)
            text = json.dumps({f"{hz:g}": known[hz] for hz in sorted(known)}, indent=1)
            write_whole(self._evaluation(recipe, seed), text.encode())
        return {hz: known[hz] for hz in self.study.rates if hz in known} or None

    def measured(self, recipe: Recipe, seed: int) -> dict[float, Any]:
        """Figures by rate that are on the disk; none if the run there has other settings."""
        file = self._evaluation(recipe, seed)
        if not file.exists() or not _has_settings(file.parent, self.config(recipe, seed)):
            return {}
        return {float(hz): figures for hz, figures in read_object(file, FIGURES).items()}

    def _evaluation(self, recipe: Recipe, seed: int) -> Path:
        return self.folder(recipe, seed) / "evaluation.json"

    def _evaluate(self, recipe: Recipe, seed: int, rates: list[float]) -> dict[float, Any]:
        """Train the recipe if that is not done, and measure its figures at these rates."""
        weights = self.train(recipe, seed)
        self.report(f"{recipe.slug}, seed {seed}: evaluating at {', '.join(f'{hz:g}' for hz in rates)} Hz")
        with self._timed(recipe, seed, "evaluation"):
            test = self.dataset.split("test")
            streams, steps = at_once(test, AT_ONCE) if self.where == "cuda" else (8, 1)
            found = evaluate(
                load_model(weights), test, rates, device=self.where, streams=streams, steps=steps,
                workers=self.workers if self.where == "cuda" else 0,
            )  # fmt: skip
        figures: dict[float, Any] = {}
        for at in found.rates:
            figures[at.hz] = {metric: at.scores[metric] for metric in METRICS}
            if at.delays is not None:
                figures[at.hz] |= {
                    "delay_p50_ms": at.delays.quantile_ms(0.5),
                    "delay_p90_ms": at.delays.quantile_ms(0.9),
                    "delay_within_100": at.delays.found_within(100.0),
                    "delay_missed": at.delays.missed / len(at.delays) if len(at.delays) else None,
                }
        return figures

    def _label_figures(self, recipe: Recipe, seed: int, may_run: bool) -> dict[float, Any] | None:
        """The quality of the dense labels that a recipe makes of the test split, by rate."""
        file = self.folder(recipe, seed) / "labels.json"
        ours = file.exists() and _has_settings(file.parent, self.config(recipe, seed))
        known = figures_of(read_object(file, FIGURES)) if ours else {}
        if not known.keys() >= set(self.scale.rates) and may_run:
            checked = check_labels(self.make_labels(recipe, seed, "test"), self.dataset.split("test"))
            checked.save(file)
            self.report(checked.table())
            known = figures_of(checked.to_dict())
        return known or None

    def train(self, recipe: Recipe, seed: int) -> Path:
        """Train a recipe after all recipes it depends on, unless that is done, and return the file of its weights."""
        folder, config = self.folder(recipe, seed), self.config(recipe, seed)
        weights = folder / "best.safetensors"
        if _is_finished(folder, config):
            return weights
        if recipe.start is not None:
            self.train(recipe.start, seed)
        if recipe.labels is not None:
            self.make_labels(recipe.labels, seed)
        self.report(f"{recipe.slug}, seed {seed}: training for {config.steps} steps in {folder}")
        with self._timed(recipe, seed, "training"):
            done = train(config, folder, progress=self._report_step, draw_samples=draw_samples)
        if not done.finished:
            raise StudyStoppedError
        return weights

    def is_trained(self, recipe: Recipe, seed: int) -> bool:
        """Whether the training of a recipe is finished."""
        return _is_finished(self.folder(recipe, seed), self.config(recipe, seed))

    def _report_step(self, done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        self.report(f"  step {done} of {total}: {text}")

    def make_labels(self, recipe: Recipe, seed: int, split: str = "train") -> Path:
        """Make the dense labels of a recipe, unless that is done, and return their folder.

        The labels of the test split are made to be compared with the ground truth. If the annotated boxes are the only
        ground truth, the tracks must not use them.
        """
        weights, folder = self.train(recipe, seed), self._labels_folder(recipe, seed, split)
        part = self.dataset.split(split)
        with_truth = split != "test" or any(recording.truth_file is not None for recording in part.recordings)
        self.report(f"{recipe.slug}, seed {seed}: dense labels of {split}")
        with self._timed(recipe, seed, "dense labels"):
            densify(
                load_model(weights), part, folder, self.scale.rates, options=TrackletOptions(with_truth=with_truth),
                device=self.where, batch_size=AT_ONCE, workers=self.workers,
            )  # fmt: skip
        return folder

    def config(self, recipe: Recipe, seed: int) -> TrainConfig:
        """The settings of the run of a recipe."""
        role = SIZES[self.scale.sizes][recipe.role]
        content: dict[str, dict[str, Any]] = {name: dict(part) for name, part in self.scale.settings.items()}
        if recipe.start is not None:
            for name, part in self.scale.later.items():
                content[name] = {**content.get(name, {}), **part}
        model = {**role, "encoder_options": {**role.get("encoder_options", {}), **dict(recipe.encoder_options)}}
        if recipe.start is not None:
            model["weights"] = str(self.folder(recipe.start, seed) / "best.safetensors")
        content["model"] = model
        if recipe.role in self.scale.lr_factor:
            rate = content["optimiser"]["lr"] * self.scale.lr_factor[recipe.role]
            content["optimiser"] = {**content["optimiser"], "lr": rate}
        content["data"] = {"workers": self.workers, **content.get("data", {}), "path": self.path}
        content["strategy"] = {**content.get("strategy", {}), "name": recipe.strategy}
        if recipe.labels is not None:
            content["strategy"]["labels"] = str(self._labels_folder(recipe.labels, seed))
        content["run"] = {**content.get("run", {}), "seed": seed, "device": self.device}
        return make_config(content, self.settings, recipe.slug)

    def _labels_folder(self, recipe: Recipe, seed: int, split: str = "train") -> Path:
        return self.folder(recipe, seed) / f"dense-{split}"

    def folder(self, recipe: Recipe, seed: int) -> Path:
        """The folder of the run of a recipe."""
        return self.out / f"seed-{seed}" / recipe.slug

    @contextmanager
    def _timed(self, recipe: Recipe, seed: int, work: str) -> Iterator[None]:
        """Add the time of the block to the hours of a recipe on this device; each kind of work has its own file."""
        began = time.perf_counter()
        try:
            yield
        finally:
            file = self.folder(recipe, seed) / f"hours-{work.replace(' ', '-')}.json"
            spent = read_object(file, FIGURES) if file.exists() else {}
            spent[self._device_name] = spent.get(self._device_name, 0.0) + (time.perf_counter() - began) / 3600
            if file.parent.exists():
                write_whole(file, json.dumps(spent, indent=1).encode())

    def hours(self, recipes: Collection[Recipe], seeds: int) -> dict[str, float]:
        """Hours spent on these recipes so far, by device."""
        total: dict[str, float] = {}
        for folder in sorted({self.folder(recipe, seed) for recipe in recipes for seed in range(seeds)}):
            for file in sorted(folder.glob("hours-*.json")):
                for device, hours in read_object(file, FIGURES).items():
                    total[device] = total.get(device, 0.0) + hours
        return total

    @property
    def _device_name(self) -> str:
        return torch.cuda.get_device_name() if self.where == "cuda" else "CPU"

    @property
    def where(self) -> str:
        """The device that evaluation and labelling use."""
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"
