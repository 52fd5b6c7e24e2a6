"""Train the recipes of a study, make their dense labels and evaluate them.

A recipe is named like its configuration, such as ``"gen1/fate-e"``. Everything is in one folder and made once:
``OUT/seed-0/fate-e`` is a run directory, which also holds the dense labels of the recipe, its evaluation and the hours
they took. A runner continues work that was stopped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from fate.data.dataset import Dataset
from fate.data.opening import open_dataset
from fate.densify.making import densify
from fate.densify.tracklets import TrackletOptions, paper_options
from fate.evaluation.evaluate import evaluate
from fate.inference.loading import load_detector
from fate.inference.running import MOST_WINDOWS
from fate.json_files import read_object, write_json
from fate.models.checkpoints import load_model, read_card
from fate.models.nms import Score
from fate.progress import Progress
from fate.training.config import TrainConfig, make_config, read_config
from fate.training.loop import fresh_detector, train
from fate.view.evaluation_pictures import draw_samples
from fate.view.learning_curves import draw_curves
from fate.workflows.check_labels import check_labels
from fate.workflows.detect import detect
from fate.workflows.studies.declared import Study, read_recipe
from fate.workflows.studies.table import METRICS, figures_of

#: Labels of each rate that the paper measures, on Gen1.
PAPER_SAMPLE = 10_000
#: Windows whose latency is measured at each rate.
LATENCY_WINDOWS = 100
#: What the figures of given weights were measured with.
MEASURED = "measured.json"
FIGURES = "figures of a study; delete it to measure them again"


class StudyStoppedError(Exception):
    """A run was asked to stop; the study ends with the results so far."""


@cache
def _hash(file: Path) -> str:
    """Eight digits that tell files of weights apart."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:8]


def _has_settings(folder: Path, config: TrainConfig) -> bool:
    """Whether the run in this folder has these settings; training refuses to continue a run with others."""
    file = folder / "config.yaml"
    return file.exists() and read_config(file).fingerprint() == config.fingerprint()


@dataclass(frozen=True)
class Runner:
    """Does the work of one study in one folder."""

    study: Study
    path: str  #: folder or YAML file of the dataset
    out: Path  #: folder of all runs
    device: str = "auto"  #: or cpu, or cuda
    workers: int = 4  #: processes of each run that load data
    settings: tuple[str, ...] = ()  #: ``key.sub=value`` changes to every run
    weights: Mapping[str, Path] = field(default_factory=dict)  #: recipe → weights that are used instead of training it
    score: Score = "product"  #: what ranks boxes in evaluations
    allow_missing: bool = False  #: whether files or boxes of the dataset may be missing
    progress: Progress | None = None  #: takes a text about each step

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, opened on first use."""
        return open_dataset(self.path)

    def report(self, text: str) -> None:
        """Report a step of the work."""
        if self.progress is not None:
            self.progress(0, None, text)

    def figures(self, recipe: str, seed: int, may_run: bool) -> dict[float, Any] | None:
        """Figures by rate, from the disk or, if ``may_run``, measured now; None if there are none."""
        if self.study.kind == "labels":
            return self._label_figures(recipe, seed, may_run)
        known = self.measured(recipe, seed)
        missing = [hz for hz in self.study.rates if hz not in known]
        if missing and may_run:
            self._begin_measuring(recipe, seed)
            known |= self._evaluate(recipe, seed, missing)
            figures = {f"{hz:g}": known[hz] for hz in sorted(known)}
            write_json(self.folder(recipe, seed) / self._evaluation_file, figures)
        return {hz: known[hz] for hz in self.study.rates if hz in known} or None

    def million_parameters(self, recipe: str) -> float:
        """The number of parameters of a recipe's detector, in millions."""
        detector = fresh_detector(self.config(recipe, 0).model, self.dataset)
        return sum(weight.numel() for weight in detector.parameters()) / 1e6

    def latency(self, recipe: str, may_run: bool) -> dict[float, dict[str, float]]:
        """Median milliseconds of a window by rate and stage on this device, for a study of efficiency.

        The detector of the first seed runs window by window on the start of a test recording.
        """
        has_events = self.dataset.holds != "histograms"
        if self.study.kind != "efficiency" or not has_events or not self.is_trained(recipe, 0):
            return {}
        device = torch.cuda.get_device_name() if self.where == "cuda" else "CPU"
        stored = self._stored(recipe, 0, "latency.json")
        known = stored.setdefault(device, {})
        missing = [hz for hz in self.study.rates if f"{hz:g}" not in known]
        if missing and may_run:
            self._begin_measuring(recipe, 0)
            self.report(f"{recipe}: latency at {', '.join(f'{hz:g}' for hz in missing)} Hz")
            detector = load_detector(self.weights_of(recipe, 0), self.where)
            first = self.dataset.split("test").labelled[0]
            with first.event_options.open(first.events_file) as recording:
                for hz in missing:
                    end_us = recording.start_us + LATENCY_WINDOWS * round(1e6 / hz)
                    spent = detect(recording, detector, hz, end_us=min(end_us, recording.end_us)).summary["latency_ms"]
                    known[f"{hz:g}"] = {stage: times[0] for stage, times in spent.items()}
            write_json(self.folder(recipe, 0) / "latency.json", stored)
        return {float(hz): stages for hz, stages in known.items() if float(hz) in self.study.rates}

    def is_measured(self, recipe: str, seed: int) -> bool:
        """Whether all figures of a recipe are on the disk."""
        if self.study.kind == "labels":
            return bool(self._stored(recipe, seed, "labels.json"))
        return self.measured(recipe, seed).keys() >= set(self.study.rates)

    def measured(self, recipe: str, seed: int) -> dict[float, Any]:
        """Figures by rate that are on the disk; none if the run there has other settings."""
        return {float(hz): figures for hz, figures in self._stored(recipe, seed, self._evaluation_file).items()}

    @property
    def _evaluation_file(self) -> str:
        return "evaluation.json" if self.score == "product" else f"evaluation-{self.score}.json"

    def _stored(self, recipe: str, seed: int, name: str) -> dict[str, Any]:
        """A file of figures; empty if it is missing, or if the run has other settings."""
        file = self.folder(recipe, seed) / name
        if not file.exists():
            return {}
        given = recipe in self.weights
        is_ours = self._is_of_weights(recipe, seed) if given else _has_settings(file.parent, self.config(recipe, seed))
        return read_object(file, FIGURES) if is_ours else {}

    def _is_of_weights(self, recipe: str, seed: int) -> bool:
        """Whether the figures of given weights were measured with these weights on this dataset."""
        file = self.folder(recipe, seed) / MEASURED
        return file.exists() and read_object(file, FIGURES) == self._measured_with(recipe)

    def _measured_with(self, recipe: str) -> dict[str, str]:
        return {"dataset": str(self.dataset.root), "weights": _hash(self.weights[recipe])}

    def _begin_measuring(self, recipe: str, seed: int) -> None:
        """Make the folder of the figures; figures of other weights or of another dataset are removed."""
        folder = self.folder(recipe, seed)
        folder.mkdir(parents=True, exist_ok=True)
        if recipe in self.weights and not self._is_of_weights(recipe, seed):
            for file in (*folder.glob("evaluation*.json"), folder / "latency.json", folder / "labels.json"):
                file.unlink(missing_ok=True)
            write_json(folder / MEASURED, self._measured_with(recipe))

    def _evaluate(self, recipe: str, seed: int, rates: list[float]) -> dict[float, Any]:
        """Train the recipe if that is not done, and measure its figures at these rates."""
        weights = self.train(recipe, seed)
        self.report(f"{recipe}, seed {seed}: evaluating at {', '.join(f'{hz:g}' for hz in rates)} Hz")
        with self._timed(recipe, seed, "evaluation"):
            test = self.dataset.split("test")
            found = evaluate(
                load_model(weights), test, rates, device=self.where,
                workers=self.workers if self.where == "cuda" else 0, score=self.score,
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

    def _label_figures(self, recipe: str, seed: int, may_run: bool) -> dict[float, Any] | None:
        """The quality of the dense labels that a recipe makes of the test split, by rate."""
        stored = self._stored(recipe, seed, "labels.json")
        known = figures_of(stored) if stored else {}
        if not known.keys() >= set(self.config(recipe, seed).strategy.rates) and may_run:
            self._begin_measuring(recipe, seed)
            test, labels = self.dataset.split("test"), self.make_labels(recipe, seed, "test")
            sample = PAPER_SAMPLE if self.dataset.kind in ("gen1", "1mpx") else None
            checked = check_labels(labels, test, sample=sample)
            checked.save(self.folder(recipe, seed) / "labels.json")
            self.report(checked.table())
            known = figures_of(checked.to_dict())
        return known or None

    def train(self, recipe: str, seed: int) -> Path:
        """Train a recipe after all recipes it depends on, unless that is done, and return the file of its weights."""
        folder, config = self.folder(recipe, seed), self.config(recipe, seed)
        weights = self.weights_of(recipe, seed)
        if self.is_trained(recipe, seed):
            return weights
        _, _, start, labels, as_paper = read_recipe(recipe)
        if start is not None:
            self.train(start, seed)
        if labels is not None:
            self.make_labels(labels, seed, as_paper=as_paper)

        self.report(f"{recipe}, seed {seed}: training for {config.steps} steps in {folder}")
        with self._timed(recipe, seed, "training"):
            done = train(
                config, folder, draw_samples=draw_samples, draw_curves=draw_curves,
                allow_missing=self.allow_missing,
                progress=lambda step, total=1.0, text="", part="", /: self.report(f"  step {step} of {total}: {text}"),
            )  # fmt: skip
        if not done.finished:
            raise StudyStoppedError
        return weights

    def is_trained(self, recipe: str, seed: int) -> bool:
        """Whether the training of a recipe is finished, by the step in its weights; its checkpoint may be deleted."""
        if recipe in self.weights:
            return True
        folder, config = self.folder(recipe, seed), self.config(recipe, seed)
        best, last = folder / "best.safetensors", folder / "last.safetensors"
        if not best.exists() or not _has_settings(folder, config):
            return False
        cards = [read_card(file).get("training") or {} for file in (last, best) if file.exists()]
        return any(card.get("step", 0) >= config.steps for card in cards)

    def make_labels(self, recipe: str, seed: int, split: str = "train", as_paper: bool = False) -> Path:
        """Make the dense labels of a recipe, unless that is done, and return their folder.

        The labels of the test split are made to be compared with the ground truth. If the annotated boxes are the only
        ground truth, the tracks must not use them.
        """
        weights, folder = self.train(recipe, seed), self._labels_folder(recipe, seed, split, as_paper)
        part = self.dataset.split(split)
        with_truth = split != "test" or any(recording.truth_file is not None for recording in part.recordings)
        options = paper_options() if as_paper else TrackletOptions(with_truth=with_truth)
        self.report(f"{recipe}, seed {seed}: dense labels of {split}{', as in the paper' if as_paper else ''}")
        with self._timed(recipe, seed, "dense labels"):
            rates = self.config(recipe, seed).strategy.rates
            densify(
                load_model(weights), part, folder, rates, options=options,
                device=self.where, batch_size=MOST_WINDOWS, workers=self.workers,
            )  # fmt: skip
        return folder

    def config(self, recipe: str, seed: int) -> TrainConfig:
        """The settings of the run of a recipe: those of its file, with the paths of this study."""
        _, config, start, labels, as_paper = read_recipe(recipe)
        content = config.model_dump(mode="json", by_alias=True)
        content["data"] |= {"path": self.path, "workers": self.workers}
        content["run"] |= {"seed": seed, "device": self.device}
        if start is not None:
            content["model"]["weights"] = str(self.weights_of(start, seed))
        if labels is not None:
            content["strategy"]["labels"] = str(self._labels_folder(labels, seed, as_paper=as_paper))
        return make_config(content, self.settings, recipe)

    def weights_of(self, recipe: str, seed: int) -> Path:
        """The file of the weights of a recipe: given ones, or those that its run writes."""
        return self.weights.get(recipe) or self.folder(recipe, seed) / "best.safetensors"

    def _labels_folder(self, recipe: str, seed: int, split: str = "train", as_paper: bool = False) -> Path:
        return self.folder(recipe, seed) / f"dense-{split}{'-as-paper' if as_paper else ''}"

    def folder(self, recipe: str, seed: int) -> Path:
        """The folder of the run of a recipe; results of given weights have their own."""
        name = recipe.split("/")[1]
        if recipe in self.weights:
            name += f"-given-{_hash(self.weights[recipe])}"
        return self.out / f"seed-{seed}" / name

    @contextmanager
    def _timed(self, recipe: str, seed: int, work: str) -> Iterator[None]:
        """Add the time of the block to the hours of a recipe on this device; each kind of work has its own file."""
        began = time.perf_counter()
        try:
            yield
        finally:
            file = self.folder(recipe, seed) / f"hours-{work.replace(' ', '-')}.json"
            spent = read_object(file, FIGURES) if file.exists() else {}
            device = torch.cuda.get_device_name() if self.where == "cuda" else "CPU"
            spent[device] = spent.get(device, 0.0) + (time.perf_counter() - began) / 3600
            if file.parent.exists():
                write_json(file, spent)

    def hours(self, recipes: Collection[str], seeds: int) -> dict[str, float]:
        """Hours spent on these recipes so far, by device."""
        total: dict[str, float] = {}
        for folder in sorted({self.folder(recipe, seed) for recipe in recipes for seed in range(seeds)}):
            for file in sorted(folder.glob("hours-*.json")):
                for device, hours in read_object(file, FIGURES).items():
                    total[device] = total.get(device, 0.0) + hours
        return total

    @property
    def where(self) -> str:
        """The device that evaluation and labelling use."""
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"
