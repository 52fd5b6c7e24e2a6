"""AEDAT 3.1: packets, overflows, sources, invalid events, headers and damage."""

from __future__ import annotations

import struct
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning, FormatError
from fate.events.events import Events
from fate.formats.inivation.aedat3 import Aedat3Decoder
from fate.formats.opening import open_recording

HEADER = (
    b"#!AER-DAT3.1\r\n#Format: RAW\r\n#Source 1: DAVIS240C\r\n#Start-Time: 2017-01-01 10:00:00 (TZ+0100)\r\n"
    b"#!END-HEADER\r\n"
)
Row = tuple[int, int, int, int, int]  # t, x, y, p, valid
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def packet(kind: int, source: int, overflows: int, events: list[bytes], valid: int | None = None) -> bytes:
    size = len(events[0]) if events else 8
    count = len(events)
    head = struct.pack("<hhiiiiii", kind, source, size, 4, overflows, count, count, count if valid is None else valid)
    return head + b"".join(events)


def polarity(rows: list[Row], source: int = 1) -> bytes:
    """A polarity packet; the overflows are those of its first event."""
    overflows = rows[0][0] >> 31 if rows else 0
    events = [struct.pack("<Ii", x << 17 | y << 2 | p << 1 | ok, t - (overflows << 31)) for t, x, y, p, ok in rows]
    return packet(1, source, overflows, events, sum(row[4] for row in rows))


def slow_decode(data: bytes) -> list[tuple[int, ...]]:
    """(t, x, y, p) of the valid events of the first source, packet by packet."""
    found: list[tuple[int, ...]] = []
    first = None
    at = 0
    while at + 28 <= len(data):
        kind, source, size, _, overflows, _, number, _ = struct.unpack_from("<hhiiiiii", data, at)
        at += 28
        if kind == 1:
            first = source if first is None else first
            for i in range(at, at + number * size, size):
                word, t = struct.unpack_from("<Ii", data, i)
                if source == first and word % 2:
                    found.append((t + overflows * 2**31, word >> 17, (word >> 2) % 2**15, (word >> 1) % 2))
        at += number * size
    return found


def rows_of(events: Events) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in (events.t_us, events.x, events.y, events.p)), strict=True))


def some_rows(n: int, start: int = 0, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    t = (start + np.cumsum(rng.integers(0, 20, n))).tolist()
    x, y, p, ok = (rng.integers(0, limit, n).tolist() for limit in (240, 180, 2, 8))
    return [(*row, int(valid > 0)) for *row, valid in zip(t, x, y, p, ok, strict=True)]


FRAME = packet(2, 1, 0, [bytes(100)])
SPECIAL = packet(0, 1, 0, [bytes(8)] * 3)
IMU = packet(3, 1, 0, [bytes(36)] * 2)
EAR = packet(6, 1, 0, [bytes(8)])


def write(folder: Path, data: bytes) -> Path:
    path = folder / "recording.aedat"
    path.write_bytes(data)
    return path


def test_events_come_back_and_the_rest_is_counted(tmp_path: Path) -> None:
    rows = some_rows(500)
    other = polarity(some_rows(40), source=2)
    data = SPECIAL + polarity(rows[:100]) + FRAME + other + IMU + polarity(rows[100:]) + EAR
    with open_recording(write(tmp_path, HEADER + data)) as recording:
        assert recording.format == "AEDAT3"
        assert recording.sensor == (180, 240)
        assert rows_of(recording.read()) == slow_decode(data) == [row[:4] for row in rows if row[4]]
        assert recording.index().skipped == {
            "invalid events": sum(not row[4] for row in rows),
            "events of other sources": 40,
            "special events": 3,
            "frames": 1,
            "IMU samples": 2,
            "events of other kinds": 1,
        }
        assert "DAVIS240C" in recording.notes["source"]


def test_rows_are_counted_from_the_top_as_stored(tmp_path: Path) -> None:
    with open_recording(write(tmp_path, HEADER + polarity([(5, 3, 7, 1, 1)]))) as recording:
        assert rows_of(recording.read()) == [(5, 3, 7, 1)]


def test_overflows_are_added_to_the_time(tmp_path: Path) -> None:
    rows: list[Row] = [(2**31 - 1, 1, 1, 0, 1), (2**31 + 5, 2, 2, 1, 1), (3 * 2**31 + 9, 3, 3, 1, 1)]
    with open_recording(write(tmp_path, HEADER + b"".join(polarity([row]) for row in rows))) as recording:
        assert recording.read().t_us.tolist() == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("name", "sensor"),
    [("DVS128", (128, 128)), ("DAVIS346B", (260, 346)), ("DAVIS208", (192, 208)), ("DAVIS640H", (480, 640))],
)
def test_the_camera_in_the_header_gives_the_sensor(tmp_path: Path, name: str, sensor: tuple[int, int]) -> None:
    header = b"#!AER-DAT3.1\r\n#Source 0: File\r\n#Source 3: %b\r\n#!END-HEADER\r\n" % name.encode()
    with open_recording(write(tmp_path, header + SPECIAL + polarity([(1, 2, 3, 1, 1)], source=3))) as recording:
        assert recording.sensor == sensor


def test_an_unknown_camera_gets_the_smallest_sensor_that_fits_with_a_warning(tmp_path: Path) -> None:
    header = b"#!AER-DAT3.1\r\n#Source 1: Processor\r\n#!END-HEADER\r\n"
    path = write(tmp_path, header + polarity([(1, 200, 3, 1, 1)]))
    with open_recording(path) as recording, pytest.warns(FateWarning, match="sensor size"):
        assert recording.sensor == (180, 240)


def test_windows_of_a_long_file_equal_a_linear_scan(tmp_path: Path) -> None:
    rows = some_rows(30_000)
    data = b"".join(polarity(rows[i : i + 700]) + FRAME for i in range(0, 30_000, 700))
    data += polarity(some_rows(40_000, rows[-1][0], seed=1))  # one packet longer than several blocks
    with open_recording(write(tmp_path, HEADER + data)) as recording:
        whole = recording.read()
        assert rows_of(whole) == slow_decode(data)
        for start in range(0, recording.end_us, 61_000):
            assert recording.read(start, start + 5000) == whole.between(start, start + 5000)


@pytest.mark.parametrize("lost", [3, 8, 60])
def test_a_packet_that_is_cut_is_reported_and_the_rest_delivered(tmp_path: Path, lost: int) -> None:
    rows: list[Row] = [(t, 1, 1, 1, 1) for t in range(20)]
    path = write(tmp_path, HEADER + polarity(rows)[:-lost])
    missing = -(-lost // 8)
    with open_recording(path) as recording, pytest.warns(FateWarning, match=f"{missing} event"):
        assert len(recording.read()) == 20 - missing
    with open_recording(path, strict=True) as recording, pytest.raises(FormatError, match="cut short"):
        recording.read()


def test_a_frame_that_is_cut_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + polarity([(1, 1, 1, 1, 1)]) + FRAME[:-30])
    with open_recording(path) as recording, pytest.warns(FateWarning, match="30 bytes"):
        assert len(recording.read()) == 1


def test_compressed_frames_are_passed_over_and_compressed_events_refused(tmp_path: Path) -> None:
    frame = struct.pack("<Hhiiiiii", 0x8002, 1, 100, 4, 0, 13, 1, 1) + bytes(13)
    events = polarity([(1, 2, 3, 1, 1)])
    with open_recording(write(tmp_path, HEADER + frame + events)) as recording:
        assert len(recording.read()) == 1
        assert recording.index().skipped == {"frames": 1}
    packed = struct.pack("<Hhiiiiii", 0x8001, 1, 8, 4, 0, 13, 4, 4) + bytes(13)
    path = write(tmp_path, HEADER + events + packed)
    with open_recording(path) as recording, pytest.raises(FormatError, match=r"compressed.*RAW") as caught:
        recording.read()
    assert str(len(HEADER + events)) in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, 2, 3, 3),  # more events than room
        struct.pack("<hhiiiiii", 1, 1, 8, 4, 0, 3, 3, 4),  # more valid ones than events
        struct.pack("<hhiiiiii", 1, 1, 12, 4, 0, 3, 3, 3),  # polarity events of another size
        struct.pack("<hhiiiiii", 2, 1, 0, 4, 0, 3, 3, 3),  # events of no bytes
        struct.pack("<hhiiiiii", 2, 1, 8, 6, 0, 3, 3, 3),  # the time outside the event
        struct.pack("<hhiiiiii", 0, 1, 8, 4, -1, 3, 3, 3),
        struct.pack("<hhiiiiii", 0, 1, 8, 4, 0, 3, -3, -3),
    ],
)
def test_a_damaged_packet_is_refused_with_its_position(tmp_path: Path, head: bytes) -> None:
    before = HEADER + polarity([(1, 2, 3, 1, 1)])
    path = write(tmp_path, before + head + bytes(24))
    with open_recording(path) as recording, pytest.raises(FormatError, match=f"byte {len(before)}.*damaged") as caught:
        recording.read()
    assert str(caught.value).startswith(str(path))


def test_headers_that_do_not_end_and_other_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="END-HEADER"):
        open_recording(write(tmp_path, HEADER.partition(b"#!END")[0]))
    with pytest.raises(FormatError, match=r"3\.1"):
        open_recording(write(tmp_path, HEADER.replace(b"3.1", b"3.0")))
    with pytest.raises(FormatError, match=r"AER-DAT3\.1"):
        open_recording(write(tmp_path, b"something else"), format="aedat3")


def test_a_header_alone_is_a_recording_without_events(tmp_path: Path) -> None:
    with open_recording(write(tmp_path, HEADER)) as recording:
        assert recording.sensor == (180, 240)
        assert len(recording.read()) == 0


row = st.tuples(
    st.integers(0, 2**33), st.integers(0, 239), st.integers(0, 179), st.integers(0, 1), st.sampled_from([0, 1, 1, 1])
)
other_packets = st.sampled_from([FRAME, SPECIAL, IMU, EAR, polarity([(0, 9, 9, 1, 1)], source=7), b""])


@relaxed
@given(st.lists(row, max_size=40), st.lists(other_packets, max_size=8), st.lists(st.integers(0, 2000), max_size=6))
def test_bytes_in_any_pieces_give_what_a_slow_decoder_gives(
    rows: list[Row], between: list[bytes], cuts: list[int]
) -> None:
    data = polarity([])
    for i, each in enumerate(sorted(rows)):  # a packet for each or for several of the same overflow
        data += polarity([each]) + (between[i] if i < len(between) else b"")
    decoder = Aedat3Decoder((180, 240))
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [decoder.feed(data[a:b]) for a, b in pairwise(edges)]
    assert rows_of(Events.concatenate([Events.empty((180, 240)), *pieces])) == slow_decode(data)
    whole = Aedat3Decoder((180, 240))
    whole.feed(data)
    assert decoder.skipped() == whole.skipped()
    assert not decoder.missing()


@relaxed
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=6), st.integers(1, 900))
def test_damaged_files_give_a_sentence_or_valid_events(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(HEADER + SPECIAL + polarity(some_rows(30)) + FRAME + polarity(some_rows(20, 700)))
    for position, value in changes:
        data[position % len(data)] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(data[:length]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, out_of_bounds="drop", unsorted="sort") as recording:
                assert (np.diff(recording.read().t_us) >= 0).all()
        except FateError as error:
            assert str(error).startswith(str(path))
