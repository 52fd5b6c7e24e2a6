"""Locks, start methods, memory and signals, on this system and on one that lacks some of them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import types
from pathlib import Path

import pytest

from fate import FateError, processes


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The file locks of Windows in place of those of POSIX; the list holds the descriptors that are locked."""
    locked: list[int] = []

    def locking(handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        if locked:
            raise OSError(errno.EACCES, "Permission denied")
        locked.append(handle)

    module = types.ModuleType("msvcrt")
    vars(module).update(locking=locking, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setitem(sys.modules, "msvcrt", module)
    return locked


def test_a_file_is_locked_once_and_the_second_is_told_so(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as first, (tmp_path / "a").open("w") as second:
        processes.lock_file(first.fileno())
        with pytest.raises(BlockingIOError):
            processes.lock_file(second.fileno())
        first.close()
        processes.lock_file(second.fileno())


def test_the_locks_of_windows_are_used_where_there_are_no_others(tmp_path: Path, windows: list[int]) -> None:
    with (tmp_path / "a").open("w") as first, (tmp_path / "a").open("w") as second:
        processes.lock_file(first.fileno())
        assert windows == [first.fileno()]
        with pytest.raises(BlockingIOError):
            processes.lock_file(second.fileno())


def test_a_folder_is_owned_by_one_process_at_a_time(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for system in ("this", "windows"):
        if system == "windows":
            request.getfixturevalue("windows")
        with processes.lock_folder(tmp_path) as locked:
            assert locked
            with pytest.raises(FateError, match="another process"), processes.lock_folder(tmp_path, wait_s=0):
                pass


def test_a_system_without_locks_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", None)
    with (tmp_path / "a").open("w") as file, pytest.raises(OSError, match="no file locks") as caught:
        processes.lock_file(file.fileno())
    assert not isinstance(caught.value, BlockingIOError)


def test_workers_start_as_the_system_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert processes.worker_start_method() == "spawn"
    assert processes.worker_context(preload="fate").get_start_method() == "spawn"


def test_the_peak_of_memory_is_in_megabytes_or_unknown(windows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    peak = processes.peak_memory_mb()
    assert peak is None or 10 < peak < 100_000
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert processes.peak_memory_mb() is None


def test_only_signals_that_exist_are_listened_to() -> None:
    names = [name for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
    assert [signal.Signals(number).name for number in processes.STOP_SIGNALS] == names


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight processors, of which the first six may be used; a folder for the files of the container."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(processes, "CGROUP", tmp_path)
    monkeypatch.setattr(processes, "STAT", tmp_path / "stat")
    return tmp_path


@pytest.mark.parametrize(
    ("content", "count"), [("max 100000", 6), ("250000 100000", 3), ("50000 100000", 1), ("rubbish", 6)]
)
def test_the_quota_of_a_container_counts(machine: Path, content: str, count: int) -> None:
    assert processes.allowed_processors() == 6
    (machine / "cpu.max").write_text(content)
    assert processes.allowed_processors() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 6), ("200000", 2)])
def test_the_quota_of_an_older_container_counts(machine: Path, quota: str, count: int) -> None:
    (machine / "cpu").mkdir()
    (machine / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (machine / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert processes.allowed_processors() == count


def test_a_system_without_affinity_has_all_its_processors(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert processes.allowed_processors() == 4


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="Linux only")
def test_idle_time_is_that_of_the_allowed_processors(machine: Path) -> None:
    assert processes.idle_seconds() is None  # a system that does not say
    rows = [f"cpu{number} 10 0 10 {1000 + number} 7 0 0" for number in range(8)]
    (machine / "stat").write_text("\n".join(["cpu  80 0 80 8028 56 0 0", *rows, "intr 5", ""]))
    ticks = sum(1000 + number + 7 for number in range(6))
    assert processes.idle_seconds() == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"))
