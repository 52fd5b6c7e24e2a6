"""The interface of a format: its events in blocks, each of which can be decoded on its own.

A :class:`Source` is one open file. A first pass, :meth:`Source.scan`, walks the file once and leaves a
bookmark before every block (where it starts, and the decoder's state there); afterwards
:meth:`Source.decode` gives any run of blocks without touching the rest of the file. Checking, policies,
seeking and caching are written once, in ``recording.py``, on top of these two methods.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError
from fate.events.events import MAX_SIDE, Sensor
from fate.formats.columns import Columns
from fate.formats.decoder import Decoder, OutOfBounds

CHOICES: dict[str, tuple[str | None, ...]] = {
    "out_of_bounds": ("raise", "drop"),
    "unsorted": ("raise", "sort"),
    "time_unit": (None, "s", "ms", "us", "ns"),
}
BLOCK_BYTES = 64 * 1024  # of file per block: about 10 000 events, decoded in a fraction of a millisecond


@dataclass(frozen=True)
class Options:
    """What the user says about a file and how to treat its faults, checked. See :func:`fate.open_recording`."""

    sensor: Sensor | None = None
    format: str | None = None
    columns: str | None = None
    time_unit: str | None = None
    strict: bool = False
    out_of_bounds: OutOfBounds = "raise"
    unsorted: Literal["raise", "sort"] = "raise"
    cache: bool = True

    def __post_init__(self) -> None:
        if self.sensor is not None:
            object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        for name, known in CHOICES.items():
            given = getattr(self, name)
            if given not in known:
                expected = ", ".join(repr(choice) for choice in known if choice is not None)
                raise FateError(f"{name}={given!r} was given; expected one of {expected}")


class Bookmark(NamedTuple):
    """The start of a block: a position the source understands, and the decoder's state there."""

    position: int
    state: NDArray[np.int64] = np.zeros(0, np.int64)


class EvenBlocks(NamedTuple):
    """Records of one size that can be decoded without those before: where blocks start is known without a scan.

    Args:
        positions: [blocks + 1] int64, starts of the blocks and the end.
        rows: events in every block but the last.
        num_events: in all.
        state: the decoder's state at every start.
        last_us: it only holds while times stay at or below this (a counter of fewer bits must not have wrapped).
    """

    positions: NDArray[np.int64]
    rows: int
    num_events: int
    state: NDArray[np.int64]
    last_us: int


class Tail(NamedTuple):
    """The bytes at the end that are not a whole record: their number and position.

    ``missing`` says what the header announces beyond them, such as "12 rows"; it is empty if nothing is missing.
    """

    num_bytes: int
    position: int
    missing: str = ""


class Source(ABC):
    """One open file. Subclasses set the attributes in ``__init__`` and never change them afterwards."""

    format: str  # as shown to users: "EVT3", "DAT"
    path: Path
    size: int  # bytes
    sensor: Sensor | None = None  # None if the file does not give it
    notes: dict[str, str]  # what else the header says, for `fate info`
    thread_safe: bool = False  # whether decode may run in several threads at once

    @abstractmethod
    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        """Every block in file order, each with the bookmark of its start."""

    @abstractmethod
    def decode(self, start: Bookmark, end: int) -> Columns:
        """The events of the blocks from ``start`` up to position ``end`` (of a later bookmark, or of the end)."""

    @abstractmethod
    def end(self) -> int:
        """The position after the last block, known once :meth:`scan` has run through."""

    def even_blocks(self) -> EvenBlocks | None:
        """Return the blocks if they are known without a scan, else None."""
        return None

    def skipped(self) -> dict[str, int]:
        """After a scan: how many words or records of each kind were skipped."""
        return {}

    def tail(self) -> Tail:
        """After a scan: bytes at the end that are not a whole record."""
        return Tail(0, self.size)

    def bytes_consumed(self) -> int:
        """After a scan: bytes of the file that were understood, header included."""
        return self.size - self.tail().num_bytes

    def close(self) -> None:  # noqa: B027  (most sources hold nothing but a file)
        """Close the file."""


class ByteFile:
    """A file read by position, which notices at the price of one ``fstat`` when the file is written to.

    Where ``can_grow`` is true, a file that becomes longer is accepted: recorders append records, and what was there at
    opening is still there. It is false for formats whose header or table of contents gives the number of events (HDF5,
    NPY, NPZ), which become longer only by being rewritten. After any other change, events read before and after it do
    not belong together.

    The file is not memory-mapped: one that is cut short while it is mapped kills the process, and mapped pages count
    towards its memory.
    """

    def __init__(self, path: Path, file: BinaryIO | None = None, *, can_grow: bool = True) -> None:
        """Open ``path``, or take an unbuffered ``file`` that is already open; errors name ``path``."""
        self.path, self.can_grow = path, can_grow
        self._file = file or cast(BinaryIO, open(path, "rb", buffering=0))  # noqa: SIM115  (closed by close)
        self._lock = Lock()  # several threads may read, and the file has one position
        self._seen = self._state()
        self.size = self._seen[0]

    def check_unchanged(self) -> None:
        """Raise if the file was rewritten or cut since it was opened."""
        if self._state() == self._seen:
            return
        with self._lock:  # another thread may have seen it grow further in between
            state = self._state()
            grown = self.can_grow and state[0] > self._seen[0]
            if state != self._seen and not grown:
                raise FormatError(
                    f"{self.path}: changed while it was open (it was rewritten, and has {state[0]} bytes);"
                    " open it again when it is complete"
                )
            self._seen = state

    def _state(self) -> tuple[int, int]:
        """Return the size in bytes and the time of modification in ns."""
        state = os.fstat(self._file.fileno())
        return state.st_size, state.st_mtime_ns

    def read(self, position: int, num_bytes: int) -> bytes:
        """Up to ``num_bytes`` from ``position``; fewer only at the end of the file. A rewritten file is refused."""
        num_bytes = max(0, min(num_bytes, self.size - position))
        data = os.pread(self._file.fileno(), num_bytes, position) if hasattr(os, "pread") else b""
        if len(data) < num_bytes:
            data = self._read_rest(position, num_bytes, data)
        self.check_unchanged()  # after reading: what was read is from before any change
        return data

    def _read_rest(self, position: int, num_bytes: int, data: bytes) -> bytes:
        """The kernel may hand out less than asked (signals, 2 GiB limits): go on until nothing comes."""
        with self._lock:
            while len(data) < num_bytes:
                self._file.seek(position + len(data))
                more = self._file.read(num_bytes - len(data))
                if not more:
                    raise FormatError(
                        f"{self.path}: ends at byte {position + len(data)}, but had {self.size} bytes when it was"
                        " opened; it was cut while being read, open it again"
                    )
                data += more
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def open_bytes(path: Path, *, can_grow: bool = True) -> Iterator[ByteFile]:
    """Open a :class:`ByteFile` that is closed only if the body of the ``with`` statement fails."""
    file = ByteFile(path, can_grow=can_grow)
    try:
        yield file
    except BaseException:
        file.close()
        raise


@contextmanager
def refuse_damage(path: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the ``errors`` that a package raises on damaged files into one :class:`FormatError`."""
    try:
        yield
    except FateError:
        raise
    except errors as error:
        reason = str(error).strip("'\"").splitlines() or [type(error).__name__]
        raise FormatError(
            f"{path}: cannot be read as {kind} ({reason[0][:200]}); it is damaged, or was not written or copied to"
            " its end"
        ) from error


def sensor_of_sides(path: Path, height: int | str, width: int | str) -> Sensor:
    """Return the sensor of the size that a file gives, as numbers or text; refuse what is not a number of pixels."""
    sides = [str(side).strip() for side in (height, width)]
    height_px, width_px = (int(side) if side.isdecimal() and len(side) < 10 else 0 for side in sides)
    if not (0 < height_px <= MAX_SIDE and 0 < width_px <= MAX_SIDE):
        raise FormatError(
            f"{path}: gives a sensor of height {height!r}, width {width!r}; expected 1 to {MAX_SIDE} pixels; pass"
            " sensor=(height, width) to override it"
        )
    return Sensor(height_px, width_px)


class ByteSource(Source):
    """A file that is a header and then a stream of records: the decoder does the work."""

    thread_safe = True

    def __init__(
        self,
        path: Path,
        file: ByteFile,
        decoder: Decoder,
        data_start: int,
        sensor: Sensor | None,
        notes: dict[str, str] | None = None,
    ) -> None:
        self.format = decoder.format
        self.path, self.size, self.sensor, self.notes = path, file.size, sensor, notes or {}
        self._file, self._decoder, self._data_start = file, decoder, data_start
        self._end = data_start
        self._skipped: dict[str, int] = {}
        self._missing = ""

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        decoder = self._decoder.fresh()
        position, want = self._data_start, BLOCK_BYTES
        while position < self.size:
            data = self._file.read(position, want)
            start = Bookmark(position, decoder.state.copy())
            columns, used = decoder.decode(data)
            if used == 0:
                if position + len(data) >= self.size:
                    break  # what is left is no whole record
                want *= 2  # one record longer than a block: only text lines can be
                if want > 64 * BLOCK_BYTES:
                    raise FormatError(
                        f"{self.path}: no {self.format} record ends within {want} bytes of byte {position};"
                        " the file is damaged or of another format"
                    )
                continue
            want = BLOCK_BYTES
            position += used
            yield start, columns
        self._end = position
        self._skipped = decoder.skipped()
        self._missing = decoder.missing()

    def even_blocks(self) -> EvenBlocks | None:
        size = self._decoder.record_bytes
        if not size:
            return None
        rows, total = BLOCK_BYTES // size, (self.size - self._data_start) // size
        starts = self._data_start + np.arange(0, total, rows, dtype=np.int64) * size
        self._end = self._data_start + total * size
        positions = np.append(starts, self._end)
        return EvenBlocks(positions, rows, total, self._decoder.initial_state(), self._decoder.last_plain_us)

    def decode(self, start: Bookmark, end: int) -> Columns:
        decoder = self._decoder.fresh()
        decoder.state[:] = start.state
        return decoder.decode(self._file.read(start.position, end - start.position))[0]

    def end(self) -> int:
        return self._end

    def skipped(self) -> dict[str, int]:
        return self._skipped

    def tail(self) -> Tail:
        return Tail(self.size - self._end, self._end, self._missing)

    def close(self) -> None:
        self._file.close()
