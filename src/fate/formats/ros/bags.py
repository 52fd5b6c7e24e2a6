"""Bags of ROS 1 (.bag) and ROS 2 (.db3, .mcap, or the folder with its metadata.yaml), through the package ``rosbags``.

The topic with event messages is read (the one with most messages where there are several). A block is a run of
messages, and its position the time in ns at which the first of them was received: bags can be asked for the messages
of a span of time, and nothing finer. Event times are those in the messages: of ``EventArray`` the time of each event
(usually Unix), of ``EventPacket`` the camera's own clock as the words give it, or, in the other encodings of
``messages.py``, the time base of the message and what the words add to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fate.errors import PACKAGES, FormatError, missing_packages
from fate.events.events import Sensor
from fate.files import check_regular
from fate.formats.decoder import Columns, Decoder, allocate_columns, concatenate
from fate.formats.prophesee.raw import Evt2Decoder, Evt3Decoder, Evt21Decoder
from fate.formats.ros.messages import (
    ARRAY_TYPES,
    PACKET_TYPES,
    BasedDecoder,
    EventMessage,
    LibcaerCmpDecoder,
    LibcaerDecoder,
    MonoDecoder,
    read_array,
    read_packet,
)
from fate.formats.source import (
    BLOCK_BYTES,
    Bookmark,
    ByteFile,
    Found,
    Options,
    Source,
    Tail,
    refuse_damage,
    sensor_of_sides,
)

DECODERS: dict[str, tuple[type[Decoder], int]] = {  # encoding → decoder, bytes of a word
    "evt2": (Evt2Decoder, 4),
    "evt21": (Evt21Decoder, 8),
    "evt3": (Evt3Decoder, 2),
    "libcaer": (LibcaerDecoder, 8),
    "libcaer_cmp": (LibcaerCmpDecoder, 2),
    "mono": (MonoDecoder, 8),
}


class Topic(NamedTuple):
    """A topic with event messages."""

    name: str
    kind: str
    connections: list[Any]
    num_messages: int


class Message(NamedTuple):
    """A message as the bag holds it."""

    time: int  # of its reception, ns
    data: bytes


class RosSource(Source):
    """One topic of a bag."""

    format = "ROS bag"

    def __init__(
        self, path: Path, reader: Any, topics: list[Topic], *, cdr: bool, sensor: Sensor | None, watches: list[ByteFile]
    ) -> None:
        self.path, self._watches = path, watches
        files = path.iterdir() if path.is_dir() else [path]
        self.size = sum(file.stat().st_size for file in files if file.is_file())
        topic, *others = topics
        self._reader, self._topic, self._cdr = reader, topic, cdr
        message = next(self._messages(None, None), None)
        first = self._parsed(message) if message else EventMessage(0, 0, None)
        if message and first.columns is None and first.encoding not in DECODERS:
            raise FormatError(
                f"{path}: the events of {topic.name} are in the encoding {first.encoding!r};"
                f" {', '.join(DECODERS)} are known; record with one of those"
            )
        self._encoding, self._sides = first.encoding, (first.height, first.width)
        self.sensor = sensor or (sensor_of_sides(path, *self._sides) if all(self._sides) else None)
        self.notes = {"topic": f"{topic.name} ({topic.kind}, {topic.num_messages} messages)"}
        if self._encoding:
            self.notes["encoding"] = self._encoding
        if others:
            self.notes["other event topics"] = ", ".join(f"{each.name} ({each.num_messages})" for each in others)

    def scan(self) -> Iterator[tuple[Bookmark, Columns]]:
        decoder = self._decoder()
        block: list[Message] = []
        num_bytes = num_messages = 0
        last = None
        for message in self._messages(None, None):
            if last is not None and message.time < last:
                raise FormatError(
                    f"{self.path}: a message received at {message.time} ns follows one received at {last} ns; the files"
                    " of the bag overlap; merge them with ros2 bag convert first"
                )
            # a block ends only where time moves on: messages of one time cannot be asked for one by one
            if num_bytes >= BLOCK_BYTES and message.time != last:
                yield self._block(block, decoder)
                block, num_bytes = [], 0
            block.append(message)
            num_bytes += len(message.data)
            num_messages += 1
            last = message.time
        if block:
            yield self._block(block, decoder)
        with _damage_refused(self.path):
            others = int(self._reader.message_count) - num_messages
        skipped = decoder.skipped() if decoder else {}
        if others > 0:
            skipped["messages of other topics"] = others
        self.found = Found(0 if last is None else last + 1, skipped, Tail(0, self.size))

    def _block(self, messages: list[Message], decoder: Decoder | None) -> tuple[Bookmark, Columns]:
        state = decoder.state.copy() if decoder else np.zeros(0, np.int64)
        return Bookmark(messages[0].time, state), concatenate([self._columns(each, decoder) for each in messages])

    def decode(self, start: Bookmark, end: int) -> Columns:
        decoder = self._decoder()
        if decoder:
            decoder.state[:] = start.state
        return concatenate([self._columns(message, decoder) for message in self._messages(start.position, end)])

    def close(self) -> None:
        self._reader.close()
        for watch in self._watches:
            watch.close()

    def _messages(self, start: int | None, end: int | None) -> Iterator[Message]:
        messages = self._reader.messages(connections=self._topic.connections, start=start, stop=end)
        while True:
            with _damage_refused(self.path):
                found = next(messages, None)
            for watch in self._watches:
                watch.check_unchanged()
            if found is None:
                return
            yield Message(found[1], bytes(found[2]))

    def _decoder(self) -> Decoder | None:
        return DECODERS[self._encoding][0]() if self._encoding else None

    def _columns(self, message: Message, decoder: Decoder | None) -> Columns:
        """Return the events of one message."""
        parsed = self._parsed(message)
        if (parsed.height, parsed.width) != self._sides or parsed.encoding != self._encoding:
            given = f"size {parsed.width}×{parsed.height} and encoding {parsed.encoding!r}"
            raise self._damaged(message, f"its {given} are not those of the first message")
        if decoder is None or parsed.columns is not None:
            return parsed.columns or allocate_columns(0)
        if len(parsed.content) % DECODERS[self._encoding][1]:
            raise self._damaged(message, f"{len(parsed.content)} bytes are no whole number of {self._encoding} words")
        if isinstance(decoder, BasedDecoder):
            decoder.start_message(parsed.time_base_ns)
        return decoder.decode(parsed.content)[0]

    def _parsed(self, message: Message) -> EventMessage:
        read = read_array if self._topic.kind in ARRAY_TYPES else read_packet
        try:
            return read(message.data, self._cdr)
        except struct.error as error:
            raise self._damaged(message, str(error)) from None

    def _damaged(self, message: Message, reason: str) -> FormatError:
        return FormatError(
            f"{self.path}: the message of {self._topic.name} received at {message.time} ns cannot be read as"
            f" {self._topic.kind} ({reason}); the bag is damaged, copy it again"
        )


def _damage_refused(path: Path) -> AbstractContextManager[None]:
    return refuse_damage(path, "a ROS bag", Exception)  # the package has no narrower type


def open_ros(path: Path, options: Options) -> RosSource:
    """Open a bag of ROS 1 or ROS 2 and choose its event topic."""
    with ExitStack() as opened:
        for file in path.iterdir() if path.is_dir() else [path]:  # metadata.yaml may name any of them
            if not file.is_dir():
                check_regular(file, "a file of a ROS bag")
        watches = []
        for file in _bag_files(path):
            watches.append(ByteFile(file, can_grow=file.suffix == ".db3"))  # the others end with an index
            opened.callback(watches[-1].close)
        with _damage_refused(path):
            reader, cdr = _reader(path)
            reader.open()
        opened.callback(reader.close)
        topics = _event_topics(path, reader)
        source = RosSource(path, reader, topics, cdr=cdr, sensor=options.sensor, watches=watches)
        opened.pop_all()
        return source


def _reader(path: Path) -> tuple[Any, bool]:
    """Return the package's reader for ``path``, and whether messages are in the form of ROS 2."""
    try:
        from rosbags import rosbag1, rosbag2  # noqa: PLC0415  (an optional package)
    except ImportError:
        raise missing_packages(f"{path}: reading ROS bags", PACKAGES["ros"]) from None
    if path.is_dir():
        files = _bag_files(path)
        # a single file needs no metadata, which some recorders leave incomplete
        return rosbag2.Reader(files[0] if len(files) == 1 else path), True
    with open(path, "rb") as file:
        if file.read(9) == b"#ROSBAG V":
            return rosbag1.Reader(path), False
    if path.suffix not in (".db3", ".mcap"):
        raise FormatError(f"{path}: is a ROS 2 bag whose name does not end in .db3 or .mcap; rename it so")
    return rosbag2.Reader(path), True


def _event_topics(path: Path, reader: Any) -> list[Topic]:
    """Topics with event messages, most messages first."""
    found: dict[tuple[str, str], list[Any]] = {}
    for connection in reader.connections:
        if connection.msgtype in (*ARRAY_TYPES, *PACKET_TYPES):
            found.setdefault((connection.topic, connection.msgtype), []).append(connection)
    if not found:
        others = sorted({f"{each.topic} ({each.msgtype})" for each in reader.connections})
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise FormatError(
            f"{path}: has no topic of events (EventPacket of event_camera_msgs or EventArray of dvs_msgs); it has"
            f" {shown or 'no topics'}; record the camera's event topic"
        )
    topics = [Topic(name, kind, each, sum(c.msgcount for c in each)) for (name, kind), each in found.items()]
    return sorted(topics, key=lambda topic: (-topic.num_messages, topic.name))


def _bag_files(path: Path) -> list[Path]:
    """Return the file of a bag, or the files with messages in its folder."""
    return [file for file in path.iterdir() if file.suffix in (".db3", ".mcap")] if path.is_dir() else [path]
