"""Live sources: a file at real speed, standard input (``-``), a socket (``tcp:PORT``), and a ``camera``.

Nothing here loads torch, which takes seconds, so that a wrong name of a source is refused at once.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fate.errors import FateError, FormatError, warn
from fate.events.events import Events, Sensor
from fate.formats.opening import decoder_for, open_recording
from fate.formats.prophesee.header import MAX_HEADER_BYTES, Header, parse_header
from fate.formats.recording import Recording
from fate.inference.camera_driver import CameraSettings, NoCameraError, open_camera

#: The name of a socket on this machine.
PORT = re.compile(r"tcp:([0-9]{1,5})")
#: Formats of pipes and sockets.
BYTE_FORMATS = ("evt3", "evt2")
#: Bytes that are read at once.
PIECE_BYTES = 1 << 16
#: Length of the blocks of a file that are read ahead, µs, rounded up to whole pieces.
BLOCK_US = 20_000
#: How often a waiting socket or camera checks whether it was closed, seconds.
POLL_S = 0.1
#: A client that is silent for longer is dropped, seconds.
IDLE_S = 10.0
#: Most clients that have not sent an event yet; one more drops the oldest.
MAX_WAITING = 16
#: Name of a count.
OUTSIDE = "events outside the sensor"
#: Number of them after which a warning says so; a few come from damaged words.
MANY_OUTSIDE = 100
#: How long to wait for a camera that was unplugged, seconds.
RECONNECT_S = 60.0


def is_live(name: str) -> bool:
    """Whether a name means a live source and not a file."""
    return name in ("-", "camera") or name.startswith("camera:") or PORT.fullmatch(name) is not None


def check_source(name: str, sensor: Sequence[int] | None, reconnect: bool = False) -> None:
    """Refuse a name that :func:`open_source`, which has the same arguments, cannot open."""
    if not is_live(name):
        raise FateError(f"{name}: expected -, tcp:PORT, camera or camera:SERIAL; a file is played by play")
    if port := PORT.fullmatch(name):
        if not 0 < int(port[1]) < 1 << 16:
            raise FateError(f"{name}: there is no such port; expected tcp:1 to tcp:65535")
        if sensor is None:
            raise FateError(f"{name}: a socket does not say how large the sensor is; give sensor=(height, width)")
    if reconnect and name == "-":
        raise FateError("standard input: a pipe that has ended does not return; reconnect is for tcp:PORT and cameras")


def open_source(
    name: str,
    sensor: Sequence[int] | None = None,
    format: str | None = None,
    reconnect: bool = False,
    **camera: Any,
) -> LiveSource:
    """Open a live source by its name: ``-``, ``tcp:PORT``, ``camera`` or ``camera:SERIAL``.

    Sockets, and standard input without the header of a file, need the ``sensor`` (height, width); the ``format`` of
    their bytes is evt3 (the default) or evt2. With ``reconnect``, a socket waits for the next client when one has gone,
    and a camera is waited for without a limit. ``biases`` and ``roi`` are for cameras, see :class:`CameraSource`.
    """
    check_source(name, sensor, reconnect)
    kind, _, detail = name.partition(":")
    if kind == "camera":
        return CameraSource(detail or None, reconnect_s=math.inf if reconnect else RECONNECT_S, **camera)
    if kind == "tcp":  # clients are refused until the detector is ready
        return TcpSource(int(detail), sensor or (), format=format or "evt3", once=not reconnect, listens=False)
    return StandardInput(sensor, format or "evt3")


def play(
    recording: Recording | str,
    hz: float = 200.0,
    start_us: int | None = None,
    end_us: int | None = None,
    *,
    loop: bool = False,
) -> FileSource:
    """Play a recording, or a part of it, at its own speed, in pieces of a tenth of a window at ``hz`` per second; with
    ``loop``, again and again.
    """
    if not 1 <= hz <= 1000:
        raise FateError(f"{hz:g} Hz was given; expected a rate from 1 to 1000")
    piece = round(min(max(1e5 / hz, 500), 5000))
    return FileSource(recording, piece_us=piece, start_us=start_us, end_us=end_us, loop=loop)


class LiveSource:
    """The base of all sources. Iterating yields pieces of events until the source ends or is closed.

    A class of one's own with ``sensor``, ``counts``, ``close`` and an iterator is a source too. If it also has a method
    ``age_s(t_us)``, the seconds since a time of its events, frames say how old they are.
    """

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor  #: (height, width)
        self._closed = threading.Event()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """Counts of what was lost, refused, dropped or skipped, by a name that is printed."""
        return dict(self._counts)

    @property
    def reconnections(self) -> int:
        """How often the source had gone and came back before the events that it yielded last."""
        return 0

    def __iter__(self) -> Iterator[Events]:
        raise NotImplementedError

    def close(self) -> None:
        """End soon, from any thread. A thread that waits for a pipe cannot be woken; it ends with the next bytes."""
        self._closed.set()


class BytesToEvents:
    """Decodes bytes of a camera. What cannot be decoded is counted, and decoding continues after it."""

    def __init__(self, format: str, sensor: Sequence[int]) -> None:
        if format not in BYTE_FORMATS:
            raise FateError(f"a stream of {format!r} was asked for; expected one of {', '.join(BYTE_FORMATS)}")
        self.sensor = Sensor.of(sensor)
        self.decoder = decoder_for(format, self.sensor, out_of_bounds="drop")
        decoder_for(format, self.sensor).feed(bytes(16))  # compiles the decoder before the first bytes arrive
        self._refused: Counter[str] = Counter()
        self._is_warned = False  # of events outside the sensor

    def feed(self, data: bytes) -> Events:
        """The events that these bytes complete; none if they are refused."""
        try:
            events = self.decoder.feed(data)
        except FormatError:  # time went back: this piece is lost, and the next one begins at a new time
            self._refused += Counter({"refused pieces": 1, "refused bytes": len(data)})
            events = Events.empty(self.sensor)
        tally = self.decoder.tally
        if tally.outside >= MANY_OUTSIDE and not self._is_warned:
            self._is_warned = True
            _, x, y = tally.outside_first
            warn(
                f"the source sends events outside the sensor of {self.sensor} pixels, the first at x = {x}, y = {y};"
                " they are dropped and counted; if this is not its size, stop and pass sensor=(height, width)"
            )
        return events

    @property
    def counts(self) -> Counter[str]:
        """Counts of what was refused, dropped, skipped or left unfinished."""
        counted = {f"{kind} passed over": number for kind, number in self.decoder.skipped().items()}
        counted[OUTSIDE] = self.decoder.tally.outside
        counted["bytes of an unfinished word"] = self.decoder.pending_bytes
        return self._refused + Counter(counted)


class FileSource(LiveSource):
    """Plays a recording as if it were a camera."""

    def __init__(
        self,
        recording: Recording | str | PathLike[str],
        *,
        speed: float = 1.0,
        start_us: int | None = None,
        end_us: int | None = None,
        piece_us: int = 5_000,
        loop: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Args:
        recording: an open recording, which is opened a second time for the thread that plays it, or a path.
        speed: 1 for real time, 10 for ten times as fast.
        start_us, end_us: the part that is played.
        piece_us: length of the pieces; each is returned when its time is over.
        loop: play the part again and again; times continue as if the repetitions were recorded one after the other.
        clock, sleep: in seconds.
        """
        if not speed > 0 or piece_us < 1:
            raise FateError(
                f"a speed of {speed:g} in pieces of {piece_us} µs was asked for; expected more than 0, and 1 or more"
            )
        self._recording = open_recording(recording) if isinstance(recording, str | PathLike) else copy.copy(recording)
        super().__init__(self._recording.sensor)
        self._start = self._recording.start_us if start_us is None else int(start_us)
        self._end = self._recording.end_us if end_us is None else int(end_us)
        self._speed, self._piece_us, self._loop, self._clock = speed, piece_us, loop, clock
        self._block_us = -(-BLOCK_US // piece_us) * piece_us
        self._began: float | None = None
        self._sleep = self._closed.wait if sleep is None else sleep

    def __iter__(self) -> Iterator[Events]:
        with self._recording, ThreadPoolExecutor(1, "fate-file") as ahead:
            self._recording.read(self._start, min(self._start + self._piece_us, self._end))  # compiles the reader
            ends = range(self._start + self._block_us, self._end + self._block_us, self._block_us)

            def read_block(end_us: int) -> Events:
                return self._recording.read(end_us - self._block_us, min(end_us, self._end))

            coming = [ahead.submit(read_block, end) for end in ends[:1]]
            wait(coming)
            self._began = self._clock()
            for shift in itertools.count(0, self._end - self._start) if self._loop and ends else (0,):
                for end in ends:
                    block = coming.pop().result()
                    block = block.shifted(shift) if shift else block
                    if end < self._end or self._loop:
                        coming.append(ahead.submit(read_block, end + self._block_us if end < self._end else ends[0]))
                    for first in range(end - self._block_us, min(end, self._end), self._piece_us):
                        last = min(first + self._piece_us, self._end)
                        if (early := -self.age_s(last + shift)) > 0:
                            self._sleep(early)
                        if self._closed.is_set():
                            return
                        yield block.between(first + shift, last + shift)

    def age_s(self, t_us: int) -> float:
        """Seconds since this time of the recording was played; negative before."""
        now = self._clock()
        began = now if self._began is None else self._began
        return now - began - (t_us - self._start) / 1e6 / self._speed


class StandardInput(LiveSource):
    """Reads bytes from a pipe, with or without the header of a RAW file."""

    def __init__(
        self, sensor: Sequence[int] | None = None, format: str = "evt3", stream: BinaryIO | None = None
    ) -> None:
        """Waits for the first bytes.

        Args:
            sensor: (height, width); None if a header gives it, and another size than that of the header is refused.
            format: one of ``BYTE_FORMATS``, unless a header names it.
            stream: standard input unless given.
        """
        # unbuffered: a thread that waits for bytes would hold the lock of the buffer when the process ends
        self._stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer) if stream is None else stream
        header, self._begun = self._read_header()
        size = header.sensor(Path("standard input"), None if sensor is None else Sensor.of(sensor))
        if size is None:
            raise FateError("standard input: no header says how large the sensor is; pass sensor=(height, width)")
        super().__init__(size)
        self._bytes = BytesToEvents(header.event_format() or format, size)

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._bytes.counts)

    def __iter__(self) -> Iterator[Events]:
        data = self._begun
        while data and not self._closed.is_set():
            yield self._bytes.feed(data)
            data = self._read()

    def _read(self) -> bytes:
        """The bytes that are there, as soon as there are any; none at the end."""
        read = getattr(self._stream, "read1", self._stream.read)
        data: bytes = read(PIECE_BYTES)
        return data

    def _read_header(self) -> tuple[Header, bytes]:
        """The header, which may be empty, and the first bytes after it; the file of another format is refused."""
        data = b""
        while True:
            more = self._read()
            data += more
            header = parse_header(data)
            rest = data[header.num_bytes :]
            open_line = not rest or (rest[:1] == b"%" and b"\n" not in rest)
            if not more or not open_line or len(data) > MAX_HEADER_BYTES:
                break
        if not rest and not more:
            raise FateError("standard input: it ended before the first event; check the program that writes it")
        kinds = {b"#!AER-DAT": "AEDAT", b"PK": "an archive", b"\x89HDF": "HDF5", b"#ROSBAG": "a bag"}
        kind = next((kinds[begin] for begin in kinds if rest.startswith(begin)), "")
        if "version" in header.fields and header.event_format() is None:
            kind = "DAT"
        if kind:
            raise FateError(
                f"standard input: begins like {kind}, and only words of {' or '.join(BYTE_FORMATS)} are read from a"
                " pipe; give the file itself"
            )
        return header, rest


class _Client(BytesToEvents):
    """One connection and its decoder."""

    def __init__(self, connection: socket.socket, format: str, sensor: Sensor, now: float) -> None:
        super().__init__(format, sensor)
        self.connection = connection
        self.heard = self.gave_events = now  # when the last bytes and the last events arrived, seconds


class TcpSource(LiveSource):
    """Waits for a client that connects and sends raw words (such as EVT3), without header, in pieces of any size.

    The source listens on this machine alone (127.0.0.1) unless another address is given. No client may end the
    source or keep the camera out, so these rules apply:

    * A client counts from its first event on. One that closes before, such as a port scan or a health check, changes
      nothing; several of them may be connected at a time.
    * One client at a time has the stream. Others are refused while its last event is at most ``idle_s`` old.
      Afterwards another may connect, and takes over the stream with its first event.
    * A client that sends nothing at all for ``idle_s`` is dropped.
    """

    def __init__(
        self,
        port: int,
        sensor: Sequence[int],
        *,
        host: str = "127.0.0.1",
        format: str = "evt3",
        once: bool = True,
        idle_s: float = IDLE_S,
        listens: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        port: 0 for any free port, which is then in ``port``.
        sensor: (height, width) of the client's events.
        host: address to listen on; "0.0.0.0" accepts every machine of the network.
        format: one of ``BYTE_FORMATS``.
        once: end when the first client that sent an event has closed; otherwise wait for the next.
        idle_s: seconds of silence after which a client is dropped, and without events after which another takes over.
        listens: whether to accept clients at once; otherwise they are refused until the source is iterated.
        clock: seconds.
        """
        super().__init__(BytesToEvents(format, sensor).sensor)  # checks both, and compiles the decoder
        self._format, self._listener = format, socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host, port))
        except (OSError, OverflowError) as error:
            self._listener.close()
            reason = getattr(error, "strerror", None) or error
            raise FateError(
                f"{host}:{port}: cannot be listened on ({reason}); choose another port or address"
            ) from None
        if listens:
            self._listener.listen(MAX_WAITING)
        self._once, self._idle_s, self._clock = once, idle_s, clock
        self._clients: list[_Client] = []  # oldest first
        self._active: _Client | None = None  # the one that has the stream
        self._ready = selectors.DefaultSelector()
        self.host, self.port = self._listener.getsockname()[:2]

    @property
    def counts(self) -> dict[str, int]:
        """Clients, and what was refused, dropped or skipped."""
        active = self._active
        return dict(self._counts + (active.counts if active else Counter()))

    @property
    def reconnections(self) -> int:
        return max(0, self._counts["clients"] - 1)

    def __iter__(self) -> Iterator[Events]:
        with self._listener, self._ready:
            self._listener.listen(MAX_WAITING)
            self._ready.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._closed.is_set():
                    able = {key.fileobj for key, _ in self._ready.select(POLL_S)}
                    for client in list(self._clients):
                        events = self._receive(client) if client.connection in able else None
                        if events is not None:
                            yield events
                        elif client in self._clients and self._clock() - client.heard > self._idle_s:
                            self._leave(client, "silent clients dropped")
                    if self._once and self._active is None and self._counts["clients"]:
                        return
                    if self._listener in able:  # last, because the client before may have just closed
                        self._accept()
            finally:
                for client in list(self._clients):
                    self._leave(client)

    def _receive(self, client: _Client) -> Events | None:
        """The events of a client that has the stream or takes it over; a client that has closed is removed.

        A client takes over the stream with its first event, unless another has it and still sends events.
        """
        if client not in self._clients:  # another client has just taken the stream
            return None
        try:
            data = client.connection.recv(PIECE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionError:
            self._leave(client, "connections broken")
            return None
        if not data:
            self._leave(client)
            return None
        client.heard = self._clock()
        events = client.feed(data)
        if client is not self._active:
            if not len(events):
                return None
            if self._is_busy():
                self._leave(client, "clients refused")
                return None
            for other in list(self._clients):
                if other is not client:
                    self._leave(other, "silent clients dropped" if other is self._active else "clients refused")
            self._active = client
            self._counts["clients"] += 1
        if len(events):
            client.gave_events = client.heard
        return events

    def _is_busy(self) -> bool:
        """Whether a client has the stream and its last event is recent."""
        return self._active is not None and self._clock() - self._active.gave_events <= self._idle_s

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it closed before, or this process has too many connections
            self._counts["connections broken"] += 1
            return
        if self._is_busy():
            connection.close()
            self._counts["clients refused"] += 1
            return
        waiting = [client for client in self._clients if client is not self._active]
        if len(waiting) >= MAX_WAITING:
            self._leave(waiting[0], "silent clients dropped")
        connection.setblocking(False)
        self._clients.append(_Client(connection, self._format, self.sensor, self._clock()))
        self._ready.register(connection, selectors.EVENT_READ)

    def _leave(self, client: _Client, reason: str | None = None) -> None:
        """Close a connection, count the reason, and keep the counts of a client that sent events."""
        if reason is not None:
            self._counts[reason] += 1
        self._ready.unregister(client.connection)
        client.connection.close()
        self._clients.remove(client)
        if client is self._active:
            self._counts += client.counts
            self._active = None
        else:
            self._counts += Counter({"clients without events": 1, OUTSIDE: client.counts[OUTSIDE]})


class CameraSource(LiveSource):
    """A camera through ``neuromorphic-drivers`` (extra ``camera``): Prophesee EVK3 and EVK4, iniVation DAVIS346 and
    DVXplorer, and others it knows.

    A camera that is unplugged is opened again as soon as it returns; its time then starts at 0, and the stream
    restarts. Written for version 0.18 of the package, and tested with a simulated device: **no camera has been
    connected to this code yet.**
    """

    def __init__(
        self,
        serial: str | None = None,
        *,
        biases: Mapping[str, int] | None = None,
        roi: tuple[int, int, int, int] | None = None,
        reconnect_s: float = RECONNECT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        serial: of the camera; None for the first.
        biases: values by the names that the driver has for this camera; its defaults unless given.
        roi: (x1, y1, x2, y2), the last two not included; other pixels are switched off. Coordinates stay.
        reconnect_s: seconds that the source waits for a camera that was unplugged; then the source fails.
        clock: seconds.
        """
        self._settings = CameraSettings(serial, dict(biases or {}), roi)
        self._reconnect_s, self._clock = reconnect_s, clock
        self._device: Any = open_camera(self._settings, POLL_S)
        size = self._device.properties()
        super().__init__(Sensor(int(size.height), int(size.width)))

    @property
    def reconnections(self) -> int:
        return self._counts["reconnections of the camera"]

    def __iter__(self) -> Iterator[Events]:
        dropped = 0
        try:
            while not self._closed.is_set():
                try:
                    status, packet = next(self._device)
                except StopIteration:
                    return
                except Exception as error:  # the package raises different types for each camera
                    self._reopen(error)
                    dropped = 0
                    continue
                dropped = self._count_losses(status, packet, dropped)
                events = None if packet is None else packet.polarity_events
                if events is not None and len(events):
                    yield self._checked(events)
        finally:
            self._device.close()

    def _count_losses(self, status: Any, packet: Any, dropped_before: int) -> int:
        """Count what the driver has lost, and return its counter of dropped packets, which rises from packet to packet.

        A version of the package that does not report losses counts none.
        """
        dropped = getattr(getattr(status, "ring", None), "dropped_packets", None)
        overflows = getattr(packet, "polarity_events_overflow_indices", None)
        dropped = dropped_before if dropped is None else int(dropped)
        lost = {"packets dropped by the driver": dropped - dropped_before if dropped > dropped_before else 0}
        lost["overflows of the driver"] = 0 if overflows is None else len(overflows)
        self._counts += Counter(lost)
        return dropped

    def _reopen(self, failure: Exception) -> None:
        """Wait for a camera that has failed, and open it again with the same settings."""
        self._device.close()
        until = self._clock() + self._reconnect_s
        while not self._closed.is_set():
            try:
                self._device = open_camera(self._settings, POLL_S)
            except NoCameraError:
                if self._clock() > until:
                    raise FateError(
                        f"the camera failed ({failure}) and did not return within {self._reconnect_s:g} s; check its"
                        " cable and power"
                    ) from failure
                self._closed.wait(POLL_S)
                continue
            self._counts["reconnections of the camera"] += 1
            size = self._device.properties()
            if self.sensor != (size.height, size.width):
                raise FateError(
                    f"a camera of {size.width}×{size.height} pixels took the place of one of {self.sensor}; connect"
                    " the same camera, or start again"
                )
            return

    def _checked(self, events: Any) -> Events:
        """A copy of the driver's rows (t, x, y, on), because it reuses their memory."""
        try:
            return Events(
                events["t"].astype(np.int64), events["x"], events["y"], events["on"].astype(np.uint8), self.sensor
            )
        except FateError:
            self._counts += Counter({"refused packets": 1, "events in refused packets": len(events)})
            return Events.empty(self.sensor)
