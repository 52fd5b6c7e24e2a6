"""Every real recording decodes to the counts, extents and sums that independent decoders gave."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from fate import Events, FateWarning, open_recording
from tests.conftest import REAL, real_recordings


@pytest.fixture(params=real_recordings())
def entry(request: pytest.FixtureRequest) -> dict[str, Any]:
    value: dict[str, Any] = request.param
    return value


def read(entry: dict[str, Any]) -> Events:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # some headers do not give the sensor
        return open_recording(REAL / entry["file"]).read()


def test_counts_extents_and_sums_are_those_of_independent_decoders(entry: dict[str, Any]) -> None:
    events = read(entry)
    start = int(events.t_us[0])
    found = {
        "n": len(events),
        "tmin": start,
        "tmax": int(events.t_us[-1]),
        "xmin": int(events.x.min()),
        "xmax": int(events.x.max()),
        "ymin": int(events.y.min()),
        "ymax": int(events.y.max()),
        "on": int(events.p.sum(dtype=np.int64)),
        "sum_t_rel": int((events.t_us - start).sum()),
        "sum_x": int(events.x.sum(dtype=np.int64)),
        "sum_y": int(events.y.sum(dtype=np.int64)),
    }
    expected = {key: entry[key] for key in found}
    reversed_axes = {"aedat2": "xy", "es": "y"}.get(entry["file"].partition("/")[0], "")
    for axis in reversed_axes:  # those decoders leave the axes as the file has them
        last = (events.sensor.width if axis == "x" else events.sensor.height) - 1
        expected[f"sum_{axis}"] = last * entry["n"] - entry[f"sum_{axis}"]
        expected[f"{axis}min"], expected[f"{axis}max"] = last - entry[f"{axis}max"], last - entry[f"{axis}min"]
    assert found == expected


def test_random_spans_equal_a_linear_scan(entry: dict[str, Any]) -> None:
    events = read(entry)
    random = np.random.default_rng(0)
    first, last = int(events.t_us[0]), int(events.t_us[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)
        with open_recording(REAL / entry["file"]) as recording:
            for start in random.integers(first - 10_000, last + 10_000, 40).tolist():
                for length in (0, 1, 5_000, 50_000, 10**9):
                    assert recording.read(start, start + length) == events.between(start, start + length)
