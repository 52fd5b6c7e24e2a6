"""Load clips from disk: the events and labels of every window of a batch, in the order that detectors take them.

A :class:`ClipBatch` holds the events of its windows, or requests for them if all events are on the device.

The content of a batch follows from its plan (``clips.py``), so workers share nothing: worker w of W loads the batches
w, w + W, w + 2 W …, and batches come out in order, the same for any W. A worker keeps a few recordings open, some
labels, and its prefetched batches.

A recording may hold images instead of events (RVT's preprocessed datasets). Window k is then image k
(``clips.ImageGrid``), windows after the last image are zero, and images stay uint8 until they are on the device.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from multiprocessing import parent_process
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fate.boxes.labels import Labels
from fate.data.clips import Clip, Grid, canonical_numbers, canonical_steps, shared_rows
from fate.data.labelled_recording import EventReader, LabelledRecording
from fate.data.rvt_layout import RvtSequence
from fate.data.transforms import Augmentation, Matrix, Rectangle, Transform
from fate.encoding.batch import EventBatch
from fate.errors import FateError, FateWarning
from fate.events.events import Events
from fate.events.window import Window
from fate.processes import worker_context
from fate.rates import CANONICAL_HZ

MAX_OPEN = 16  # recordings that a worker keeps open
MAX_LABEL_ROWS = 1_000_000  # rows of labels that a worker keeps, about 40 MB
CHANNELS = 20  # of RVT's images, for a batch of empty clips


#: From the index of a recording and a rate to labels; None if it has none at that rate.
LabelsOf = Callable[[int, float], Labels | None]


class WindowRequest(NamedTuple):
    """Where the events of one window come from; the default is a window without events."""

    recording: int = -1
    matrix: Matrix | None = None  #: map of the frame; None if the frame stays as it is
    hole: Rectangle = (0, 0, 0, 0)  #: x1 y1 x2 y2 of the pixels that are erased


class WindowRequests(NamedTuple):
    """W windows whose events are on the device; small, so that workers can send them to the training process."""

    windows: NDArray[np.int64]  #: [W, 2] start and end, µs on the recording's clock
    recording: NDArray[np.int64]  #: [W] index; -1 for a window without events
    map: NDArray[np.int64]  #: [W] row of ``maps``; -1 if the frame stays as it is
    maps: NDArray[np.float64]  #: [M, 2, 3] of the frame
    holes: NDArray[np.int64]  #: [W, 4] x1 y1 x2 y2 of the pixels that are erased

    @classmethod
    def of(cls, pairs: Sequence[tuple[Window, WindowRequest]]) -> WindowRequests:
        """Collect windows in their order."""
        matrices = dict.fromkeys(request.matrix for _, request in pairs if request.matrix is not None)
        rows: dict[Matrix | None, int] = {None: -1} | {matrix: row for row, matrix in enumerate(matrices)}
        return cls(
            np.array([(window.start_us, window.end_us) for window, _ in pairs], np.int64),
            np.array([request.recording for _, request in pairs], np.int64),
            np.array([rows[request.matrix] for _, request in pairs], np.int64),
            np.array(list(matrices), np.float64).reshape(-1, 2, 3),
            np.array([request.hole for _, request in pairs], np.int64),
        )

    def pin_memory(self) -> WindowRequests:
        """Return the requests themselves, which stay on the CPU."""
        return self

    def to(self, device: str | torch.device, non_blocking: bool = False) -> EventBatch:
        """Raise FateError: requests are not the input of a detector."""
        raise FateError("a batch without its events was given; ResidentEvents.complete adds them")


class TeacherPart(NamedTuple):
    """T' · B canonical windows of the B rows of a batch, time-major; the teacher starts with a reset state."""

    events: EventBatch | WindowRequests
    steps: int  #: T', the same for all rows
    ends_us: NDArray[np.int64]  #: [T', B] end of each window; -1 in an empty row
    shared: NDArray[np.int64]  #: [M, 2] rows t · B + b of the student and t' · B + b of the teacher that end together

    def inputs(self, device: str | torch.device) -> EventBatch:
        """The input of a detector, on its device."""
        return self.events.to(device, non_blocking=True)


class ClipBatch(NamedTuple):
    """T · B windows of B clips, time-major: the first window of every clip comes first."""

    #: images [T · B, 20, H, W] uint8 for a dataset of histograms; requests if all events are on the device
    events: EventBatch | Tensor | WindowRequests
    labels: list[Labels | None]  #: labels of each window; None if it is not labelled
    steps: int  #: T
    clips: list[Clip]  #: B
    begins: Tensor  #: [B] bool, whether the state is reset before the first window
    ends_us: NDArray[np.int64]  #: [T, B] end of each window; -1 for padding
    teacher: TeacherPart | None = None  #: canonical windows over the same time, if a teacher needs them

    def pin_memory(self) -> ClipBatch:
        """Copy the events to pinned memory; the data loader calls it."""
        teacher = self.teacher and self.teacher._replace(events=self.teacher.events.pin_memory())
        return self._replace(events=self.events.pin_memory(), teacher=teacher)

    def inputs(self, device: str | torch.device) -> EventBatch | Tensor:
        """The input of a detector, on its device: events, or images as float32."""
        moved = self.events.to(device, non_blocking=True)
        return moved.float() if isinstance(moved, Tensor) else moved


@dataclass(eq=False, repr=False)
class ClipReader:
    """Loads batches of clips, with a few recordings open."""

    recordings: Sequence[LabelledRecording]  #: all with one sensor; all with events, or all with histograms
    sensor: Sequence[int]  #: (height, width), pixels
    augmentation: Augmentation | None = None  #: drawn once for each clip, and once for a recording of a stream
    with_labels: bool = True  #: False to leave labels unread
    _: KW_ONLY
    stream_augmentation: Augmentation | None = None  #: for streams; None for the same one
    #: returns other labels than those of the recording, for each rate; with workers it must be picklable
    labels_of: LabelsOf | None = None
    warmup: int | None = None  #: number of canonical windows before each clip, for a teacher; None for no teacher
    rank: int = 0  #: index of this process, which loads the rows ``rank``, ``rank + world`` … of the plan
    world: int = 1  #: number of processes that share each batch
    resident: bool = False  #: do not read events, because the device holds them all (``resident.py``)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise FateError(f"rank {self.rank} of {self.world} was given; expected 0 to {self.world - 1}")
        if self.warmup is not None and self.warmup < 0:
            raise FateError(f"warmup={self.warmup} was given; expected 0 or more windows, or None for no teacher")
        self.holds_images = holds_images(self.recordings)
        if self.holds_images and self.warmup is not None:
            raise FateError("warmup was given with a dataset of histograms; a teacher needs events: leave it out")
        self._open: OrderedDict[int, EventReader] = OrderedDict()
        self._labels: OrderedDict[tuple[int, float], Labels | None] = OrderedDict()
        self._label_rows = 0

    def batch(self, clips: Sequence[Clip]) -> ClipBatch:
        """Load the windows of some clips; shorter clips are padded with empty windows.

        Only the clips of this rank are read. T, and T' of a teacher, are the same on all ranks.
        """
        if len(clips) % self.world:
            raise FateError(
                f"a batch of {len(clips)} clips was given to {self.world} processes; expected equally many for each"
            )
        steps = max(clip.steps for clip in clips)
        teacher_steps = 0 if self.warmup is None else canonical_steps(clips, self.warmup)
        own = list(clips[self.rank :: self.world])
        loaded = [self._load(clip, steps, teacher_steps) for clip in own]
        ends = np.array([each.ends_us for each in loaded], np.int64).reshape(len(loaded), steps).T.copy()
        teacher = None
        if teacher_steps:
            pairs = [each.canonical[t] for t in range(teacher_steps) for each in loaded]
            teacher_ends = np.array([window.end_us for window, _ in pairs], np.int64).reshape(teacher_steps, len(own))
            teacher_ends[:, [clip.is_empty for clip in own]] = -1
            shared = shared_rows(ends, teacher_ends, own)
            teacher = TeacherPart(self._make_batch(pairs), teacher_steps, teacher_ends, shared)
        events: EventBatch | Tensor | WindowRequests
        if self.holds_images:
            events = stack_images([each.images for each in loaded], steps, self.sensor)
        else:
            events = self._make_batch([each.windows[t] for t in range(steps) for each in loaded])
        labels = [each.labels[t] for t in range(steps) for each in loaded]
        return ClipBatch(events, labels, steps, own, torch.tensor([clip.begins for clip in own]), ends, teacher)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _make_batch(self, pairs: Sequence[tuple[Window, Any]]) -> EventBatch | WindowRequests:
        return WindowRequests.of(pairs) if self.resident else EventBatch.from_windows(pairs)

    def _load(self, clip: Clip, steps: int, teacher_steps: int) -> _LoadedClip:
        """Load one clip, padded to ``steps`` windows, and ``teacher_steps`` canonical windows."""
        if clip.is_empty:
            empty = (Window(0, 50_000), self._no_events)
            return _LoadedClip([empty] * steps, None, [None] * steps, [-1] * steps, [empty] * teacher_steps)
        source = self.recordings[clip.recording]
        grid = Grid.of(source, clip.hz, clip.window_us)
        windows = [grid.window(clip.first + t) for t in range(clip.steps)]
        clip_labels, times = self._clip_labels(clip, grid)
        transform, augmentation = None, (self.stream_augmentation if clip.stream else None) or self.augmentation
        if augmentation is not None:  # a stream has one transform for the whole recording, whatever the clip's labels
            seen = None if clip.stream else clip_labels
            transform = augmentation.draw(np.random.default_rng(clip.seed), self.sensor, seen)
        if clip_labels is not None and transform is not None:
            clip_labels = transform.labels(clip_labels)
        missing = steps - clip.steps
        labels = [None if clip_labels is None or time is None else clip_labels.at(time) for time in times]
        labels += [None] * missing
        ends = [window.end_us for window in windows] + [-1] * missing
        if isinstance(source, RvtSequence):
            last = min(clip.first + clip.steps, source.num_images)  # the recording may end before the clip
            images = source.images(min(clip.first, last), last)
            images = images if transform is None else transform.images(images, clip.first)
            return _LoadedClip([], images, labels, ends, [])
        canonical_grid = Grid.of(source, CANONICAL_HZ)
        canonical = [canonical_grid.window(index) for index in canonical_numbers(clip, teacher_steps)]
        pairs = self._events(clip, grid, [*canonical, *windows], transform)
        padding = Window(windows[-1].end_us, windows[-1].end_us + grid.window_us), self._no_events
        return _LoadedClip(pairs[teacher_steps:] + [padding] * missing, None, labels, ends, pairs[:teacher_steps])

    def _events(
        self, clip: Clip, grid: Grid, windows: Sequence[Window], transform: Transform | None
    ) -> list[tuple[Window, Any]]:
        """Each window with its transformed events, or with a request for them.

        The erased rectangle of a window is that of the clip's own window which ends nearest, so that a canonical window
        lacks the same rectangle as the window it is compared with.
        """
        indices = grid.nearest(np.array([window.end_us for window in windows])).tolist()
        if self.resident:
            matrix = None if transform is None or transform.is_identity else transform.matrix
            holes = [(transform and transform.hole(index)) or (0, 0, 0, 0) for index in indices]
            return [
                (each, WindowRequest(clip.recording, matrix, hole)) for each, hole in zip(windows, holes, strict=True)
            ]
        events = self.reader(clip.recording).read(
            min(window.start_us for window in windows), max(window.end_us for window in windows)
        )
        if transform is None:
            return [(window, events.between(window.start_us, window.end_us)) for window in windows]
        events = transform.events(events)
        return [
            (window, transform.erased(events.between(window.start_us, window.end_us), index))
            for window, index in zip(windows, indices, strict=True)
        ]

    @property
    def _no_events(self) -> Events | WindowRequest:
        return WindowRequest() if self.resident else Events.empty(self.sensor)

    def _clip_labels(self, clip: Clip, grid: Grid) -> tuple[Labels | None, list[int | None]]:
        """The labels of a clip, and the labelled time of each of its windows (None if the window has none)."""
        labels = self.labels(clip.recording, clip.hz) if self.with_labels else None
        if labels is None:
            return None, [None] * clip.steps
        first, last = grid.end_us(clip.first) - grid.hop_us, grid.end_us(clip.first + clip.steps) + grid.hop_us
        near = labels.between(first, last)
        chosen = grid.labelled(near.labelled_us)
        times = [chosen.get(number) for number in range(clip.first, clip.first + clip.steps)]
        return near.select(np.isin(near.t_us, [time for time in times if time is not None])), times

    def labels(self, index: int, hz: float) -> Labels | None:
        """The labels of a recording. They are cached, since reading them takes longer than reading a clip."""
        key = (index, 0.0 if self.labels_of is None else hz)
        if key not in self._labels:
            labels = self.recordings[index].labels if self.labels_of is None else self.labels_of(index, hz)
            self._labels[key] = labels
            self._label_rows += _count_rows(labels)
            while self._label_rows > MAX_LABEL_ROWS and len(self._labels) > 1:
                self._label_rows -= _count_rows(self._labels.popitem(last=False)[1])
        self._labels.move_to_end(key)
        return self._labels[key]

    def reader(self, number: int) -> EventReader:
        """Return a recording, open for reading; the ``MAX_OPEN`` used last stay open."""
        if number not in self._open:
            while len(self._open) >= MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[number] = self.recordings[number].open()
        self._open.move_to_end(number)
        return self._open[number]


def _count_rows(labels: Labels | None) -> int:
    return 1 if labels is None else len(labels) + len(labels.labelled_us)


def holds_images(recordings: Sequence[Any]) -> bool:
    """Whether recordings hold images; a mixture with recordings of events is refused."""
    number = sum(isinstance(recording, RvtSequence) for recording in recordings)
    if number not in (0, len(recordings)):
        raise FateError(
            f"{number} of {len(recordings)} recordings hold histograms, the others events; expected one kind in a batch"
        )
    return number > 0


def stack_images(parts: Sequence[NDArray[np.uint8] | None], steps: int, sensor: Sequence[int]) -> Tensor:
    """Images of B clips, each [t ≤ steps, C, H, W], as one batch [steps · B, C, H, W], time-major, padded with zeros.

    An empty clip is None; ``sensor`` is the (height, width) of the images.
    """
    shapes = {part.shape[1:] for part in parts if part is not None} or {(CHANNELS, *sensor)}
    if len(shapes) > 1:
        raise FateError(f"images of shapes {' and '.join(map(str, sorted(shapes)))} are in one batch; expected one")
    batch = np.zeros((steps, len(parts), *shapes.pop()), np.uint8)
    for row, part in enumerate(parts):
        if part is not None:
            batch[: len(part), row] = part
    return torch.from_numpy(batch).flatten(0, 1)


class _LoadedClip(NamedTuple):
    """T windows of one clip, and T' canonical ones for a teacher."""

    windows: list[tuple[Window, Any]]  #: with their events, or requests for them
    images: NDArray[np.uint8] | None  #: [t ≤ T, C, H, W] instead of events
    labels: list[Labels | None]
    ends_us: list[int]
    canonical: list[tuple[Window, Any]]


class _Batches(IterableDataset[ClipBatch]):
    """A worker's share of the batches."""

    def __init__(self, reader: ClipReader, plans: Callable[[], Iterable[list[Clip]]]) -> None:
        self.reader, self.plans = reader, plans

    def __iter__(self) -> Iterator[ClipBatch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        try:
            for index, clips in enumerate(self.plans()):
                if index % workers == worker:
                    yield self.reader.batch(clips)
        finally:
            self.reader.close()


def load(
    reader: ClipReader, plans: Callable[[], Iterable[list[Clip]]], workers: int = 0, pin_memory: bool = False
) -> DataLoader[Any]:
    """A data loader that gives batches in the order of their plans.

    Args:
        reader: loads the batches; each worker gets a copy.
        plans: returns an iterator over the plans, such as ``partial(plan.batches, 1000)``; with workers it must be
            picklable.
        workers: number of processes; 0 to load in this one.
        pin_memory: whether batches are copied to pinned memory, for a GPU.
    """
    with warnings.catch_warnings():
        # more workers than cores are slower, but nothing freezes: the message of torch would alarm
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        return DataLoader(
            _Batches(reader, plans),
            batch_size=None,
            collate_fn=_identity,
            num_workers=workers,
            pin_memory=pin_memory,
            prefetch_factor=2 if workers else None,
            persistent_workers=False,
            multiprocessing_context=worker_context(preload=__name__) if workers else None,
            worker_init_fn=_start_worker,
            generator=torch.Generator(),  # a loader draws a seed when it starts, which must not come from training's
        )


def _identity(batch: Any) -> Any:
    return batch


def _end_after(process: Any) -> None:
    process.join()
    os._exit(0)


def _start_worker(worker: int) -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: the main process saves and then stops the workers.

    All workers open the same recordings, so only the first one warns of repairs. A worker ends with the main process,
    also if that is killed; torch watches the parent of a worker, which is the fork server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (main := parent_process()) is not None:
        threading.Thread(target=_end_after, args=(main,), daemon=True).start()
    if worker:
        warnings.simplefilter("ignore", FateWarning)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"  # without the line of code
