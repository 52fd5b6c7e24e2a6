"""The protocol by which functions that take long report their progress, and its lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol

from fate.text import duration


class Progress(Protocol):
    """A function that is called repeatedly while the work goes on."""

    def __call__(self, done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> object:
        """Take a report of progress.

        Args:
            done: amount of work that is done.
            total: amount of all the work, in the same unit; None if it is not known.
            text: more about the work, such as its speed.
            part: name of the part of the work, for work that has several parts.
        """


def ignore(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
    """Ignore a report of progress."""


def scale(progress: Progress, start: float, end: float, whole: float = 1.0) -> Progress:
    """Report one piece of the work, which goes from ``start`` to ``end`` of the ``whole``, as progress of the whole."""

    def report(done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        progress(start + (end - start) * done / (total or 1.0), whole, text, part)

    return report


def name_part(progress: Progress | None, name: str) -> Progress | None:
    """Give all reports of one part of the work its name; None stays None."""
    if progress is None:
        return None
    return lambda done, total=1.0, text="", part="", /: progress(done, total, text, name)


class ProgressLines:
    """Progress without a bar: lines of text.

    Work of less than two seconds prints nothing. After that a line comes when a part of the work begins, ten seconds
    later, and then whenever the time spent on the part has doubled, but at least every minute.
    """

    FIRST_S, GAP_S, LONGEST_GAP_S = 2.0, 10.0, 60.0

    def __init__(self, label: str, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        """Take a name for work whose reports do not name their part, and a function that writes a line."""
        self._label, self._write, self._clock = label, write, clock
        self._began: float | None = None  # when the work and its current part began, and when the next line is due
        self._part_began = self._due = self._share = 0.0
        self._part: str | None = None

    def __call__(self, done: float, total: float | None = 1.0, text: str = "", part: str = "", /) -> None:
        """Print a line if one is due; see :class:`Progress` for the arguments."""
        part, share, now = part or self._label, done / total if total else 0.0, self._clock()
        self._began = now if self._began is None else self._began
        if part != self._part or share < self._share:  # another part, or the same one begins again
            self._part, self._part_began, self._due = part, now, max(now, self._began + self.FIRST_S)
        self._share = share
        if now < self._due or share >= 1:  # the result says that it is done
            return
        self._due = now + min(max(now - self._part_began, self.GAP_S), self.LONGEST_GAP_S)
        words = [f"{100 * share:.0f} %" if total else "", text, f"after {duration(now - self._began)}"]
        self._write(f"{part}: {', '.join(word for word in words if word)}")


def print_progress(label: str = "working") -> Progress:
    """Return a function that prints progress as lines on standard error, for the argument ``progress``.

    A line comes after ten seconds, and then at most a minute apart; work of less than two seconds prints nothing.

    Args:
        label: name of the work, at the start of each line.

    Example:
        >>> fate.simulate("drives", progress=fate.print_progress("simulating"))            # doctest: +SKIP
    """
    return ProgressLines(label, lambda line: print(line, file=sys.stderr, flush=True))
