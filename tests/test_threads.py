"""The number of torch threads on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fate import threads
from fate.threads import free_threads, leave_a_processor, limit_threads


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may use four processors, and torch with three threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "allowed_processors", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("idle", "expected"), [(0.0, 1), (1.0, 2), (3.0, 3), (None, 3)])
def test_there_are_not_more_threads_than_free_processors_and_this_one(idle: float | None, expected: int) -> None:
    assert free_threads(3, idle, 1.0) == expected


def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processor is idle."""
    monkeypatch.setattr(threads, "idle_seconds", lambda: 5.0)


def test_threads_are_limited_while_a_block_runs_and_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch)
    with pytest.raises(KeyError), limit_threads():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 3


def test_the_users_number_and_a_gpu_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    busy(monkeypatch)
    with limit_threads("cuda"):
        assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with limit_threads():
        assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("processors", "expected"), [(1, 1), (2, 1), (3, 2), (8, 3)])
def test_a_live_run_leaves_a_processor_to_others(
    processors: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "allowed_processors", lambda: processors)
    with leave_a_processor():
        assert torch.get_num_threads() == expected
        with leave_a_processor():  # a measurement during a run leaves no second one
            assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3
    with leave_a_processor("cuda"):
        assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with leave_a_processor():
        assert torch.get_num_threads() == 3
