"""Find out where an output goes, and replace files as a whole.

Every writer asks :func:`find_target` what a path is:

* a regular file, or a name that is still free: the bytes go into a draft beside it, and the draft is renamed when it is
  complete, so that a reader sees the old file or the new one, never half of one;
* a symbolic link: the same for the file it points to, and the link stays;
* a device or a pipe: the bytes go straight into it, and it is never replaced;
* ``-``: standard output, for text only;
* ``tcp:HOST:PORT``: a listener, for text that is written line by line (``boxes/line_outputs.py``);
* a folder: refused.
"""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

from fate.errors import FateError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: The name that stands for standard output, given as text; ``Path("-")`` is a file of this name.
STANDARD_OUTPUT = "-"
#: The name that stands for a listener, given as text; ``./tcp:…`` is a file of this name.
TCP = re.compile(r"tcp:(\[[^\]\s]+\]|[^:\s]+):([0-9]{1,5})")
#: Names of drafts end like this.
_DRAFT_END = r"\.[a-z0-9_]{8}\.part"
#: Longest name of a target, in bytes, that its draft's name repeats; a hash stands for longer ones.
_REPEATED_BYTES = 200
_MAX_LINKS = 40


@dataclass(frozen=True)
class Target:
    """What an output path stands for."""

    name: str  #: the path as the user gave it, for error messages
    path: Path  #: the file to write, with all links resolved; the path as given for a device
    #: a file may be missing, a device may be a pipe, a socket is a listener
    kind: Literal["file", "device", "standard output", "socket"]
    descriptor: int | None = None  #: the open descriptor of this process that a name such as ``/dev/stdout`` stands for

    @property
    def is_standard_output(self) -> bool:
        """Whether the bytes go to the same output as ``print``."""
        return self.kind == "standard output" or self.descriptor == 1


def find_target(
    path: str | os.PathLike[str], *, text: bool = False, seeks: bool = False, lines: bool = False
) -> Target:
    """Decide what an output path is, and refuse what cannot be written, before any work is done.

    Args:
        path: where the output goes; the text ``"-"`` is standard output.
        text: whether the output is text; binary data never goes to standard output.
        seeks: whether the writer goes back in the file, which devices and pipes do not allow.
        lines: whether the output is written line by line, so that it may go to a listener, ``"tcp:HOST:PORT"``.
    """
    name = os.fspath(path)
    if not name:
        raise FateError("'': the name of the output is empty; give the name of a file")
    if isinstance(path, str) and path == STANDARD_OUTPUT:
        if not text:
            raise FateError("-: this output is binary and does not go to standard output; give the name of a file")
        return Target("standard output", Path(name), "standard output")
    if isinstance(path, str) and path.startswith("tcp:"):
        return Target(name, Path(name), _checked_socket(name, lines))
    try:
        descriptor = _descriptor(name)
        try:
            mode = os.stat(name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            mode = stat.S_IFREG
        if stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
            raise FateError(f"{name}: is a {'folder' if stat.S_ISDIR(mode) else 'socket'}; give the name of a file")
        if descriptor is None and stat.S_ISREG(mode):
            return Target(name, _checked_file(name), "file")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise refusal(name, error) from None
    if seeks:
        raise FateError(
            f"{name}: is a device or a pipe, and this format cannot be written from front to back; give the name of a"
            " file"
        )
    return Target(name, Path(name), "device", descriptor)


def is_standard_output(path: str | os.PathLike[str] | None) -> bool:
    """Whether a path is ``"-"`` or another name of standard output; never an error, whatever the path is."""
    if path is None or path == STANDARD_OUTPUT:
        return isinstance(path, str)
    with suppress(OSError, ValueError):
        return _descriptor(os.fspath(path)) == 1
    return False


def refusal(name: str | os.PathLike[str], error: Exception) -> FateError:
    """Return the error for a path that the system refuses to write; a :class:`FateError` is returned as it is."""
    if isinstance(error, FateError):
        return error
    reason = getattr(error, "strerror", None) or error
    return FateError(f"{os.fspath(name)}: cannot be written ({reason}); give another file, or make room")


@contextmanager
def disk_faults(target: Target) -> Iterator[None]:
    """Turn a full disk and other faults of the system into one sentence.

    A reader of standard output that has gone (``fate … | head``) stays a :class:`BrokenPipeError`.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and target.is_standard_output:
            raise
        raise refusal(target.name, error) from None


def write_whole(path: str | os.PathLike[str], data: bytes, *, text: bool = False) -> None:
    """Write a file at once or not at all; see the top of this module for links, devices and, for ``text``, ``-``."""
    target = find_target(path, text=text)
    with Draft(target) as draft, disk_faults(target), draft.open() as file:
        file.write(data)


def open_growing(path: str | os.PathLike[str]) -> tuple[Target, BinaryIO]:
    """Open a text output that others read while it grows: a file is emptied and written in place, without a draft."""
    target = find_target(path, text=True)
    with disk_faults(target):
        return target, open(target.path, "wb") if target.kind == "file" else _open_device(target)


class Draft:
    """The bytes of a target while they are written; a ``with`` block commits them, an error inside discards them.

    A draft of a dead process is removed when the same target is written next. A lock on each draft shows that its
    writer lives, so two writers of one target do not disturb each other: the last to finish wins.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.path = target, target.path
        self._handle: int | None = None
        if target.kind == "file":
            with disk_faults(target):
                _clear_dead_drafts(target.path)
                self._handle, self.path = _new_draft(target.path)

    def open(self) -> BinaryIO:
        """Open for writing: the draft, or the device or standard output itself."""
        return open(self.path, "wb") if self.target.kind == "file" else _open_device(self.target)

    def commit(self) -> None:
        """Give the draft the name of its target; the bytes are on the disk before that."""
        if self._handle is None:
            return
        try:
            with disk_faults(self.target):
                try:
                    os.fsync(self._handle)  # a power cut after the rename must not leave an empty file
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot
                        raise
                if os.name == "nt":  # Windows renames closed files only
                    self._release()
                os.replace(self.path, self.target.path)
                with suppress(OSError):  # where a folder cannot be opened (Windows), the system decides
                    folder = os.open(self.target.path.parent, os.O_RDONLY)
                    try:
                        os.fsync(folder)
                    finally:
                        os.close(folder)
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the draft; does nothing after :meth:`commit`."""
        if self.target.kind != "file":
            return
        self._release()
        with suppress(OSError):  # the folder may have become read-only
            self.path.unlink(missing_ok=True)

    def _release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()


class GrowingFile(Draft):
    """A target that others may read while it grows: it has its own name from the start, and an error keeps it."""

    def __init__(self, target: Target) -> None:
        self.target, self.path, self._handle = target, target.path, None

    def discard(self) -> None:
        """Keep what was written."""


def numbered(path: Path, number: int) -> Path:
    """The name of a further file beside ``path``: file 1 after ``boxes.jsonl`` is ``boxes.001.jsonl``, 0 is itself."""
    return path.with_name(f"{path.stem}.{number:03d}{path.suffix}") if number else path


def next_numbered(path: Path, number: int) -> Path:
    """The first name of ``numbered`` that no file has, from ``number`` on: a run that is started again replaces no file
    of the run before.
    """
    return next(name for index in itertools.count(number) if not (name := numbered(path, index)).exists())


class _StandardOutput(io.RawIOBase):
    """Standard output as ``sys.stdout`` has it, which stays open when this is closed."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if sys.stdout is None:
            raise OSError(errno.EBADF, "standard output is closed")
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        else:  # in a notebook
            sys.stdout.write(bytes(data).decode("utf-8"))
        return len(data)

    def flush(self) -> None:
        if sys.stdout is not None:
            sys.stdout.flush()


def _open_device(target: Target) -> BinaryIO:
    if target.kind == "standard output":
        return cast(BinaryIO, _StandardOutput())
    if target.descriptor is not None:
        if target.descriptor == 1 and sys.stdout is not None:
            sys.stdout.flush()
        return os.fdopen(os.dup(target.descriptor), "wb")
    # without O_CREAT and O_TRUNC: a device that no longer exists must not become a file
    return open(target.path, "wb", opener=lambda path, flags: os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC)))


def _descriptor(name: str) -> int | None:
    """N where a path such as ``/dev/stdout`` or ``/dev/fd/N`` stands for an open descriptor of this process."""
    path = os.path.abspath(name)
    for _ in range(_MAX_LINKS):
        folder, last = os.path.split(path)
        folder = os.path.realpath(folder)
        if last.isdigit() and folder in ("/dev/fd", f"/proc/{os.getpid()}/fd"):
            return int(last)
        path = os.path.join(folder, last)
        if not os.path.islink(path):
            return None
        path = os.path.normpath(os.path.join(folder, os.readlink(path)))
    return None


def _checked_socket(name: str, lines: bool) -> Literal["socket"]:
    if not lines:
        raise FateError(f"{name}: only JSON lines and CSV of boxes go to a listener; give the name of a file")
    found = TCP.fullmatch(name)
    if found is None or not 0 < int(found[2]) < 1 << 16:
        raise FateError(f"{name}: is no address of a listener; expected tcp:HOST:PORT, such as tcp:127.0.0.1:9001")
    return "socket"


def _checked_file(name: str) -> Path:
    """The file behind a path, in a folder where it can be written."""
    file = Path(os.path.realpath(name))
    if file.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not file.parent.is_dir():
        folder = file.parent if os.path.islink(name) else Path(name).parent
        raise FateError(f"{name}: the folder {folder} does not exist; make it first")
    if (file.exists() and not os.access(file, os.W_OK)) or not os.access(file.parent, os.W_OK):
        raise FateError(f"{name}: cannot be written (permission denied); give another file")
    return file


def _draft_prefix(target: Path) -> str:
    encoded = os.fsencode(target.name)
    return f".{target.name if len(encoded) <= _REPEATED_BYTES else hashlib.sha256(encoded).hexdigest()[:32]}"


def _new_draft(target: Path) -> tuple[int, Path]:
    """Make an empty file beside the target, open and locked, with the permissions of the target or of a new file."""
    known = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    while True:
        path = target.with_name(f"{_draft_prefix(target)}.{secrets.token_hex(4)}.part")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if known is None else known)
        if fcntl is not None:
            with suppress(OSError):  # some network disks have no locks; there, drafts are never taken for dead
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            if known is not None:
                path.chmod(known)  # the mask of the process may have taken permissions away
            return handle, path
        os.close(handle)  # another writer took it for dead before it was locked


def _clear_dead_drafts(target: Path) -> None:
    """Remove drafts of this target whose writers were killed; living writers hold a lock, or on Windows the file."""
    draft = re.compile(re.escape(_draft_prefix(target)) + _DRAFT_END)
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if not draft.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError), open(entry.path, "rb+") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)
            if fcntl is None:
                with suppress(OSError):
                    os.unlink(entry.path)
