"""The event messages of ROS, read from their bytes: arrays of events, and packets of a camera's own words.

* ``dvs_msgs/EventArray`` (and the same under Prophesee's name): header, height, width, then events of x, y, time
  (seconds, nanoseconds) and polarity.
* ``event_camera_msgs/EventPacket`` (once ``event_array_msgs/EventArray``): header, height, width, seq, time_base,
  encoding, is_bigendian, then bytes in that encoding.

ROS 1 packs the fields without gaps, little-endian. ROS 2 (CDR) starts with four bytes that give the byte order and
aligns every number to its size, counted from after them: an event's x and y are aligned to 2 and its time to 4, so the
first event takes 14 bytes and each later one 16.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from fate.formats.columns import Columns, allocate_columns

ARRAY_TYPES = ("dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
PACKET_TYPES = ("event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray")
ROS1_EVENT_BYTES = 13
CDR_EVENT_BYTES = 16


class EventMessage(NamedTuple):
    """A message: the sensor, and events either decoded or as ``content``, words of a camera in an ``encoding``.

    Times in some encodings count from ``time_base_ns``.
    """

    height: int
    width: int
    columns: Columns | None
    encoding: str = ""
    content: bytes = b""
    time_base_ns: int = 0


class Fields:
    """The fields of one message, taken in order; ``struct.error`` where the message ends too early."""

    def __init__(self, data: bytes, cdr: bool) -> None:
        self.data, self.cdr = data, cdr
        self.order = ">" if cdr and data[1:2] in (b"\0", b"\2") else "<"
        self.origin = 4 if cdr else 0
        self.position = self.origin

    def number(self, kind: str) -> int:
        """The next number of the kind ``struct`` calls ``kind``, aligned where the format asks for it."""
        size = struct.calcsize("=" + kind)
        if self.cdr:
            self.position += -(self.position - self.origin) % size
        value: int = struct.unpack_from(self.order + kind, self.data, self.position)[0]
        self.position += size
        return value

    def content(self, num_bytes: int) -> bytes:
        """The next ``num_bytes``."""
        if self.position + num_bytes > len(self.data):
            raise struct.error(f"{num_bytes} bytes are announced and {len(self.data) - self.position} are there")
        self.position += num_bytes
        return self.data[self.position - num_bytes : self.position]

    def text(self) -> str:
        """The next string; CDR closes it with a 0."""
        return self.content(self.number("I")).rstrip(b"\0").decode("utf-8", "replace")

    def header(self) -> None:
        """Pass over ``std_msgs/Header``: seq (ROS 1 only), time, frame."""
        if not self.cdr:
            self.number("I")
        self.number("I")
        self.number("I")
        self.text()


def read_packet(data: bytes, cdr: bool) -> EventMessage:
    """A message of one of ``PACKET_TYPES``."""
    fields = Fields(data, cdr)
    fields.header()
    height, width = fields.number("I"), fields.number("I")
    fields.number("Q")  # seq
    time_base_ns = fields.number("Q")
    encoding = fields.text()
    fields.number("B")  # is_bigendian: of the computer that recorded, not of the words
    return EventMessage(height, width, None, encoding, fields.content(fields.number("I")), time_base_ns)


def read_array(data: bytes, cdr: bool) -> EventMessage:
    """A message of one of ``ARRAY_TYPES``."""
    fields = Fields(data, cdr)
    fields.header()
    height, width = fields.number("I"), fields.number("I")
    n = fields.number("I")
    if n == 0:
        return EventMessage(height, width, allocate_columns(0))
    if cdr:
        # moved on by two bytes, all events but the first have their fields at the same places of 16 bytes
        raw = fields.content(CDR_EVENT_BYTES * n - 3)
        block, offsets, stride = b"\0\0" + raw + b"\0", (0, 2, 6, 10, 14), CDR_EVENT_BYTES
    else:
        raw = fields.content(ROS1_EVENT_BYTES * n)
        block, offsets, stride = raw, (0, 2, 4, 8, 12), ROS1_EVENT_BYTES
    kinds = [fields.order + kind for kind in ("u2", "u2", "u4", "u4", "u1")]
    layout = np.dtype({"names": list("xysnp"), "formats": kinds, "offsets": list(offsets), "itemsize": stride})
    events = np.frombuffer(block, layout, n)
    x, y = events["x"].astype(np.uint16), events["y"].astype(np.uint16)
    if cdr:
        x[0], y[0] = struct.unpack_from(fields.order + "HH", raw)
    t = events["s"].astype(np.int64) * 1_000_000 + events["n"] // 1000
    return EventMessage(height, width, Columns(t, x, y, events["p"].astype(np.uint8)))
