"""How many processors there are for this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fate import processors


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight processors, of which the first six may be used; a folder for the files of the container."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(processors, "CGROUP", tmp_path)
    monkeypatch.setattr(processors, "STAT", tmp_path / "stat")
    return tmp_path


@pytest.mark.parametrize(
    ("content", "count"), [("max 100000", 6), ("250000 100000", 3), ("50000 100000", 1), ("rubbish", 6)]
)
def test_the_quota_of_a_container_counts(machine: Path, content: str, count: int) -> None:
    assert processors.allowed_processors() == 6
    (machine / "cpu.max").write_text(content)
    assert processors.allowed_processors() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 6), ("200000", 2)])
def test_the_quota_of_an_older_container_counts(machine: Path, quota: str, count: int) -> None:
    (machine / "cpu").mkdir()
    (machine / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (machine / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert processors.allowed_processors() == count


def test_a_system_without_affinity_has_all_its_processors(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert processors.allowed_processors() == 4


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="Linux only")
def test_idle_time_is_that_of_the_allowed_processors(machine: Path) -> None:
    assert processors.idle_seconds() is None  # a system that does not say
    rows = [f"cpu{number} 10 0 10 {1000 + number} 7 0 0" for number in range(8)]
    (machine / "stat").write_text("\n".join(["cpu  80 0 80 8028 56 0 0", *rows, "intr 5", ""]))
    ticks = sum(1000 + number + 7 for number in range(6))
    assert processors.idle_seconds() == pytest.approx(ticks / os.sysconf("SC_CLK_TCK"))
