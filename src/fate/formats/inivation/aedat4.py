"""AEDAT 4.0, the files of iniVation's DV: a header, packets of several streams, and a table at the end.

``#!AER-DAT4.0`` CRLF, a size-prefixed FlatBuffer (compression, position of the table, an XML description of the
streams), then packets: ``i4`` stream, ``i4`` number of bytes, and a FlatBuffer that may be compressed (LZ4 or
Zstandard). The packets end at the table, if there is one. Times are Unix µs.

Packets are found here and unpacked by the package ``aedat``, which reads only whole files from their start: it is given
a small file in memory with a header of our own and the packets in question. Only packets of one event stream are
unpacked; frames, IMU samples and triggers are passed over and counted.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from xml.etree import ElementTree

import aedat
import numpy as np

from fate.errors import FormatError, list_names
from fate.events.events import MAX_SIDE, Sensor
from fate.formats.decoder import Columns, allocate_columns
from fate.formats.source import BLOCK_BYTES, Bookmark, ByteFile, Found, Options, Source, Tail

PACKET_HEAD = struct.Struct("<ii")
KINDS = {"FRME": "frames", "IMUS": "imu packets", "TRIG": "trigger packets"}
NO_EVENTS = "empty events packet"  # how the decoder calls a packet that leaves out its list of events
MAX_RATIO = 255  # of unpacked to packed bytes: what LZ4 can reach at most
SMALL_PACKET = 64 << 20  # bytes that any packet may unpack to
MAGIC = b"#!AER-DAT4.0\r\n"
IDENTIFIER = b"IOHE"
COMPRESSIONS = {0: "none", 1: "LZ4", 2: "LZ4", 3: "Zstandard", 4: "Zstandard"}  # 2 and 4: the slower, denser settings
NO_TABLE = -1
MAX_HEADER_BYTES = 16 << 20


class Stream(NamedTuple):
    """A stream of packets: its number, its kind (``"EVTS"``, ``"FRME"``, ``"IMUS"``, ``"TRIG"``, ...)."""

    number: int
    kind: str
    sensor: Sensor | None
    source: str  # the camera's name


def read_header(file: ByteFile) -> tuple[int, int, dict[int, Stream], int]:
    """Read and check the header of ``file``.

    Return the compression, the position of the table of packets (``NO_TABLE`` if there is none), the streams by number
    and the position of the first packet.
    """
    path = file.path
    start = file.read(0, len(MAGIC) + 4)
    if not start.startswith(MAGIC[: len(start)]):
        raise FormatError(f"{path}: does not start with '#!AER-DAT4.0'; expected AEDAT 4.0; let the format be found")
    length = int.from_bytes(start[len(MAGIC) :], "little")
    num_bytes = len(MAGIC) + 4 + length
    if len(start) < len(MAGIC) + 4 or num_bytes > file.size:
        raise FormatError(
            f"{path}: ends after {file.size} bytes, inside its header of {num_bytes}; it is cut short, copy it again"
        )
    try:
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"it claims {length} bytes, more than {MAX_HEADER_BYTES}")
        compression, table, description = _fields(file.read(len(MAGIC) + 4, length))
        if compression not in COMPRESSIONS:
            raise ValueError(f"it gives compression {compression}, and 0 to 4 are known")
        if table != NO_TABLE and table < num_bytes:
            raise ValueError(f"it puts the table of packets at byte {table}, inside itself")
        return compression, table, _streams(description), num_bytes
    except (struct.error, ElementTree.ParseError, ValueError) as error:
        raise FormatError(f"{path}: the header is damaged ({error}); copy the file again") from None


def _at(layout: str, buffer: bytes, position: int) -> int:
    """Read one little-endian number; a position outside the buffer is an error."""
    if position < 0:
        raise ValueError("an offset points before the start")
    value: int = struct.unpack_from("<" + layout, buffer, position)[0]
    return value


def _fields(buffer: bytes) -> tuple[int, int, str]:
    """Return the compression, the position of the table and the description of the streams."""
    if buffer[4:8] != IDENTIFIER:
        raise ValueError(f"its mark is {buffer[4:8]!r}, not {IDENTIFIER!r}")
    table = _at("I", buffer, 0)
    vtable = table - _at("i", buffer, table)
    slots = (_at("H", buffer, vtable) - 4) // 2
    offsets = [_at("H", buffer, vtable + 4 + 2 * slot) if slot < slots else 0 for slot in range(3)]
    positions = [table + offset if offset else None for offset in offsets]  # None: the field has its default
    compression = 0 if positions[0] is None else _at("i", buffer, positions[0])
    table_position = NO_TABLE if positions[1] is None else _at("q", buffer, positions[1])
    text = 0 if positions[2] is None else positions[2] + _at("I", buffer, positions[2])
    length = _at("I", buffer, text)
    if positions[2] is None or text + 4 + length > len(buffer):
        raise ValueError("it has no whole description of the streams")
    return compression, table_position, buffer[text + 4 : text + 4 + length].decode("utf-8")


def _streams(description: str) -> dict[int, Stream]:
    """Return the streams that an XML description lists, by number."""
    if "<!" in description:
        raise ValueError("the description of the streams declares entities")
    streams: dict[int, Stream] = {}
    for node in ElementTree.fromstring(description).findall("./node[@name='outInfo']/node"):
        number = int(node.get("name", ""))
        kind = (node.findtext("./attr[@key='typeIdentifier']") or "").strip()
        info = "./node[@name='info']/attr[@key='{}']"
        sides = [int(node.findtext(info.format(key)) or 0) for key in ("sizeY", "sizeX")]
        if number in streams or number < 0 or max(sides) > MAX_SIDE:
            raise ValueError(f"stream {number} is described twice or with a size of {sides[1]}×{sides[0]}")
        sensor = Sensor(*sides) if min(sides) > 0 else None
        streams[number] = Stream(number, kind, sensor, (node.findtext(info.format("source")) or "").strip())
    return dict(sorted(streams.items()))


def plain_header(compression: int, stream: Stream) -> bytes:
    """Return the first bytes of a file with one event stream and no table."""
    height, width = stream.sensor or Sensor(1, 1)
    text = (
        f'<dv version="2.0"><node name="outInfo"><node name="{stream.number}"><attr key="typeIdentifier">EVTS</attr>'
        f'<node name="info"><attr key="sizeX">{min(width, 65_535)}</attr><attr key="sizeY">{min(height, 65_535)}</attr>'
        "</node></node></node></dv>"
    ).encode()
    # root at 20, mark, padding; vtable at 10: its size, the table's, the three fields; the table: back to the vtable,
    # compression, text 12 bytes on, position of the table of packets; the text with its length and a closing 0
    buffer = struct.pack("<I4s2xHHHHHiiIq", 20, IDENTIFIER, 10, 20, 4, 12, 8, 10, compression, 12, NO_TABLE)
    buffer += struct.pack("<I", len(text)) + text + b"\0"
    return MAGIC + struct.pack("<I", len(buffer)) + buffer


FRAME_MARK = 0xFD2FB528
SKIPPABLE_MARK = 0x184D2A50  # the last four bits are free
MAX_BLOCK_BYTES = 128 << 10
REPEATED, COMPRESSED = 1, 2  # kinds of blocks


def unpacked_bytes_at_most(data: bytes) -> int:
    """Return an upper bound for the unpacked size of the Zstandard frames in ``data``; other bytes are not counted."""
    position = total = 0
    while position + 5 <= len(data):
        mark, descriptor = struct.unpack_from("<IB", data, position)
        if mark & ~0xF == SKIPPABLE_MARK:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if mark != FRAME_MARK:
            break
        single = bool(descriptor & 0x20)
        size_field = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
        position += 5 + (not single) + (0, 1, 2, 4)[descriptor & 3] + size_field
        last = 0
        while not last and position + 3 <= len(data):  # blocks
            head = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = head & 1, (head >> 1) & 3, head >> 3
            position += 3 + (1 if kind == REPEATED else size)
            total += MAX_BLOCK_BYTES if kind == COMPRESSED else size
        position += 4 if descriptor & 4 else 0
    return total


class Packet(NamedTuple):
    """Where a packet is, and which stream it belongs to."""

    stream: int
    position: int  # of its 8-byte head
    end: int


class Aedat4Source(Source):
    """The first event stream of an AEDAT 4.0 file; a block is a run of packets, a position is a byte of the file."""

    format = "AEDAT4"
    thread_safe = True

    def __init__(self, file: ByteFile, options: Options) -> None:
        self._compression, self._table, self._streams, self._data_start = read_header(file)
        stream = next((each for each in self._streams.values() if each.kind == "EVTS"), None)
        if stream is None:
            kinds = ", ".join(KINDS.get(each.kind, each.kind) for each in self._streams.values()) or "nothing"
            raise FormatError(
                f"{file.path}: holds no stream of events (it has {kinds}); record the events of the camera"
            )
        self.path, self.size, self.sensor = file.path, file.size, options.sensor or stream.sensor
        self._file, self._stream = file, stream
        self._whole = NO_TABLE < self._table <= file.size
        self._packets_end = self._table if self._whole else file.size
        self.notes = {
            "compression": COMPRESSIONS[self._compression],
            "event stream": f"{stream.number} ({stream.sensor})" if stream.sensor else str(stream.number),
            "streams": ", ".join(f"{each.number} {each.kind}" for each in self._streams.values()),
        }
        if stream.source:
            self.notes["camera"] = stream.source

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        skipped: Counter[str] = Counter()
        block: list[Packet] = []
        block_bytes = 0
        start = position = self._data_start
        for packet in self._packets(position, self._packets_end):
            position = packet.end
            if packet.stream == self._stream.number:
                block.append(packet)
                block_bytes += packet.end - packet.position
            else:
                kind = self._streams[packet.stream].kind
                name = f"packets of event stream {packet.stream}" if kind == "EVTS" else f"{kind} packets"
                skipped[KINDS.get(kind, name)] += 1
            if block_bytes >= BLOCK_BYTES:
                yield Bookmark(start), self._unpack(block)
                block, block_bytes, start = [], 0, position
        if position > start:
            yield Bookmark(start), self._unpack(block)
        missing = f"the bytes up to {self._table}" if self._table > self.size else ""
        self.found = Found(position, dict(skipped), Tail(self._packets_end - position, position, missing))

    def decode(self, start: Bookmark, end: int) -> Columns:
        packets = self._packets(start.position, min(end, self._packets_end))
        return self._unpack([packet for packet in packets if packet.stream == self._stream.number])

    def _packets(self, position: int, end: int) -> Iterator[Packet]:
        """Packets from ``position`` on; one that is cut by the end of the file ends them."""
        while position + PACKET_HEAD.size <= end:
            stream, num_bytes = PACKET_HEAD.unpack(self._file.read(position, PACKET_HEAD.size))
            packet = Packet(stream, position, position + PACKET_HEAD.size + num_bytes)
            if num_bytes < 0 or stream not in self._streams:
                raise FormatError(
                    f"{self.path}: the packet at byte {position} is damaged (stream {stream}, {num_bytes} bytes);"
                    f" expected one of the streams {list_names(self._streams)}; copy the file again"
                )
            if packet.end > end:
                break
            position = packet.end
            yield packet
        if position < end and self._whole:
            raise FormatError(
                f"{self.path}: the packet at byte {position} runs beyond byte {end}, where the packets end; the file is"
                " damaged, copy it again"
            )

    def _unpack(self, packets: list[Packet]) -> Columns:
        """Return the events of ``packets``, in order."""
        if not packets:
            return allocate_columns(0)
        pieces = [plain_header(self._compression, self._stream)]
        for packet in packets:
            data = self._file.read(packet.position, packet.end - packet.position)
            # a few bytes of Zstandard can claim gigabytes of one repeated value; LZ4 cannot
            is_zstandard = COMPRESSIONS[self._compression] == "Zstandard"
            most = unpacked_bytes_at_most(data[PACKET_HEAD.size :]) if is_zstandard else 0
            if most > max(SMALL_PACKET, MAX_RATIO * (len(data) - PACKET_HEAD.size)):
                raise self._damaged(packet, f"it claims to unpack to {most} bytes")
            pieces.append(data)
        arrays = []
        with _file_in_memory(pieces) as name, _without_panic_message():
            decoder = self._guarded(packets[0], lambda: aedat.Decoder(name))
            for packet in packets:
                content = self._guarded(packet, lambda: next(decoder, None))
                if content is None:
                    raise self._damaged(packet, "its content is missing")
                arrays += [content["events"]] if "events" in content else []
        if not arrays:
            return allocate_columns(0)
        events = np.concatenate(arrays)
        t, x, y = (np.ascontiguousarray(events[name]) for name in "txy")
        return Columns(t.view(np.int64), x, y, events["on"].astype(np.uint8))

    def _guarded(self, packet: Packet, call: Any) -> Any:
        """Return what ``call`` returns. The decoder is compiled code whose panics are no ``Exception``."""
        try:
            return call()
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as error:
            if str(error) == NO_EVENTS:
                return {}
            raise self._damaged(packet, str(error)) from None

    def _damaged(self, packet: Packet, reason: str) -> FormatError:
        return FormatError(
            f"{self.path}: the packet at byte {packet.position} (up to {packet.end}) cannot be unpacked ({reason}); the"
            " file is damaged, copy it again"
        )


@contextmanager
def _file_in_memory(pieces: list[bytes]) -> Iterator[str]:
    """Yield a name under which ``pieces`` can be read as one file."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("aedat4"), "wb") as file:
            file.writelines(pieces)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packets.aedat4"
        with open(path, "wb") as file:
            file.writelines(pieces)
        yield str(path)


_STDERR = Lock()


@contextmanager
def _without_panic_message() -> Iterator[None]:
    """Discard the standard error: Rust code that panics writes there before the panic can become a sentence."""
    with _STDERR:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
