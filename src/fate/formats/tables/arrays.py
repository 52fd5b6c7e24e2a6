"""NumPy files: one array (NPY), or an archive of arrays (NPZ).

Events are a structured array with fields t, x, y, p (or their usual other names), an N×4 array of numbers, or, in an
archive, four one-dimensional arrays. Nothing is ever unpickled, and nothing is loaded whole: rows are read by
position from the file (or, for compressed archives, from a temporary copy). An archive may give the sensor as
``sensor`` (height, width) or as ``height`` and ``width``; a plain array cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError, list_names
from fate.events.events import Sensor
from fate.formats.columns import Columns
from fate.formats.decoder import spaced
from fate.formats.source import Bookmark, ByteFile, Hints, Source, Tail
from fate.formats.tables.fields import (
    ARRAY_ORDERS,
    ROLES,
    TimeUnit,
    assumed_unit,
    find_roles,
    given_order,
    given_unit,
    microseconds,
    named_unit,
    recognise_order,
    warn_of_coarse_times,
    whole_numbers,
)
from fate.formats.tables.npz_members import Archive, Member
from fate.formats.tables.stored_array import Rows, StoredArray

BLOCK_ROWS = 8192
BLOCK_BYTES = 4 << 20  # rows that are very long come in shorter blocks
SAMPLE_RUNS, SAMPLE_RUN_ROWS = 64, 1024  # looked at to recognise the order of the columns and the unit of time
STATELESS = np.empty(0, np.int64)


class Cell(NamedTuple):
    """Where one of t, x, y, p is: in which run of rows, and there in which field or column (None: it is the run)."""

    run: int
    key: str | int | None


class Table(NamedTuple):
    """Four columns, spread over one or four runs of rows of the same length."""

    runs: tuple[Rows, ...]
    cells: tuple[Cell, Cell, Cell, Cell]  # of t, x, y, p
    num_rows: int
    time_name: str = ""  # where the column has one

    def read(self, first: int, last: int) -> tuple[NDArray[Any], ...]:
        """t, x, y, p of rows ``first`` to ``last`` (not included), of the types they have in the file."""
        read = [run.read(first, last) for run in self.runs]
        return tuple(_cell(read[cell.run], cell.key) for cell in self.cells)

    def sample(self) -> tuple[NDArray[Any], ...]:
        """The same for rows from all over the file, in file order: all of them, or 64 runs of 1024."""
        spans = sample_spans(self.num_rows)
        pieces = [self.read(first, last) for first, last in spans]
        return tuple(np.concatenate([piece[i] for piece in pieces]) for i in range(4))


def sample_spans(num_rows: int) -> list[tuple[int, int]]:
    """Runs of rows spread evenly over a file."""
    if num_rows <= SAMPLE_RUNS * SAMPLE_RUN_ROWS:
        return [(0, num_rows)]
    starts = np.linspace(0, num_rows - SAMPLE_RUN_ROWS, SAMPLE_RUNS).astype(np.int64)
    return [(int(start), int(start) + SAMPLE_RUN_ROWS) for start in starts]


def _cell(rows: NDArray[Any], key: str | int | None) -> NDArray[Any]:
    if key is None:
        return rows
    return rows[key] if isinstance(key, str) else rows[:, key]


class ArraySource(Source):
    """A table of events; positions are rows."""

    thread_safe = True

    def __init__(
        self,
        path: Path,
        format: str,
        size: int,
        table: Table,
        *,
        unit: TimeUnit,
        sensor: Sensor | None,
        notes: dict[str, str],
        tail: Tail,
        verify: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self.path, self.format, self.size, self.sensor, self.notes = path, format, size, sensor, notes
        self._table, self._unit, self._tail, self._verify, self._close = table, unit, tail, verify, close
        row_bytes = sum(run.row_bytes for run in table.runs)
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        self._verify()
        for first in range(0, self._table.num_rows, self._block_rows):
            start = Bookmark(first, STATELESS)
            yield start, self.decode(start, min(first + self._block_rows, self._table.num_rows))

    def decode(self, start: Bookmark, end: int) -> Columns:
        first = start.position
        t, x, y, p = self._table.read(first, end)
        return Columns(
            microseconds(self.path, t, self._unit, first),
            *(whole_numbers(self.path, r, v, first) for r, v in zip("xyp", (x, y, p), strict=True)),
        )

    def end(self) -> int:
        return self._table.num_rows

    def tail(self) -> Tail:
        return self._tail

    def close(self) -> None:
        self._close()


# ---- NPY ----------------------------------------------------------------------------------------------------


def open_npy(path: Path, hints: Hints) -> ArraySource:
    """An NPY file with one table of events."""
    file = ByteFile(path, can_grow=False)
    try:
        array = StoredArray(path, file)
        available = (file.size - array.start) // array.row_bytes
        num_rows = min(array.num_rows, available)
        if num_rows < array.num_rows and array.column_by_column:
            raise FormatError(
                f"{path}: ends after {file.size} bytes, and {array.start + array.num_bytes} are needed; it is cut short"
                " and, being stored column by column, has no whole rows; copy it again"
            )
        end = array.start + num_rows * array.row_bytes
        missing = array.num_rows - num_rows
        tail = Tail(file.size - end, end, f"{spaced(missing)} rows" if missing else "")
        table, notes = table_of_one(path, array, num_rows, hints)
        unit = _unit(path, table, hints, notes)
        return ArraySource(
            path,
            "NPY",
            file.size,
            table,
            unit=unit,
            sensor=hints.sensor,
            notes=notes,
            tail=tail,
            verify=lambda: None,
            close=file.close,
        )
    except BaseException:
        file.close()
        raise


def table_of_one(name: object, array: StoredArray, num_rows: int, hints: Hints) -> tuple[Table, dict[str, str]]:
    """The four columns of a structured or N×4 array, and how they were found."""
    names = array.dtype.names
    if names is not None:
        roles = find_roles(names)
        if roles is None or len(array.shape) != 1:
            raise FormatError(
                f"{name}: is an array of shape {array.shape} with the fields {list_names(names)}; expected one"
                " dimension and fields t, x, y, p"
            )
        _refuse_order(name, hints)
        fields = {role: names[roles[role]] for role in ROLES}
        array.check_numbers(*fields.values())
        cells = tuple(Cell(0, fields[role]) for role in ROLES)
        table = Table((array.rows(),), cells, num_rows, fields["t"])  # type: ignore[arg-type]
        return table, {"columns": f"{', '.join(fields.values())} (named)"}
    if len(array.shape) != 2 or array.shape[1] != 4:
        turned = len(array.shape) == 2 and array.shape[0] == 4
        raise FormatError(
            f"{name}: is an array of shape {array.shape}; expected N×4 (columns t, x, y, p) or fields t, x, y, p"
            + ("; save its transpose" if turned else "")
        )
    array.check_numbers()
    if array.column_by_column:
        runs = tuple(array.column(i) for i in range(4))
        keys = [Cell(i, None) for i in range(4)]
    else:
        runs = (array.rows(),)
        keys = [Cell(0, i) for i in range(4)]
    as_stored = Table(runs, tuple(keys), num_rows)  # type: ignore[arg-type]
    if hints.columns is not None:
        order, how = given_order(hints.columns), "as given"
    else:
        order, how = recognise_order(name, np.stack(as_stored.sample(), axis=1), ARRAY_ORDERS), "recognised"
    cells = tuple(keys[order.index(role)] for role in ROLES)
    return Table(runs, cells, num_rows), {"columns": f"{order} ({how})"}  # type: ignore[arg-type]


def _refuse_order(name: object, hints: Hints) -> None:
    if hints.columns is not None:
        raise FateError(f"{name}: its columns have names; columns={hints.columns!r} was given; leave it out")


def _unit(name: object, table: Table, hints: Hints, notes: dict[str, str]) -> TimeUnit:
    """The unit of time: as given, else by the type and, for floats, by what the sample holds."""
    floats = table.read(0, 0)[0].dtype.kind == "f"
    times = table.sample()[0] if floats else np.empty(0)
    times = times[np.isfinite(times)]
    unit = given_unit(hints.time_unit) if hints.time_unit else named_unit(table.time_name)
    if unit is None:
        unit = assumed_unit(whole=bool((times == np.rint(times)).all()), integers=not floats)
    if len(times):
        warn_of_coarse_times(name, times, unit)
    notes["time unit"] = unit.note
    return unit


# ---- NPZ ----------------------------------------------------------------------------------------------------


def open_npz(path: Path, hints: Hints) -> ArraySource:
    """An NPZ archive: four columns by name, or one table under any name."""
    archive = Archive(path)
    try:
        if archive.text("format") == "fate-labels":
            raise FormatError(f"{path}: holds labels, not events; give the recording they belong to")
        members, table, notes = _table_of(path, archive, hints)
        unit = _unit(path, table, hints, notes)

        def verify() -> None:
            for member in members:
                member.verify()

        return ArraySource(
            path,
            "NPZ",
            archive.size,
            table,
            unit=unit,
            sensor=hints.sensor or _sensor(path, archive),
            notes=notes,
            tail=Tail(0, archive.size),
            verify=verify,
            close=archive.close,
        )
    except BaseException:
        archive.close()
        raise


def _table_of(path: Path, archive: Archive, hints: Hints) -> tuple[list[Member], Table, dict[str, str]]:
    keys = archive.keys()
    roles = find_roles(keys)
    if roles is not None:
        _refuse_order(path, hints)
        named = [keys[roles[role]] for role in ROLES]
        members = [archive.member(key) for key in named]
        arrays = [_whole_array(path, key, member) for key, member in zip(named, members, strict=True)]
        for key, array in zip(named, arrays, strict=True):
            if len(array.shape) != 1 or array.dtype.names is not None:
                raise FormatError(f"{path}: array {key!r} is {array.dtype} of shape {array.shape}; expected one column")
            array.check_numbers()
        lengths = [array.num_rows for array in arrays]
        if len(set(lengths)) != 1:
            listed = ", ".join(f"{key} {length}" for key, length in zip(named, lengths, strict=True))
            raise FormatError(f"{path}: its columns are of different lengths ({listed}); expected one length")
        cells = tuple(Cell(i, None) for i in range(4))
        table = Table(tuple(array.rows() for array in arrays), cells, lengths[0], named[0])  # type: ignore[arg-type]
        return members, table, {"columns": f"{', '.join(named)} (named)"}
    tables = [key for key in keys if _is_table(archive.header(key))]
    if len(tables) != 1:
        listed = list_names(tables or keys)
        found = f"{len(tables)} tables of events ({listed})" if tables else f"the arrays {listed or '(none)'}"
        raise FormatError(f"{path}: holds {found}; expected columns t, x, y, p or one structured or N×4 array")
    key = tables[0]
    member = archive.member(key)
    array = _whole_array(path, key, member)
    table, notes = table_of_one(f"{path}: array {key!r}", array, array.num_rows, hints)
    return [member], table, {"array": key, **notes}


def _whole_array(path: Path, key: str, member: Member) -> StoredArray:
    """The array of a member that holds exactly the bytes its header promises."""
    array = StoredArray(f"{path}: array {key!r}", member)
    expected = array.start + array.num_bytes
    if member.size != expected:
        raise FormatError(
            f"{path}: array {key!r} takes {member.size} bytes, and its header promises {expected}; the file is damaged,"
            " copy it again"
        )
    return array


def _is_table(array: StoredArray | None) -> bool:
    if array is None:
        return False
    if array.dtype.names is not None:
        return len(array.shape) == 1 and find_roles(array.dtype.names) is not None
    return len(array.shape) == 2 and array.shape[1] == 4 and array.dtype.kind in "iufb"


def _sensor(path: Path, archive: Archive) -> Sensor | None:
    """The sensor size that the archive gives."""
    size = archive.integers("sensor")
    if size is None:
        height, width = archive.integers("height"), archive.integers("width")
        if height is None or width is None:
            return None
        size = height + width
    try:
        return Sensor.of(size)
    except FateError as error:
        raise FormatError(f"{path}: {error}; pass sensor=(height, width) instead") from None
