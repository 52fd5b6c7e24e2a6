"""Windows of time and grids of windows, in integer microseconds. Everything that cuts a recording into windows does it
with :class:`WindowGrid`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError


def window_us(hz: float) -> int:
    """Length in µs of one window at rate ``hz``: 80 Hz is 12 500 µs, never 12 ms."""
    if not isinstance(hz, int | float) or not 0 < hz <= 1_000_000:
        raise FateError(f"a rate of {hz!r} Hz was given; expected more than 0 and at most 1 000 000")
    return round(1_000_000 / hz)


MAX_TIME_US = 2**62  # times lie within ± this (146 000 years), so that their sums and differences fit int64


def clip_time(t_us: SupportsIndex) -> int:
    """Return a whole number of µs, clipped so that it fits int64: ``read(0, 10**30)`` reads to the end."""
    try:
        return max(-MAX_TIME_US, min(operator.index(t_us), MAX_TIME_US))
    except TypeError:
        raise FateError(f"time {t_us!r} was given; times are whole microseconds (integers)") from None


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """``[start_us, end_us)``, never empty."""

    start_us: int
    end_us: int

    def __post_init__(self) -> None:
        if self.end_us <= self.start_us:
            raise FateError(f"a window must end after it starts; given [{self.start_us}, {self.end_us}) µs")

    @property
    def duration_us(self) -> int:
        """Length in µs."""
        return self.end_us - self.start_us

    def __contains__(self, t_us: int) -> bool:
        return self.start_us <= t_us < self.end_us

    def __repr__(self) -> str:
        return f"Window([{self.start_us}, {self.end_us}) µs, {self.duration_us / 1000:g} ms)"


@dataclass(frozen=True)
class WindowGrid:
    """Windows of equal length at equal distances. Window k ends at ``start_us + (k + 1) * hop_us``, k = 0, 1, …

    Attributes:
        start_us: one hop before the end of the first window; also its start if window and hop are equally long.
        hop_us: time from one window's end to the next one's.
        window_us: length of each window. Windows overlap if it is larger than the hop; the first ones then begin
            before ``start_us``.

    Example:
        >>> WindowGrid(0, 5_000, 50_000).window(1)
        Window([-40000, 10000) µs, 50 ms)
    """

    start_us: int
    hop_us: int
    window_us: int

    def __post_init__(self) -> None:
        if self.window_us < 1 or self.hop_us < 1:
            raise FateError(
                f"windows of {self.window_us} µs every {self.hop_us} µs were asked for; both must be at least 1 µs"
            )

    def window(self, index: int) -> Window:
        """Return the window of that index."""
        end = self.end_us(index)
        return Window(end - self.window_us, end)

    def end_us(self, index: int) -> int:
        """End of the window of that index."""
        return self.start_us + (index + 1) * self.hop_us

    def ends_us(self, count: int) -> NDArray[np.int64]:
        """Ends [count] of the first windows."""
        return np.array([self.end_us(index) for index in range(count)], np.int64)

    def count(self, end_us: int) -> int:
        """Number of windows up to ``end_us``; the last one may end after it, by less than a hop."""
        return max(-(-(end_us - self.start_us) // self.hop_us), 0)

    def windows(self, end_us: int) -> Iterator[Window]:
        """Yield the windows up to ``end_us``, in order."""
        return map(self.window, range(self.count(end_us)))

    def nearest(self, times_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the window whose end is nearest to each time [N]; the earlier one of two that are equally near.

        The earlier one has seen less of what happens after the time, so evaluation takes it too.
        """
        indices = (2 * (times_us - self.start_us) + self.hop_us - 1) // (2 * self.hop_us) - 1
        return np.maximum(indices, 0)

    def labelled(self, times_us: NDArray[np.int64], tolerance_us: int | None = None) -> dict[int, int]:
        """Windows that represent a labelled time: index → time.

        The end of such a window is at most ``tolerance_us`` away from the time; None: half a hop. If several times
        belong to one window, the nearest one to its end is taken.
        """
        limit = self.hop_us if tolerance_us is None else 2 * tolerance_us
        chosen: dict[int, int] = {}
        for time, index in zip(times_us.tolist(), self.nearest(times_us).tolist(), strict=True):
            distance = abs(time - self.end_us(index))
            if 2 * distance <= limit and (index not in chosen or distance < abs(chosen[index] - self.end_us(index))):
                chosen[index] = time
        return chosen


#: Largest distance in time of a label from the end of the window that it is compared with, µs; as in RVT.
LABEL_TOLERANCE_US = 2_000
#: Distance between the starts that :func:`align_start` tries, µs.
_ALIGNMENT_STEP_US = 1_000


def align_start(start_us: int, hop_us: int, times_us: NDArray[np.int64]) -> int:
    """Return the start of a grid whose windows end at as many labelled times [N] as possible.

    Labels need not lie on a grid that starts with the first event. A window that ends 10 ms after its label shows the
    object 10 ms further on. The result lies at most one hop before ``start_us``, so no event is left out. It is
    ``start_us`` itself if no other start brings more labelled times within ``LABEL_TOLERANCE_US`` of a window's end.
    """
    shifts = np.arange(0, hop_us, _ALIGNMENT_STEP_US)
    after_end = (times_us - start_us)[:, None] - shifts  # [N, S]
    distance = (after_end + hop_us // 2) % hop_us - hop_us // 2  # from the nearest end, before or after it
    near = np.abs(distance) <= LABEL_TOLERANCE_US
    counts = near.sum(axis=0)
    best = int(counts.argmax()) if len(times_us) else 0
    if best == 0 or counts[best] == counts[0]:
        return start_us
    held = distance[near[:, best], best]
    shift = int(shifts[best] + (held.min() + held.max()) // 2)  # keeps all of them within the tolerance
    return start_us + shift % hop_us - hop_us
