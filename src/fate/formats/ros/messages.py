"""The event messages of ROS, read from their bytes: arrays of events, and packets of a camera's own words.

* ``dvs_msgs/EventArray`` (and the same under Prophesee's name): header, height, width, then events of x, y, time
  (seconds, nanoseconds) and polarity.
* ``event_camera_msgs/EventPacket`` (once ``event_array_msgs/EventArray``): header, height, width, seq, time_base,
  encoding, is_bigendian, then bytes in that encoding.

ROS 1 packs the fields without gaps, little-endian. ROS 2 (CDR) starts with four bytes that give the byte order and
aligns every number to its size, counted from after them: an event's x and y are aligned to 2 and its time to 4, so the
first event takes 14 bytes and each later one 16.

Besides the words of Prophesee, packets have these encodings, whose times count from the ``time_base`` of each message
(ns), little-endian:

* ``mono`` (older recordings of Prophesee cameras): 8 bytes an event: ``u4`` ns since the time base, ``u2`` x, ``u2``
  with y in bits 0-14 and polarity in bit 15.
* ``libcaer``: 8 bytes an event as libcaer has them: ``u4`` with polarity in bit 1, y in bits 2-16 and x in bits 17-31,
  then ``i4`` time in µs, of 31 bits: a step back by more than half its range within a message is a wrap. The mark of
  validity in bit 0 is not used.
* ``libcaer_cmp``: words of 2 bytes with a code in bits 12-15: 0 and 1 are bits 12-23 and 0-11 of the µs since the time
  base, both 0 where a message starts; 2 is x; 3 is an event with y in bits 0-10 and polarity in bit 11; 4 is the y at
  which a vector starts and its polarity; 5 is a vector of eight rows, lowest bit first, after which y is 8 higher.

In all of them polarity 1 is ON. Times are cut to whole µs.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fate.compiled import compiled
from fate.formats.decoder import Columns, Decoder, allocate_columns

ARRAY_TYPES = ("dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
PACKET_TYPES = ("event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray")
ROS1_EVENT_BYTES = 13
CDR_EVENT_BYTES = 16
RECORD_BYTES = 8
WRAP_US = 1 << 31
TIME_HIGH, TIME_LOW, ADDR_X, ADDR_Y, VECT_BASE_Y, VECT_8 = range(6)
MAX_BASE = (1 << 16) - 8

# What the state of ``libcaer_cmp`` holds after the time base
HIGH, LOW, COLUMN, ROW, POLARITY, UNKNOWN, WITHOUT_ADDRESS = range(2, 9)


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
        """Return the next number of the kind ``struct`` calls ``kind``, aligned where the format asks for it."""
        size = struct.calcsize("=" + kind)
        if self.cdr:
            self.position += -(self.position - self.origin) % size
        value: int = struct.unpack_from(self.order + kind, self.data, self.position)[0]
        self.position += size
        return value

    def content(self, num_bytes: int) -> bytes:
        """Return the next ``num_bytes``."""
        if self.position + num_bytes > len(self.data):
            raise struct.error(f"{num_bytes} bytes are announced and {len(self.data) - self.position} are there")
        self.position += num_bytes
        return self.data[self.position - num_bytes : self.position]

    def text(self) -> str:
        """Return the next string; CDR closes it with a 0."""
        return self.content(self.number("I")).rstrip(b"\0").decode("utf-8", "replace")

    def header(self) -> None:
        """Pass over ``std_msgs/Header``: seq (ROS 1 only), time, frame."""
        if not self.cdr:
            self.number("I")
        self.number("I")
        self.number("I")
        self.text()


def read_packet(data: bytes, cdr: bool) -> EventMessage:
    """Read a message of one of ``PACKET_TYPES``."""
    fields = Fields(data, cdr)
    fields.header()
    height, width = fields.number("I"), fields.number("I")
    fields.number("Q")  # seq
    time_base_ns = fields.number("Q")
    encoding = fields.text()
    fields.number("B")  # is_bigendian: of the computer that recorded, not of the words
    return EventMessage(height, width, None, encoding, fields.content(fields.number("I")), time_base_ns)


def read_array(data: bytes, cdr: bool) -> EventMessage:
    """Read a message of one of ``ARRAY_TYPES``."""
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


# ---- encodings of packets ----


class BasedDecoder(Decoder):
    """A decoder whose times count from a time that each message gives: call :meth:`start_message` before each."""

    start: ClassVar[tuple[int, ...]] = (0, 0)  # time base: whole µs, ns beyond them

    def start_message(self, time_base_ns: int) -> None:
        """Start a message whose time base is ``time_base_ns``."""
        self.state[:2] = divmod(time_base_ns, 1000)


class MonoDecoder(BasedDecoder):
    """Messages of the encoding ``mono``."""

    format = "mono"

    def decode(self, data: bytes) -> tuple[Columns, int]:
        n = len(data) // RECORD_BYTES
        words = np.frombuffer(data, [("t", "<u4"), ("x", "<u2"), ("y", "<u2")], n)
        t = self.state[0] + (self.state[1] + words["t"].astype(np.int64)) // 1000
        y = words["y"].astype(np.uint16)
        columns = Columns(t, words["x"].astype(np.uint16), y & 0x7FFF, (y >> 15).astype(np.uint8))
        return columns, n * RECORD_BYTES


class LibcaerDecoder(BasedDecoder):
    """Messages of the encoding ``libcaer``."""

    format = "libcaer"

    def decode(self, data: bytes) -> tuple[Columns, int]:
        n = len(data) // RECORD_BYTES
        words = np.frombuffer(data, [("address", "<u4"), ("t", "<i4")], n)
        t = words["t"].astype(np.int64)
        wraps = np.cumsum(np.diff(t, prepend=t[:1]) < -WRAP_US // 2)
        address = words["address"].astype(np.uint32)
        x, y, p = address >> 17, (address >> 2) & 0x7FFF, (address >> 1) & 1
        columns = Columns(
            self.state[0] + t + WRAP_US * wraps, x.astype(np.uint16), y.astype(np.uint16), p.astype(np.uint8)
        )
        return columns, n * RECORD_BYTES


@compiled
def _decode_words(words: Any, state: Any, t: Any, x: Any, y: Any, p: Any) -> int:
    """``words`` [n] uint16 of ``libcaer_cmp`` → number of events. The columns have room for every event."""
    n = 0
    for i in range(words.shape[0]):
        word = np.int64(words[i])
        code = word >> 12
        if code == TIME_HIGH:
            state[HIGH] = (word & 0xFFF) << 12
        elif code == TIME_LOW:
            state[LOW] = word & 0xFFF
        elif code == ADDR_X:
            state[COLUMN] = word & 0x7FF
        elif code == VECT_BASE_Y:
            state[ROW] = word & 0x7FF
            state[POLARITY] = (word >> 11) & 1
        elif code == ADDR_Y:
            if state[COLUMN] < 0:
                state[WITHOUT_ADDRESS] += 1
                continue
            t[n] = state[0] + (state[HIGH] | state[LOW])
            x[n] = state[COLUMN]
            y[n] = word & 0x7FF
            p[n] = (word >> 11) & 1
            n += 1
        elif code == VECT_8:
            for bit in range(8):
                if not (word >> bit) & 1:
                    continue
                if state[COLUMN] < 0 or state[ROW] < 0:
                    state[WITHOUT_ADDRESS] += 1
                    continue
                t[n] = state[0] + (state[HIGH] | state[LOW])
                x[n] = state[COLUMN]
                y[n] = state[ROW] + bit
                p[n] = state[POLARITY]
                n += 1
            if state[ROW] >= 0:
                state[ROW] = min(state[ROW] + 8, MAX_BASE)
        else:
            state[UNKNOWN] += 1
    return n


class LibcaerCmpDecoder(BasedDecoder):
    """Messages of the encoding ``libcaer_cmp``."""

    format = "libcaer_cmp"
    start = (0, 0, 0, 0, -1, -1, 0)
    skipped_kinds = ("unknown words", "events without an address")

    def start_message(self, time_base_ns: int) -> None:
        super().start_message(time_base_ns)
        self.state[[HIGH, LOW]] = 0

    def decode(self, data: bytes) -> tuple[Columns, int]:
        n = len(data) // 2
        words = np.frombuffer(data, "<u2", n).astype(np.uint16)
        codes = words >> 12
        rows = np.unpackbits((words[codes == VECT_8] & 0xFF).astype(np.uint8))
        columns = allocate_columns(int((codes == ADDR_Y).sum()) + int(rows.sum()))
        return columns.slice(0, _decode_words(words, self.state, *columns)), n * 2
