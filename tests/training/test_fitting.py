"""The largest batch that fits, and settings with which a batch fits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fate.errors import FateError
from fate.training.config import Checkpointing, TrainConfig
from fate.training.dry_run import changed_settings, find_fit, largest_batch, predict_memory
from tests.training.conftest import small_config

#: GB of a GPU with 10 GB in use, and those of each clip
PER_CLIP = {"none": 4.0, "head": 2.0, "all": 1.0}


def memory_of(choice: Checkpointing, clips: int) -> float:
    return 10 + PER_CLIP[choice] * clips


def config_of(random: int, streams: int, **run: Any) -> TrainConfig:
    return small_config(Path("drives"), data={"random": random, "streams": streams}, run=run)


def test_memory_grows_with_the_clips() -> None:
    measured = {2: 6.0, 4: 8.0}
    assert predict_memory(measured, 32) == 36
    assert largest_batch(measured, 36.5) == 32
    assert largest_batch(measured, 5.5) == 1
    assert largest_batch(measured, 3.0) == 0
    assert largest_batch({2: 6.0, 4: math.inf}, 20) == 2
    assert largest_batch({2: math.inf, 4: math.inf}, 20) == 0


@pytest.mark.parametrize(
    ("limit", "changes", "largest"),
    [
        (140, "", 32),
        (100, "run.activation_checkpointing=head", 45),
        (50, "run.activation_checkpointing=all", 40),
        (30, "data.random=8 data.streams=8 run.accumulate=2 run.activation_checkpointing=all", 20),
        (15, "data.random=2 data.streams=2 run.accumulate=8 run.activation_checkpointing=all", 5),
    ],
)
def test_the_first_settings_that_fit_are_found(limit: float, changes: str, largest: int) -> None:
    given = config_of(16, 16)
    fit = find_fit(given, memory_of, (4, 8), limit)
    assert changed_settings(given, fit.config) == changes
    assert fit.largest == largest
    assert fit.config.batch_size * fit.config.run.accumulate == 32


def test_what_was_asked_for_is_kept() -> None:
    given = config_of(16, 16, activation_checkpointing="all", accumulate=3)
    assert find_fit(given, memory_of, (4, 8), 1000).config == given
    assert find_fit(given, memory_of, (4, 8), 30).config.run.accumulate == 6


def test_a_batch_without_equal_parts_is_refused() -> None:
    with pytest.raises(FateError) as error:
        find_fit(config_of(7, 9), memory_of, (2, 4), 14)
    assert "14 GB" in str(error.value)
    assert "data.steps" in str(error.value)
