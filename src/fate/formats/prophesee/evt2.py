"""EVT2 and EVT2.1: words that carry the low six bits of time, with the rest in TIME_HIGH words.

EVT2, 32 bits: y in bits 0-10, x 11-21, time 22-27, type 28-31 (0 OFF, 1 ON, 8 TIME_HIGH with 28 bits of 64 µs).
EVT2.1, 64 bits: 32 validity bits, then the same fields one word higher; bit i is an event at x + i. The
"legacy" variant swaps the two halves.

Time semantics are OpenEB's: nothing before the first TIME_HIGH is an event; a TIME_HIGH that falls by nearly
its whole range has wrapped (2^34 µs, 4.8 hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.formats.columns import Columns, allocate_columns
from fate.formats.decoder import Decoder, OutOfBounds

OFF, ON, TIME_HIGH, TRIGGER, OTHER, CONTINUED = 0x0, 0x1, 0x8, 0xA, 0xE, 0xF
MAX_COORDINATE = (1 << 11) - 1
TIME_RANGE = 1 << 34  # µs until TIME_HIGH wraps
WRAP_SLACK = 10_000  # µs by which a wrap may fall short of the whole range
SKIPPED = ("before the first time", "triggers", "vendor words", "unknown words")


@compiled
def _count_skipped(kind: Any, counts: Any) -> None:
    if kind == TRIGGER:
        counts[1] += 1
    elif kind in (OTHER, CONTINUED):
        counts[2] += 1
    else:
        counts[3] += 1


@compiled
def _time_high(high: Any, base: Any, offset: Any) -> tuple[int, int]:
    """New time base and wrap offset for a TIME_HIGH word of ``high`` (µs), given the old ones."""
    new = high + offset
    if base - new >= TIME_RANGE - 64 - WRAP_SLACK:
        return new + TIME_RANGE, offset + TIME_RANGE
    return new, offset


@compiled
def _decode(words: Any, validity: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [n] uint32, and for EVT2.1 ``validity`` [n] uint32 (None for EVT2) → number of events.

    ``state``: time base (-1: none yet), wrap offset, then the counts of what was skipped.
    """
    base = state[0]
    offset = state[1]
    counts = state[2:]
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
            if base < 0:
                base = high
            else:
                base, offset = _time_high(high, base, offset)
        else:
            _count_skipped(kind, counts)
    state[0] = base
    state[1] = offset
    return n


@compiled
def _count_valid(validity: Any) -> int:
    """Bits set in ``validity``: room for that many events."""
    total = 0
    for i in range(validity.shape[0]):
        valid = validity[i]
        while valid:
            valid &= valid - 1
            total += 1
    return total


class Evt2Decoder(Decoder):
    """Words of an EVT2 file, without its header."""

    format = "EVT2"
    state_size = 2
    skipped_kinds = SKIPPED

    def initial_state(self) -> NDArray[np.int64]:
        state = super().initial_state()
        state[0] = -1
        return state

    def decode(self, data: bytes) -> tuple[Columns, int]:
        words = np.frombuffer(data, "<u4", len(data) // 4)
        columns = allocate_columns(len(words))
        n = _decode(words, None, self.state, *columns)
        return columns.slice(0, n), 4 * len(words)


class Evt21Decoder(Evt2Decoder):
    """Words of an EVT2.1 file, without its header. ``legacy`` files have the two halves of a word swapped."""

    format = "EVT2.1"

    def __init__(
        self,
        sensor: Sequence[int] | None = None,
        *,
        out_of_bounds: OutOfBounds = "raise",
        legacy: bool = False,
    ) -> None:
        super().__init__(sensor, out_of_bounds=out_of_bounds)
        self.legacy = legacy

    def decode(self, data: bytes) -> tuple[Columns, int]:
        halves = np.frombuffer(data, "<u4", len(data) // 8 * 2).reshape(-1, 2)
        words, validity = (halves[:, 0], halves[:, 1]) if self.legacy else (halves[:, 1], halves[:, 0])
        columns = allocate_columns(int(_count_valid(validity)))
        n = _decode(words, validity, self.state, *columns)
        return columns.slice(0, n), 8 * len(halves)
