"""HDF5 recordings: Prophesee (OpenEB), RVT, DSEC, and any one table with the columns t, x, y and p.

* Prophesee: ``/CD/events``, records (x u2, y u2, p i2, t i8) in chunks of 16 384, compressed with ECF (see
  ``ecf.py``); ``/EXT_TRIGGER/events``; the sensor in the root attribute ``geometry``, "1280x720".
* RVT: a group ``events`` of four columns, with the sensor in ``events/height`` and ``events/width``.
* DSEC: the same four columns, ``/ms_to_idx``, and ``/t_offset``, which is added to every time; 640×480.

Times are µs as stored. ECF chunks are read straight from the file, so that they decode in several threads;
everything else goes through h5py. Links to other files are not followed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.errors import FormatError
from fate.formats.columns import Columns, concatenate
from fate.formats.hdf5.layout import MIN_CACHE_BYTES, Chunks, ColumnPath, Layout, damage_is_a_format_error, examine
from fate.formats.prophesee.ecf import decode_chunk
from fate.formats.source import Bookmark, ByteFile, Options, Source, open_bytes
from fate.formats.tables.fields import given_unit, microseconds

CACHE_SLOTS = 10_007  # a prime, as the hash of chunk numbers wants it


def open_hdf5(path: Path, options: Options) -> Source:
    """An HDF5 file, its layout found and its claims checked against its size."""
    with open_bytes(path, can_grow=False) as raw, damage_is_a_format_error(path):
        file = h5py.File(path, "r", rdcc_nbytes=MIN_CACHE_BYTES, rdcc_nslots=CACHE_SLOTS)
        try:
            layout = examine(raw, file, options)
            if layout.chunks:
                file.close()
                return EcfSource(layout, layout.chunks, raw)
            if layout.cache_bytes > MIN_CACHE_BYTES:  # so that no chunk is unpacked twice
                file.close()
                file = h5py.File(path, "r", rdcc_nbytes=layout.cache_bytes, rdcc_nslots=CACHE_SLOTS)
            return TableSource(layout, file, raw)
        except BaseException:
            file.close()
            raise


class Hdf5Source(Source):
    """A table of events; positions are row numbers."""

    def __init__(self, layout: Layout, raw: ByteFile) -> None:
        self.path, self.size, self.format = layout.path, layout.num_bytes, layout.format
        self.sensor, self.notes = layout.sensor, layout.notes
        self._layout, self._raw = layout, raw

    @abstractmethod
    def rows(self, first: int, last: int) -> Columns:
        """Rows ``first`` to ``last`` (not included), times as stored."""

    def _read(self, first: int, last: int) -> Columns:
        columns = self.rows(first, last)
        self._raw.check_unchanged()
        layout = self._layout
        return columns._replace(t=to_us(self.path, columns.t, layout.time_unit, layout.t_offset, first))

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        total, step = self._layout.rows, self._layout.block_rows
        for first in range(0, total, step):
            yield Bookmark(first), self._read(first, min(first + step, total))

    def decode(self, start: Bookmark, end: int) -> Columns:
        return self._read(start.position, end)

    def end(self) -> int:
        return self._layout.rows

    def skipped(self) -> dict[str, int]:
        return {"triggers": self._layout.triggers} if self._layout.triggers else {}

    def close(self) -> None:
        self._raw.close()


class EcfSource(Hdf5Source):
    """``/CD/events`` in ECF chunks, each read and decoded on its own."""

    thread_safe = True

    def __init__(self, layout: Layout, chunks: Chunks, raw: ByteFile) -> None:
        super().__init__(layout, raw)
        self._chunks = chunks

    def rows(self, first: int, last: int) -> Columns:
        size = self._chunks.rows
        pieces = []
        for chunk in range(first // size, -(-last // size)):
            begin = chunk * size
            columns = self._chunk(chunk, min(size, self._layout.rows - begin))
            pieces.append(columns.slice(max(first - begin, 0), last - begin))
        return concatenate(pieces)

    def _chunk(self, chunk: int, expected: int) -> Columns:
        """The first ``expected`` events of a chunk; the last one may be padded to its full size."""
        chunks = self._chunks
        name = f"{self.path}: chunk {chunk} of /{self._layout.paths['t'].dataset}"
        data = self._raw.read(int(chunks.position[chunk]), int(chunks.size[chunk]))
        if chunks.plain[chunk]:
            if len(data) < expected * chunks.record.itemsize:
                raise FormatError(f"{name}: is damaged ({len(data)} bytes, too few for {expected} events)")
            columns = _fields(np.frombuffer(data, chunks.record, expected), self._layout.paths)
        else:
            columns = decode_chunk(data, chunks.rows, name)
        if len(columns.t) < expected:
            raise FormatError(f"{name}: is damaged ({len(columns.t)} events where {expected} were expected)")
        return columns.slice(0, expected)


class TableSource(Hdf5Source):
    """Columns that h5py can read, as datasets or as fields of records."""

    def __init__(self, layout: Layout, file: Any, raw: ByteFile) -> None:
        super().__init__(layout, raw)
        self._file = file
        self._datasets = {place.dataset: file[place.dataset] for place in layout.paths.values()}

    def rows(self, first: int, last: int) -> Columns:
        paths = self._layout.paths
        with damage_is_a_format_error(self.path):
            if paths["t"].field is not None:
                return _fields(self._datasets[paths["t"].dataset][first:last], paths)
            return Columns(*(_native(self._datasets[paths[name].dataset][first:last]) for name in "txyp"))

    def close(self) -> None:
        super().close()
        self._file.close()


def _fields(records: Any, paths: dict[str, ColumnPath]) -> Columns:
    return Columns(*(_native(records[paths[name].field]) for name in "txyp"))


def _native(column: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(column, column.dtype.newbyteorder("="))


def to_us(path: Path, t: NDArray[Any], unit: str, offset: int, first_row: int) -> NDArray[np.int64]:
    """Convert times as stored, plus ``offset`` of the same unit, to int64 µs; refuse what does not fit."""
    if offset and len(t):
        for extreme in (t.min(), t.max()):
            if np.isfinite(extreme) and abs(int(extreme)) + abs(offset) >= 2**63:
                raise FormatError(f"{path}: holds the time {extreme} {unit}, more than 64-bit integers carry")
        t = t.astype(np.float64) + offset if t.dtype.kind == "f" else t.astype(np.int64) + np.int64(offset)
    return microseconds(path, t, given_unit(unit), first_row)
