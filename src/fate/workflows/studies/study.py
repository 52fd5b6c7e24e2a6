"""Run a study: train missing detectors, make dense labels if a row needs them, evaluate, and write the table.

The same command continues a study that was stopped. A cell that was not run is marked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import torch

from fate.data.dataset import Dataset
from fate.data.opening import open_dataset, path_of
from fate.errors import FateError
from fate.models.checkpoints import read_card
from fate.models.nms import Score
from fate.progress import Progress
from fate.text import plural, suggest_name
from fate.training.loop import need_lightning
from fate.workflows.simulate import simulate
from fate.workflows.studies.declared import SMOKE, Study, check_request, read_recipe
from fate.workflows.studies.parallel import Part, find_parts, run_parts
from fate.workflows.studies.runner import Runner, StudyStoppedError
from fate.workflows.studies.table import LabelStudyResult, StudyResult


def study(
    name: str,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    out: str | os.PathLike[str] = "studies",
    *,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    device: str = "auto",
    workers: int = 4,
    jobs: int = 1,
    settings: Sequence[str] = (),
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    score: Score = "product",
    progress: Progress | None = None,
) -> StudyResult:
    """Run a study of several detectors and write its table, or continue one.

    Args:
        name: of the study, a key of ``STUDIES``; ``fate study --help`` lists them.
        dataset: a folder, a YAML file or an open dataset with the splits train, val and test; ``"sim"`` for 300
            simulated drives, which are made once. Only ``"smoke"`` needs none: it makes its own.
        out: folder of all runs and tables. Several studies may share one, and then share runs.
        scale: ``"paper"`` trains the configurations for Gen1 or 1Mpx, ``"sim"`` those for simulated drives, ``"smoke"``
            the same with few steps; chosen by the dataset unless given.
        seeds: number of seeds, from 0 on.
        only: seeds to run now, all unless given; other machines may run the others.
        rows: names of the rows to run; all unless given.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        workers: processes of each run that load events.
        jobs: runs side by side, each in its own process, which prints its progress. A script that asks for several
            needs ``if __name__ == "__main__"``. The study of labels runs one at a time.
        settings: changes to every run, as ``"key.sub=value"``.
        weights: ``{configuration: file}``: weights, such as an imported public checkpoint, that a row uses instead of
            training this configuration. Rows that start from the configuration start from these weights.
        score: what ranks boxes of YOLOX heads: ``"product"``, or ``"class"`` as in published figures of RVT and S5-ViT.
        progress: called with a text about each step.
    """
    declared = check_request(name, scale, seeds, only, rows, jobs)
    need_lightning()
    path = _find_dataset(name, dataset, Path(out), device, progress)
    opened = open_dataset(path)
    recipes, changes = _recipes(declared, opened.kind, scale, rows)
    threads = max((os.cpu_count() or 1) // jobs, 1)
    runner = Runner(
        declared, str(path), Path(out), device, workers, (*changes, *settings), _given(weights or {}, recipes), score,
        threads, progress,
    )  # fmt: skip
    requested = [
        (row, seed)
        for seed in range(seeds)
        for row in recipes
        if (not rows or row in rows) and (not only or seed in only)
    ]
    may_run, problem = True, ""
    if jobs > 1 and declared.kind == "labels":
        runner.report(f"{jobs} jobs were asked for; {name} runs one at a time")
    elif jobs > 1:
        may_run = False
        run = runner.config(next(iter(recipes.values())), 0).run
        if run.devices * run.nodes > 1:
            raise FateError(
                f"{jobs} runs at the same time were asked for, each on {run.devices * run.nodes} devices; give jobs=1,"
                " or one device to each"
            )
        try:
            if not run_parts(find_parts([(recipes[row], seed) for row, seed in requested], runner), jobs, runner):
                runner.report("stopped; the same command continues")
        except FateError as error:
            problem = str(error)
    cells: dict[str, dict[int, Any]] = {row.name: dict.fromkeys(range(seeds)) for row in declared.rows}
    for seed in range(seeds):
        for row, recipe in recipes.items():
            try:
                cells[row][seed] = runner.figures(recipe, seed, may_run and (row, seed) in requested)
            except StudyStoppedError:
                may_run = False
    hours = runner.hours({part for recipe in recipes.values() for part in read_recipe(recipe).needed()}, seeds)
    kind = LabelStudyResult if declared.kind == "labels" else StudyResult
    result = kind(declared, opened.name, opened.kind, tuple(range(seeds)), cells, hours)
    result.save(runner.out)
    if problem:
        raise FateError(f"{problem} The results so far are in {runner.out / name}.md.")
    return result


def plan_study(
    name: str,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    out: str | os.PathLike[str] = "studies",
    *,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    settings: Sequence[str] = (),
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    score: Score = "product",
) -> str:
    """Human-readable plan of a study: what is left to train, to label and to evaluate. Nothing is run or simulated.

    Same arguments as :func:`study`.
    """
    declared = check_request(name, scale, seeds, only, rows)
    path = _dataset_path(name, dataset)
    lines = [f"{name}: {declared.title}"]
    if _is_simulated(path):
        path = Path(out) / f"{path}-drives"
        lines += [] if path.exists() else [f"simulate drives in {path}"]
    kind = open_dataset(path).kind if len(lines) == 1 else "sim"
    recipes, changes = _recipes(declared, kind, scale, rows)
    given = _given(weights or {}, recipes)
    runner = Runner(declared, str(path), Path(out), settings=(*changes, *settings), weights=given, score=score)
    requested = [recipe for row, recipe in recipes.items() if not rows or row in rows]
    parts = find_parts([(recipe, seed) for seed in only or range(seeds) for recipe in requested], runner)
    lines += [_describe(part, runner) for part in TopologicalSorter(parts).static_order()]
    steps = sum(runner.config(part.recipe, part.seed).steps for part in parts if part.work == "train")
    lines.append(f"{plural(steps, 'step')} of training are left" if parts else "everything is done")
    return "\n".join(lines)


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


def _recipes(
    declared: Study, kind: str, scale: str | None, rows: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The name of the recipe of each row, and settings that change all of them."""
    chosen = scale or ("smoke" if declared.name == "smoke" else "paper" if kind in ("gen1", "1mpx") else "sim")
    folder = "sim" if chosen != "paper" else kind if kind in ("gen1", "1mpx") else "gen1"
    shown = [row for row in declared.rows if not rows or row.name in rows] if folder == "1mpx" else declared.rows
    return {row.name: row.recipe(folder).name for row in shown}, SMOKE if chosen == "smoke" else ()


def _given(weights: Mapping[str, str | os.PathLike[str]], recipes: Mapping[str, str]) -> dict[str, Path]:
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


def _find_dataset(
    name: str, dataset: str | os.PathLike[str] | Dataset | None, out: Path, device: str, progress: Progress | None
) -> Path:
    """The path of the dataset of a study. The drives of ``sim`` and ``smoke`` are simulated, unless they are there."""
    path = _dataset_path(name, dataset)
    if not _is_simulated(path):
        return path
    folder = out / f"{path}-drives"
    if progress is not None:
        progress(0, None, f"{path} drives: in {folder}, simulated unless they are there")
    if str(path) == "smoke":  # one for each split
        simulate(folder, recordings=3, seconds=1.0, seed=11, preview=False, shares=(1 / 3, 1 / 3, 1 / 3))
    else:
        on_gpu = device != "cpu" and torch.cuda.is_available()
        simulate(folder, recordings=300, seconds=3.0, seed=3, preview=False, device="cuda" if on_gpu else "cpu")
    return folder
