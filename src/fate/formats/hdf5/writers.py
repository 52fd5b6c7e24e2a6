"""Events into HDF5, in Prophesee's layout or in RVT's. ``events.py`` describes both."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h5py
import numpy as np

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.saving import EventWriter

CHUNK_ROWS = 16_384
BUFFER_ROWS = 4 * CHUNK_ROWS  # small pieces are gathered up to here, large ones cut to it: memory stays bounded

RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")], align=True)
TRIGGER = np.dtype([("p", "<i2"), ("t", "<i8"), ("id", "<i2")], align=True)
INDEX = np.dtype([("id", "<u8"), ("ts", "<i8")])
INDEX_PERIOD_US = 2000
MAX_INDEX_ROWS = 24 * 3600 * 1_000_000 // INDEX_PERIOD_US  # a day: 0.7 GB of index


class FaultKeepingFile(io.FileIO):
    """The file that libhdf5 writes to. libhdf5 may crash the process when a write fails, so errors are hidden from it:
    the first one is kept in ``fault``, and the writer raises it after each step."""

    fault: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            done = 0
            while self.fault is None and done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as error:
            self.fault = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.fault is None else 0
        except OSError as error:
            self.fault = error
            return 0


class Hdf5Writer(EventWriter):
    """What both layouts share: an HDF5 file, and pieces of a size that suits its chunks."""

    file: Any
    seeks = True

    def open(self) -> None:
        self._pending: list[Events] = []
        self._pending_rows = 0
        self._disk_file = FaultKeepingFile(self.temporary, "w+")
        with self._raise_disk_fault():
            self.file = h5py.File(self._disk_file, "w")

    def append(self, events: Events) -> None:
        self.check(events)
        self._pending.append(events)
        self._pending_rows += len(events)
        if self._pending_rows >= BUFFER_ROWS:
            self._write_pending()

    def finish(self) -> None:
        self._write_pending()
        with self._raise_disk_fault():
            self.finish_tables()
            self.file.close()
        self._disk_file.close()

    def abandon(self) -> None:
        self._pending = []
        if hasattr(self, "file"):
            with suppress(OSError, RuntimeError, ValueError):  # nothing of this file is kept anyway
                self.file.close()
        if hasattr(self, "_disk_file"):
            self._disk_file.close()

    def check(self, events: Events) -> None:
        """Refuse events the layout cannot hold."""

    @abstractmethod
    def write_rows(self, events: Events) -> None:
        """Write up to ``BUFFER_ROWS`` events."""

    def finish_tables(self) -> None:
        """Write the rows that complete the tables at the end."""

    def table(self, name: str, dtype: Any, **settings: Any) -> Any:
        """An empty dataset that grows."""
        return self.file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNK_ROWS,), **settings)

    def _write_pending(self) -> None:
        if not self._pending:
            return
        events = Events.concatenate(self._pending)
        self._pending, self._pending_rows = [], 0
        with self._raise_disk_fault():
            for first in range(0, len(events), BUFFER_ROWS):
                self.write_rows(events[first : first + BUFFER_ROWS])

    @contextmanager
    def _raise_disk_fault(self) -> Iterator[None]:
        """Raise the fault of the disk, if there was one, before errors of h5py that may follow from it."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if self._disk_file.fault is None:
                raise FateError(f"{self.path}: cannot be written ({str(error).splitlines()[0]})") from error
        if self._disk_file.fault is not None:
            raise self._disk_file.fault


def _extend(table: Any, rows: Any) -> None:
    first = table.shape[0]
    table.resize(first + len(rows), axis=0)
    table[first:] = rows


class PropheseeHdf5Writer(Hdf5Writer):
    """``/CD/events`` and ``/CD/indexes`` as OpenEB lays them out, without compression.

    Readers built on HDF5 itself (h5py, FATE) read the file; OpenEB's own reader expects every chunk of
    ``/CD/events`` to be ECF-encoded and does not.
    """

    format = "HDF5"

    def begin(self, sensor: Sensor) -> None:
        with self._raise_disk_fault():
            self.file.attrs["version"] = "1.0"
            self.file.attrs["geometry"] = f"{sensor.width}x{sensor.height}"
            self._events = self.table("CD/events", RECORD)
            self._indexes = self.table("CD/indexes", INDEX)
            self.table("EXT_TRIGGER/events", TRIGGER)
            self.table("EXT_TRIGGER/indexes", INDEX)
        self._origin: int | None = None  # time of the first event, where the index starts
        self._period = 0  # the last period that has an event, and its first event:
        self._period_first = (0, -1)

    def check(self, events: Events) -> None:
        origin = int(events.t_us[0]) if self._origin is None else self._origin
        if (int(events.t_us[-1]) - origin) // INDEX_PERIOD_US >= MAX_INDEX_ROWS:
            raise FateError(
                f"{self.path}: the events span from {origin} to {events.t_us[-1]} µs, and this layout keeps an index"
                f" entry every {INDEX_PERIOD_US} µs, for a day at most; choose .h5 (RVT's layout), NPZ or CSV"
            )
        self._origin = origin

    def write_rows(self, events: Events) -> None:
        records = np.zeros(len(events), RECORD)
        records["x"], records["y"], records["p"], records["t"] = events.x, events.y, events.p, events.t_us
        self._index(events.t_us, self._events.shape[0])
        _extend(self._events, records)

    def _index(self, t_us: Any, first_row: int) -> None:
        """Entry k of the index is the first event of the last period before k that has one: (0, -1) for k = 0."""
        origin = self._origin or 0
        if first_row == 0:
            self._indexes.attrs["offset"] = str(-origin)
            self._write_index([(0, -1)], [1])
            self._period_first = (0, 0)
        periods = (t_us - origin) // INDEX_PERIOD_US
        starts = np.flatnonzero(np.diff(periods, prepend=self._period))
        if not len(starts):
            return
        firsts = [(first_row + int(i), int(t_us[i]) - origin) for i in starts]
        steps = np.diff(periods[starts], prepend=self._period)
        self._write_index([self._period_first, *firsts[:-1]], steps)
        self._period, self._period_first = int(periods[-1]), firsts[-1]

    def _write_index(self, entries: list[tuple[int, int]], repeats: Any) -> None:
        """Repeat each entry; a long time without events repeats one entry very often, so rows are written in pieces."""
        for entry, repeat in _split_repeats(np.array(entries, INDEX), np.asarray(repeats)):
            _extend(self._indexes, np.repeat(entry, repeat))

    def finish_tables(self) -> None:
        if self._events.shape[0]:
            self._write_index([self._period_first], [1])


def _split_repeats(entries: Any, repeats: Any) -> Iterator[tuple[Any, Any]]:
    """The same repetitions in pieces of at most about ``BUFFER_ROWS`` rows."""
    if int(repeats.sum()) <= BUFFER_ROWS:
        yield entries, repeats
        return
    for entry, repeat in zip(entries, repeats.tolist(), strict=True):
        for first in range(0, repeat, BUFFER_ROWS):
            yield entry, min(BUFFER_ROWS, repeat - first)


class RvtHdf5Writer(Hdf5Writer):
    """RVT's layout, gzip-compressed: the group ``events`` with x, y (u2), p (u1, 0 or 1), t (i8, µs), height, width."""

    format = "HDF5"

    def begin(self, sensor: Sensor) -> None:
        with self._raise_disk_fault():
            types = {"t": "<i8", "x": "<u2", "y": "<u2", "p": "u1"}
            packed = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
            self._columns = {name: self.table(f"events/{name}", dtype, **packed) for name, dtype in types.items()}
            self.file["events/height"], self.file["events/width"] = sensor.height, sensor.width

    def write_rows(self, events: Events) -> None:
        for name, column in (("t", events.t_us), ("x", events.x), ("y", events.y), ("p", events.p)):
            _extend(self._columns[name], column)
