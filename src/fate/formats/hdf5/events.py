"""HDF5 recordings: Prophesee (OpenEB), RVT, DSEC, and any one table with the columns t, x, y and p.

* Prophesee: ``/CD/events``, records (x u2, y u2, p i2, t i8) in chunks of 16 384, compressed with ECF (see
  ``ecf.py``); ``/EXT_TRIGGER/events``; the sensor in the root attribute ``geometry``, "1280x720".
* RVT: a group ``events`` of four columns, with the sensor in ``events/height`` and ``events/width``.
* DSEC: the same four columns, ``/ms_to_idx``, and ``/t_offset``, which is added to every time; 640×480.

Times are µs as stored. ECF chunks are read straight from the file, so that they decode in several threads;
everything else goes through h5py.

A damaged or hostile file may claim any number of rows, chunks of any size and links to anywhere. :class:`Hdf5Source`
finds the table and checks these claims before anything is read: the rows are covered by chunks that lie inside the
file, and links to other files are not followed.
"""

from __future__ import annotations

import importlib
import math
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.errors import FormatError, missing_packages
from fate.events.events import Sensor, find_roles
from fate.formats.decoder import Columns, concatenate
from fate.formats.hdf5.text import root_text_attributes
from fate.formats.prophesee.ecf import FILTER_ID, decode_chunk
from fate.formats.source import ByteFile, Found, Options, RowSource, Tail, refuse_damage, sensor_of_sides
from fate.formats.tables.fields import given_unit, microseconds

PREFERRED = ("CD/events", "events", "")  # where to look first: Prophesee, RVT and DSEC, the root
DSEC_SENSOR = Sensor(480, 640)

MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 16_384, 262_144
MAX_CHUNK_BYTES = 64 << 20  # a chunk is unpacked whole, whatever part of it is wanted
MAX_NUMBER_BYTES = 64 << 10  # that a single number, such as the height, may take in the file
MIN_CACHE_BYTES = 4 << 20
CACHE_SLOTS = 10_007  # a prime, as the hash of chunk numbers wants it
MAX_OBJECTS = 10_000
MAX_DEPTH = 8
MAX_ATTRIBUTES = 64

Paths = dict[str, tuple[str, str | None]]  # t, x, y, p → a dataset, and a field of its records or None


class Chunks(NamedTuple):
    """Chunks of one dataset, in order of their rows."""

    rows: int  # of one chunk
    record: np.dtype[Any]  # type of a row
    position: NDArray[np.int64]  # [chunks] bytes from the start of the file
    size: NDArray[np.int64]  # [chunks] bytes
    plain: NDArray[np.bool_]  # [chunks] stored without the filter


def damage_is_a_format_error(path: Path) -> AbstractContextManager[None]:
    """Turn the errors that h5py raises on damaged files into one :class:`FormatError`."""
    errors = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
    return refuse_damage(path, "HDF5", *errors)


def open_hdf5(raw: ByteFile, options: Options) -> Hdf5Source:
    """Open an HDF5 file, find its layout and check its claims against its size."""
    with damage_is_a_format_error(raw.path), ExitStack() as opened:
        file = opened.enter_context(h5py.File(raw.path, "r", rdcc_nbytes=MIN_CACHE_BYTES, rdcc_nslots=CACHE_SLOTS))
        source = Hdf5Source(raw, file, options)
        opened.pop_all()
        return source


class Hdf5Source(RowSource):
    """A table of events in a file that is open both as bytes and in h5py."""

    def __init__(self, raw: ByteFile, file: Any, options: Options) -> None:
        path = raw.path
        datasets = _datasets(file)
        self._paths, group = _find_columns(path, datasets)
        used = {name: datasets[name] for name, _ in self._paths.values()}
        for dataset in used.values():
            refuse_other_files(path, dataset)
        shapes = {name: dataset.shape for name, dataset in used.items()}
        if {len(shape) for shape in shapes.values()} != {1} or len(set(shapes.values())) > 1:
            listed = ", ".join(f"/{name} {shape}" for name, shape in shapes.items())
            raise FormatError(f"{path}: has columns of the shapes {listed}; expected one dimension and one length")
        num_rows = int(next(iter(shapes.values()))[0])
        tables = {name: _chunk_table(path, dataset, raw.size) for name, dataset in used.items()}
        filters = [check_filters(path, dataset) for dataset in used.values()]
        is_ecf = any(FILTER_ID in each for each in filters)
        if is_ecf and filters != [[FILTER_ID]]:
            raise FormatError(
                f"{path}: {next(iter(used))} combines ECF with other filters or columns; expected one table"
            )
        _check_types(path, datasets, self._paths, options)

        names = ("height", "width", "t_offset", "divider")
        height, width, t_offset, divider = (_scalar(path, file, datasets, group, name) for name in names)
        if divider not in (None, 1):
            raise FormatError(
                f"{path}: its coordinates are fractions of a pixel (divider = {divider}); expected whole pixels"
            )
        dsec = "ms_to_idx" in datasets and "t_offset" in datasets
        prophesee = group == "CD/events" and self._paths["t"][1] is not None
        rvt = group == "events" and None not in (height, width)
        self.format = "HDF5" + (" Prophesee" if prophesee else " DSEC" if dsec else " RVT" if rvt else "")
        numbers = {str(name): _number(file, name) for name in list(file.attrs)[:MAX_ATTRIBUTES]}
        self.notes = root_text_attributes(raw) | {key: str(each) for key, each in numbers.items() if each is not None}
        if t_offset is not None:
            self.notes["t_offset"] = str(t_offset)
        sensor, geometry = options.sensor, self.notes.get("geometry")
        if sensor is None and (height is not None and width is not None):
            sensor = sensor_of_sides(path, height, width)
        elif sensor is None and geometry is not None:
            width_text, _, height_text = geometry.lower().partition("x")
            sensor = sensor_of_sides(path, height_text, width_text)
        triggers = datasets.get("EXT_TRIGGER/events")
        if triggers is not None:
            refuse_other_files(path, triggers)
        num_triggers = int(triggers.shape[0]) if triggers is not None and triggers.ndim == 1 else 0

        times = tables[self._paths["t"][0]]
        chunk_rows = times.rows if times else MIN_BLOCK_ROWS
        # whole chunks where possible, neither tiny nor huge
        block_rows = min(-(-MIN_BLOCK_ROWS // chunk_rows) * chunk_rows, MAX_BLOCK_ROWS)
        found = Found(num_rows, {"triggers": num_triggers} if num_triggers else {}, Tail(0, raw.size))
        sensor = sensor or (DSEC_SENSOR if dsec else None)
        super().__init__(raw, sensor, num_rows, chunk_rows if is_ecf else block_rows, found)
        self.thread_safe = is_ecf
        self._chunks = times if is_ecf else None
        self._t_offset, self._time_unit = t_offset or 0, options.time_unit or "us"
        cache_bytes = max(chunks.rows * chunks.record.itemsize if chunks else 0 for chunks in tables.values())
        if cache_bytes > MIN_CACHE_BYTES:  # so that no chunk is unpacked twice
            file.close()
            file = h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=CACHE_SLOTS)
        self._hdf5, self._datasets = file, {name: file[name] for name in used}

    def rows(self, first: int, last: int) -> Columns:
        with damage_is_a_format_error(self.path):
            if self._chunks:
                columns = self._ecf_rows(self._chunks, first, last)
            else:
                columns = self._columns({name: dataset[first:last] for name, dataset in self._datasets.items()})
        self._file.check_unchanged()
        t, offset, unit = columns.t, self._t_offset, self._time_unit
        if offset and len(t):
            for extreme in (t.min(), t.max()):
                if np.isfinite(extreme) and abs(int(extreme)) + abs(offset) >= 2**63:
                    raise FormatError(f"{self.path}: holds the time {extreme} {unit}, more than 64-bit integers carry")
            t = t.astype(np.float64) + offset if t.dtype.kind == "f" else t.astype(np.int64) + np.int64(offset)
        return columns._replace(t=microseconds(self.path, t, given_unit(unit), first))

    def _columns(self, rows: dict[str, NDArray[Any]]) -> Columns:
        """Return the four columns, in native byte order, from the same rows of each dataset."""
        paths = [self._paths[role] for role in "txyp"]
        columns = [rows[name] if field is None else rows[name][field] for name, field in paths]
        return Columns(*(np.ascontiguousarray(column, column.dtype.newbyteorder("=")) for column in columns))

    def _ecf_rows(self, chunks: Chunks, first: int, last: int) -> Columns:
        """Read rows of a table compressed with ECF chunk by chunk; the last chunk may be padded to its full size."""
        pieces = []
        (table,) = self._datasets
        for chunk in range(first // chunks.rows, -(-last // chunks.rows)):
            begin = chunk * chunks.rows
            expected = min(chunks.rows, self._num_rows - begin)
            name = f"{self.path}: chunk {chunk} of /{table}"
            data = self._file.read(int(chunks.position[chunk]), int(chunks.size[chunk]))
            if chunks.plain[chunk]:
                whole = len(data) // chunks.record.itemsize
                columns = self._columns({table: np.frombuffer(data, chunks.record, min(whole, expected))})
            else:
                columns = decode_chunk(data, chunks.rows, name)
            if len(columns.t) < expected:
                raise FormatError(f"{name}: is damaged ({len(columns.t)} events where {expected} were expected)")
            pieces.append(columns.slice(max(first - begin, 0), min(last - begin, expected)))
        return concatenate(pieces)

    def close(self) -> None:
        super().close()
        self._hdf5.close()


# ---- the layout --------------------------------------------------------------------------------------------------


def _datasets(file: Any) -> dict[str, Any]:
    """Return every dataset by name. Only hard links are followed, so nothing outside this file is opened.

    This walks group by group, because libhdf5's own walk never ends on some damaged groups. libhdf5 notices the damage
    when it is asked for the number of members. Groups that are linked into themselves end at ``MAX_DEPTH``.
    """
    found: dict[str, Any] = {}
    groups = [("", file)]
    for prefix, group in groups:
        if group.id.get_num_objs() + len(found) + len(groups) > MAX_OBJECTS:
            raise ValueError(f"more than {MAX_OBJECTS} groups and datasets")
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            item = group[name]
            if isinstance(item, h5py.Dataset):
                found[prefix + name] = item
            elif isinstance(item, h5py.Group) and prefix.count("/") < MAX_DEPTH:
                groups.append((f"{prefix}{name}/", item))
    return found


def _find_columns(path: Path, datasets: dict[str, Any]) -> tuple[Paths, str]:
    """Find the four columns, and the group or the table of records that has them."""
    candidates: dict[str, Paths] = {}
    groups: dict[str, list[str]] = {}
    for name, dataset in datasets.items():
        group, _, last = name.rpartition("/")
        groups.setdefault(group, []).append(last)
        fields = dataset.dtype.names
        if fields and (roles := find_roles(fields)):
            candidates[name] = {role: (name, fields[i]) for role, i in roles.items()}
    for group, members in groups.items():
        if roles := find_roles(members):
            prefix = f"{group}/" if group else ""
            candidates[group] = {role: (prefix + members[i], None) for role, i in roles.items()}
    for name in (*PREFERRED, *(candidates if len(candidates) == 1 else ())):
        if name in candidates:
            return candidates[name], name
    if candidates:
        raise FormatError(
            f"{path}: holds {len(candidates)} tables of events ({', '.join(sorted(candidates)[:8])}); expected one;"
            " copy the one you want into a file of its own"
        )
    for name, dataset in datasets.items():
        if name.rpartition("/")[2] == "data":
            refuse_other_files(path, dataset)
            if dataset.ndim == 4:
                raise FormatError(
                    f"{path}: holds histograms of events (a 4-dimensional dataset 'data', as RVT prepares them), not"
                    " events; give the recording they were made from"
                )
    shown = ", ".join(sorted(datasets)[:8]) or "none"
    raise FormatError(
        f"{path}: has no table of events; expected /CD/events (Prophesee), a group events with x, y, p, t (RVT, DSEC)"
        f" or one group with those columns; datasets found: {shown}{' …' if len(datasets) > 8 else ''}"
    )


def _check_types(path: Path, datasets: dict[str, Any], paths: Paths, options: Options) -> None:
    for column, (name, member) in paths.items():
        dtype = datasets[name].dtype if member is None else datasets[name].dtype[member]
        where = f"/{name}" if member is None else f"/{name}, field {member},"
        if column == "t" and dtype.kind == "f":
            if options.time_unit is None:
                raise FormatError(
                    f'{path}: {where} holds times as {dtype}, without a unit; pass time_unit="s", or ms, us, ns'
                )
        elif dtype.kind not in "iu" and not (column == "p" and dtype.kind == "b"):
            raise FormatError(f"{path}: {where} is of type {dtype}; expected integers for column {column}")


def refuse_other_files(path: Path, dataset: Any) -> None:
    """Refuse a dataset that keeps its values in other files, which HDF5 would open: any file, or a pipe that blocks.

    Call this before anything else about a dataset is read: the shape of a virtual one can depend on other files.
    """
    settings = dataset.id.get_create_plist()
    if settings.get_layout() == h5py.h5d.VIRTUAL or settings.get_external_count():
        raise FormatError(
            f"{path}: {dataset.name} keeps its rows in other files; give a file that holds the events itself"
        )


def _refuse_large_chunks(path: Path, dataset: Any) -> None:
    """Refuse chunks that would take too much memory: a chunk is always unpacked whole."""
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
    if size > MAX_CHUNK_BYTES:
        raise FormatError(
            f"{path}: {dataset.name} has chunks of {size >> 20} MiB; at most {MAX_CHUNK_BYTES >> 20} MiB are read;"
            f" rewrite it with smaller ones (h5repack -l {dataset.name}:CHUNK=65536)"
        )


def _chunk_table(path: Path, dataset: Any, num_bytes: int) -> Chunks | None:
    """Return the chunks of ``dataset``, None if it has none, after checking that all its rows are in the file."""
    name, rows, item = dataset.name, int(dataset.shape[0]), dataset.dtype.itemsize
    if not dataset.chunks:
        if rows * item > min(num_bytes, dataset.id.get_storage_size()):
            raise ValueError(f"{name} claims {rows} rows, more than the file holds")
        return None
    step = int(dataset.chunks[0])
    _refuse_large_chunks(path, dataset)
    found: dict[int, tuple[int, int, bool]] = {}

    def note(info: Any) -> bool | None:
        found[info.chunk_offset[0] // step] = (info.byte_offset, info.size, info.filter_mask != 0)
        return True if len(found) * 8 > num_bytes else None  # more entries than the file has room for

    dataset.id.chunk_iter(note)
    expected = -(-rows // step)
    present = sum(chunk < expected for chunk in found)
    if present < expected:
        raise ValueError(f"{name} claims {rows} rows, but only {present} of its {expected} chunks were written")
    position, size, plain = np.array([found[chunk] for chunk in range(expected)], np.int64).reshape(expected, 3).T
    if expected and int((position + size).max()) > num_bytes:
        raise ValueError(f"chunks of {name} lie beyond the end of the file")
    return Chunks(step, dataset.dtype, position, size, plain.astype(bool))


def check_filters(path: Path, dataset: Any) -> list[int]:
    """Return the ids of the filters of ``dataset``; each is ECF, or known to HDF5 or to hdf5plugin."""
    settings = dataset.id.get_create_plist()
    codes = []
    for i in range(settings.get_nfilters()):
        code, _, _, label = settings.get_filter(i)
        codes.append(int(code))
        if code == FILTER_ID or h5py.h5z.filter_avail(code):
            continue
        name = f"HDF5 filter {code} ({bytes(label).decode('utf-8', 'replace')[:80] or 'without a name'})"
        try:
            importlib.import_module("hdf5plugin")
        except ImportError:
            raise missing_packages(f"{path}: {dataset.name}, compressed with {name},", ("hdf5plugin",)) from None
        if not h5py.h5z.filter_avail(code):
            raise FormatError(
                f"{path}: {dataset.name} is compressed with {name}, which hdf5plugin does not have; rewrite it with"
                " h5repack where that filter is installed"
            )
    return codes


def _scalar(path: Path, file: Any, datasets: dict[str, Any], group: str, name: str) -> int | None:
    """Return a whole number that the group of the events or the root holds as a dataset or an attribute, else None."""
    dataset = datasets.get(f"{group}/{name}", datasets.get(name))
    if dataset is None:
        numbers = [_number(holder, name) for holder in (file[group] if group else file, file)]
        return next((int(each) for each in numbers if each is not None and float(each).is_integer()), None)
    # the number must be in this file and must not unpack to much more
    refuse_other_files(path, dataset)
    if dataset.size != 1 or dataset.dtype.kind not in "iu":
        raise FormatError(
            f"{path}: {dataset.name} is {dataset.dtype} of shape {dataset.shape}; expected one whole number"
        )
    _refuse_large_chunks(path, dataset)
    check_filters(path, dataset)
    stored = int(dataset.id.get_storage_size())
    if not 0 < stored <= MAX_NUMBER_BYTES:
        raise ValueError(f"{dataset.name}, one whole number, is stored in {stored} bytes")
    return int(np.ravel(dataset[()])[0])


def _number(holder: Any, name: str) -> int | float | None:
    """Return the number that an attribute holds, else None."""
    stored = holder.attrs.get_id(name) if name in holder.attrs else None
    if stored is None or stored.dtype.kind not in "iuf" or any(side != 1 for side in stored.shape):
        return None
    number: int | float = np.ravel(holder.attrs[name])[0].item()
    return number
