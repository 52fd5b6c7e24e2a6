"""Clips off the disk: the events and labels of every window of a batch, in the order detectors take them.

Everything a batch holds follows from its plan (``clips.py``), so workers share nothing: worker w of W loads the batches
w, w + W, w + 2 W …, and batches come out in order, the same for any W. A worker keeps a few recordings open, some
labels, and the batches it is ahead by; nothing else.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.boxes.labels import Labels
from fate.data.batches import ClipBatch, LabelsOf, Reader, Sought, SoughtWindows, Source, TeacherPart
from fate.data.clip_images import Images, all_images, clip_images, stacked
from fate.data.clips import CANONICAL_HZ, Clip, Grid
from fate.data.teacher_windows import canonical_numbers, canonical_steps, shared_rows
from fate.data.transforms import Augmentation, Transform
from fate.encoding.batch import EventBatch
from fate.errors import FateError
from fate.events.events import Events
from fate.events.window import Window
from fate.processes import worker_context

#: Recordings a worker keeps open, and rows of labels that it keeps: 40 MB of them.
OPEN, KEPT_ROWS = 16, 1_000_000


class ClipReader:
    """Loads batches of clips, with a few recordings open."""

    def __init__(
        self,
        recordings: Sequence[Source],
        sensor: Sequence[int],
        window_us: int | None = None,
        augmentation: Augmentation | None = None,
        with_labels: bool = True,
        *,
        stream_augmentation: Augmentation | None = None,
        labels_of: LabelsOf | None = None,
        warmup: int | None = None,
        rank: int = 0,
        world: int = 1,
        resident: bool = False,
    ) -> None:
        """Args:
        recordings: of the dataset, all of one sensor; all of events, or all of histograms.
        sensor: (height, width), pixels.
        window_us: length of windows where it is not 1 / hz.
        augmentation: drawn once for each clip, and once for a recording that a stream goes through; None for none.
        with_labels: False to leave labels unread.
        stream_augmentation: for streams, where it is another one.
        labels_of: gives other labels than the recordings' own, for each rate; with workers it must be picklable.
        warmup: canonical windows before each clip, to give batches the part of a teacher as well; None for no teacher.
        rank, world: this process and the number of those that share each batch; its lanes are ``rank``,
            ``rank + world`` … of the plan's.
        resident: leave events unread, for a device that holds them all (``resident.py``).
        """
        if not 0 <= rank < world:
            raise FateError(f"rank {rank} of {world} was given; expected 0 to {world - 1}")
        if warmup is not None and warmup < 0:
            raise FateError(f"warmup={warmup} was given; expected 0 or more windows, or None for no teacher")
        self.recordings, self.sensor, self.window_us = recordings, tuple(sensor), window_us
        self.augmentation, self.stream_augmentation = augmentation, stream_augmentation or augmentation
        self.with_labels, self.labels_of, self.warmup = with_labels, labels_of, warmup
        self.rank, self.world, self.resident = rank, world, resident
        self.holds_images = all_images(recordings)
        if self.holds_images and warmup is not None:
            raise FateError("warmup was given with a dataset of histograms; a teacher needs events: leave it out")
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._read: OrderedDict[tuple[int, float], Labels | None] = OrderedDict()
        self._rows = 0  # of all that were read and kept

    def batch(self, clips: Sequence[Clip]) -> ClipBatch:
        """The windows of one clip of each lane; shorter clips are filled up with windows in which nothing happens.

        Of the clips of all lanes only those of this rank are read; T, and T' of a teacher, are the same on all ranks.
        """
        if len(clips) % self.world:
            raise FateError(
                f"a batch of {len(clips)} lanes was given to {self.world} processes; expected equally many for each"
            )
        steps = max(clip.steps for clip in clips)
        teacher_steps = 0 if self.warmup is None else canonical_steps(clips, self.warmup)
        mine = list(clips[self.rank :: self.world])
        lanes = [self._lane(clip, steps, teacher_steps) for clip in mine]
        ends = np.array([[lane.ends_us[t] for lane in lanes] for t in range(steps)], np.int64)
        ends = ends.reshape(steps, len(lanes))
        if self.holds_images:
            shown: EventBatch | Tensor | SoughtWindows = stacked([lane.images for lane in lanes], steps, self.sensor)
        else:
            shown = self._together([lane.windows[t] for t in range(steps) for lane in lanes])
        return ClipBatch(
            shown,
            [lane.labels[t] for t in range(steps) for lane in lanes],
            steps,
            mine,
            torch.tensor([clip.begins for clip in mine]),
            ends,
            self._teacher(lanes, mine, teacher_steps, ends) if teacher_steps else None,
        )

    def close(self) -> None:
        """Let go of all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _teacher(
        self, lanes: Sequence[_Lane], clips: Sequence[Clip], steps: int, student_us: NDArray[np.int64]
    ) -> TeacherPart:
        pairs = [lane.canonical[t] for t in range(steps) for lane in lanes]
        shown = [not clip.is_empty for clip in clips]
        ends = np.array([window.end_us for window, _ in pairs], np.int64).reshape(steps, len(lanes))
        ends = np.where(shown, ends, -1)
        return TeacherPart(self._together(pairs), steps, ends, shared_rows(student_us, ends, clips))

    def _together(self, pairs: Sequence[tuple[Window, Any]]) -> EventBatch | SoughtWindows:
        return SoughtWindows.of(pairs) if self.resident else EventBatch.from_windows(pairs)

    def _lane(self, clip: Clip, steps: int, teacher_steps: int) -> _Lane:
        """What one clip shows, filled up to so many windows, and as many canonical windows as are asked for."""
        if clip.is_empty:
            nothing = (Window(0, 50_000), self._nothing)
            return _Lane([nothing] * steps, None, [None] * steps, [-1] * steps, [nothing] * teacher_steps)
        source = self.recordings[clip.recording]
        grid = Grid.of(source, clip.hz, clip.window_us or self.window_us)
        windows = [grid.window(clip.first + t) for t in range(clip.steps)]
        found, times = self._labels(clip, grid)
        change = self._drawn(clip, found)
        left = steps - clip.steps
        shown = found if found is None or change is None else change.labels(found)
        labels = [None if shown is None or time is None else shown.at(time) for time in times] + [None] * left
        ends = [window.end_us for window in windows] + [-1] * left
        if self.holds_images:
            return _Lane([], clip_images(source, clip, change), labels, ends, [])
        canonical = Grid.of(source, CANONICAL_HZ)
        beside = [canonical.window(number) for number in canonical_numbers(clip, teacher_steps)]
        seen = self._events(clip, grid, [*beside, *windows], change)
        filling = Window(windows[-1].end_us, windows[-1].end_us + grid.window_us), self._nothing
        return _Lane(seen[teacher_steps:] + [filling] * left, None, labels, ends, seen[:teacher_steps])

    def _events(
        self, clip: Clip, grid: Grid, windows: Sequence[Window], change: Transform | None
    ) -> list[tuple[Window, Any]]:
        """Of each window, all read and changed at once; or where to find them.

        Rectangles are erased by the number of the clip's own window that ends nearest, so that a canonical window lacks
        the same one as the window it is compared with.
        """
        numbers = grid.nearest(np.array([window.end_us for window in windows])).tolist()
        if self.resident:
            return [(each, Sought(clip.recording, change, at)) for each, at in zip(windows, numbers, strict=True)]
        whole = self._recording(clip.recording).read(
            min(window.start_us for window in windows), max(window.end_us for window in windows)
        )
        if change is None:
            return [(window, whole.between(window.start_us, window.end_us)) for window in windows]
        whole = change.events(whole)
        return [
            (window, change.erased(whole.between(window.start_us, window.end_us), number))
            for window, number in zip(windows, numbers, strict=True)
        ]

    @property
    def _nothing(self) -> Events | None:
        return None if self.resident else Events.empty(self.sensor)

    def _drawn(self, clip: Clip, labels: Labels | None) -> Transform | None:
        """The change of a clip. A stream's is one for the whole recording, so it must not depend on a clip's labels."""
        wanted = self.stream_augmentation if clip.stream else self.augmentation
        if wanted is None:
            return None
        return wanted.draw(np.random.default_rng(clip.seed), self.sensor, None if clip.stream else labels)

    def _labels(self, clip: Clip, grid: Grid) -> tuple[Labels | None, list[int | None]]:
        """Those that some window of a clip stands for; and of each window the labelled time that it stands for."""
        labels = self._all_labels(clip.recording, clip.hz) if self.with_labels else None
        if labels is None:
            return None, [None] * clip.steps
        first, last = grid.end_us(clip.first) - grid.hop_us, grid.end_us(clip.first + clip.steps) + grid.hop_us
        near = labels.between(first, last)
        chosen = grid.labelled(near.labelled_us)
        times = [chosen.get(number) for number in range(clip.first, clip.first + clip.steps)]
        return near.select(np.isin(near.t_us, [time for time in times if time is not None])), times

    def _all_labels(self, number: int, hz: float) -> Labels | None:
        """Of a recording; kept, since reading them takes longer than reading a clip."""
        own = self.labels_of is None
        key = (number, 0.0 if own else hz)
        if key not in self._read:
            found = self.recordings[number].labels if self.labels_of is None else self.labels_of(number, hz)
            self._read[key] = found
            self._rows += _rows(found)
            while self._rows > KEPT_ROWS and len(self._read) > 1:
                self._rows -= _rows(self._read.popitem(last=False)[1])
        self._read.move_to_end(key)
        return self._read[key]

    def _recording(self, number: int) -> Reader:
        if number not in self._open:
            while len(self._open) >= OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[number] = self.recordings[number].open()
        self._open.move_to_end(number)
        return self._open[number]


def _rows(labels: Labels | None) -> int:
    return 1 if labels is None else len(labels) + len(labels.labelled_us)


class _Lane(NamedTuple):
    """What one lane adds to a batch: T windows, and T' canonical ones for a teacher."""

    windows: list[tuple[Window, Any]]  #: with their events, or what is sought
    images: Images | None  #: [t ≤ T, C, H, W] instead of events
    labels: list[Labels | None]
    ends_us: list[int]
    canonical: list[tuple[Window, Any]]


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
        collate_fn=_as_it_is,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=2 if workers else None,
        persistent_workers=False,
        multiprocessing_context=worker_context(preload=__name__) if workers else None,
        worker_init_fn=_leave_stopping_to_the_first,
        generator=torch.Generator(),  # a loader draws a number when it begins: not one of those that training draws
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_stopping_to_the_first(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal: workers load on until the first one, which may save, lets go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
