"""Prophesee RAW files: a text header, then words of EVT2, EVT2.1 or EVT3.

EVT2, 32 bits: y in bits 0-10, x 11-21, time 22-27, type 28-31 (0 OFF, 1 ON, 8 TIME_HIGH with 28 bits of 64 µs).
EVT2.1, 64 bits: 32 validity bits, then the same fields one word higher; bit i is an event at x + i. The
"legacy" variant swaps the two halves.

EVT3, 16 bits, changes one thing at a time (time, row, column) and has vectors of events. Word types (bits 12-15):
0 ADDR_Y, 2 ADDR_X (one event: x in bits 0-10, polarity in 11), 3 VECT_BASE_X, 4 VECT_12 and 5 VECT_8 (a bit per event
from the base on, which then moves on by 12 or 8), 6 TIME_LOW (12 bits), 8 TIME_HIGH (12 bits of 4 096 µs), 0xA trigger;
7, 0xE, 0xF vendor data. All others are skipped and counted.

Time semantics are OpenEB's: nothing before the first TIME_HIGH is an event. In EVT2 and EVT2.1 a TIME_HIGH that falls
by nearly its whole range has wrapped (2^34 µs, 4.8 hours). In EVT3 time is (wraps, high, last low); low returns to 0
when TIME_HIGH changes, and stays when it is only repeated; a TIME_HIGH lower by half its range or more has wrapped
(every 2^24 µs, 16.8 s).

The writers write what a sensor would: a TIME_HIGH whenever the high part of the time changes, vectors where several
events share time, row and polarity. A file's times start below one wrap of its TIME_HIGH for any reader; later
times are kept exactly by spelling out each wrap as TIME_HIGH "last value", "0".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FormatError
from fate.events.events import Events
from fate.formats.decoder import Columns, Decoder, WordDecoder
from fate.formats.prophesee.header import MAX_HEADER_BYTES, parse_header
from fate.formats.saving import EventWriter
from fate.formats.source import ByteFile, ByteSource, Options

FIRST_LITTLE_SYSTEM = 0x37  # boards before it wrote EVT2.1 with the halves of a word swapped
OFF, ON = 0x0, 0x1  # types of words: EVT2 and EVT2.1,
ADDR_Y, FOREIGN_Y, ADDR_X, VECT_BASE_X, VECT_12, VECT_8, TIME_LOW, CONTINUED_4 = range(8)  # EVT3,
TIME_HIGH, TRIGGER, OTHER, CONTINUED = 0x8, 0xA, 0xE, 0xF  # and all three
TIME_RANGE = 1 << 34  # µs until TIME_HIGH of EVT2 wraps
WRAP_SLACK = 10_000  # µs by which a wrap may fall short of the whole range
HALF_TIME_HIGH = 1 << 11  # of EVT3
NO_HIGH = NO_ROW = NO_BASE = -1
MAX_WRAPS = 4096  # that are spelt out at once; a file that starts later is refused
VECTOR = 32  # columns covered by one EVT2.1 word, or by VECT_12 + VECT_12 + VECT_8
VECTOR_FROM = 5  # events from which an EVT3 vector (four words) is shorter than single events


@compiled
def _decode_evt2(words: Any, validity: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [n] uint32, and for EVT2.1 ``validity`` [n] uint32 (None for EVT2) → number of events; -1: no room.

    ``state``: time base (-1: none yet), wrap offset, then the counts of what was skipped.
    """
    base = state[0]
    offset = state[1]
    counts = state[2:]
    room = t.shape[0]
    n = 0
    for i in range(words.shape[0]):
        word = np.int64(words[i])
        kind = word >> 28
        if kind <= ON:
            if base < 0:
                counts[0] += 1
                continue
            time = base + ((word >> 22) & 0x3F)
            column = (word >> 11) & 0x7FF
            valid = np.uint32(1) if validity is None else validity[i]
            while valid:
                if valid & 1:
                    if n == room:
                        return -1
                    t[n] = time
                    x[n] = column
                    y[n] = word & 0x7FF
                    p[n] = kind
                    n += 1
                if validity is None:
                    break
                valid >>= 1
                column += 1
        elif kind == TIME_HIGH:
            high = (word & 0xFFFFFFF) << 6
            if base - high - offset >= TIME_RANGE - 64 - WRAP_SLACK:
                offset += TIME_RANGE
            base = high + offset
        elif kind == TRIGGER:
            counts[1] += 1
        elif kind in (OTHER, CONTINUED):
            counts[2] += 1
        else:
            counts[3] += 1
    state[0] = base
    state[1] = offset
    return n


@compiled
def _count_evt2(words: Any) -> int:
    """Count the words that are events."""
    n = 0
    for i in range(words.shape[0]):
        n += words[i] < (ON + 1) << 28
    return n


class Evt2Decoder(WordDecoder):
    """Words of an EVT2 file, without its header."""

    format = "EVT2"
    start = (-1, 0)
    skipped_kinds = ("before the first time", "triggers", "vendor words", "unknown words")
    word_bytes = 4

    def time_shift(self, difference: NDArray[np.int64]) -> int | None:
        base, offset = difference[: len(self.start)].tolist()
        return int(offset) if base == offset else None

    def most_events(self, data: bytes | memoryview) -> int:
        return int(_count_evt2(np.frombuffer(data, "<u4", len(data) // 4)))

    def decode_into(self, data: bytes | memoryview, out: Columns) -> int:
        return int(_decode_evt2(np.frombuffer(data, "<u4", len(data) // 4), None, self.state, *out))


@dataclass(eq=False)
class Evt21Decoder(Evt2Decoder):
    """Words of an EVT2.1 file, without its header. ``legacy`` files have the two halves of a word swapped."""

    format, word_bytes = "EVT2.1", 8
    legacy: bool = False

    def most_events(self, data: bytes | memoryview) -> int:
        return int(np.bitwise_count(self._halves(data)[1]).sum())

    def _halves(self, data: bytes | memoryview) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The words, and their validity bits."""
        halves = np.frombuffer(data, "<u4", len(data) // 8 * 2).reshape(-1, 2)
        return (halves[:, 0], halves[:, 1]) if self.legacy else (halves[:, 1], halves[:, 0])

    def decode_into(self, data: bytes | memoryview, out: Columns) -> int:
        return int(_decode_evt2(*self._halves(data), self.state, *out))


@compiled
def _decode_evt3(words: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [n] uint16 → number of events; -1: no room.

    ``state``: TIME_HIGH (-1: none yet), wraps, TIME_LOW, row (-1: none yet), vector base (-1: none yet), vector
    polarity, then the counts of what was skipped: before the first time, without a row or base, triggers, vendor
    words, unknown words.
    """
    high = state[0]
    wraps = state[1]
    low = state[2]
    row: Any = state[3]
    base = state[4]
    polarity = state[5]
    counts = state[6:]
    room = t.shape[0]
    n = 0
    now = (wraps << 24) | (high << 12) | low
    for i in range(words.shape[0]):
        word = np.int64(words[i])
        kind = word >> 12
        if kind == ADDR_X:
            if row < 0:
                counts[0 if high == NO_HIGH else 1] += 1
                continue
            if n == room:
                return -1
            t[n] = now
            x[n] = word & 0x7FF
            y[n] = row
            p[n] = (word >> 11) & 1
            n += 1
        elif kind == VECT_12 or kind == VECT_8:
            if row < 0 or base < 0:
                counts[0 if high == NO_HIGH else 1] += 1
                continue
            valid = word & 0xFFF if kind == VECT_12 else word & 0xFF
            column = base
            while valid:
                if valid & 1:
                    if n == room:
                        return -1
                    t[n] = now
                    x[n] = column
                    y[n] = row
                    p[n] = polarity
                    n += 1
                valid >>= 1
                column += 1
            base = min(base + (12 if kind == VECT_12 else 8), 0xFFF0)
        elif kind == TIME_LOW:
            low = word & 0xFFF
            now = (wraps << 24) | (high << 12) | low
        elif kind == ADDR_Y:
            row = word & 0x7FF if high != NO_HIGH else NO_ROW  # nothing before the first TIME_HIGH counts
        elif kind == VECT_BASE_X:
            base = word & 0x7FF if high != NO_HIGH else NO_BASE
            polarity = (word >> 11) & 1
        elif kind == TIME_HIGH:
            new = word & 0xFFF
            if high >= HALF_TIME_HIGH + new:
                wraps += 1
            if new != high:
                low = 0
            high = new
            now = (wraps << 24) | (high << 12) | low
        elif kind == TRIGGER:
            counts[2] += 1
        elif kind in (FOREIGN_Y, CONTINUED_4, OTHER, CONTINUED):
            if kind == FOREIGN_Y:  # rows of another event type: their columns are not ours
                row = NO_ROW
            counts[3] += 1
        else:
            counts[4] += 1
    state[0] = high
    state[1] = wraps
    state[2] = low
    state[3] = row
    state[4] = base
    state[5] = polarity
    return n


def _events_of_words() -> NDArray[np.uint8]:
    """Return the number of events of each of the 2^16 words: one of ADDR_X, one for each bit of a vector."""
    words = np.arange(1 << 16, dtype=np.uint16)
    kind = words >> 12
    vectors = np.bitwise_count(np.where(kind == VECT_12, words & 0xFFF, np.where(kind == VECT_8, words & 0xFF, 0)))
    return np.where(kind == ADDR_X, 1, vectors).astype(np.uint8)


EVENTS_OF_WORDS = _events_of_words()


@compiled
def _count_evt3(words: Any, events_of_words: Any) -> int:
    n = 0
    for i in range(words.shape[0]):
        n += events_of_words[words[i]]
    return n


class Evt3Decoder(WordDecoder):
    """Words of an EVT3 file, without its header."""

    format = "EVT3"
    start = (NO_HIGH, 0, 0, NO_ROW, NO_BASE, 0)
    skipped_kinds = ("before the first time", "without a row or base", "triggers", "vendor words", "unknown words")
    word_bytes = 2

    def time_shift(self, difference: NDArray[np.int64]) -> int | None:
        high, wraps, *others = difference[: len(self.start)].tolist()
        return None if high or any(others) else int(wraps) << 24

    def most_events(self, data: bytes | memoryview) -> int:
        return int(_count_evt3(np.frombuffer(data, "<u2", len(data) // 2), EVENTS_OF_WORDS))

    def decode_into(self, data: bytes | memoryview, out: Columns) -> int:
        return int(_decode_evt3(np.frombuffer(data, "<u2", len(data) // 2), self.state, *out))


def open_raw(file: ByteFile, options: Options) -> ByteSource:
    """Open a RAW file; ``options.format`` (evt2, evt21, evt3) replaces the format that the header names."""
    header = parse_header(file.read(0, MAX_HEADER_BYTES))
    if header.is_index:
        raise FormatError(
            f"{file.path}: is the index another program keeps beside a recording, not a recording;"
            " give the .raw file it belongs to"
        )
    decoder: Decoder
    name = options.format or header.event_format()
    if name == "evt2":
        decoder = Evt2Decoder()
    elif name == "evt21":
        order = header.format_options().get("endianness") or header.fields.get("endianness")
        if order is None and 0 < header.prophesee_system() < FIRST_LITTLE_SYSTEM:
            order = "legacy"
        decoder = Evt21Decoder(legacy=order is not None and order.lower() == "legacy")
    else:
        decoder = Evt3Decoder()
    return ByteSource(file, decoder, header.num_bytes, header.sensor(file.path, options.sensor), header.fields)


# ---- writing ------------------------------------------------------------------------------------------------


@compiled
def _time_high_words(high: int, previous: int, bits: int, out: Any, n: int) -> int:
    """TIME_HIGH words from ``previous`` (-1: none yet) to ``high``; returns the new number of words."""
    last = (1 << bits) - 1
    kind = np.int64(TIME_HIGH) << bits
    wraps = (high >> bits) - (max(previous, 0) >> bits)
    if previous < 0 and wraps:
        out[n] = kind  # the first TIME_HIGH only sets the base
        n += 1
    for _ in range(wraps):
        out[n] = kind | last
        out[n + 1] = kind
        n += 2
    out[n] = kind | (high & last)
    return n + 1


@compiled
def _run_length(t: Any, x: Any, y: Any, p: Any, i: int) -> int:
    """Count the events from ``i`` on with one time, row, polarity and 32-column cell, in increasing x."""
    j = i + 1
    while (
        j < t.shape[0]
        and t[j] == t[i]
        and y[j] == y[i]
        and p[j] == p[i]
        and x[j] > x[j - 1]
        and x[j] // VECTOR == x[i] // VECTOR
    ):
        j += 1
    return j - i


@compiled
def _encode_evt2(t: Any, x: Any, y: Any, p: Any, state: Any, width: int, out: Any) -> int:
    """Write words of EVT2, or of EVT2.1 if ``width`` is not 0, into ``out`` int64 → number of words.

    ``state``: last TIME_HIGH, -1 for none.
    """
    vectors = width > 0
    high = state[0]
    n = 0
    i = 0
    while i < t.shape[0]:
        if t[i] >> 6 != high:
            first = n
            n = _time_high_words(t[i] >> 6, high, 28, out, n)
            high = t[i] >> 6
            if vectors:
                for k in range(first, n):
                    out[k] <<= 32
        run = _run_length(t, x, y, p, i) if vectors else 1
        column = np.int64(x[i]) // VECTOR * VECTOR if vectors else np.int64(x[i])
        word = (np.int64(p[i]) << 28) | ((t[i] & 0x3F) << 22) | (column << 11) | np.int64(y[i])
        if vectors:
            valid = np.int64(0)
            for k in range(i, i + run):
                valid |= np.int64(1) << (np.int64(x[k]) - column)
            word = (word << 32) | valid
        out[n] = word
        n += 1
        i += run
    state[0] = high
    return n


@compiled
def _encode_evt3(t: Any, x: Any, y: Any, p: Any, state: Any, width: int, out: Any) -> int:
    """``out`` int64 words → number of words. ``state``: last TIME_HIGH, TIME_LOW and row, -1 for none."""
    high = state[0]
    low = state[1]
    row = state[2]
    n = 0
    i = 0
    while i < t.shape[0]:
        if t[i] >> 12 != high:
            n = _time_high_words(t[i] >> 12, high, 12, out, n)
            high = t[i] >> 12
            low = -1
        if t[i] & 0xFFF != low:
            low = t[i] & 0xFFF
            out[n] = (TIME_LOW << 12) | low
            n += 1
        if y[i] != row:
            row = np.int64(y[i])
            out[n] = (ADDR_Y << 12) | row
            n += 1
        run = _run_length(t, x, y, p, i)
        base = np.int64(x[i]) // VECTOR * VECTOR
        if run >= VECTOR_FROM and base + VECTOR <= width:
            valid = np.int64(0)
            for k in range(i, i + run):
                valid |= np.int64(1) << (np.int64(x[k]) - base)
            out[n] = (VECT_BASE_X << 12) | (np.int64(p[i]) << 11) | base
            out[n + 1] = (VECT_12 << 12) | (valid & 0xFFF)
            out[n + 2] = (VECT_12 << 12) | ((valid >> 12) & 0xFFF)
            out[n + 3] = (VECT_8 << 12) | (valid >> 24)
            n += 4
        else:
            for k in range(i, i + run):
                out[n] = (ADDR_X << 12) | (np.int64(p[k]) << 11) | np.int64(x[k])
                n += 1
        i += run
    state[0] = high
    state[1] = low
    state[2] = row
    return n


class EvtWriter(EventWriter):
    """Base of the three writers: it writes the header, refuses times out of range and allocates the words."""

    version: ClassVar[str]
    time_bits: ClassVar[int]  # of one wrap
    words_per_event: ClassVar[int]  # at most, wraps aside
    word_type: ClassVar[str]
    encode: ClassVar[Callable[..., int]]
    has_vectors: ClassVar[bool] = True
    max_coordinate = (1 << 11) - 1

    def begin(self) -> None:
        self._state = np.full(3, -1, np.int64)
        self._time = 0
        (height, width), name = self.sensor, self.format.replace(".", "")
        lines = f"evt {self.version}", f"format {name};height={height};width={width}", f"geometry {width}x{height}"
        self.file.write("".join(f"% {line}\n" for line in (*lines, "end")).encode())

    def append(self, events: Events) -> None:
        self.refuse_times(events, (((self._time >> self.time_bits) + MAX_WRAPS) << self.time_bits) - 1)
        wraps = (int(events.t_us[-1]) >> self.time_bits) - (self._time >> self.time_bits)
        words = np.empty(self.words_per_event * len(events) + 2 * wraps + 2, np.int64)
        width = self.sensor.width if self.has_vectors else 0
        n = self.encode(events.t_us, events.x, events.y, events.p, self._state, width, words)
        self._time = int(events.t_us[-1])
        self.file.write(words[:n].astype(self.word_type).tobytes())


class Evt2Writer(EvtWriter):
    """EVT2: one word an event."""

    format, version, time_bits, words_per_event, word_type = "EVT2", "2.0", 34, 2, "<u4"
    encode, has_vectors = staticmethod(_encode_evt2), False


class Evt21Writer(EvtWriter):
    """EVT2.1: one word for up to 32 events of a row."""

    format, version, time_bits, words_per_event, word_type = "EVT2.1", "2.1", 34, 2, "<u8"
    encode = staticmethod(_encode_evt2)


class Evt3Writer(EvtWriter):
    """EVT3, with vectors."""

    format, version, time_bits, words_per_event, word_type = "EVT3", "3.0", 24, 4, "<u2"
    max_start_us: ClassVar[int] = (MAX_WRAPS << 24) - 1  #: latest time of the first event, 19 hours
    encode = staticmethod(_encode_evt3)
