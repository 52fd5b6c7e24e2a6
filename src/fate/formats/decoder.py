"""Decoders, and the one check that turns what they decode into trusted events.

Decoders only decode, into :class:`Columns`. Whether coordinates lie on the sensor, times go forward and polarities are
known is decided by :func:`check`, for every format alike, so that no format can forget it.

One decoder serves files and byte streams: feed it bytes in any pieces, get the events that are complete.

>>> import numpy as np
>>> from fate.formats.prophesee.dat import DatDecoder
>>> decoder = DatDecoder(sensor=(240, 304))
>>> record = np.array([[1000, (1 << 28) | (7 << 14) | 5]], "<u4").tobytes()  # t = 1000, x = 5, y = 7, ON
>>> len(decoder.feed(record[:3])), decoder.feed(record[3:]).x.tolist()
(0, [5])
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError, FormatError
from fate.events.events import MAX_SIDE, Events, Sensor
from fate.events.window import MAX_TIME_US
from fate.text import grouped, plural

OutOfBounds = Literal["raise", "drop"]
MAX_CARRY_BYTES = 4 << 20  # of an unfinished record: only text lines can be long
NO_TIME = np.iinfo(np.int64).min
FINAL: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("i8", "u2", "u2", "u1"))


class Columns(NamedTuple):
    """Decoded, not yet checked: four columns of one length, of any integer type."""

    t: NDArray[Any]
    x: NDArray[Any]
    y: NDArray[Any]
    p: NDArray[Any]

    def slice(self, first: int, last: int) -> Columns:
        """Return rows ``first`` to ``last`` (not included), as views."""
        return Columns(self.t[first:last], self.x[first:last], self.y[first:last], self.p[first:last])

    def take(self, rows: NDArray[Any]) -> Columns:
        """Return the rows of an index or of a mask, as copies."""
        return Columns(self.t[rows], self.x[rows], self.y[rows], self.p[rows])


def allocate_columns(num_events: int) -> Columns:
    """Return columns of the final types, not yet filled."""
    return Columns(*(np.empty(num_events, dtype) for dtype in FINAL))


def concatenate(pieces: list[Columns]) -> Columns:
    """Concatenate pieces in order."""
    if not pieces:
        return allocate_columns(0)
    return pieces[0] if len(pieces) == 1 else Columns(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def copy_columns(columns: Columns, out: Columns) -> None:
    """Copy all rows to ``out``, unless they were decoded there."""
    if columns.t.ctypes.data != out.t.ctypes.data:
        for column, target in zip(columns, out, strict=True):
            target[:] = column


@dataclass
class Tally:
    """The results of the check of all blocks so far, in order. Indices count decoded events from 0."""

    events: int = 0  # decoded, before anything is dropped
    on: int = 0
    x_max: int = -1
    y_max: int = -1
    t_min: int = 0
    t_max: int = 0
    last_t: int = NO_TIME
    outside: int = 0
    outside_first: tuple[int, int, int] = (-1, 0, 0)  # index, x, y
    back: int = 0
    back_first: tuple[int, int, int] = (-1, 0, 0)  # index, time before, time
    bad_polarity: int = 0
    bad_polarity_first: tuple[int, int] = (-1, 0)  # index, value
    block: tuple[int, int] = (0, 0)  # t_min, t_max of the last block checked

    def add_times(self, t_min: int, t_max: int, last_t: int) -> None:
        """Extend the span of time; call it before the events are counted."""
        is_first = self.events == self.outside
        self.t_min = t_min if is_first else min(self.t_min, t_min)
        self.t_max = t_max if is_first else max(self.t_max, t_max)
        self.last_t = last_t

    @property
    def is_clean(self) -> bool:
        """Whether no event broke a rule."""
        return not (self.outside or self.back or self.bad_polarity)

    def add_clean(self, later: Tally) -> None:
        """Add the results of later events; none of theirs breaks a rule, and their times go on from here."""
        if later.events:
            self.add_times(later.t_min, later.t_max, later.last_t)
            self.events, self.on = self.events + later.events, self.on + later.on
            self.x_max, self.y_max = max(self.x_max, later.x_max), max(self.y_max, later.y_max)


@compiled
def _extremes(column: Any) -> Any:
    low = column[0]
    high = column[0]
    for i in range(column.shape[0]):  # no branches, so that it becomes vector code
        low = min(low, column[i])
        high = max(high, column[i])
    return np.int64(low), np.int64(high)


@compiled
def _summarise(t: Any, x: Any, y: Any, p: Any) -> Any:
    """Return, of at least one event, the sum of ``p``, the steps back in time, and the extremes of x, y and p."""
    sum_p = 0
    num_back = 0
    for i in range(p.shape[0]):  # eight times faster than a comparison
        sum_p += p[i]
    for i in range(1, t.shape[0]):
        num_back += t[i] < t[i - 1]
    return sum_p, num_back, _extremes(x), _extremes(y), _extremes(p)


def check(columns: Columns, sensor: Sensor | None, tally: Tally) -> Columns:
    """Return columns of the final types without events outside ``sensor``; count in ``tally`` what breaks a rule.

    Without a sensor every coordinate that fits 16 bits passes. Times that go back and unknown polarities
    are counted, not changed: the caller decides.
    """
    tally.block = (0, -1)
    num_events = len(columns.t)
    if num_events == 0:
        return allocate_columns(0)
    if not all(c.dtype == dtype and c.flags.c_contiguous for c, dtype in zip(columns, FINAL, strict=True)):
        columns = Columns(*(np.ascontiguousarray(column, np.int64) for column in columns))  # two compiled versions do
    width, height = (sensor.width, sensor.height) if sensor else (MAX_SIDE, MAX_SIDE)
    sum_p, num_back, (x_min, x_max), (y_min, y_max), (p_min, p_max) = _summarise(*columns)
    rows: Sequence[int] | NDArray[np.intp] = range(num_events)  # of the events that are kept
    if x_min < 0 or y_min < 0 or x_max >= width or y_max >= height:
        _, x, y, _ = columns
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        rows = np.flatnonzero(inside)
        if not tally.outside:
            first = int(np.argmin(inside))
            tally.outside_first = (tally.events + first, int(x[first]), int(y[first]))
        columns = columns.take(rows)
        if len(rows):
            sum_p, num_back, (_, x_max), (_, y_max), (p_min, p_max) = _summarise(*columns)
    if len(rows):
        t, p = columns.t, columns.p
        tally.block = (int(t[0]), int(t[-1]))
        if num_back or t[0] < tally.last_t:
            before = np.append(tally.last_t, t[:-1])
            back = np.flatnonzero(t < before)
            if not tally.back:
                tally.back_first = (tally.events + int(rows[back[0]]), int(before[back[0]]), int(t[back[0]]))
            tally.back += len(back)
            tally.block = (int(t.min()), int(t.max()))
        tally.add_times(*tally.block, int(t[-1]))
        if p_max > 1 or p_min < -1:
            bad = np.flatnonzero((p < -1) | (p > 1))
            if not tally.bad_polarity:
                tally.bad_polarity_first = (tally.events + int(rows[bad[0]]), int(p[bad[0]]))
            tally.bad_polarity += len(bad)
        is_binary = p_min >= 0 and p_max <= 1
        tally.on += sum_p if is_binary else int(np.count_nonzero(p == 1))
        tally.x_max, tally.y_max = max(tally.x_max, x_max), max(tally.y_max, y_max)
    tally.events += num_events
    tally.outside += num_events - len(rows)
    if columns.p.dtype != np.uint8:
        columns = columns._replace(p=columns.p > 0)
    return Columns(*(column.astype(dtype, copy=False) for column, dtype in zip(columns, FINAL, strict=True)))


@dataclass(eq=False)
class Decoder(ABC):
    """The state machine of one byte format.

    Everything it remembers between two calls is in ``state`` (int64), so that a copy of ``state`` and a
    position in the file are a bookmark: the values that ``start`` gives at the beginning, then how many words or
    records of each of the ``skipped_kinds`` were skipped.

    Args:
        sensor: ``(height, width)`` in pixels.
        out_of_bounds: ``"raise"``, or ``"drop"`` and count events outside the sensor.
    """

    format: ClassVar[str]
    start: ClassVar[tuple[int, ...]] = ()
    skipped_kinds: ClassVar[tuple[str, ...]] = ()

    sensor: Sensor | None = None
    _: KW_ONLY
    out_of_bounds: OutOfBounds = "raise"

    def __post_init__(self) -> None:
        if self.out_of_bounds not in ("raise", "drop"):
            raise FateError(f"out_of_bounds={self.out_of_bounds!r} was given; expected 'raise' or 'drop'")
        self.sensor = None if self.sensor is None else Sensor.of(self.sensor)
        self._reset()

    def _reset(self) -> None:
        self.tally = Tally()
        self._carry = b""
        self.state = self.initial_state()

    def initial_state(self) -> NDArray[np.int64]:
        """Return the state at the start of a stream."""
        return np.array([*self.start, *(0 for _ in self.skipped_kinds)], np.int64)

    @abstractmethod
    def decode(self, data: bytes) -> tuple[Columns, int]:
        """Decode the whole records at the start of ``data``; returns their events and the bytes used."""

    def fresh(self) -> Self:
        """Return a decoder with the same settings at the start of a stream."""
        decoder = copy.copy(self)
        decoder._reset()
        return decoder

    def skipped(self) -> dict[str, int]:
        """Return how many words of each kind were skipped since the start."""
        counts = self.state[len(self.start) :]
        return {kind: int(n) for kind, n in zip(self.skipped_kinds, counts, strict=True) if n}

    def missing(self) -> str:
        """Name the part of the last record that has not come yet, such as ``"12 events"``; empty if it is complete."""
        return ""

    def feed(self, data: bytes) -> Events:
        """Return the events that ``data`` completes; it may end in the middle of a record.

        Events outside the sensor and times that go back are refused with their position, counted from the
        start of the stream; ``out_of_bounds="drop"`` drops and counts the former (``decoder.tally``). What was fed
        with a refused event is lost; the next call goes on after it.
        """
        if self.sensor is None:
            raise FateError(
                f"a {self.format} stream has no header; give the sensor: {type(self).__name__}(sensor=(height, width))"
            )
        stream = self._carry + data
        columns, used = self.decode(stream)
        self._carry = stream[used:]
        if len(self._carry) > MAX_CARRY_BYTES:
            self._carry = b""
            raise FormatError(
                f"stream: no {self.format} record ends within {MAX_CARRY_BYTES} bytes; is it {self.format}?"
            )
        tally = self.tally
        outside, back, bad_polarity = tally.outside, tally.back, tally.bad_polarity
        columns = check(columns, self.sensor, tally)
        if tally.outside > outside and self.out_of_bounds == "raise":
            raise FormatError(describe_outside("stream", tally, self.sensor))
        if tally.back > back:
            raise FormatError(describe_back("stream", tally))
        if tally.bad_polarity > bad_polarity or max(map(abs, tally.block)) >= MAX_TIME_US:
            raise FormatError(describe_impossible("stream", tally))
        return Events.trusted(*columns, self.sensor)

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished record, waiting for the rest."""
        return len(self._carry)


class WordDecoder(Decoder):
    """A decoder of words of one size, whose events can be counted before they are decoded.

    Several threads decode one file, each straight into its part of the columns
    (:meth:`~fate.formats.source.ByteSource.runs`).
    """

    word_bytes: ClassVar[int]
    is_plain: ClassVar[bool] = False  # whether each word is one event, and any block can be decoded from ``start``
    look_back_bytes: ClassVar[int] = 1 << 16  # of the stream that are decoded to guess the state after them

    @abstractmethod
    def most_events(self, data: bytes | memoryview) -> int:
        """Return a number that the events in ``data`` do not exceed. It is exact for a stream without faults."""

    @abstractmethod
    def decode_into(self, data: bytes | memoryview, out: Columns) -> int:
        """Decode whole words into the start of ``out``; return the number of events, or -1 if there is no room."""

    @abstractmethod
    def time_shift(self, difference: NDArray[np.int64]) -> int | None:
        """µs by which times differ if decoding begins in a guessed state; None if other values differ too.

        A guessed state is that after the last ``look_back_bytes``, decoded as if the stream began with them. The words
        of these formats soon repeat everything but the wraps of their counter, so that threads can decode blocks before
        those in front of them.

        Args:
            difference: the state that was found to be right, less the guessed one.
        """

    def decode_blocks(
        self, data: memoryview, block_bytes: int, out: Columns
    ) -> tuple[Sequence[NDArray[np.int64]], list[int]] | None:
        """Decode blocks of whole words into ``out``.

        Returns the state at the start of each block and [blocks + 1] the number of events before it, and of all blocks;
        None if there is no room.
        """
        states, ends = [], [0]
        for first in range(0, len(data), block_bytes):
            states.append(self.state.copy())
            found = self.decode_into(data[first : first + block_bytes], out.slice(ends[-1], len(out.t)))
            if found < 0:
                return None
            ends.append(ends[-1] + found)
        return states, ends

    def decode(self, data: bytes | memoryview) -> tuple[Columns, int]:
        columns = allocate_columns(self.most_events(data))
        num_events = self.decode_into(data, columns)
        return columns.slice(0, num_events), len(data) - len(data) % self.word_bytes


# Messages about what the check found. For a file they name the option that helps; streams have no such options.


def describe_outside(name: object, tally: Tally, sensor: Sensor) -> str:
    index, x, y = tally.outside_first
    where = f"x = {grouped(x)}" if not 0 <= x < sensor.width else f"y = {grouped(y)}"
    return (
        f"{name}: {grouped(tally.outside)} of {plural(tally.events, 'event')} outside {sensor}"
        f' (first: index {grouped(index)}, {where}); pass out_of_bounds="drop" to skip them'
    )


def describe_back(name: object, tally: Tally) -> str:
    index, before, after = tally.back_first
    help_ = 'pass unsorted="sort" to order them by time' if name != "stream" else "the events fed were dropped"
    return (
        f"{name}: time goes back {plural(tally.back, 'time')} in {plural(tally.events, 'event')} (first: index"
        f" {grouped(index)}, from {before} to {after} µs); {help_}"
    )


def describe_impossible(name: object, tally: Tally) -> str:
    """What no option repairs: unknown polarities and times beyond ± 2^62 µs; empty if there are none."""
    if tally.bad_polarity:
        index, value = tally.bad_polarity_first
        return (
            f"{name}: {plural(tally.bad_polarity, 'event')} of a polarity that is none of 0, 1, -1 (first: index"
            f" {grouped(index)}, {value}); check the order of the columns"
        )
    if max(abs(tally.t_min), abs(tally.t_max)) >= MAX_TIME_US:
        times = f"times from {tally.t_min} to {tally.t_max} µs, beyond ± 2^62"
        return f"{name}: {times}; check the unit and the order of columns"
    return ""
