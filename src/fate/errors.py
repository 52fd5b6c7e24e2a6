"""The one error users see: what was given, what was expected, what to do.

Every fault of an input (a broken file, impossible coordinates, a bad argument) is raised as
:class:`FateError` or a subclass; the command line prints it as one sentence and exits with 1
(a bad argument given to a command: with 2).
A bug in FATE itself is never wrapped: it stays a traceback.
"""

from __future__ import annotations


class FateError(ValueError):
    """Bad input. The message is one sentence a user can act on, on one line whatever a damaged file put into it."""

    def __init__(self, message: str) -> None:
        if not message.isprintable():
            message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in message)
        super().__init__(message)


class FormatError(FateError):
    """A file that cannot be read as what it is or claims to be."""


class MissingDependencyError(FateError):
    """An optional package is needed; the message gives the pip line."""


class FateWarning(UserWarning):
    """Something was repaired, dropped or guessed; the message says what and how much."""
