"""``fate bench encode``: a table beside the peers, and bad usage before any work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fate.cli.main import app
from fate.events.events import Events
from fate.formats.saving import write_events


@pytest.fixture
def recording(tmp_path: Path) -> str:
    random = np.random.default_rng(0)
    t = np.sort(random.integers(0, 60_000, 3000))
    x, y, p = (random.integers(0, high, 3000) for high in (40, 30, 2))
    write_events(tmp_path / "drive.dat", Events(t, x, y, p, sensor=(30, 40)))
    return str(tmp_path / "drive.dat")


@pytest.mark.slow
def test_a_recording_is_measured_beside_the_peers(recording: str, tmp_path: Path) -> None:
    out = tmp_path / "encode.json"
    arguments = [
        "bench",
        "encode",
        recording,
        "--windows",
        "5,20",
        "--batches",
        "1,3",
        "--against",
        " histogram",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, [*arguments, "--json", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["measurements"]
    assert {(row["encoder"], row["window_ms"], row["batch"]) for row in rows} == {
        (name, window, batch) for name in ("pillars", "histogram") for window in (5, 20) for batch in (1, 3)
    }
    assert all(row["p50_ms"] > 0 for row in rows)
    streams = [row for row in rows if row["mode"] == "forward, stream"]
    assert [(row["encoder"], row["window_ms"], row["batch"]) for row in streams] == [
        ("pillars", 5, 1),
        ("pillars", 20, 1),
    ]
    assert "| pillars | 5 | 3 |" in result.output


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--windows", "0", "--windows"),
        ("--windows", "0.0004", "0.0004"),
        ("--windows", "abc", "abc"),
        ("--windows", "5000", "1600 ms"),
        ("--batches", "1.7", "1.7"),
        ("--batches", "0.5", "--batches"),
        ("--against", "foo", "foo"),
        ("--against", "pillars", "pillars"),
        ("--profile", "foo", "foo"),
        ("--device", "foo", "foo"),
        ("--seed", "-1", "-1"),
    ],
)
def test_bad_usage_is_refused_before_any_work(option: str, value: str, named: str) -> None:
    result = CliRunner().invoke(app, ["bench", "encode", option, value])
    assert result.exit_code == 2
    assert named in result.output
