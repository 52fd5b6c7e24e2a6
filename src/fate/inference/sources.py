"""Live sources: a file at real speed, and standard input. See also ``sockets.py`` and ``camera.py``."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from fate.errors import FateError, FormatError
from fate.events.events import Events, Sensor
from fate.formats.opening import decoder_for, open_recording
from fate.formats.prophesee.header import MAX_HEADER_BYTES, Header, parse_header
from fate.formats.recording import Recording

#: Formats of pipes and sockets.
BYTE_FORMATS = ("evt3", "evt2")
#: Bytes that are read at once.
PIECE_BYTES = 1 << 16
#: Length of the blocks of a file that are read ahead, µs, rounded up to whole pieces.
BLOCK_US = 20_000


class LiveSource:
    """What all sources have: iterating gives pieces of events until the source ends or is closed."""

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor  #: (height, width)
        self._closed = threading.Event()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> dict[str, int]:
        """What was lost, refused, dropped or skipped, by its name for users."""
        return dict(self._counts)

    def close(self) -> None:
        """End soon; a thread that waits for a pipe cannot be woken, and ends when the next bytes arrive."""
        self._closed.set()


class BytesToEvents:
    """Decodes bytes of a camera. What cannot be decoded is counted, and decoding continues after it."""

    def __init__(self, format: str, sensor: Sequence[int]) -> None:
        if format not in BYTE_FORMATS:
            raise FateError(f"a stream of {format!r} was asked for; expected one of {', '.join(BYTE_FORMATS)}")
        self.sensor = Sensor.of(sensor)
        self.decoder = decoder_for(format, self.sensor, out_of_bounds="drop")
        decoder_for(format, self.sensor).feed(bytes(16))  # compiles the decoder before the first bytes arrive
        self._settled: Counter[str] = Counter()

    def feed(self, data: bytes) -> Events:
        """The events that these bytes complete; none if they are refused."""
        try:
            return self.decoder.feed(data)
        except FormatError:  # time went back: this piece is lost, and the next one begins at a new time
            self._settled["refused pieces"] += 1
            self._settled["refused bytes"] += len(data)
            return Events.empty(self.sensor)

    def reset(self) -> None:
        """Forget the decoder's state, for another sender."""
        self._settled = self.counts
        self.decoder = self.decoder.fresh()

    @property
    def counts(self) -> Counter[str]:
        """What was refused, dropped, skipped or left unfinished."""
        counted = {f"{kind} passed over": number for kind, number in self.decoder.skipped().items()}
        counted["events outside the sensor"] = self.decoder.tally.outside
        counted["bytes of an unfinished word"] = self.decoder.pending_bytes
        return self._settled + Counter(counted)


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
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Args:
        recording: an open recording, which is opened a second time, or a path.
        speed: 1 for real time, 10 for ten times as fast.
        start_us, end_us: the part that is played.
        piece_us: length of the pieces; each is returned when its time is over.
        clock, sleep: in seconds.
        """
        if not speed > 0 or piece_us < 1:
            raise FateError(
                f"a speed of {speed:g} in pieces of {piece_us} µs was asked for; expected more than 0, and 1 or more"
            )
        # each thread needs its own recording
        self._recording = open_recording(recording) if isinstance(recording, str | PathLike) else copy.copy(recording)
        super().__init__(self._recording.sensor)
        self._start = self._recording.start_us if start_us is None else int(start_us)
        self._end = self._recording.end_us if end_us is None else int(end_us)
        self._speed, self._piece_us, self._clock = speed, piece_us, clock
        self._block_us = -(-BLOCK_US // piece_us) * piece_us
        self._began: float | None = None
        self._sleep = self._closed.wait if sleep is None else sleep

    def __iter__(self) -> Iterator[Events]:
        with self._recording, ThreadPoolExecutor(1, "fate-file") as ahead:
            self._recording.read(self._start, min(self._start + self._piece_us, self._end))  # compiles the reader
            ends = range(self._start + self._block_us, self._end + self._block_us, self._block_us)
            coming = [ahead.submit(self._block, end) for end in ends[:1]]
            wait(coming)
            self._began = self._clock()
            for end in ends:
                block = coming.pop().result()
                if end < self._end:
                    coming.append(ahead.submit(self._block, end + self._block_us))
                for first in range(end - self._block_us, min(end, self._end), self._piece_us):
                    last = min(first + self._piece_us, self._end)
                    if (early := -self.age_s(last)) > 0:
                        self._sleep(early)
                    if self._closed.is_set():
                        return
                    yield block.between(first, last)

    def _block(self, end_us: int) -> Events:
        """The block that ends at ``end_us``; another thread reads it while the one before is played."""
        return self._recording.read(end_us - self._block_us, min(end_us, self._end))

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
            sensor: (height, width); None if a header gives it.
            format: one of ``BYTE_FORMATS``, unless a header names it.
            stream: standard input unless given.
        """
        # unbuffered: a thread that waits for bytes would hold the lock of the buffer when the process ends
        self._stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer) if stream is None else stream
        header, self._begun = self._header()
        _refuse_files(header, self._begun)
        size = header.sensor(Path("standard input")) if sensor is None else Sensor.of(sensor)
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

    def _header(self) -> tuple[Header, bytes]:
        """The header, which may be empty, and the first bytes after it."""
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
        return header, rest


def _refuse_files(header: Header, begun: bytes) -> None:
    """Refuse a pipe that begins like a file of another format."""
    if begun.startswith(b"#!AER-DAT"):
        kind = "AEDAT"
    elif "version" in header.fields and header.event_format() is None:
        kind = "DAT"
    elif begun.startswith((b"PK", b"\x89HDF", b"#ROSBAG")):
        kind = "an archive, HDF5 or a bag"
    else:
        return
    raise FateError(
        f"standard input: begins like {kind}, and only words of {' or '.join(BYTE_FORMATS)} are read from a pipe; give"
        " the file itself"
    )
