"""Parts of a study in parallel: in order, each once, and a failure stops only the parts that depend on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fate.errors import FateError
from fate.workflows.studies.declared import STUDIES, read_recipe

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")

from fate.workflows.studies.parallel import STOPPED, Part, find_parts, run_parts
from fate.workflows.studies.runner import Runner

A, B, C = (Part("train", f"sim/{name}", 0) for name in "abc")


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


def _runner(folder: Path) -> Runner:
    return Runner(STUDIES["smoke"], "", folder, "cpu")


def _note(runner: Runner, part: Part, answer: Connection) -> None:
    """Leaves a file; "b" fails, and "c" ends as a process does that was killed."""
    (runner.out / part.recipe[-1]).touch()
    if part.recipe == "sim/b":
        answer.send("it was told to fail")
    if part.recipe == "sim/c":
        os._exit(9)


@pytest.mark.slow
def test_a_part_begins_after_those_it_waits_for(tmp_path: Path) -> None:
    late = Part("label", "sim/a", 0)
    assert run_parts({late: {A}, A: set()}, 2, _runner(tmp_path), _note_in_order)
    assert (tmp_path / "log").read_text().split() == ["train", "label"]


def _note_in_order(runner: Runner, part: Part, answer: Connection) -> None:
    with (runner.out / "log").open("a") as file:
        file.write(f"{part.work}\n")


@pytest.mark.slow
def test_a_failure_takes_only_what_builds_on_it_and_is_told(tmp_path: Path) -> None:
    after_b, after_c = Part("train", "sim/after-b", 0), Part("train", "sim/after-c", 0)
    parts: dict[Part, set[Part]] = {B: set(), C: set(), after_b: {B}, after_c: {A, C}, A: set()}
    with pytest.raises(FateError, match=r"2 of 5 parts failed.* 2 were not started") as told:
        run_parts(parts, 2, _runner(tmp_path), _note)
    assert "sim/b, seed 0 (train): it was told to fail" in str(told.value)
    assert "ended with 9" in str(told.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "c"]


def _wait_for_signal(runner: Runner, part: Part, answer: Connection) -> None:
    heard = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: heard.set())
    (runner.out / part.recipe[-1]).touch()
    if heard.wait(60):
        answer.send(STOPPED)


def _leave_a_worker(runner: Runner, part: Part, answer: Connection) -> None:
    """Has a child of its own, and is deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (runner.out / "child.part").write_text(str(child.pid))
    (runner.out / "child.part").rename(runner.out / "child")
    child.wait()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them")
def test_a_second_signal_ends_all_at_once_with_those_that_load(tmp_path: Path) -> None:
    def ask() -> None:
        while not (tmp_path / "child").exists():
            time.sleep(0.05)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)

    asking = threading.Thread(target=ask)
    asking.start()
    assert not run_parts({A: set()}, 1, _runner(tmp_path), _leave_a_worker)
    asking.join()
    child = int((tmp_path / "child").read_text())
    for _ in range(100):  # whoever adopts it takes a moment to see that it is dead
        if not _is_alive(child):
            break
        time.sleep(0.1)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.slow
def test_a_signal_is_passed_on_and_nothing_new_begins(tmp_path: Path) -> None:
    def ask() -> None:
        while not (tmp_path / "a").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    asking = threading.Thread(target=ask)
    asking.start()
    assert not run_parts({A: set(), B: {A}, C: set()}, 1, _runner(tmp_path), _wait_for_signal)
    asking.join()
    assert signal.getsignal(signal.SIGTERM) is before
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
