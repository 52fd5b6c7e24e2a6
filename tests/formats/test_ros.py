"""ROS bags: messages the package ``rosbags`` serialised, read back from their bytes; topics, blocks and damage."""

from __future__ import annotations

import builtins
import os
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fate.errors import FateError, FormatError, MissingDependencyError
from fate.events.events import Events
from fate.formats.opening import open_recording
from fate.formats.prophesee.header import parse_header
from fate.formats.prophesee.raw import Evt3Decoder, Evt3Writer
from fate.formats.ros.bags import DECODERS
from fate.formats.ros.messages import BasedDecoder, read_array

rosbag1 = pytest.importorskip("rosbags.rosbag1", reason="reading bags is an extra")
rosbag2 = pytest.importorskip("rosbags.rosbag2")
typesys = pytest.importorskip("rosbags.typesys")

SENSOR = (480, 640)
KINDS = ("ros1", "sqlite3", "mcap")
EVENT = "uint16 x\nuint16 y\n{time} ts\nbool polarity\n"
ARRAY = "std_msgs/Header header\nuint32 height\nuint32 width\ndvs_msgs/Event[] events\n"
PACKET = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\n"
    "bool is_bigendian\nuint8[] events\n"
)
ARRAY_TYPE, PACKET_TYPE = "dvs_msgs/msg/EventArray", "event_camera_msgs/msg/EventPacket"


def type_store(kind: str) -> Any:
    """Message types of ROS 1 or 2 with those of events added."""
    stores = typesys.Stores
    store = typesys.get_typestore(stores.ROS1_NOETIC if kind == "ros1" else stores.ROS2_HUMBLE)
    event = EVENT.format(time="time" if kind == "ros1" else "builtin_interfaces/Time")
    for text, name in ((event, "dvs_msgs/msg/Event"), (ARRAY, ARRAY_TYPE), (PACKET, PACKET_TYPE)):
        store.register(typesys.get_types_from_msg(text, name))
    return store


def header(store: Any, kind: str) -> Any:
    stamp = store.types["builtin_interfaces/msg/Time"](sec=1, nanosec=2)
    fields = {"seq": 7} if kind == "ros1" else {}
    return store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera", **fields)


def array_message(store: Any, kind: str, events: Events, frame: str = "camera") -> Any:
    time, event = store.types["builtin_interfaces/msg/Time"], store.types["dvs_msgs/msg/Event"]
    head = header(store, kind)
    head.frame_id = frame
    rows = [
        event(x=x, y=y, ts=time(sec=t // 1_000_000, nanosec=t % 1_000_000 * 1000 + 999), polarity=bool(p))
        for t, x, y, p in zip(*(column.tolist() for column in (events.t_us, events.x, events.y, events.p)), strict=True)
    ]
    return store.types[ARRAY_TYPE](header=head, height=events.sensor.height, width=events.sensor.width, events=rows)


def packet_message(
    store: Any, kind: str, content: bytes, encoding: str = "evt3", width: int = 640, time_base: int = 0
) -> Any:
    return store.types[PACKET_TYPE](
        header=header(store, kind), height=480, width=width, seq=3, time_base=time_base, encoding=encoding,
        is_bigendian=False, events=np.frombuffer(content, np.uint8),
    )  # fmt: skip


def serialised(store: Any, kind: str, message: Any, name: str) -> bytes:
    return bytes(store.serialize_ros1(message, name) if kind == "ros1" else store.serialize_cdr(message, name))


def write_bag(
    folder: Path, kind: str, topics: dict[str, tuple[str, Sequence[Any]]], times: Sequence[int] | None = None
) -> Path:
    """A bag with the messages of each topic, received at ``times`` (ns; one every ms unless given)."""
    store = type_store(kind)
    if kind == "ros1":
        path = folder / "bag.bag"
        writer = rosbag1.Writer(path)
    else:
        path = folder / "bag"
        writer = rosbag2.Writer(path, version=9, storage_plugin=getattr(rosbag2.StoragePlugin, kind.upper()))
    with writer:
        for topic, (name, messages) in topics.items():
            connection = writer.add_connection(topic, name, typestore=store)
            for i, message in enumerate(messages):
                data = message if isinstance(message, bytes) else serialised(store, kind, message, name)
                writer.write(connection, times[i] if times else 10**18 + i * 10**6, data)
    return path


def some_events(n: int, start: int = 1_600_000_000_000_000, seed: int = 0) -> Events:
    rng = np.random.default_rng(seed)
    t = start + np.cumsum(rng.integers(0, 30, n))
    return Events(t, rng.integers(0, 640, n), rng.integers(0, 480, n), rng.integers(0, 2, n), SENSOR)


def evt3_words(folder: Path, events: Events) -> bytes:
    path = folder / "words.raw"
    with Evt3Writer(path, events.sensor) as writer:
        writer.write(events)
    data = path.read_bytes()
    return data[parse_header(data).num_bytes :]


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@pytest.mark.parametrize("kind", KINDS)
def test_event_arrays_come_back_exactly_and_windows_equal_a_linear_scan(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(15_000)
    messages = [array_message(store, kind, events[i : i + 250]) for i in range(0, 15_000, 250)]
    path = write_bag(tmp_path, kind, {"/dvs/events": (ARRAY_TYPE, messages)})
    with open_recording(path) as recording:
        assert recording.read() == events
        assert recording.index().num_blocks > 1
        assert recording.notes["topic"].startswith("/dvs/events")
        for start in np.random.default_rng(1).integers(recording.start_us - 100, recording.end_us, 20):
            assert recording.read(int(start), int(start) + 9_000) == events.between(int(start), int(start) + 9_000)


@pytest.mark.parametrize("kind", KINDS)
def test_evt3_packets_are_decoded_across_messages_and_blocks(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(60_000, start=5_000)
    words = evt3_words(tmp_path, events)
    messages = [packet_message(store, kind, piece) for piece in in_pieces(words, 3_002)]  # cut inside rows and times
    path = write_bag(tmp_path, kind, {"/camera/events": (PACKET_TYPE, messages)})
    with open_recording(path) as recording:
        assert recording.read() == events
        assert recording.index().num_blocks > 2
        assert recording.notes["encoding"] == "evt3" and recording.sensor == SENSOR  # noqa: PT018
        for start in np.random.default_rng(1).integers(0, recording.end_us, 20):
            assert recording.read(int(start), int(start) + 9_000) == events.between(int(start), int(start) + 9_000)


@given(kind=st.sampled_from(KINDS), n=st.integers(0, 9), frame=st.text("abc", max_size=9), seed=st.integers(0, 99))
def test_arrays_of_any_length_are_read_as_the_package_wrote_them(kind: str, n: int, frame: str, seed: int) -> None:
    store, events = type_store(kind), some_events(n, seed=seed)
    data = serialised(store, kind, array_message(store, kind, events, frame), ARRAY_TYPE)
    found = read_array(data, kind != "ros1")
    assert (found.height, found.width) == SENSOR
    assert Events(*found.columns, SENSOR) == events


@pytest.mark.parametrize("kind", KINDS)
def test_a_bag_that_is_rewritten_while_open_is_refused(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(15_000)
    messages = [array_message(store, kind, events[i : i + 250]) for i in range(0, 15_000, 250)]
    path = write_bag(tmp_path, kind, {"/dvs/events": (ARRAY_TYPE, messages)})
    with open_recording(path) as recording:
        recording.index()
        for file in [path] if path.is_file() else path.iterdir():
            os.utime(file, ns=(10**18, 10**18))
        with pytest.raises(FormatError, match="changed while it was open"):
            recording.read()


@pytest.mark.parametrize("name", ["bag_1.mcap", "unknown"])
def test_a_pipe_in_the_folder_of_a_bag_is_refused_without_waiting(name: str, tmp_path: Path) -> None:
    store, events = type_store("mcap"), some_events(50)
    folder = write_bag(tmp_path, "mcap", {"/e": (ARRAY_TYPE, [array_message(store, "mcap", events)])})
    os.mkfifo(folder / name)
    with pytest.raises(FateError, match=f"{name}.*pipe"):
        open_recording(folder)


@pytest.mark.parametrize("kind", ["sqlite3", "mcap"])
def test_the_file_inside_a_bag_folder_can_be_given_itself(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(50)
    folder = write_bag(tmp_path, kind, {"/e": (ARRAY_TYPE, [array_message(store, kind, events)])})
    (file,) = (each for each in folder.iterdir() if each.name != "metadata.yaml")
    (folder / "metadata.yaml").unlink()
    with open_recording(file) as recording:
        assert recording.read() == events
    renamed = file.rename(file.with_suffix(".recording"))
    with pytest.raises(FormatError, match="rename it"):
        open_recording(renamed)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_received_at_one_time_stay_in_one_block(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(60_000, start=5_000)
    messages = [packet_message(store, kind, piece) for piece in in_pieces(evt3_words(tmp_path, events), 20_000)]
    times = [10**18 + i // 6 for i in range(len(messages))]
    with open_recording(write_bag(tmp_path, kind, {"/e": (PACKET_TYPE, messages)}, times)) as recording:
        assert recording.index().num_blocks == len(set(times)) > 1
        assert recording.read() == events
        for start in range(0, recording.end_us, 90_000):
            assert recording.read(start, start + 5_000) == events.between(start, start + 5_000)


def test_the_topic_with_most_messages_is_read_and_the_others_are_named(tmp_path: Path) -> None:
    store, events = type_store("mcap"), some_events(60)
    one = array_message(store, "mcap", some_events(9, seed=4))
    many = [array_message(store, "mcap", events[i : i + 20]) for i in range(0, 60, 20)]
    path = write_bag(tmp_path, "mcap", {"/a": (ARRAY_TYPE, [one]), "/b": (ARRAY_TYPE, many)})
    with open_recording(path) as recording:
        assert recording.read() == events
        assert recording.notes["other event topics"] == "/a (1)"
        assert recording.index().skipped == {"messages of other topics": 1}


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    store = type_store("ros1")

    def refuse(name: str, topics: dict[str, tuple[str, Sequence[Any]]], says: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(FormatError, match=says), open_recording(write_bag(folder, "ros1", topics)) as recording:
            recording.read()

    good, trigger = packet_message(store, "ros1", b"\0\x80"), packet_message(store, "ros1", b"", "trigger")
    string = store.types["std_msgs/msg/String"](data="hello")
    refuse("encoding", {"/e": (PACKET_TYPE, [trigger])}, "encoding 'trigger'.*libcaer_cmp")
    refuse("none", {"/chat": ("std_msgs/msg/String", [string])}, r"no topic of events.*/chat")
    refuse("odd", {"/e": (PACKET_TYPE, [packet_message(store, "ros1", b"abc")])}, "no whole number of evt3 words")
    refuse("size", {"/e": (PACKET_TYPE, [good, packet_message(store, "ros1", b"", width=3)])}, "first message")
    refuse("cut", {"/e": (PACKET_TYPE, [good, b"\0\0\0"])}, "received at 1000000000001000000 ns cannot be read")


def test_an_array_that_announces_more_events_than_there_are_takes_no_memory() -> None:
    head = np.array([1, 2, 3, 0, 480, 640, 0xFFFFFFFF], "<u4").tobytes()
    with pytest.raises(Exception, match="are announced"):
        read_array(head, cdr=False)


def test_without_the_package_the_pip_line_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_bag(tmp_path, "ros1", {})
    real_import = builtins.__import__

    def no_rosbags(name: str, *rest: Any) -> Any:
        if name.startswith("rosbags"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_rosbags)
    with pytest.raises(MissingDependencyError, match="pip install rosbags"):
        open_recording(path)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_bags_give_a_sentence_or_valid_events(kind: str, tmp_path: Path) -> None:
    store, events = type_store(kind), some_events(400, start=5_000)
    messages = [packet_message(store, kind, piece) for piece in in_pieces(evt3_words(tmp_path, events), 200)]
    bag = write_bag(tmp_path, kind, {"/e": (PACKET_TYPE, messages)})
    file = bag if bag.is_file() else next(each for each in bag.iterdir() if each.name != "metadata.yaml")
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    for trial in range(40):
        data = bytearray(whole)
        for position in rng.integers(16, len(data), 3):
            data[position] = rng.integers(256)
        damaged = tmp_path / f"damaged{file.suffix}"
        damaged.write_bytes(data if trial % 2 else whole[: int(rng.integers(20, len(whole)))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with open_recording(damaged, out_of_bounds="drop", unsorted="sort") as recording:
                    assert (np.diff(recording.read().t_us) >= 0).all()
            except FateError as error:
                assert str(damaged) in str(error)


def test_the_decoder_for_packets_is_the_one_for_files(tmp_path: Path) -> None:
    events = some_events(300, start=0)
    assert Evt3Decoder(SENSOR).feed(evt3_words(tmp_path, events)) == events


# ---- encodings whose times count from the time base of each message ----------------------------------------------

Row = tuple[int, int, int, int]  # t in µs, x, y, p


def mono_content(rows: Sequence[Row], base_ns: int) -> bytes:
    return b"".join(struct.pack("<IHH", t * 1000 - base_ns, x, p << 15 | y) for t, x, y, p in rows)


def libcaer_content(rows: Sequence[Row], base_ns: int) -> bytes:
    low = (1 << 31) - 1
    return b"".join(struct.pack("<Ii", x << 17 | y << 2 | p << 1 | 1, t - base_ns // 1000 & low) for t, x, y, p in rows)


def libcaer_cmp_content(rows: Sequence[Row], base_ns: int) -> bytes:
    """Words as a recorder writes them: time and column where they change; neighbouring rows as vectors."""
    words: list[int] = []
    high = low = 0
    column = -1
    i = 0
    while i < len(rows):
        t, x, y, p = rows[i]
        since = t - base_ns // 1000
        if since >> 12 != high:
            high = since >> 12
            words.append(high)
        if since & 0xFFF != low:
            low = since & 0xFFF
            words.append(1 << 12 | low)
        if x != column:
            column = x
            words.append(2 << 12 | x)
        run = 1
        while run < 8 and rows[i + run : i + run + 1] == [(t, x, y + run, p)]:
            run += 1
        words += [3 << 12 | p << 11 | y] if run == 1 else [4 << 12 | p << 11 | y, 5 << 12 | (1 << run) - 1]
        i += run
    return struct.pack(f"<{len(words)}H", *words)


CONTENTS = {"mono": mono_content, "libcaer": libcaer_content, "libcaer_cmp": libcaer_cmp_content}


def runs_of_rows(n: int, start: int, seed: int) -> list[Row]:
    """Events in columns of one to four neighbouring rows, at most 4 s long (``mono`` holds 4.29 s)."""
    rng = np.random.default_rng(seed)
    found: list[Row] = []
    t = start
    while len(found) < n:
        t += int(rng.choice([0, 1, 7, 5000]))
        x, y, p = int(rng.integers(640)), int(rng.integers(470)), int(rng.integers(2))
        found += [(t, x, y + i, p) for i in range(int(rng.integers(1, 5)))]
    return found[:n]


@pytest.mark.parametrize("encoding", CONTENTS)
@pytest.mark.parametrize("kind", ["ros1", "mcap"])
def test_packets_with_a_time_base_come_back_exactly(kind: str, encoding: str, tmp_path: Path) -> None:
    store = type_store(kind)
    messages, expected = [], []
    start = 1_600_000_000_000_000
    for number in range(60):
        rows = runs_of_rows(900, start, number)
        base_ns = start * 1000
        messages.append(packet_message(store, kind, CONTENTS[encoding](rows, base_ns), encoding, time_base=base_ns))
        expected += rows
        start = rows[-1][0]
    path = write_bag(tmp_path, kind, {"/events": (PACKET_TYPE, messages)})
    with open_recording(path) as recording:
        whole = recording.read()
        assert recording.notes["encoding"] == encoding
        assert recording.index().num_blocks > 1
        columns = (column.tolist() for column in (whole.t_us, whole.x, whole.y, whole.p))
        assert list(zip(*columns, strict=True)) == expected
        for begin in range(recording.start_us, recording.end_us, (recording.end_us - recording.start_us) // 15):
            assert recording.read(begin, begin + 40_000) == whole.between(begin, begin + 40_000)


def decoded(encoding: str, messages: Sequence[tuple[int, bytes]]) -> tuple[list[Row], dict[str, int]]:
    decoder = DECODERS[encoding][0]()
    assert isinstance(decoder, BasedDecoder)
    rows: list[Row] = []
    for base_ns, content in messages:
        decoder.start_message(base_ns)
        columns, used = decoder.decode(content)
        assert used == len(content)
        rows += zip(*(column.tolist() for column in columns), strict=True)
    return rows, decoder.skipped()


def test_times_are_cut_to_whole_microseconds_after_adding_the_base() -> None:
    rows, _ = decoded("mono", [(1_500, struct.pack("<IHH", 499, 1, 2) + struct.pack("<IHH", 500, 3, 1 << 15 | 4))])
    assert rows == [(1, 1, 2, 0), (2, 3, 4, 1)]


def test_libcaer_times_wrap_within_a_message() -> None:
    content = struct.pack("<IiIi", 5 << 17 | 6 << 2 | 1, (1 << 31) - 2, 5 << 17 | 6 << 2 | 3, 3)
    rows, _ = decoded("libcaer", [(7_000_018, content)])
    assert rows == [(7000 + 2**31 - 2, 5, 6, 0), (7000 + 2**31 + 3, 5, 6, 1)]


def slow_libcaer_cmp(messages: Sequence[tuple[int, bytes]]) -> list[Row]:
    """Word by word, from the description of the encoding."""
    found: list[Row] = []
    x = row = polarity = None
    for base_ns, content in messages:
        high = low = 0
        for (word,) in struct.iter_unpack("<H", content):
            code, value = word >> 12, word & 0xFFF
            if code == 0:
                high = value
            elif code == 1:
                low = value
            elif code == 2:
                x = value & 0x7FF
            elif code == 3 and x is not None:
                found.append((base_ns // 1000 + high * 4096 + low, x, value & 0x7FF, value >> 11))
            elif code == 4:
                row, polarity = value & 0x7FF, value >> 11
            elif code == 5 and row is not None:
                for bit in range(8):
                    if value >> bit & 1 and x is not None and polarity is not None:
                        found.append((base_ns // 1000 + high * 4096 + low, x, row + bit, polarity))
                row += 8
    return found


@given(st.lists(st.tuples(st.integers(0, 2**62), st.lists(st.integers(0, 0xFFFF), max_size=60)), max_size=4))
def test_any_words_give_what_a_slow_decoder_gives(messages: list[tuple[int, list[int]]]) -> None:
    contents = [(base, struct.pack(f"<{len(words)}H", *words)) for base, words in messages]
    rows, skipped = decoded("libcaer_cmp", contents)
    assert rows == slow_libcaer_cmp(contents)
    assert skipped.get("unknown words", 0) == sum(word >> 12 > 5 for _, words in messages for word in words)


@pytest.mark.parametrize("encoding", CONTENTS)
def test_a_cut_word_is_refused_as_damage(encoding: str, tmp_path: Path) -> None:
    store = type_store("ros1")
    message = packet_message(store, "ros1", bytes(7), encoding)
    path = write_bag(tmp_path, "ros1", {"/events": (PACKET_TYPE, [message])})
    with open_recording(path) as recording, pytest.raises(FormatError, match="7 bytes are no whole number") as caught:
        recording.read()
    assert str(caught.value).startswith(str(path))
