"""Which windows of which recordings are in each batch: clips for training, whole recordings for evaluation.

A *plan* lists the clips of a batch: recording, rate, first window. It depends only on a seed and the index of the
batch, and no file is read for it. So any worker can load any batch, any number of workers gives the same batches, and
training resumes in the middle of an epoch by asking for the next index. A batch may mix two kinds of rows, as in RVT:

- a *random* row holds a new clip every time, which ends at a labelled time; its state is reset for each clip;
- a *stream* row reads one recording after another, clip by clip; its state is reset when a recording or a new rate
  begins.

Windows end at whole multiples of the hop, 1 / f at rate f, after the recording's start. They are as long as the hop, or
longer: then they overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.data.labelled_recording import LabelledRecording
from fate.errors import FateError
from fate.events.window import WindowGrid, window_us
from fate.rates import CANONICAL_HZ, CANONICAL_US


class Clip(NamedTuple):
    """Consecutive windows of one recording; or nothing, for a row of a batch that has no recording left."""

    recording: int  #: index in the dataset; -1 for nothing
    hz: float
    first: int  #: index of the first window
    steps: int  #: T
    begins: bool  #: whether the state is reset before the first window
    seed: int  #: seed of the augmentation; a stream keeps it until its state is reset
    stream: bool = False  #: whether the clip is part of a stream in training
    window_us: int | None = None  #: length of a window; None: as long as the hop, 1 / hz

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in this row of the batch."""
        return self.recording < 0


NOTHING = Clip(-1, 20.0, 0, 0, True, 0)


class Timing(NamedTuple):
    """The rate of a clip's windows, and their length."""

    hz: float
    window_us: int | None = None  #: None for windows as long as the hop, 1 / hz


#: From the index of a batch and two numbers in [0, 1) to a timing. The first number is the quantile of the rate, the
#: second that of the window's length, so that equally spaced quantiles give exact shares; see ``Curriculum``.
DrawTiming = Callable[[int, float, float], Timing]


@dataclass(frozen=True)
class Grid(WindowGrid):
    """The windows of a recording at one rate. Window k ends at ``start_us + (k + 1) · hop_us``."""

    @staticmethod
    def of(recording: LabelledRecording, hz: float, length_us: int | None = None) -> Grid:
        """Windows every 1 / hz, as long as that or ``length_us``; for a recording of images, those of its images."""
        hop = window_us(hz)
        length, ends = hop if length_us is None else length_us, getattr(recording, "timestamps_us", None)
        if ends is None:
            return Grid(getattr(recording, "grid_start_us", recording.start_us), hop, length)
        images: Any = recording
        if images.window_us != length:
            raise FateError(
                f"{images.name}: holds histograms of {images.window_us / 1000:g} ms, and windows of"
                f" {length / 1000:g} ms were asked for; histograms cannot be cut: give"
                f" {1e6 / images.window_us:g} Hz, or the recordings that they were made from"
            )
        return ImageGrid(recording.start_us, length, length, ends)


@dataclass(frozen=True)
class ImageGrid(Grid):
    """The windows of a recording of images (``rvt_layout.py``): each window ends when its image does.

    Images need not be evenly spaced: the published code leaves 125 ms between those of Gen1.
    """

    images_us: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)  #: their ends

    def end_us(self, index: int) -> int:
        """When that image's window ends; behind the last image there are empty windows."""
        behind = index + 1 - len(self.images_us)
        return int(self.images_us[index]) if behind <= 0 else int(self.images_us[-1]) + behind * self.hop_us

    def count(self, end_us: int) -> int:
        """Images."""
        return len(self.images_us)

    def nearest(self, times_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the image whose window ends nearest to each time; the earlier of two that are equally near."""
        middles = self.images_us[:-1] + self.images_us[1:]
        return np.searchsorted(middles, 2 * times_us, side="left").astype(np.int64)


@dataclass(frozen=True)
class TrainingPlan:
    """An endless sequence of batches. Each holds ``random`` clips and the next clip of each of ``streams`` streams.

    Random clips draw their timing independently. A stream draws a new one after every ``rate_clips`` clips. A stream
    that kept its rate for a whole recording would not do: a recording has ten times as many clips at 200 Hz as at
    20 Hz, so most clips would be at 200 Hz, whatever the curriculum says. At each draw the streams share equally spaced
    quantiles, so the share of each rate among them equals its probability as closely as their number allows.
    """

    recordings: Sequence[LabelledRecording]  #: the recordings of the dataset
    #: the labelled times of each recording; recordings without any are not used
    labelled_us: Sequence[NDArray[np.int64]]
    steps: int  #: T, windows in a clip
    random: int  #: random clips in a batch
    streams: int  #: streams in a batch
    timing: DrawTiming  #: draws the rate and the window length of a clip
    seed: int = 0  #: determines everything that is drawn
    rate_clips: int = 20  #: clips after which a stream draws a new timing

    def __post_init__(self) -> None:
        if min(self.steps, self.rate_clips, self.random + self.streams) < 1 or min(self.random, self.streams) < 0:
            raise FateError(
                f"clips of {self.steps} windows in {self.random} random and {self.streams} stream rows, with a new rate"
                f" after {self.rate_clips} clips, were asked for; expected at least one window, row and clip"
            )
        if not self.usable:
            raise FateError("no recording has labels; training needs some")

    @cached_property
    def usable(self) -> list[int]:
        """Indices of the recordings with labels."""
        return [number for number, times in enumerate(self.labelled_us) if len(times)]

    def batches(self, first: int = 0) -> Iterator[list[Clip]]:
        """The batches from index ``first`` on: random clips, then streams."""
        streams = [_Stream(self, index) for index in range(self.streams)]
        counts = np.cumsum([len(self.labelled_us[number]) for number in self.usable])
        timings: list[Timing] = []
        for number in count():
            if number % self.rate_clips == 0:
                timings = self._stream_timings(number)
            clips = [stream.next(timing) for stream, timing in zip(streams, timings, strict=True)]
            if number >= first:
                yield [self._random(number, row, counts) for row in range(self.random)] + clips

    def _stream_timings(self, number: int) -> list[Timing]:
        """A timing for each stream, from the batch of that index on."""
        generator = np.random.default_rng([self.seed, 3, number])
        quantiles = [
            (generator.permutation(self.streams) + generator.random()) / max(self.streams, 1) for _ in range(2)
        ]
        return [self.timing(number, float(u), float(v)) for u, v in zip(*quantiles, strict=True)]

    def _random(self, number: int, row: int, counts: NDArray[np.int64]) -> Clip:
        """A clip whose last window has a labelled time; all labelled times are equally likely.

        ``counts`` are the labelled times of the usable recordings up to each of them.
        """
        generator = np.random.default_rng([self.seed, 0, number, row])
        drawn = int(generator.integers(counts[-1]))
        index = int(np.searchsorted(counts, drawn, side="right"))
        recording = self.usable[index]
        time = self.labelled_us[recording][drawn - int(counts[index])]  # counted from the recording's last
        hz, length_us = self.timing(number, float(generator.random()), float(generator.random()))
        last = int(Grid.of(self.recordings[recording], hz).nearest(np.array([time]))[0])
        seed = int(generator.integers(2**62))
        return Clip(recording, hz, max(last - self.steps + 1, 0), self.steps, True, seed, False, length_us)


class _Stream:
    """A row that reads one recording after another, in its own random order.

    It reads each recording from one clip before the first label to the last label. If its rate changes within a
    recording, it continues at the same time with its state reset.
    """

    def __init__(self, plan: TrainingPlan, index: int) -> None:
        self.plan, self.index = plan, index
        self.cycle = 0
        self.order: list[int] = []
        self.last: Clip | None = None  # None if the next clip begins a recording

    def next(self, timing: Timing) -> Clip:
        """The clip for the next batch."""
        hz, length_us = timing
        if self.last is None:
            clip = self._first(self._next_recording(), hz, None)
        elif self.last.hz == hz:
            clip = self.last._replace(first=self.last.first + self.plan.steps, begins=False)
        else:
            clip = self._first(self.last.recording, hz, self.last)
        clip = clip._replace(window_us=length_us)
        grid = Grid.of(self.plan.recordings[clip.recording], hz)
        last_label = int(grid.nearest(self.plan.labelled_us[clip.recording][-1:])[0])
        if clip.first > last_label:  # at a coarser rate no window is left after the previous clip
            self.last = None
            return self.next(timing)
        self.last = clip if clip.first + clip.steps <= last_label else None
        return clip

    def _next_recording(self) -> int:
        if not self.order:
            drawn = np.random.default_rng([self.plan.seed, 1, self.index, self.cycle])
            self.order = drawn.permutation(self.plan.usable).tolist()
            self.cycle += 1
        return self.order.pop()

    def _first(self, recording: int, hz: float, before: Clip | None) -> Clip:
        """The first clip of a recording at a rate, or the first one after the clip ``before``."""
        plan = self.plan
        grid = Grid.of(plan.recordings[recording], hz)
        if before is None:
            first = max(int(grid.nearest(plan.labelled_us[recording][:1])[0]) - plan.steps + 1, 0)
        else:
            previous = Grid.of(plan.recordings[recording], before.hz)
            seen_us = previous.end_us(before.first + before.steps - 1) - grid.start_us
            first = -(-seen_us // grid.hop_us)
        generator = np.random.default_rng([plan.seed, 2, self.index, self.cycle, recording, first])
        return Clip(recording, hz, first, plan.steps, True, int(generator.integers(2**62)), True)


def evaluation_batches(
    recordings: Sequence[LabelledRecording], hz: float, batch_size: int, steps: int, length_us: int | None = None
) -> Iterator[list[Clip]]:
    """Every recording once, from its start to its end; a row of the batch that is done takes the next recording.

    Long recordings come first, so that all rows end at about the same time. A row without a recording is ``NOTHING``.

    Args:
        recordings: of the dataset.
        hz: rate of windows.
        batch_size: B, recordings that are read side by side.
        steps: T, windows in a clip; the last clip of a recording may be shorter.
        length_us: length of a window; None for 1 / hz.
    """
    counts = [Grid.of(recording, hz, length_us).count(recording.end_us) for recording in recordings]
    waiting = sorted((n for n in range(len(recordings)) if counts[n]), key=lambda n: (counts[n], -n))
    current: list[tuple[int, int] | None] = [None] * batch_size  # recording and next window of each row
    while True:
        clips = []
        for row in range(batch_size):
            position = current[row]
            if position is None and waiting:
                position = (waiting.pop(), 0)
            if position is None:
                clips.append(NOTHING)
                continue
            recording, first = position
            taken = min(steps, counts[recording] - first)
            clips.append(Clip(recording, hz, first, taken, first == 0, 0, window_us=length_us))
            current[row] = (recording, first + taken) if first + taken < counts[recording] else None
        if all(clip.is_empty for clip in clips):
            return
        yield clips


# ---- the windows of a teacher -----------------------------------------------------------------------------------
#
# A student at rate f is compared with a teacher at 20 Hz at the times at which windows of both end. The canonical grid
# is ``Grid`` at 20 Hz: windows at 40, 80, 100 and 200 Hz end at all of its ends, those at other rates at some of them.
#
# All rows of a batch have equally many canonical windows, up to the last one that ends within the clip. A row that
# needs fewer than another has more windows to warm up on: real windows of the recording, since an empty window changes
# the state too. Before the start of a recording there are no events, as for a detector that has just been reset.


def canonical_numbers(clip: Clip, steps: int) -> range:
    """Indices of the last ``steps`` canonical windows that end no later than the clip.

    Negative indices lie before the start of the recording.
    """
    end = _last_canonical(clip) + 1
    return range(end - steps, end)


def canonical_steps(clips: Sequence[Clip], warmup: int) -> int:
    """T': the canonical windows that end within the longest of the clips, and ``warmup`` before.

    Clips at the canonical rate do not count: their student sees what the teacher would. Returns 0 without other clips.
    """
    taught = [clip for clip in clips if _has_teacher(clip)]
    within = [_last_canonical(clip) - (clip.first * window_us(clip.hz) // CANONICAL_US - 1) for clip in taught]
    return max(warmup + max(within), 1) if within else 0


def _has_teacher(clip: Clip) -> bool:
    """Whether a clip is compared with a teacher: it is not empty and not at the canonical rate."""
    return not clip.is_empty and clip.hz != CANONICAL_HZ


def _last_canonical(clip: Clip) -> int:
    """The index of the last canonical window that ends no later than the clip."""
    return (clip.first + clip.steps) * window_us(clip.hz) // CANONICAL_US - 1


def shared_rows(
    student_us: NDArray[np.int64], teacher_us: NDArray[np.int64], clips: Sequence[Clip]
) -> NDArray[np.int64]:
    """[M, 2] rows of windows of student and teacher that end together, in the order of the student's.

    The ends of the windows of the B clips are ``student_us`` [T, B] and ``teacher_us`` [T', B].
    """
    pairs = [np.zeros((0, 2), np.int64)]
    for row, clip in enumerate(clips):
        if not _has_teacher(clip):
            continue
        ends = student_us[: clip.steps, row]  # padding follows
        _, student, teacher = np.intersect1d(ends, teacher_us[:, row], assume_unique=True, return_indices=True)
        pairs.append(np.stack([student, teacher], axis=1).astype(np.int64) * len(clips) + row)
    rows = np.concatenate(pairs)
    return rows[np.argsort(rows[:, 0])]
