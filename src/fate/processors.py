"""How many processors this process may use, and how many of them are idle."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

#: Where Linux tells the limits of a container, and what every processor does.
CGROUP = Path("/sys/fs/cgroup")
STAT = Path("/proc/stat")


def allowed_processors() -> int:
    """Return the number of processors that this process may use: its affinity, and the quota of its container."""
    return max(1, math.ceil(min(len(_affinity()), _quota())))


def idle_seconds() -> float | None:
    """Return the idle time of the allowed processors since the machine started, or None if the system does not say.

    The difference of two calls, divided by the time between them, is the number of processors that nobody used.
    """
    allowed = _affinity()
    ticks = 0
    try:
        for line in STAT.read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in allowed:
                ticks += int(fields[3]) + int(fields[4])  # idle, and waiting for a disk
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # not Linux, or one that hides it
        return None


def _affinity() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on Windows and macOS
        return set(range(os.cpu_count() or 1))


def _quota() -> float:
    """Return the processors that the container's quota allows; infinity without one."""
    with suppress(OSError, ValueError):  # cgroup v2: "200000 100000" or "max 100000"
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):  # cgroup v1: -1 is no limit
        quota_us, period_us = (
            int((CGROUP / "cpu" / f"cpu.cfs_{what}_us").read_text(encoding="ascii")) for what in ("quota", "period")
        )
        return quota_us / period_us if quota_us > 0 else math.inf
    return math.inf
