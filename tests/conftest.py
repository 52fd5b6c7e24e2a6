"""Shared pieces of the tests: made-up events, the folder of real recordings, a cache of their own."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes share the cores; before numpy and torch load

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from fate.boxes.detection_files import DetectionFiles, DetectionLog
from fate.events.events import Events, Sensor

settings.register_profile("fate", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("fate")

CACHES = itertools.count()
REAL = Path(__file__).resolve().parents[1].parent / "shared" / "realdata"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time indexes of tests never reach the user's cache."""
    name = f"cache-{next(CACHES)}"  # not mktemp, which lists the folders of all tests before
    monkeypatch.setenv("FATE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / name))


def real_recordings() -> list[Any]:
    """One test parameter per real recording with known counts; a single skipped one where the folder is absent."""
    if not (REAL / "manifest.json").is_file():
        reason = "the folder of real recordings is not on this machine"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="absent")]
    entries = json.loads((REAL / "manifest.json").read_text())
    return [pytest.param(entry, id=entry["file"]) for entry in entries if "n" in entry]


def load_script(name: str) -> Any:
    """A program of ``scripts/`` as a module."""
    path = Path(__file__).resolve().parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_detections(log: DetectionLog, **files: str | Path) -> None:
    """Write all frames of a log into the files ``json``, ``jsonl``, ``csv`` and ``coco``, as ``fate detect`` does."""
    with DetectionFiles(log, **files) as written:
        for frame in log.frames:
            written.add(frame)
        written.finish({name: fact for name, fact in log.facts.items() if name == "summary"})


def make_events(n: int = 2000, sensor: tuple[int, int] = (48, 64), seed: int = 0, start: int = 0) -> Events:
    """Events as a sensor gives them: rows read out at one time, runs of columns, pauses, repeats."""
    random = np.random.default_rng(seed)
    height, width = sensor
    gaps = random.choice([0, 0, 0, 1, 3, 40, 700, 9000], n)
    t = start + np.cumsum(gaps)
    y = np.repeat(random.integers(0, height, n // 4 + 1), 4)[:n]
    x = (np.repeat(random.integers(0, width, n // 4 + 1), 4)[:n] + np.arange(n) % 4) % width
    p = np.repeat(random.integers(0, 2, n // 8 + 1), 8)[:n]
    return Events(t, x, y, p, sensor)


@st.composite
def event_lists(
    draw: st.DrawFn,
    sensors: st.SearchStrategy[tuple[int, int]] = st.tuples(st.integers(1, 720), st.integers(1, 1280)),
    max_size: int = 60,
    max_start: int = 10**7,
    max_gap: int = 10**5,
) -> Events:
    """Any events: none, one, equal times, exact repeats, runs of columns, gaps."""
    height, width = draw(sensors)
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 1, 63, 64, 4095, 4096]) | st.integers(0, max_gap),
                st.integers(0, width - 1),
                st.integers(0, height - 1),
                st.integers(0, 1),
                st.integers(1, 12),
            ),
            max_size=max_size,
        )
    )
    t, x, y, p = [], [], [], []
    now = draw(st.integers(0, max_start))
    for gap, column, row, polarity, run in rows:
        now += gap
        for i in range(run):
            t.append(now)
            x.append(min(column + i, width - 1))
            y.append(row)
            p.append(polarity)
    return Events(t, x, y, p, Sensor(height, width))


@pytest.fixture
def lock_folder(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder one that may not be read, also for a user who may read everything."""

    def lock(folder: Path) -> None:
        for name in ("scandir", "listdir", "stat"):
            monkeypatch.setattr(os, name, _refusing(getattr(os, name), folder, itself=name != "stat"))

    return lock


def _refusing(function: Callable[..., Any], folder: Path, itself: bool) -> Callable[..., Any]:
    def refuse(path: Any = ".", *rest: Any, **more: Any) -> Any:
        given = os.fspath(path) if isinstance(path, str | Path) else ""
        if given.startswith(f"{folder}{os.sep}") or (itself and given == str(folder)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), given)
        return function(path, *rest, **more)

    return refuse
