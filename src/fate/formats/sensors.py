"""Sensor sizes of Prophesee's boards, for files that give the board and not the size."""

from __future__ import annotations

import re

from fate.events.events import Sensor

# Boards as old RAW headers name them (``% system_ID 21``), for files that do not give the size of the sensor.
VGA_SYSTEMS = {0x15, 0x17, 0x19, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x28, 0x29, 0x97, 0x99, 0xA1, 0xA2}
HD_SYSTEMS = {0x1A, 0x1E, 0x1F, 0x27, 0x2E, 0x30, 0x31, 0x32}

# Chips of iniVation (and INI before) as headers name them: the first number of the name gives the pixel array.
CHIPS = {
    "128": Sensor(128, 128),
    "208": Sensor(192, 208),
    "240": Sensor(180, 240),
    "346": Sensor(260, 346),
    "640": Sensor(480, 640),
}


def sensor_of_chip(name: str) -> Sensor | None:
    """The sensor of a chip named like ``DVS128``, ``DAVIS240C``, ``Davis346B`` or ``DVXplorer``, if it is known."""
    name = name.lower()
    if name.startswith("sbret"):  # the DAVIS240 before it had that name
        return CHIPS["240"]
    if name.startswith("dvxplorer"):
        return Sensor(240, 320) if "lite" in name else CHIPS["640"]
    number = re.search(r"\d{3}", name)
    return CHIPS.get(number[0]) if number and name.startswith(("davi", "dvs", "tmpdiff")) else None


def sensor_of_system(system: int) -> Sensor | None:
    """The sensor of a Prophesee board, if it is known."""
    if system in VGA_SYSTEMS:
        return Sensor(480, 640)
    return Sensor(720, 1280) if system in HD_SYSTEMS else None
