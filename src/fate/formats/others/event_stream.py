"""Event Stream 2.x (.es): a binary header, then events of five bytes with the time since the one before.

The header is ``Event Stream``, three bytes of version, one of the stream's type, and for types 1 (DVS) and 2 (ATIS)
``u2`` width and height, little-endian. An event is one byte with time and polarity, then ``u2`` x and ``u2`` y:

* DVS: 7 bits of time and, lowest, the polarity. Byte 0xFF adds 127 µs, byte 0xFE is a reset, which is skipped.
* ATIS: 6 bits of time, polarity, and a bit that marks exposure measurements (skipped here). A byte whose six time
  bits are all set adds 63 µs times its two low bits; with both of them 0 it is a reset.

Time starts at 0. The format counts rows from the bottom, so y becomes height - 1 - y here; a row outside the sensor
keeps its stored number, which the check against the sensor then reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fate.compiled import compiled
from fate.errors import FormatError
from fate.formats.decoder import Columns, Decoder, allocate_columns
from fate.formats.source import ByteFile, ByteSource, Options, sensor_of_sides

MAGIC = b"Event Stream"
HEADER_BYTES = 20
EVENT_BYTES = 5
ORIENTATION = "y reversed: Event Stream counts rows from the bottom"
TYPES = {0: "generic", 1: "DVS", 2: "ATIS", 3: "display", 4: "color", 5: "liquid"}


@compiled
def _decode(data: Any, atis: bool, height: int, state: Any, t: Any, x: Any, y: Any, p: Any) -> tuple[int, int]:
    """``data`` [n] uint8 → number of events, bytes used; the columns have room for n // 5 events. Rows below ``height``
    are reversed.

    ``state``: time in µs, then counts: reset bytes, exposure measurements.
    """
    time = state[0]
    shift = 2 if atis else 1
    full = 0x3F if atis else 0x7F  # the step that is never an event's
    n = 0
    i = 0
    while i < data.shape[0]:
        first = np.int64(data[i])
        step = first >> shift
        low = first & 3 if atis else first & 1
        if step == full:
            if low == 0:
                state[1] += 1
            time += full * low
            i += 1
            continue
        if i + EVENT_BYTES > data.shape[0]:
            break
        time += step
        if atis and low & 1:
            state[2] += 1
        else:
            t[n] = time
            x[n] = np.int64(data[i + 1]) | np.int64(data[i + 2]) << 8
            row = np.int64(data[i + 3]) | np.int64(data[i + 4]) << 8
            y[n] = height - 1 - row if row < height else row
            p[n] = low >> 1 if atis else low
            n += 1
        i += EVENT_BYTES
    state[0] = time
    return n, i


@dataclass(eq=False)
class EventStreamDecoder(Decoder):
    """Bytes of an Event Stream file of type DVS, or with ``atis`` of type ATIS, without the header. Rows are reversed
    within the sensor."""

    format = "ES"
    start = (0,)
    skipped_kinds = ("reset bytes", "exposure measurements")
    atis: bool = False

    def decode(self, data: bytes) -> tuple[Columns, int]:
        columns = allocate_columns(len(data) // EVENT_BYTES)
        height = self.sensor.height if self.sensor else 0
        found, used = _decode(np.frombuffer(data, np.uint8), self.atis, height, self.state, *columns)
        return columns.slice(0, found), used


def open_event_stream(file: ByteFile, options: Options) -> ByteSource:
    """Open an Event Stream file of type DVS or ATIS and check its header."""
    path, head = file.path, file.read(0, HEADER_BYTES)
    if not head.startswith(MAGIC):
        raise FormatError(f"{path}: does not start with 'Event Stream'; expected an .es file; let the format be found")
    if len(head) < HEADER_BYTES:
        raise FormatError(f"{path}: ends after {len(head)} bytes, inside its header of {HEADER_BYTES}; it is cut short")
    version, kind = ".".join(str(part) for part in head[12:15]), head[15]
    if head[12] != 2:
        raise FormatError(f"{path}: is Event Stream {version}; version 2 is known; convert it first")
    if kind not in (1, 2):
        raise FormatError(
            f"{path}: is an Event Stream of type {kind} ({TYPES.get(kind, 'unknown')}); only types 1 (DVS) and 2 (ATIS)"
            " hold camera events; give such a file"
        )
    width, height = int.from_bytes(head[16:18], "little"), int.from_bytes(head[18:20], "little")
    notes = {"version": version, "type": f"{kind} ({TYPES[kind]})", "orientation": ORIENTATION}
    pixels = options.sensor if options.sensor and not (width and height) else sensor_of_sides(path, height, width)
    decoder = EventStreamDecoder(pixels, atis=kind == 2)
    return ByteSource(file, decoder, HEADER_BYTES, options.sensor or pixels, notes)
