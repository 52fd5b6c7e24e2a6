"""Run a study: train what is missing, make dense labels where a row needs them, evaluate, and write the table.

Stopped in the middle, the same command goes on; a cell that was not run says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fate.data.dataset import open_dataset
from fate.errors import FateError
from fate.simulation.writing.dataset import simulate
from fate.training.config import TrainConfig
from fate.workflows.studies.tables import Study, study_named
from fate.workflows.studies.jobs import Order, parts_of, side_by_side
from fate.workflows.studies.labels import LabelStudyResult
from fate.workflows.studies.runner import SCALES, Say, StudyStoppedError
from fate.workflows.studies.table import StudyResult


def run_study(
    name: str,
    dataset: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    device: str = "auto",
    workers: int = 4,
    jobs: int = 1,
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
        only: of these, the seeds to run now, for others to run elsewhere; all unless given.
        rows: names of those to run; all unless given.
        device: cpu, cuda or auto.
        workers: processes that load, of each run.
        jobs: runs side by side, each in a process of its own, which prints what goes on (a script that asks for several
            needs the usual ``if __name__ == "__main__"``); what they share is trained first. The study of labels has
            one at a time.
        settings: ``key.sub=value`` changes to every run.
        say: is told what goes on.
    """
    study = check_request(name, scale, seeds, only, rows, jobs)
    opened = open_dataset(dataset)
    chosen = scale or ("smoke" if name == "smoke" else "paper" if opened.kind in ("gen1", "1mpx") else "sim")
    threads = max((os.cpu_count() or 1) // jobs, 1)
    order = Order(name, str(dataset), Path(out), chosen, device, workers, tuple(settings), threads)
    runner = order.runner(say or (lambda _: None))
    instead = study.small if runner.scale.sizes == "small" else {}
    recipes = {row.name: row.recipe.played_by(instead) for row in study.rows}
    wanted = {
        (row.name, seed)
        for row in study.rows
        for seed in range(seeds)
        if (not rows or row.name in rows) and (not only or seed in only)
    }
    stopped, failed = False, ""
    if jobs > 1 and study.kind == "labels":
        runner.say(f"{jobs} jobs were asked for; {name} has one at a time")
    elif jobs > 1:
        asked = [(recipes[row.name], seed) for seed in range(seeds) for row in study.rows if (row.name, seed) in wanted]
        _refuse_many_devices(runner.config(asked[0][0], 0) if asked else None)
        try:
            if not side_by_side(parts_of(asked, study.rates, runner), jobs, order):
                runner.say("stopped; the same command goes on")
        except FateError as error:
            failed = str(error)
        stopped = True  # what there is now is all there is
    cells: dict[str, dict[int, Any]] = {row.name: dict.fromkeys(range(seeds)) for row in study.rows}
    for seed in range(seeds):
        for row in study.rows:
            may_run = (row.name, seed) in wanted and not stopped
            try:
                cells[row.name][seed] = runner.figures(recipes[row.name], seed, study, may_run)
            except StudyStoppedError:
                stopped = True
    spent = runner.hours({part for recipe in recipes.values() for part in recipe.needed()}, seeds)
    kind_of_result = LabelStudyResult if study.kind == "labels" else StudyResult
    result = kind_of_result(study, opened.name, opened.kind, tuple(range(seeds)), cells, spent)
    result.save(runner.out)
    if failed:
        raise FateError(f"{failed} What was done is in {runner.out / name}.md.")
    return result


def check_request(
    name: str,
    scale: str | None = None,
    seeds: int = 1,
    only: Sequence[int] = (),
    rows: Sequence[str] = (),
    jobs: int = 1,
) -> Study:
    """The study; what ``run_study`` cannot do is refused, before anything is opened or made."""
    study = study_named(name)
    if scale is not None and scale not in SCALES:
        raise FateError(f"scale {scale!r} was given; there are {', '.join(SCALES)}")
    unknown = [row for row in rows if row not in [each.name for each in study.rows]]
    if unknown:
        raise FateError(f"row {unknown[0]!r} was given; {name} has {', '.join(each.name for each in study.rows)}")
    if any(seed not in range(seeds) for seed in only):
        raise FateError(f"seed {max(only)} was given; there are {seeds}, from 0 to {seeds - 1}: give seeds too")
    if jobs < 1:
        raise FateError(f"jobs={jobs} was given; expected 1 or more")
    return study


def _refuse_many_devices(config: TrainConfig | None) -> None:
    if config is not None and config.run.devices * config.run.nodes > 1:
        raise FateError(
            f"several runs side by side were asked for, each on {config.run.devices * config.run.nodes} devices; give"
            " jobs=1, or one device to each"
        )


def drives(size: str, out: str | os.PathLike[str], device: str = "cpu") -> Path:
    """Simulated drives of a study, ``sim`` or ``smoke``, made once: OUT/SIZE-drives."""
    folder = Path(out) / f"{size}-drives"
    if size == "smoke":  # one for each split
        simulate(folder, recordings=3, seconds=1.0, seed=11, preview=False, shares=(1 / 3, 1 / 3, 1 / 3))
    else:
        simulate(folder, recordings=300, seconds=3.0, seed=3, preview=False, device=device)
    return folder
