"""Parts of a study in parallel: in order, each once, and a failure stops only the parts that depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fate.errors import FateError
from fate.workflows.studies.declared import STUDIES, read_recipe

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

from fate.workflows.spread import open_spread
from fate.workflows.studies.runner import Runner, StudyStoppedError
from fate.workflows.studies.study import Part, find_parts, run_parts, work_on


class Known:
    """A runner that has done some things."""

    study = STUDIES["frequency"]

    def __init__(self, trained: tuple[str, ...] = (), measured: tuple[str, ...] = ()) -> None:
        self.trained, self.evaluated = trained, measured

    def is_trained(self, recipe: str, seed: int) -> bool:
        return recipe in self.trained

    def is_measured(self, recipe: str, seed: int) -> bool:
        return recipe in self.evaluated


def _parts(name: str, runner: Known, seeds: int = 1) -> dict[Part, set[Part]]:
    rows = STUDIES[name].rows
    return find_parts([(row.recipe("sim").name, seed) for seed in range(seeds) for row in rows], runner)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_every_part_is_there_once_and_can_be_reached(name: str) -> None:
    parts = _parts(name, Known(), seeds=2)
    for row in STUDIES[name].rows:
        for recipe in row.recipe("sim").needed():
            assert {Part("train", recipe, seed) for seed in (0, 1)} <= parts.keys()
        assert Part("evaluate", row.recipe("sim").name, 1) in parts
    for part, before in parts.items():
        _, _, start, labels, as_paper = read_recipe(part.recipe)
        needs = {start} if start is not None and part.work == "train" else set()
        assert {Part("train", one, part.seed) for one in needs} <= before
        if part.work == "train" and labels is not None:
            assert Part("label as paper" if as_paper else "label", labels, part.seed) in before
        if part.work != "train":
            assert before == {Part("train", part.recipe, part.seed)}
    done: set[Part] = set()
    while len(done) < len(parts):
        ready = {part for part, before in parts.items() if before <= done and part not in done}
        assert ready
        done |= ready


def test_what_is_done_is_not_done_again_nor_what_it_alone_was_built_on() -> None:
    base, fat = (row.recipe("sim").name for row in STUDIES["smoke"].rows)
    assert _parts("smoke", Known((), (base, fat))) == {}
    assert _parts("smoke", Known((base, fat), (base, fat))) == {}
    assert _parts("smoke", Known((base, fat), (base,))) == {Part("evaluate", fat, 0): set()}
    label = Part("label", base, 0)
    assert _parts("smoke", Known((base,), (base,))) == {
        label: set(),
        Part("train", fat, 0): {label},
        Part("evaluate", fat, 0): {Part("train", fat, 0)},
    }


def test_a_training_that_stops_is_no_part_that_is_done() -> None:
    class Stopping(Runner):
        def train(self, recipe: str, seed: int) -> Path:
            self.report(f"{recipe}: asked to stop")
            raise StudyStoppedError

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work_on(
            Stopping(STUDIES["smoke"], "", Path(), "cpu"), Part("train", "sim/a", 0),
            lambda done, total=1.0, text="", part="", /: said.append(text),
        )  # fmt: skip
    assert said == ["sim/a: asked to stop"]


@pytest.mark.slow
def test_a_failure_is_named_with_what_was_not_started(tmp_path: Path) -> None:
    train, evaluate = Part("train", "sim/fate-s-nano-20hz", 0), Part("evaluate", "sim/fate-s-nano-20hz", 0)
    runner = Runner(STUDIES["smoke"], str(tmp_path / "none"), tmp_path, "cpu")
    with pytest.raises(FateError, match="1 of 2 jobs failed, and 1 that depend on them were not started") as raised:
        run_parts({train: set(), evaluate: {train}}, open_spread("cpu", jobs=2), runner, tmp_path / "jobs")
    assert "train sim/fate-s-nano-20hz, seed 0: " in str(raised.value)
    assert str(tmp_path / "none") in str(raised.value)
