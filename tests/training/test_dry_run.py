"""What a dry run tries, and what it makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fate.data.loading import ClipBatch
from fate.training import dry_run as planning
from fate.training.dry_run import dry_run, load_tries
from fate.training.loop import build
from tests.training.conftest import small_config

pytest.importorskip("pytorch_lightning", reason="training needs Lightning")


def rates(batch: ClipBatch) -> set[float]:
    return {clip.hz for clip in batch.clips}


@pytest.mark.slow
def test_a_dry_run_tries_the_rates_of_the_end_and_the_teacher_too(drives: Path) -> None:
    strategy, data = {"name": "consistency", "rates": [20, 200]}, {"random": 4}
    config = small_config(drives, strategy=strategy, data=data, run={"validate_hz": [20, 200]})
    for device in ("cpu", "cuda"):
        for first, last in load_tries(replace(build(config), device=device), (1, 2)).batches.values():
            assert rates(first) == {20.0}
            assert first.teacher is None
            assert 200.0 in rates(last)
            assert last.teacher is not None
    found = dry_run(config)
    assert any("20, 200 Hz" in line for line in found.lines())
    # one recording of a second: 20 windows at 20 Hz and 200 at 200 Hz
    assert found.validation_windows == 220
    assert found.validation_s == pytest.approx(found.validations * 220 * found.window_s)
    assert any(f"{found.validations} validation" in line and "220 windows" in line for line in found.lines())


def test_a_part_of_a_batch_needs_as_long_a_teacher_as_the_whole(drives: Path) -> None:
    strategy = {"name": "consistency", "rates": [20, 40, 200]}
    parts = build(small_config(drives, strategy=strategy, data={"random": 4, "streams": 4, "steps": 6}))
    tries = load_tries(parts, (1, 2))
    assert sorted(tries.batches) == [1, 2, 8]
    assert tries.labelled_windows == sum(of is not None for of in tries.batches[8][0].labels)
    late, of_all = tries.batches[2][1], tries.batches[8][1]
    assert {clip.stream for clip in late.clips} == {False, True}
    assert set(late.clips) <= set(of_all.clips)
    assert late.teacher is not None
    assert of_all.teacher is not None
    assert late.teacher.steps == of_all.teacher.steps


@pytest.mark.slow
def test_time_and_memory_of_a_piece_are_scaled_to_all_clips_and_the_dry_run_says_so(
    drives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes half a second a clip, and 1 GB beside a quarter for each clip."""
    most = [0]

    def step(module: Any, optimiser: Any, batch: ClipBatch) -> float:
        most[0] = max(most[0], len(batch.clips))
        return 0.5 * len(batch.clips)

    monkeypatch.setattr(planning, "time_step", step)
    monkeypatch.setattr(planning, "peak_gb", lambda device: 1 + 0.25 * most[0])
    monkeypatch.setattr(planning, "main_memory_mb", lambda: 4000.0)
    said: list[str] = []
    config = small_config(drives, data={"random": 4, "streams": 2}, run={"accumulate": 2})
    found = dry_run(config, progress=lambda done, total, text: said.append(text))
    assert most == [2]
    assert (found.tried, found.step_s, found.memory_gb) == (2, pytest.approx(2 * 3.0), pytest.approx(2.5))
    assert any("estimates: 2 of the 6 clips" in line for line in found.lines())
    assert found.largest == 12
    assert any("12 clips" in line for line in found.lines())
    assert said == ["loading a batch of 6 clips of 3 windows", "training on 1 of 6 clips", "training on 2 of 6 clips"]
    small = dry_run(small_config(drives))
    assert (small.tried, small.step_s, small.memory_gb) == (2, pytest.approx(1.0), pytest.approx(1.5))
    assert not any("estimate" in line for line in small.lines())
