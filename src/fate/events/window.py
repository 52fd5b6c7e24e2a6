"""A half-open span of time ``[start_us, end_us)`` in integer microseconds."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import SupportsIndex

from fate.errors import FateError


def window_us(hz: float) -> int:
    """Length in µs of one window at rate ``hz``: 80 Hz is 12 500 µs, never 12 ms."""
    if not isinstance(hz, int | float) or not 0 < hz <= 1_000_000:
        raise FateError(f"a rate of {hz!r} Hz was given; expected more than 0 and at most 1 000 000")
    return round(1_000_000 / hz)


MAX_TIME_US = 2**62  # times lie within ± this (146 000 years), so that their sums and differences fit int64


def clip_time(t_us: SupportsIndex) -> int:
    """A whole number of µs, brought into int64: spans may be open-ended in spirit, ``read(0, 10**30)``."""
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
