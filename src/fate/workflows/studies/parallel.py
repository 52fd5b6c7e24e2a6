"""Run the parts of a study in parallel, each in its own process, on one device or on several.

One small detector does not use a large GPU fully; six at the same time do (docs/results/performance.md). A study is
cut into parts: train a recipe, make its dense labels, evaluate it. A part starts when the parts it depends on are done.
A part that fails stops only the parts that depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fate.progress import Progress
from fate.workflows.spread import Spread, run_jobs
from fate.workflows.studies.declared import read_recipe
from fate.workflows.studies.runner import Runner, StudyStoppedError


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
