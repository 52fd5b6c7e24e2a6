"""NumPy files: one array (NPY), or a ZIP archive of arrays (NPZ).

Events are a structured array with fields t, x, y, p (or their usual other names), an N×4 array of numbers, or, in an
archive, four one-dimensional arrays. An archive may give the sensor as ``sensor`` (height, width) or as ``height`` and
``width``; a plain array cannot. Nothing is ever unpickled.

Rows are read by position and never loaded whole. ``np.load(mmap_mode="r")`` would not do: a file that is cut while it
is mapped kills the process, and a file that is already cut is refused although its whole rows can be read.
"""

from __future__ import annotations

import io
import math
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fate.boxes.npz import DAMAGE as NPZ_DAMAGE
from fate.errors import FateError, FormatError, list_names
from fate.events.events import Sensor, find_roles
from fate.formats.decoder import Columns
from fate.formats.source import Bookmark, ByteFile, Found, Options, RowSource, Tail
from fate.formats.tables.fields import (
    ARRAY_ORDERS,
    ROLES,
    find_unit,
    given_order,
    microseconds,
    recognise_order,
    warn_of_coarse_times,
    whole_numbers,
)
from fate.text import grouped

BLOCK_ROWS = 8192
BLOCK_BYTES = 4 << 20  # rows that are very long come in shorter blocks
SAMPLE_RUNS, SAMPLE_RUN_ROWS = 64, 1024  # read to recognise the order of the columns and the unit of time
HEAD_BYTES = 64 * 1024  # of an array, read for its header; numpy itself writes headers of at most 10 000 bytes
MAX_FACT_BYTES = 1024  # of an array that gives a fact about the recording, such as its sensor
PIECE_BYTES = 1 << 20  # read at a time for checksums and inflating
MAX_DEFLATE_RATIO = 1032  # deflate cannot shrink data more than this
LOCAL_HEADER = struct.Struct("<4s22xHH")
ENCRYPTED = 0x1

DAMAGE = (*NPZ_DAMAGE, ArithmeticError, struct.error)

Key = str | int | None  # a field of records, a column of an N×4 array, or the one column that the array is


class StoredArray:
    """One array in NumPy's file format. Sizes are what its header claims, for the caller to compare with the file."""

    def __init__(self, name: object, head: bytes, file: ByteFile | None = None) -> None:
        self.name, self.file = name, file
        stream = io.BytesIO(head)
        try:
            version = npy.read_magic(stream)
            # version 3 is version 2 with names in UTF-8; the names looked for are ASCII, the same in both
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about files of Python 2, which can be read
                self.shape, fortran, self.dtype = read(stream)
            if version not in ((1, 0), (2, 0), (3, 0)) or any(isinstance(n, bool) or n < 0 for n in self.shape):
                raise ValueError
        except DAMAGE:
            raise FormatError(
                f"{name}: has no readable NumPy header; it is damaged or cut short, copy it again"
            ) from None
        if self.dtype.hasobject:
            raise FormatError(
                f"{name}: holds Python objects, which could run code when loaded and are never read; save plain numbers"
                " (an array of one type, or a structured array)"
            )
        self.start = stream.tell()  # position of the first row in the file
        self.num_rows = self.shape[0] if self.shape else 1
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self.num_bytes = self.dtype.itemsize * math.prod(self.shape)
        self.is_column_major = fortran and len(self.shape) > 1
        if self.row_bytes == 0:
            raise FormatError(f"{name}: has rows of no bytes ({self.dtype}, shape {self.shape}); expected numbers")

    @property
    def is_table(self) -> bool:
        """Whether this is a structured array with the four columns, or an N×4 array of numbers."""
        if self.dtype.names is not None:
            return len(self.shape) == 1 and find_roles(self.dtype.names) is not None
        return len(self.shape) == 2 and self.shape[1] == 4 and self.dtype.kind in "iufb"

    def read(self, first: int, last: int, keys: Sequence[Key]) -> list[NDArray[Any]]:
        """Return the columns ``keys`` of rows ``first`` to ``last`` (not included), of the types in the file."""
        file = cast(ByteFile, self.file)
        if self.is_column_major:
            size = self.dtype.itemsize
            starts = [self.start + size * (cast(int, key) * self.num_rows + first) for key in keys]
            return [np.frombuffer(file.read(start, size * (last - first)), self.dtype) for start in starts]
        data = file.read(self.start + first * self.row_bytes, (last - first) * self.row_bytes)
        rows = np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])
        return [rows if key is None else rows[key] if isinstance(key, str) else rows[:, key] for key in keys]


class Table(NamedTuple):
    """The columns t, x, y, p: four keys of one array, or one key of each of four arrays of the same length."""

    parts: tuple[tuple[StoredArray, tuple[Key, ...]], ...]
    num_rows: int
    time_name: str  # of the column; empty if it has no name
    note: str  # which columns, and how they were found

    def read(self, first: int, last: int) -> list[NDArray[Any]]:
        """Return t, x, y, p of rows ``first`` to ``last`` (not included), of the types in the file."""
        columns = []
        for array, keys in self.parts:
            for column in array.read(first, last, keys):
                if column.ndim != 1 or column.dtype.kind not in "iufb":
                    raise FormatError(f"{array.name}: holds values of type {array.dtype}; expected integers or floats")
                columns.append(column)
        return columns

    def sample(self) -> list[NDArray[Any]]:
        """Return t, x, y, p of rows from all over the file, in file order: all rows, or 64 runs of 1024."""
        if self.num_rows <= SAMPLE_RUNS * SAMPLE_RUN_ROWS:
            return self.read(0, self.num_rows)
        starts = np.linspace(0, self.num_rows - SAMPLE_RUN_ROWS, SAMPLE_RUNS).astype(np.int64).tolist()
        pieces = [self.read(start, start + SAMPLE_RUN_ROWS) for start in starts]
        return [np.concatenate(column) for column in zip(*pieces, strict=True)]


def find_table(array: StoredArray, num_rows: int, options: Options) -> Table:
    """Find the four columns of a structured or N×4 array."""
    names = array.dtype.names
    if names is not None:
        roles = find_roles(names)
        if roles is None or len(array.shape) != 1:
            raise FormatError(
                f"{array.name}: is an array of shape {array.shape} with the fields {list_names(names)}; expected one"
                " dimension and fields t, x, y, p"
            )
        _refuse_order(array.name, options)
        fields = tuple(names[roles[role]] for role in ROLES)
        return Table(((array, fields),), num_rows, fields[0], f"{', '.join(fields)} (named)")
    if len(array.shape) != 2 or array.shape[1] != 4:
        turned = len(array.shape) == 2 and array.shape[0] == 4
        raise FormatError(
            f"{array.name}: is an array of shape {array.shape}; expected N×4 (columns t, x, y, p) or fields t, x, y, p"
            + ("; save its transpose" if turned else "")
        )
    if options.columns is not None:
        order, how = given_order(options.columns), "as given"
    else:
        as_stored = Table(((array, (0, 1, 2, 3)),), num_rows, "", "")
        order, how = recognise_order(array.name, np.stack(as_stored.sample(), axis=1), ARRAY_ORDERS), "recognised"
    return Table(((array, tuple(order.index(role) for role in ROLES)),), num_rows, "", f"{order} ({how})")


def _refuse_order(name: object, options: Options) -> None:
    if options.columns is not None:
        raise FateError(f"{name}: its columns have names; columns={options.columns!r} was given; leave it out")


class ArraySource(RowSource):
    """A table of events in a file or in one or four arrays of an archive."""

    thread_safe = True

    def __init__(
        self, file: ByteFile, archive: Archive | None, table: Table, options: Options, sensor: Sensor | None, tail: Tail
    ) -> None:
        row_bytes = sum(array.row_bytes for array, _ in table.parts)
        block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))
        super().__init__(file, options.sensor or sensor, table.num_rows, block_rows, Found(table.num_rows, {}, tail))
        self.format = "NPZ" if archive else "NPY"
        self._archive, self._table = archive, table
        floats = table.read(0, 0)[0].dtype.kind == "f"
        times = table.sample()[0] if floats else np.empty(0)
        times = times[np.isfinite(times)]
        whole = bool((times == np.rint(times)).all())
        self._unit = find_unit(options.time_unit, table.time_name, whole, integers=not floats)
        if len(times):
            warn_of_coarse_times(self.path, times, self._unit)
        self.notes = {"columns": table.note, "time unit": self._unit.note}

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        if self._archive:
            self._archive.verify()
        yield from super().scan()

    def rows(self, first: int, last: int) -> Columns:
        t, *others = self._table.read(first, last)
        x, y, p = (whole_numbers(self.path, role, v, first) for role, v in zip("xyp", others, strict=True))
        return Columns(microseconds(self.path, t, self._unit, first), x, y, p)

    def close(self) -> None:
        super().close()
        if self._archive:
            self._archive.close()


def open_npy(file: ByteFile, options: Options) -> ArraySource:
    """Open an NPY file with one table of events."""
    array = StoredArray(file.path, file.read(0, HEAD_BYTES), file)
    num_rows = min(array.num_rows, (file.size - array.start) // array.row_bytes)
    missing = array.num_rows - num_rows
    if missing and array.is_column_major:
        raise FormatError(
            f"{file.path}: ends after {file.size} bytes, and {array.start + array.num_bytes} are needed; it is cut"
            " short and, being stored column by column, has no whole rows; copy it again"
        )
    end = array.start + num_rows * array.row_bytes
    tail = Tail(file.size - end, end, f"{grouped(missing)} rows" if missing else "")
    return ArraySource(file, None, find_table(array, num_rows, options), options, None, tail)


# ---- NPZ ----------------------------------------------------------------------------------------------------


class Archive:
    """The arrays of one NPZ file, a ZIP with one ``name.npy`` per array.

    A stored array is read in place. A deflated one is inflated in pieces into a temporary file without a name; one that
    claims to be larger than deflate can make it is refused before that. zipfile compares each member that is read to
    its end with its checksum.
    """

    def __init__(self, file: ByteFile) -> None:
        self.path, self._file = file.path, file
        self._stored: list[zipfile.ZipInfo] = []  # members with events that are read in place
        self._opened = ExitStack()
        try:
            self._zip = self._opened.enter_context(zipfile.ZipFile(file.path))
        except DAMAGE:
            raise FormatError(
                f"{file.path}: has no readable table of contents, which a ZIP keeps at its end; it is cut short or"
                " damaged, copy it again"
            ) from None
        self._infos = {info.filename[:-4]: info for info in self._zip.infolist() if info.filename.endswith(".npy")}
        self.keys = list(self._infos)  # names of the arrays

    def _pieces(self, info: zipfile.ZipInfo, piece_bytes: int) -> Iterator[bytes]:
        """Yield the bytes of a member in order, and refuse a member that is damaged."""
        name, reason = f"{self.path}: {info.filename}", ""
        if info.flag_bits & ENCRYPTED:
            reason = "is encrypted"
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            reason = f"is compressed by method {info.compress_type}"
        elif info.file_size > MAX_DEFLATE_RATIO * (info.compress_size + 1):
            reason = f"claims to grow from {info.compress_size} to {info.file_size} bytes, more than deflate can"
        if reason:
            raise FormatError(f"{name} {reason}; save it again with numpy.savez or savez_compressed")
        num_bytes = 0
        try:
            with self._zip.open(info) as stream:  # gives at most the size that the directory claims
                while piece := stream.read(piece_bytes):
                    num_bytes += len(piece)
                    yield piece
        except DAMAGE:
            raise self._damaged(info) from None
        if num_bytes != info.file_size:
            raise self._damaged(info)

    def _damaged(self, info: zipfile.ZipInfo) -> FormatError:
        name = f"{self.path}: {info.filename}"
        return FormatError(f"{name} is damaged (not the bytes of its checksum or size); copy it again")

    def _head(self, key: str) -> StoredArray:
        """Return an array whose header is known and whose rows cannot be read."""
        return StoredArray(f"{self.path}: array {key!r}", next(self._pieces(self._infos[key], HEAD_BYTES), b""))

    def array(self, key: str) -> StoredArray:
        """Return an array with events. Its member must hold exactly the bytes that its header promises."""
        info, array = self._infos[key], self._head(key)
        expected = array.start + array.num_bytes
        if info.file_size != expected:
            raise FormatError(
                f"{array.name} takes {info.file_size} bytes, and its header promises {expected}; the file is damaged,"
                " copy it again"
            )
        if info.compress_type == zipfile.ZIP_STORED:
            local = self._file.read(info.header_offset, LOCAL_HEADER.size).ljust(LOCAL_HEADER.size, b"\0")
            magic, name_bytes, extra_bytes = LOCAL_HEADER.unpack(local)
            start = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
            is_whole = info.compress_size == info.file_size and start + info.file_size <= self._file.size
            if magic != b"PK\x03\x04" or not is_whole:
                raise self._damaged(info)
            self._stored.append(info)
            array.file, array.start = self._file, array.start + start
            return array
        try:  # a temporary file without a name
            file = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  (closed with the archive)
            file.writelines(self._pieces(info, PIECE_BYTES))
            file.flush()
        except OSError as error:
            raise FormatError(
                f"{self.path}: {info.filename} needs {info.file_size} bytes of temporary space in"
                f" {tempfile.gettempdir()} ({error.strerror or error}); make room or set TMPDIR"
            ) from None
        array.file = ByteFile(self.path, file)
        return array

    def head(self, key: str) -> StoredArray | None:
        """Return an array without its rows; None if there is no such array or its header cannot be read."""
        with suppress(FormatError, KeyError):
            return self._head(key)
        return None

    def fact(self, key: str, kinds: str) -> list[Any]:
        """Return the values of a small array of one of these kinds of type; none if there is no such array."""
        array = self.head(key)
        if array is None or array.dtype.kind not in kinds or not 0 < array.num_bytes <= MAX_FACT_BYTES:
            return []
        if self._infos[key].file_size > HEAD_BYTES:
            return []
        content = b"".join(self._pieces(self._infos[key], HEAD_BYTES))[array.start :]
        return np.frombuffer(content, array.dtype).tolist() if len(content) == array.num_bytes else []

    def verify(self) -> None:
        """Compare the arrays that are read in place with their checksums."""
        for info in self._stored:
            for _ in self._pieces(info, PIECE_BYTES):
                pass

    def close(self) -> None:
        """Close the archive and the temporary files."""
        self._opened.close()


def open_npz(file: ByteFile, options: Options) -> ArraySource:
    """Open an NPZ archive: four columns by name, or one table under any name."""
    archive = Archive(file)
    try:
        if archive.fact("format", "U") == ["fate-labels"]:
            raise FormatError(f"{file.path}: holds labels, not events; give the recording they belong to")
        table, array = _find_columns(archive, options)
        size = archive.fact("sensor", "iu")
        if not size and (height := archive.fact("height", "iu")) and (width := archive.fact("width", "iu")):
            size = height + width
        try:
            sensor = options.sensor or (Sensor.of(size) if size else None)
        except FateError as error:
            raise FormatError(f"{file.path}: {error}; pass sensor=(height, width) instead") from None
        source = ArraySource(file, archive, table, options, sensor, Tail(0, file.size))
        source.notes = {"array": array, **source.notes} if array else source.notes
        return source
    except BaseException:
        archive.close()
        raise


def _find_columns(archive: Archive, options: Options) -> tuple[Table, str]:
    """Return the table of events and, if it is one array, the name of that array."""
    path, keys = archive.path, archive.keys
    roles = find_roles(keys)
    if roles is None:
        tables = [key for key in keys if (array := archive.head(key)) and array.is_table]
        if len(tables) != 1:
            listed = list_names(tables or keys)
            found = f"{len(tables)} tables of events ({listed})" if tables else f"the arrays {listed or '(none)'}"
            raise FormatError(f"{path}: holds {found}; expected columns t, x, y, p or one structured or N×4 array")
        array = archive.array(tables[0])
        return find_table(array, array.num_rows, options), tables[0]
    _refuse_order(path, options)
    named = [keys[roles[role]] for role in ROLES]
    arrays = [archive.array(key) for key in named]
    for array in arrays:
        if len(array.shape) != 1 or array.dtype.names is not None:
            raise FormatError(f"{array.name} is {array.dtype} of shape {array.shape}; expected one column")
    lengths = [array.num_rows for array in arrays]
    if len(set(lengths)) != 1:
        listed = ", ".join(f"{key} {length}" for key, length in zip(named, lengths, strict=True))
        raise FormatError(f"{path}: its columns are of different lengths ({listed}); expected one length")
    return Table(tuple((array, (None,)) for array in arrays), lengths[0], named[0], f"{', '.join(named)} (named)"), ""
