"""What a run says of itself: one window is a window, and a slow machine is slow and not 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fate.boxes.detection_files import DetectionLog
from fate.events.window import Window
from fate.inference.stream_types import StreamFrame
from fate.workflows.detect import Detected
from fate.workflows.summary import RunningSummary


def lines_of(summary: dict[str, Any]) -> list[str]:
    log = DetectionLog("drive.raw", (48, 64), ("car",), summary["hz"], [])
    return Detected(log, [], summary).lines()


def summary(windows: int, took_s: float, hz: float = 200.0, **more: Any) -> dict[str, Any]:
    """The figures of a run without boxes."""
    made = RunningSummary(("car",), hz, 0.4).result(took_s, {}, [])
    speed = {"windows_per_s": windows / took_s, "times_real_time": windows / hz / took_s}
    spent = {"latency_ms": {"total": (1.0, 2.0)}}
    return {**made, "windows": windows, "seconds": windows / hz, "adaptation": "", **speed, **spent, **more}


def test_a_slow_run_is_not_0_a_second() -> None:
    first = lines_of(summary(600, 3105.5))[0]
    assert "600 windows" in first
    assert "one window every 5.2 s" in first
    assert "0.00097 × real time" in first
    assert "51 min 46 s" in first


def test_a_fast_run_has_no_needless_digits() -> None:
    first = lines_of(summary(600, 1.2345))[0]
    assert "486 windows per second" in first
    assert "2.4 × real time" in first


@pytest.mark.parametrize(("count", "words"), [(1, "1 track in all"), (2, "2 tracks in all")])
def test_one_is_singular(count: int, words: str) -> None:
    lines = lines_of(summary(1, 0.5, tracks=count))
    assert lines[0].startswith("1 window at 200 Hz")
    assert words in lines[1]


def test_the_figures_of_a_slow_run_are_kept() -> None:
    nothing = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), None
    frames = [StreamFrame(5000 * n, *nothing, Window(5000 * n - 5000, 5000 * n), 0, {"model": 1.0}) for n in (1, 2, 3)]
    running = RunningSummary(("car",), 200.0, 0.4)
    for frame in frames:
        running.add(frame)
    made = running.result(3600.0, {}, [])
    assert made["windows_per_s"] == pytest.approx(3 / 3600, rel=1e-3)
    assert made["times_real_time"] == pytest.approx(3 / 200 / 3600, rel=1e-3)


def test_a_run_with_hardly_any_box_names_a_lower_threshold() -> None:
    """Ten windows: a note for no box and for one; none for two, and none if the threshold is low already."""
    box = np.array([[1, 2, 3, 4]], np.float32), np.array([0.8], np.float32), np.array([0]), None
    nothing = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), None

    def noted(boxes: int, threshold: float) -> str:
        running = RunningSummary(("car",), 200.0, threshold)
        for n in range(10):
            found = box if n < boxes else nothing
            running.add(StreamFrame(5000 * n, *found, Window(5000 * n - 5000, 5000 * n), 9, {}))
        return running.describe_few_boxes()

    assert "0 boxes in 10 windows" in noted(0, 0.7)
    assert "1 box in 10 windows" in noted(1, 0.7)
    assert "0.70" in noted(1, 0.7)
    assert "such as 0.3" in noted(1, 0.7)
    assert not noted(2, 0.7)
    assert not noted(0, 0.3)
