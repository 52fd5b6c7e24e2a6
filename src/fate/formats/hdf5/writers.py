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
from fate.events.events import Events
from fate.formats.saving import EventWriter
from fate.whole_files import Draft

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

    format = "HDF5"
    seeks = True
    hdf5: Any = None

    def open(self, draft: Draft) -> FaultKeepingFile:
        return FaultKeepingFile(draft.path, "w+")

    def begin(self) -> None:
        self._pending: list[Events] = []
        self._pending_rows = 0
        with self._raise_disk_fault():
            self.hdf5 = h5py.File(self.file, "w")
            self.create_tables()

    @abstractmethod
    def create_tables(self) -> None:
        """Create the datasets and attributes."""

    def append(self, events: Events) -> None:
        self._pending.append(events)
        self._pending_rows += len(events)
        if self._pending_rows >= BUFFER_ROWS:
            self._write_pending()

    def finish(self) -> None:
        self._write_pending()
        with self._raise_disk_fault():
            self.finish_tables()
            self.hdf5.close()

    def discard(self) -> None:
        if self.hdf5 is not None:
            with suppress(OSError, RuntimeError, ValueError):  # nothing of this file is kept anyway
                self.hdf5.close()
        super().discard()

    @abstractmethod
    def write_rows(self, events: Events) -> None:
        """Write up to ``BUFFER_ROWS`` events."""

    def finish_tables(self) -> None:
        """Write the rows that complete the tables at the end."""

    def table(self, name: str, dtype: Any, **settings: Any) -> Any:
        """Create an empty dataset that grows."""
        return self.hdf5.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNK_ROWS,), **settings)

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
            if self.file.fault is None:
                raise FateError(f"{self.path}: cannot be written ({str(error).splitlines()[0]})") from error
        if self.file.fault is not None:
            raise self.file.fault


def _extend(table: Any, rows: Any) -> None:
    first = table.shape[0]
    table.resize(first + len(rows), axis=0)
    table[first:] = rows


class PropheseeHdf5Writer(Hdf5Writer):
    """``/CD/events`` and ``/CD/indexes`` as OpenEB lays them out, without compression.

    Readers built on HDF5 itself (h5py, FATE) read the file; OpenEB's own reader expects every chunk of
    ``/CD/events`` to be ECF-encoded and does not.
    """

    def create_tables(self) -> None:
        self.hdf5.attrs["version"] = "1.0"
        self.hdf5.attrs["geometry"] = f"{self.sensor.width}x{self.sensor.height}"
        self._events = self.table("CD/events", RECORD)
        self._indexes = self.table("CD/indexes", INDEX)
        self.table("EXT_TRIGGER/events", TRIGGER)
        self.table("EXT_TRIGGER/indexes", INDEX)
        self._origin: int | None = None  # time of the first event, where the index starts
        self._period, self._entry = -1, (0, -1)  # the last period that has an event, and its first event: row, time

    def write_rows(self, events: Events) -> None:
        if self._origin is None:
            self._origin = int(events.t_us[0])
            self._indexes.attrs["offset"] = str(-self._origin)
        if (int(events.t_us[-1]) - self._origin) // INDEX_PERIOD_US >= MAX_INDEX_ROWS:
            raise FateError(
                f"{self.path}: the events span from {self._origin} to {events.t_us[-1]} µs, and this layout keeps an"
                f" index entry every {INDEX_PERIOD_US} µs, for a day at most; choose .h5 (RVT's layout), NPZ or CSV"
            )
        records = np.zeros(len(events), RECORD)
        records["x"], records["y"], records["p"], records["t"] = events.x, events.y, events.p, events.t_us
        # entry k of the index is the first event of the last period before k that has one: (0, -1) for k = 0
        times, first_row = events.t_us - self._origin, self._events.shape[0]
        periods = times // INDEX_PERIOD_US
        starts = np.flatnonzero(np.diff(periods, prepend=self._period))
        known = np.append(self._period, periods[starts])
        entries = np.array([self._entry, *((first_row + int(i), int(times[i])) for i in starts)], INDEX)
        end = int(periods[-1]) + 1
        for k in range(self._indexes.shape[0], end, BUFFER_ROWS):  # a long time without events repeats one entry often
            rows = np.arange(k, min(k + BUFFER_ROWS, end))
            _extend(self._indexes, entries[np.searchsorted(known, rows) - 1])
        self._period, self._entry = int(known[-1]), entries[-1].item()
        _extend(self._events, records)

    def finish_tables(self) -> None:
        if self._events.shape[0]:
            _extend(self._indexes, np.array([self._entry], INDEX))


class RvtHdf5Writer(Hdf5Writer):
    """RVT's layout, gzip-compressed: the group ``events`` with x, y (u2), p (u1, 0 or 1), t (i8, µs), height, width."""

    def create_tables(self) -> None:
        types = {"t": "<i8", "x": "<u2", "y": "<u2", "p": "u1"}
        packed = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
        self._columns = {name: self.table(f"events/{name}", dtype, **packed) for name, dtype in types.items()}
        self.hdf5["events/height"], self.hdf5["events/width"] = self.sensor

    def write_rows(self, events: Events) -> None:
        for name, column in (("t", events.t_us), ("x", events.x), ("y", events.y), ("p", events.p)):
            _extend(self._columns[name], column)
