"""Events at the resolution of training, four bytes each and indexed by time: what ``fate prepare --compact`` writes.

A file holds the events of one recording in their order, downscaled, repaired and sorted as reading would give them. It
is an HDF5 file with two contiguous arrays:

- ``words`` [E] int32: time in its block, y, x and polarity of each event, from the highest bits to the lowest;
- ``offsets`` [B + 1] int64: block b, which begins at ``start_us + b · block_us``, has the words ``offsets[b]`` to
  ``offsets[b + 1]``.

The position takes as many bits as the sensor needs, and the time in a block the rest of 31: blocks of 1Mpx, downscaled
to 640×360, last 2.048 ms, those of Gen1 8.192 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.events.window import clip_time
from fate.progress import Progress, ignore
from fate.whole_files import Draft, disk_faults, find_target

FORMAT, VERSION = "fate-compact-events", 1
BYTES_PER_EVENT = 4
MIN_TIME_BITS = 7
MAX_BLOCKS = 2**27  # 76 hours of 1Mpx; a recording with a broken clock must not fill the disk
WRITTEN_US = 200_000  # events of this time are written together


class WordLayout(NamedTuple):
    """The bits of a word for one sensor."""

    sensor: Sensor

    @property
    def x_bits(self) -> int:
        """Bits of x, above the polarity."""
        return (self.sensor.width - 1).bit_length()

    @property
    def x_mask(self) -> int:
        """The bits of x, shifted to the lowest."""
        return (1 << self.x_bits) - 1

    @property
    def y_mask(self) -> int:
        """The bits of y, shifted to the lowest."""
        return (1 << (self.sensor.height - 1).bit_length()) - 1

    @property
    def position_bits(self) -> int:
        """Bits of polarity, x and y."""
        return 1 + self.x_bits + (self.sensor.height - 1).bit_length()

    @property
    def block_us(self) -> int:
        """Length of a block: the times that the remaining bits can hold."""
        return 1 << (31 - self.position_bits)

    def check(self) -> None:
        """Refuse a sensor whose positions leave too few bits for times."""
        if 31 - self.position_bits < MIN_TIME_BITS:
            raise FateError(
                f"a sensor of {self.sensor} was given; compact files hold sensors of up to 4096×2048 pixels: downscale"
                " the recordings, or use them without compact files"
            )

    def pack(self, events: Events, block_start_us: NDArray[np.int64]) -> NDArray[np.int32]:
        """The words of events, given the start of the block of each event."""
        time = (events.t_us - block_start_us).astype(np.int32)
        row = events.y.astype(np.int32) << (1 + self.x_bits)
        return time << self.position_bits | row | events.x.astype(np.int32) << 1 | events.p


def write_compact(
    path: Path, read: Callable[[int, int], Events], sensor: Sensor, start_us: int, end_us: int, num_events: int,
    progress: Progress = ignore,
) -> None:  # fmt: skip
    """Write the compact file of a recording at once or not at all.

    Args:
        path: the file.
        read: returns the events with ``start_us <= t < end_us``, at the resolution of ``sensor``.
        sensor: (height, width).
        start_us, end_us: the span of the recording.
        num_events: events in the span.
        progress: called with the number of events that are written, and ``num_events``.
    """
    layout = WordLayout(sensor)
    layout.check()
    blocks = -(-(end_us - start_us) // layout.block_us)
    if blocks > MAX_BLOCKS:
        hours = (end_us - start_us) / 3.6e9
        raise FateError(f"{path}: its recording spans {hours:.0f} hours; its clock is broken: repair or remove it")
    offsets, done = np.zeros(blocks + 1, np.int64), 0
    at_once = max(WRITTEN_US // layout.block_us, 1)
    target = find_target(path)
    with disk_faults(target), Draft(target) as draft, h5py.File(draft.path, "w", locking=False) as file:
        file.attrs.update({
            "format": FORMAT, "version": VERSION, "height": sensor.height, "width": sensor.width, "start_us": start_us
        })  # fmt: skip
        words = file.create_dataset("words", (num_events,), np.int32)
        for first in range(0, blocks, at_once):
            last = min(first + at_once, blocks)
            edges = start_us + layout.block_us * np.arange(first, last + 1)
            events = read(int(edges[0]), int(edges[-1]))
            limits = np.searchsorted(events.t_us, edges)
            offsets[first : last + 1] = done + limits
            words[done : done + len(events)] = layout.pack(events, np.repeat(edges[:-1], np.diff(limits)))
            done += len(events)
            progress(done, num_events)
        if done != num_events:
            raise FateError(f"{path}: {done} events were read, and {num_events} counted before; prepare it again")
        file["offsets"] = offsets


@dataclass(frozen=True, eq=False)
class CompactFile:
    """An open compact file. It keeps its offsets in memory and no handle, so that threads may share it."""

    path: Path
    layout: WordLayout
    start_us: int  #: of block 0
    offsets: NDArray[np.int64]  #: [B + 1]
    position: int  #: byte of the file where the words begin

    @classmethod
    def open(cls, path: Path, sensor: Sensor) -> CompactFile:
        """Read the header and the offsets; raises FormatError if the file is not a compact file of ``sensor``."""
        again = "delete it and run fate prepare --compact again"
        try:
            with h5py.File(path, "r") as file:
                facts: dict[str, Any] = dict(file.attrs)
                if (facts.get("format"), facts.get("version")) != (FORMAT, VERSION):
                    raise FormatError(f"{path}: is not a compact file of version {VERSION}; {again}")
                found = Sensor(int(facts["height"]), int(facts["width"]))
                words, offsets = file["words"], file["offsets"][:]
                position, stored = words.id.get_offset(), (words.dtype, words.shape)
                start_us = int(facts["start_us"])
        except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{path}: cannot be read as a compact file ({error}); {again}") from None
        if found != sensor:
            raise FormatError(f"{path}: holds events of {found}, and {sensor} is expected; {again}")
        whole = offsets.dtype == np.int64 and offsets.ndim == 1 and len(offsets) > 1 and not offsets[0]
        if not whole or (np.diff(offsets) < 0).any() or stored != (np.int32, (offsets[-1],)) or position is None:
            raise FormatError(f"{path}: its index does not fit its events; {again}")
        return cls(path, WordLayout(sensor), start_us, offsets, position)

    def blocks(self, start_us: int, end_us: int) -> tuple[int, int]:
        """The first block that overlaps a time span, and the one after the last."""
        last = len(self.offsets) - 1
        first = min(max((start_us - self.start_us) // self.layout.block_us, 0), last)
        return first, min(max(-((self.start_us - end_us) // self.layout.block_us), first), last)

    def read_words(self, first: int, last: int, into: NDArray[np.int32]) -> None:
        """Read the words of the blocks ``first`` to ``last`` (without the last one) into an array of their number."""
        bytes_into = into.view(np.uint8).data
        filled = 0
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.position + BYTES_PER_EVENT * int(self.offsets[first]))
                while filled < len(bytes_into) and (count := file.readinto(bytes_into[filled:])):
                    filled += count
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be read ({error.strerror}); run fate prepare --compact") from None
        if filled < len(bytes_into):
            raise FormatError(f"{self.path}: is cut short; delete it and run fate prepare --compact again")

    def read(self, start_us: int, end_us: int) -> Events:
        """The events with ``start_us <= t < end_us``."""
        start, end = clip_time(start_us), clip_time(end_us)
        first, last = self.blocks(start, end)
        limits = self.offsets[first : last + 1] - self.offsets[first]
        words = np.empty(int(limits[-1]), np.int32)
        self.read_words(first, last, words)
        t, p = np.empty(len(words), np.int64), np.empty(len(words), np.uint8)
        x, y = np.empty(len(words), np.uint16), np.empty(len(words), np.uint16)
        layout, sensor = self.layout, self.layout.sensor
        block_start = self.start_us + first * layout.block_us
        if not _unpack(words, limits, block_start, layout.block_us, layout.x_bits, layout.position_bits, *sensor,
                       t, x, y, p):  # fmt: skip
            raise FormatError(
                f"{self.path}: is damaged: events lie outside {sensor} or out of order; delete it, and run fate prepare"
                " again for compact files"
            )
        inside = slice(*np.searchsorted(t, (start, end)).tolist())
        return Events.trusted(t[inside], x[inside], y[inside], p[inside], sensor)


@compiled
def _unpack(
    words: Any, limits: Any, start_us: int, block_us: int, x_bits: int, position_bits: int, height: int, width: int,
    t: Any, x: Any, y: Any, p: Any,
) -> bool:  # fmt: skip
    """Write the columns of words; False if an event lies outside the sensor or before the one ahead of it."""
    x_mask, y_mask = (1 << x_bits) - 1, (1 << (position_bits - 1 - x_bits)) - 1
    fits, before = True, np.int64(start_us)
    for block in range(len(limits) - 1):
        for index in range(limits[block], limits[block + 1]):
            word = np.int64(words[index])
            time: np.int64 = start_us + block * block_us + (word >> position_bits)
            column, row = (word >> 1) & x_mask, (word >> (1 + x_bits)) & y_mask
            fits = bool(fits and column < width and row < height and time >= before)
            before = time
            t[index], x[index], y[index], p[index] = time, column, row, word & 1
    return fits


def compact_path(folder: Path, name: str) -> Path:
    """Where the compact file of a recording of a prepared dataset is."""
    return folder / "events" / f"{name}.h5"
