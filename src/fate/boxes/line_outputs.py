"""Where lines of text go while a run lasts: a file that grows, a series of files, standard output, or a socket.

The first text that is written is the head of the output, such as the first JSON line or the names of CSV columns. Every
further file and every new connection begins with the head again, so that each can be read alone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import BinaryIO

from fate.errors import FateError
from fate.whole_files import Target, disk_faults, find_target, next_numbered, open_growing

#: Texts that wait for a listener: five seconds of windows at 200 Hz.
MAX_WAITING = 1000
#: Seconds between attempts to connect; the time doubles from the first to the last.
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
#: Seconds after which a connection attempt, or a listener that reads nothing, is given up.
TIMEOUT_S = 10.0
#: Seconds that the end of a live run waits for a listener.
LAST_WAIT_S = 2.0

_LOG = logging.getLogger(__name__)


class LineOutput(AbstractContextManager["LineOutput"]):
    """Takes texts that consist of whole lines, and passes each of them on at once."""

    name: str  #: as the user gave it
    files: tuple[str, ...] = ()  #: that were written, if it is a series of files
    dropped_lines = 0  #: that could not be passed on

    def write(self, text: str) -> None:
        """Pass on the next lines."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait a short time for a listener that has not taken all lines yet; afterwards ``dropped_lines`` is final."""

    def close(self) -> None:
        """End; lines that still wait are dropped."""

    def __exit__(self, *_: object) -> None:
        self.close()


def open_lines(path: str | os.PathLike[str], *, rotate_bytes: int | None = None, waits: bool = False) -> LineOutput:
    """Open an output of lines.

    Args:
        path: a file, a device, ``"-"`` for standard output, or ``"tcp:HOST:PORT"`` for a listener.
        rotate_bytes: begin a further file (``boxes.001.jsonl``) before one would have more bytes than this.
        waits: what happens to lines that a listener is too slow for: wait for it (for a recording, which has time), or
            drop and count the oldest (for a live source, which has none).
    """
    if rotate_bytes is not None and rotate_bytes < 1:
        raise FateError(f"rotate_bytes={rotate_bytes} was given; expected the most bytes of a file, 1 or more")
    target = find_target(path, text=True, lines=True)
    if target.kind == "socket":
        return _LinesToSocket(target.name, waits)
    return _LinesToFile(path, target, rotate_bytes)


class _LinesToFile(LineOutput):
    """Lines to a file, a device or standard output; flushed after every text."""

    def __init__(self, path: str | os.PathLike[str], target: Target, rotate_bytes: int | None) -> None:
        self.name = target.name
        self._rotate_bytes = rotate_bytes if target.kind == "file" else None
        self._first = target.path
        self._target, self._file = open_growing(path) if self._rotate_bytes is None else self._open_next()
        self._head = b""
        self._num_bytes = 0

    def write(self, text: str) -> None:
        # bytes of a file name that are not UTF-8 are escaped as in JSON
        data = text.encode("utf-8", "backslashreplace")
        limit, used = self._rotate_bytes, self._num_bytes
        if limit is not None and used > len(self._head) > 0 and used + len(data) > limit:
            self._begin_next_file()
        with disk_faults(self._target):
            self._file.write(data)
            self._file.flush()
        self._head = self._head or data
        self._num_bytes += len(data)

    def _begin_next_file(self) -> None:
        self.close()
        self._target, self._file = self._open_next()
        with disk_faults(self._target):
            self._file.write(self._head)
        self._num_bytes = len(self._head)

    def _open_next(self) -> tuple[Target, BinaryIO]:
        """Open the next free name."""
        path = next_numbered(self._first, len(self.files))
        self.files = (*self.files, str(path))
        return open_growing(path)

    def close(self) -> None:
        with disk_faults(self._target):
            self._file.close()


class _LinesToSocket(LineOutput):
    """Lines to a TCP listener, sent by a thread.

    A listener that is not there yet, or has gone, is tried again until the run ends. Meanwhile texts wait; the oldest
    are dropped if there are more than ``MAX_WAITING``. The text that a listener had not taken when it went is sent
    again. What the network had taken, and the listener never read, is not known here and not counted.
    """

    def __init__(self, name: str, waits: bool) -> None:
        self.name, self._waits = name, waits
        host, _, port = name.removeprefix("tcp:").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._head: bytes | None = None
        self._queue: deque[bytes] = deque()
        self._change = threading.Condition()
        self._sending: bytes | None = None  # the text that left the queue last, until it is sent
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="fate-lines", daemon=True)

    def write(self, text: str) -> None:
        if not text:
            return
        data = text.encode("utf-8", "backslashreplace")
        with self._change:
            if self._head is None:
                self._head = data
                self._thread.start()
                return
            while self._waits and len(self._queue) >= MAX_WAITING:
                if not self._change.wait(TIMEOUT_S):
                    raise FateError(f"{self.name}: no listener took a line for {TIMEOUT_S:g} s; start it first")
            if len(self._queue) >= MAX_WAITING:
                self._drop(self._queue.popleft())
            self._queue.append(data)
            self._change.notify_all()

    def settle(self) -> None:
        with self._change:
            longest = TIMEOUT_S if self._waits else LAST_WAIT_S
            self._change.wait_for(lambda: not self._queue and self._sending is None, longest)
            self._drop_all()

    def close(self) -> None:
        with self._change:
            self._drop_all()
            self._closing.set()
            self._change.notify_all()

    def _drop(self, data: bytes) -> None:
        self.dropped_lines += data.count(b"\n")

    def _drop_all(self) -> None:
        if self._sending is not None:
            self._queue.append(self._sending)
            self._sending = None
        while self._queue:
            self._drop(self._queue.popleft())

    def _send_all(self) -> None:
        """The thread: connect, send until the listener goes, and start again."""
        retry_s, is_known = FIRST_RETRY_S, False  # is_known: whether the log says that nobody listens
        while not self._closing.is_set():
            try:
                with socket.create_connection(self._address, TIMEOUT_S) as connection:
                    _LOG.log(logging.WARNING if is_known else logging.INFO, "%s: a listener is there", self.name)
                    retry_s, is_known = FIRST_RETRY_S, False
                    connection.sendall(self._head or b"")
                    while (data := self._next()) is not None:
                        self._send(connection, data)
            except (OSError, UnicodeError) as error:  # UnicodeError: a host that no name server accepts
                if not is_known:
                    most = "" if self._waits else f"; of more than {MAX_WAITING}, the oldest are dropped"
                    _LOG.warning("%s: no listener (%s); lines wait for it%s", self.name, error, most)
                is_known = True
            self._closing.wait(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    def _next(self) -> bytes | None:
        """Wait for the next text; None at the end."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closing.is_set())
            if not self._queue:
                return None
            self._sending = self._queue.popleft()
            return self._sending

    def _send(self, connection: socket.socket, data: bytes) -> None:
        """Send a text; if that fails, put it back, to be sent first in the next connection."""
        is_done = False
        try:
            _refuse_closed(connection)
            connection.sendall(data)
            is_done = True
        finally:
            with self._change:
                if not is_done and self._sending is not None:  # it was not dropped meanwhile
                    self._queue.appendleft(data)
                self._sending = None
                self._change.notify_all()


def _refuse_closed(connection: socket.socket) -> None:
    """Raise an error if the listener has closed its end: otherwise the next text would seem to be sent."""
    connection.settimeout(0)
    try:
        while connection.recv(4096):  # what a listener says is not read
            pass
    except BlockingIOError:
        return
    finally:
        connection.settimeout(TIMEOUT_S)
    raise ConnectionResetError("it closed the connection")
