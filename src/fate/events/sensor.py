"""The size of a sensor."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from fate.errors import FateError

MAX_SIDE = 65_536  # coordinates are uint16


class Sensor(NamedTuple):
    """Size of a sensor in pixels, rows first; equal to the plain tuple ``(height, width)``."""

    height: int
    width: int

    @classmethod
    def of(cls, size: Sequence[int]) -> Sensor:
        """``(height, width)`` as a checked :class:`Sensor`."""
        try:
            height, width = (operator.index(side) for side in size)
        except (TypeError, ValueError):
            raise FateError(f"sensor {size!r} was given; expected (height, width) in pixels") from None
        if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
            raise FateError(f"sensor {height}×{width} was given; each side must be 1 to {MAX_SIDE} pixels")
        return cls(height, width)

    def __str__(self) -> str:
        return f"{self.width}×{self.height}"  # width first, as people write 1280×720
