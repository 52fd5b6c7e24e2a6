"""One part of a study after another: a recipe is trained, its dense labels are made, it is evaluated.

Everything lies in one folder and is made once: ``OUT/SEED/RECIPE`` are run directories (``run_directory``), beside each
its dense labels, its evaluation and the hours that each took. What was stopped in the middle goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fate.data.dataset import Dataset
from fate.workflows.check_labels import check_labels
from fate.densify.making import densify
from fate.densify.tracklets import TrackletOptions
from fate.evaluation.evaluate import evaluate
from fate.inference.running import at_once
from fate.json_files import read_object
from fate.models.checkpoints import load_model, read_card
from fate.training.config import TrainConfig, make_config, read_config
from fate.training.loop import train
from fate.view.samples import draw_samples
from fate.rates import PAPER_RATES
from fate.workflows.studies.tables import SIZES, Recipe, Study
from fate.workflows.studies.labels import figures_of
from fate.workflows.studies.table import METRICS
from fate.whole_files import write_whole

Say = Callable[[str], None]
#: Windows that a GPU evaluates or labels at once, about.
AT_ONCE = 320
FIGURES = "figures of a study; delete it to measure them again"


@dataclass(frozen=True)
class Scale:
    """How large a study is: sizes of models, and settings of its runs."""

    sizes: str  #: a key of ``SIZES``
    settings: Mapping[str, Mapping[str, Any]]  #: of every run
    later: Mapping[str, Mapping[str, Any]]  #: on top, of runs that start from another's weights
    rates: tuple[float, ...] = PAPER_RATES  #: that dense labels are made for
    lr_factor: Mapping[str, float] = field(default_factory=dict)  #: by role, of the learning rate


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
    """A run was asked to stop; the study ends with what there is."""


def _has_settings(folder: Path, config: TrainConfig) -> bool:
    """Whether a run in this folder was trained with these settings; where not, training refuses to go on there."""
    file = folder / "config.yaml"
    return file.exists() and read_config(file).fingerprint() == config.fingerprint()


def _is_finished(folder: Path, config: TrainConfig) -> bool:
    """Whether a run with these settings came to its end: its weights say so, whatever became of its checkpoint."""
    best, last = folder / "best.safetensors", folder / "last.safetensors"
    if not best.exists() or not _has_settings(folder, config):
        return False
    told = [read_card(file).get("training") or {} for file in (last, best) if file.exists()]
    return any(each.get("step", 0) >= config.steps for each in told)


@dataclass(frozen=True)
class Runner:
    """Everything in one folder; ``say`` is told what goes on."""

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
        if study.kind == "labels":
            return self.label_figures(recipe, seed, may_run)
        known = self.known(recipe, seed)
        missing = [hz for hz in study.rates if hz not in known]
        if missing and may_run:
            known |= self._evaluated(recipe, seed, missing)
            text = json.dumps({f"{hz:g}": known[hz] for hz in sorted(known)}, indent=1)
            write_whole(self._evaluation(recipe, seed), text.encode())
        return {hz: known[hz] for hz in study.rates if hz in known} or None

    def known(self, recipe: Recipe, seed: int) -> dict[float, Any]:
        """What was measured before, by rate; nothing of a run with other settings."""
        file = self._evaluation(recipe, seed)
        if not file.exists() or not _has_settings(file.parent, self.config(recipe, seed)):
            return {}
        return {float(hz): figures for hz, figures in read_object(file, FIGURES).items()}

    def _evaluation(self, recipe: Recipe, seed: int) -> Path:
        return self.folder(recipe, seed) / "evaluation.json"

    def _evaluated(self, recipe: Recipe, seed: int, rates: list[float]) -> dict[float, Any]:
        """Figures at these rates, of weights that are trained first where they are not there."""
        weights = self.trained(recipe, seed)
        self.say(f"{recipe.slug}, seed {seed}: evaluating at {', '.join(f'{hz:g}' for hz in rates)} Hz")
        with self._timed(recipe, seed, "evaluation"):
            test = self.dataset.split("test")
            lanes, steps = at_once(test, AT_ONCE) if self.where == "cuda" else (8, 1)
            found = evaluate(
                load_model(weights), test, rates, device=self.where, lanes=lanes, steps=steps,
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

    def label_figures(self, recipe: Recipe, seed: int, may_run: bool) -> dict[float, Any] | None:
        """Quality of the dense labels that a recipe makes of the test split, by rate; as ``figures``."""
        file = self.folder(recipe, seed) / "labels.json"
        ours = file.exists() and _has_settings(file.parent, self.config(recipe, seed))
        known = figures_of(read_object(file, FIGURES)) if ours else {}
        if not known.keys() >= set(self.scale.rates) and may_run:
            checked = check_labels(self.dense(recipe, seed, "test"), self.dataset.split("test"))
            checked.save(file)
            self.say(checked.table())
            known = figures_of(checked.to_dict())
        return known or None

    def trained(self, recipe: Recipe, seed: int) -> Path:
        """The weights of a recipe, trained now where they are not there, after all that it builds on."""
        folder, config = self.folder(recipe, seed), self.config(recipe, seed)
        weights = folder / "best.safetensors"
        if _is_finished(folder, config):
            return weights
        if recipe.start is not None:
            self.trained(recipe.start, seed)
        if recipe.labels is not None:
            self.dense(recipe.labels, seed)
        self.say(f"{recipe.slug}, seed {seed}: training for {config.steps} steps in {folder}")
        with self._timed(recipe, seed, "training"):
            done = train(
                config,
                folder,
                progress=lambda at, of=1.0, text="", part="", /: self.say(f"  step {at} of {of}: {text}"),
                draw_samples=draw_samples,
            )
        if not done.finished:
            raise StudyStoppedError
        return weights

    def is_trained(self, recipe: Recipe, seed: int) -> bool:
        """Whether its weights are there."""
        return _is_finished(self.folder(recipe, seed), self.config(recipe, seed))

    def dense(self, recipe: Recipe, seed: int, split: str = "train") -> Path:
        """The dense labels that a recipe makes.

        Those of the test split are for judging. Where truth is not exact, annotated boxes are all there is to judge by:
        there tracks stand on their own, without these.
        """
        weights, folder = self.trained(recipe, seed), self.labels(recipe, seed, split)
        part = self.dataset.split(split)
        guided = split != "test" or any(recording.truth_file is not None for recording in part.recordings)
        self.say(f"{recipe.slug}, seed {seed}: dense labels of {split}")
        with self._timed(recipe, seed, "dense labels"):
            densify(
                load_model(weights), part, folder, self.scale.rates, options=TrackletOptions(with_truth=guided),
                device=self.where, lanes=AT_ONCE, workers=self.workers,
            )  # fmt: skip
        return folder

    def config(self, recipe: Recipe, seed: int) -> TrainConfig:
        """The settings of a recipe's run."""
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
            content["strategy"]["labels"] = str(self.labels(recipe.labels, seed))
        content["run"] = {**content.get("run", {}), "seed": seed, "device": self.device}
        return make_config(content, self.settings, recipe.slug)

    def labels(self, recipe: Recipe, seed: int, split: str = "train") -> Path:
        """Of the dense labels that a recipe makes."""
        return self.folder(recipe, seed) / f"dense-{split}"

    def folder(self, recipe: Recipe, seed: int) -> Path:
        """Of a recipe's run."""
        return self.out / f"seed-{seed}" / recipe.slug

    @contextmanager
    def _timed(self, recipe: Recipe, seed: int, work: str) -> Iterator[None]:
        """What is done within is added to the hours of the recipe's run, on this device; each work has its own file."""
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
        """Spent on these recipes so far, by device."""
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
