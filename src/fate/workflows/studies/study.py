"""Run a study: train missing detectors, make dense labels if a row needs them, evaluate, and write the table.

The same command continues a study that was stopped. A cell that was not run is marked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fate.data.dataset import Dataset
from fate.data.opening import open_dataset, path_of
from fate.errors import FateError
from fate.models.checkpoints import read_card
from fate.progress import Progress
from fate.text import plural, suggest_name
from fate.training.loop import need_lightning
from fate.workflows.simulate import simulate
from fate.workflows.spread import Spread, beside, open_spread, run_jobs
from fate.workflows.studies.declared import StudyOptions, read_recipe
from fate.workflows.studies.runner import Runner, StudyStoppedError
from fate.workflows.studies.table import LabelStudyResult, StudyResult


def study(
    name: str,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    out: str | os.PathLike[str] = "studies",
    *,
    progress: Progress | None = None,
    **options: Any,
) -> StudyResult:
    """Run a study of several detectors and write its table, or continue one.

    Args:
        name: name of the study; ``fate study --list`` prints all.
        dataset: a folder, a YAML file or an open dataset with the splits train, val and test; ``"sim"`` for 300
            simulated drives, which are made once. Only ``"smoke"`` needs none: it makes its own.
        out: folder of all runs and tables. Several studies may share one, and then share runs.
        progress: called with a text about each step.
        scale: ``"paper"`` trains the configurations for Gen1 or 1Mpx, ``"sim"`` those for simulated drives, ``"smoke"``
            the same with few steps; chosen by the dataset unless given.
        seeds: number of seeds, from 0 on.
        only: seeds to run now, all unless given; other machines may run the others.
        rows: names of the rows to run; all unless given.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        workers: processes of each run that load events.
        jobs: runs side by side, each in its own process, whose log is in ``OUT/NAME-jobs``. The study of labels runs
            one at a time.
        devices: several of them, which share the runs, in place of ``device``: ``"all"`` GPUs of this machine,
            ``"cuda:0,cuda:1"``, ``"cpu,cpu"``, or ``"slurm:8"`` for eight jobs of a SLURM cluster; each runs ``jobs``.
        slurm: options of ``sbatch`` for these jobs, such as ``{"partition": "gpu", "time": 600}``.
        settings: changes to every run, as ``"key.sub=value"``.
        weights: ``{configuration: file}``: weights, such as an imported public checkpoint, that a row uses instead of
            training this configuration. Rows that start from the configuration start from these weights.
        score: what ranks boxes of YOLOX heads: ``"product"``, or ``"class"`` as in published figures of RVT and S5-ViT.
        allow_missing: train although files or boxes of the dataset are missing.
    """
    chosen = StudyOptions(name, **options)
    need_lightning()
    spread = None
    if chosen.devices is not None or chosen.jobs > 1:
        on_gpu = chosen.device != "cpu" and torch.cuda.is_available()
        spread = open_spread(chosen.devices or ("cuda:0" if on_gpu else "cpu"), chosen.slurm, chosen.jobs)
    path = _dataset_path(name, dataset)
    if _is_simulated(path):
        path = _simulate(path, Path(out), chosen, progress)
    opened = open_dataset(path)
    runner, recipes = _make_runner(chosen, path, opened.kind, out, progress)
    may_run, may_measure, problem = True, True, ""
    if chosen.jobs > 1 and chosen.study.kind == "labels":
        runner.report(f"{chosen.jobs} jobs were asked for; {name} runs one at a time")
    elif spread is not None:
        may_run, problem = False, _run_in_parallel(chosen, runner, recipes, spread)
    cells: dict[str, dict[int, Any]] = {row.name: dict.fromkeys(range(chosen.seeds)) for row in chosen.study.rows}
    for seed in range(chosen.seeds):
        for row, recipe in recipes.items():
            try:
                cells[row][seed] = runner.figures(recipe, seed, may_run and chosen.is_requested(row, seed))
            except StudyStoppedError:
                may_run = may_measure = False
    used = {part for recipe in recipes.values() for part in read_recipe(recipe).needed()}
    kind = LabelStudyResult if chosen.study.kind == "labels" else StudyResult
    seeds = tuple(range(chosen.seeds))
    sized = {} if chosen.study.kind == "labels" else recipes  # the table of labels does not show sizes
    sizes = {row: runner.million_parameters(recipe) for row, recipe in sized.items()}
    latency = {
        row: found
        for row, recipe in recipes.items()
        if (found := runner.latency(recipe, may_measure and chosen.is_requested(row, 0)))
    }
    hours = runner.hours(used, chosen.seeds)
    result = kind(chosen.study, opened.name, opened.kind, seeds, cells, hours, sizes, latency, chosen.score)
    result.save(runner.out)
    if problem:
        raise FateError(f"{problem.rstrip('.')}. The results so far are in {runner.out / name}.md.")
    return result


def plan_study(
    name: str,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    out: str | os.PathLike[str] = "studies",
    **options: Any,
) -> str:
    """Human-readable plan of a study: what is left to train, to label and to evaluate. Nothing is run or simulated.

    Same arguments as :func:`study`, without ``progress``.
    """
    chosen = StudyOptions(name, **options)
    path = _dataset_path(name, dataset)
    lines, kind = [f"{name}: {chosen.study.title}"], "sim"
    folder = Path(out) / f"{path}-drives" if _is_simulated(path) else path
    if _is_simulated(path) and not folder.exists():
        lines.append(f"simulate drives in {folder}")
    else:
        kind = open_dataset(folder).kind
    runner, recipes = _make_runner(chosen, folder, kind, out)
    parts = _missing_parts(chosen, runner, recipes)
    lines += [_describe(part, runner) for part in TopologicalSorter(parts).static_order()]
    steps = sum(runner.config(part.recipe, part.seed).steps for part in parts if part.work == "train")
    lines.append(f"{plural(steps, 'step')} of training are left" if parts else "everything is done")
    return "\n".join(lines)


def _make_runner(
    chosen: StudyOptions, path: Path, kind: str, out: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[Runner, dict[str, str]]:
    """Return the runner of a study on a dataset of this kind, and the name of the recipe of each row."""
    recipes, changes = chosen.recipes(kind)
    runner = Runner(
        chosen.study, str(path), Path(out), chosen.device, chosen.workers, (*changes, *chosen.settings),
        _find_weights(chosen.weights or {}, recipes), chosen.score, chosen.allow_missing, progress,
    )  # fmt: skip
    return runner, recipes


def _missing_parts(chosen: StudyOptions, runner: Runner, recipes: Mapping[str, str]) -> dict[Part, set[Part]]:
    """Return the parts of a study that are requested and not done yet, each with the parts it depends on."""
    requested = ((row, seed) for seed in range(chosen.seeds) for row in recipes if chosen.is_requested(row, seed))
    return find_parts([(recipes[row], seed) for row, seed in requested], runner)


def _run_in_parallel(chosen: StudyOptions, runner: Runner, recipes: Mapping[str, str], spread: Spread) -> str:
    """Run the missing parts in several processes; returns what went wrong, or an empty text."""
    run = runner.config(next(iter(recipes.values())), 0).run
    if run.devices * run.nodes > 1:
        raise FateError(
            f"{len(spread.slots)} runs at the same time were asked for, each on {run.devices * run.nodes} devices; give"
            " jobs=1, or one device to each"
        )
    parts = _missing_parts(chosen, runner, recipes)
    try:
        if not run_parts(parts, spread, runner, beside(runner.out / chosen.name)):
            runner.report("stopped; the same command continues")
    except FateError as error:
        return str(error)
    return ""


def _describe(part: Part, runner: Runner) -> str:
    """A line about one part of a study."""
    config = runner.config(part.recipe, part.seed)
    if part.work == "train":
        clips = f"{config.batch_size} clips of {plural(config.data.steps, 'window')}"
        return f"train {part.name}: {config.model.name}, {config.strategy.name}, {config.steps} steps of {clips}"
    is_label = part.work.startswith("label") or runner.study.kind == "labels"
    rates = config.strategy.rates if is_label else runner.study.rates
    work = "label the split test with" if runner.study.kind == "labels" else part.work
    return f"{work} {part.name}: at {', '.join(f'{hz:g}' for hz in rates)} Hz"


def _find_weights(weights: Mapping[str, str | os.PathLike[str]], recipes: Mapping[str, str]) -> dict[str, Path]:
    """Given weights by the name of the recipe; refuses names that the study does not train and missing files."""
    trained = dict.fromkeys(name for recipe in recipes.values() for name in read_recipe(recipe).needed())
    known = {name.split("/")[1]: name for name in trained}
    found = {}
    for name, file in weights.items():
        short = name.split("/")[-1]
        if short not in known:
            raise FateError(
                f"weights of {name!r} were given; the study trains {', '.join(known)}{suggest_name(short, known)}"
            )
        read_card(Path(file))  # refuses files that are no weights
        found[known[short]] = Path(file)
    return found


def _dataset_path(name: str, dataset: str | os.PathLike[str] | Dataset | None) -> Path:
    """The path that was given as the dataset, or ``sim`` or ``smoke``."""
    if dataset is None and name != "smoke":
        raise FateError(f"the study {name} was asked for without a dataset; give a folder, or sim for simulated drives")
    path, split = path_of(dataset or "smoke")
    if split is not None:
        raise FateError(f"{path}: only the split {split} was given; a study needs train, val and test")
    return path


def _is_simulated(path: Path) -> bool:
    """Whether this means drives that the study simulates."""
    return str(path) in ("sim", "smoke") and not path.exists()


def _simulate(path: Path, out: Path, chosen: StudyOptions, progress: Progress | None) -> Path:
    """Simulate the drives of ``sim`` or ``smoke``, unless they are there, and return their folder."""
    folder = out / f"{path}-drives"
    if progress is not None:
        progress(0, None, f"{path} drives: in {folder}, simulated unless they are there")
    if str(path) == "smoke":  # one for each split
        simulate(folder, recordings=3, seconds=1.0, seed=11, preview=False, shares=(1 / 3, 1 / 3, 1 / 3))
    else:
        on_gpu = chosen.device != "cpu" and torch.cuda.is_available()
        simulate(
            folder, recordings=300, seconds=3.0, seed=3, preview=False, device="cuda" if on_gpu else "cpu",
            devices=chosen.devices, slurm=chosen.slurm,
        )  # fmt: skip
    return folder


# ---- the parts of a study, each in its own process ------------------------------------------------------------------
#
# One small detector does not use a large GPU fully; six at the same time do (docs/results/performance.md). A part
# trains a recipe, makes its dense labels or evaluates it, and starts when the parts it depends on are done.


class Part(NamedTuple):
    """The work of one process."""

    work: str  #: "train", "label", "label as paper" or "evaluate"
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """The name that is printed."""
        return f"{self.recipe}, seed {self.seed}"

    @property
    def title(self) -> str:
        """The work and the name, which no other part has."""
        return f"{self.work} {self.name}"


def find_parts(recipes: Iterable[tuple[str, int]], runner: Runner) -> dict[Part, set[Part]]:
    """All parts of recipes and seeds that the runner has not done yet, each with the parts it depends on."""
    parts: dict[Part, set[Part]] = {}

    def add(part: Part, *dependencies: Part) -> Part:
        parts[part] = {each for each in dependencies if each in parts}
        return part

    def add_training(recipe: str, seed: int) -> Part:
        part = Part("train", recipe, seed)
        if part not in parts and not runner.is_trained(recipe, seed):
            _, _, start, labels, as_paper = read_recipe(recipe)
            before = [] if start is None else [add_training(start, seed)]
            if labels is not None:
                work = "label as paper" if as_paper else "label"
                before.append(add(Part(work, labels, seed), add_training(labels, seed)))
            add(part, *before)
        return part

    for recipe, seed in recipes:
        if not runner.is_measured(recipe, seed):
            add(Part("evaluate", recipe, seed), add_training(recipe, seed))
    return parts


def work_on(runner: Runner, part: Part, progress: Progress) -> None:
    """Do one part in this process, and report each step as a text."""
    runner = replace(runner, progress=progress)
    try:
        if part.work == "train":
            runner.train(part.recipe, part.seed)
        elif part.work.startswith("label"):
            runner.make_labels(part.recipe, part.seed, as_paper=part.work == "label as paper")
        else:
            runner.figures(part.recipe, part.seed, may_run=True)
    except StudyStoppedError:
        raise KeyboardInterrupt from None


def run_parts(parts: Mapping[Part, set[Part]], spread: Spread, runner: Runner, folder: Path) -> bool:
    """Run all parts as jobs whose logs are in ``folder``, and return whether all were done: False after Ctrl-C.

    Each part has the parts it depends on, and starts when they are done. Running trainings save before they stop.
    """
    said = [""]

    def report(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        if text != said[-1]:
            said.append(text)
            runner.report(f"{text}; logs are in {folder}")

    plain = replace(runner, progress=None)
    work = {part.title: partial(work_on, plain, part) for part in parts}
    after = {part.title: {each.title for each in before} for part, before in parts.items()}
    try:
        run_jobs(work, spread, folder, after=after, progress=report)
    except KeyboardInterrupt:
        return False
    return True
