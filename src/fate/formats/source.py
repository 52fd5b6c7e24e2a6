"""The interface of a format: its events in blocks, each of which can be decoded on its own.

A :class:`Source` is one open file. A first pass, :meth:`Source.scan`, walks the file once and leaves a
bookmark before every block (where it starts, and the decoder's state there); afterwards
:meth:`Source.decode` gives any run of blocks without touching the rest of the file. Checking, policies,
seeking and caching are written once, in ``recording.py``, on top of these two methods.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError
from fate.events.events import MAX_SIDE, Sensor
from fate.formats.decoder import Columns, Decoder, OutOfBounds

CHOICES: dict[str, tuple[str | None, ...]] = {
    "out_of_bounds": ("raise", "drop"),
    "unsorted": ("raise", "sort"),
    "time_unit": (None, "s", "ms", "us", "ns"),
}
BLOCK_BYTES = 64 * 1024  # of file per block: about 10 000 events, decoded in a fraction of a millisecond


THREADS = 2  # that decode
RUN_BLOCKS = 16  # decoded at a time by one thread
RUNS_AHEAD = 4  # decoded before they are asked for


@dataclass(frozen=True)
class Options:
    """The checked options of :func:`fate.open_recording`: facts about the file, and how to treat its faults."""

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
    """Blocks of records of one size that can be decoded without the records before: no scan has to find them."""

    positions: NDArray[np.int64]  # [blocks + 1] starts of the blocks, and the end
    rows: int  # events in every block but the last
    num_events: int  # events in all blocks
    state: NDArray[np.int64]  # the decoder's state at every start
    last_us: int  # valid only if no time is later: a counter of fewer bits must not have wrapped


class Tail(NamedTuple):
    """The end of a file that is not a whole record."""

    num_bytes: int
    position: int
    missing: str = ""  # what the header announces beyond these bytes, such as "12 rows"; empty if nothing is missing


class Found(NamedTuple):
    """The result of a whole scan."""

    end: int  # position after the last block
    skipped: dict[str, int]  # number of words or records of each kind
    tail: Tail


class Run(NamedTuple):
    """Adjacent blocks, decoded together."""

    guessed: NDArray[np.int64]  # the decoder's state at their start
    blocks: list[tuple[Bookmark, Columns]]
    end: Bookmark  # after the last block

    def shifted(self, difference: NDArray[np.int64], shift_us: int) -> Run:
        """The same blocks, decoded from a state with this ``difference``, which adds ``shift_us`` to all times."""
        blocks = []
        for (position, state), columns in self.blocks:
            if shift_us:
                columns.t[:] += shift_us
            blocks.append((Bookmark(position, state + difference), columns))
        return Run(self.guessed + difference, blocks, Bookmark(self.end.position, self.end.state + difference))


class Source(ABC):
    """One open file. Subclasses set the attributes in ``__init__``; ``found`` is set when a scan has run through."""

    format: str  # as shown to users: "EVT3", "DAT"
    path: Path
    size: int  # bytes
    sensor: Sensor | None = None  # None if the file does not give it
    notes: dict[str, str]  # further content of the header, for `fate info`
    thread_safe: bool = False  # whether decode may run in several threads at once
    found: Found
    _file: ByteFile

    @abstractmethod
    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        """Every block in file order, each with the bookmark of its start."""

    @abstractmethod
    def decode(self, start: Bookmark, end: int) -> Columns:
        """The events of the blocks from ``start`` up to position ``end`` (of a later bookmark, or of the end)."""

    def even_blocks(self) -> EvenBlocks | None:
        """Return the blocks if they are known without a scan, else None."""
        return None

    def most_events(self) -> int | None:
        """Return a number that the events of the file do not exceed, if that takes much less time than a scan."""
        return None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
        self._lock = Lock()
        self._seen = self._state()
        self.size = self._seen[0]

    def check_unchanged(self) -> None:
        """Raise if the file was rewritten or cut since it was opened."""
        if self._state() == self._seen:
            return
        with self._lock:  # another thread may have seen it grow further in between
            state = self._state()
            if state != self._seen and not (self.can_grow and state[0] > self._seen[0]):
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
        data = self._read_some(position, num_bytes)
        while len(data) < num_bytes:  # the kernel may hand out less than asked (signals, 2 GiB limits)
            more = self._read_some(position + len(data), num_bytes - len(data))
            if not more:
                raise FormatError(
                    f"{self.path}: ends at byte {position + len(data)}, but had {self.size} bytes when it was"
                    " opened; it was cut while being read, open it again"
                )
            data += more
        self.check_unchanged()  # after reading: what was read is from before any change
        return data

    def _read_some(self, position: int, num_bytes: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), num_bytes, position)
        with self._lock:  # Windows: several threads may read, and the file has one position
            self._file.seek(position)
            return self._file.read(num_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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


class RowSource(Source):
    """A table whose header gives the number of its rows; positions are rows. Subclasses read them."""

    def __init__(self, file: ByteFile, sensor: Sensor | None, num_rows: int, block_rows: int, found: Found) -> None:
        self.path, self.size, self.sensor = file.path, file.size, sensor
        self._file, self._num_rows, self._block_rows, self.found = file, num_rows, block_rows, found

    @abstractmethod
    def rows(self, first: int, last: int) -> Columns:
        """Return rows ``first`` to ``last`` (not included), times in µs."""

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        for first in range(0, self._num_rows, self._block_rows):
            yield Bookmark(first), self.rows(first, min(first + self._block_rows, self._num_rows))

    def decode(self, start: Bookmark, end: int) -> Columns:
        return self.rows(start.position, end)


class ByteSource(Source):
    """A file that is a header and then a stream of records: the decoder does the work.

    ``ending`` is what the file lacks after its last record: the newline of a text.
    """

    thread_safe = True

    def __init__(
        self,
        file: ByteFile,
        decoder: Decoder,
        data_start: int,
        sensor: Sensor | None,
        notes: dict[str, str] | None = None,
        ending: bytes = b"",
    ) -> None:
        self.format = decoder.format
        self.path, self.size, self.sensor, self.notes = file.path, file.size, sensor, notes or {}
        self._file, self._decoder, self._data_start, self._ending = file, decoder, data_start, ending

    def _read(self, position: int, num_bytes: int) -> bytes:
        data = self._file.read(position, num_bytes)
        return data + self._ending if position + num_bytes > self.size else data

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        decoder = self._decoder.fresh()
        position = self._data_start
        if decoder.can_guess and self.size > position + RUN_BLOCKS * BLOCK_BYTES:
            for run in self._runs_in_threads(decoder):
                yield from run.blocks
                position, decoder.state[:] = run.end
        else:
            for start, columns, end in self._blocks(decoder, position, self.size):
                yield start, columns
                position = end
        self._set_found(position, decoder.skipped(), decoder.missing())

    def _blocks(self, decoder: Decoder, position: int, stop: int) -> Iterator[tuple[Bookmark, Columns, int]]:
        """Decode the blocks from ``position`` to ``stop``; each with its bookmark and the position of its end."""
        want = BLOCK_BYTES
        while position < stop:
            data = self._read(position, want)
            start = Bookmark(position, decoder.state.copy())
            columns, used = decoder.decode(data)
            if used == 0:
                if position + want > self.size:
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
            yield start, columns, position

    def _runs_in_threads(self, decoder: Decoder) -> Iterator[Run]:
        """Decode runs of blocks in several threads, each from a guessed state; a wrong guess is decoded again."""
        state = decoder.initial_state()
        starts = range(self._data_start, self.size, RUN_BLOCKS * BLOCK_BYTES)
        with ThreadPoolExecutor(THREADS) as pool:
            coming = deque(pool.submit(self._decode_run, start) for start in starts[:RUNS_AHEAD])
            for number, start in enumerate(starts):
                run = coming.popleft().result()
                if number + RUNS_AHEAD < len(starts):
                    coming.append(pool.submit(self._decode_run, starts[number + RUNS_AHEAD]))
                shift_us = decoder.time_shift(state - run.guessed)
                if shift_us is None:
                    run = self._decode_run(start, state)
                elif start > self._data_start:
                    run = run.shifted(state - run.guessed, shift_us)
                state = run.end.state
                yield run

    def _decode_run(self, start: int, state: NDArray[np.int64] | None = None) -> Run:
        """Decode a run of blocks from ``state``, or from the state after the block before it."""
        decoder = self._decoder.fresh()
        if state is not None:
            decoder.state[:] = state
        elif start > self._data_start:
            decoder.decode(self._read(start - BLOCK_BYTES, BLOCK_BYTES))
        begun, blocks, end = decoder.state.copy(), [], start
        for bookmark, columns, position in self._blocks(decoder, start, start + RUN_BLOCKS * BLOCK_BYTES):
            blocks.append((bookmark, columns))
            end = position
        return Run(begun, blocks, Bookmark(end, decoder.state))

    def most_events(self) -> int | None:
        if not self._decoder.can_guess:
            return None
        if self._decoder.least_bytes:
            return (self.size - self._data_start) // self._decoder.least_bytes
        step = RUN_BLOCKS * BLOCK_BYTES
        with ThreadPoolExecutor(THREADS) as pool:
            pieces = range(self._data_start, self.size, step)
            return sum(pool.map(lambda start: self._decoder.most_events(self._read(start, step)), pieces))

    def _set_found(self, end: int, skipped: dict[str, int], missing: str) -> None:
        self.found = Found(end, skipped, Tail(max(self.size - end, 0), min(end, self.size), missing))

    def even_blocks(self) -> EvenBlocks | None:
        size = self._decoder.record_bytes
        if not size:
            return None
        rows, total = BLOCK_BYTES // size, (self.size - self._data_start) // size
        starts = self._data_start + np.arange(0, total, rows, dtype=np.int64) * size
        positions = np.append(starts, self._data_start + total * size)
        self._set_found(int(positions[-1]), {}, "")
        return EvenBlocks(positions, rows, total, self._decoder.initial_state(), self._decoder.last_plain_us)

    def decode(self, start: Bookmark, end: int) -> Columns:
        decoder = self._decoder.fresh()
        decoder.state[:] = start.state
        return decoder.decode(self._read(start.position, end - start.position))[0]
