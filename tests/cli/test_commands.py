"""The commands as a user runs them: a process, its exit code and what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fate import Events, open_recording, write_events
from fate.bench import decode as bench
from fate.cli import arguments
from fate.errors import FateError
from fate.formats.opening import FORMATS
from fate.formats.saving import WRITERS
from fate.formats.summary import count_duplicates
from fate.quantities import parse_time
from tests.cli.running import fate
from tests.conftest import make_events


@pytest.fixture
def recording(tmp_path: Path) -> tuple[Path, Events]:
    events = make_events(4000)
    write_events(tmp_path / "drive.raw", events)
    return tmp_path / "drive.raw", events


def test_help_needs_no_heavy_imports_and_shows_examples() -> None:
    code = "import sys, fate.cli.main; print(sorted({'torch', 'numpy', 'numba', 'h5py', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert "bench" in fate("--help").stdout
    for command in (["info"], ["convert"], ["bench", "decode"]):
        done = fate(*command, "--help")
        assert done.returncode == 0
        assert "Example" in done.stdout


def test_info_tells_what_the_file_holds(recording: tuple[Path, Events]) -> None:
    path, events = recording
    found = json.loads(fate("info", path, "--json", "-").stdout)
    rows = np.stack([events.t_us, events.x, events.y, events.p], 1)
    expected = {
        "format": "EVT3",
        "height": 48,
        "width": 64,
        "num_events": 4000,
        "start_us": int(events.t_us[0]),
        "end_us": int(events.t_us[-1]) + 1,
        "duplicates": 4000 - len(np.unique(rows, axis=0)),
        "bytes": path.stat().st_size,
        "bytes_consumed": path.stat().st_size,
        "skipped": {},
        "dropped": {},
        "time_steps_back": 0,
        "x_max": int(events.x.max()),
        "y_max": int(events.y.max()),
    }
    assert {key: found[key] for key in expected} == expected
    assert found["on_share"] == pytest.approx(float(events.p.mean()))
    assert found["rate_hz"] == pytest.approx(4000 / found["duration_s"])
    text = fate("info", path).stdout
    assert "64×48" in text
    assert "4 000" in text


def test_convert_copies_a_part(recording: tuple[Path, Events], tmp_path: Path) -> None:
    path, events = recording
    done = fate("convert", path, tmp_path / "part.dat", "--start", "+100ms", "--end", "2s", "--roi", "5,5,40,30")
    start = int(events.t_us[0]) + 100_000
    expected = events.between(start, 2_000_000).inside(5, 5, 40, 30)
    assert done.returncode == 0, done.stderr
    assert 0 < len(expected) < len(events)
    assert open_recording(tmp_path / "part.dat").read() == expected
    fate("convert", path, tmp_path / "zero.csv", "--start", "+100ms", "--zero-time")
    late = events.between(start, 2**40)
    assert open_recording(tmp_path / "zero.csv").read() == late.shifted(-int(late.t_us[0]))
    fate("convert", path, tmp_path / "evt2.raw", "--to", "evt2")
    assert open_recording(tmp_path / "evt2.raw").format == "EVT2"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"% evt 3.0\n% geometry 64x48\n% end\n", "has no EVT3 events; it is a header"),
        (b"hello\n", "is a text file"),
        (None, "no such file"),
    ],
)
def test_bad_files_are_one_sentence_and_exit_code_1(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "bad.raw"
    if content is not None:
        path.write_bytes(content)
    for command in (["info", path], ["convert", path, tmp_path / "out.dat"]):
        done = fate(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: {path}: ")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.dat").exists()


def test_a_cut_file_warns_in_one_line_and_strict_refuses(recording: tuple[Path, Events]) -> None:
    path, _ = recording
    path.write_bytes(path.read_bytes() + b"\x00")
    done = fate("info", path)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: ")
    assert "the last 1 byte" in done.stderr
    assert done.stderr.count("\n") == 1
    assert fate("info", path, "--strict").returncode == 1


def test_bad_usage_exits_with_2_and_bad_values_with_1_and_nothing_is_written(
    recording: tuple[Path, Events], tmp_path: Path
) -> None:
    path, _ = recording
    out = tmp_path / "out.dat"
    for extra, code, words in (
        (["--roi", "1,2,3"], 2, "x1,y1,x2,y2"),
        (["--start", "soon"], 2, "expected a time"),
        (["--start", "5s", "--end", "4s"], 2, "must come after"),
        (["--sensor", "64"], 2, "WIDTHxHEIGHT"),
        (["--to", "evt9"], 2, "evt21"),
        (["--format", "evt9"], 2, "evt21"),
        (["--time-unit", "parsec"], 2, "ms"),
        (["--columns", "abcd"], 2, "txyp"),
        (["--roi", "0,0,65,48"], 1, "inside the 64×48 sensor"),
        (["--start", "9999s"], 1, "nothing lies between"),
        (["--start", "+3s", "--end", "2s"], 1, "the end must come after"),
    ):
        done = fate("convert", path, out, *extra)
        assert done.returncode == code, (extra, done.stderr)
        assert words in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr
    assert fate("convert", path, path).returncode == 1
    assert fate("convert", path).returncode == 2
    assert fate("nonsense").returncode == 2
    assert not out.exists()


def test_the_choices_offered_are_those_the_library_has() -> None:
    assert tuple(FORMATS) == arguments.FORMATS
    assert tuple(WRITERS) == arguments.WRITABLE


def test_times_are_written_in_units_and_stay_whole_microseconds() -> None:
    given = ("0", "7us", "1.5ms", "2s", "+2s", "-3us")
    assert [parse_time(text).at(100) for text in given] == [
        0, 7, 1500, 2_000_000, 2_000_100, -3,
    ]  # fmt: skip
    with pytest.raises(FateError, match="2s"):
        parse_time("+2")  # seconds or microseconds?
    with pytest.raises(FateError, match="whole number"):
        parse_time("0.5us")


def test_a_header_that_claims_a_huge_sensor_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.dat"
    rows = np.array([[1, 5], [1, 5], [1, 9], [2, 60_000 << 14 & 0xFFFFFFF]], "<u4")
    path.write_bytes(b"% Version 2\n% Height 30000\n% Width 30000\n\x0c\x08" + rows.tobytes())
    assert json.loads(fate("info", path, "--json", "-").stdout)["duplicates"] == 1


def test_duplicates_are_the_same_with_and_without_a_map_of_pixels(
    recording: tuple[Path, Events], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events = recording
    doubled = np.sort(np.repeat(np.arange(len(events)), 1 + np.arange(len(events)) % 2))
    columns = (column[doubled] for column in (events.t_us, events.x, events.y, events.p))
    write_events(path, Events(*columns, events.sensor))
    with open_recording(path) as opened:
        expected = count_duplicates(opened)
        monkeypatch.setattr("fate.formats.summary.MAX_PIXELS", 0)
        monkeypatch.setattr(opened, "chunks", partial(opened.chunks, max_events=50))
        assert count_duplicates(opened) == expected > 0


@pytest.mark.slow
def test_bench_decode_measures_given_files_and_names_missing_peers(
    recording: tuple[Path, Events], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events = recording
    assert set(bench.MODES) >= {"whole", "index", "window:5000", "window:50000", "seek:5000"}
    monkeypatch.setattr(bench, "MODES", {mode: bench.MODES[mode] for mode in ("whole", "indexed", "index")})
    done = fate("bench", "decode", path, "--repeats", "1", "--against", "", "--json", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "b.json").read_text())["measurements"]
    whole = next(row for row in rows if row["mode"] == "whole")
    assert whole["events"] == len(events)
    assert whole["peak_mb"] > 10
    assert {row["mode"] for row in rows} == {"whole", "indexed", "index"}
    assert fate("bench", "decode", path, "--against", "nobody").returncode == 1


@pytest.mark.slow
def test_bench_decode_makes_files_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MADE_FORMATS", {"dat": ".dat"})
    monkeypatch.setattr(bench, "MODES", {mode: mode for mode in ("whole", "indexed", "seek:5000")})
    result = bench.bench_decode(num_events=3000, repeats=1, against=["searchsorted"])
    rows = {(m.reader, m.mode): m for m in result.measurements}
    own = {("fate", mode) for mode in bench.MODES}
    assert rows.keys() == own | {("searchsorted", "seek:5000")}
    assert rows["fate", "whole"].events >= 3000
    assert rows["fate", "seek:5000"].events == rows["searchsorted", "seek:5000"].events > 0
