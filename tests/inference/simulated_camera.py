"""A simulated USB camera with the interface of ``neuromorphic-drivers``.

It replays EVT3 words in USB packets at the speed of the device. Packets wait in a ring of limited length; when the
reader is too slow, new ones are dropped and counted, as the driver does. A camera may be silent, be unplugged and
return; its clock then starts at 0 again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import neuromorphic_drivers as drivers
import numpy as np
from neuromorphic_drivers import packet as packets
from neuromorphic_drivers import status as statuses

import fate
from fate.events.events import Events
from tests.inference.streams import evt3_words

#: Bytes of a USB packet, and the most packets that a call of the driver's iterator returns.
USB_BYTES, MOST_PACKETS = 512, 64
ROWS = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
MODULES = {
    drivers.Name.PROPHESEE_EVK4: drivers.prophesee_evk4,
    drivers.Name.INIVATION_DAVIS346: drivers.inivation_davis346,
    drivers.Name.INIVATION_DVXPLORER: drivers.inivation_dvxplorer,
}


class Clock:
    """Seconds that pass only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Camera:
    """What happens with a camera: the events of each time that it is plugged in, and how long it is away between."""

    sessions: list[Events]
    away_s: float = 2.0
    model: Any = drivers.Name.PROPHESEE_EVK4
    ring_length: int = 4096
    damage: Callable[[Any], Any] = lambda rows: rows  #: changes the rows of every packet
    configurations: list[Any] = field(default_factory=list)  #: that it was given
    opened: list[SimulatedDevice] = field(default_factory=list)


class Bus:
    """In the place of ``neuromorphic_drivers.open``: gives the camera, or fails if it is unplugged."""

    def __init__(self, camera: Camera, clock: Clock) -> None:
        self.camera, self.clock, self.returns_at = camera, clock, 0.0

    def open(self, serial: str | None = None, iterator_timeout: float | None = None, **_: Any) -> SimulatedDevice:
        session = len(self.camera.opened)
        self.clock.wait(0.2)
        if session >= len(self.camera.sessions) or self.clock() < self.returns_at:
            raise RuntimeError("no device found")
        assert iterator_timeout is not None
        last = session == len(self.camera.sessions) - 1
        device = SimulatedDevice(self.camera, self.camera.sessions[session], self.clock, iterator_timeout, last, self)
        self.camera.opened.append(device)
        return device


class SimulatedDevice:
    """The object that ``neuromorphic_drivers.open`` returns if ``iterator_timeout`` is given."""

    def __init__(self, camera: Camera, events: Events, clock: Clock, timeout_s: float, is_last: bool, bus: Bus) -> None:
        self.camera, self.clock, self.timeout_s, self.is_last, self.bus = camera, clock, timeout_s, is_last, bus
        decoder = fate.decoder_for("evt3", tuple(events.sensor))
        words = evt3_words(events) if len(events) else b""
        pieces = [decoder.feed(words[first : first + USB_BYTES]) for first in range(0, len(words), USB_BYTES)]
        self.coming = [piece for piece in pieces if len(piece)]  # packets that the camera has not sent yet
        self.ring: list[tuple[Events, bool]] = []  # packets that wait, and whether others were lost before them
        self.plugged_at, self.dropped, self.lost_before, self.is_closed = clock(), 0, False, False
        self.lost_events = 0

    def __enter__(self) -> SimulatedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def __iter__(self) -> SimulatedDevice:
        return self

    def __next__(self) -> tuple[Any, Any]:
        if self.is_closed:
            raise RuntimeError("__next__ called after __exit__")
        self._receive()
        if not self.ring:
            if not self.coming:
                if self.is_last:
                    raise StopIteration  # ends the test; a camera goes on
                self.bus.returns_at = self.clock() + self.camera.away_s
                raise RuntimeError("USB error: no such device (it may have been disconnected)")
            self.clock.wait(self.timeout_s)
            self._receive()
        if not self.ring:
            return statuses.Status(system_time=self.clock(), ring=None), None
        taken, self.ring = self.ring[:MOST_PACKETS], self.ring[MOST_PACKETS:]
        rows = [self._rows(piece) for piece, _ in taken]
        starts = np.cumsum([0, *map(len, rows)])
        given = packets.Evt3Packet()
        given.polarity_events = self.camera.damage(np.concatenate(rows))
        given.trigger_events = None
        given.polarity_events_overflow_indices = np.array([starts[n] for n, (_, lost) in enumerate(taken) if lost])
        ring = statuses.RingStatus(
            system_time=self.clock(), backlog=len(self.ring), raw_packets=len(taken), clutch_engaged=False,
            current_t=int(rows[-1]["t"][-1]), dropped_packets=self.dropped,
        )  # fmt: skip
        return statuses.Status(system_time=self.clock(), ring=ring), given

    def _receive(self) -> None:
        """Put what the camera has sent so far into the ring; drop what does not fit."""
        now_us = 1e6 * (self.clock() - self.plugged_at)
        while self.coming and self.coming[0].t_us[-1] <= now_us:
            piece = self.coming.pop(0)
            if len(self.ring) < self.camera.ring_length:
                self.ring.append((piece, self.lost_before))
                self.lost_before = False
            else:
                self.dropped, self.lost_before = self.dropped + 1, True
                self.lost_events += len(piece)

    @staticmethod
    def _rows(piece: Events) -> Any:
        rows = np.empty(len(piece), ROWS)
        rows["t"], rows["x"], rows["y"], rows["on"] = piece.t_us, piece.x, piece.y, piece.p
        return rows

    def backlog(self) -> int:
        return len(self.ring)

    def clear_backlog(self, until: int) -> None:
        self.ring = self.ring[len(self.ring) - until :]

    def overflow(self) -> bool:
        return self.dropped > 0

    def name(self) -> Any:
        return self.camera.model

    def properties(self) -> Any:
        return MODULES[self.camera.model].Properties()

    def serial(self) -> str:
        return "simulated"

    def connection(self) -> Any:
        return drivers.Connection.USB_SUPER

    def biases_bounds(self) -> Any:
        module = MODULES[self.camera.model]
        limits = module.Bounds(minimum=0, maximum=255)
        return module.BiasesBounds(**dict.fromkeys(module.BiasesBounds.__dataclass_fields__, limits))

    def update_configuration(self, configuration: Any) -> None:
        assert configuration.type() == self.camera.model.name.lower()
        configuration.serialize()  # as the driver does: it fails for values of a wrong type
        self.camera.configurations.append(configuration)

    def temperature_celsius(self) -> float:
        return 40.0

    def illuminance(self) -> int:
        return 0
