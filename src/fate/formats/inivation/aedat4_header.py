"""The header of AEDAT 4.0: a FlatBuffer with three fields, one of them an XML description of the streams.

Read here, with every offset checked, rather than by the decoder package, whose own reading trusts the offsets; and
written, for the small files that package is given.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from fate.errors import FormatError
from fate.events.events import MAX_SIDE, Sensor
from fate.formats.source import ByteFile

MAGIC = b"#!AER-DAT4.0\r\n"
IDENTIFIER = b"IOHE"
COMPRESSIONS = {0: "none", 1: "LZ4", 2: "LZ4", 3: "Zstandard", 4: "Zstandard"}  # 2 and 4: the slower, denser settings
NO_TABLE = -1
MAX_HEADER_BYTES = 16 << 20


@dataclass(frozen=True)
class Stream:
    """A stream of packets: its number, its kind (``"EVTS"``, ``"FRME"``, ``"IMUS"``, ``"TRIG"``, ...)."""

    number: int
    kind: str
    sensor: Sensor | None
    source: str  # the camera's name


@dataclass(frozen=True)
class Aedat4Header:
    """What the header says; ``num_bytes`` counts from the start of the file to the first packet."""

    compression: int
    table_position: int | None
    streams: tuple[Stream, ...]
    num_bytes: int

    @property
    def compression_name(self) -> str:
        return COMPRESSIONS[self.compression]


def read_header(path: Path, file: ByteFile) -> Aedat4Header:
    """The header of ``file``, checked."""
    start = file.read(0, len(MAGIC) + 4)
    if not start.startswith(MAGIC[: len(start)]):
        raise FormatError(f"{path}: does not start with '#!AER-DAT4.0'; expected AEDAT 4.0; let the format be found")
    length = int.from_bytes(start[len(MAGIC) :], "little")
    num_bytes = len(MAGIC) + 4 + length
    if len(start) < len(MAGIC) + 4 or num_bytes > file.size:
        raise FormatError(
            f"{path}: ends after {file.size} bytes, inside its header of {num_bytes}; it is cut short, copy it again"
        )
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"{path}: claims a header of {length} bytes, more than {MAX_HEADER_BYTES}; copy it again")
    try:
        compression, table, description = _fields(file.read(len(MAGIC) + 4, length))
        streams = _streams(description)
    except (struct.error, UnicodeDecodeError, ElementTree.ParseError, ValueError) as error:
        raise FormatError(f"{path}: the header is damaged ({error}); copy the file again") from None
    if compression not in COMPRESSIONS:
        raise FormatError(f"{path}: has compression {compression}; 0 to 4 are known; save it with LZ4 or Zstandard")
    if table != NO_TABLE and table < num_bytes:
        raise FormatError(f"{path}: the header puts the table of packets at byte {table}, inside itself; copy it again")
    return Aedat4Header(compression, None if table == NO_TABLE else table, streams, num_bytes)


def _at(layout: str, buffer: bytes, position: int) -> int:
    """One little-endian number; positions outside the buffer are an error, negative ones too."""
    if position < 0:
        raise ValueError("an offset points before the start")
    value: int = struct.unpack_from("<" + layout, buffer, position)[0]
    return value


def _fields(buffer: bytes) -> tuple[int, int, str]:
    """Compression, position of the table, description."""
    if buffer[4:8] != IDENTIFIER:
        raise ValueError(f"its mark is {buffer[4:8]!r}, not {IDENTIFIER!r}")
    table = _at("I", buffer, 0)
    vtable = table - _at("i", buffer, table)
    slots = (_at("H", buffer, vtable) - 4) // 2
    offsets = [_at("H", buffer, vtable + 4 + 2 * slot) if slot < slots else 0 for slot in range(3)]
    places = [table + offset if offset else None for offset in offsets]  # None: the field has its default
    compression = 0 if places[0] is None else _at("i", buffer, places[0])
    table_position = NO_TABLE if places[1] is None else _at("q", buffer, places[1])
    if places[2] is None:
        raise ValueError("it does not describe the streams")
    text = places[2] + _at("I", buffer, places[2])
    length = _at("I", buffer, text)
    if text + 4 + length > len(buffer):
        raise ValueError("the description of the streams runs beyond it")
    return compression, table_position, buffer[text + 4 : text + 4 + length].decode("utf-8")


def _streams(description: str) -> tuple[Stream, ...]:
    """The streams an XML description lists, by number."""
    if "<!" in description:
        raise ValueError("the description of the streams declares entities")
    root = ElementTree.fromstring(description)
    streams: dict[int, Stream] = {}
    for node in root.findall("./node[@name='outInfo']/node"):
        number = int(node.get("name", ""))
        kind = (node.findtext("./attr[@key='typeIdentifier']") or "").strip()
        info = "./node[@name='info']/attr[@key='{}']"
        sides = [int(node.findtext(info.format(key)) or 0) for key in ("sizeY", "sizeX")]
        if number in streams or number < 0 or max(sides) > MAX_SIDE:
            raise ValueError(f"stream {number} is described twice or with a size of {sides[1]}×{sides[0]}")
        sensor = Sensor(*sides) if min(sides) > 0 else None
        streams[number] = Stream(number, kind, sensor, (node.findtext(info.format("source")) or "").strip())
    return tuple(streams[number] for number in sorted(streams))


def plain_header(compression: int, stream: Stream) -> bytes:
    """The first bytes of a file with one event stream and no table."""
    height, width = stream.sensor or Sensor(1, 1)
    text = (
        f'<dv version="2.0"><node name="outInfo"><node name="{stream.number}"><attr key="typeIdentifier">EVTS</attr>'
        f'<node name="info"><attr key="sizeX">{min(width, 65_535)}</attr><attr key="sizeY">{min(height, 65_535)}</attr>'
        "</node></node></node></dv>"
    ).encode()
    # root at 20, mark, padding; vtable at 10: its size, the table's, the three fields; the table: back to the vtable,
    # compression, text 12 bytes on, position of the table of packets; the text with its length and a closing 0
    buffer = struct.pack("<I4s2xHHHHHiiIq", 20, IDENTIFIER, 10, 20, 4, 12, 8, 10, compression, 12, NO_TABLE)
    buffer += struct.pack("<I", len(text)) + text + b"\0"
    return MAGIC + struct.pack("<I", len(buffer)) + buffer
