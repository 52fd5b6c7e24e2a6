"""The size of a sensor, and sensors on the market for files and arrays that do not give theirs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from fate.errors import FateError, FormatError, warn

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


#: The sensors of the two public driving datasets.
GEN1_SENSOR = Sensor(240, 304)
MPX_SENSOR = Sensor(720, 1280)

KNOWN_SENSORS: tuple[tuple[str, Sensor], ...] = (
    ("iniVation DVS128", Sensor(128, 128)),
    ("iniVation DAVIS240", Sensor(180, 240)),
    ("Prophesee Gen1 (ATIS)", GEN1_SENSOR),
    ("iniVation DVXplorer Lite", Sensor(240, 320)),
    ("Prophesee GenX320", Sensor(320, 320)),
    ("iniVation DAVIS346", Sensor(260, 346)),
    ("Prophesee Gen3, iniVation DVXplorer", Sensor(480, 640)),
    ("Prophesee Gen4, Sony IMX636", MPX_SENSOR),
)


def guess_sensor(x_max: int, y_max: int, name: object) -> Sensor:
    """Return the smallest known sensor with a pixel at ``(x_max, y_max)``, and warn that the size is a guess.

    Raise an error that asks for the size if no known sensor is large enough. ``name`` is the file, for messages.
    """
    fitting = [sensor for _, sensor in KNOWN_SENSORS if x_max < sensor.width and y_max < sensor.height]
    if not fitting:
        largest = max((sensor for _, sensor in KNOWN_SENSORS), key=lambda s: s.height * s.width)
        raise FormatError(
            f"{name}: does not give its sensor size, and events reach x = {x_max}, y = {y_max}, beyond every"
            f" known sensor (the largest is {largest}); pass sensor=(height, width)"
        )
    sensor = min(fitting, key=lambda s: s.height * s.width)
    warn(
        f"{name}: does not give its sensor size; {sensor} is the smallest known sensor that fits (x up to {x_max}, y up"
        f" to {y_max}); pass sensor=(height, width) to set it"
    )
    return sensor
