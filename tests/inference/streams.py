"""Pieces that the tests of streams share: a small detector that sees much, a drive, ways to cut it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fate
from fate.events.events import Events, Sensor
from fate.formats.prophesee.header import parse_header
from fate.inference.live import LiveStream
from fate.inference.score_calibration import ScoreCalibration
from fate.inference.sources import LiveSource
from fate.inference.stream_types import StreamCounts, StreamFrame
from fate.inference.windowing import ClosedWindow, Windower
from fate.models.detector import Detector
from fate.models.zoo import build_model

SENSOR = Sensor(64, 64)


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let files of this process grow to this size only, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def small_detector(name: str = "fate-s-nano", sensor: tuple[int, int] = SENSOR, **options: Any) -> Detector:
    """With fresh weights; its head is made to see something everywhere."""
    torch.manual_seed(3)
    options |= {"dims": (8, 16, 32, 64), "head_dim": 8} if name.endswith("nano") else {}
    model = build_model(name, ("car", "pedestrian"), sensor, **options)
    with torch.no_grad():
        if name.endswith("nano"):
            for layer in [*model.head.class_predictions, *model.head.object_predictions]:  # type: ignore[union-attr]
                layer.bias.fill_(-1.0)
    return model.eval()


def drive(length_us: int = 400_000, sensor: tuple[int, int] = SENSOR, seed: int = 0, start_us: int = 1000) -> Events:
    """A square that moves to the right."""
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, length_us, length_us // 100))
    x = (10 + 30 * t / length_us + random.integers(0, 12, len(t))).astype(int)
    y, p = 20 + random.integers(0, 15, len(t)), random.integers(0, 2, len(t))
    return Events(start_us + t, x, y, p, sensor)


def dots(times: Sequence[int], sensor: tuple[int, int] = SENSOR) -> Events:
    """One event at each of these times, at a place that tells which it is."""
    place = np.arange(len(times))
    return Events(np.array(times, np.int64), place % sensor[1], place % sensor[0], place % 2, sensor)


def pieces(events: Events, cuts: Sequence[int]) -> list[Events]:
    """The same events cut at these numbers."""
    places = [0, *sorted(cuts), len(events)]
    return [events[first:last] for first, last in pairwise(places)]


def same(first: StreamFrame, second: StreamFrame) -> bool:
    """All but the times that detecting took."""
    return (first.t_us, first.window, first.num_events, first.restarted) == (
        second.t_us,
        second.window,
        second.num_events,
        second.restarted,
    ) and all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("boxes", "scores", "class_ids", "track_ids")
    )


def evt3_words(events: Events) -> bytes:
    """The words of an EVT3 file, without its header."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "words.raw"
        fate.write_events(file, events)
        data = file.read_bytes()
    return data[parse_header(data).num_bytes :]


class Noted:
    """In the place of a detector: notes what it was given, and can be made to do something meanwhile."""

    def __init__(self, counts: StreamCounts) -> None:
        self.counts, self.seen = counts, list[ClosedWindow]()
        self.adaptation = None

    def meanwhile(self) -> None:
        """What happens while a window is detected."""

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame:
        self.seen.append(closed)
        self.counts.windows += 1
        self.counts.events += len(closed.events)
        self.meanwhile()
        nothing = np.zeros((0, 4), np.float32)
        return StreamFrame(
            closed.window.end_us, nothing, nothing[:, 0], np.zeros(0, np.int64), None, closed.window,
            len(closed.events), {"decode": decode_ms}, waited_ms, restarted=closed.restarted,
        )  # fmt: skip


class QuickDetector:
    """In the place of a ``StreamingDetector``: two boxes in every window, at once, and the real live stream."""

    name, classes, device = "quick", ("car", "pedestrian"), "cpu"
    calibration = ScoreCalibration()

    def __init__(
        self, meanwhile: Callable[[], object] = lambda: None, patience_us: int = 100_000, waiting: int = 8
    ) -> None:
        self.meanwhile, self.patience_us, self.waiting = meanwhile, patience_us, waiting

    def live(self, source: LiveSource, hz: float, *, budget_ms: float | None = None, **_: Any) -> LiveStream:
        """Same as ``StreamingDetector.live``."""
        counts = StreamCounts()
        windower = Windower(SENSOR, round(1e6 / hz), counts=counts)
        detect: Any = self
        self.counts, self.adaptation = counts, SimpleNamespace(describe=lambda: "")
        budget_ms = 2000 / hz if budget_ms is None else budget_ms
        return LiveStream(
            source, windower, detect, budget_ms=budget_ms, waiting=self.waiting, patience_us=self.patience_us
        )  # fmt: skip

    def __call__(self, closed: ClosedWindow, decode_ms: float = 0.0, waited_ms: float = 0.0) -> StreamFrame:
        self.meanwhile()
        self.counts.windows += 1
        self.counts.events += len(closed.events)
        boxes = np.array([[1, 2, 30, 40], [5, 6, 70, 80]], np.float32)
        return StreamFrame(
            closed.window.end_us, boxes, np.array([0.9, 0.5], np.float32), np.array([0, 1]), None, closed.window,
            len(closed.events), {"model": 0.1}, waited_ms, restarted=closed.restarted,
        )  # fmt: skip
