"""A recording in memory and frames of detections, for tests of the viewers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.boxes.detections import DetectionFrame
from fate.events.events import Events


@dataclass(frozen=True, eq=False)
class Frame(DetectionFrame):
    """A frame with the time of each stage."""

    ms: dict[str, float] | None = None

    @property
    def total_ms(self) -> float:
        """The time of all stages."""
        return sum((self.ms or {}).values())


@dataclass(frozen=True)
class Recorded:
    """Events as a recording gives them."""

    events: Events

    @property
    def sensor(self) -> tuple[int, int]:
        return self.events.sensor

    @property
    def start_us(self) -> int:
        return int(self.events.t_us[0])

    @property
    def end_us(self) -> int:
        return int(self.events.t_us[-1]) + 1

    def read(self, start_us: int | None = None, end_us: int | None = None) -> Events:
        start = self.start_us if start_us is None else start_us
        return self.events.between(start, self.end_us if end_us is None else end_us)


def steady(
    seconds: float = 1.0, per_second: int = 20_000, sensor: tuple[int, int] = (48, 64), seed: int = 0
) -> Recorded:
    """Events at an even rate all over the sensor, from 1 s of sensor time on."""
    random = np.random.default_rng(seed)
    n = round(seconds * per_second)
    t = 1_000_000 + np.linspace(0, seconds * 1e6 - 1, n).astype(np.int64)
    return Recorded(
        Events(t, random.integers(0, sensor[1], n), random.integers(0, sensor[0], n), random.integers(0, 2, n), sensor)
    )


def frame(
    t_us: int,
    boxes: list[list[float]],
    *,
    class_ids: list[int] | None = None,
    scores: list[float] | None = None,
    tracks: list[int] | None = None,
    ms: dict[str, float] | None = None,
) -> Frame:
    """A frame from plain lists; class 0 and score 0.9 unless given."""
    count = len(boxes)
    return Frame(
        t_us,
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([0.9] * count if scores is None else scores, np.float32),
        np.array([0] * count if class_ids is None else class_ids, np.int32),
        None if tracks is None else np.array(tracks, np.int64),
        ms,
    )


def drive(recording: Recorded, hz: float = 40, seed: int = 1) -> list[Frame]:
    """Two objects of two classes that move over the sensor, the second from the middle on; with latencies."""
    random = np.random.default_rng(seed)
    step = round(1e6 / hz)
    frames = []
    for time in range(recording.start_us + step, recording.end_us + 1, step):
        share = (time - recording.start_us) / (recording.end_us - recording.start_us)
        boxes, ids, tracks = [[4 + 20 * share, 10, 20 + 20 * share, 26]], [0], [3]
        if share > 0.5:
            boxes.append([40, 5 + 10 * share, 50, 30 + 10 * share])
            ids.append(1)
            tracks.append(8)
        scores = random.uniform(0.5, 1, len(ids)).tolist()
        ms = {"encode": float(random.uniform(0.5, 1)), "model": float(random.uniform(2, 4))}
        frames.append(frame(time, boxes, class_ids=ids, scores=scores, tracks=tracks, ms=ms))
    return frames
