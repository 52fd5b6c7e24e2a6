"""Writing events: the format follows the suffix, or is asked for by name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.writing import EventWriter

# name → writer
WRITERS: dict[str, str] = {
    "dat": "fate.formats.prophesee.dat:DatWriter",
    "evt2": "fate.formats.prophesee.evt_writers:Evt2Writer",
    "evt21": "fate.formats.prophesee.evt_writers:Evt21Writer",
    "evt3": "fate.formats.prophesee.evt_writers:Evt3Writer",
    "prophesee-hdf5": "fate.formats.hdf5.writers:PropheseeHdf5Writer",
    "rvt-hdf5": "fate.formats.hdf5.writers:RvtHdf5Writer",
    "npz": "fate.formats.tables.writers:NpzWriter",
    "npy": "fate.formats.tables.writers:NpyWriter",
    "csv": "fate.formats.tables.writers:CsvWriter",
}

BY_SUFFIX: dict[str, str] = {
    ".dat": "dat",
    ".raw": "evt3",
    ".hdf5": "prophesee-hdf5",
    ".h5": "rvt-hdf5",
    ".npz": "npz",
    ".npy": "npy",
    ".csv": "csv",
    ".txt": "csv",
}


def open_writer(path: str | os.PathLike[str], sensor: Sequence[int], format: str | None = None) -> EventWriter:
    """A writer that takes events in pieces, for a sensor of ``(height, width)``; use it in a ``with`` block."""
    return find_writer(path, format)(path, Sensor.of(sensor))


def find_writer(path: str | os.PathLike[str], format: str | None = None) -> type[EventWriter]:
    """The class that writes a format: a key of ``WRITERS``, or the one that the suffix of ``path`` names."""
    name = format or BY_SUFFIX.get(Path(path).suffix.lower())
    if name is None:
        raise FateError(
            f"{path}: the suffix {Path(path).suffix!r} names no format that can be written; use one of"
            f" {', '.join(BY_SUFFIX)}, or name the format with format=NAME: {', '.join(WRITERS)}"
        )
    if name not in WRITERS:
        raise FateError(f"{path}: format {name!r} cannot be written; known are {', '.join(WRITERS)}")
    module, _, cls = WRITERS[name].partition(":")
    writer: type[EventWriter] = getattr(importlib.import_module(module), cls)
    return writer


def write_events(
    path: str | os.PathLike[str], events: Events, *, format: str | None = None, zero_time: bool = False
) -> None:
    """Write ``events`` to ``path``, whole or not at all.

    Args:
        path: the suffix gives the format: .dat, .raw (EVT3), .hdf5 (Prophesee), .h5 (RVT's layout), .npz, .npy, .csv.
        events: any number of them, also none.
        format: a key of ``fate.formats.saving.WRITERS`` instead, such as ``"evt2"`` for a .raw file.
        zero_time: shift times so that the first event is at 0 µs. Formats with 32-bit times need this for events on
            the clock of the computer (Unix time), as AEDAT4 files have them.
    """
    with open_writer(path, events.sensor, format) as writer:
        writer.write(events.shifted(-int(events.t_us[0])) if zero_time and len(events) else events)
