"""Boxes in whose area no event has occurred for a while, against a search through all events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import StreamOptions
from fate.inference.window_detector import BLOCK, StaleBoxes
from tests.inference.streams import drive, small_detector

SENSOR = Sensor(50, 70)  # no multiple of the block


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 12), stale_us=st.integers(0, 60))
def test_a_box_is_stale_if_no_event_of_its_blocks_is_recent(seed: int, count: int, stale_us: int) -> None:
    random = np.random.default_rng(seed)
    t_us = np.sort(random.integers(0, 100, count))
    x, y = random.integers(0, SENSOR.width, count), random.integers(0, SENSOR.height, count)
    stale = StaleBoxes(SENSOR, stale_us)
    half = count // 2
    for part in (slice(half), slice(half, None)):  # in two pieces
        stale.add(Events(t_us[part], x[part], y[part], np.zeros(count, int)[part], SENSOR))
    corners = random.uniform(-20, 90, (9, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    limit = np.array([SENSOR.width, SENSOR.height, SENSOR.width, SENSOR.height]) - 1
    blocks = np.clip(boxes, 0, limit) // BLOCK
    inside = ((x // BLOCK >= blocks[:, :1]) & (x // BLOCK <= blocks[:, 2:3])
              & (y // BLOCK >= blocks[:, 1:2]) & (y // BLOCK <= blocks[:, 3:]))  # fmt: skip
    expected = ~(inside & (t_us >= 100 - stale_us)).any(1)
    assert stale.find(boxes, 100).tolist() == expected.tolist()
    stale.reset()
    assert stale.find(boxes, 100).all()


def test_a_stream_drops_stale_boxes_and_counts_them() -> None:
    detector, events = StreamingDetector(small_detector()), drive(400_000)
    everything = detector.stream(events, hz=20, threshold=0.0, stale_us=None)
    recent = detector.stream(events, hz=20, threshold=0.0, stale_us=100_000)
    dropped = 0
    for all_boxes, some in zip(everything, recent, strict=True):
        dropped += len(all_boxes.boxes) - len(some.boxes)
        shown = {tuple(box) for box in all_boxes.boxes.tolist()}
        assert shown.issuperset(tuple(box) for box in some.boxes.tolist())
    assert dropped > 0
    assert (everything.counts.stale_boxes, recent.counts.stale_boxes) == (0, dropped)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(FateError, match="stale_us=-1 .*expected 0 or more"):
        StreamOptions(20, stale_us=-1)
