"""EVT3: 16-bit words that change one thing at a time (time, row, column), with vectors of events.

Word types (bits 12-15): 0 ADDR_Y, 2 ADDR_X (one event: x in bits 0-10, polarity in 11), 3 VECT_BASE_X,
4 VECT_12 and 5 VECT_8 (a bit per event from the base on, which then moves on by 12 or 8), 6 TIME_LOW (12 bits),
8 TIME_HIGH (12 bits of 4 096 µs), 0xA trigger; 7, 0xE, 0xF vendor data. All others are skipped and counted.

Time semantics are OpenEB's: nothing before the first TIME_HIGH is an event; time is (wraps, high, last low);
low returns to 0 when TIME_HIGH changes, and stays when it is only repeated; a TIME_HIGH lower by half its range
or more has wrapped (every 2^24 µs, 16.8 s).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.formats.columns import Columns, allocate_columns
from fate.formats.decoder import Decoder

ADDR_Y, FOREIGN_Y, ADDR_X, VECT_BASE_X, VECT_12, VECT_8 = 0x0, 0x1, 0x2, 0x3, 0x4, 0x5
TIME_LOW, CONTINUED_4, TIME_HIGH, TRIGGER, OTHERS, CONTINUED_12 = 0x6, 0x7, 0x8, 0xA, 0xE, 0xF
MAX_COORDINATE = (1 << 11) - 1
HALF_TIME_HIGH = 1 << 11
NO_HIGH = -1
NO_ROW = -1
NO_BASE = -1


@compiled
def _count_skipped(kind: Any, counts: Any) -> None:
    if kind == TRIGGER:
        counts[2] += 1
    elif kind in (FOREIGN_Y, CONTINUED_4, OTHERS, CONTINUED_12):
        counts[3] += 1
    else:
        counts[4] += 1


@compiled
def _decode(words: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [n] uint16 → number of events; the columns have room for 12 events a word.

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
    n = 0
    i = 0
    if high == NO_HIGH:
        while i < words.shape[0] and words[i] >> 12 != TIME_HIGH:
            kind = words[i] >> 12
            if kind in (ADDR_X, VECT_12, VECT_8):
                counts[0] += 1
            elif kind not in (ADDR_Y, VECT_BASE_X, TIME_LOW):
                _count_skipped(kind, counts)
            i += 1
        if i < words.shape[0]:
            high = np.int64(words[i] & 0xFFF)
            low = 0
            i += 1
    now = (wraps << 24) | (high << 12) | low
    for j in range(i, words.shape[0]):
        word = np.int64(words[j])
        kind = word >> 12
        if kind == ADDR_X:
            if row < 0:
                counts[1] += 1
                continue
            t[n] = now
            x[n] = word & 0x7FF
            y[n] = row
            p[n] = (word >> 11) & 1
            n += 1
        elif kind == VECT_12 or kind == VECT_8:
            if row < 0 or base < 0:
                counts[1] += 1
                continue
            valid = word & 0xFFF if kind == VECT_12 else word & 0xFF
            column = base
            while valid:
                if valid & 1:
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
            row = word & 0x7FF
        elif kind == VECT_BASE_X:
            base = word & 0x7FF
            polarity = (word >> 11) & 1
        elif kind == TIME_HIGH:
            new = word & 0xFFF
            if high >= HALF_TIME_HIGH + new:
                wraps += 1
            if new != high:
                low = 0
            high = new
            now = (wraps << 24) | (high << 12) | low
        else:
            if kind == FOREIGN_Y:  # rows of another event type: their columns are not ours
                row = NO_ROW
            _count_skipped(kind, counts)
    state[0] = high
    state[1] = wraps
    state[2] = low
    state[3] = row
    state[4] = base
    state[5] = polarity
    return n


@compiled
def _room_for(words: Any) -> int:
    """At most so many events are in ``words``: one for each ADDR_X, 12 for each vector word."""
    room = 0
    for i in range(words.shape[0]):
        kind = words[i] >> 12
        room += (kind == ADDR_X) + 12 * (kind == VECT_12) + 8 * (kind == VECT_8)
    return room


class Evt3Decoder(Decoder):
    """Words of an EVT3 file, without its header."""

    format = "EVT3"
    state_size = 6
    skipped_kinds = ("before the first time", "without a row or base", "triggers", "vendor words", "unknown words")

    def initial_state(self) -> NDArray[np.int64]:
        state = super().initial_state()
        state[0], state[3], state[4] = NO_HIGH, NO_ROW, NO_BASE
        return state

    def decode(self, data: bytes) -> tuple[Columns, int]:
        words = np.frombuffer(data, "<u2", len(data) // 2)
        room = int(_room_for(words))
        columns = allocate_columns(room)
        n = _decode(words, self.state, *columns)
        return columns.slice(0, n), 2 * len(words)
