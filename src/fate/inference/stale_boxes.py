"""Drop boxes where no event has occurred for a while: their object has gone, or there never was one.

A recurrent detector remembers objects that stand still. If an object leaves unseen, its box could stay for as long as
the memory lasts. The sensor is divided into blocks of 8 × 8 pixels, each with the time of its latest event.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.events.events import Events, Sensor

#: Side of a block, pixels.
BLOCK = 8
#: The time of a block without events.
NEVER = np.iinfo(np.int64).min


class StaleBoxes:
    """Remembers the latest event of each block of pixels in a stream."""

    def __init__(self, sensor: Sensor, stale_us: int) -> None:
        """Args:
        sensor: (height, width) of the events.
        stale_us: a box without events for longer than this is stale.
        """
        self.stale_us = stale_us
        self._latest: NDArray[np.int64] = np.full([-(-length // BLOCK) for length in sensor], NEVER, np.int64)

    def add(self, events: Events) -> None:
        """Take the next events of the stream, which are in order of time."""
        _note_latest(events.t_us, events.x, events.y, self._latest)

    def find(self, boxes: NDArray[np.float32], now_us: int) -> NDArray[np.bool_]:
        """Whether each box [M, 4] (xyxy in pixels) had no event in its blocks within ``stale_us`` before ``now_us``."""
        rows, columns = self._latest.shape
        first = np.clip(np.floor(boxes[:, :2] / BLOCK).astype(np.int64), 0, (columns - 1, rows - 1))
        last = np.clip(np.floor(boxes[:, 2:] / BLOCK).astype(np.int64), 0, (columns - 1, rows - 1))
        latest = [self._latest[y1 : y2 + 1, x1 : x2 + 1].max() for (x1, y1), (x2, y2) in zip(first, last, strict=True)]
        return np.array(latest, np.int64) < now_us - self.stale_us

    def reset(self) -> None:
        """Forget all events."""
        self._latest[:] = NEVER


@compiled
def _note_latest(t_us: Any, x: Any, y: Any, latest: Any) -> None:
    """Write the time of each event to its block."""
    for index in range(len(t_us)):
        latest[y[index] // BLOCK, x[index] // BLOCK] = t_us[index]
