"""AEDAT 4.0: packets found and unpacked by window, damage named by position, and the public recordings."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import aedat
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning, FormatError
from fate.formats.inivation import aedat4
from fate.formats.inivation.aedat4 import unpacked_bytes_at_most
from fate.formats.opening import open_recording

REAL = Path(__file__).resolve().parents[2] / ".." / "shared" / "realdata"
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
EVENT = np.dtype(
    {"names": ["t", "x", "y", "on"], "formats": ["<i8", "<i2", "<i2", "?"], "offsets": [0, 8, 10, 12], "itemsize": 16}
)
STREAMS = ((0, "EVTS"), (1, "FRME"), (2, "IMUS"), (3, "TRIG"))


def description(streams: tuple[tuple[int, str], ...] = STREAMS) -> bytes:
    nodes = "".join(
        f'<node name="{number}"><attr key="typeIdentifier" type="string">{kind}</attr><node name="info">'
        '<attr key="sizeX">320</attr><attr key="sizeY">240</attr><attr key="source">TestCamera</attr></node></node>'
        for number, kind in streams
    )
    return f'<dv version="2.0"><node name="outInfo">{nodes}</node></dv>'.encode()


def file_header(table: int = -1, compression: int = 0, text: bytes | None = None) -> bytes:
    text = description() if text is None else text
    body = struct.pack("<I4s2xHHHHHiiIq", 20, b"IOHE", 10, 20, 4, 12, 8, 10, compression, 12, table)
    body += struct.pack("<I", len(text)) + text + b"\0"
    return b"#!AER-DAT4.0\r\n" + struct.pack("<I", len(body)) + body


def event_content(events: np.ndarray) -> bytes:
    body = struct.pack("<I4sHHH2xiII", 16, b"EVTS", 6, 8, 4, 8, 4, len(events)) + events.tobytes()
    return struct.pack("<I", len(body)) + body


def packet(stream: int, content: bytes) -> bytes:
    return struct.pack("<ii", stream, len(content)) + content


def some_events(n: int, start: int = 1_600_000_000_000_000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    events = np.zeros(n, EVENT)
    events["t"] = start + np.cumsum(rng.integers(0, 9, n))
    events["x"], events["y"] = rng.integers(0, 320, n), rng.integers(0, 240, n)
    events["on"] = rng.integers(0, 2, n)
    return events


def some_file(
    events: np.ndarray, per_packet: int = 500, pack: Callable[[bytes], bytes] = bytes, compression: int = 0
) -> bytes:
    """Event packets with one other packet after each, and a table at the end."""
    packets = b""
    for i, first in enumerate(range(0, len(events), per_packet)):
        packets += packet(0, pack(event_content(events[first : first + per_packet])))
        packets += packet(1 + i % 3, b"passed over")
    size = len(file_header())
    return file_header(size + len(packets), compression) + packets + b"table of packets"


def write(folder: Path, data: bytes) -> Path:
    path = folder / "recording.aedat4"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["davis346_traffic", "tonic_sample"])
def test_the_public_recordings_have_the_published_counts_and_sums(name: str, tmp_path: Path, monkeypatch) -> None:
    path = REAL / "aedat4" / f"{name}.aedat4"
    if not path.exists():
        pytest.skip("the public recordings are not here")
    monkeypatch.setenv("FATE_CACHE_DIR", str(tmp_path))
    facts = {entry["file"]: entry for entry in json.loads((REAL / "manifest.json").read_text())}[f"aedat4/{path.name}"]
    with open_recording(path) as recording:
        events = recording.read()
        assert str(recording.sensor) == facts["geometry"].replace("x", "×")
        assert len(events) == facts["n"]
        assert (int(events.t_us[0]), int(events.t_us[-1])) == (facts["tmin"], facts["tmax"])
        assert int((events.t_us - events.t_us[0]).sum()) == facts["sum_t_rel"]
        assert int(events.x.sum(dtype=np.int64)) == facts["sum_x"]
        assert int(events.y.sum(dtype=np.int64)) == facts["sum_y"]
        assert int(events.p.sum(dtype=np.int64)) == facts["on"]
        assert recording.index().skipped["imu packets"] == {"davis346_traffic": 236, "tonic_sample": 59}[name]
        assert recording.index().tail.num_bytes == 0
        for start in np.random.default_rng(0).integers(events.t_us[0] - 9_000, events.t_us[-1], 30):
            assert recording.read(int(start), int(start) + 7_000) == events.between(int(start), int(start) + 7_000)


def test_events_are_those_the_decoder_package_finds_in_the_whole_file(tmp_path: Path) -> None:
    written = some_events(9_000)
    packets = b"".join(packet(0, event_content(written[i : i + 700])) for i in range(0, 9_000, 700))
    path = write(tmp_path, file_header() + packets)
    found = np.concatenate([each["events"] for each in aedat.Decoder(path)])
    with open_recording(path) as recording:
        events = recording.read()
    for column, name in ((events.t_us, "t"), (events.x, "x"), (events.y, "y"), (events.p, "on")):
        assert np.array_equal(column, found[name])
        assert np.array_equal(column, written[name])


def test_windows_equal_a_linear_scan_and_other_packets_are_counted(tmp_path: Path) -> None:
    written = some_events(30_000)
    with open_recording(write(tmp_path, some_file(written))) as recording:
        events = recording.read()
        assert np.array_equal(events.t_us, written["t"])
        assert recording.index().num_blocks > 4
        assert recording.index().skipped == {"frames": 20, "imu packets": 20, "trigger packets": 20}
        assert recording.notes["camera"] == "TestCamera"
        assert recording.sensor == (240, 320)
        for start in np.random.default_rng(1).integers(events.t_us[0] - 500, events.t_us[-1] + 500, 60):
            assert recording.read(int(start), int(start) + 1_500) == events.between(int(start), int(start) + 1_500)
        assert sum(len(piece) for piece in recording.chunks(5_000)) == 30_000


def test_lz4_and_zstandard_packets_are_unpacked(tmp_path: Path) -> None:
    lz4 = pytest.importorskip("lz4.frame")
    zstd = pytest.importorskip("backports.zstd")
    written = some_events(5_000)
    for compression, pack in ((1, lz4.compress), (3, zstd.compress), (4, zstd.compress)):
        with open_recording(write(tmp_path, some_file(written, 800, pack, compression))) as recording:
            assert np.array_equal(recording.read().x, written["x"])


def test_a_small_zstandard_packet_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd")
    content = event_content(some_events(3_000))
    assert len(content) <= unpacked_bytes_at_most(zstd.compress(content)) <= 128 << 10
    repeated = (len(content) << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    bomb = bytes.fromhex("28b52ffd0070") + ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    bomb += (((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0") * 20_000 + repeated
    assert unpacked_bytes_at_most(bomb) > 2 << 30
    path = write(tmp_path, file_header(compression=3) + packet(0, bomb))
    with open_recording(path) as recording, pytest.raises(FormatError, match="claims to unpack to"):
        recording.read()


def test_without_a_file_system_in_memory_a_temporary_file_serves(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delattr(aedat4.os, "memfd_create", raising=False)
    written = some_events(2_000)
    with open_recording(write(tmp_path, some_file(written))) as recording:
        assert np.array_equal(recording.read().y, written["y"])


def test_the_first_of_several_event_streams_is_read_and_the_other_counted(tmp_path: Path) -> None:
    one, other = some_events(100), some_events(100, seed=5)
    text = description(((4, "EVTS"), (2, "EVTS"), (7, "XYZW")))
    data = file_header(text=text) + packet(4, event_content(other)) + packet(2, event_content(one)) + packet(7, b"?")
    with open_recording(write(tmp_path, data)) as recording:
        assert np.array_equal(recording.read().x, one["x"])
        assert recording.index().skipped == {"packets of event stream 4": 1, "XYZW packets": 1}
        assert recording.notes["event stream"].startswith("2")


def test_a_packet_without_events_is_no_damage(tmp_path: Path) -> None:
    none = struct.pack("<II4sHHi", 16, 12, b"EVTS", 4, 4, 4)
    data = file_header() + packet(0, none) + packet(0, event_content(some_events(3)))
    with open_recording(write(tmp_path, data)) as recording:
        assert len(recording.read()) == 3
    with open_recording(write(tmp_path, file_header())) as recording:
        assert len(recording.read()) == 0


def test_a_damaged_packet_in_the_middle_is_named_by_its_position(tmp_path: Path) -> None:
    data = bytearray(some_file(some_events(2_000)))
    second = len(file_header()) + 2 * 8 + len(event_content(some_events(500))) + len(b"passed over")
    for change, value in ((12, 0xFF), (16, 0xFF), (38, 0x7F)):  # offset of the root, mark, number of events
        damaged = data.copy()
        damaged[second + change] = value
        says = f"packet at byte {second} .*cannot be unpacked"
        with open_recording(write(tmp_path, bytes(damaged))) as recording, pytest.raises(FormatError, match=says):
            recording.read()
    for change, value in ((0, 9), (7, 0x80), (6, 0x10)):  # stream, sign of the size, size
        damaged = data.copy()
        damaged[second + change] = value
        says = f"packet at byte {second} "
        with open_recording(write(tmp_path, bytes(damaged))) as recording, pytest.raises(FormatError, match=says):
            recording.read()


def test_cut_anywhere_whole_packets_are_delivered_and_the_rest_is_reported(tmp_path: Path) -> None:
    written = some_events(1_000)
    data = some_file(written, 100)
    for length in np.random.default_rng(2).integers(len(file_header()) + 1, len(data) - 20, 25):
        path = write(tmp_path, data[: int(length)])
        with open_recording(path) as recording, pytest.warns(FateWarning, match="promises are missing at the end"):
            events, tail = recording.read(), recording.index().tail
        with open_recording(path, strict=True) as recording, pytest.raises(FormatError, match="cut short"):
            recording.read()
        assert len(events) % 100 == 0
        assert np.array_equal(events.t_us, written["t"][: len(events)])
        assert tail.position + tail.num_bytes == length
    for length in range(14, len(file_header()), 7):
        with pytest.raises(FormatError, match="cut short"):
            open_recording(write(tmp_path, data[:length]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"<dv", "header is damaged"),
        (b"<!DOCTYPE dv [<!ENTITY a 'b'>]><dv/>", "entities"),
        (b"<dv/>", "no stream of events"),
        (b'<dv><node name="outInfo"><node name="x"/></node></dv>', "header is damaged"),
        (description(((1, "FRME"),)), "no stream of events"),
        (description(((1, "EVTS"), (1, "EVTS"))), "described twice"),
    ],
)
def test_headers_that_make_no_sense_are_refused(tmp_path: Path, text: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        open_recording(write(tmp_path, file_header(text=text)))
    with pytest.raises(FormatError, match="compression 7"):
        open_recording(write(tmp_path, file_header(compression=7)))
    with pytest.raises(FormatError, match="inside itself"):
        open_recording(write(tmp_path, file_header(table=5)))


@relaxed
@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), max_size=5), st.booleans(), st.booleans())
def test_damaged_files_give_a_sentence_or_valid_events(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], early: bool, packed: bool
) -> None:
    pack: Callable[[bytes], bytes] = bytes
    if packed:
        pack = pytest.importorskip("lz4.frame").compress
    data = bytearray(some_file(some_events(300), 60, pack, int(packed)))
    for position, value in changes:
        data[14 + position % 60 if early else 14 + position % (len(data) - 14)] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, out_of_bounds="drop", unsorted="sort", cache=False) as recording:
                assert (np.diff(recording.read().t_us) >= 0).all()
        except FateError as error:
            assert str(path) in str(error)


@pytest.mark.filterwarnings("ignore::fate.errors.FateWarning")
def test_a_damaged_packet_prints_nothing_but_its_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = some_file(some_events(200), 100)
    random = np.random.default_rng(3)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for at in random.integers(len(file_header()) + 8, len(file_header()) + 60, 3):
            damaged[int(at)] = int(random.integers(256))
        try:
            with open_recording(write(tmp_path, bytes(damaged)), out_of_bounds="drop", unsorted="sort") as recording:
                recording.read()
        except FormatError:
            refused += 1
    assert refused > 10
    assert capfd.readouterr().err == ""
