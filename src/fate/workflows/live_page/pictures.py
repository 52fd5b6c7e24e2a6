"""Events as small pictures for the page: two bits per pixel, 0 for no event, 1 for OFF, 2 for ON.

Four pixels are in a byte, the first one in its lowest bits; rows follow each other without padding. The loops run
without Python's lock, so that drawing does not delay detection.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.events.events import Events, Sensor
from fate.inference.sources import LiveSource

if TYPE_CHECKING:  # it loads torch, which takes seconds; the page is there before
    from fate.inference.recording_source import RecordingSource, RecordingState

#: Most events that wait to be drawn. If there are more, the oldest are not drawn.
MAX_WAITING = 4_000_000
#: Longest time that events wait for the boxes of their time, µs; the clock of a source may jump.
MAX_AHEAD_US = 2_000_000


@compiled
def draw_codes(codes: NDArray[np.uint8], x: NDArray[np.uint16], y: NDArray[np.uint16], p: NDArray[np.uint8]) -> None:
    """Write the last event of every pixel into ``codes`` [H, W]: 1 for OFF, 2 for ON."""
    for index in range(len(x)):
        codes[y[index], x[index]] = p[index] + 1


@compiled
def pack_codes(codes: NDArray[np.uint8], packed: NDArray[np.uint8]) -> None:
    """Write ``codes`` [N] into ``packed`` [N / 4], four in a byte, and set them to 0."""
    packed[:] = 0
    for index in range(len(codes)):
        packed[index // 4] |= codes[index] << (2 * (index % 4))
        codes[index] = 0


def unpack_picture(packed: bytes, sensor: Sensor) -> NDArray[np.uint8]:
    """Return the codes [H, W] of a picture: 0 for no event, 1 for OFF, 2 for ON."""
    fours = np.frombuffer(packed, np.uint8)[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return fours.astype(np.uint8).reshape(-1)[: sensor.height * sensor.width].reshape(sensor)


class EventPicture:
    """Collects events in one thread (:meth:`add`) and draws them in another (:meth:`take`)."""

    def __init__(self, sensor: Sensor) -> None:
        self._codes = np.zeros(sensor, np.uint8)
        self._packed = np.empty(-(-self._codes.size // 4), np.uint8)
        self._pieces: deque[Events] = deque()
        self._waiting, self._lock = 0, threading.Lock()
        self.is_watched = True  #: whether events are kept to be drawn; all are counted
        self.has_ended = False  #: whether no more events will come; the last picture then stays
        self.events = 0  #: all events so far
        self.add(Events([0], [0], [0], [1], sensor))  # compiles both loops
        self.take(1)
        self.events, self.is_watched = 0, False

    def add(self, events: Events) -> None:
        """Add the next events; this only keeps a reference."""
        if not len(events):
            return
        with self._lock:
            self.events += len(events)
            if not self.is_watched:
                return
            self._pieces.append(events)
            self._waiting += len(events)
            while self._waiting > MAX_WAITING and len(self._pieces) > 1:
                self._waiting -= len(self._pieces.popleft())

    def take(self, end_us: int) -> bytes:
        """Return a picture of the events before ``end_us`` that were in no picture yet; later ones wait."""
        with self._lock:
            pieces, self._pieces, self._waiting = list(self._pieces), deque(), 0
            for index, piece in enumerate(pieces):
                if end_us <= piece.t_us[-1] < end_us + MAX_AHEAD_US:
                    cut = int(piece.t_us.searchsorted(end_us))
                    pieces[index] = piece[:cut]
                    self._pieces.append(piece[cut:])
                    self._waiting += len(piece) - cut
        if self.has_ended and not any(map(len, pieces)):
            return self._packed.tobytes()
        for piece in pieces:
            draw_codes(self._codes, piece.x, piece.y, piece.p)
        pack_codes(self._codes.reshape(-1), self._packed)
        return self._packed.tobytes()


class WatchedSource(LiveSource):
    """A source whose events are drawn, too."""

    def __init__(self, source: RecordingSource, picture: EventPicture) -> None:
        """Take the source, and the picture that gets its events."""
        super().__init__(source.sensor)
        self._source, self._picture = source, picture
        if hasattr(source, "age_s"):
            self.age_s = source.age_s

    @property
    def counts(self) -> dict[str, int]:
        return self._source.counts

    @property
    def reconnections(self) -> int:
        return self._source.reconnections

    @property
    def recordings(self) -> list[RecordingState]:
        """What viewers have recorded."""
        return self._source.recordings

    def __iter__(self) -> Iterator[Events]:
        for events in self._source:
            self._picture.add(events)
            yield events
        self._picture.has_ended = True

    def close(self) -> None:
        self._source.close()
