"""Which windows of which recordings are looked at, and when: clips for training, streams for evaluation.

A *plan* says what a batch holds, for each of its lanes: recording, rate, first window. It is made without reading
anything, from a seed and a number alone, so that any worker can load any batch, any number of workers gives the same
batches, and training goes on in the middle of an epoch by asking for the next number.

Lanes are of two kinds, and a batch may mix them as RVT does:

- a *random* lane holds a new clip every time, which ends at some labelled time; its state is reset with each;
- a *stream* lane reads one recording after another, clip by clip; its state is reset where a recording or a new rate
  begins.

Windows end at whole multiples of the hop after the recording's start. The hop is 1 / f at rate f. A window is as long
as the hop, or longer: then windows overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.window import WindowGrid, window_us


class Span(Protocol):
    """What a plan needs to know of a recording."""

    @property
    def start_us(self) -> int:
        """First time with events."""

    @property
    def end_us(self) -> int:
        """Behind the last event."""


class Clip(NamedTuple):
    """Some windows of one recording, one after another; or nothing, where a lane has run out."""

    recording: int  #: number in the dataset; -1 for nothing
    hz: float
    first: int  #: number of the first window
    steps: int  #: T
    begins: bool  #: whether the state is reset before the first window
    seed: int  #: of the augmentation; a stream keeps it until its state is reset
    stream: bool = False  #: whether the clip is part of a stream in training
    window_us: int | None = None  #: length of a window; None: as long as the hop, 1 / hz

    @property
    def is_empty(self) -> bool:
        """Whether the lane has nothing to show."""
        return self.recording < 0


#: The rate of the windows that detectors are first trained on, and that a teacher sees.
CANONICAL_HZ = 20.0
NOTHING = Clip(-1, 20.0, 0, 0, True, 0)


class Timing(NamedTuple):
    """The rate of a clip's windows, and their length."""

    hz: float
    window_us: int | None = None  #: None: as long as the hop, 1 / hz


#: From the index of a batch and two numbers in [0, 1) to a timing. The first number is the quantile of the rate, the
#: second that of the window's length, so that equally spaced quantiles give exact shares; see ``training.curriculum``.
DrawTiming = Callable[[int, float, float], Timing]


@dataclass(frozen=True)
class Grid(WindowGrid):
    """The windows of a recording at one rate. Window k ends at ``start_us + (k + 1) · hop_us``."""

    @staticmethod
    def of(recording: Span, hz: float, length_us: int | None = None) -> Grid:
        """Windows of 1 / hz, or of ``length_us`` every 1 / hz; of a recording kept as images those of its images."""
        hop = window_us(hz)
        ends = getattr(recording, "timestamps_us", None)
        if ends is not None:
            return ImageGrid.of_images(recording, ends, hop if length_us is None else length_us)
        return Grid(recording.start_us, hop, hop if length_us is None else length_us)


@dataclass(frozen=True)
class ImageGrid(Grid):
    """The windows of a recording that is kept as images (``rvt_layout.py``): each ends where its image does.

    Images need not be evenly spaced: published code that makes them leaves 125 ms between those of Gen1.
    """

    images_us: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)  #: their ends

    @staticmethod
    def of_images(recording: Any, ends_us: NDArray[np.int64], length_us: int) -> ImageGrid:
        """The images of a recording, if they are of windows as long as that."""
        if recording.window_us != length_us:
            raise FateError(
                f"{recording.name}: holds histograms of {recording.window_us / 1000:g} ms, and windows of"
                f" {length_us / 1000:g} ms were asked for; histograms cannot be cut: give"
                f" {1e6 / recording.window_us:g} Hz, or the recordings that they were made from"
            )
        return ImageGrid(recording.start_us, length_us, length_us, ends_us)

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

    Attributes:
        recordings: the recordings of the dataset.
        labelled_us: the labelled times of each recording; recordings without any are not used.
        steps: T, windows in a clip.
        random, streams: number of clips of each kind in a batch.
        timing: draws the rate and the window length of a clip.
        seed: determines everything that is drawn.
        rate_clips: clips after which a stream draws a new timing.
    """

    recordings: Sequence[Span]
    labelled_us: Sequence[NDArray[np.int64]]
    steps: int
    random: int
    streams: int
    timing: DrawTiming
    seed: int = 0
    rate_clips: int = 20

    def __post_init__(self) -> None:
        if self.steps < 1 or self.random < 0 or self.streams < 0 or self.random + self.streams < 1:
            raise FateError(
                f"clips of {self.steps} windows in {self.random} random and {self.streams} stream lanes were asked for;"
                " expected at least one window and one lane"
            )
        if self.rate_clips < 1:
            raise FateError(f"rate_clips={self.rate_clips} was given; expected at least 1 clip")
        if not self.usable:
            raise FateError("no recording has labels; training needs some")

    @property
    def usable(self) -> list[int]:
        """Indices of the recordings with labels."""
        return [number for number, times in enumerate(self.labelled_us) if len(times)]

    def batches(self, first: int = 0) -> Iterator[list[Clip]]:
        """The batches from index ``first`` on: random clips, then streams."""
        lanes = [_Stream(self, lane) for lane in range(self.streams)]
        times = np.array([len(self.labelled_us[number]) for number in self.usable], np.int64)
        timings: list[Timing] = []
        for number in count():
            if number % self.rate_clips == 0:
                timings = self._stream_timings(number)
            clips = [lane.next(timing) for lane, timing in zip(lanes, timings, strict=True)]
            if number >= first:
                yield [self._random(number, lane, times) for lane in range(self.random)] + clips

    def _stream_timings(self, number: int) -> list[Timing]:
        """A timing for each stream, from the batch of that index on."""
        generator = np.random.default_rng([self.seed, 3, number])
        quantiles = [
            (generator.permutation(self.streams) + generator.random()) / max(self.streams, 1) for _ in range(2)
        ]
        return [self.timing(number, float(u), float(v)) for u, v in zip(*quantiles, strict=True)]

    def _random(self, number: int, lane: int, times: NDArray[np.int64]) -> Clip:
        """A clip whose last window stands for a labelled time, all of them equally likely."""
        generator = np.random.default_rng([self.seed, 0, number, lane])
        of_all = int(generator.integers(times.sum()))
        place = int(np.searchsorted(np.cumsum(times), of_all, side="right"))
        recording = self.usable[place]
        time = self.labelled_us[recording][of_all - int(times[:place].sum())]
        hz, length_us = self.timing(number, float(generator.random()), float(generator.random()))
        last = int(Grid.of(self.recordings[recording], hz).nearest(np.array([time]))[0])
        seed = int(generator.integers(2**62))
        return Clip(recording, hz, max(last - self.steps + 1, 0), self.steps, True, seed, False, length_us)


class _Stream:
    """A lane that reads one recording after another, in its own random order.

    Of each recording it takes the span from one clip before the first label to the last label. Where its rate changes
    within a recording it goes on at the same time, with its state reset.
    """

    def __init__(self, plan: TrainingPlan, lane: int) -> None:
        self.plan, self.lane = plan, lane
        self.cycle = 0
        self.order: list[int] = []
        self.last: Clip | None = None  # None: the next clip begins a recording

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
        if clip.first > last_label:  # a coarser rate has no window left behind the clip before
            self.last = None
            return self.next(timing)
        self.last = clip if clip.first + clip.steps <= last_label else None
        return clip

    def _next_recording(self) -> int:
        if not self.order:
            drawn = np.random.default_rng([self.plan.seed, 1, self.lane, self.cycle])
            self.order = drawn.permutation(self.plan.usable).tolist()
            self.cycle += 1
        return self.order.pop()

    def _first(self, recording: int, hz: float, before: Clip | None) -> Clip:
        """The first clip of a recording at a rate, or the first one behind the clip ``before``."""
        plan = self.plan
        grid = Grid.of(plan.recordings[recording], hz)
        if before is None:
            first = max(int(grid.nearest(plan.labelled_us[recording][:1])[0]) - plan.steps + 1, 0)
        else:
            behind = Grid.of(plan.recordings[recording], before.hz)
            seen_us = behind.end_us(before.first + before.steps - 1) - grid.start_us
            first = -(-seen_us // grid.hop_us)
        generator = np.random.default_rng([plan.seed, 2, self.lane, self.cycle, recording, first])
        return Clip(recording, hz, first, plan.steps, True, int(generator.integers(2**62)), True)


def evaluation_batches(
    recordings: Sequence[Span], hz: float, lanes: int, steps: int, length_us: int | None = None
) -> Iterator[list[Clip]]:
    """Every recording once from its start to its end, ``lanes`` side by side; a lane takes the next when it is done.

    Long ones come first, so that the last lanes end together. A lane that has run out is ``NOTHING``.

    Args:
        recordings: of the dataset.
        hz: rate of windows.
        lanes: B.
        steps: T, windows to a call; a recording's last clip may be shorter.
        length_us: of a window, where it is not 1 / hz.
    """
    counts = [Grid.of(recording, hz, length_us).count(recording.end_us) for recording in recordings]
    waiting = sorted((n for n in range(len(recordings)) if counts[n]), key=lambda n: (counts[n], -n))
    now: list[tuple[int, int] | None] = [None] * lanes
    while True:
        clips = []
        for lane in range(lanes):
            if now[lane] is None and waiting:
                now[lane] = (waiting.pop(), 0)
            at = now[lane]
            if at is None:
                clips.append(NOTHING)
                continue
            recording, first = at
            taken = min(steps, counts[recording] - first)
            clips.append(Clip(recording, hz, first, taken, first == 0, 0))
            now[lane] = (recording, first + taken) if first + taken < counts[recording] else None
        if all(clip.is_empty for clip in clips):
            return
        yield clips
