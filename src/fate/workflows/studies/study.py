"""Run a study: train missing detectors, make dense labels if a row needs them, evaluate, and write the table.

The same command continues a study that was stopped. A cell that was not run says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fate.data.dataset import Dataset, open_dataset, path_of
from fate.errors import FateError
from fate.progress import Progress
from fate.simulation.writing.dataset import simulate
from fate.training.loop import need_lightning
from fate.workflows.studies.declared import SCALES, check_request
from fate.workflows.studies.parallel import find_parts, run_parts
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
    progress: Progress | None = None,
) -> StudyResult:
    """Run a study of several detectors and write its table, or continue one.

    Args:
        name: of the study, a key of ``STUDIES``; ``fate study --help`` lists them.
        dataset: a folder, a YAML file or an open dataset with the splits train, val and test; ``"sim"`` for 300
            simulated drives, which are made once. Only ``"smoke"`` needs none: it makes its own.
        out: folder of all runs and tables. Several studies may share one, and then share runs.
        scale: ``"paper"``, ``"sim"`` or ``"smoke"``; chosen by the dataset unless given.
        seeds: number of seeds, from 0 on.
        only: seeds to run now, all unless given; other machines may run the others.
        rows: names of the rows to run; all unless given.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        workers: processes of each run that load events.
        jobs: runs side by side, each in its own process, which prints its progress. A script that asks for several
            needs ``if __name__ == "__main__"``. The study of labels runs one at a time.
        settings: changes to every run, as ``"key.sub=value"``.
        progress: called with a text about each step.
    """
    declared = check_request(name, scale, seeds, only, rows, jobs)
    need_lightning()
    path = _find_dataset(name, dataset, Path(out), device, progress)
    opened = open_dataset(path)
    size = scale or ("smoke" if name == "smoke" else "paper" if opened.kind in ("gen1", "1mpx") else "sim")
    threads = max((os.cpu_count() or 1) // jobs, 1)
    runner = Runner(declared, str(path), Path(out), SCALES[size], device, workers, tuple(settings), threads, progress)
    instead = declared.small if runner.scale.sizes == "small" else {}
    recipes = {row.name: row.recipe.played_by(instead) for row in declared.rows}
    requested = [
        (row.name, seed)
        for seed in range(seeds)
        for row in declared.rows
        if (not rows or row.name in rows) and (not only or seed in only)
    ]
    may_run, problem = True, ""
    if jobs > 1 and declared.kind == "labels":
        runner.report(f"{jobs} jobs were asked for; {name} runs one at a time")
    elif jobs > 1:
        may_run, recipes_now = False, [(recipes[row], seed) for row, seed in requested]
        run = runner.config(next(iter(recipes.values())), 0).run
        if run.devices * run.nodes > 1:
            raise FateError(
                f"{jobs} runs at the same time were asked for, each on {run.devices * run.nodes} devices; give jobs=1,"
                " or one device to each"
            )
        try:
            if not run_parts(find_parts(recipes_now, runner), jobs, runner):
                runner.report("stopped; the same command continues")
        except FateError as error:
            problem = str(error)
    cells: dict[str, dict[int, Any]] = {row.name: dict.fromkeys(range(seeds)) for row in declared.rows}
    for seed in range(seeds):
        for row in declared.rows:
            try:
                cell = runner.figures(recipes[row.name], seed, may_run and (row.name, seed) in requested)
                cells[row.name][seed] = cell
            except StudyStoppedError:
                may_run = False
    hours = runner.hours({part for recipe in recipes.values() for part in recipe.needed()}, seeds)
    kind = LabelStudyResult if declared.kind == "labels" else StudyResult
    result = kind(declared, opened.name, opened.kind, tuple(range(seeds)), cells, hours)
    result.save(runner.out)
    if problem:
        raise FateError(f"{problem} The results so far are in {runner.out / name}.md.")
    return result


def _find_dataset(
    name: str, dataset: str | os.PathLike[str] | Dataset | None, out: Path, device: str, progress: Progress | None
) -> Path:
    """The path of the dataset of a study. The drives of ``sim`` and ``smoke`` are simulated, unless they are there."""
    if dataset is None and name != "smoke":
        raise FateError(f"the study {name} was asked for without a dataset; give a folder, or sim for simulated drives")
    path, split = path_of(dataset or "smoke")
    if split is not None:
        raise FateError(f"{path}: only the split {split} was given; a study needs train, val and test")
    if str(path) not in ("sim", "smoke") or path.exists():
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
