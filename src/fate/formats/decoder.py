"""One decoder for files and for byte streams: feed it bytes in any pieces, get the events that are complete.

>>> import numpy as np
>>> from fate.formats.dat import DatDecoder
>>> decoder = DatDecoder(sensor=(240, 304))
>>> record = np.array([[1000, (1 << 28) | (7 << 14) | 5]], "<u4").tobytes()  # t = 1000, x = 5, y = 7, ON
>>> len(decoder.feed(record[:3])), decoder.feed(record[3:]).x.tolist()
(0, [5])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.formats.columns import Columns, Tally, check

OutOfBounds = Literal["raise", "drop"]


class Decoder(ABC):
    """The state machine of one byte format.

    Everything it remembers between two calls is in ``state`` (int64), so that a copy of ``state`` and a
    position in the file are a bookmark. The last ``len(skipped_kinds)`` entries count what was passed over.
    """

    format: str
    state_size: int
    skipped_kinds: tuple[str, ...] = ()
    record_bytes: int = 0  # set where each record of so many bytes is one event that needs none before it…
    last_plain_us: int = 0  # …as long as times stay at or below this

    def __init__(self, sensor: Sequence[int] | None = None, *, out_of_bounds: OutOfBounds = "raise") -> None:
        self.sensor = None if sensor is None else Sensor.of(sensor)
        self.out_of_bounds = out_of_bounds
        self.tally = Tally()
        self._carry = b""
        self.state = self.initial_state()

    def initial_state(self) -> NDArray[np.int64]:
        """The state at the start of a stream."""
        return np.zeros(self.state_size + len(self.skipped_kinds), np.int64)

    @abstractmethod
    def decode(self, data: bytes) -> tuple[Columns, int]:
        """Decode the whole records at the start of ``data``; returns their events and the bytes used."""

    def fresh(self) -> Self:
        """A decoder of the same kind and settings at the start of a stream."""
        return type(self)(self.sensor, out_of_bounds=self.out_of_bounds)

    def skipped(self) -> dict[str, int]:
        """How many words of each kind were passed over since the start."""
        counts = self.state[self.state_size :]
        return {kind: int(n) for kind, n in zip(self.skipped_kinds, counts, strict=True) if n}

    def feed(self, data: bytes) -> Events:
        """Events completed by ``data``, which may end in the middle of a record.

        Events outside the sensor and times that go back are refused with their position, counted from the
        start of the stream; ``out_of_bounds="drop"`` drops and counts the former (``decoder.tally``).
        """
        if self.sensor is None:
            raise FateError(
                f"a {self.format} stream has no header; give the sensor: {type(self).__name__}(sensor=(height, width))"
            )
        stream = self._carry + data
        columns, used = self.decode(stream)
        self._carry = stream[used:]
        columns = check(columns, self.sensor, self.tally)
        if self.tally.outside and self.out_of_bounds == "raise":
            raise FormatError(describe_outside("stream", self.tally, self.sensor))
        if self.tally.back:
            raise FormatError(describe_back("stream", self.tally))
        return Events.trusted(*columns, self.sensor)

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished record, waiting for the rest."""
        return len(self._carry)


def describe_outside(name: object, tally: Tally, sensor: Sensor) -> str:
    """The sentence for coordinates outside the sensor."""
    index, x, y = tally.outside_first
    where = f"x = {spaced(x)}" if not 0 <= x < sensor.width else f"y = {spaced(y)}"
    return (
        f"{name}: {spaced(tally.outside)} of {spaced(tally.events)} events outside {sensor}"
        f' (first: index {spaced(index)}, {where}); pass --drop-out-of-bounds (out_of_bounds="drop") to skip them'
    )


def describe_back(name: object, tally: Tally) -> str:
    """The sentence for times that go back."""
    index, before, after = tally.back_first
    return (
        f"{name}: time goes back {spaced(tally.back)} times in {spaced(tally.events)} events (first: index"
        f' {spaced(index)}, from {before} to {after} µs); pass --sort (unsorted="sort") to order them by time'
    )


def spaced(number: int) -> str:
    """1204331 as people read it: 1 204 331."""
    return f"{number:,}".replace(",", " ")
