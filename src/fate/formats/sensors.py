"""Sensor sizes on the market, for files that do not give theirs."""

from __future__ import annotations

from fate.errors import FormatError
from fate.events.events import Sensor

KNOWN_SENSORS: tuple[tuple[str, Sensor], ...] = (
    ("iniVation DVS128", Sensor(128, 128)),
    ("iniVation DAVIS240", Sensor(180, 240)),
    ("Prophesee Gen1 (ATIS)", Sensor(240, 304)),
    ("iniVation DVXplorer Lite", Sensor(240, 320)),
    ("Prophesee GenX320", Sensor(320, 320)),
    ("iniVation DAVIS346", Sensor(260, 346)),
    ("Prophesee Gen3, iniVation DVXplorer", Sensor(480, 640)),
    ("Prophesee Gen4, Sony IMX636", Sensor(720, 1280)),
)

# Boards as old RAW headers name them (``% system_ID 21``), for files that do not give the size of the sensor.
VGA_SYSTEMS = {0x15, 0x17, 0x19, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x28, 0x29, 0x97, 0x99, 0xA1, 0xA2}
HD_SYSTEMS = {0x1A, 0x1E, 0x1F, 0x27, 0x2E, 0x30, 0x31, 0x32}


def sensor_of_system(system: int) -> Sensor | None:
    """The sensor of a Prophesee board, if it is known."""
    if system in VGA_SYSTEMS:
        return Sensor(480, 640)
    return Sensor(720, 1280) if system in HD_SYSTEMS else None


def smallest_known_sensor(x_max: int, y_max: int, name: object) -> Sensor:
    """The smallest known sensor with a pixel at ``(x_max, y_max)``, or an error that asks for the size."""
    fitting = [sensor for _, sensor in KNOWN_SENSORS if x_max < sensor.width and y_max < sensor.height]
    if not fitting:
        largest = max((sensor for _, sensor in KNOWN_SENSORS), key=lambda s: s.height * s.width)
        raise FormatError(
            f"{name}: the file does not give its sensor size, and events reach x = {x_max}, y = {y_max}, beyond every"
            f" known sensor (the largest is {largest}); pass sensor=(height, width)"
        )
    return min(fitting, key=lambda s: s.height * s.width)
