"""Events over TCP: a client connects and sends raw words (such as EVT3), without header, in pieces of any size.

The source listens on this machine alone (127.0.0.1) unless another address is given. No client may end the source or
keep the camera out, so these rules apply:

* A client counts from its first event on. One that closes before, such as a port scan or a health check, changes
  nothing; several of them may be connected at a time.
* One client at a time has the stream. Others are refused while its last event is at most ``idle_s`` old. Afterwards
  another may connect, and takes over the stream with its first event.
* A client that sends nothing at all for ``idle_s`` is dropped.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from fate.errors import FateError
from fate.events.events import Events
from fate.inference.sources import PIECE_BYTES, BytesToEvents, LiveSource

LOCALHOST = "127.0.0.1"
#: How often a waiting socket checks whether it was closed, seconds.
POLL_S = 0.1
#: A client that is silent for longer is dropped, seconds.
IDLE_S = 10.0
#: Most clients that have not sent an event yet; one more drops the oldest.
MAX_WAITING = 16


class _Client:
    """One connection and its decoder."""

    def __init__(self, connection: socket.socket, decoding: BytesToEvents, now: float) -> None:
        self.connection, self.decoding = connection, decoding
        self.heard = now  # when the last bytes arrived, seconds
        self.gave_events = now  # when the last events arrived

    def receive(self, now: float) -> Events | None:
        """The events of the bytes that arrived; None if the client has closed the connection."""
        try:
            data = self.connection.recv(PIECE_BYTES)
        except BlockingIOError:
            return Events.empty(self.decoding.sensor)
        if not data:
            return None
        self.heard = now
        events = self.decoding.feed(data)
        if len(events):
            self.gave_events = now
        return events


class TcpSource(LiveSource):
    """Waits for a client that sends raw words; the module has the rules for clients."""

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
        port: 0 for any free port, which is then in ``port``.
        sensor: (height, width) of the client's events.
        host: address to listen on; "0.0.0.0" accepts every machine of the network.
        format: one of ``sources.BYTE_FORMATS``.
        once: end when the first client that sent an event has closed; otherwise wait for the next.
        idle_s: seconds of silence after which a client is dropped, and without events after which another takes over.
        listens: whether to accept clients at once; otherwise they are refused until the source is iterated.
        clock: seconds.
        """
        super().__init__(BytesToEvents(format, sensor).sensor)  # checks both, and compiles the decoder
        self._format, self._listener = format, _bind(host, port)
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
        return dict(self._counts + (active.decoding.counts if active else Counter()))

    def __iter__(self) -> Iterator[Events]:
        with self._listener, self._ready:
            self._listener.listen(MAX_WAITING)
            self._ready.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._closed.is_set():
                    able = {key.fileobj for key, _ in self._ready.select(POLL_S)}
                    for client in list(self._clients):
                        if client.connection in able:
                            yield from self._received(client)
                        elif client in self._clients and self._clock() - client.heard > self._idle_s:
                            self._counts["silent clients dropped"] += 1
                            self._leave(client)
                    if self._once and self._active is None and self._counts["clients"]:
                        return
                    if self._listener in able:  # last, because the client before may have just closed
                        self._accept()
            finally:
                for client in list(self._clients):
                    self._leave(client)

    def _received(self, client: _Client) -> Iterator[Events]:
        """The events of a client if it has the stream or takes it over; a client that has closed is removed."""
        if client not in self._clients:  # another client has taken the stream meanwhile
            return
        try:
            events = client.receive(self._clock())
        except ConnectionError:
            self._counts["connections broken"] += 1
            events = None
        if events is None:
            self._leave(client)
        elif client is self._active or (len(events) and self._takes_over(client)):
            yield events

    def _takes_over(self, client: _Client) -> bool:
        """Give the stream to a client with its first event, unless another has it and still sends events."""
        if self._is_busy():
            self._counts["clients refused"] += 1
            self._leave(client)
            return False
        for other in list(self._clients):
            if other is not client:
                self._counts["silent clients dropped" if other is self._active else "clients refused"] += 1
                self._leave(other)
        self._active = client
        self._counts["clients"] += 1
        return True

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
            self._counts["silent clients dropped"] += 1
            self._leave(waiting[0])
        connection.setblocking(False)
        self._clients.append(_Client(connection, BytesToEvents(self._format, self.sensor), self._clock()))
        self._ready.register(connection, selectors.EVENT_READ)

    def _leave(self, client: _Client) -> None:
        """Close a connection, and keep the counts of a client that sent events."""
        self._ready.unregister(client.connection)
        client.connection.close()
        self._clients.remove(client)
        if client is self._active:
            self._counts += client.decoding.counts
            self._active = None
        else:
            self._counts["clients without events"] += 1


def _bind(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        reason = getattr(error, "strerror", None) or error
        raise FateError(f"{host}:{port}: cannot be listened on ({reason}); choose another port or address") from None
    return made
