"""Where an HDF5 file keeps its events: the layout is found, and its claims are checked, before anything is read.

A damaged or hostile file may claim any number of rows, chunks of any size and links to anywhere; what this module
lets through is covered by chunks that lie inside the file, and is in this file alone.
"""

from __future__ import annotations

import importlib
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.errors import FormatError, MissingDependencyError
from fate.events.events import Sensor
from fate.events.tables import find_roles
from fate.formats.hdf5.text import root_text_attributes
from fate.formats.prophesee.ecf import FILTER_ID
from fate.formats.source import ByteFile, Options, refuse_damage, sensor_of_sides

PREFERRED = ("CD/events", "events", "")  # where to look first: Prophesee, RVT and DSEC, the root
DSEC_SENSOR = Sensor(480, 640)

MIN_BLOCK_ROWS, MAX_BLOCK_ROWS = 16_384, 262_144
MAX_CHUNK_BYTES = 64 << 20  # a chunk is unpacked whole, whatever part of it is wanted
MAX_NUMBER_BYTES = 64 << 10  # that a single number, such as the height, may take in the file
MIN_CACHE_BYTES = 4 << 20
MAX_OBJECTS = 10_000
MAX_DEPTH = 8
MAX_ATTRIBUTES = 64

PLUGIN_FILTERS = {
    307: "BZip2",
    32001: "Blosc",
    32004: "LZ4",
    32008: "Bitshuffle",
    32015: "Zstandard",
    32026: "Blosc2",
}


class ColumnPath(NamedTuple):
    """Where a column is: a dataset, and a field of its records unless it is a plain column."""

    dataset: str
    field: str | None


class Chunks(NamedTuple):
    """Chunks of one dataset in order of their rows.

    Args:
        rows: rows a chunk; record: their type.
        position, size: [chunks] int64, bytes in the file.
        plain: [chunks] bool, stored without the filter.
    """

    rows: int
    record: np.dtype[Any]
    position: NDArray[np.int64]
    size: NDArray[np.int64]
    plain: NDArray[np.bool_]


@dataclass(frozen=True)
class Layout:
    """What :func:`examine` has found: everything there is to know before the first event is read."""

    path: Path
    num_bytes: int
    format: str
    paths: dict[str, ColumnPath]  # of the columns t, x, y, p
    rows: int
    block_rows: int
    cache_bytes: int
    chunks: Chunks | None  # of ECF data, else None
    sensor: Sensor | None
    t_offset: int
    time_unit: str
    triggers: int
    notes: dict[str, str]


def damage_is_a_format_error(path: Path) -> AbstractContextManager[None]:
    """Turn the errors that h5py raises on damaged files into one :class:`FormatError`."""
    errors = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError)
    return refuse_damage(path, "HDF5", *errors)


def examine(raw: ByteFile, file: Any, options: Options) -> Layout:
    """Return the layout of a file that is open both as bytes and in h5py; refuse what is not a table of events."""
    path = raw.path
    datasets = _datasets(file)
    paths, group = _find_columns(path, datasets)
    names = list(dict.fromkeys(column.dataset for column in paths.values()))
    for name in names:
        refuse_other_files(path, datasets[name])
    num_bytes = raw.size
    rows = _number_of_rows(path, {name: datasets[name] for name in names})
    tables = {name: _chunk_table(path, datasets[name], num_bytes) for name in names}
    filters = {name: _filters(path, datasets[name]) for name in names}
    compressed = [name for name in names if FILTER_ID in filters[name]]
    if compressed and (len(names) > 1 or len(filters[names[0]]) > 1):
        raise FormatError(f"{path}: /{compressed[0]} combines ECF with other filters or columns; that is not known")
    _check_types(path, datasets, paths, options)

    scalars = {name: _scalar(path, file, datasets, group, name) for name in ("height", "width", "t_offset", "divider")}
    if scalars["divider"] not in (None, 1):
        raise FormatError(
            f"{path}: its coordinates are fractions of a pixel (divider = {scalars['divider']}); expected whole pixels"
        )
    dsec = "ms_to_idx" in datasets and "t_offset" in datasets
    prophesee = group == "CD/events" and paths["t"].field is not None
    rvt = group == "events" and None not in (scalars["height"], scalars["width"])
    kind = " Prophesee" if prophesee else " DSEC" if dsec else " RVT" if rvt else ""
    notes = _notes(raw, file)
    sensor = options.sensor or _sensor(path, scalars["height"], scalars["width"], notes.get("geometry"))
    triggers = datasets.get("EXT_TRIGGER/events")
    if triggers is not None:
        refuse_other_files(path, triggers)
    chunk_rows = datasets[paths["t"].dataset].chunks[0] if tables[paths["t"].dataset] else MIN_BLOCK_ROWS
    return Layout(
        path=path,
        num_bytes=num_bytes,
        format=f"HDF5{kind}",
        paths=paths,
        rows=rows,
        block_rows=chunk_rows if compressed else _block_rows(chunk_rows),
        cache_bytes=max([MIN_CACHE_BYTES, *(c.rows * c.record.itemsize for c in tables.values() if c)]),
        chunks=tables[compressed[0]] if compressed else None,
        sensor=sensor or (DSEC_SENSOR if dsec else None),
        t_offset=scalars["t_offset"] or 0,
        time_unit=options.time_unit or "us",
        triggers=int(triggers.shape[0]) if triggers is not None and triggers.ndim == 1 else 0,
        notes=notes | ({"t_offset": str(scalars["t_offset"])} if scalars["t_offset"] is not None else {}),
    )


def _datasets(file: Any) -> dict[str, Any]:
    """Every dataset by name. Only hard links are walked: nothing outside this file is opened.

    Walked here, group by group, because libhdf5's own walk never ends on some damaged groups; asking each for its
    number of members first makes it notice the damage. Groups linked into themselves end at ``MAX_DEPTH``.
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


def _find_columns(path: Path, datasets: dict[str, Any]) -> tuple[dict[str, ColumnPath], str]:
    """The four columns, and the group or the table of records that has them."""
    candidates: dict[str, dict[str, ColumnPath]] = {}
    groups: dict[str, dict[str, str]] = {}
    for name, dataset in datasets.items():
        group, _, last = name.rpartition("/")
        groups.setdefault(group, {})[last] = name
        if dataset.dtype.names and (columns := _match(dataset.dtype.names)):
            candidates[name] = {column: ColumnPath(name, member) for column, member in columns.items()}
    for group, members in groups.items():
        if columns := _match(members):
            candidates[group] = {column: ColumnPath(members[member], None) for column, member in columns.items()}
    for preferred in PREFERRED:
        if preferred in candidates:
            return candidates[preferred], preferred
    if len(candidates) == 1:
        [(group, paths)] = candidates.items()
        return paths, group
    if candidates:
        raise FormatError(
            f"{path}: holds {len(candidates)} tables of events ({', '.join(sorted(candidates)[:8])}); expected one;"
            " copy the one you want into a file of its own"
        )
    if any(_is_histograms(path, name, dataset) for name, dataset in datasets.items()):
        raise FormatError(
            f"{path}: holds histograms of events (a 4-dimensional dataset 'data', as RVT prepares them), not events;"
            " give the recording they were made from"
        )
    shown = ", ".join(sorted(datasets)[:8]) or "none"
    raise FormatError(
        f"{path}: has no table of events; expected /CD/events (Prophesee), a group events with x, y, p, t (RVT, DSEC)"
        f" or one group with those columns; datasets found: {shown}{' …' if len(datasets) > 8 else ''}"
    )


def _is_histograms(path: Path, name: str, dataset: Any) -> bool:
    """Whether a dataset looks like RVT's images of events."""
    if name.rpartition("/")[2] != "data":
        return False
    refuse_other_files(path, dataset)
    return bool(dataset.ndim == 4)


def _match(names: Any) -> dict[str, str] | None:
    """t, x, y, p → the name each has among ``names``; None when one is missing."""
    listed = list(names)
    roles = find_roles(listed)
    return {role: listed[position] for role, position in roles.items()} if roles else None


def _number_of_rows(path: Path, datasets: dict[str, Any]) -> int:
    for name, dataset in datasets.items():
        if dataset.ndim != 1:
            raise FormatError(f"{path}: /{name} has shape {dataset.shape}; expected one dimension, one row an event")
    rows = {name: int(dataset.shape[0]) for name, dataset in datasets.items()}
    if len(set(rows.values())) != 1:
        listed = ", ".join(f"/{name} {count}" for name, count in rows.items())
        raise FormatError(f"{path}: the columns have different lengths ({listed}); it was not written to its end")
    return next(iter(rows.values()))


def _check_types(path: Path, datasets: dict[str, Any], paths: dict[str, ColumnPath], options: Options) -> None:
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


def _block_rows(chunk_rows: int) -> int:
    """Rows a block: whole chunks where possible, neither tiny nor huge."""
    return min(-(-MIN_BLOCK_ROWS // chunk_rows) * chunk_rows, MAX_BLOCK_ROWS)


def refuse_other_files(path: Path, dataset: Any) -> None:
    """Raise where ``dataset`` keeps its values in other files, which HDF5 would open: any file, or a pipe that blocks.

    To be asked before anything else about a dataset: the shape of a virtual one can depend on other files.
    """
    settings = dataset.id.get_create_plist()
    if settings.get_layout() == h5py.h5d.VIRTUAL or settings.get_external_count():
        raise FormatError(
            f"{path}: {dataset.name} keeps its rows in other files; give a file that holds the events itself"
        )


def _refuse_large_chunks(path: Path, dataset: Any) -> None:
    """Raise where a chunk, which is unpacked whole, would take too much memory."""
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize if dataset.chunks else 0
    if size > MAX_CHUNK_BYTES:
        raise FormatError(
            f"{path}: {dataset.name} has chunks of {size >> 20} MiB; at most {MAX_CHUNK_BYTES >> 20} MiB are read;"
            f" rewrite it with smaller ones (h5repack -l {dataset.name}:CHUNK=65536)"
        )


def _chunk_table(path: Path, dataset: Any, num_bytes: int) -> Chunks | None:
    """The chunks of ``dataset`` (None when it has none), after checking that its rows really are in the file."""
    name, rows, item = dataset.name, int(dataset.shape[0]), dataset.dtype.itemsize
    if not dataset.chunks:
        if rows * item > min(num_bytes, dataset.id.get_storage_size()):
            raise FormatError(
                f"{path}: {name} claims {rows} rows, more than the file holds; it is cut short or damaged"
            )
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
        raise FormatError(
            f"{path}: {name} claims {rows} rows, but only {present} of its {expected} chunks were written; it is cut"
            " short or damaged"
        )
    table = np.array([found[chunk][:2] for chunk in range(expected)], np.int64).reshape(expected, 2)
    if expected and int(table.sum(axis=1).max()) > num_bytes:
        raise FormatError(f"{path}: chunks of {name} lie beyond the end of the file; it is cut short or damaged")
    plain = np.array([found[chunk][2] for chunk in range(expected)], bool)
    return Chunks(step, dataset.dtype, table[:, 0], table[:, 1], plain)


def _filters(path: Path, dataset: Any) -> list[int]:
    """The ids of the filters of ``dataset``, each ECF or known to HDF5 (once hdf5plugin has been asked)."""
    settings = dataset.id.get_create_plist()
    codes = []
    for i in range(settings.get_nfilters()):
        code, _, _, label = settings.get_filter(i)
        codes.append(int(code))
        if code == FILTER_ID or h5py.h5z.filter_avail(code):
            continue
        name = PLUGIN_FILTERS.get(code) or bytes(label).decode("utf-8", "replace")[:80] or "without a name"
        try:
            importlib.import_module("hdf5plugin")
        except ImportError:
            raise MissingDependencyError(
                f"{path}: {dataset.name} is compressed with {name} (HDF5 filter {code}); run pip install hdf5plugin"
                " to read it"
            ) from None
        if not h5py.h5z.filter_avail(code):
            raise FormatError(
                f"{path}: {dataset.name} is compressed with HDF5 filter {code} ({name}), which hdf5plugin does not"
                " have; rewrite it with h5repack where that filter is installed"
            )
    return codes


# ---- small facts ------------------------------------------------------------------------------------------------


def _scalar(path: Path, file: Any, datasets: dict[str, Any], group: str, name: str) -> int | None:
    """A whole number kept as a dataset or an attribute, of the events' group or of the root."""
    parent = f"{group}/" if group else ""
    for full in (parent + name, name):
        dataset = datasets.get(full)
        if dataset is not None:
            return _stored_number(path, dataset)
    for holder in (file[group] if group else file, file):
        number = _number(holder, name)
        if number is not None and float(number).is_integer():
            return int(number)
    return None


def _stored_number(path: Path, dataset: Any) -> int:
    """The one whole number of ``dataset``, which must be in this file and must not unpack to much more."""
    refuse_other_files(path, dataset)
    if dataset.size != 1 or dataset.dtype.kind not in "iu":
        raise FormatError(
            f"{path}: {dataset.name} is {dataset.dtype} of shape {dataset.shape}; expected one whole number"
        )
    _refuse_large_chunks(path, dataset)
    _filters(path, dataset)
    stored = int(dataset.id.get_storage_size())
    if not 0 < stored <= MAX_NUMBER_BYTES:
        raise FormatError(
            f"{path}: {dataset.name} is stored in {stored} bytes; expected one whole number, in 1 to"
            f" {MAX_NUMBER_BYTES} bytes; the file was not written to its end, or is damaged"
        )
    return int(np.ravel(dataset[()])[0])


def _number(holder: Any, name: str) -> int | float | None:
    """A number kept as an attribute."""
    if name not in holder.attrs:
        return None
    stored = holder.attrs.get_id(name)
    if stored.dtype.kind not in "iuf" or any(side != 1 for side in stored.shape):
        return None
    number: int | float = np.ravel(holder.attrs[name])[0].item()
    return number


def _notes(raw: ByteFile, file: Any) -> dict[str, str]:
    numbers = {str(name): _number(file, name) for name in list(file.attrs)[:MAX_ATTRIBUTES]}
    return root_text_attributes(raw) | {name: str(number) for name, number in numbers.items() if number is not None}


def _sensor(path: Path, height: int | None, width: int | None, geometry: str | None) -> Sensor | None:
    if height is not None and width is not None:
        return sensor_of_sides(path, height, width)
    if geometry is None:
        return None
    first, _, second = geometry.lower().partition("x")
    return sensor_of_sides(path, second, first)
