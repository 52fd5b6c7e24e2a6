"""The one error users see: what was given, what was expected, what to do.

Every fault of an input (a broken file, impossible coordinates, a bad argument) is raised as
:class:`FateError` or a subclass; the command line prints it as one sentence and exits with 1
(a bad argument given to a command: with 2).
A bug in FATE itself is never wrapped: it stays a traceback.

Messages name Python arguments, such as ``sensor=(height, width)``. The command line writes its own options in their
place (``fate.cli.terminal``), so that each message is written once.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from fate.text import one_line

#: Characters of the longest message; a damaged file could put any number into it.
MAX_MESSAGE = 2000
#: Packages whose frames are never the user's own code: FATE itself, and what calls FATE's functions back.
_BETWEEN = {"fate", "contextlib", "functools", "torch", "numba", "numpy"}
#: The packages that each extra of pyproject.toml installs. Errors name these packages instead of the extra, so that the
#: pip line works for every way in which FATE was installed.
PACKAGES: dict[str, tuple[str, ...]] = {
    "ros": ("rosbags",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("openvino",),
    "camera": ("neuromorphic-drivers",),
    "live": ("starlette", "uvicorn", "websockets"),
    "rerun": ("rerun-sdk",),
    "video": ("opencv-python-headless",),
    "results": ("pandas", "supervision"),
    "tensorboard": ("tensorboard",),
}


class FateError(ValueError):
    """Bad input. The message is one sentence a user can act on, on one line whatever a damaged file put into it."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class FormatError(FateError):
    """A file that cannot be read as what it is or claims to be."""


class MissingDependencyError(FateError):
    """An optional package is needed; the message gives the pip line."""


class FateWarning(UserWarning):
    """Something was repaired, dropped or guessed; the message says what and how much, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


def missing_packages(what: str, packages: Sequence[str]) -> MissingDependencyError:
    """The error to raise if packages that ``what`` needs, by their names on the package index, are not installed.

    Example:
        >>> print(missing_packages("export", PACKAGES["export"]))
        export needs onnx, onnxruntime, onnxscript; run pip install onnx onnxruntime onnxscript
    """
    return MissingDependencyError(f"{what} needs {', '.join(packages)}; run pip install {' '.join(packages)}")


def import_optional(package: str, what: str) -> Any:
    """Return the module of an optional package; if it is missing, the error gives the pip line of ``what`` needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise missing_packages(what, (package,)) from None


def list_names(names: Iterable[object], most: int = 8) -> str:
    """Names for a message, separated by commas; of more than ``most`` the first ones and the number of the others."""
    every = [str(name) for name in names]
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown


def _one_line(message: str) -> str:
    """The message on one line, with its middle left out where it is too long."""
    message = one_line(message)
    if len(message) <= MAX_MESSAGE:
        return message
    return f"{message[: MAX_MESSAGE * 3 // 4]} … {message[-MAX_MESSAGE // 4 :]}"


def warn(message: str) -> None:
    """Issue a :class:`FateWarning` that points at the line outside FATE that called it.

    Every warning of the package goes through here, because the depth of the call differs from case to case.
    """
    depth, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, FateWarning, stacklevel=depth)
