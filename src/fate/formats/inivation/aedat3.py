"""AEDAT 3.1, the files of cAER: a header of text lines, then packets of events of one kind each, little-endian.

Header lines start with ``#`` and end with CRLF; ``#Source 1: DAVIS240C`` names the camera behind a number, ``#Format:``
says whether packets may be compressed, and ``#!END-HEADER`` closes the header. A packet is a head of 28 bytes and then
its events:

* ``i2`` kind (1 is polarity; bit 15 marks compressed packets), ``i2`` source;
* ``i4`` bytes of an event, ``i4`` position of the time in an event, ``i4`` overflows of the time;
* ``i4`` capacity (in compressed packets, bytes after the head), ``i4`` number of events, ``i4`` number of valid ones.

A polarity event is ``u4`` with a mark of validity in bit 0, polarity in bit 1 (1 is ON), y in bits 2-16 and x in bits
17-31, then ``i4`` time in µs, to which overflows times 2^31 are added. (0, 0) is the top left pixel.

Events of the source of the first polarity packet are read. Invalid events, those of other sources and other kinds are
passed over and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fate.compiled import compiled, inlined
from fate.errors import FormatError
from fate.formats.decoder import Columns, Decoder, allocate_columns
from fate.formats.inivation.aedat2 import sensor_of_chip
from fate.formats.source import ByteFile, ByteSource, Options
from fate.text import plural

MAGIC = b"#!AER-DAT3.1"
HEAD_BYTES = 28
EVENT_BYTES = 8
POLARITY = 1
COMPRESSED = 1 << 15
MAX_HEADER_BYTES = 1 << 20
END_OF_HEADER = re.compile(rb"^#!END-HEADER\r?\n", re.MULTILINE)
SOURCE_LINE = re.compile(r"^#-?Source (\d+): *(.*?)\r?$", re.MULTILINE)
FORMAT_LINE = re.compile(r"^#-?Format: *(.*?)\r?$", re.MULTILINE)

# What the state holds: events left in the packet that is read, bytes left to skip, µs added by overflows,
# the source that is read (-1 before the first polarity packet), bytes since the header.
LEFT, SKIP, OFFSET, SOURCE, POSITION = range(5)
INVALID, OTHER_SOURCE, SPECIAL, FRAMES, IMU, OTHER = range(5, 11)  # counts
COUNTED_AS = (SPECIAL, OTHER_SOURCE, FRAMES, IMU, IMU)  # by the kind of a packet
WHOLE, DAMAGED, PACKED = range(3)  # how decoding ended


@inlined
def _number(data: Any, at: int) -> Any:
    """The ``i4`` at byte ``at``."""
    low = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
    high = (np.int64(data[at + 3]) ^ 0x80) - 0x80
    return low | (high << 24)


@compiled
def _decode(data: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> tuple[int, int, int]:
    """``data`` [n] uint8 → number of events, bytes used, how it ended; the columns have room for n // 8 events."""
    size = data.shape[0]
    n = 0
    i = 0
    while True:
        step = min(state[SKIP], size - i)
        i += step
        state[SKIP] -= step
        while state[LEFT] > 0 and i + EVENT_BYTES <= size:
            word = _number(data, i) & 0xFFFFFFFF
            if word & 1:
                p[n] = (word >> 1) & 1
                y[n] = (word >> 2) & 0x7FFF
                x[n] = word >> 17
                t[n] = _number(data, i + 4) + state[OFFSET]
                n += 1
            else:
                state[INVALID] += 1
            state[LEFT] -= 1
            i += EVENT_BYTES
        if state[LEFT] > 0 or state[SKIP] > 0 or i + HEAD_BYTES > size:
            return n, i, WHOLE
        kind = np.int64(data[i]) | np.int64(data[i + 1]) << 8
        source = np.int64(data[i + 2]) | np.int64(data[i + 3]) << 8
        event_bytes = _number(data, i + 4)
        time_at = _number(data, i + 8)
        overflows = _number(data, i + 12)
        capacity = _number(data, i + 16)
        number = _number(data, i + 20)
        valid = _number(data, i + 24)
        packed = kind & COMPRESSED != 0
        kind &= COMPRESSED - 1
        if event_bytes < 4 or time_at < 0 or time_at > event_bytes - 4 or overflows < 0 or capacity < 0:
            return n, i, DAMAGED
        if valid < 0 or valid > number or (number > capacity and not packed):
            return n, i, DAMAGED
        if kind == POLARITY and (event_bytes != EVENT_BYTES or time_at != 4):
            return n, i, DAMAGED
        if kind == POLARITY and packed:
            return n, i, PACKED
        i += HEAD_BYTES
        if kind == POLARITY and state[SOURCE] < 0:
            state[SOURCE] = source
        if kind == POLARITY and source == state[SOURCE]:
            state[LEFT] = number
            state[OFFSET] = overflows << 31
            continue
        state[SKIP] = capacity if packed else event_bytes * number
        state[COUNTED_AS[kind] if kind < len(COUNTED_AS) else OTHER] += number


@dataclass(eq=False)
class Aedat3Decoder(Decoder):
    """Packets of an AEDAT 3.1 file, without its header."""

    format = "AEDAT3"
    start = (0, 0, 0, -1, 0)
    skipped_kinds = (
        "invalid events",
        "events of other sources",
        "special events",
        "frames",
        "IMU samples",
        "events of other kinds",
    )
    name: object = "stream"  # the file, for messages
    header_bytes: int = 0  # bytes before the first packet, added to positions in messages

    def missing(self) -> str:
        if self.state[LEFT]:
            return plural(int(self.state[LEFT]), "event")
        return plural(int(self.state[SKIP]), "byte") if self.state[SKIP] else ""

    def decode(self, data: bytes) -> tuple[Columns, int]:
        columns = allocate_columns(len(data) // EVENT_BYTES)
        found, used, ending = _decode(np.frombuffer(data, np.uint8), self.state, *columns)
        self.state[POSITION] += used
        if ending != WHOLE:
            head = np.frombuffer(data, "<i4", HEAD_BYTES // 4, offset=int(used)).tolist()
            raise FormatError(
                f"{self.name}: the packet at byte {self.header_bytes + int(self.state[POSITION])} "
                + ("holds compressed polarity events" if ending == PACKED else f"is damaged (its head is {head})")
                + "; only whole packets of the format RAW are read; copy the file again, or save it with '#Format: RAW'"
            )
        return columns.slice(0, found), used


def open_aedat3(file: ByteFile, options: Options) -> ByteSource:
    """Open an AEDAT 3.1 file: read its header and find the camera of its first events."""
    data = file.read(0, MAX_HEADER_BYTES)
    if not data.startswith(MAGIC):
        raise FormatError(
            f"{file.path}: does not start with {MAGIC.decode()}; expected AEDAT 3.1; let the format be found"
        )
    end = END_OF_HEADER.search(data)
    if end is None:
        raise FormatError(
            f"{file.path}: its header has no line #!END-HEADER within {len(data)} bytes; the file is cut short or"
            " damaged, copy it again"
        )
    text = data[: end.end()].decode("utf-8", "replace")
    cameras = {int(number): name.strip() for number, name in SOURCE_LINE.findall(text) if len(number) < 6}
    packet_format = FORMAT_LINE.search(text)
    notes = {"packet format": packet_format[1].strip() if packet_format else "RAW"}
    source = _first_source(file, end.end())
    if source is None and len(cameras) == 1:
        source = next(iter(cameras))
    camera = cameras.get(source, "") if source is not None else ""
    if source is not None:
        notes["source"] = f"{source} ({camera})" if camera else str(source)
    if len(cameras) > 1:
        notes["sources"] = ", ".join(f"{number} {name}" for number, name in sorted(cameras.items()))
    decoder = Aedat3Decoder(name=file.path, header_bytes=end.end())
    return ByteSource(file, decoder, end.end(), options.sensor or sensor_of_chip(camera), notes)


def _first_source(file: ByteFile, position: int) -> int | None:
    """Return the source of the first polarity packet after ``position``, None if there is no such packet.

    Only heads of packets are read. A damaged head ends the search; decoding refuses it with its position.
    """
    while len(head := file.read(position, HEAD_BYTES)) == HEAD_BYTES:
        kind, source = np.frombuffer(head, "<u2", 2).tolist()
        if kind & (COMPRESSED - 1) == POLARITY:
            return int(source)
        event_bytes, _, _, capacity, number = np.frombuffer(head, "<i4", 5, offset=4).tolist()
        if event_bytes < 4 or number < 0 or capacity < 0:
            break
        position += HEAD_BYTES + (capacity if kind & COMPRESSED else event_bytes * number)
    return None
