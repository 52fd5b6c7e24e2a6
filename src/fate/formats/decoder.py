"""One decoder for files and for byte streams: feed it bytes in any pieces, get the events that are complete.

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
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.events.window import MAX_TIME_US
from fate.formats.columns import Columns, Tally, check
from fate.text import grouped, plural

OutOfBounds = Literal["raise", "drop"]
MAX_CARRY_BYTES = 4 << 20  # of an unfinished record: only text lines can be long


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
    record_bytes: ClassVar[int] = 0  # set where each record of so many bytes is one event that needs none before it…
    last_plain_us: ClassVar[int] = 0  # …as long as times stay at or below this

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
        """The state at the start of a stream."""
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
        """What the last record announces and has not come yet, such as ``"12 events"``; empty if nothing is missing."""
        return ""

    def feed(self, data: bytes) -> Events:
        """Events completed by ``data``, which may end in the middle of a record.

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
