"""Prophesee DAT: a text header, two bytes (event type, record size), then 8-byte records.

A record is ``u4`` time in µs and ``u4`` with x in bits 0-13, y in bits 14-27, polarity in bits 28-31.
Event type 0 ("2D": Gen1, N-CARS) and 12 ("CD") have the same layout. The 32-bit time wraps after 71 minutes;
a step back by more than half its range is taken as a wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FormatError
from fate.events.events import Events
from fate.formats.decoder import Columns, WordDecoder
from fate.formats.prophesee.header import MAX_HEADER_BYTES, parse_header
from fate.formats.saving import EventWriter
from fate.formats.source import ByteFile, ByteSource, Options

EVENT_TYPES = {0: "2D", 12: "CD"}
RECORD_BYTES = 8
HALF_RANGE = 1 << 31  # µs


@compiled
def _decode(words: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> None:
    """``words`` [2 E] uint32. ``state``: previous 32-bit time (-1 at the start), µs added by wraps, wraps."""
    n = t.shape[0]
    for i in range(n):  # no branches, so that it becomes vector code
        t[i] = words[2 * i]
        address = words[2 * i + 1]
        x[i] = address & 0x3FFF
        y[i] = (address >> 14) & 0x3FFF
        p[i] = address >> 28 != 0
    wraps = n > 0 and t[0] + HALF_RANGE < state[0]
    for i in range(1, n):
        wraps |= t[i] + HALF_RANGE < t[i - 1]
    if not wraps and not state[1]:
        state[0] = t[n - 1] if n else state[0]
        return
    for i in range(n):
        time = t[i]
        if time + HALF_RANGE < state[0]:
            state[1] += 2 * HALF_RANGE
            state[2] += 1
        state[0] = time
        t[i] = time + state[1]


class DatDecoder(WordDecoder):
    """Records of a DAT file, without its header."""

    format = "DAT"
    start = (-1, 0)
    skipped_kinds = ("time wraps",)
    word_bytes = look_back_bytes = RECORD_BYTES
    is_plain = True

    def time_shift(self, difference: NDArray[np.int64]) -> int | None:
        previous, added_us, _ = difference.tolist()
        return None if previous else int(added_us)

    def most_events(self, data: bytes | memoryview) -> int:
        return len(data) // RECORD_BYTES

    def decode_blocks(
        self, data: memoryview, block_bytes: int, out: Columns
    ) -> tuple[Sequence[NDArray[np.int64]], list[int]] | None:
        before = self.state.copy()
        num_events = self.decode_into(data, out)  # all blocks at once: a call takes as long as a part of a block
        if num_events < 0 or self.state[2] != before[2]:  # the counter wraps in one of the blocks
            self.state[:] = before
            return super().decode_blocks(data, block_bytes, out)
        starts = np.arange(0, num_events, block_bytes // RECORD_BYTES)
        states = np.tile(before, (len(starts), 1))
        states[1:, 0] = out.t[starts[1:] - 1] - before[1]
        return list(states), [*starts.tolist(), num_events]

    def decode_into(self, data: bytes | memoryview, out: Columns) -> int:
        n = len(data) // RECORD_BYTES
        if len(out.t) < n:
            return -1
        _decode(np.frombuffer(data, "<u4", 2 * n), self.state, *out.slice(0, n))
        return n


def open_dat(file: ByteFile, options: Options) -> ByteSource:
    """Open a DAT file and check its header."""
    head = file.read(0, MAX_HEADER_BYTES)
    header = parse_header(head)
    kind = head[header.num_bytes : header.num_bytes + 2]
    if len(kind) < 2:
        raise FormatError(
            f"{file.path}: ends after {len(head)} bytes, before the two bytes that give the event type; it is cut short"
        )
    if kind[0] not in EVENT_TYPES or kind[1] != RECORD_BYTES:
        raise FormatError(
            f"{file.path}: holds DAT events of type {kind[0]} and {kind[1]} bytes; expected type 0 (2D) or 12 (CD) and"
            f" {RECORD_BYTES} bytes; give the file with the camera's events (often named _td.dat or _cd.dat)"
        )
    if header.fields.get("version", "2").strip() not in ("2", ""):
        raise FormatError(
            f"{file.path}: is DAT version {header.fields['version']!r}; only version 2 is known; convert it with the"
            " program that recorded it"
        )
    notes = {**header.fields, "event type": f"{kind[0]} ({EVENT_TYPES[kind[0]]})"}
    sensor = header.sensor(file.path, options.sensor)
    return ByteSource(file, DatDecoder(), header.num_bytes + 2, sensor, notes)


class DatWriter(EventWriter):
    """DAT version 2, event type 12."""

    format = "DAT"
    max_coordinate = (1 << 14) - 1

    def begin(self) -> None:
        header = f"% Version 2\n% Height {self.sensor.height}\n% Width {self.sensor.width}\n"
        self.file.write(header.encode() + bytes([12, RECORD_BYTES]))

    def append(self, events: Events) -> None:
        self.refuse_times(events, (1 << 32) - 1)
        records = np.empty((len(events), 2), "<u4")
        records[:, 0] = events.t_us
        records[:, 1] = (events.p.astype(np.uint32) << 28) | (events.y.astype(np.uint32) << 14) | events.x
        self.file.write(records.tobytes())
