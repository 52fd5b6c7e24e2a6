"""``--device``: what it accepts, what auto chooses, and how many threads a CPU gets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fate.cli import device
from fate.errors import FateError


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine without GPUs on which torch would use four threads; the numbers that it is set to."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr("fate.threads.allowed_processors", lambda: 4)
    monkeypatch.setattr(device, "idle_seconds", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return chosen


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """A machine with GPUs; the numbers of those that were made the current one."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"Card {number}")
    return chosen


@pytest.mark.parametrize("text", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_devices_with_a_valid_name_are_accepted(text: str) -> None:
    try:
        device.check_device(text)
    except FateError as error:
        pytest.fail(f"{text} was refused: {error}")


@pytest.mark.parametrize("text", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "mps", "CPU", "cuda:1234567"])
def test_devices_with_another_name_are_refused(text: str) -> None:
    with pytest.raises(FateError, match="expected auto, cpu, cuda"):
        device.check_device(text)


def test_auto_is_the_cpu_where_there_is_no_gpu(threads: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    assert device.pick_device("auto") == "cpu"
    assert capsys.readouterr().err == "device: cpu\n"
    with pytest.raises(FateError, match="no CUDA GPU"):
        device.pick_device("cuda")


def test_auto_takes_the_gpu_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = gpus(monkeypatch, 2)
    assert device.pick_device("auto") == "cuda"
    assert chosen == [0]
    assert "cuda:0" in (said := capsys.readouterr().err)
    assert "Card 0" in said


def test_one_of_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = gpus(monkeypatch, 2)
    assert device.pick_device("cuda:1") == "cuda"
    assert chosen == [1]
    with pytest.raises(FateError, match="cuda:0 to cuda:1"):
        device.pick_device("cuda:2")


def test_a_gpu_is_left_alone_where_the_cpu_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = gpus(monkeypatch, 1)
    assert device.pick_device("cpu") == "cpu"
    assert chosen == []


def test_a_free_machine_keeps_its_threads(threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    idle = iter([0.0, 3.0])  # three of four processors, while this process used the fourth for a second
    pretend(monkeypatch, idle)
    device.pick_device("cpu")
    assert threads == []


@pytest.mark.parametrize(("idle_s", "expected"), [(0.0, 1), (1.1, 2)])
def test_a_busy_machine_gets_fewer_threads(
    idle_s: float, expected: int, threads: list[int], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pretend(monkeypatch, iter([10.0, 10.0 + idle_s]))
    device.pick_device("cpu")
    assert threads == [expected]
    said = capsys.readouterr().err
    assert f"{expected} of 4 threads" in said
    assert "OMP_NUM_THREADS" in said


def test_a_container_gets_the_threads_of_its_quota(threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fate.threads.allowed_processors", lambda: 2)
    device.pick_device("auto")
    assert threads == [2]


def test_the_users_own_number_of_threads_stays(threads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    pretend(monkeypatch, iter([0.0, 0.0]))
    device.pick_device("auto")
    assert threads == []


def pretend(monkeypatch: pytest.MonkeyPatch, idle: Any) -> None:
    """Idle times of two looks that are a second apart."""
    times = iter([100.0, 101.0])
    monkeypatch.setattr(device, "idle_seconds", lambda: next(idle))
    monkeypatch.setattr(device.time, "perf_counter", lambda: next(times))
