"""Numbers, times, rates and rectangles written as text: ``5ms``, ``5M``, ``0,0,640,360``."""

from __future__ import annotations

import re
from typing import NamedTuple

from fate.errors import FateError


class ClockTime(NamedTuple):
    """A time in µs, on the recording's clock or counted from its first event."""

    us: int
    from_start: bool

    def at(self, start_us: int) -> int:
        """On the recording's clock, given its first event."""
        return self.us + (start_us if self.from_start else 0)


def parse_time(text: str) -> ClockTime:
    """``1500us``, ``1.5ms``, ``2s`` or ``0``; with ``+`` in front, from the first event."""
    match = re.fullmatch(r"(\+?)(-?\d{1,18}(?:\.\d{1,9})?)\s*(us|µs|ms|s)?", text.strip())
    if not match or (match[3] is None and float(match[2]) != 0):  # 2 could mean 2 s or 2 µs
        raise FateError(f"{text} was given; expected a time such as 1500us, 1.5ms, 2s, or +2s from the first event")
    whole, _, fraction = match[2].partition(".")
    scale = {"s": 1_000_000, "ms": 1000}.get(match[3], 1)
    value, rest = divmod(int(whole + fraction) * scale, int(10 ** len(fraction)))
    if rest:
        raise FateError(f"{text} was given; expected a whole number of microseconds")
    return ClockTime(value, bool(match[1]))


def parse_duration(text: str) -> int:
    """µs of ``50ms``, ``0.05s`` or ``50000us``; without a unit, 50 would be 50 µs and hardly meant."""
    if text.strip().endswith("s"):
        time = parse_time(text)
        if time.us >= 1 and not time.from_start:
            return time.us
    raise FateError(f"{text} was given; expected more than 0, with a unit, such as 50ms")


def parse_number(text: str) -> float | None:
    """The number that a text of a file is, or None; Python's own ``1_000`` is no number there."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def parse_roi(text: str) -> tuple[int, int, int, int]:
    """``"x1,y1,x2,y2"`` as four integers."""
    match = re.fullmatch(",".join([r"\s*(\d{1,9})\s*"] * 4), text)
    x1, y1, x2, y2 = map(int, match.groups()) if match else (0, 0, 0, 0)
    if not (0 <= x1 < x2 and 0 <= y1 < y2):
        raise FateError(f"{text} was given; expected x1,y1,x2,y2 in pixels, such as 0,0,640,360")
    return x1, y1, x2, y2


def parse_amount(text: str) -> int:
    """A whole number, or one with k for thousands or M for millions.

    Example:
        >>> parse_amount("5M"), parse_amount("2.5k"), parse_amount("800")
        (5000000, 2500, 800)
    """
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([kM]?)", text.strip())
    if match is None:
        raise FateError(f"{text} was given; expected a number such as 800, 500k or 5M")
    return round(float(match[1]) * {"": 1, "k": 1000, "M": 1_000_000}[match[2]])
