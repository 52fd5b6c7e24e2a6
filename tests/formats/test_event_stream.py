"""Event Stream: the two byte layouts, records of different lengths, and the public recording."""

from __future__ import annotations

import json
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
from fate.formats.opening import open_recording
from fate.formats.others.event_stream import EventStreamDecoder

REAL = Path(__file__).resolve().parents[2] / ".." / "shared" / "realdata"
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
row = st.tuples(st.integers(0, 700), st.integers(0, 639), st.integers(0, 479), st.integers(0, 1))
rows = st.lists(row, max_size=60)


def header(kind: int, width: int = 640, height: int = 480, version: bytes = b"\2\0\0") -> bytes:
    return b"Event Stream" + version + bytes([kind]) + struct.pack("<HH", width, height)


def dvs_bytes(events: list[tuple[int, int, int, int]]) -> bytes:
    """(µs since the one before, x, y, polarity) as a DVS stream."""
    out = bytearray()
    for step, x, y, p in events:
        out += b"\xff" * (step // 127) + bytes([step % 127 << 1 | p]) + struct.pack("<HH", x, y)
    return bytes(out)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "recording.es"
    path.write_bytes(data)
    return path


def test_the_public_recording_has_the_published_counts_and_sums(tmp_path: Path, monkeypatch) -> None:
    path = REAL / "es" / "dvs.es"
    if not path.exists():
        pytest.skip("the public recordings are not here")
    monkeypatch.setenv("FATE_CACHE_DIR", str(tmp_path))
    facts = {entry["file"]: entry for entry in json.loads((REAL / "manifest.json").read_text())}["es/dvs.es"]
    with open_recording(path) as recording:
        events = recording.read()
        assert recording.sensor == (240, 320)
        assert len(events) == facts["n"] == 473_225
        assert (int(events.t_us[0]), int(events.t_us[-1])) == (facts["tmin"], facts["tmax"])
        assert int((events.t_us - events.t_us[0]).sum()) == facts["sum_t_rel"]
        assert int(events.x.sum(dtype=np.int64)) == facts["sum_x"]
        # the published sum is of the stored rows, which count from the bottom
        assert int(events.y.sum(dtype=np.int64)) == 239 * len(events) - facts["sum_y"]
        assert int(events.p.sum(dtype=np.int64)) == facts["on"]
        for start in np.random.default_rng(0).integers(-5000, 999_000, 30):
            assert recording.read(int(start), int(start) + 9_000) == events.between(int(start), int(start) + 9_000)


@relaxed
@given(rows, st.lists(st.integers(0, 400), max_size=6))
def test_every_event_comes_back_whatever_the_pieces(events: list[tuple[int, int, int, int]], cuts: list[int]) -> None:
    data = dvs_bytes(events)
    whole = EventStreamDecoder((480, 640)).feed(data)
    assert whole.t_us.tolist() == np.cumsum([row[0] for row in events]).tolist()
    assert whole.x.tolist() == [row[1] for row in events]
    assert whole.y.tolist() == [479 - row[2] for row in events]
    assert whole.p.tolist() == [row[3] for row in events]
    decoder = EventStreamDecoder((480, 640))
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [decoder.feed(data[a:b]) for a, b in pairwise(edges)]
    assert Events.concatenate([Events.empty((480, 640)), *pieces]) == whole
    assert decoder.pending_bytes == 0


def test_atis_streams_give_change_events_and_count_exposure_measurements(tmp_path: Path) -> None:
    body = bytes([0b111111_11, 0b111111_00, 5 << 2 | 0b10]) + struct.pack("<HH", 303, 239)  # 189 µs, reset, ON
    body += bytes([1 << 2 | 0b01]) + struct.pack("<HH", 1, 1) + bytes([2 << 2]) + struct.pack("<HH", 4, 6)
    with open_recording(write(tmp_path, header(2, 304, 240) + body)) as recording:
        events = recording.read()
        assert recording.index().skipped == {"reset bytes": 1, "exposure measurements": 1}
    assert events.t_us.tolist() == [194, 197]
    assert (events.x.tolist(), events.y.tolist(), events.p.tolist()) == ([303, 4], [0, 233], [1, 0])


def test_rows_count_from_the_bottom_of_the_sensor_in_the_header(tmp_path: Path) -> None:
    path = write(tmp_path, header(1) + dvs_bytes([(1, 2, 0, 1), (1, 2, 479, 1)]))
    for sensor in (None, (480, 640), (720, 1280)):
        with open_recording(path, sensor=sensor) as recording:
            assert recording.read().y.tolist() == [479, 0]
            assert "bottom" in recording.notes["orientation"]


def test_a_row_outside_the_sensor_is_reported_as_stored(tmp_path: Path) -> None:
    path = write(tmp_path, header(1) + dvs_bytes([(1, 2, 500, 1)]))
    with open_recording(path) as recording, pytest.raises(FormatError, match="y = 500"):
        recording.read()


def test_reset_bytes_are_skipped_and_counted() -> None:
    decoder = EventStreamDecoder((480, 640))
    events = decoder.feed(b"\xfe" * 5 + dvs_bytes([(3, 1, 2, 1)]))
    assert events.t_us.tolist() == [3]
    assert decoder.skipped() == {"reset bytes": 5}


def test_windows_equal_a_linear_scan(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    columns = rng.integers(0, (30, 640, 480, 2), (40_000, 4)).tolist()
    with open_recording(write(tmp_path, header(1) + dvs_bytes(columns))) as recording:
        assert recording.index().num_blocks > 2
        events = recording.read()
        assert events.t_us.tolist() == np.cumsum([row[0] for row in columns]).tolist()
        for start in rng.integers(-100, recording.end_us, 40):
            assert recording.read(int(start), int(start) + 500) == events.between(int(start), int(start) + 500)


def test_a_cut_event_is_reported_and_the_rest_delivered(tmp_path: Path) -> None:
    path = write(tmp_path, header(1) + dvs_bytes([(1, 2, 3, 1), (300, 4, 5, 0)])[:-2])
    with open_recording(path) as recording, pytest.warns(FateWarning, match="last 3 bytes"):
        assert recording.read().t_us.tolist() == [1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (header(0), r"type 0 \(generic\)"),
        (header(4), r"type 4 \(color\)"),
        (header(9), r"type 9 \(unknown\)"),
        (header(1, version=b"\1\2\3"), r"Event Stream 1\.2\.3"),
        (header(1)[:17], "cut short"),
        (header(1, 0, 480), "height 480, width 0"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        open_recording(write(tmp_path, data))


def test_a_header_alone_is_a_recording_without_events(tmp_path: Path) -> None:
    with open_recording(write(tmp_path, header(1))) as recording:
        assert len(recording.read()) == 0
        assert recording.sensor == (480, 640)


@relaxed
@given(rows, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6), st.integers(1, 400))
def test_damaged_files_give_a_sentence_or_valid_events(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[int, int, int, int]],
    changes: list[tuple[int, int]],
    length: int,
) -> None:
    data = bytearray(header(1) + dvs_bytes(events))
    for position, value in changes:
        data[position % len(data)] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(data[:length]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, format="es", out_of_bounds="drop") as recording:
                assert (np.diff(recording.read().t_us) >= 0).all()
        except FateError as error:
            assert str(path) in str(error)
