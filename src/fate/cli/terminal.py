"""Standard output and standard error of the command: how much is printed, in which words, and streams that fail.

Results go to standard output. Progress, notes, warnings and errors go to standard error, and never make a command fail:
where standard error is closed or full, they are lost and the work goes on.

Errors and warnings are written for Python, with its arguments: ``pass sensor=(height, width)``. Whoever runs a command
has options instead: ``pass --sensor WIDTHxHEIGHT``. Commands print every message through :func:`with_options`.
"""

from __future__ import annotations

import codecs
import errno
import logging
import os
import re
import sys
from dataclasses import dataclass
from typing import Any, TextIO, cast

from fate.text import encodable

#: Exit code of a live run whose source failed; all results before that are complete.
SOURCE_FAILED = 3
#: What stands for a character that the encoding of a terminal or pipe does not have.
PLAIN = {"≥": ">=", "≤": "<=", "×": "x", "µ": "u", "–": "-", "—": "-", "…": "...", "→": "->", "·": "*", "²": "2",
         "─": "-", "½": "1/2", "−": "-", "±": "+-", "°": " degrees"}  # fmt: skip
_ERRORS = "fate-plain"


@dataclass
class Verbosity:
    """How much a command prints beside its results."""

    quiet: bool = False  #: no progress and no notes (``-q``); warnings and errors stay
    verbose: int = 0  #: 1 for log lines and the traceback of an error (``-v``), 2 for debugging lines too (``-vv``)

    def set(self, quiet: bool | None = None, verbose: int | None = None) -> None:
        """Change what is given, and set Python's logging to it."""
        self.quiet = self.quiet if quiet is None else quiet
        self.verbose = self.verbose if verbose is None else verbose
        level = {0: logging.WARNING, 1: logging.INFO}.get(self.verbose, logging.DEBUG)
        if self.verbose:
            logging.basicConfig(format="%(name)s: %(message)s", stream=sys.stderr)
        logging.getLogger("fate").setLevel(level)


VERBOSITY = Verbosity()


def note(text: str) -> None:
    """Print a line about the work to standard error, unless ``--quiet`` was given."""
    if not VERBOSITY.quiet:
        print(text, file=sys.stderr, flush=True)


class _NeverFails:
    """Standard error whose writes cannot fail: what a full disk or a closed pipe refuses is lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream was closed
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Make standard output and standard error take any text, also where they are closed or no UTF-8.

    A missing stream becomes the null device, so that no file which is opened later takes its number and receives what
    was meant for a terminal. Characters that the encoding lacks are replaced (≥ by >=), the others by escapes.
    """
    while True:
        handle = os.open(os.devnull, os.O_RDWR)
        if handle > 2:
            os.close(handle)
            break
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  (as long as the process)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    codecs.register_error(_ERRORS, _replace)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_ERRORS)
    sys.stderr = cast(TextIO, _NeverFails(sys.stderr))


def finish_output() -> str:
    """Flush standard output at the end, and return why it could not take what was printed.

    The reason is empty if it did, or if its reader has gone, which is no fault (``fate info FILE | head -1``).
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        handle = os.open(os.devnull, os.O_WRONLY)  # takes the rest of the text, or Python complains at its end
        os.dup2(handle, 1)
        os.close(handle)
        failure = output_failure(error)
        return str(error) if failure is None else failure
    except ValueError:  # it was closed, by typer after a broken pipe
        return ""
    return ""


def output_failure(error: OSError) -> str | None:
    """Return why standard output refused text, if that is what an error says, and None if it came from elsewhere.

    Errors of files name the file, and FATE turns them into sentences of its own. The reason is empty if the reader of
    a pipe has gone.
    """
    if isinstance(error, BrokenPipeError) or (os.name == "nt" and error.errno == errno.EINVAL):
        return ""
    known = error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF)
    return error.strerror if known else None


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Error handler of codecs: ASCII for the characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    failed = error.object[error.start : error.end]
    plain = "".join(PLAIN.get(char, char) for char in encodable(failed))
    return plain.encode("ascii", "backslashreplace").decode("ascii"), error.end


#: Arguments that the command line has under another name, or as a flag.
OTHER_NAMES = {
    'out_of_bounds="drop"': "--drop-out-of-bounds",
    'unsorted="sort"': "--sort",
    "format=NAME": "--to NAME",
    "label_tolerance_us=5000": "--label-tolerance 5ms",
    "sensor=(height, width)": "--sensor WIDTHxHEIGHT",
    "predictions_to=DIR": "--predictions DIR or --json FILE",
    "reconnect is for": "--reconnect is for",
}
#: Arguments that are options of the same name.
SAME_NAMES = (
    "against", "allow_missing", "backend", "calibration", "clip", "columns", "device", "format", "fresh", "host", "hz",
    "images", "jobs", "kind", "model", "opset", "out", "palette", "port", "roi", "seeds", "sensor", "skip_empty",
    "steps", "streams", "strict", "threads", "time_unit", "zero_time",
)  # fmt: skip

_OTHER = re.compile("|".join(re.escape(argument) for argument in OTHER_NAMES))
# not behind a dot or a slash: run.device=cpu is a setting of a configuration, a/out=b a path
_SAME = re.compile(rf"""(?<![\w./=-])({"|".join(SAME_NAMES)})=("[^"]*"|'[^']*'|\([^()]*\)|[\w.]*\w)""")


def with_options(message: str) -> str:
    """The message with options of commands in place of Python arguments.

    Example:
        >>> with_options('a.csv: pass columns="txyp" or sensor=(260, 346); run.device=cpu')
        'a.csv: pass --columns txyp or --sensor 346x260; run.device=cpu'
    """
    return _SAME.sub(_option, _OTHER.sub(lambda found: OTHER_NAMES[found[0]], message))


def _option(found: re.Match[str]) -> str:
    name, value = found[1], found[2].strip("\"'")
    if value == "True":
        return f"--{name.replace('_', '-')}"
    if value.startswith("("):
        parts = [part.strip() for part in value[1:-1].split(",") if part.strip()]
        value = "x".join(reversed(parts)) if name == "sensor" else (" " if name == "hz" else ",").join(parts)
    return f"--{name.replace('_', '-')} {value}"
