"""Write events to files. The suffix gives the format, or the user names it.

A writer takes events in pieces. It works on a draft beside the target and renames it when it is closed, so a full disk
or a killed run never leaves a broken file under the target's name and never destroys one that was there. Into a device
or a pipe it writes directly, if the format is written from front to back.

A recording of a camera is written in place instead (``grows``): after a full disk or a killed run, the events up to the
last :meth:`EventWriter.flush` are in the file.
"""

from __future__ import annotations

import importlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, ClassVar

from fate.errors import FateError
from fate.events.events import MAX_SIDE, Events, Sensor
from fate.whole_files import Draft, GrowingFile, disk_faults, find_target

# format → its module and its writer
WRITERS: dict[str, tuple[str, str]] = {
    "dat": ("prophesee.dat", "DatWriter"),
    "evt2": ("prophesee.raw", "Evt2Writer"),
    "evt21": ("prophesee.raw", "Evt21Writer"),
    "evt3": ("prophesee.raw", "Evt3Writer"),
    "prophesee-hdf5": ("hdf5.writers", "PropheseeHdf5Writer"),
    "rvt-hdf5": ("hdf5.writers", "RvtHdf5Writer"),
    "npz": ("tables.writers", "NpzWriter"),
    "npy": ("tables.writers", "NpyWriter"),
    "csv": ("tables.writers", "CsvWriter"),
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


class EventWriter(AbstractContextManager["EventWriter"]):
    """Write events in time order, in pieces. Use it in a ``with`` block; an error inside discards the file.

    Args:
        path: the file, which is replaced.
        sensor: (height, width) of the events.
        grows: write in place a file that does not exist yet. An error then keeps the events up to the last
            :meth:`flush`. Only formats that are written from front to back can do this.
    """

    format: ClassVar[str]
    text: ClassVar[bool] = False  #: whether the file is text, which may go to standard output
    seeks: ClassVar[bool] = False  #: whether the writer goes back in the file, which pipes do not allow
    max_coordinate: ClassVar[int] = MAX_SIDE - 1  #: of the pixels that the format can address

    def __init__(self, path: str | os.PathLike[str], sensor: Sensor, *, grows: bool = False) -> None:
        target = find_target(path, text=self.text and not grows, seeks=self.seeks or grows)
        self.path, self.grows = target.path, grows
        if grows and self.seeks:
            raise FateError(
                f"{self.path}: {self.format} is not written from front to back, so a recording that breaks off would be"
                " lost; choose RAW, DAT or CSV"
            )
        if grows and self.path.exists():
            raise FateError(f"{self.path}: exists, and a recording replaces no file; give another name, or remove it")
        self.sensor = Sensor.of(sensor)
        if max(self.sensor) - 1 > self.max_coordinate:
            raise FateError(
                f"{self.path}: {self.format} addresses pixels up to {self.max_coordinate}, and the sensor is"
                f" {self.sensor}; choose NPZ, CSV or HDF5"
            )
        self._last: int | None = None
        self._kept_bytes = 0  # of a growing file, up to the last flush after an event
        self._draft = GrowingFile(target) if grows else Draft(target)
        self.file: Any = None
        try:
            with disk_faults(target):
                self.file = self.open(self._draft)
                self.begin()
            if grows:
                self.flush()
        except BaseException:
            self.discard()
            raise

    def write(self, events: Events) -> None:
        """Write the next events, which must not be earlier than those before."""
        if events.sensor != self.sensor:
            raise FateError(f"{self.path}: is for a {self.sensor} sensor; events of a {events.sensor} one were given")
        if not len(events):
            return
        if self._last is not None and events.t_us[0] < self._last:
            raise FateError(f"{self.path}: events at {events.t_us[0]} µs were given after ones at {self._last} µs")
        with disk_faults(self._draft.target):
            self.append(events)
        self._last = int(events.t_us[-1])

    def flush(self) -> int:
        """Give all events so far to the operating system, and return the bytes of the file; for files that grow."""
        with disk_faults(self._draft.target):
            self.file.flush()
            size = int(self.file.tell())
        if self._last is not None:
            self._kept_bytes = size
        return size

    def open(self, draft: Draft) -> Any:
        """Open the draft for writing; the result becomes ``self.file``."""
        return draft.open()

    @abstractmethod
    def begin(self) -> None:
        """Write the header."""

    @abstractmethod
    def append(self, events: Events) -> None:
        """Write at least one event."""

    def finish(self) -> None:
        """Write the end of the file."""

    def close(self) -> None:
        """Finish the file and rename it to the target."""
        try:
            with disk_faults(self._draft.target):
                self.finish()
                self.file.close()
            self._draft.commit()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Discard what was written; of a growing file, what came after the last flush, and a file without events."""
        if self.file is not None:
            with suppress(OSError, RuntimeError, ValueError):  # what is left cannot be written; it is not kept anyway
                self.file.close()
            if self.grows:
                with suppress(OSError):  # a reader then finds the beginning of an event at the end
                    if self._kept_bytes:
                        os.truncate(self.path, self._kept_bytes)
                    else:
                        self.path.unlink()
        self._draft.discard()

    def refuse_times(self, events: Events, highest: int) -> None:
        """Refuse times below 0 or above ``highest``, which the format cannot hold."""
        if events.t_us[0] < 0 or events.t_us[-1] > highest:
            t_us = int(events.t_us[0]) if events.t_us[0] < 0 else int(events.t_us[-1])
            remedy = "pass zero_time=True to start the copy at 0, or choose NPZ, CSV or HDF5"
            raise FateError(
                f"{self.path}: {self.format} holds times from 0 to {highest} µs, and {t_us} µs was given;"
                f" {'choose CSV' if self.grows else remedy}"
            )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def open_writer(
    path: str | os.PathLike[str], sensor: Sequence[int], format: str | None = None, *, grows: bool = False
) -> EventWriter:
    """Open a writer that takes events in pieces, for a sensor of ``(height, width)``; use it in a ``with`` block.

    ``format`` is the same as for :func:`find_writer`, ``grows`` as for :class:`EventWriter`.
    """
    return find_writer(path, format, grows)(path, Sensor.of(sensor), grows=grows)


def find_writer(path: str | os.PathLike[str], format: str | None = None, grows: bool = False) -> type[EventWriter]:
    """Return the class that writes a format: a key of ``WRITERS``, or the format that the suffix of ``path`` names.

    An error names the formats that can be written; with ``grows``, those that can be written in place.
    """
    name = format or BY_SUFFIX.get(Path(path).suffix.lower())
    if name is None:
        suffixes = [each for each, known in BY_SUFFIX.items() if not (grows and import_name(*WRITERS[known]).seeks)]
        remedy = "" if grows else f", or name the format with format=NAME: {', '.join(WRITERS)}"
        raise FateError(
            f"{path}: the suffix {Path(path).suffix!r} names no format that can be written; use one of"
            f" {', '.join(suffixes)}{remedy}"
        )
    if name not in WRITERS:
        raise FateError(f"{path}: format {name!r} cannot be written; known are {', '.join(WRITERS)}")
    writer: type[EventWriter] = import_name(*WRITERS[name])
    return writer


def import_name(module: str, name: str) -> Any:
    """Import a function or class of a module of ``fate.formats``, such as ``"prophesee.dat"``."""
    return getattr(importlib.import_module(f"fate.formats.{module}"), name)


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
