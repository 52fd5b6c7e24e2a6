"""The protocol by which functions that take long report their progress."""

from __future__ import annotations

from typing import Protocol


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
