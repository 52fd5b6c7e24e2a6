"""Clips off the disk: the events and labels of every window of a batch, in the order detectors take them.

Everything a batch holds follows from its plan (``clips.py``), so workers share nothing: worker w of W loads the batches
w, w + W, w + 2 W …, and batches come out in order, the same for any W. A worker keeps a few recordings open and the
batches it is ahead by; nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.data.clips import Clip, Grid, Span
from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.labels import Labels
from fate.events.transforms import Augmentation, Transform
from fate.events.window import Window

#: Recordings a worker keeps open.
OPEN = 16


class Reader(Protocol):
    """An open recording."""

    def read(self, start_us: int, end_us: int) -> Events:
        """Its events from ``start_us`` to before ``end_us``."""

    def close(self) -> None:
        """Let go of the file."""


class Source(Span, Protocol):
    """A recording as clips are loaded from it; those of ``data.dataset`` are."""

    @property
    def labels(self) -> Labels:
        """All its labels."""

    def open(self) -> Reader:
        """Open it for reading."""


class ClipBatch(NamedTuple):
    """T · B windows of B lanes, time-major: first the first window of every lane."""

    events: EventBatch
    labels: list[Labels | None]  #: of each window; None where nobody has labelled it
    steps: int  #: T
    clips: list[Clip]  #: of the B lanes
    begins: Tensor  #: [B] bool, whose memory begins anew
    ends_us: NDArray[np.int64]  #: [T, B] when each window ends; -1 where a lane has none

    def pin_memory(self) -> ClipBatch:
        """The events in page-locked memory; called by the loader."""
        return self._replace(events=self.events.pin_memory())


class ClipReader:
    """Loads batches of clips, with a few recordings open."""

    def __init__(
        self,
        recordings: Sequence[Source],
        sensor: Sequence[int],
        window_us: int | None = None,
        augmentation: Augmentation | None = None,
        with_labels: bool = True,
    ) -> None:
        """Args:
        recordings: of the dataset, all of one sensor.
        sensor: (height, width), pixels.
        window_us: length of windows where it is not 1 / hz.
        augmentation: drawn once for each clip, and once for a recording that a stream goes through; None for none.
        with_labels: False to leave labels unread.
        """
        self.recordings, self.sensor, self.window_us = recordings, tuple(sensor), window_us
        self.augmentation, self.with_labels = augmentation, with_labels
        self._open: OrderedDict[int, tuple[Reader, Labels | None]] = OrderedDict()

    def batch(self, clips: Sequence[Clip]) -> ClipBatch:
        """The windows of one clip of each lane; shorter clips are filled up with windows in which nothing happens."""
        steps = max(clip.steps for clip in clips)
        lanes = [self._clip(clip, steps) for clip in clips]
        pairs = [lane.windows[t] for t in range(steps) for lane in lanes]
        ends = np.array([[lane.ends_us[t] for lane in lanes] for t in range(steps)], np.int64)
        return ClipBatch(
            EventBatch.from_windows(pairs),
            [lane.labels[t] for t in range(steps) for lane in lanes],
            steps,
            list(clips),
            torch.tensor([clip.begins for clip in clips]),
            ends.reshape(steps, len(lanes)),
        )

    def close(self) -> None:
        """Let go of all files."""
        while self._open:
            self._open.popitem()[1][0].close()

    def _clip(self, clip: Clip, steps: int) -> _Lane:
        nothing = (Window(0, 50_000), Events.empty(self.sensor))
        if clip.is_empty:
            return _Lane([nothing] * steps, [None] * steps, [-1] * steps)
        reader, labels = self._recording(clip.recording)
        grid = Grid.of(self.recordings[clip.recording], clip.hz, self.window_us)
        windows = [grid.window(clip.first + t) for t in range(clip.steps)]
        whole = reader.read(windows[0].start_us, windows[-1].end_us)
        found = self._labels(labels, grid, clip)
        change = self._drawn(clip, found)
        whole = whole if change is None else change.events(whole)
        events = [whole.between(window.start_us, window.end_us) for window in windows]
        if change is not None:
            events = [change.erased(part, clip.first + t) for t, part in enumerate(events)]
            found = [None if part is None else change.labels(part) for part in found]
        left = steps - clip.steps
        filling = Window(windows[-1].end_us, windows[-1].end_us + grid.window_us), Events.empty(self.sensor)
        return _Lane(
            list(zip(windows, events, strict=True)) + [filling] * left,
            found + [None] * left,
            [window.end_us for window in windows] + [-1] * left,
        )

    def _drawn(self, clip: Clip, labels: Sequence[Labels | None]) -> Transform | None:
        if self.augmentation is None:
            return None
        seen = [part for part in labels if part is not None]
        shown = Labels.concatenate(seen) if seen else None
        return self.augmentation.draw(np.random.default_rng(clip.seed), self.sensor, shown)

    def _labels(self, labels: Labels | None, grid: Grid, clip: Clip) -> list[Labels | None]:
        """Of each window the labels it stands for."""
        if labels is None:
            return [None] * clip.steps
        first, last = grid.end_us(clip.first) - grid.hop_us, grid.end_us(clip.first + clip.steps) + grid.hop_us
        near = labels.between(first, last)
        times = grid.labelled(near.labelled_us)
        numbers = range(clip.first, clip.first + clip.steps)
        return [near.at(times[number]) if number in times else None for number in numbers]

    def _recording(self, number: int) -> tuple[Reader, Labels | None]:
        if number in self._open:
            self._open.move_to_end(number)
        else:
            while len(self._open) >= OPEN:
                self._open.popitem(last=False)[1][0].close()
            source = self.recordings[number]
            self._open[number] = (source.open(), source.labels if self.with_labels else None)
        return self._open[number]


class _Lane(NamedTuple):
    windows: list[tuple[Window, Events]]
    labels: list[Labels | None]
    ends_us: list[int]


class _Batches(IterableDataset[ClipBatch]):
    """A worker's share of the batches."""

    def __init__(self, reader: ClipReader, plans: Callable[[], Iterable[list[Clip]]]) -> None:
        self.reader, self.plans = reader, plans

    def __iter__(self) -> Iterator[ClipBatch]:
        info = get_worker_info()
        mine, workers = (0, 1) if info is None else (info.id, info.num_workers)
        try:
            for number, clips in enumerate(self.plans()):
                if number % workers == mine:
                    yield self.reader.batch(clips)
        finally:
            self.reader.close()


def load(
    reader: ClipReader, plans: Callable[[], Iterable[list[Clip]]], workers: int = 0, pin_memory: bool = False
) -> DataLoader[Any]:
    """Batches in the order of their plans.

    Args:
        reader: what loads them; each worker gets a copy.
        plans: gives the plans from the first wanted on, anew at each call: ``partial(plan.batches, 1000)``; with
            workers it must be picklable.
        workers: processes; 0 to load in this one.
        pin_memory: page-locked memory, for a GPU.
    """
    return DataLoader(
        _Batches(reader, plans),
        batch_size=None,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=2 if workers else None,
        persistent_workers=False,
        multiprocessing_context="forkserver" if workers else None,
    )
