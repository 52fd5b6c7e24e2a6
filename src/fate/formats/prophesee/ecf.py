"""ECF, the codec of Prophesee HDF5 files (filter 0x8ECF): one chunk of events, column after column.

A chunk is little-endian throughout:

* ``u4``: number of events << 2, bit 1 "y, x, p packed", bit 0 "x, p packed". At most 65 535 events.
* ``u8``: time of the first event, then bytes ``dt << 4 | n``: time goes on by dt (0-14), n events have it;
  n = 15 means that n follows as ``u2``. Bytes ``0xF << 4 | nibble`` in a row are one long step of time, its
  lowest nibble first; it comes before the byte with the count.
* bit 1 set: groups of four events in three ``u4``, 24 bits an event: y << 12 | x << 1 | p, the first event in
  the highest bits of the first word, the others continued from word to word.
* bit 1 clear: y as ``u2`` words ``y << 5 | n``, n = 31 meaning that n follows as ``u2``; then either

  * bit 0 set: groups of four events in three ``u2``, 12 bits an event: x << 1 | p;
  * bit 0 clear: x as ``u2`` words ``x << 5 | mask``, where the mask's bits from high to low stand for further
    events at x + 1 … x + 5; then p as bytes ``p << 7 | n``, n = 127 meaning that n follows as ``u2``.

The last group of four and the last mask may speak of events past the end; those are no events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fate.compiled import compiled
from fate.errors import FormatError
from fate.formats.columns import Columns, allocate_columns

FILTER_ID = 0x8ECF
MAX_EVENTS = 65_535
HEADER_BYTES = 12

ENDS_EARLY, LONG_RUN, LONG_STEP = -1, -2, -3
REASONS = {
    ENDS_EARLY: "it ends before its last event",
    LONG_RUN: "a run in it is longer than its events",
    LONG_STEP: "a step of time in it takes more than 64 bits",
}


@compiled
def _u2(data: Any, at: int) -> Any:
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@compiled
def _u4(data: Any, at: int) -> Any:
    return _u2(data, at) | _u2(data, at + 2) << 16


# Every function below reads ``data`` [B] uint8 from ``at``, fills its columns [E] and returns where it stopped,
# or one of the negative reasons. None reads past ``data`` or writes past a column.


@compiled
def _times(data: Any, at: int, t: Any) -> int:
    end = data.shape[0]
    if at + 8 > end:
        return ENDS_EARLY
    time = _u4(data, at) | _u4(data, at + 4) << 32
    at += 8
    i = 0
    while i < t.shape[0]:
        step = np.int64(0)
        bits = 0
        while at < end and data[at] >> 4 == 15:
            if bits == 64:
                return LONG_STEP
            step |= np.int64(data[at] & 15) << bits
            bits += 4
            at += 1
        if at >= end:
            return ENDS_EARLY
        time += step + np.int64(data[at] >> 4)
        count: Any = np.int64(data[at] & 15)
        at += 1
        if count == 15:
            if at + 2 > end:
                return ENDS_EARLY
            count = _u2(data, at)
            at += 2
        if count > t.shape[0] - i:
            return LONG_RUN
        t[i : i + count] = time
        i += count
    return at


@compiled
def _rows(data: Any, at: int, y: Any) -> int:
    end = data.shape[0]
    i = 0
    while i < y.shape[0]:
        if at + 2 > end:
            return ENDS_EARLY
        word = _u2(data, at)
        count = word & 31
        at += 2
        if count == 31:
            if at + 2 > end:
                return ENDS_EARLY
            count = _u2(data, at)
            at += 2
        if count > y.shape[0] - i:
            return LONG_RUN
        y[i : i + count] = word >> 5
        i += count
    return at


@compiled
def _columns_masked(data: Any, at: int, x: Any) -> int:
    n = x.shape[0]
    i = 0
    while i < n:
        if at + 2 > data.shape[0]:
            return ENDS_EARLY
        word = _u2(data, at)
        at += 2
        x[i] = word >> 5
        i += 1
        for further in range(1, 6):
            if (word >> (5 - further)) & 1 and i < n:
                x[i] = (word >> 5) + further
                i += 1
    return at


@compiled
def _polarities(data: Any, at: int, p: Any) -> int:
    end = data.shape[0]
    i = 0
    while i < p.shape[0]:
        if at >= end:
            return ENDS_EARLY
        polarity = data[at] >> 7
        count: Any = np.int64(data[at] & 127)
        at += 1
        if count == 127:
            if at + 2 > end:
                return ENDS_EARLY
            count = _u2(data, at)
            at += 2
        if count > p.shape[0] - i:
            return LONG_RUN
        p[i : i + count] = polarity
        i += count
    return at


@compiled
def _columns_packed(data: Any, at: int, x: Any, p: Any) -> int:
    n = x.shape[0]
    for i in range(0, n, 4):
        if at + 6 > data.shape[0]:
            return ENDS_EARLY
        a, b, c = _u2(data, at), _u2(data, at + 2), _u2(data, at + 4)
        at += 6
        values = (a >> 4, a & 0xF | b >> 8 << 4, b & 0xFF | c >> 12 << 8, c & 0xFFF)
        for j in range(min(4, n - i)):
            x[i + j] = values[j] >> 1
            p[i + j] = values[j] & 1
    return at


@compiled
def _all_packed(data: Any, at: int, x: Any, y: Any, p: Any) -> int:
    n = x.shape[0]
    for i in range(0, n, 4):
        if at + 12 > data.shape[0]:
            return ENDS_EARLY
        a, b, c = _u4(data, at), _u4(data, at + 4), _u4(data, at + 8)
        at += 12
        values = (a >> 8, a & 0xFF | b >> 16 << 8, b & 0xFFFF | c >> 24 << 16, c & 0xFFFFFF)
        for j in range(min(4, n - i)):
            y[i + j] = (values[j] >> 12) & 0x7FF
            x[i + j] = (values[j] >> 1) & 0x7FF
            p[i + j] = values[j] & 1
    return at


@compiled
def _decode(data: Any, packing: int, t: Any, x: Any, y: Any, p: Any) -> int:
    at = _times(data, 4, t)
    if at < 0:
        return at
    if packing & 2:
        return _all_packed(data, at, x, y, p)
    at = _rows(data, at, y)
    if at < 0:
        return at
    if packing & 1:
        return _columns_packed(data, at, x, p)
    at = _columns_masked(data, at, x)
    if at < 0:
        return at
    return _polarities(data, at, p)


def decode_chunk(data: bytes, max_events: int = MAX_EVENTS, name: str = "ECF chunk") -> Columns:
    """The events of one ECF chunk: t int64 µs, x and y uint16, p uint8.

    Args:
        data: the chunk as stored.
        max_events: the most events it may hold (the rows of an HDF5 chunk).
        name: what to call it in an error.
    """
    if len(data) < HEADER_BYTES:
        raise FormatError(f"{name}: is damaged ({len(data)} bytes; at least {HEADER_BYTES} were expected)")
    header = int.from_bytes(data[:4], "little")
    n = header >> 2
    if n > min(max_events, MAX_EVENTS):
        raise FormatError(f"{name}: is damaged (it claims {n} events; at most {min(max_events, MAX_EVENTS)} fit)")
    columns = allocate_columns(n)
    stop = _decode(np.frombuffer(data, np.uint8), header & 3, *columns)
    if stop < 0:
        raise FormatError(f"{name}: is damaged ({REASONS[stop]})")
    return columns
