"""AEDAT 2.0: address layouts, time wraps, headers, and the public DVS128 recording."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fate.cli.main import app
from fate.errors import FateError, FateWarning, FormatError
from fate.events.events import Events
from fate.formats.inivation.aedat2 import Aedat2Decoder, parse_aedat2_header
from fate.formats.opening import open_recording

REAL = Path(__file__).resolve().parents[2] / ".." / "shared" / "realdata"
VERSION_LINE = b"#!AER-DAT2.0\r\n"
DAVIS346 = VERSION_LINE + b"# AEChip: eu.seebetter.ini.chips.davis.Davis346B\r\n#End Of ASCII Header\r\n"
DVS128 = VERSION_LINE + b"# AEChip: ch.unizh.ini.jaer.chip.retina.DVS128\r\n"
relaxed = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def records(addresses: object, times: object) -> bytes:
    """Address and time pairs as the file has them."""
    pairs = np.stack([np.asarray(addresses, np.int64), np.asarray(times, np.int64)], 1) & 0xFFFFFFFF
    return pairs.astype(">u4").tobytes()


def davis(x: int, y: int, on: int) -> int:
    return y << 22 | x << 12 | on << 11


def dvs128(x: int, y: int, on: int) -> int:
    return y << 8 | x << 1 | (1 - on)


def write(folder: Path, data: bytes) -> Path:
    path = folder / "recording.aedat"
    path.write_bytes(data)
    return path


def test_the_public_dvs128_recording_has_the_published_counts_and_sums(tmp_path: Path, monkeypatch) -> None:
    path = REAL / "aedat2" / "jaer_dvs128.aedat"
    if not path.exists():
        pytest.skip("the public recordings are not here")
    monkeypatch.setenv("FATE_CACHE_DIR", str(tmp_path))
    facts = {entry["file"]: entry for entry in json.loads((REAL / "manifest.json").read_text())}[f"aedat2/{path.name}"]
    with open_recording(path) as recording:
        events = recording.read()
        assert recording.sensor == (128, 128)
        assert len(events) == facts["n"] == 489_834
        assert (int(events.t_us[0]), int(events.t_us[-1])) == (facts["tmin"], facts["tmax"])
        assert int((events.t_us - events.t_us[0]).sum()) == facts["sum_t_rel"]
        # the published sums are of the stored addresses, whose axes are both in reverse
        assert int(events.x.sum(dtype=np.int64)) == 127 * len(events) - facts["sum_x"]
        assert int(events.y.sum(dtype=np.int64)) == 127 * len(events) - facts["sum_y"]
        assert int(events.p.sum(dtype=np.int64)) == facts["on"]
        for start in np.random.default_rng(0).integers(events.t_us[0] - 10_000, events.t_us[-1], 30):
            assert recording.read(int(start), int(start) + 70_000) == events.between(int(start), int(start) + 70_000)


def test_davis_addresses_give_events_and_count_frames_imu_and_triggers(tmp_path: Path) -> None:
    addresses = [
        davis(345, 259, 1),
        1 << 31 | davis(5, 5, 0),
        1 << 31 | 3 << 10,
        davis(9, 9, 1) | 1 << 10,
        davis(0, 3, 0),
    ]
    with open_recording(write(tmp_path, DAVIS346 + records(addresses, [1, 2, 3, 4, 5]))) as recording:
        events = recording.read()
        assert recording.sensor == (260, 346)
        assert recording.index().skipped == {"frame samples": 1, "IMU samples": 1, "triggers": 1}
    assert events.x.tolist() == [0, 345]
    assert events.y.tolist() == [0, 256]
    assert events.p.tolist() == [1, 0]
    assert events.t_us.tolist() == [1, 5]


@pytest.mark.parametrize(
    ("chip", "address", "sensor", "expected"),
    [
        ("ch.unizh.ini.jaer.chip.retina.DVS128", dvs128(3, 5, 1), (128, 128), (124, 122, 1)),
        ("ch.unizh.ini.jaer.chip.retina.Tmpdiff128", dvs128(3, 5, 0), (128, 128), (124, 122, 0)),
        ("eu.seebetter.ini.chips.davis.Davis128", davis(3, 5, 1), (128, 128), (124, 122, 1)),
        ("eu.seebetter.ini.chips.davis.Davis208PixelParade", davis(3, 5, 1), (192, 208), (204, 186, 0)),
        ("eu.seebetter.ini.chips.sbret10.SBret10", davis(3, 5, 1), (180, 240), (236, 174, 1)),
        ("eu.seebetter.ini.chips.davis.DAVIS240C", davis(3, 5, 0), (180, 240), (236, 174, 0)),
        ("eu.seebetter.ini.chips.davis.Davis346B", davis(3, 5, 1), (260, 346), (342, 254, 1)),
        ("eu.seebetter.ini.chips.davis.Davis640", davis(3, 5, 1), (480, 640), (636, 474, 1)),
        ("ch.unizh.ini.jaer.chip.retina.DVXplorer", davis(3, 5, 1), (480, 640), (3, 5, 1)),
    ],
)
def test_each_chip_is_turned_upright_as_jaer_shows_it(
    tmp_path: Path, chip: str, address: int, sensor: tuple[int, int], expected: tuple[int, int, int]
) -> None:
    path = write(tmp_path, VERSION_LINE + f"# AEChip: {chip}\r\n".encode() + records([address], [5]))
    with open_recording(path) as recording:
        events = recording.read()
        assert recording.sensor == sensor
        assert ("reversed" in recording.notes["orientation"]) == ("DVXplorer" not in chip)
    assert (int(events.x[0]), int(events.y[0]), int(events.p[0])) == expected


def test_info_says_how_the_picture_was_turned(tmp_path: Path) -> None:
    path = write(tmp_path, DVS128 + records([dvs128(3, 5, 1)], [5]))
    shown = CliRunner().invoke(app, ["info", str(path)], catch_exceptions=False).output
    assert "orientation" in shown
    assert "rows from the bottom" in shown


def test_a_sensor_that_is_passed_does_not_move_the_picture_of_a_known_chip(tmp_path: Path) -> None:
    path = write(tmp_path, DVS128 + records([dvs128(3, 5, 1)], [5]))
    with open_recording(path, sensor=(480, 640)) as recording:
        assert (recording.read().x.tolist(), recording.read().y.tolist()) == ([124], [122])


def test_an_event_outside_the_chip_is_reported_with_its_stored_coordinates(tmp_path: Path) -> None:
    path = write(tmp_path, DAVIS346 + records([davis(1, 1, 1), davis(400, 7, 1)], [5, 6]))
    with open_recording(path) as recording, pytest.raises(FormatError, match="x = 400"):
        recording.read()


def test_a_davis_of_unknown_size_asks_for_the_sensor(tmp_path: Path) -> None:
    path = write(tmp_path, VERSION_LINE + b"# AEChip: eu.DavisNext\r\n" + records([davis(1, 2, 1)], [5]))
    with pytest.raises(FormatError, match=r"DavisNext.*sensor="):
        open_recording(path)
    with open_recording(path, sensor=(100, 200)) as recording:
        assert (recording.read().x.tolist(), recording.read().y.tolist()) == ([198], [97])


@pytest.mark.parametrize(
    ("name", "share"), [("alex_walking_again", 0.8), ("alex_walking_for_10secs", 0.5)], ids=["clean", "noisy"]
)
def test_walkers_stand_upright_in_their_boxes(name: str, share: float) -> None:
    """Most events lie in the box of the upright walker (x, y, w, h in pixels, t in µs from the first event), more than
    in the mirrored box, and the head's quarter of the box has more events than the feet's."""
    folder = REAL / "dvs128"
    if not folder.is_dir():
        pytest.skip("the recordings of walkers are not on this machine")
    total = inside = mirrored = head = feet = 0
    with open_recording(folder / f"{name}.aedat", cache=False) as recording:
        for box in np.load(folder / f"{name}_upright_bbox.npy"):
            middle = recording.start_us + int(box["t"])
            events = recording.read(middle - 50_000, middle + 50_000)
            height = (events.y - box["y"]) / box["h"]  # 0 at the top of the box, 1 at its bottom
            in_rows = (height >= 0) & (height < 1)
            in_box = in_rows & (events.x >= box["x"]) & (events.x < box["x"] + box["w"])
            left = 128 - box["x"] - box["w"]
            total += len(events)
            inside += int(in_box.sum())
            mirrored += int((in_rows & (events.x >= left) & (events.x < left + box["w"])).sum())
            head += int((in_box & (height < 0.25)).sum())
            feet += int((in_box & (height >= 0.75)).sum())
    assert inside > share * total
    assert inside > 1.2 * mirrored
    assert head > 1.3 * feet


def test_dvs128_special_events_are_skipped_and_counted(tmp_path: Path) -> None:
    data = DVS128 + records([dvs128(127, 1, 1), 1 << 15, dvs128(0, 127, 0)], [10, 11, 12])
    with open_recording(write(tmp_path, data)) as recording:
        events = recording.read()
        assert recording.index().skipped == {"triggers": 1}
    assert (events.x.tolist(), events.y.tolist(), events.p.tolist()) == ([0, 127], [126, 0], [1, 0])


def test_time_passes_the_sign_bit_smoothly_and_wraps_after_32_bits(tmp_path: Path) -> None:
    times = [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 5, 7]
    data = DVS128 + records([dvs128(1, 1, 1)] * 5, times)
    with open_recording(write(tmp_path, data)) as recording:
        assert recording.read().t_us.tolist() == [*times[:3], (1 << 32) + 5, (1 << 32) + 7]
        assert recording.index().skipped == {"time wraps": 1}


def test_records_that_begin_with_a_hash_are_not_taken_for_header_lines() -> None:
    data = records([0x23000000, 0x0A0A0A0A, 0x23414141], [0x0D0A2323, 7, 0x410A4141])
    assert parse_aedat2_header(VERSION_LINE + data)[2] == len(VERSION_LINE)
    assert parse_aedat2_header(DAVIS346 + b"# looks like a line\r\n")[2] == len(DAVIS346)


def test_a_header_without_a_chip_means_dvs128_only_when_the_addresses_allow(tmp_path: Path) -> None:
    with open_recording(write(tmp_path, VERSION_LINE + records([dvs128(3, 4, 1)], [5]))) as recording:
        assert recording.sensor == (128, 128)
    unclear = write(tmp_path, VERSION_LINE + records([davis(3, 4, 1)], [5]))
    with pytest.raises(FormatError, match=r"unclear.*sensor"):
        open_recording(unclear)
    with open_recording(unclear, sensor=(180, 240)) as recording:
        assert (recording.read().x.tolist(), recording.read().y.tolist()) == ([236], [175])


def test_an_unknown_chip_and_other_versions_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"CochleaAMS.*sensor"):
        open_recording(write(tmp_path, VERSION_LINE + b"# AEChip: x.CochleaAMS\r\n" + records([1], [1])))
    with pytest.raises(FormatError, match=r"AEDAT 1\.0"):
        open_recording(write(tmp_path, b"#!AER-DAT1.0\r\n" + bytes(12)))


def test_a_cut_record_is_reported_and_the_rest_delivered(tmp_path: Path) -> None:
    path = write(tmp_path, DVS128 + records([dvs128(1, 1, 1)] * 3, [1, 2, 3])[:-3])
    with open_recording(path) as recording, pytest.warns(FateWarning, match="last 5 bytes"):
        assert len(recording.read()) == 2
    with open_recording(path, strict=True) as recording, pytest.raises(FormatError, match="cut short"):
        recording.read()


def test_a_header_alone_is_a_recording_without_events(tmp_path: Path) -> None:
    with open_recording(write(tmp_path, DVS128)) as recording:
        assert len(recording.read()) == 0


@relaxed
@given(
    st.lists(st.tuples(st.integers(0, 345), st.integers(0, 259), st.integers(0, 1), st.integers(0, 40)), max_size=80),
    st.lists(st.integers(0, 700), max_size=6),
)
def test_bytes_in_any_pieces_give_the_same_events(rows: list[tuple[int, ...]], cuts: list[int]) -> None:
    times = np.cumsum([row[3] for row in rows]) + 0xFFFFFF00  # crosses the wrap in most cases
    data = records([davis(*row[:3]) for row in rows], times) if rows else b""
    whole = Aedat2Decoder((260, 346)).feed(data)
    assert whole.t_us.tolist() == times.tolist()[: len(rows)]
    assert whole.x.tolist() == [345 - row[0] for row in rows]
    assert whole.y.tolist() == [259 - row[1] for row in rows]
    decoder = Aedat2Decoder((260, 346))
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [decoder.feed(data[a:b]) for a, b in pairwise(edges)]
    assert Events.concatenate([Events.empty((260, 346)), *pieces]) == whole


@relaxed
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6), st.integers(0, 600))
def test_damaged_files_give_a_sentence_or_valid_events(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], length: int
) -> None:
    rng = np.random.default_rng(1)
    data = bytearray(DAVIS346 + records(rng.integers(0, 1 << 31, 60), np.arange(60)))
    for position, value in changes:
        data[position % len(data)] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(data[: max(1, length)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, format="aedat2", out_of_bounds="drop", unsorted="sort") as recording:
                events = recording.read()
                assert (np.diff(events.t_us) >= 0).all()
        except FateError as error:
            assert str(path) in str(error)
