"""Prophesee RAW files: a text header, then words of EVT2, EVT2.1 or EVT3 (see ``evt2.py`` and ``evt3.py``).

The writers write what a sensor would: a TIME_HIGH whenever the high part of the time changes, vectors where several
events share time, row and polarity. A file's times start below one wrap of its TIME_HIGH for any reader; later
times are kept exactly by spelling out each wrap as TIME_HIGH "last value", "0".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FormatError
from fate.events.events import Events, Sensor
from fate.formats.decoder import Decoder
from fate.formats.prophesee.evt2 import MAX_COORDINATE, TIME_HIGH, Evt2Decoder, Evt21Decoder
from fate.formats.prophesee.evt3 import ADDR_X, ADDR_Y, TIME_LOW, VECT_8, VECT_12, VECT_BASE_X, Evt3Decoder
from fate.formats.prophesee.header import MAX_HEADER_BYTES, Header, parse_header
from fate.formats.saving import FileWriter, check_fits
from fate.formats.source import ByteSource, Options, open_bytes

FIRST_LITTLE_SYSTEM = 0x37  # boards before it wrote EVT2.1 with the halves of a word swapped


def open_raw(path: Path, options: Options) -> ByteSource:
    """A RAW file; ``options.format`` (evt2, evt21, evt3) stands in for a header that does not say."""
    with open_bytes(path) as file:
        header = parse_header(file.read(0, MAX_HEADER_BYTES))
        decoder = raw_decoder(path, header, options.format)
        sensor = options.sensor or header.sensor(path)
        return ByteSource(path, file, decoder, header.num_bytes, sensor, header.fields)


def raw_decoder(path: Path, header: Header, asked: str | None) -> Decoder:
    """The decoder for the format that the header names, or that was asked for."""
    if "index_version" in header.fields or "bookmark_period_us" in header.fields:
        raise FormatError(
            f"{path}: is the index another program keeps beside a recording, not a recording;"
            " give the .raw file it belongs to"
        )
    name = asked or header.event_format()
    if name == "evt2":
        return Evt2Decoder()
    if name == "evt3":
        return Evt3Decoder()
    if name == "evt21":
        order = header.format_options().get("endianness") or header.fields.get("endianness")
        if order is None and 0 < header.prophesee_system() < FIRST_LITTLE_SYSTEM:
            order = "legacy"
        return Evt21Decoder(legacy=order is not None and order.lower() == "legacy")
    given = f"names the format {name!r}" if name else "does not name its event format"
    raise FormatError(
        f'{path}: the header {given}; evt2, evt21 and evt3 are known; pass format="evt3" if you know which it is'
    )


# ---- writing ------------------------------------------------------------------------------------------------

MAX_WRAPS = 4096  # that are spelt out; a file that starts later is refused
VECTOR = 32  # columns covered by one EVT2.1 word, or by VECT_12 + VECT_12 + VECT_8
VECTOR_FROM = 5  # events from which an EVT3 vector (four words) is shorter than single events


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
    """Events from ``i`` on with one time, row, polarity and 32-column cell, in increasing x."""
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
def _encode_evt2(t: Any, x: Any, y: Any, p: Any, state: Any, vectors: bool, out: Any) -> int:
    """``out`` int64 words without the low half of EVT2.1 → number of words; ``state``: last TIME_HIGH, -1 for none."""
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


class EvtWriter(FileWriter):
    """What the three have in common: the header, the range of times, the room for words."""

    version: ClassVar[str]
    time_bits: ClassVar[int]  # of one wrap
    words_per_event: ClassVar[int]  # at most, wraps aside
    word_type: ClassVar[str]

    def begin(self, sensor: Sensor) -> None:
        check_fits(self.path, sensor, MAX_COORDINATE, self.format)
        self._state = np.full(3, -1, np.int64)
        self._time = 0
        height, width, name = sensor.height, sensor.width, self.format.replace(".", "")
        lines = (
            f"evt {self.version}",
            f"format {name};height={height};width={width}",
            f"geometry {width}x{height}",
            "end",
        )
        self.file.write("".join(f"% {line}\n" for line in lines).encode())

    def append(self, events: Events) -> None:
        limit = MAX_WRAPS << self.time_bits
        if events.t_us[0] < 0 or events.t_us[-1] >= limit:
            self.refuse_times(events, 0, limit - 1)
        wraps = (int(events.t_us[-1]) >> self.time_bits) - (self._time >> self.time_bits)
        room = np.empty(self.words_per_event * len(events) + 2 * wraps + 2, np.int64)
        n = self.encode(events, room)
        self._time = int(events.t_us[-1])
        self.file.write(room[:n].astype(self.word_type).tobytes())

    def encode(self, events: Events, out: NDArray[np.int64]) -> int:
        """Fill ``out`` with words; returns how many."""
        raise TypeError("EvtWriter is the common part of three writers; use one of them")


class Evt2Writer(EvtWriter):
    """EVT2: one word an event."""

    format, version, time_bits, words_per_event, word_type = "EVT2", "2.0", 34, 2, "<u4"

    def encode(self, events: Events, out: NDArray[np.int64]) -> int:
        return int(_encode_evt2(events.t_us, events.x, events.y, events.p, self._state, False, out))


class Evt21Writer(EvtWriter):
    """EVT2.1: one word for up to 32 events of a row."""

    format, version, time_bits, words_per_event, word_type = "EVT2.1", "2.1", 34, 2, "<u8"

    def encode(self, events: Events, out: NDArray[np.int64]) -> int:
        return int(_encode_evt2(events.t_us, events.x, events.y, events.p, self._state, True, out))


class Evt3Writer(EvtWriter):
    """EVT3, with vectors."""

    format, version, time_bits, words_per_event, word_type = "EVT3", "3.0", 24, 4, "<u2"

    def encode(self, events: Events, out: NDArray[np.int64]) -> int:
        return int(_encode_evt3(events.t_us, events.x, events.y, events.p, self._state, self.sensor.width, out))
