"""A rehearsal runs every command of the paper's training on a sample, and projects what it measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fate import FateError, Labels, write_events, write_labels
from fate.workflows.rehearsal import RehearsalRequest, damage, full_hours, memory_of_children_gb, rehearse, step_speed
from tests.conftest import make_events

#: Settings of a detector and of batches that take little time on a CPU.
SMALL = (
    "model.name=fate-s-nano", 'model.options={"dims": [8, 16, 24, 32], "head_dim": 8}',
    'model.encoder_options={"channels": 8}', "data.steps=2", "data.random=1", "data.streams=1",
)  # fmt: skip


def test_hours_are_those_of_the_published_datasets() -> None:
    gen1, megapixel = full_hours("gen1"), full_hours("1mpx")
    assert gen1["train"] == pytest.approx(1459 / 60)
    assert gen1["test"] == pytest.approx(470 / 60)
    assert sum(megapixel.values()) == pytest.approx(14.65)


def test_speed_is_that_of_all_epochs_without_what_happens_once(tmp_path: Path) -> None:
    lines = [
        {"step": step, "epoch": step // 11, "step_s": [0.4, 0.6][step // 11], "waiting_for_data": 0.1}
        for step in range(1, 21)
    ]
    for step in (1, 2, 11):  # the start, and the first steps of a rate
        lines[step]["step_s"] = 100.0
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"step": 20, "validation": {}}])))
    found = step_speed(tmp_path / "metrics.jsonl", 40)
    assert found["steps_per_s"] == pytest.approx(2.0)
    assert found["waiting"] == pytest.approx(0.1)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(FateError, match=r"metrics\.jsonl"):
        step_speed(tmp_path / "metrics.jsonl", 40)


def test_three_recordings_get_a_fault_each(tmp_path: Path) -> None:
    for name in "abcd":
        write_events(tmp_path / f"{name}_td.dat", make_events(1000, (48, 64)))
        write_labels(tmp_path / f"{name}_bbox.npy", Labels([1000], [1], [2], [30], [40], [0]))
    whole = (tmp_path / "d_td.dat").stat().st_size
    assert damage(tmp_path) == ["a", "b", "c"]
    assert not (tmp_path / "a_td.dat").exists()
    assert (tmp_path / "b_td.dat").stat().st_size < whole
    assert np.load(tmp_path / "c_bbox.npy")["t"][-1] > 3e9
    assert (tmp_path / "d_td.dat").stat().st_size == whole


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (RehearsalRequest("gen2"), "gen2"),
        (RehearsalRequest("gen1", "fate-x"), "fate-x"),
        (RehearsalRequest("gen1", recordings=2), "2 recordings"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(tmp_path: Path, request_: RehearsalRequest, named: str) -> None:
    with pytest.raises(FateError, match=named):
        rehearse(request_, tmp_path)


def test_memory_of_child_processes_is_known_on_linux() -> None:
    found = memory_of_children_gb()
    assert found is None or 0 <= found < 1000


@pytest.mark.slow
def test_a_rehearsal_measures_every_command_and_continues(tmp_path: Path) -> None:
    request = RehearsalRequest("gen1", recordings=6, seconds=1.0, steps=20, device="cpu", workers=0, settings=SMALL)
    said: list[str] = []
    found = rehearse(request, tmp_path, lambda done, total=1.0, text="", part="", /: said.append(text))
    assert [stage.name for stage in found.stages] == [
        "prepare",
        "phase 1",
        "densify",
        "phase 2",
        "evaluate",
        "validate",
    ]
    assert all(stage.projected_h > 0 for stage in found.stages)
    assert found.stages[1].full == 400_000
    assert len(found.faults) >= 3
    table = found.table()
    assert all(stage.name in table for stage in found.stages)
    before = len(said)
    (tmp_path / "rehearsal.json").write_text(
        json.dumps({k: v for k, v in json.loads((tmp_path / "rehearsal.json").read_text()).items() if k != "evaluate"})
    )
    again = rehearse(request, tmp_path, lambda done, total=1.0, text="", part="", /: said.append(text))
    assert len(said) == before + 1
    assert again.stages[:4] == found.stages[:4]
    with pytest.raises(FateError, match="other arguments"):
        rehearse(RehearsalRequest("gen1", steps=40), tmp_path)
    shutil.rmtree(tmp_path / "data")
