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
from fate.formats.decoder import Columns, allocate_columns

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
def _word(data: Any, at: int, num_bytes: int) -> Any:
    word = np.int64(0)
    for i in range(num_bytes):
        word |= np.int64(data[at + i]) << (8 * i)
    return word


# Every function below reads ``data`` [B] uint8 from ``at``, fills its columns [E] and returns where it stopped,
# or one of the negative reasons. None reads past ``data`` or writes past a column.


@compiled
def _times(data: Any, at: int, t: Any) -> int:
    end = data.shape[0]
    if at + 8 > end:
        return ENDS_EARLY
    time = _word(data, at, 8)
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
        first = i
        at, i = _run(data, at, 1, 4, i, t.shape[0])
        if at < 0:
            return at
        t[first:i] = time
    return at


@compiled
def _run(data: Any, at: int, word_bytes: int, count_bits: int, i: int, n: int) -> tuple[int, int]:
    """Read how many events the word at ``at`` stands for; returns where the next word is, and ``i`` after the run."""
    end = data.shape[0]
    if at + word_bytes > end:
        return ENDS_EARLY, i
    most = (1 << count_bits) - 1
    count = _word(data, at, word_bytes) & most
    at += word_bytes
    if count == most:
        if at + 2 > end:
            return ENDS_EARLY, i
        count = _word(data, at, 2)
        at += 2
    return (at, i + count) if count <= n - i else (LONG_RUN, i)


@compiled
def _runs(data: Any, at: int, word_bytes: int, count_bits: int, column: Any) -> int:
    """Decode words of a value and, in the low ``count_bits``, the number of events that have it."""
    i = 0
    while i < column.shape[0]:
        word = at
        first = i
        at, i = _run(data, at, word_bytes, count_bits, i, column.shape[0])
        if at < 0:
            return at
        column[first:i] = _word(data, word, word_bytes) >> count_bits
    return at


@compiled
def _masks(data: Any, at: int, x: Any) -> int:
    n = x.shape[0]
    i = 0
    while i < n:
        if at + 2 > data.shape[0]:
            return ENDS_EARLY
        word = _word(data, at, 2)
        at += 2
        x[i] = word >> 5
        i += 1
        for further in range(1, 6):
            if (word >> (5 - further)) & 1 and i < n:
                x[i] = (word >> 5) + further
                i += 1
    return at


@compiled
def _groups(data: Any, at: int, word_bytes: int, x: Any, y: Any, p: Any) -> int:
    """Four events in three words of 2 bytes (x and p) or of 4 bytes (y, x and p)."""
    n = x.shape[0]
    bits = 2 * word_bytes  # of the first word that belong to the second event
    for i in range(0, n, 4):
        if at + 3 * word_bytes > data.shape[0]:
            return ENDS_EARLY
        a = _word(data, at, word_bytes)
        b = _word(data, at + word_bytes, word_bytes)
        c = _word(data, at + 2 * word_bytes, word_bytes)
        at += 3 * word_bytes
        values = (
            a >> bits,
            a & ((1 << bits) - 1) | b >> (2 * bits) << bits,
            b & ((1 << 2 * bits) - 1) | c >> (3 * bits) << (2 * bits),
            c & ((1 << 3 * bits) - 1),
        )
        for j in range(min(4, n - i)):
            if word_bytes == 4:
                y[i + j] = (values[j] >> 12) & 0x7FF
            x[i + j] = (values[j] >> 1) & 0x7FF
            p[i + j] = values[j] & 1
    return at


@compiled
def _decode(data: Any, packing: int, t: Any, x: Any, y: Any, p: Any) -> int:
    at = _times(data, 4, t)
    if at >= 0 and packing & 2:
        return _groups(data, at, 4, x, y, p)
    if at >= 0:
        at = _runs(data, at, 2, 5, y)
    if at >= 0 and packing & 1:
        return _groups(data, at, 2, x, y, p)
    if at >= 0:
        at = _masks(data, at, x)
    if at >= 0:
        at = _runs(data, at, 1, 7, p)
    return at


def decode_chunk(data: bytes, max_events: int = MAX_EVENTS, name: str = "ECF chunk") -> Columns:
    """Decode one ECF chunk to t int64 µs, x and y uint16, p uint8.

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
