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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError
from fate.events.events import MAX_SIDE, Sensor
from fate.formats.decoder import Columns, Decoder, OutOfBounds, Tally, WordDecoder, allocate_columns, check

CHOICES: dict[str, tuple[str | None, ...]] = {
    "out_of_bounds": ("raise", "drop"),
    "unsorted": ("raise", "sort"),
    "time_unit": (None, "s", "ms", "us", "ns"),
}
BLOCK_BYTES = 64 * 1024  # of file per block: about 10 000 events, decoded in a fraction of a millisecond


THREADS = 2  # that decode
RUN_BLOCKS = 16  # decoded at a time by one thread
LONGER_RUNS = 4  # times as long, if all events are kept: fewer calls, and threads write to memory pages of their own
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
    """Blocks of records of one size, each of which is one event: no scan has to find them."""

    positions: NDArray[np.int64]  # [blocks + 1] starts of the blocks, and the end
    num_events: int  # events in all blocks
    state: NDArray[np.int64]  # the decoder's state at every start, as long as its counter of time has not wrapped


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

    blocks: list[Bookmark]
    ends: list[int]  # [blocks + 1] events of the run before each block, and all of them
    columns: Columns  # of all blocks
    end: Bookmark  # after the last block
    tally: Tally | None = None  # of the check of all blocks as one; None if they were not checked

    def shifted(self, difference: NDArray[np.int64], shift_us: int) -> Run:
        """The same blocks, decoded from a state with this ``difference``, which adds ``shift_us`` to all times."""
        if not difference.any():
            return self
        tally = self.tally
        if shift_us and tally and tally.events:
            self.columns.t[:] += shift_us
            t_min, t_max, last_t = (time + shift_us for time in (tally.t_min, tally.t_max, tally.last_t))
            tally = replace(tally, t_min=t_min, t_max=t_max, last_t=last_t)
        *blocks, end = (Bookmark(position, state + difference) for position, state in (*self.blocks, self.end))
        return Run(blocks, self.ends, self.columns, end, tally)


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

    def decode_into(self, start: Bookmark, end: int, out: Columns) -> Columns:
        """The same as :meth:`decode`; if the format can and there is room, the events lie at the start of ``out``."""
        return self.decode(start, end)

    def most_events(self) -> list[int] | None:
        """Return numbers that the events of the runs do not exceed, if that takes much less time than a scan."""
        return None

    def runs(self, sensor: Sensor | None, slots: Sequence[Columns] | None = None) -> Iterator[Run]:
        """Every block in file order, in runs.

        Args:
            sensor: for the check of a run.
            slots: columns for the events of each run, of the lengths that :meth:`most_events` gave.
        """
        for bookmark, columns in self.scan():
            yield Run([bookmark], [0, len(columns.t)], columns, bookmark)

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
        want = BLOCK_BYTES
        while position < self.size:
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
            yield start, columns
        self._set_found(position, decoder.skipped(), decoder.missing())

    def _run_starts(self, keeps_events: bool) -> range:
        return range(self._data_start, self.size, RUN_BLOCKS * BLOCK_BYTES * (LONGER_RUNS if keeps_events else 1))

    def most_events(self) -> list[int] | None:
        if not isinstance(decoder := self._decoder, WordDecoder):
            return None
        starts = self._run_starts(keeps_events=True)
        if decoder.is_plain:
            return [min(starts.step, self.size - start) // decoder.word_bytes for start in starts]
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(lambda start: decoder.most_events(self._read(start, starts.step)), starts))

    def runs(self, sensor: Sensor | None, slots: Sequence[Columns] | None = None) -> Iterator[Run]:
        if isinstance(self._decoder, WordDecoder):
            yield from self._runs_in_threads(self._decoder, sensor, slots)
        else:
            yield from super().runs(sensor, slots)

    def _runs_in_threads(
        self, decoder: WordDecoder, sensor: Sensor | None, slots: Sequence[Columns] | None
    ) -> Iterator[Run]:
        """Decode each run from a guessed state; a run with a wrong guess is decoded again."""
        starts = self._run_starts(slots is not None)
        end = Bookmark(self._data_start, decoder.initial_state())

        def decode(number: int, state: NDArray[np.int64] | None = None) -> Run:
            span = starts[number], starts.step
            return self._decode_run(decoder, span, state, sensor, slots[number] if slots else None)

        ahead = len(starts) if slots else min(RUNS_AHEAD, len(starts))  # slots take no more memory if they are filled
        with ThreadPoolExecutor(THREADS) as pool:
            coming = deque(pool.submit(decode, number) for number in range(ahead))
            try:
                for number in range(len(starts)):
                    run = coming.popleft().result()
                    if number + ahead < len(starts):
                        coming.append(pool.submit(decode, number + ahead))
                    if run.blocks:
                        difference = end.state - run.blocks[0].state
                        shift_us = decoder.time_shift(difference)
                        run = decode(number, end.state) if shift_us is None else run.shifted(difference, shift_us)
                        end = run.end
                    yield run
            finally:  # after an error, nobody needs the other runs
                pool.shutdown(cancel_futures=True)
        decoder = decoder.fresh()
        decoder.state[:] = end.state
        self._set_found(end.position, decoder.skipped(), decoder.missing())

    def _decode_run(
        self,
        decoder: WordDecoder,
        span: tuple[int, int],
        state: NDArray[np.int64] | None,
        sensor: Sensor | None,
        out: Columns | None,
    ) -> Run:
        """Decode a run of blocks from ``state``, or from the one that the bytes before it suggest.

        ``span`` is the position and the length of the run in bytes.
        """
        decoder, (start, num_bytes) = decoder.fresh(), span
        before = 0 if state is not None else min(decoder.look_back_bytes, start - self._data_start)
        data = memoryview(self._read(start - before, before + num_bytes))
        if state is not None:
            decoder.state[:] = state
        elif before:
            decoder.decode(data[:before])
        data = data[before:]
        data = data[: len(data) - len(data) % decoder.word_bytes]
        if out is None:
            out = allocate_columns(decoder.most_events(data))
        decoded = decoder.decode_blocks(data, BLOCK_BYTES, out)
        if decoded is None:  # the room was counted a moment ago
            raise FormatError(f"{self.path}: changed while it was read; open it again when it is complete")
        states, ends = decoded
        blocks = [Bookmark(start + BLOCK_BYTES * number, state) for number, state in enumerate(states)]
        columns, tally = out.slice(0, ends[-1]), Tally()
        check(columns, sensor, tally)
        return Run(blocks, ends, columns, Bookmark(start + len(data), decoder.state), tally)

    def _set_found(self, end: int, skipped: dict[str, int], missing: str) -> None:
        self.found = Found(end, skipped, Tail(max(self.size - end, 0), min(end, self.size), missing))

    def even_blocks(self) -> EvenBlocks | None:
        decoder = self._decoder
        if not (isinstance(decoder, WordDecoder) and decoder.is_plain):
            return None
        total = (self.size - self._data_start) // decoder.word_bytes
        end = self._data_start + total * decoder.word_bytes
        self._set_found(end, {}, "")
        positions = np.append(np.arange(self._data_start, end, BLOCK_BYTES, dtype=np.int64), end)
        return EvenBlocks(positions, total, decoder.initial_state())

    def decode(self, start: Bookmark, end: int) -> Columns:
        return self._decoder_at(start).decode(self._read(start.position, end - start.position))[0]

    def decode_into(self, start: Bookmark, end: int, out: Columns) -> Columns:
        decoder, data = self._decoder_at(start), self._read(start.position, end - start.position)
        if isinstance(decoder, WordDecoder) and (num_events := decoder.decode_into(data, out)) >= 0:
            return out.slice(0, num_events)
        return self._decoder_at(start).decode(data)[0]

    def _decoder_at(self, start: Bookmark) -> Decoder:
        decoder = self._decoder.fresh()
        decoder.state[:] = start.state
        return decoder
