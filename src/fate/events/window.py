"""A half-open span of time ``[start_us, end_us)`` in integer microseconds."""

from __future__ import annotations

from dataclasses import dataclass

from fate.errors import FateError


def window_us(hz: float) -> int:
    """Length in µs of one window at rate ``hz``: 80 Hz is 12 500 µs, never 12 ms."""
    if not 0 < hz <= 1_000_000:
        raise FateError(f"a rate of {hz!r} Hz was given; expected more than 0 and at most 1 000 000")
    return round(1_000_000 / hz)


def clip_time(t_us: int) -> int:
    """The nearest time that int64 holds: spans may be open-ended in spirit, ``read(0, 10**30)``."""
    return max(-(2**63), min(int(t_us), 2**63 - 1))


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
