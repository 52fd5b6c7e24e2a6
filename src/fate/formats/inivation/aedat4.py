"""AEDAT 4.0, the files of iniVation's DV: a header, packets of several streams, and a table at the end.

``#!AER-DAT4.0`` CRLF, a size-prefixed FlatBuffer (compression, position of the table, an XML description of the
streams), then packets: ``i4`` stream, ``i4`` number of bytes, and a FlatBuffer that may be compressed (LZ4 or
Zstandard). The table, where there is one, ends the packets. Times are Unix µs.

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

import aedat
import numpy as np

from fate.errors import FormatError, list_names
from fate.events.events import Sensor
from fate.formats.columns import Columns, empty_columns
from fate.formats.inivation.aedat4_header import Aedat4Header, Stream, plain_header, read_header
from fate.formats.source import BLOCK_BYTES, Bookmark, ByteFile, Hints, Source, Tail
from fate.formats.tables.zstandard import unpacked_bytes_at_most

PACKET_HEAD = struct.Struct("<ii")
KINDS = {"EVTS": "events", "FRME": "frames", "IMUS": "imu packets", "TRIG": "trigger packets"}
NO_EVENTS = "empty events packet"  # how the decoder calls a packet that leaves out its list of events
MAX_RATIO = 255  # of unpacked to packed bytes: what LZ4 can reach at most
SMALL_PACKET = 64 << 20  # bytes that any packet may unpack to


class Packet(NamedTuple):
    """Where a packet's content is, and which stream it belongs to."""

    stream: int
    position: int  # of its 8-byte head
    num_bytes: int  # of content after the head

    @property
    def end(self) -> int:
        return self.position + PACKET_HEAD.size + self.num_bytes


class Aedat4Source(Source):
    """One event stream of an AEDAT 4.0 file; a block is a run of packets, a position is a byte of the file."""

    format = "AEDAT4"
    thread_safe = True

    def __init__(self, path: Path, file: ByteFile, header: Aedat4Header, stream: Stream, sensor: Sensor | None) -> None:
        self.path, self.size, self.sensor = path, file.size, sensor or stream.sensor
        self._file, self._header, self._stream = file, header, stream
        self._streams = {each.number: each for each in header.streams}
        self._packets_end = min(header.table_position or file.size, file.size)
        self._whole = header.table_position is not None and header.table_position <= file.size
        self._end = header.num_bytes
        self._skipped: Counter[str] = Counter()
        self.notes = {
            "compression": header.compression_name,
            "event stream": f"{stream.number} ({stream.sensor})" if stream.sensor else str(stream.number),
            "streams": ", ".join(f"{each.number} {each.kind}" for each in header.streams),
        }
        if stream.source:
            self.notes["camera"] = stream.source

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        skipped: Counter[str] = Counter()
        block: list[Packet] = []
        block_bytes = 0
        start = position = self._header.num_bytes
        for packet in self._packets(position, self._packets_end):
            position = packet.end
            if packet.stream == self._stream.number:
                block.append(packet)
                block_bytes += packet.num_bytes
            else:
                skipped[self._kind(packet.stream)] += 1
            if block_bytes >= BLOCK_BYTES:
                yield Bookmark(start), self._unpack(block)
                block, block_bytes, start = [], 0, position
        if position > start:
            yield Bookmark(start), self._unpack(block)
        self._end, self._skipped = position, skipped

    def decode(self, start: Bookmark, end: int) -> Columns:
        packets = self._packets(start.position, min(end, self._packets_end))
        return self._unpack([packet for packet in packets if packet.stream == self._stream.number])

    def end(self) -> int:
        return self._end

    def skipped(self) -> dict[str, int]:
        return dict(self._skipped)

    def tail(self) -> Tail:
        table = self._header.table_position or 0
        missing = f"the bytes up to {table}" if table > self.size else ""
        return Tail(self._packets_end - self._end, self._end, missing)

    def close(self) -> None:
        self._file.close()

    def _kind(self, stream: int) -> str:
        kind = self._streams[stream].kind
        if kind == "EVTS":
            return f"packets of event stream {stream}"
        return KINDS.get(kind, f"{kind} packets")

    def _packets(self, position: int, end: int) -> Iterator[Packet]:
        """Packets from ``position`` on; one that is cut by the end of the file ends them."""
        while position + PACKET_HEAD.size <= end:
            stream, num_bytes = PACKET_HEAD.unpack(self._file.read(position, PACKET_HEAD.size))
            packet = Packet(stream, position, num_bytes)
            if num_bytes < 0 or stream not in self._streams:
                raise FormatError(
                    f"{self.path}: the packet at byte {position} is damaged (stream {stream}, {num_bytes} bytes);"
                    f" expected one of the streams {list_names(self._streams)}; copy the file"
                    " again"
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
        """The events of ``packets``, in order."""
        if not packets:
            return empty_columns()
        pieces = [plain_header(self._header.compression, self._stream)]
        for packet in packets:
            data = self._file.read(packet.position, PACKET_HEAD.size + packet.num_bytes)
            self._refuse_bomb(packet, data[PACKET_HEAD.size :])
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
            return empty_columns()
        events = np.concatenate(arrays)
        return Columns(
            np.ascontiguousarray(events["t"]).view(np.int64),
            np.ascontiguousarray(events["x"]),
            np.ascontiguousarray(events["y"]),
            events["on"].astype(np.uint8),
        )

    def _guarded(self, packet: Packet, call: Any) -> Any:
        """What ``call`` returns. The decoder is compiled code that may also panic, which is no ``Exception``."""
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
            f"{self.path}: the packet at byte {packet.position} ({packet.num_bytes} bytes) cannot be unpacked"
            f" ({reason}); the file is damaged, copy it again"
        )

    def _refuse_bomb(self, packet: Packet, content: bytes) -> None:
        """A few bytes of Zstandard can claim gigabytes of one repeated value; LZ4 cannot."""
        if self._header.compression_name == "Zstandard":
            most = unpacked_bytes_at_most(content)
            if most > max(SMALL_PACKET, MAX_RATIO * packet.num_bytes):
                raise self._damaged(packet, f"it claims to unpack to {most} bytes")


@contextmanager
def _file_in_memory(pieces: list[bytes]) -> Iterator[str]:
    """A name under which ``pieces`` can be read as one file."""
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
    """Compiled Rust code that panics writes to the standard error before we can turn the panic into a sentence; that
    output goes nowhere for the moment."""
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


def open_aedat4(path: Path, hints: Hints) -> Aedat4Source:
    """The first event stream of an AEDAT 4.0 file."""
    file = ByteFile(path)
    try:
        header = read_header(path, file)
        streams = [stream for stream in header.streams if stream.kind == "EVTS"]
        if not streams:
            kinds = ", ".join(KINDS.get(stream.kind, stream.kind) for stream in header.streams) or "nothing"
            raise FormatError(f"{path}: holds no stream of events (it has {kinds}); record the events of the camera")
        return Aedat4Source(path, file, header, streams[0], hints.sensor)
    except BaseException:
        file.close()
        raise
