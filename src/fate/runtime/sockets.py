"""Events from a socket. Both kinds bind to this machine alone (127.0.0.1) unless told otherwise.

**TCP**: a client connects and sends raw words (EVT3, say), without header, cut anywhere. One client at a time: others
are refused while it sends, one that is silent for too long is dropped.

**UDP**: each datagram is a header of 16 bytes, little-endian, and whole words behind it:

    offset  type   content
    0       4 B    "FATE"
    4       u8     1, the version
    5       u8     3 for EVT3, 2 for EVT2
    6       u16    bytes that follow the header; must agree with the datagram
    8       u64    number of the datagram, from 0, one more each time

A datagram that is not so is dropped and counted, and so is one that comes twice or after a later one. Numbers that are
missing were lost. After a loss no row of EVT3 is known until the next is named: an event is left out rather than put
in a wrong place. A sender that begins datagrams with TIME_HIGH, TIME_LOW and ADDR_Y words loses nothing but those that
were lost. Whatever a packet claims, no more than a datagram is ever held.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.formats.evt3 import NO_BASE, NO_ROW, Evt3Decoder
from fate.runtime.sources import PIECE_BYTES, BytesToEvents

LOCALHOST = "127.0.0.1"
HEADER = struct.Struct("<4sBBHQ")
MAGIC, VERSION = b"FATE", 1
FORMAT_NUMBERS = {"evt2": 2, "evt3": 3}
WORD_BYTES = {"evt2": 4, "evt3": 2}
#: Payload that fits an Ethernet frame, and the most that a datagram carries.
PAYLOAD_BYTES, MOST_PAYLOAD_BYTES = 1200, 65_507 - HEADER.size
#: A number that is further away than this is not a loss but another sender's beginning.
MAX_LOST = 1 << 20
#: How often a waiting socket looks whether it was closed, seconds.
LOOK_S = 0.1
#: That a system keeps for a UDP source while it is busy.
RECEIVE_BYTES = 4 << 20
#: A client or sender that is silent for so long has gone, seconds.
IDLE_S = 10.0


class TcpSource:
    """Waits for a client that sends raw words."""

    def __init__(
        self,
        port: int,
        sensor: Sequence[int],
        *,
        host: str = LOCALHOST,
        format: str = "evt3",
        once: bool = True,
        idle_s: float = IDLE_S,
        listens: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        port: 0 for any that is free; see ``port``.
        sensor: (height, width) of the client's events.
        host: address to listen on; "0.0.0.0" lets every machine of the network send.
        format: of ``sources.BYTE_FORMATS``.
        once: end when the first client has gone; otherwise wait for the next.
        idle_s: a client that is silent for longer is dropped.
        listens: at once; otherwise clients are refused until the source is iterated.
        clock: seconds.
        """
        self._bytes = BytesToEvents(format, sensor)
        self._listener = _bound(socket.SOCK_STREAM, host, port)
        if listens:
            self._listener.listen(1)
        self._once, self._idle_s, self._clock = once, idle_s, clock
        self._closed = threading.Event()
        self._own: Counter[str] = Counter()
        self.host, self.port = self._listener.getsockname()[:2]

    @property
    def sensor(self) -> Sensor:
        """(height, width)."""
        return self._bytes.sensor

    @property
    def counts(self) -> dict[str, int]:
        """Clients, and what was refused, dropped or passed over."""
        return dict(self._own + self._bytes.counts)

    def __iter__(self) -> Iterator[Events]:
        with self._listener, selectors.DefaultSelector() as ready:
            self._listener.listen(1)
            ready.register(self._listener, selectors.EVENT_READ)
            while not self._closed.is_set():
                if not ready.select(LOOK_S):
                    continue
                client, _ = self._listener.accept()
                self._own["clients"] += 1
                with client:
                    ready.register(client, selectors.EVENT_READ)
                    yield from self._received(client, ready)
                    ready.unregister(client)
                self._bytes.begin_anew()
                if self._once:
                    return

    def close(self) -> None:
        """End, within a moment."""
        self._closed.set()

    def _received(self, client: socket.socket, ready: selectors.BaseSelector) -> Iterator[Events]:
        """What one client sends, until it goes or has to."""
        heard = self._clock()
        while not self._closed.is_set():
            able = {key.fileobj for key, _ in ready.select(LOOK_S)}
            if client in able:  # first, for it may have gone, and the next come in its place
                try:
                    data = client.recv(PIECE_BYTES)
                except ConnectionError:
                    self._own["connections broken"] += 1
                    return
                if not data:
                    return
                heard = self._clock()
                yield self._bytes.feed(data)
            elif self._listener in able:
                self._listener.accept()[0].close()
                self._own["clients refused"] += 1
            if self._clock() - heard > self._idle_s:
                self._own["silent clients dropped"] += 1
                return


class UdpSource:
    """Waits for datagrams, see above; those of the first sender count until it is silent."""

    def __init__(
        self,
        port: int,
        sensor: Sequence[int],
        *,
        host: str = LOCALHOST,
        format: str = "evt3",
        idle_s: float = IDLE_S,
        once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        port: 0 for any that is free; see ``port``.
        sensor: (height, width) of the sender's events.
        host: address to listen on.
        format: "evt3" or "evt2"; datagrams of another are refused.
        idle_s: after so long a silence another sender may begin.
        once: and the source ends then.
        clock: seconds.
        """
        if format not in FORMAT_NUMBERS:
            raise FateError(f"datagrams of {format!r} were asked for; expected one of {', '.join(FORMAT_NUMBERS)}")
        self.format = format
        self._bytes = BytesToEvents(format, sensor)
        self._socket = _bound(socket.SOCK_DGRAM, host, port)
        self._socket.settimeout(LOOK_S)
        self._once, self._idle_s, self._clock = once, idle_s, clock
        self._closed = threading.Event()
        self._own: Counter[str] = Counter()
        self._sender: object = None
        self._expected: int | None = None
        self.host, self.port = self._socket.getsockname()[:2]

    @property
    def sensor(self) -> Sensor:
        """(height, width)."""
        return self._bytes.sensor

    @property
    def counts(self) -> dict[str, int]:
        """Datagrams, and what was lost, refused, dropped or passed over."""
        return dict(self._own + self._bytes.counts)

    def __iter__(self) -> Iterator[Events]:
        heard = self._clock()
        with self._socket:
            while not self._closed.is_set():
                if self._sender is not None and self._clock() - heard > self._idle_s:
                    self._sender = self._expected = None
                    self._bytes.begin_anew()
                    if self._once:
                        return
                try:
                    datagram, sender = self._socket.recvfrom(1 << 16)
                except TimeoutError:
                    continue
                events = self._events(datagram, sender)
                if events is not None:
                    heard = self._clock()
                    yield events

    def close(self) -> None:
        """End, within a moment."""
        self._closed.set()

    def _events(self, datagram: bytes, sender: object) -> Events | None:
        """Of a datagram that is as it must be; None of any other."""
        number = self._number(datagram)
        if number is None:
            self._own["malformed datagrams"] += 1
            return None
        if self._sender not in (None, sender):
            self._own["datagrams of other senders"] += 1
            return None
        self._sender = sender
        if not self._follows(number):
            self._own["datagrams out of order"] += 1
            return None
        self._own["datagrams"] += 1
        return self._bytes.feed(datagram[HEADER.size :])

    def _number(self, datagram: bytes) -> int | None:
        """Of the datagram; None where it is malformed."""
        if len(datagram) < HEADER.size:
            return None
        magic, version, format_number, claimed, number = HEADER.unpack_from(datagram)
        payload = len(datagram) - HEADER.size
        right = (magic, version, format_number) == (MAGIC, VERSION, FORMAT_NUMBERS[self.format])
        return int(number) if right and claimed == payload and payload % WORD_BYTES[self.format] == 0 else None

    def _follows(self, number: int) -> bool:
        """Whether a datagram of that number is new; losses before it are counted."""
        away = 0 if self._expected is None else number - self._expected
        if abs(away) > MAX_LOST or (number == 0 and away < 0):
            self._own["new beginnings of the sender"] += 1
            self._bytes.begin_anew()
        elif away < 0:
            return False
        elif away > 0:
            self._own["datagrams lost"] += away
            if isinstance(self._bytes.decoder, Evt3Decoder):
                self._bytes.decoder.state[3:5] = NO_ROW, NO_BASE
        self._expected = number + 1
        return True


def datagrams(data: bytes, format: str = "evt3", *, first: int = 0, payload: int = PAYLOAD_BYTES) -> Iterator[bytes]:
    """Raw words as datagrams for ``UdpSource``.

    Args:
        data: whole words.
        format: "evt3" or "evt2".
        first: number of the first datagram.
        payload: bytes behind each header, at most.
    """
    if format not in FORMAT_NUMBERS:
        raise FateError(f"datagrams of {format!r} were asked for; expected one of {', '.join(FORMAT_NUMBERS)}")
    size = WORD_BYTES[format]
    if len(data) % size or not size <= payload <= MOST_PAYLOAD_BYTES:
        raise FateError(
            f"{len(data)} bytes in datagrams of {payload} were given; expected whole words of {size} bytes, and"
            f" {size} to {MOST_PAYLOAD_BYTES} bytes in a datagram"
        )
    room = payload - payload % size
    for number, begin in enumerate(range(0, len(data), room), first):
        part = data[begin : begin + room]
        yield HEADER.pack(MAGIC, VERSION, FORMAT_NUMBERS[format], len(part), number) + part


def _bound(kind: socket.SocketKind, host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, kind)
    if kind == socket.SOCK_DGRAM:  # as much as the system allows: what does not fit is lost
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    else:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or error
        raise FateError(f"{host}:{port}: cannot be listened on ({reason}); choose another port or address") from None
    return made
