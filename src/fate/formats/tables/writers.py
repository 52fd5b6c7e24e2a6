"""Writers of tables: NPZ (columns t, x, y, p and the sensor), NPY (one structured array), CSV.

NPY has no place for the sensor size: give ``sensor=(height, width)`` when such a file is opened again, or the smallest
known sensor that fits is taken. All three hold any 64-bit time, and any sensor.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fate.compiled import compiled
from fate.events.events import Events
from fate.formats.saving import EventWriter

COLUMNS = (("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "|u1"))
RECORD = np.dtype(list(COLUMNS))
NPY_HEADER_BYTES = 192  # a multiple of 64, as numpy aligns it, with room for the longest length
COPY_BYTES = 1 << 20
ROWS_AT_A_TIME = 1 << 16
MAX_ROW_BYTES = 20 + 1 + 5 + 1 + 5 + 1 + 1 + 1  # t,x,y,p and a newline
COMMA, NEWLINE, MINUS, ZERO = 44, 10, 45, 48


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of an array file, always of one length, so that it can be written again when the length is known."""
    fields = f"{{'descr': {npy.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    room = NPY_HEADER_BYTES - 10
    return npy.magic(1, 0) + room.to_bytes(2, "little") + fields.ljust(room - 1).encode("ascii") + b"\n"


class NpyWriter(EventWriter):
    """One structured array, fields t (int64 µs), x, y (uint16), p (uint8)."""

    format = "NPY"
    seeks = True

    def begin(self) -> None:
        self._num_rows = 0
        self.file.write(npy_header(RECORD, (0,)))

    def append(self, events: Events) -> None:
        for first in range(0, len(events), ROWS_AT_A_TIME):
            part = events[first : first + ROWS_AT_A_TIME]
            rows = np.empty(len(part), RECORD)
            rows["t"], rows["x"], rows["y"], rows["p"] = part.t_us, part.x, part.y, part.p
            self.file.write(rows.tobytes())
        self._num_rows += len(events)

    def finish(self) -> None:
        self.file.seek(0)
        self.file.write(npy_header(RECORD, (self._num_rows,)))


class NpzWriter(EventWriter):
    """An archive of uncompressed arrays, so that they can be read in place: t (int64 µs), x, y (uint16), p (uint8),
    ``sensor`` (height, width), ``format`` ("fate-events") and ``version`` (1). Columns grow in temporary files beside
    the target and are put together at the end; the same events always give the same bytes."""

    format = "NPZ"
    seeks = True

    def begin(self) -> None:
        self._num_rows = 0
        folder = self.path.parent
        self._spools = [tempfile.TemporaryFile(dir=folder) for _ in COLUMNS]  # noqa: SIM115  (closed when discarded)

    def append(self, events: Events) -> None:
        columns = (events.t_us, events.x, events.y, events.p)
        for spool, (_, dtype), column in zip(self._spools, COLUMNS, columns, strict=True):
            spool.write(np.ascontiguousarray(column, dtype).data)
        self._num_rows += len(events)

    def finish(self) -> None:
        sensor = np.array(self.sensor, "<i8")
        facts = {"format": np.array("fate-events"), "version": np.array(1, "<i8"), "sensor": sensor}
        with zipfile.ZipFile(self.file, "w", zipfile.ZIP_STORED) as archive:
            for name, value in facts.items():
                with archive.open(_member(name), "w") as member:
                    npy.write_array(member, value, version=(1, 0), allow_pickle=False)
            for spool, (name, dtype) in zip(self._spools, COLUMNS, strict=True):
                header = npy_header(np.dtype(dtype), (self._num_rows,))
                large = len(header) + spool.tell() >= zipfile.ZIP64_LIMIT
                spool.seek(0)
                with archive.open(_member(name), "w", force_zip64=large) as member:
                    member.write(header)
                    shutil.copyfileobj(spool, member, COPY_BYTES)
                spool.close()

    def discard(self) -> None:
        for spool in getattr(self, "_spools", []):
            spool.close()
        super().discard()


class CsvWriter(EventWriter):
    """``# sensor WIDTHxHEIGHT``, the names ``t,x,y,p``, then a line per event; times in whole µs."""

    format = "CSV"
    text = True

    def begin(self) -> None:
        self.file.write(f"# sensor {self.sensor.width}x{self.sensor.height}\nt,x,y,p\n".encode("ascii"))

    def append(self, events: Events) -> None:
        text = np.empty(min(len(events), ROWS_AT_A_TIME) * MAX_ROW_BYTES, np.uint8)
        for first in range(0, len(events), ROWS_AT_A_TIME):
            part = events[first : first + ROWS_AT_A_TIME]
            num_bytes = _write_rows(part.t_us, part.x, part.y, part.p, text)
            self.file.write(text[:num_bytes].data)


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member dated 1980, ZIP's earliest, so that the bytes do not depend on the clock."""
    info = zipfile.ZipInfo(f"{name}.npy")
    info.external_attr = 0o644 << 16
    return info


@compiled
def _digits(value: Any, text: Any, i: int) -> int:
    """Write an unsigned number at ``text[i]``; returns where it ends."""
    end = i + 1
    rest = value // np.uint64(10)
    while rest:
        end += 1
        rest //= np.uint64(10)
    for j in range(end - 1, i - 1, -1):
        tenth = value // np.uint64(10)
        text[j] = ZERO + (value - tenth * np.uint64(10))
        value = tenth
    return end


@compiled
def _write_rows(t: Any, x: Any, y: Any, p: Any, text: Any) -> int:
    """Write rows as text; ``text`` has room for the longest. Returns the number of bytes written."""
    i = 0
    for row in range(t.shape[0]):
        time = t[row]
        if time < 0:
            text[i] = MINUS
            i += 1
            i = _digits(np.uint64(0) - np.uint64(time), text, i)  # also right for the lowest integer
        else:
            i = _digits(np.uint64(time), text, i)
        text[i] = COMMA
        i = _digits(np.uint64(x[row]), text, i + 1)
        text[i] = COMMA
        i = _digits(np.uint64(y[row]), text, i + 1)
        text[i] = COMMA
        text[i + 1] = ZERO + (p[row] & 1)
        text[i + 2] = NEWLINE
        i += 3
    return i
