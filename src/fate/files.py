"""Read files that a user names.

A name can belong to a folder, a pipe or a device. Opening a pipe blocks until somebody writes to it, and a device such
as ``/dev/zero`` never ends, so only regular files are opened, and only up to a size that the caller expects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path

from fate.errors import FateError

#: Bytes of the largest configuration, dataset description or study in YAML.
MAX_YAML_BYTES = 4 << 20
#: Bytes of the largest JSON document: manifests, labels, detections and predictions.
MAX_JSON_BYTES = 4 << 30


def user_cache(part: str) -> Path:
    """The folder of what is kept between runs, by the name of its part: in ``$FATE_CACHE_DIR``, else in the user's."""
    if folder := os.environ.get("FATE_CACHE_DIR"):
        return Path(folder) / part
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fate" / part


class MissingFileError(FateError):
    """No file has the name that was given."""


def check_regular(path: str | PathLike[str], expected: str = "a file") -> os.stat_result:
    """The state of a regular file; for everything else an error with what was ``expected``, such as "a YAML file"."""
    try:
        state = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"{os.fspath(path)}: there is no such file; expected {expected}; check the name and the folder"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte or half a character in the name
        raise _unreadable(path, error, expected) from None
    if not stat.S_ISREG(state.st_mode):
        kind, remedy = "a device, a pipe or a socket", "copy its content into a file"
        if stat.S_ISDIR(state.st_mode):
            kind, remedy = "a folder", "give the file inside it"
        raise FateError(f"{os.fspath(path)}: is {kind}; expected {expected}; {remedy}")
    return state


def open_regular(path: str | PathLike[str], expected: str = "a file") -> BufferedReader:
    """Open a regular file for reading; a FateError for everything else, and where it cannot be read."""
    check_regular(path, expected)
    try:
        return open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error, expected) from None


def read_bytes(path: str | PathLike[str], expected: str = "a file", limit: int = MAX_JSON_BYTES) -> bytes:
    """All bytes of a regular file of at most ``limit`` bytes."""
    with open_regular(path, expected) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise _unreadable(path, error, expected) from None
    if len(data) > limit:
        raise FateError(f"{os.fspath(path)}: has more than {limit} bytes; expected {expected} of at most {limit} bytes")
    return data


def read_text(path: str | PathLike[str], expected: str = "a text file", limit: int = MAX_JSON_BYTES) -> str:
    """The text of a regular UTF-8 file, with or without a byte order mark, of at most ``limit`` bytes."""
    try:
        return read_bytes(path, expected, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FateError(
            f"{os.fspath(path)}: is not UTF-8 at byte {error.start}; expected {expected}; save it as UTF-8"
        ) from None


@contextmanager
def readable_folders(expected: str) -> Iterator[None]:
    """Turn a folder that may not be read into one sentence that names it, and what is ``expected`` in it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise _unreadable(os.fsdecode(error.filename), error, expected) from None


def walk_folders(
    root: str | PathLike[str], expected: str, *, limit: int, follow_links: bool = False
) -> Iterator[tuple[str, list[str], list[str]]]:
    """List a folder and all folders below it like ``os.walk``, but leave out nothing silently.

    A folder that may not be read is refused, and so are more than ``limit`` files and folders: a folder such as ``/``
    was then given by mistake, and listing it takes minutes. Errors name what is ``expected``, such as "recordings".
    """

    def refuse(error: OSError) -> None:
        raise error

    count = 0
    with readable_folders(expected):
        for folder, folders, files in os.walk(root, onerror=refuse, followlinks=follow_links):
            count += len(folders) + len(files)
            if count > limit:
                raise FateError(
                    f"{os.fspath(root)}: has more than {limit} files and folders; expected a folder of {expected}; give"
                    " a folder with fewer of them"
                )
            yield folder, folders, files


def _unreadable(path: str | PathLike[str], error: Exception, expected: str) -> FateError:
    reason = getattr(error, "strerror", None) or error
    return FateError(
        f"{os.fspath(path)}: cannot be read ({reason}); expected {expected}; check the name and its rights"
    )
