"""A recording of any format: read by time, window by window or whole, without loading the file."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fate.errors import FateError, FormatError, warn
from fate.events.events import Events, Sensor, guess_sensor
from fate.events.window import Window, WindowGrid, clip_time, window_us
from fate.formats.decoder import (
    Columns,
    Tally,
    allocate_columns,
    check,
    concatenate,
    copy_columns,
    describe_back,
    describe_impossible,
    describe_outside,
)
from fate.formats.index import Index, build_index, cache_path, load_index, store_index
from fate.formats.source import THREADS, Options, Source, Tail
from fate.progress import Progress
from fate.text import grouped, plural

KEPT_BLOCKS, KEPT_EVENTS = 32, 1 << 18  # kept in memory at most: neighbouring and overlapping windows share blocks
RUN_EVENTS = 1 << 16  # of several blocks, decoded in one go
CACHED_FROM_BYTES = 1 << 20  # below this, scanning is faster than finding a stored index
WHOLE_FILE_RUN_BYTES = 4 << 20  # decoded at a time by one thread when a whole file is read


class Recording(AbstractContextManager["Recording"]):
    """One recording. Made by :func:`fate.open_recording`; use it in a ``with`` block or call ``close``.

    The first use walks the file once to build its time index (kept on disk for files over 1 MiB); from then
    on reading costs only what is read. Times are those of the file, in µs. Each thread opens its own recording.
    """

    path: Path  #: the file
    format: str  #: the file's format, such as ``"EVT3"``
    num_bytes: int  #: size of the file
    notes: dict[str, str]  #: further content of the file's header

    def __init__(self, source: Source, options: Options, reopen: Callable[..., Recording]) -> None:
        self._source, self._options, self._reopen = source, options, reopen
        self.path, self.format, self.num_bytes, self.notes = source.path, source.format, source.size, source.notes
        self._location = source.path.absolute()  # a later change of the working directory does not matter
        self._closed = False
        self._index: Index | None = None
        self._sensor = options.sensor or source.sensor
        self._blocks: OrderedDict[int, Columns] = OrderedDict()

    # ---- properties -------------------------------------------------------------------------------------

    @property
    def sensor(self) -> Sensor:
        """``(height, width)``: the one asked for, else the file's, else the smallest known one that fits."""
        if self._sensor is None:
            self.index()
        if self._sensor is None:
            raise FormatError(
                f"{self.path}: neither the header nor any event gives the sensor size; pass sensor=(height, width)"
            )
        return self._sensor

    @property
    def start_us(self) -> int:
        """Time of the first event, µs (0 without events)."""
        return self.index().tally.t_min

    @property
    def end_us(self) -> int:
        """End of the half-open span of the events: one µs after the last one (0 without events)."""
        return self.index().tally.t_max + 1 if self.num_events else 0

    @property
    def num_events(self) -> int:
        """Events that reading gives."""
        return self.index().num_events

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, {self.format}, {self.num_bytes:,} bytes)"

    # ---- the index, and what it finds wrong -------------------------------------------------------------

    def index(self, progress: Progress | None = None) -> Index:
        """Return the time index, built or loaded on first use; raise if the file breaks the rules asked for."""
        return self._prepare(progress)[0]

    def _prepare(self, progress: Progress | None = None, keep: bool = False) -> tuple[Index, Columns | None]:
        """Return the index; with ``keep``, also the events in file order if the index was built now."""
        if self._closed:
            raise FateError(f"{self.path}: the recording is closed; open it again to read on")
        if self._index:
            return self._index, None
        file = None
        if self._options.cache and self.num_bytes >= CACHED_FROM_BYTES:
            asked = (self._options.format, self._options.columns, self._options.time_unit)
            file = cache_path(self.path, {"format": self.format, "sensor": self._sensor, "asked": asked})
        index, columns = load_index(file) if file else None, None
        if index is None:
            index, columns = build_index(self._source, self._sensor, progress, keep)
            if file:
                store_index(file, index)
        self._check_index(index)
        self._index = index
        return index, columns

    def _check_index(self, index: Index) -> None:
        tally, options = index.tally, self._options
        if cut := describe_tail(index.tail, self.format):
            if options.strict:
                raise FormatError(f"{self.path}: {cut}; the file is cut short (without strict=True the rest is read)")
            warn(f"{self.path}: {cut}; dropped, all before was read")
        if impossible := describe_impossible(self.path, tally):
            raise FormatError(impossible)
        if tally.outside:
            sensor = self._sensor or Sensor(65_536, 65_536)
            if options.out_of_bounds == "raise":
                raise FormatError(describe_outside(self.path, tally, sensor))
            warn(f"{self.path}: {plural(tally.outside, 'event')} outside {sensor} dropped")
        if tally.back:
            if options.unsorted == "raise":
                raise FormatError(describe_back(self.path, tally))
            warn(f"{self.path}: time went back {plural(tally.back, 'time')}; events were sorted")
        if self._sensor is None and index.num_events:
            self._sensor = guess_sensor(tally.x_max, tally.y_max, self.path)

    def refuse_empty(self) -> None:
        """Raise, with the reason, when there are no events to read."""
        index = self.index()
        if index.num_events:
            return
        found = {**index.skipped, "events outside the sensor": index.tally.outside}
        listed = ", ".join(f"{grouped(number)} {kind}" for kind, number in found.items() if number)
        reason = f"all it holds is {listed}" if listed else "it is a header and nothing after it"
        raise FormatError(f"{self.path}: has no {self.format} events; {reason}")

    # ---- reading ----------------------------------------------------------------------------------------

    def read(self, start_us: int | None = None, end_us: int | None = None) -> Events:
        """Return events with ``start_us <= t < end_us``; without bounds, all of them."""
        if start_us is None and end_us is None:
            return self._read_all()
        index = self.index()
        if not index.num_events:
            return Events.empty(self.sensor)
        start, end = self._span(index, start_us, end_us)
        pieces = []
        for columns in self._pieces(index, index.blocks_between(start, end)):
            if index.tally.back:
                inside = (columns.t >= start) & (columns.t < end)
                pieces.append(columns.take(inside))
            else:
                pieces.append(columns.slice(int(columns.t.searchsorted(start)), int(columns.t.searchsorted(end))))
        columns = concatenate(pieces)
        if index.tally.back:
            columns = _sorted(columns)
        elif len(pieces) == 1:
            columns = Columns(*(column.copy() for column in columns))  # no view of a block that is kept in memory
        return Events.trusted(*columns, self.sensor)

    def _span(self, index: Index, start_us: int | None, end_us: int | None) -> tuple[int, int]:
        start = index.tally.t_min if start_us is None else start_us
        end = index.tally.t_max + 1 if end_us is None else end_us
        return clip_time(start), clip_time(end)

    def _pieces(self, index: Index, blocks: Sequence[int]) -> Iterator[Columns]:
        """Yield the events of ``blocks``. Blocks in memory are reused; runs of other blocks are decoded together."""
        at = 0
        while at < len(blocks):
            block = blocks[at]
            if block in self._blocks:
                self._blocks.move_to_end(block)
                yield self._blocks[block]
                at += 1
                continue
            run = 1
            while (
                at + run < len(blocks)
                and blocks[at + run] == block + run
                and block + run not in self._blocks
                and index.first[block + run + 1] - index.first[block] <= RUN_EVENTS
            ):
                run += 1
            at += run
            columns = self._decode(index, block, block + run)
            ends = (index.first[block : block + run + 1] - index.first[block]).tolist()
            for i, (first, last) in enumerate(pairwise(ends)):
                self._blocks[block + i] = columns.slice(first, last)
            kept = sum(len(each.t) for each in self._blocks.values())
            while self._blocks and (len(self._blocks) > KEPT_BLOCKS or kept > KEPT_EVENTS):
                kept -= len(self._blocks.popitem(last=False)[1].t)
            yield columns

    def _decode(self, index: Index, first: int, last: int, out: Columns | None = None) -> Columns:
        """Blocks ``first`` to ``last`` (not included), checked again: the file may have changed since the scan.

        Formats that can write their events straight into ``out``.
        """
        start, end = index.bookmark(first), int(index.positions[last])
        columns = self._source.decode(start, end) if out is None else self._source.decode_into(start, end, out)
        tally = Tally()
        columns = check(columns, self._sensor, tally)
        expected = int(index.first[last] - index.first[first])
        if len(columns.t) != expected or (expected and index.span(first, last) != (tally.t_min, tally.t_max)):
            raise FormatError(
                f"{self.path}: changed while it was open ({len(columns.t)} events where there were {expected});"
                " open it again"
            )
        return columns

    def _read_all(self) -> Events:
        index, columns = self._prepare(keep=True)
        if columns:
            return Events.trusted(*(_sorted(columns) if index.tally.back else columns), self.sensor)
        out = allocate_columns(index.num_events)
        size = max(1, int(index.positions[-1] - index.positions[0]) // max(1, index.num_blocks))
        step = max(1, WHOLE_FILE_RUN_BYTES // size)

        def fill(first: int) -> None:
            last = min(first + step, index.num_blocks)
            room = out.slice(int(index.first[first]), int(index.first[last]))
            copy_columns(self._decode(index, first, last, room), room)

        runs = range(0, index.num_blocks, step)
        if len(runs) > 1 and self._source.thread_safe:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(fill, runs))
        else:
            for first in runs:
                fill(first)
        return Events.trusted(*(_sorted(out) if index.tally.back else out), self.sensor)

    def chunks(
        self, max_events: int = 1_000_000, *, start_us: int | None = None, end_us: int | None = None
    ) -> Iterator[Events]:
        """Yield the recording, or its part in ``[start_us, end_us)``, in order and in pieces of at most about
        ``max_events``; memory stays bounded however long the file."""
        if max_events < 1:
            raise FateError(f"max_events = {max_events} was given; expected at least 1")
        index = self.index()
        start, end = self._span(index, start_us, end_us)
        if index.tally.back:
            yield from self._chunks_by_time(index, max_events, start, end)
            return
        blocks = index.blocks_between(start, end)
        block, stop = (blocks[0], blocks[-1] + 1) if blocks else (0, 0)
        while block < stop:
            last = int(np.searchsorted(index.first, index.first[block] + max_events, side="right")) - 1
            last = min(max(last, block + 1), stop)
            events = Events.trusted(*self._decode(index, block, last), self.sensor).between(start, end)
            if len(events):
                yield events
            block = last

    def _chunks_by_time(self, index: Index, max_events: int, start: int, end: int) -> Iterator[Events]:
        """Read a file whose times go back: halve spans of time until each is likely to hold few enough events."""
        spans = [(start, end)]
        while spans:
            start, end = spans.pop()
            if end - start > 1 and index.likely_events(start, end) > max_events:
                middle = (start + end) // 2
                spans += [(middle, end), (start, middle)]
                continue
            events = self.read(start, end)
            if len(events):
                yield events

    def windows(
        self,
        hz: float | None = None,
        *,
        duration_us: int | None = None,
        hop_us: int | None = None,
        start_us: int | None = None,
        end_us: int | None = None,
    ) -> Iterator[tuple[Window, Events]]:
        """Windows in order, each with its events.

        Args:
            hz: rate; the window and the hop are ``round(1e6 / hz)`` µs.
            duration_us: length of a window instead of ``hz``.
            hop_us: from the start of one window to the next; the length of the window unless given.
            start_us: start of the first window; the first event unless given.
            end_us: no window starts at or after it; the end of the recording unless given.
        """
        if (hz is None) == (duration_us is None):
            raise FateError("give either hz (windows(hz=200)) or duration_us (windows(duration_us=5000))")
        duration = window_us(hz) if hz is not None else int(duration_us or 0)
        hop = duration if hop_us is None else int(hop_us)
        start = self.start_us if start_us is None else int(start_us)
        end = self.end_us if end_us is None else int(end_us)
        grid = WindowGrid(start + duration - hop, hop, duration)  # the first window begins at `start`
        for window in grid.windows(end + duration - hop):
            yield window, self.read(window.start_us, window.end_us)

    # ---- housekeeping -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called; ``copy.copy(recording)`` opens the file again."""
        return self._closed

    def close(self) -> None:
        """Close the file."""
        self._blocks.clear()
        if not self._closed:
            self._source.close()
        self._closed = True

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes open the file again."""
        return self._reopen, (self._location, self._options)


def describe_tail(tail: Tail, format: str) -> str:
    """Describe what is wrong with the end of a file; return an empty text if nothing is."""
    parts = []
    if tail.num_bytes:
        parts.append(
            f"the last {plural(tail.num_bytes, 'byte')}, at position {tail.position}: not a whole {format} record"
        )
    if tail.missing:
        parts.append(f"{tail.missing} that its header promises are missing at the end")
    return ", and ".join(parts)


def _sorted(columns: Columns) -> Columns:
    """Sort by time; events of one time stay in file order."""
    return columns.take(np.argsort(columns.t, kind="stable"))
