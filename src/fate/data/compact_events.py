"""Make batches on the GPU from compact files, which hold what does not fit on it.

A batch of 320 windows of 1Mpx holds about 100 million events. As with :class:`ResidentEvents`, workers only request
windows. The training process reads the words of the batch from compact files straight into pinned memory (400 MB),
unpacks them on the device, and selects and augments the windows there. The batches equal those of ``ClipReader``, event
by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fate.data.compact_files import CompactFile, WordLayout
from fate.data.event_table import EventTable, common_starts
from fate.data.labelled_recording import LabelledRecording
from fate.data.loading import ClipBatch, WindowRequests
from fate.data.resident import checked_sensor, numbered_device
from fate.errors import FateError

READERS = 8  # parts that are read at the same time


class _Part(NamedTuple):
    """Consecutive blocks of a compact file."""

    file: CompactFile
    first: int
    last: int  #: the block after the last one

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of events of each block."""
        return np.diff(self.file.offsets[self.first : self.last + 1])

    @property
    def num_events(self) -> int:
        """Number of events of all blocks."""
        return int(self.file.offsets[self.last] - self.file.offsets[self.first])

    @property
    def start_us(self) -> int:
        """Start of the first block."""
        return self.file.start_us + self.first * self.file.layout.block_us

    def read(self, into: NDArray[np.int32]) -> None:
        """Read all words."""
        self.file.read_words(self.first, self.last, into)


class CompactEvents:
    """Compact files of some recordings, of which each batch reads what its windows need."""

    def __init__(
        self, recordings: Sequence[LabelledRecording], sensor: Sequence[int], device: str | torch.device
    ) -> None:
        """Args:
        recordings: all with a compact file of one sensor.
        sensor: (height, width).
        device: a batch needs about 40 bytes per event while it is made.
        """
        self.sensor, self.device = checked_sensor(sensor), numbered_device(device)
        self.recordings = recordings
        self._file = cache(self._open)  # offsets of a recording: 0.2 MB

    def _open(self, recording: int) -> CompactFile:
        path = self.recordings[recording].compact_file
        if path is None:
            raise FateError(f"{self.recordings[recording].name}: has no compact file; run fate prepare --compact")
        return CompactFile.open(path, self.sensor)

    def complete(self, batch: ClipBatch) -> ClipBatch:
        """Add the events to a batch of requests, and to its teacher."""
        given = [batch.events, None if batch.teacher is None else batch.teacher.events]
        requests = [each for each in given if isinstance(each, WindowRequests)]
        recording = np.concatenate([each.recording for each in requests])
        parts, own = self._parts(recording, np.concatenate([each.windows for each in requests]))
        if not parts:  # a batch of empty clips; a part of a file without a block stands for it
            parts = [_Part(self._file(0), 0, 0)]
        table = self._table(parts)
        limits = np.cumsum([len(each.recording) for each in requests])[:-1]
        moved = [each._replace(recording=part) for each, part in zip(requests, np.split(own, limits), strict=True)]
        batch = batch._replace(events=moved.pop(0))
        if batch.teacher is not None and moved:
            batch = batch._replace(teacher=batch.teacher._replace(events=moved.pop()))
        return table.complete(batch)

    def _parts(self, recording: NDArray[np.int64], windows: NDArray[np.int64]) -> tuple[list[_Part], NDArray[np.int64]]:
        """The blocks that windows [W, 2] need, without repetition, and the part of each window (-1 for none)."""
        parts: list[_Part] = []
        own = np.full(len(recording), -1, np.int64)
        order = np.lexsort((windows[:, 0], recording))
        end_us, before = 0, -1
        for window in order[recording[order] >= 0].tolist():
            number, (start, end) = int(recording[window]), windows[window].tolist()
            if number != before or start > end_us:
                file = self._file(number)
                parts.append(_Part(file, *file.blocks(start, end)))
                end_us, before = end, number
            elif end > end_us:
                part, end_us = parts[-1], end
                parts[-1] = part._replace(last=max(part.last, part.file.blocks(start, end)[1]))
            own[window] = len(parts) - 1
        return parts, own

    def _table(self, parts: Sequence[_Part]) -> EventTable:
        """Read the words of the parts, and unpack them on the device."""
        layout = WordLayout(self.sensor)
        numbers = np.array([part.num_events for part in parts], np.int64)
        words = torch.empty(int(numbers.sum()), dtype=torch.int32, pin_memory=self.device.type == "cuda")
        pieces = np.split(words.numpy(), np.cumsum(numbers)[:-1])
        with ThreadPoolExecutor(READERS) as pool:
            for done in [pool.submit(part.read, piece) for part, piece in zip(parts, pieces, strict=True)]:
                done.result()
        start_us = np.array([part.start_us for part in parts], np.int64)
        length_us = np.array([part.last - part.first for part in parts], np.int64) * layout.block_us
        blocks = np.concatenate([
            shift + layout.block_us * np.arange(part.last - part.first)
            for part, shift in zip(parts, common_starts(length_us).tolist(), strict=True)
        ])  # fmt: skip
        counts = np.concatenate([part.counts for part in parts])
        there = words.to(self.device, non_blocking=True)
        starts, repeats = (torch.from_numpy(each).to(self.device) for each in (blocks, counts))
        clock = starts.repeat_interleave(repeats, output_size=len(words)).add_(there >> layout.position_bits)
        x, y = (there >> 1) & layout.x_mask, (there >> (1 + layout.x_bits)) & layout.y_mask
        wrong = (x >= self.sensor.width).any() | (y >= self.sensor.height).any() | (clock[1:] < clock[:-1]).any()
        if wrong:
            for part in parts:  # reading on the CPU names the damaged file
                part.file.read(part.start_us, part.start_us + (part.last - part.first) * layout.block_us)
            raise FateError(
                f"events outside {self.sensor} or out of order were read, and the files are whole; check the memory of"
                " this machine and its GPU, and run this again"
            )
        polarity = (there & 1).to(torch.uint8)
        return EventTable(clock, y.mul_(self.sensor.width).add_(x), polarity, start_us, length_us, self.sensor)
