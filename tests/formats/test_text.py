"""CSV and TXT: numbers read exactly, dialects recognised, every fault with its line."""

from __future__ import annotations

import warnings
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning, FormatError
from fate.events.events import Events
from fate.formats.opening import open_recording
from fate.formats.tables.text import TextDecoder
from fate.formats.tables.writers import CsvWriter
from tests.conftest import REAL, event_lists, make_events

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def lines(events: Events, order: str = "txyp", delimiter: str = ",", time: str = "{}") -> str:
    """Events as text, by Python's own formatting."""
    rows = zip(events.t_us.tolist(), events.x.tolist(), events.y.tolist(), events.p.tolist(), strict=True)
    cells = [dict(zip("txyp", row, strict=True)) for row in rows]
    text = [delimiter.join(time.format(c["t"]) if role == "t" else str(c[role]) for role in order) for c in cells]
    return "".join(line + "\n" for line in text)


def seconds(t_us: int) -> str:
    return f"{t_us // 10**6}.{t_us % 10**6:06d}"


def write(folder: Path, text: str | bytes, name: str = "events.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path: Path, **options: Any) -> Events:
    with open_recording(path, **{"sensor": (48, 64), **options}) as recording:
        return recording.read()


# ---- dialects -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", "  ", ", ", " ;\t"])
@pytest.mark.parametrize("order", ["txyp", "xypt", "xytp"])
def test_every_delimiter_and_common_order_is_recognised(tmp_path: Path, delimiter: str, order: str) -> None:
    events = make_events()
    with open_recording(write(tmp_path, lines(events, order, delimiter)), sensor=(48, 64)) as recording:
        assert recording.read() == events
        assert recording.notes["columns"] == f"{order} (recognised)"


def test_lines_of_windows_blank_lines_comments_and_spaces_change_nothing(tmp_path: Path) -> None:
    events = make_events(200)
    rows = lines(events).splitlines()
    text = "\r\n".join(f"  +{row} \t" if i % 3 else f"\r\n# note {i}, 1\r\n{row}" for i, row in enumerate(rows))
    assert read(write(tmp_path, text)) == events
    assert read(write(tmp_path, b"\xef\xbb\xbf" + text.encode())) == events


@pytest.mark.parametrize(
    "start",
    [
        "%geometry:1280,720\n",
        "% geometry 1280x720\n",
        "# sensor 1280x720\n",
        "# Sensor: 1280 × 720\n",
        "# recorded today\n# width 1280\n# height=720\n",
        "1280 720\n",
    ],
)
def test_sensor_is_taken_from_the_first_lines(tmp_path: Path, start: str) -> None:
    events = make_events(sensor=(720, 1280))
    with open_recording(write(tmp_path, start + lines(events, "xypt", " "))) as recording:
        assert recording.read() == events
        assert recording.sensor == (720, 1280)


def test_size_that_no_sensor_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="height '720', width '0'"):
        read(write(tmp_path, "%geometry:0,720\n1,2,1,5\n"), sensor=None)
    assert len(read(tmp_path / "events.csv", sensor=(48, 64))) == 1


@pytest.mark.parametrize("header", ["y,extra,timestamp,pol,x", '"Y", "text", "T", "On", "X"', "# y extra t p x"])
def test_names_find_the_columns_among_others(tmp_path: Path, header: str) -> None:
    events = make_events()
    rows = zip(events.y, events.t_us, events.p, events.x, strict=True)
    text = "".join(f"{y},word {t},{t},{2 * int(p) - 1},{x}\n" for y, t, p, x in rows)
    assert read(write(tmp_path, f"{header}\n{text}")) == events


def test_column_order_given_by_the_user_is_taken_as_it_is(tmp_path: Path) -> None:
    events = make_events()
    swapped = Events(events.t_us, events.y, events.x, events.p, (64, 64))
    for header in ("", "t,x,y,p\n"):
        assert read(write(tmp_path, header + lines(events)), columns="tyxp", sensor=(64, 64)) == swapped


def test_file_without_rows_is_empty_and_keeps_its_sensor(tmp_path: Path) -> None:
    for text in ("# sensor 64x48\n", "# sensor 64x48\nt,x,y,p\n", "# sensor 64x48"):
        with open_recording(write(tmp_path, text)) as recording:
            assert recording.read() == Events.empty((48, 64))


# ---- numbers and units --------------------------------------------------------------------------------------


def test_unix_seconds_are_exact_to_the_microsecond(tmp_path: Path) -> None:
    events = make_events(start=1_600_000_000_123_457)
    rows = lines(events, "txyp", " ", "{}").splitlines()
    text = "".join(f"{seconds(int(row.split()[0]))} {row.split(' ', 1)[1]}\n" for row in rows)
    with open_recording(write(tmp_path, text, "events.txt"), sensor=(48, 64)) as recording:
        assert recording.read() == events
        assert recording.notes["time unit"] == "s (not whole numbers)"


numbers = st.decimals(-(10**9), 10**9, allow_nan=False, places=12) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25
)


@given(values=st.lists(numbers, min_size=1, max_size=20), unit=st.sampled_from(["s", "ms", "us", "ns"]))
@settings(relaxed, max_examples=100)
def test_times_are_those_of_decimal_arithmetic(values: list[Decimal], unit: str) -> None:
    scale = {"s": Decimal(10**6), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}[unit]
    for value in values:
        text = str(value)
        decoder = TextDecoder(time_unit=unit)
        with localcontext(prec=100):
            expected = int((Decimal(text) * scale).quantize(Decimal(1), ROUND_HALF_EVEN))
        row = f"{text},1,2,0\n".encode()
        if abs(expected) < 9 * 10**17:
            assert decoder.decode(row)[0].t.tolist() == [expected]
            continue
        try:  # near the end of the range, numbers of too many digits are refused
            times = decoder.decode(row)[0].t.tolist()
        except FormatError:
            continue
        assert times == [expected]


@given(value=st.integers(-(2**63) + 1, 2**63 - 1))
@relaxed
def test_every_integer_time_is_kept(value: int) -> None:
    for text in (f"{value}", f"{value}.0", f"{value}0e-1"):
        assert TextDecoder().decode(f"{text},1,2,0\n".encode())[0].t.tolist() == [value]


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775808", "1e19", "99999999999999999999"])
def test_integers_beyond_64_bits_are_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"line 1, .* has a t that is more than 64-bit"):
        TextDecoder().decode(f"{text},1,2,0\n".encode())


def test_numpy_text_output_is_read_as_whole_microseconds(tmp_path: Path) -> None:
    events = make_events()
    table = np.stack([events.t_us, events.x, events.y, events.p], axis=1).astype(np.float64)
    np.savetxt(tmp_path / "events.txt", table, header="t x y p")  # 1.000000000000000000e+00 and so on
    assert read(tmp_path / "events.txt") == events


@pytest.mark.parametrize(("unit", "micro"), [("s", 10**6), ("ms", 1000), ("us", 1)])
def test_given_units_scale_times(tmp_path: Path, unit: Any, micro: int) -> None:
    events = make_events()
    expected = Events(events.t_us * micro, events.x, events.y, events.p, events.sensor)
    assert read(write(tmp_path, lines(events)), time_unit=unit) == expected


def test_fraction_after_whole_times_asks_for_the_unit(tmp_path: Path) -> None:
    events = make_events(30_000)
    with pytest.raises(FormatError, match=r'line 30 001, .999999999\.5,1,2,0., .*time_unit="s"'):
        read(write(tmp_path, lines(events) + "999999999.5,1,2,0\n"))


def test_name_of_the_time_column_gives_its_unit(tmp_path: Path) -> None:
    assert read(write(tmp_path, "t_us,x,y,p\n1.4,1,2,0\n1.6,1,2,0\n")).t_us.tolist() == [1, 2]


# ---- faults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("1,2,3", "column 3 \\(y\\)"),
        ("1,2,3,", "column 4 \\(p\\); expected the 4 columns txyp"),
        ("1,2,3,0,5", "column 4 \\(p\\)"),
        ("1,2 3,3,0", "no number of its own in column 2 \\(x\\)"),
        ("1,2,x,0", "no number of its own in column 3 \\(y\\)"),
        ("1,2,nan,0", "column 3 \\(y\\)"),
        ("1,2,--3,0", "column 3 \\(y\\)"),
        ("1,2,0x10,0", "column 3 \\(y\\)"),
        ("1,2,.,0", "column 3 \\(y\\)"),
        ("1,2,3e,0", "column 3 \\(y\\)"),
        ("1,2,3.5,0", "has a y that is no whole number"),
        ("1,2,3,0 # why", "column 4 \\(p\\)"),
        ("1,2,3,0\r1,2,3,0", "column 4 \\(p\\)"),
        ("\x00\x01", "column 1 \\(t\\)"),
        ("é" * 500, "…', has no number of its own"),
    ],
)
def test_faulty_row_is_refused_with_its_line(tmp_path: Path, row: str, sentence: str) -> None:
    events = make_events(20_000)
    text = lines(events)
    cut = text.index("\n", 200_000) + 1
    number = text[:cut].count("\n") + 3
    where = f"line {number:,}".replace(",", " ")
    path = write(tmp_path, f"# sensor 64x48\nt,x,y,p\n{text[:cut]}{row}\n{text[cut:]}")
    with pytest.raises(FormatError, match=sentence) as caught:
        read(path)
    assert f"{path}: {where}, " in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hello world\nhow are you\n", "line 1, 'hello world', is neither a row of numbers nor"),
        ("t,x,y\n1,2,3\n", "nor a row of names"),
        ("1,2,3,0,5\n", "has 5 columns"),
        ("1 2\n3 4\n", "has 2 columns"),
        ("0.5 2\n0.7 4\n", "has 2 columns"),
        ("7,8,9,7\n8,9,7,8\n", "which columns are t, x, y and p"),
        ("nan,1,2,0\n", "line 1, 'nan,1,2,0', has no number"),
    ],
)
def test_text_that_is_no_table_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FormatError, match=sentence):
        read(write(tmp_path, text))


# ---- the end of the file ------------------------------------------------------------------------------------


def test_last_line_may_lack_its_newline(tmp_path: Path) -> None:
    for n in (1, 2, 20_000):
        events = make_events(n)
        path = write(tmp_path, lines(events).rstrip("\n"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with open_recording(path, sensor=(48, 64)) as recording:
                assert recording.read() == events
                assert recording.index().tail == (0, path.stat().st_size, "")


@pytest.mark.filterwarnings("ignore::fate.errors.FateWarning")
@given(cut=st.integers(1, 300), order=st.sampled_from(["txyp", "xypt"]))
@relaxed
def test_cut_file_gives_its_whole_rows_and_says_what_is_left(tmp_path: Path, cut: int, order: str) -> None:
    events = make_events(400, start=123_456)
    text = lines(events, order)
    path = write(tmp_path, text[:-cut])
    whole = text[:-cut].count("\n")
    left = len(text[:-cut]) - (text[:-cut].rfind("\n") + 1)
    with open_recording(path, sensor=(48, 64)) as recording:
        read_back, tail = recording.read(), recording.index().tail
    if len(read_back) == whole:
        assert read_back == events[:whole]
        assert tail == (left, len(text) - cut - left, "")
        if left:
            with pytest.raises(FormatError, match=f"the last {left} byte"):
                read(path, strict=True)
    else:  # only the newline is missing
        assert read_back == events[: whole + 1]
        assert text[-cut] == "\n"


# ---- blocks, pieces, windows --------------------------------------------------------------------------------


@given(st.data())
@settings(relaxed, max_examples=20)
def test_windows_equal_a_linear_scan(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "events.csv"
    if not path.exists():
        write(tmp_path, "# sensor 64x48\n" + lines(make_events(30_000), "xypt"))
    with open_recording(path) as recording:
        events = recording.read()
        assert recording.index().num_blocks > 3
        for _ in range(5):
            start = data.draw(st.integers(-100, int(events.t_us[-1]) + 100))
            end = start + data.draw(st.integers(0, 10**6))
            assert recording.read(start, end) == events.between(start, end)


def test_windows_of_a_real_recording_equal_a_linear_scan_of_its_text(tmp_path: Path) -> None:
    source = REAL / "dat" / "ncars_sample.dat"
    if not source.exists():
        pytest.skip("the folder of real recordings is not on this machine")
    with open_recording(source, sensor=(100, 120)) as recording:
        events = recording.read()
    with CsvWriter(tmp_path / "events.csv", events.sensor) as file:
        file.write(events)
    with open_recording(tmp_path / "events.csv") as recording:
        assert recording.read() == events
        for start in range(-1000, 100_000, 7_001):
            assert recording.read(start, start + 5_000) == events.between(start, start + 5_000)


@given(cuts=st.lists(st.integers(0, 4000), max_size=12))
@relaxed
def test_stream_in_any_pieces_gives_the_same_events(cuts: list[int]) -> None:
    events = make_events(200)
    data = ("# start\n" + lines(events)).encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = TextDecoder(sensor=(48, 64))
    pieces = [decoder.feed(data[a:b]) for a, b in pairwise(edges)]
    assert Events.concatenate(pieces) == events
    assert decoder.pending_bytes == 0
    assert decoder.skipped() == {"comment lines": 1}


def test_unknown_settings_of_the_decoder_are_refused() -> None:
    for settings_ in ({"columns": "txy"}, {"delimiter": "|"}, {"time_unit": "h"}):
        with pytest.raises(FateError, match="was given; expected"):
            TextDecoder(**settings_)


@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(["txyp", "xypt"]), header=st.booleans())
@settings(relaxed, max_examples=100)
def test_damaged_text_gives_events_or_one_sentence(tmp_path: Path, seed: int, order: str, header: bool) -> None:
    random = np.random.default_rng(seed)
    text = ("# sensor 64x48\n" + ",".join(order) + "\n" if header else "") + lines(make_events(60), order)
    data = bytearray(text.encode())
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(len(data) if random.random() < 0.5 else min(len(data), 60)))
        data[at] = int(random.choice(np.frombuffer(b"0123456789,.+-e \r\n#%\x00\xff", np.uint8)))
    if random.random() < 0.3:
        del data[int(random.integers(1, len(data))) :]
    path = write(tmp_path, bytes(data))
    sentence = str(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, format="csv") as recording:
                assert np.all(np.diff(recording.read().t_us) >= 0)
        except FateError as error:
            sentence = str(error)
    assert str(path) in sentence
    assert "\n" not in sentence


# ---- writer -------------------------------------------------------------------------------------------------


@given(events=event_lists(max_start=2**61), pieces=st.integers(1, 4), shift=st.integers(-(2**61), 0))
@relaxed
def test_what_is_written_comes_back(tmp_path: Path, events: Events, pieces: int, shift: int) -> None:
    events = events.shifted(shift)
    with CsvWriter(tmp_path / "events.csv", events.sensor) as file:
        for part in np.array_split(np.arange(len(events)), pieces):
            if len(part):
                file.write(events[int(part[0]) : int(part[-1]) + 1])
    with open_recording(tmp_path / "events.csv") as recording:
        assert recording.read() == events
        assert recording.sensor == events.sensor


def test_written_text_is_what_python_would_write(tmp_path: Path) -> None:
    events = Events(
        [-(2**62) + 1, -10, 0, 9, 10, 2**62 - 1], [0, 9, 10, 99, 100, 65535], [5] * 6, [0, 1] * 3, (6, 65536)
    )
    with CsvWriter(tmp_path / "events.csv", events.sensor) as file:
        file.write(events)
    assert (tmp_path / "events.csv").read_text() == "# sensor 65536x6\nt,x,y,p\n" + lines(events)


def test_longest_rows_of_more_than_one_piece_fit(tmp_path: Path) -> None:
    n = 70_000
    events = Events(np.arange(-(2**62) + 1, -(2**62) + 1 + n), [65535] * n, [65535] * n, [1] * n, (65536, 65536))
    with CsvWriter(tmp_path / "events.csv", events.sensor) as file:
        file.write(events)
    assert read(tmp_path / "events.csv", sensor=None) == events


def test_warning_names_the_sensor_that_was_taken(tmp_path: Path) -> None:
    with pytest.warns(FateWarning, match="128×128 is the smallest known sensor"):
        read(write(tmp_path, lines(make_events())), sensor=None)


def test_names_may_carry_the_size_of_the_sensor(tmp_path: Path) -> None:
    path = write(tmp_path, "t,x@320,y@240,on\n5,319,239,1\n")
    with open_recording(path) as recording:
        assert recording.sensor == (240, 320)
        assert recording.read() == Events([5], [319], [239], [1], (240, 320))
    with pytest.raises(FormatError, match="width '0'"):
        open_recording(write(tmp_path, "t,x@0,y@240,on\n5,0,0,1\n"))
