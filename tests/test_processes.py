"""Locks, start methods, memory and signals, on this system and on one that lacks some of them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import types
from pathlib import Path

import pytest

from fate import processes


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
        first, second = processes.open_folder_lock(tmp_path), processes.open_folder_lock(tmp_path)
        processes.lock_file(first)
        with pytest.raises(BlockingIOError):
            processes.lock_file(second)
        os.close(first)
        os.close(second)


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
    assert len(processes.existing_signals("SIGINT", "SIGNONSENSE")) == 1
    assert processes.existing_signals("SIGINT", "SIGTERM", "SIGUSR1") == processes.STOP_SIGNALS
