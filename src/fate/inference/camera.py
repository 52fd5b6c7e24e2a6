"""A camera on USB or Ethernet through ``neuromorphic-drivers`` (extra ``camera``): Prophesee EVK3 and EVK4, iniVation
DAVIS346 and DVXplorer, and others it knows.

Written from the package's documentation and tested against a stand-in of it: **no camera has been connected to this
code yet.**
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fate.errors import PACKAGES, FateError, missing_packages
from fate.events.events import Events, Sensor
from fate.inference.sources import LiveSource

#: How often a silent camera checks whether it was closed, seconds.
POLL_S = 0.1


class CameraSource(LiveSource):
    """The first camera that is found, or the one with the given serial number."""

    def __init__(self, serial: str | None = None, **options: Any) -> None:
        """Args:
        serial: of the camera; None for the first.
        options: of ``neuromorphic_drivers.open``, such as ``configuration`` with biases.
        """
        try:
            drivers = importlib.import_module("neuromorphic_drivers")
        except ImportError:
            raise missing_packages("a camera", PACKAGES["camera"]) from None
        try:
            self._device = drivers.open(serial=serial, iterator_timeout=POLL_S, **options)
        except Exception as error:  # the package raises different types for each camera
            raise FateError(
                f"no camera could be opened ({error}); connect one, and on Linux run"
                " neuromorphic-drivers-install-udev-rules once"
            ) from error
        size = self._device.properties()
        super().__init__(Sensor(int(size.height), int(size.width)))

    def __iter__(self) -> Iterator[Events]:
        with self._device:
            for status, packet in self._packets():
                self._count(status, packet)
                events = None if packet is None else packet.polarity_events
                if events is not None and len(events):
                    yield self._checked(events)

    def _packets(self) -> Iterator[tuple[Any, Any]]:
        """Packets until the camera is closed or unplugged."""
        packets = iter(self._device)
        while not self._closed.is_set():
            try:
                packet = next(packets)
            except StopIteration:
                return
            except Exception as error:  # as above
                raise FateError(f"the camera failed ({error}); check its cable and power") from error
            yield packet

    def _checked(self, events: Any) -> Events:
        """A copy of the driver's rows (t, x, y, on), because it reuses their memory."""
        try:
            return Events(
                events["t"].astype(np.int64), events["x"], events["y"], events["on"].astype(np.uint8), self.sensor
            )
        except FateError:
            self._counts["refused packets"] += 1
            self._counts["events in refused packets"] += len(events)
            return Events.empty(self.sensor)

    def _count(self, status: Any, packet: Any) -> None:
        """Count losses; a version of the package that does not report them counts none."""
        dropped = getattr(getattr(status, "ring", None), "dropped_packets", 0)
        if dropped:
            self._counts["packets dropped by the driver"] += int(dropped)
        overflows = getattr(packet, "polarity_events_overflow_indices", None)
        if overflows is not None and len(overflows):
            self._counts["overflows of the driver"] += len(overflows)
