"""AEDAT 2.0, the files of jAER: a header of text lines, then 8-byte big-endian records.

Header lines start with ``#`` and end with CRLF; newer files close them with ``#End Of ASCII Header``, older ones
simply stop. A record is ``u4`` address and ``i4`` time in µs, here taken as unsigned: it goes from positive over
negative to positive again in 71 minutes, and a step back by more than half its range is a wrap.

What the address means depends on the chip, which newer headers name (``# AEChip: ...Davis346B``):

* DVS128: polarity in bit 0 (0 is ON), x in bits 1-7, y in bits 8-14; bit 15 marks special events.
* DAVIS: bit 31 marks samples of frames and of the IMU; else x is in bits 12-21, y in bits 22-30, polarity in bit 11
  (1 is ON), and bit 10 marks external triggers.

Coordinates are turned upright. The files store both axes of the DVS128 and of every DAVIS in reverse: jAER's viewer
mirrors x and draws y = 0 at the bottom. So x becomes width - 1 - x and y becomes height - 1 - y here. The DVXplorer is
stored upright. An event outside the chip keeps its stored coordinates, which the check against the sensor then reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fate.compiled import compiled
from fate.errors import FormatError
from fate.events.events import Sensor
from fate.formats.decoder import Columns, Decoder, allocate_columns
from fate.formats.source import BLOCK_BYTES, ByteFile, ByteSource, Options

Layout = Literal["dvs128", "davis"]

RECORD_BYTES = 8
DVS128 = Sensor(128, 128)
MAX_HEADER_BYTES = 8 << 20  # jAER may write all its settings there
MAX_LINE_BYTES = 64 << 10
# a line of text that ends with CRLF or LF, as all lines of one header do
HEADER_LINE = {end: re.compile(rb"#([\t\x20-\x7e\x80-\xff]*)" + end) for end in (b"\r\n", b"\n")}
TRIGGERS, FRAME_SAMPLES, IMU_SAMPLES, UNKNOWN = 3, 4, 5, 6  # where they are counted in the state

TURNED = "x and y reversed: jAER counts rows from the bottom and columns from the right"
UPRIGHT = "as stored, upright"

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


@compiled
def _decode(words: Any, davis: bool, inverted: int, turned: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [2 n] uint32 → number of events. Coordinates below ``turned`` (height, width) are reversed.

    ``state``: previous time (-1 at the start), µs added by wraps, then counts: wraps, triggers or special events,
    frame samples, IMU samples, unknown addresses. Only events move the time: what is skipped may be damaged.
    """
    turned_height, turned_width = turned
    previous = state[0]
    offset = state[1]
    n = 0
    for i in range(words.shape[0] // 2):
        address = np.int64(words[2 * i])
        if davis:
            if address >> 31:
                state[IMU_SAMPLES if (address >> 10) & 3 == 3 else FRAME_SAMPLES] += 1
                continue
            if (address >> 10) & 1:
                state[TRIGGERS] += 1
                continue
            column = (address >> 12) & 0x3FF
            row = (address >> 22) & 0x1FF
            p[n] = ((address >> 11) & 1) ^ inverted
        else:
            if address >> 16:
                state[UNKNOWN] += 1
                continue
            if address >> 15:
                state[TRIGGERS] += 1
                continue
            column = (address >> 1) & 0x7F
            row = (address >> 8) & 0x7F
            p[n] = 1 - (address & 1)
        inside = column < turned_width and row < turned_height
        x[n] = turned_width - 1 - column if inside else column
        y[n] = turned_height - 1 - row if inside else row
        time = np.int64(words[2 * i + 1])
        if time + (1 << 31) < previous:
            offset += 1 << 32
            state[2] += 1
        previous = time
        t[n] = time + offset
        n += 1
    state[0] = previous
    state[1] = offset
    return n


@dataclass(eq=False)
class Aedat2Decoder(Decoder):
    """Records of an AEDAT 2.0 file, without its header. Both axes are reversed within the sensor of the chip."""

    format = "AEDAT2"
    start = (-1, 0)
    skipped_kinds = ("time wraps", "triggers", "frame samples", "IMU samples", "unknown addresses")
    layout: Layout | None = None  # of an address; None is "dvs128" for a 128×128 sensor and "davis" for others
    turned: bool = True  # False for chips that are stored upright (DVXplorer)
    inverted: bool = False  # whether polarity 1 means OFF (DAVIS208)

    def decode(self, data: bytes) -> tuple[Columns, int]:
        n = len(data) // RECORD_BYTES
        words = np.frombuffer(data, ">u4", 2 * n).astype(np.uint32)
        columns = allocate_columns(n)
        pixels = self.sensor or DVS128
        davis = (self.layout or _layout_of(pixels)) == "davis"
        turned = tuple(pixels) if self.turned else (0, 0)
        found = _decode(words, davis, int(self.inverted), turned, self.state, *columns)
        return columns.slice(0, found), n * RECORD_BYTES


def parse_aedat2_header(data: bytes) -> tuple[str, dict[str, str], int]:
    """Return the version, such as ``"2.0"`` (empty if there is none), the fields and the size in bytes of the header.

    A line belongs to the header when it starts with ``#``, is text and ends like the first one: records may begin with
    the byte ``#`` by chance.
    """
    fields: dict[str, str] = {}
    version = ""
    position = 0
    line_end = data.find(b"\n")
    line_pattern = HEADER_LINE[b"\r\n" if data[line_end - 1 : line_end] == b"\r" else b"\n"]
    while match := line_pattern.match(data, position, min(position + MAX_LINE_BYTES, MAX_HEADER_BYTES)):
        position = match.end()
        text = match[1].decode("utf-8", "replace").strip()
        if text.startswith("!AER-DAT"):
            version = text[len("!AER-DAT") :].strip()
        elif text.lower() == "end of ascii header":
            break
        elif ": " in text and not text.startswith("<"):
            key, _, value = text.partition(": ")
            fields.setdefault(key.strip().lower(), value.strip())
    return version, fields, position


def open_aedat2(file: ByteFile, options: Options) -> ByteSource:
    """Open an AEDAT 2.0 file: read its header and find the layout of its addresses."""
    version, fields, data_start = parse_aedat2_header(file.read(0, MAX_HEADER_BYTES))
    if not version.startswith("2"):
        given = f"is AEDAT {version}" if version else "has no line #!AER-DAT2.0 at its start"
        raise FormatError(
            f"{file.path}: {given}; AEDAT 2.0, 3.1 and 4.0 are read; convert it with the program that recorded it"
        )
    decoder = _find_decoder(file, fields.get("aechip"), data_start, options.sensor)
    notes = {
        **fields,
        "address layout": "DVS128" if decoder.layout == "dvs128" else "DAVIS",
        "orientation": TURNED if decoder.turned else UPRIGHT,
    }
    return ByteSource(file, decoder, data_start, options.sensor or decoder.sensor, notes)


def _layout_of(sensor: Sensor) -> Layout:
    return "dvs128" if sensor == DVS128 else "davis"


def _find_decoder(file: ByteFile, chip: str | None, data_start: int, asked: Sensor | None) -> Aedat2Decoder:
    """Return the decoder for a chip as jAER names it, ``eu.seebetter.ini.chips.davis.Davis346B``.

    For other chips the sensor that was ``asked`` for decides; without it, a file that names no chip is read as a DVS128
    if its first addresses allow that.
    """
    name = (chip or "").rpartition(".")[2].lower()
    if "dvs128" in name or "tmpdiff128" in name:
        return Aedat2Decoder(DVS128, layout="dvs128")
    if name.startswith(("dvxplorer", "davi", "sbret", "dvs240")):
        sensor = sensor_of_chip(name) or asked
        if sensor is None:
            raise FormatError(
                f"{file.path}: the size of the chip {chip!r} is not known, so its picture cannot be turned upright;"
                " pass sensor=(height, width)"
            )
        is_upright, inverted = name.startswith("dvxplorer"), name.startswith("davis208")
        return Aedat2Decoder(sensor, layout="davis", turned=not is_upright, inverted=inverted)
    if asked is not None:
        return Aedat2Decoder(asked, layout=_layout_of(asked))
    head = file.read(data_start, BLOCK_BYTES)
    addresses = np.frombuffer(head, ">u4", 2 * (len(head) // RECORD_BYTES))[::2]
    if chip is None and not (addresses >> 16).any():
        return Aedat2Decoder(DVS128, layout="dvs128")
    given = f"the chip {chip!r} is not known" if chip else "the header names no chip and the addresses are not DVS128's"
    raise FormatError(
        f'{file.path}: {given}, so the meaning of its addresses is unclear; pass format="aedat2" and'
        " sensor=(128, 128) for the layout of the DVS128, or sensor=(180, 240), sensor=(260, 346) or sensor=(480, 640)"
        " for that of the DAVIS"
    )
