"""Filters in front of a detector: the same boxes as of events that were filtered before, in every kind of stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fate
from fate.boxes.detection_files import read_detections
from fate.cli.main import app
from fate.errors import FateError
from fate.events.events import Events
from fate.events.filters import EventFilters
from fate.inference.sources import LiveSource
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import StreamFrame, StreamOptions
from fate.models.checkpoints import save_model
from fate.text import grouped
from tests.inference.streams import SENSOR, drive, pieces, same, small_detector

FILTERS = ("hot-pixels:50ms", "background:2ms", "refractory:1ms")
OPTIONS: dict[str, Any] = {"hz": 100, "threshold": 0.05, "track": True}


@pytest.fixture(scope="module")
def detector() -> StreamingDetector:
    return StreamingDetector(small_detector())


def noisy() -> Events:
    """A moving square, a hot pixel, and a pixel far away that fires first and last: it keeps the windows in place."""
    square = drive(300_000)
    hot = np.arange(1500, 300_000, 2000)
    t = np.concatenate((square.t_us, hot, [0, 301_000]))
    x = np.concatenate((square.x, np.full(len(hot), 60), [5, 5]))
    y = np.concatenate((square.y, np.full(len(hot), 60), [60, 60]))
    p = np.concatenate((square.p, np.ones(len(hot)), [1, 1])).astype(int)
    order = np.argsort(t, kind="stable")
    return Events(t[order], x[order], y[order], p[order], SENSOR)


class Pieces(LiveSource):
    """A live source that gives pieces of events."""

    def __init__(self, given: list[Events]) -> None:
        super().__init__(SENSOR)
        self.given = given

    def __iter__(self) -> Iterator[Events]:
        yield from self.given


def alike(frames: list[StreamFrame], expected: list[StreamFrame]) -> bool:
    return len(frames) == len(expected) and all(same(*pair) for pair in zip(frames, expected, strict=True))


def test_every_stream_gives_the_boxes_of_events_that_were_filtered_before(detector: StreamingDetector) -> None:
    events = noisy()
    filters = EventFilters(FILTERS, SENSOR)
    clean = filters(events)
    assert all(count > 0 for count in filters.dropped.values())
    expected = list(detector.stream(clean, start_us=0, end_us=301_001, **OPTIONS))

    recorded = detector.stream(events, filters=FILTERS, **OPTIONS)
    assert alike(list(recorded), expected)
    assert recorded.counts.filtered_events == filters.dropped
    assert recorded.counts.events == len(clean)

    fed = detector.open_stream(SENSOR, filters=FILTERS, **OPTIONS)
    frames = [frame for piece in pieces(events, [7, 100, 101, 2000]) for frame in fed.feed(piece)] + fed.close()
    assert alike(frames, expected)

    source = Pieces(pieces(events, range(0, len(events), 50)))
    live = detector.live(source, budget_ms=1e6, waiting=1000, filters=FILTERS, **OPTIONS)
    assert alike(list(live), expected)
    assert live.counts.events + sum(live.counts.filtered_events.values()) == len(events)


def test_windows_that_a_filter_empties_are_detected_like_others(detector: StreamingDetector) -> None:
    events = noisy()
    plain = list(detector.stream(events, **OPTIONS))
    emptied = list(detector.stream(events, filters="roi:0,0,1,1", clip_windows=16, **OPTIONS))
    assert [frame.window for frame in emptied] == [frame.window for frame in plain]
    assert {frame.num_events for frame in emptied} == {0}


def test_after_a_jump_in_time_filters_know_no_earlier_events(detector: StreamingDetector) -> None:
    stream = detector.open_stream(SENSOR, filters=["refractory:1s"], **OPTIONS)
    later, earlier = (Events([t], [3], [3], [1], SENSOR) for t in (50_000_000, 10_000_000))
    frames = stream.feed(later) + stream.feed(earlier) + stream.close()
    assert [frame.num_events for frame in frames] == [1, 1]
    assert stream.counts.restarts == 1


def test_wrong_filters_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(FateError, match=r"background:5 .*background:5ms"):
        StreamOptions(filters=["background:5"])


def test_the_command_filters_and_says_what_was_dropped(tmp_path: Path) -> None:
    events = noisy()
    fate.write_events(tmp_path / "noisy.npz", events)
    save_model(small_detector(), tmp_path / "nano.safetensors")
    options = [word for spec in FILTERS for word in ("--filter", spec)]
    words = ["--model", str(tmp_path / "nano.safetensors"), "--hz", "100", "--json", str(tmp_path / "a.json")]
    run = CliRunner().invoke(app, ["detect", str(tmp_path / "noisy.npz"), *words, *options], catch_exceptions=False)
    filters = EventFilters(FILTERS, SENSOR)
    filters(events)
    facts = read_detections(tmp_path / "a.json").facts
    assert facts["summary"]["filtered"] == filters.dropped
    assert list(facts["filters"]) == list(FILTERS)
    assert all(f"{spec} {grouped(count)}" in run.stdout for spec, count in filters.dropped.items())
    wrong = CliRunner().invoke(app, ["detect", str(tmp_path / "noisy.npz"), *words, "--filter", "blur:3"])
    assert wrong.exit_code == 2
    assert "background:5ms" in " ".join(wrong.output.replace("│", " ").split())


def test_convert_writes_the_filtered_events(tmp_path: Path) -> None:
    events = noisy()
    fate.write_events(tmp_path / "noisy.npz", events)
    filters = EventFilters(FILTERS, SENSOR)
    clean = filters(events)
    done = fate.convert(tmp_path / "noisy.npz", tmp_path / "clean.npz", filters=FILTERS)
    assert (done.num_read, done.num_written, done.filtered) == (len(events), len(clean), filters.dropped)
    with fate.open_recording(tmp_path / "clean.npz") as written:
        assert written.read(0, 10**9) == clean
    words = ["convert", str(tmp_path / "noisy.npz"), str(tmp_path / "b.npz"), "--filter", "hot-pixels:50ms"]
    run = CliRunner().invoke(app, words, catch_exceptions=False)
    assert f"{filters.dropped['hot-pixels:50ms']} dropped by hot-pixels:50ms" in run.stdout
