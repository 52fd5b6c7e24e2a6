"""DAT, EVT2, EVT2.1 and EVT3 against slow decoders written straight from the format's description."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fate import Events, FateError, FormatError, decoder_for, open_recording, write_events
from fate.formats.decoder import Decoder
from fate.formats.prophesee.dat import DatDecoder
from fate.formats.prophesee.raw import Evt2Decoder, Evt3Decoder, Evt21Decoder
from tests.conftest import event_lists, make_events

Row = tuple[int, int, int, int]


def read_evt2(words: list[int]) -> list[Row]:
    """(t, x, y, p) of EVT2 words, one at a time."""
    rows, base, wraps = [], None, 0
    for word in words:
        kind = word >> 28
        if kind == 8:
            new = ((word & 0xFFFFFFF) << 6) + wraps * 2**34
            if base is not None and base - new >= 2**34 - 64 - 10_000:
                wraps += 1
                new += 2**34
            base = new
        elif kind <= 1 and base is not None:
            rows.append((base + (word >> 22 & 63), word >> 11 & 2047, word & 2047, kind))
    return rows


def read_evt21(words: list[int]) -> list[Row]:
    """(t, x, y, p) of EVT2.1 words."""
    rows, base, wraps = [], None, 0
    for word in words:
        kind, high = word >> 60, word >> 32 & 0xFFFFFFF
        if kind == 8:
            new = (high << 6) + wraps * 2**34
            if base is not None and base - new >= 2**34 - 64 - 10_000:
                wraps += 1
                new += 2**34
            base = new
        elif kind <= 1 and base is not None:
            for i in range(32):
                if word >> i & 1:
                    rows.append((base + (high >> 22), (high >> 11 & 2047) + i, high & 2047, kind))
    return rows


def read_evt3(words: list[int]) -> list[Row]:
    """(t, x, y, p) of EVT3 words."""
    rows: list[Row] = []
    high: int | None = None
    y: int | None = None
    base: int | None = None
    wraps = low = polarity = 0
    for word in words:
        kind, value = word >> 12, word & 0xFFF
        if high is None:
            if kind == 8:
                high = value
            continue
        if kind == 8:
            wraps += high - value >= 2048
            low = low if value == high else 0
            high = value
        elif kind == 6:
            low = value
        elif kind == 0:
            y = value & 2047
        elif kind == 1:
            y = None
        elif kind == 3:
            base, polarity = value & 2047, value >> 11
        now = wraps * 2**24 + high * 4096 + low
        if kind == 2 and y is not None:
            rows.append((now, value & 2047, y, value >> 11))
        elif kind in (4, 5):
            bits = 12 if kind == 4 else 8
            if y is None or base is None:
                continue
            rows += [(now, base + i, y, polarity) for i in range(bits) if value >> i & 1]
            base = min(base + bits, 0xFFF0)
    return rows


def rows_of(decoder: Decoder, data: bytes) -> list[Row]:
    columns, _ = decoder.decode(data)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def biased(kinds: list[int], bits: int, payload: int) -> st.SearchStrategy[int]:
    """Words whose type is mostly one of ``kinds``."""
    kind = st.sampled_from(kinds) | st.integers(0, 15)
    return st.tuples(kind, st.integers(0, 2**payload - 1)).map(lambda pair: pair[0] << (bits - 4) | pair[1])


@given(st.lists(biased([8, 0, 1, 0, 1], 32, 28), max_size=200))
def test_evt2_decodes_any_words_as_described(words: list[int]) -> None:
    assert rows_of(Evt2Decoder(), np.array(words, "<u4").tobytes()) == read_evt2(words)


@given(st.lists(biased([8, 0, 1], 64, 60), max_size=100), st.booleans())
def test_evt21_decodes_any_words_as_described_in_both_byte_orders(words: list[int], legacy: bool) -> None:
    data = np.array(words, "<u8").view("<u4").reshape(-1, 2)
    data = data[:, ::-1] if legacy else data
    assert rows_of(Evt21Decoder(legacy=legacy), data.tobytes()) == read_evt21(words)


@given(st.lists(biased([8, 6, 0, 2, 2, 3, 4, 5], 16, 12), max_size=300))
def test_evt3_decodes_any_words_as_described(words: list[int]) -> None:
    assert rows_of(Evt3Decoder(), np.array(words, "<u2").tobytes()) == read_evt3(words)


@given(st.lists(st.integers(0, 0xFFF), min_size=1, max_size=40), st.data())
def test_evt3_time_follows_wraps_and_keeps_low_only_while_high_stays(highs: list[int], data: st.DataObject) -> None:
    words = [0x0005]
    for high in sorted(highs) + highs:
        words += [0x8000 | high]
        if data.draw(st.booleans()):
            words += [0x6000 | data.draw(st.integers(0, 0xFFF))]
        words += [0x0005, 0x2007]
    assert rows_of(Evt3Decoder(), np.array(words, "<u2").tobytes()) == read_evt3(words)


def test_evt3_time_wraps_after_16_8_seconds() -> None:
    words = [0x8FFF, 0x6001, 0x0005, 0x2001, 0x8000, 0x6002, 0x2001]
    rows = rows_of(Evt3Decoder(), np.array(words, "<u2").tobytes())
    assert [row[0] for row in rows] == [0xFFF * 4096 + 1, 2**24 + 2]


def test_evt3_counts_what_it_skips() -> None:
    decoder = Evt3Decoder(sensor=(480, 640))
    words = [0x2001, 0x8001, 0x2001, 0x4FFF, 0xA001, 0x7000, 0xE000, 0xF000, 0x9999, 0xB000, 0x0001, 0x2002]
    assert len(decoder.feed(np.array(words, "<u2").tobytes())) == 1
    assert decoder.skipped() == {
        "before the first time": 1, "without a row or base": 2, "triggers": 1, "vendor words": 3, "unknown words": 2,
    }  # fmt: skip


def test_dat_decodes_bit_fields_and_four_bit_polarity() -> None:
    records = np.array([[5, 0], [6, (1 << 28) | (0x3FFF << 14)], [7, 0xF0000000 | 0x3FFF]], "<u4")
    assert rows_of(DatDecoder(), records.tobytes()) == [(5, 0, 0, 0), (6, 0, 0x3FFF, 1), (7, 0x3FFF, 0, 1)]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_dat_takes_a_step_back_by_half_the_range_as_a_wrap(times: list[int]) -> None:
    expected, offset = [], 0
    for i, t in enumerate(times):
        if i and times[i - 1] - t > 2**31:
            offset += 2**32
        expected.append(t + offset)
    data = np.array([[t, 0] for t in times], "<u4").tobytes()
    assert [row[0] for row in rows_of(DatDecoder(), data)] == expected


@pytest.mark.parametrize("name", ["dat", "evt2", "evt21", "evt3"])
@given(event_lists(), st.lists(st.integers(0, 2**20), max_size=8))
def test_feeding_pieces_gives_the_same_events_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, name: str, events: Events, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("feed") / "e.raw"
    write_events(path, events, format=name)
    data = path.read_bytes()
    data = data[data.index(b"\x0c\x08") + 2 :] if name == "dat" else data[data.index(b"% end\n") + 6 :]
    decoder = decoder_for(name, events.sensor)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [decoder.feed(data[a:b]) for a, b in pairwise(edges)]
    assert Events.concatenate([Events.empty(events.sensor), *pieces]) == events
    assert decoder.pending_bytes == 0


@pytest.mark.parametrize("name", ["dat", "evt2", "evt21", "evt3"])
@given(event_lists(max_start=2**31, max_gap=2**26))
def test_writing_and_reading_gives_the_same_events(
    tmp_path_factory: pytest.TempPathFactory, name: str, events: Events
) -> None:
    path = tmp_path_factory.mktemp("trip") / ("e.dat" if name == "dat" else "e.raw")
    write_events(path, events, format=name)
    with open_recording(path) as recording:
        assert recording.sensor == events.sensor
        assert recording.read() == events


@pytest.mark.parametrize(("name", "limit"), [("dat", 2**32), ("evt2", 2**46), ("evt21", 2**46), ("evt3", 2**36)])
def test_times_a_format_cannot_hold_are_refused_and_leave_no_file(tmp_path: Path, name: str, limit: int) -> None:
    path = tmp_path / "e.raw"
    late = Events([limit], [0], [0], [0], (10, 10))
    with pytest.raises(FateError, match=f"{limit} µs was given; pass zero_time=True"):
        write_events(path, late, format=name)
    with pytest.raises(FateError, match="-1 µs was given"):
        write_events(path, Events([-1], [0], [0], [0], (10, 10)), format=name)
    assert list(tmp_path.iterdir()) == []
    last = Events([limit - 1], [0], [0], [0], (10, 10))
    write_events(path, last, format=name)
    assert open_recording(path).read() == last


@pytest.mark.parametrize(("name", "largest"), [("dat", 2**14), ("evt2", 2048), ("evt21", 2048), ("evt3", 2048)])
def test_sensors_a_format_cannot_address_are_refused(tmp_path: Path, name: str, largest: int) -> None:
    events = Events([0], [largest - 1], [largest - 1], [1], (largest, largest))
    write_events(tmp_path / "fits.raw", events, format=name)
    with pytest.raises(FateError, match="addresses pixels up to"):
        write_events(tmp_path / "e.raw", Events.empty((largest + 1, 10)), format=name)


def test_evt3_writes_vectors_where_they_are_shorter(tmp_path: Path) -> None:
    run = Events(np.zeros(32, int), np.arange(32, 64), np.full(32, 3), np.ones(32, int), (480, 640))
    write_events(tmp_path / "e.raw", run)
    data = (tmp_path / "e.raw").read_bytes()
    words: NDArray[np.uint16] = np.frombuffer(data[data.index(b"% end\n") + 6 :], "<u2")
    assert (words >> 12).tolist() == [8, 6, 0, 3, 4, 4, 5]


def test_a_vector_past_the_sensor_edge_is_out_of_bounds(tmp_path: Path) -> None:
    words = np.array([0x8001, 0x6000, 0x0001, 0x3000 | 630, 0x4FFF], "<u2")
    path = tmp_path / "e.raw"
    path.write_bytes(b"% evt 3.0\n% geometry 640x480\n% end\n" + words.tobytes())
    with pytest.raises(FormatError, match="2 of 12 events outside 640×480 .first: index 10, x = 640"):
        open_recording(path).read()
    with pytest.warns(UserWarning, match="2 events outside"):
        assert len(open_recording(path, out_of_bounds="drop").read()) == 10


def test_the_legacy_byte_order_of_evt21_follows_the_header(tmp_path: Path) -> None:
    events = make_events(300)
    write_events(tmp_path / "e.raw", events, format="evt21")
    header, _, body = (tmp_path / "e.raw").read_bytes().partition(b"% end\n")
    swapped = np.frombuffer(body, "<u4").reshape(-1, 2)[:, ::-1].tobytes()
    for line in (b"% endianness legacy\n", b""):
        other = header if line else header.replace(b"width=64", b"width=64;endianness=legacy")
        (tmp_path / "l.raw").write_bytes(other + line + b"% end\n" + swapped)
        assert open_recording(tmp_path / "l.raw").read() == events


def test_a_board_number_stands_in_for_size_and_byte_order(tmp_path: Path) -> None:
    events = make_events(300, sensor=(480, 640))
    write_events(tmp_path / "e.raw", events, format="evt21")
    body = (tmp_path / "e.raw").read_bytes().partition(b"% end\n")[2]
    swapped = np.frombuffer(body, "<u4").reshape(-1, 2)[:, ::-1].tobytes()
    for number, maker, content, sensor in (
        (21, b"", swapped, (480, 640)),
        (49, b"% integrator_name Prophesee\n", swapped, (720, 1280)),
        (64, b"", body, None),
        (21, b"% integrator_name Somebody\n", body, None),
    ):
        header = b"% system_ID " + str(number).encode() + b"\n" + maker + b"% evt 2.1\n"
        (tmp_path / "l.raw").write_bytes(header + content)
        with open_recording(tmp_path / "l.raw", sensor=None if sensor else (480, 640)) as recording:
            assert recording.sensor == (sensor or (480, 640))
            assert recording.read().t_us.tolist() == events.t_us.tolist()


@pytest.mark.parametrize("name", ["e.raw", "e.dat"])
def test_another_size_than_that_of_the_header_is_refused(tmp_path: Path, name: str) -> None:
    events = make_events(10, (48, 64))
    write_events(tmp_path / name, events)
    with open_recording(tmp_path / name, sensor=(48, 64)) as recording:
        assert recording.read() == events
    for other in ((48, 63), (480, 640)):
        with pytest.raises(FormatError, match=rf"{name}.*64×48.*{other[1]}×{other[0]}.*sensor=\(48, 64\)"):
            open_recording(tmp_path / name, sensor=other)


def test_a_stream_goes_on_after_a_refused_piece() -> None:
    decoder = decoder_for("dat", (10, 10))
    good, outside, back = ([5, 0], [6, 1 << 20], [1, 0])
    data = {
        name: np.array([row], "<u4").tobytes() for name, row in (("good", good), ("outside", outside), ("back", back))
    }
    assert len(decoder.feed(data["good"])) == 1
    for name in ("outside", "back"):
        with pytest.raises(FormatError, match="stream: "):
            decoder.feed(data[name])
    assert len(decoder.feed(data["good"])) == 1


def test_streams_refuse_what_files_refuse() -> None:
    with pytest.raises(FormatError, match="polarity"):
        decoder_for("csv", (10, 10)).feed(b"1,2,3,7\n")
    with pytest.raises(FormatError, match="no CSV record ends"):
        decoder_for("csv", (10, 10)).feed(b"1" * (5 << 20))
    with pytest.raises(FateError, match="out_of_bounds='dorp'"):
        decoder_for("evt3", (10, 10), out_of_bounds="dorp")  # type: ignore[arg-type]
    with pytest.raises(FateError, match="takes no legacy"):
        decoder_for("evt3", (10, 10), legacy=True)
    assert decoder_for("evt21", (10, 10), legacy=True).format == "EVT2.1"
