"""The text header of Prophesee files: lines ``% key value``, then ``% end`` in newer files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fate.errors import FormatError
from fate.events.events import Sensor
from fate.formats.source import sensor_of_sides

MAX_HEADER_BYTES = 1 << 20
MAX_LINE_BYTES = 4096
# Boards as old headers name them (``% system_ID 21``), for files that do not give the size of the sensor.
VGA_SYSTEMS = {0x15, 0x17, 0x19, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x28, 0x29, 0x97, 0x99, 0xA1, 0xA2}
HD_SYSTEMS = {0x1A, 0x1E, 0x1F, 0x27, 0x2E, 0x30, 0x31, 0x32}

CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f]")  # not in text, tabs aside


@dataclass(frozen=True)
class Header:
    """Fields of the header, keys in lower case, and the number of bytes it takes."""

    fields: dict[str, str]
    num_bytes: int

    @property
    def is_index(self) -> bool:
        """Whether the file is the index that another program keeps beside a recording."""
        return "index_version" in self.fields or "bookmark_period_us" in self.fields

    def event_format(self) -> str | None:
        """``"evt2"``, ``"evt21"`` or ``"evt3"`` when the header names it, in the new way or the old."""
        name = self.fields.get("format", "").split(";")[0].strip().lower()
        if name:
            return name
        version = self.fields.get("evt", "").strip()
        return {"2.0": "evt2", "2.1": "evt21", "3.0": "evt3", "4.0": "evt4"}.get(version, version or None)

    def format_options(self) -> dict[str, str]:
        """``% format EVT3;height=720;width=1280`` as a dict."""
        parts = self.fields.get("format", "").split(";")[1:]
        pairs = (part.split("=", 1) for part in parts if "=" in part)
        return {key.strip().lower(): value.strip() for key, value in pairs}

    def prophesee_system(self) -> int:
        """Return the number of the board; 0 if the header gives none or names another maker."""
        maker = self.fields.get("camera_integrator_name") or self.fields.get("integrator_name") or "Prophesee"
        number = self.fields.get("system_id", "")
        return int(number) if maker == "Prophesee" and number.isdecimal() and len(number) < 10 else 0

    def stated_sensor(self, path: Path) -> Sensor | None:
        """Return the sensor size in any of the three ways it has been written; None if it has not."""
        options = self.format_options()
        if "width" in options and "height" in options:
            return sensor_of_sides(path, options["height"], options["width"])
        if "geometry" in self.fields:
            width, _, height = self.fields["geometry"].lower().partition("x")
            return sensor_of_sides(path, height, width)
        if "width" in self.fields and "height" in self.fields:
            return sensor_of_sides(path, self.fields["height"], self.fields["width"])
        return None

    def sensor(self, path: Path, given: Sensor | None = None) -> Sensor | None:
        """Return the sensor size: the one that was given, that of the header, or that of the board's number.

        A given size replaces that of the board, or one that is no size, but not another one that the header states.
        """
        try:
            stated = self.stated_sensor(path)
        except FormatError:
            if given is None:
                raise
            return given
        if given is not None and stated not in (None, given):
            raise FormatError(
                f"{path}: its header states a sensor of {stated} pixels, and {given} was given; give no size, or pass"
                f" sensor=({stated.height}, {stated.width})"
            )
        if given or stated:
            return given or stated
        system = self.prophesee_system()
        return Sensor(480, 640) if system in VGA_SYSTEMS else Sensor(720, 1280) if system in HD_SYSTEMS else None


def parse_header(data: bytes) -> Header:
    """Return the header at the start of ``data``. A line belongs to it if it starts with ``"% "`` and is text:
    binary data may begin with the byte ``%`` by chance."""
    fields: dict[str, str] = {}
    position = 0
    while data[position : position + 1] == b"%" and position < MAX_HEADER_BYTES:
        end = data.find(b"\n", position, position + MAX_LINE_BYTES)
        if end < 0:
            break
        line = data[position:end].rstrip(b"\r")
        if line[1:2] not in (b" ", b"") or CONTROL.search(line):
            break
        key, _, value = line[1:].decode("utf-8", "replace").strip().partition(" ")
        position = end + 1
        if key.lower() == "end":
            break
        if key:
            fields.setdefault(key.lower(), value.strip())
    return Header(fields, position)
