"""Recordings of every format: reading by time equals a linear scan, and bad files are one clear sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate import Events, FateError, FateWarning, FormatError, open_recording, open_writer, write_events
from fate.formats import index as index_module
from fate.formats import source as source_module
from fate.formats.converting import convert
from fate.formats.hdf5 import events as hdf5_events
from fate.formats.saving import BY_SUFFIX, WRITERS
from fate.formats.tables import arrays as arrays_module
from tests.conftest import event_lists, make_events
from tests.damage import replace_member

SUFFIX = {name: suffix for suffix, name in reversed(BY_SUFFIX.items())} | {"evt2": ".raw", "evt21": ".raw"}
FORMATS = sorted(WRITERS)
ROOT = Path(__file__).resolve().parents[2]


def saved(folder: Path, events: Events, name: str) -> Path:
    path = folder / f"recording{SUFFIX[name]}"
    write_events(path, events, format=name)
    return path


def opened(path: Path, events: Events, **options: object):  # type: ignore[no-untyped-def]
    """NPY cannot hold a sensor; everything else must give it back by itself."""
    return open_recording(path, **({"sensor": events.sensor} if path.suffix == ".npy" else {}), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25)
@given(events=event_lists(), spans=st.lists(st.tuples(st.integers(-(10**5), 10**7), st.integers(0, 10**6)), max_size=5))
def test_reading_a_span_equals_a_linear_scan(
    tmp_path_factory: pytest.TempPathFactory, name: str, events: Events, spans: list[tuple[int, int]]
) -> None:
    path = saved(tmp_path_factory.mktemp("span"), events, name)
    with opened(path, events) as recording:
        assert recording.read() == events
        assert recording.read(-(10**30), 10**30) == events
        for start, length in spans:
            assert recording.read(start, start + length) == events.between(start, start + length)


@pytest.mark.parametrize("name", FORMATS)
def test_many_small_blocks_give_the_same_events(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(source_module, "RUN_BLOCKS", 3)
    monkeypatch.setattr(arrays_module, "BLOCK_ROWS", 50)
    monkeypatch.setattr(hdf5_events, "MAX_BLOCK_ROWS", 50)
    events = make_events(5000)
    with opened(saved(tmp_path, events, name), events, cache=False) as recording:
        assert recording.read() == events
        assert recording.index().num_blocks > 50
        assert Events.concatenate(list(recording.chunks(max_events=70))) == events
        random = np.random.default_rng(1)
        for start, end in random.integers(-100, int(events.t_us[-1]) + 100, (50, 2)).tolist():
            assert recording.read(start, end) == events.between(start, end)
            pieces = list(recording.chunks(max_events=100, start_us=start, end_us=end))
            assert Events.concatenate([Events.empty(events.sensor), *pieces]) == events.between(start, end)


@pytest.mark.parametrize("name", FORMATS)
def test_every_event_falls_in_exactly_one_window(tmp_path: Path, name: str) -> None:
    events = make_events(3000)
    with opened(saved(tmp_path, events, name), events) as recording:
        pairs = list(recording.windows(hz=200))
    assert Events.concatenate([piece for _, piece in pairs]) == events
    assert all(window.duration_us == 5000 for window, _ in pairs)
    assert all(a.end_us == b.start_us for (a, _), (b, _) in pairwise(pairs))
    assert all(t in window for window, piece in pairs for t in piece.t_us.tolist())


def test_windows_may_overlap_and_start_anywhere(tmp_path: Path) -> None:
    events = make_events(500)
    with open_recording(saved(tmp_path, events, "evt3")) as recording:
        for window, piece in recording.windows(duration_us=50_000, hop_us=5_000, start_us=-20_000, end_us=40_000):
            assert piece == events.between(window.start_us, window.end_us)
        for wrong in ({}, {"hz": 20, "duration_us": 5}, {"duration_us": 0}, {"hz": -1}, {"hz": 20, "hop_us": 0}):
            with pytest.raises(FateError):
                next(recording.windows(**wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
def test_empty_recordings_round_trip(tmp_path: Path, name: str) -> None:
    events = Events.empty((30, 40))
    with opened(saved(tmp_path, events, name), events) as recording:
        assert (recording.num_events, recording.start_us, recording.end_us) == (0, 0, 0)
        assert recording.read() == events
        assert recording.read(0, 100) == events
        assert list(recording.windows(hz=20)) == []
        assert list(recording.chunks()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_writing_in_pieces_equals_writing_at_once(tmp_path: Path, name: str) -> None:
    events = make_events(2000)
    at_once = saved(tmp_path, events, name)
    in_pieces = tmp_path / f"pieces{SUFFIX[name]}"
    with open_writer(in_pieces, events.sensor, name) as writer:
        for first in range(0, len(events), 333):
            writer.write(events[first : first + 333])
            writer.write(Events.empty(events.sensor))
    assert opened(in_pieces, events).read() == opened(at_once, events).read() == events


@pytest.mark.parametrize("name", FORMATS)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, name: str) -> None:
    events = make_events(100)
    path = saved(tmp_path, events, name)
    with pytest.raises(FateError, match="after ones at"), open_writer(path, events.sensor, name) as writer:
        writer.write(events)
        writer.write(events[:1])
    with pytest.raises(FateError, match="sensor"), open_writer(path, events.sensor, name) as writer:
        writer.write(Events.empty((1, 1)))
    assert list(tmp_path.iterdir()) == [path]
    assert opened(path, events).read() == events


def test_unknown_suffixes_formats_and_folders_are_refused(tmp_path: Path) -> None:
    events = make_events(10)
    with pytest.raises(FateError, match=r"suffix '.xyz' names no format"):
        write_events(tmp_path / "a.xyz", events)
    with pytest.raises(FateError, match="'evt9' cannot be written"):
        write_events(tmp_path / "a.raw", events, format="evt9")
    with pytest.raises(FateError, match="does not exist; make it first"):
        write_events(tmp_path / "no" / "a.raw", events)
    (tmp_path / "d.raw").mkdir()
    with pytest.raises(FateError, match="is a folder"):
        write_events(tmp_path / "d.raw", events)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_links_stay_links_and_pipes_stay_pipes(tmp_path: Path) -> None:
    events = make_events(10)
    (tmp_path / "link.raw").symlink_to(tmp_path / "target.raw")
    write_events(tmp_path / "link.raw", events)
    assert (tmp_path / "link.raw").is_symlink()
    assert open_recording(tmp_path / "target.raw").read() == events
    for name in ("pipe.raw", "pipe.csv", "pipe.npz", "pipe.npy", "pipe.h5"):
        os.mkfifo(tmp_path / name)
    for name in ("pipe.npz", "pipe.npy", "pipe.h5"):  # written back and forth, which a pipe cannot be
        with pytest.raises(FateError, match=f"{name}: is a device or a pipe"):
            write_events(tmp_path / name, events)
    for name in ("pipe.raw", "pipe.csv"):
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append((tmp_path / name).read_bytes()))  # noqa: B023
        reader.start()
        write_events(tmp_path / name, events)
        reader.join(20)
        write_events(tmp_path / f"file{name[4:]}", events)
        assert read == [(tmp_path / f"file{name[4:]}").read_bytes()]
        assert stat.S_ISFIFO((tmp_path / name).lstat().st_mode)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="a full disk is played by a limit that this system lacks")
    code = (
        "import json, resource, signal, sys\n"
        "from fate import FateError, write_events\n"
        "from tests.conftest import make_events\n"
        "events = make_events(200_000)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "errors = {}\n"
        "for name in sys.argv[2:]:\n"
        "    try:\n        write_events(sys.argv[1], events, format=name)\n"
        "    except FateError as error:\n        errors[name] = str(error)\n"
        "print(json.dumps(errors))\n"
    )
    path = tmp_path / "out.bin"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), *FORMATS], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    errors = json.loads(done.stdout)
    assert sorted(errors) == FORMATS
    assert all(error.startswith(f"{path}: cannot be written (") for error in errors.values())
    assert list(tmp_path.iterdir()) == []


# ---- bad files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dat", "evt2", "evt21", "evt3"])
def test_a_truncated_tail_is_dropped_with_a_warning_or_refused_when_strict(tmp_path: Path, name: str) -> None:
    events = make_events(200)
    path = saved(tmp_path, events, name)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x01")
    with pytest.warns(FateWarning, match=f"last 1 byte, at position {len(whole)}") as caught:
        recording = open_recording(path)
        assert recording.read() == events
        assert recording.read(0, 10) == events.between(0, 10)
    assert len([w for w in caught if issubclass(w.category, FateWarning)]) == 1
    with pytest.raises(FormatError, match="cut short"):
        open_recording(path, strict=True).read()


def test_coordinates_outside_are_refused_with_count_and_first_index_or_dropped(tmp_path: Path) -> None:
    events = make_events(1000, sensor=(720, 1280))
    path = saved(tmp_path, events, "dat")
    data = bytearray(path.read_bytes())
    for index in (88, 90, 900):
        at = len(data) - 8 * (1000 - index) + 4
        data[at : at + 4] = np.array([5 | (16_000 << 14)], "<u4").tobytes()
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"3 of 1 000 events outside 1280×720 \(first: index 88, y = 16 000\)"):
        open_recording(path).read()
    with pytest.warns(FateWarning, match="3 events outside 1280×720 dropped"):
        recording = open_recording(path, out_of_bounds="drop")
        kept = recording.read()
    keep = np.ones(1000, bool)
    keep[[88, 90, 900]] = False
    assert kept == Events(events.t_us[keep], events.x[keep], events.y[keep], events.p[keep], events.sensor)
    assert recording.index().tally.outside == 3
    assert recording.read(0, 10**6) == kept.between(0, 10**6)


@given(st.lists(st.integers(0, 2000), min_size=2, max_size=300), st.integers(0, 2000), st.integers(0, 2000))
def test_times_that_go_back_are_refused_with_position_or_sorted(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], start: int, end: int
) -> None:
    path = tmp_path_factory.mktemp("back") / "e.dat"
    records = np.array([[t, i % 64] for i, t in enumerate(times)], "<u4")
    path.write_bytes(b"% Version 2\n% Width 64\n% Height 48\n\x0c\x08" + records.tobytes())
    order = np.argsort(times, kind="stable")
    expected = Events(
        np.array(times)[order], order % 64, np.zeros(len(times), int), np.zeros(len(times), int), (48, 64)
    )
    back = [i for i in range(1, len(times)) if times[i] < times[i - 1]]
    if back:
        with pytest.raises(FormatError, match=f"goes back {len(back)} times? .* index {back[0]}, from"):
            open_recording(path).read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)
        with open_recording(path, unsorted="sort") as recording:
            assert recording.read() == expected
            assert recording.read(start, end) == expected.between(start, end)
            assert Events.concatenate(list(recording.chunks(max_events=7))) == expected


def test_long_unsorted_files_are_sorted_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "BLOCK_BYTES", 256)
    times = np.random.default_rng(0).permutation(20_000)
    path = tmp_path / "e.dat"
    path.write_bytes(
        b"% Version 2\n% Width 64\n% Height 48\n\x0c\x08" + np.stack([times, times % 64], 1).astype("<u4").tobytes()
    )
    with pytest.warns(FateWarning, match="events were sorted"):
        pieces = list(open_recording(path, unsorted="sort").chunks(max_events=1000))
    assert max(map(len, pieces)) <= 2000
    assert Events.concatenate(pieces).t_us.tolist() == list(range(20_000))


def test_a_header_without_size_takes_the_smallest_known_sensor_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "e.raw"
    words = np.array([0x8001, 0x6000, 0x0000 | 250, 0x2000 | 300], "<u2").tobytes()
    path.write_bytes(b"% evt 3.0\n" + words)
    with pytest.warns(FateWarning, match="346×260 is the smallest known sensor that fits"):
        assert open_recording(path).sensor == (260, 346)
    assert open_recording(path, sensor=(480, 640)).read().sensor == (480, 640)
    path.write_bytes(b"% evt 3.0\n" + np.array([0x8001, 0x6000, 0x0000 | 1900, 0x2000 | 300], "<u2").tobytes())
    with pytest.raises(FormatError, match="y = 1900, beyond every known sensor .* pass sensor="):
        open_recording(path).read()
    path.write_bytes(b"% evt 3.0\n" + b"\x01\x80")
    with pytest.raises(FormatError, match="neither the header nor any event gives the sensor size"):
        open_recording(path).read()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.raw", b"", "is empty"),
        ("e.raw", b"Dear diary,\nnothing was recorded today.\n", "is a text file, .*give the recording itself"),
        ("e.raw", bytes(range(256)), "no header that names its format"),
        ("e.raw", b"% evt 3.0\n% index_version 2.0\n% end\n\x00\x01", "index another program keeps"),
        ("e.raw", b"% evt 3.0\n% bookmark_period_us 2000\n% end\n\x00\x01", "index another program keeps"),
        ("e.raw", b"% evt 7.0\n% end\n\x00\x01", "names the format '7.0'"),
        ("e.raw", b"% format EVT4;height=720;width=1280\n% end\n\x00\x80", "names the format 'evt4'"),
        ("e.raw", b"% Date 2020-01-01\n% end\n\x00\x80\xff", "no header that names its format"),
        ("e.raw", b"% evt 3.0\n% geometry 0x720\n% end\n\x00\x80", "sensor of height '720', width '0'"),
        ("e.raw", b"% evt 3.0\n% geometry big\n% end\n\x00\x80", "width .big."),
        ("e.dat", b"% Version 2\n% Width 5\n% Height 5\n", "before the two bytes that give the event type"),
        ("e.dat", b"% Version 2\n% Width 5\n% Height 5\n\x0e\x08", "DAT events of type 14 and 8 bytes"),
        ("e.dat", b"% Version 1\n% Width 5\n% Height 5\n\x0c\x08", "DAT version '1'"),
        ("e.aedat", b"#!AER-DAT3.0\r\n#Format: RAW\r\n", "is AEDAT 3.0"),
        ("e.bin", b"\x00\x01\x02\x03" * 100, "is not a .bin recording"),
        ("e.abc", b"\x00\x01\x02\x03" * 100, "is not an event file that is known here"),
    ],
)
def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        open_recording(path).read()
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_files_folders_and_devices_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="no such file"):
        open_recording(tmp_path / "no.raw")
    with pytest.raises(FateError, match="is a folder"):
        open_recording(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.raw")
        with pytest.raises(FateError, match="is a device, a pipe"):
            open_recording(tmp_path / "pipe.raw")


def test_a_file_one_may_not_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, make_events(10), "evt3")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything, so the refusal is made up
    with pytest.raises(FateError, match="Permission denied"):
        open_recording(path)


def test_content_decides_before_the_suffix(tmp_path: Path) -> None:
    events = make_events(100)
    for name, suffix in (("evt3", ".dat"), ("dat", ".raw"), ("npz", ".raw"), ("rvt-hdf5", ".dat"), ("csv", ".raw")):
        path = tmp_path / f"{name}{suffix}"
        write_events(path, events, format=name)
        assert open_recording(path).read() == events


def test_wrong_choices_are_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path, make_events(10), "evt3")
    for options in ({"out_of_bounds": "x"}, {"unsorted": "x"}, {"time_unit": "x"}, {"format": "x"}, {"sensor": (0, 1)}):
        with pytest.raises(FateError, match="given|asked"):
            open_recording(path, **options)  # type: ignore[arg-type]


def test_options_a_format_has_no_use_for_are_refused(tmp_path: Path) -> None:
    events = make_events(10)
    for name, options in (("evt3", {"columns": "txyp"}), ("dat", {"time_unit": "s"}), ("npz", {"columns": "txyp"})):
        with pytest.raises(FateError, match="leave it out"):
            open_recording(saved(tmp_path, events, name), **options)  # type: ignore[arg-type]


def test_a_headerless_raw_file_can_be_named(tmp_path: Path) -> None:
    events = make_events(100)
    path = saved(tmp_path, events, "evt3")
    path.write_bytes(path.read_bytes().partition(b"% end\n")[2])
    assert open_recording(path, format="evt3", sensor=events.sensor).read() == events


# ---- the index ------------------------------------------------------------------------------------------


def big(tmp_path: Path) -> tuple[Path, Events]:
    events = make_events(300_000)
    path = saved(tmp_path, events, "evt2")
    assert path.stat().st_size > 1 << 20
    return path, events


def test_the_index_is_kept_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, events = big(tmp_path)
    with open_recording(path) as recording:
        assert recording.read(1000, 900_000) == events.between(1000, 900_000)
    monkeypatch.setattr("fate.formats.recording.build_index", lambda *_: pytest.fail("the index was built again"))
    with open_recording(path) as recording:
        assert recording.read(1000, 900_000) == events.between(1000, 900_000)
        assert recording.read() == events


def test_a_changed_file_or_a_damaged_index_is_indexed_again(tmp_path: Path) -> None:
    path, events = big(tmp_path)
    open_recording(path).index()
    (stored,) = index_module.cache_folder().iterdir()
    stored.write_bytes(stored.read_bytes()[:1000])
    assert open_recording(path).read() == events
    fewer = events[:299_000]
    write_events(path, fewer, format="evt2")
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
    assert open_recording(path).read() == fewer


@pytest.mark.parametrize("offset", range(4, 46))
def test_an_index_whose_table_of_contents_is_damaged_is_built_again(tmp_path: Path, offset: int) -> None:
    path, events = big(tmp_path)
    open_recording(path).index()
    (stored,) = index_module.cache_folder().iterdir()
    data = bytearray(stored.read_bytes())
    data[data.index(b"PK\x01\x02") + offset] ^= 99
    stored.write_bytes(data)
    with open_recording(path) as recording:
        assert recording.read(1000, 900_000) == events.between(1000, 900_000)


def test_an_index_of_other_types_is_built_again(tmp_path: Path) -> None:
    path, events = big(tmp_path)
    open_recording(path).index()
    (stored,) = index_module.cache_folder().iterdir()
    content = stored.read_bytes()
    start = content.index(b"PK")  # of the archive, after a checksum
    with np.load(io.BytesIO(content[start:])) as arrays:
        changed = {name: arrays[name] for name in arrays}
    changed["first"] = changed["first"].astype(np.float32)
    np.savez(stored, **changed)
    assert open_recording(path).read() == events


@pytest.mark.parametrize("member", ["positions", "states", "first", "t_min", "t_max", "meta"])
def test_an_index_with_a_member_that_is_no_array_is_built_again(tmp_path: Path, member: str) -> None:
    path, events = big(tmp_path)
    open_recording(path).index()
    (stored,) = index_module.cache_folder().iterdir()
    replace_member(stored, f"{member}.npy", b"xx")
    assert open_recording(path).read() == events


@pytest.mark.parametrize("member", ["positions", "first", "t_min", "t_max", "meta"])
def test_an_index_with_edited_values_is_built_again(tmp_path: Path, member: str) -> None:
    path, events = big(tmp_path)
    whole = open_recording(path).index()
    (stored,) = index_module.cache_folder().iterdir()
    content = stored.read_bytes()
    start = content.index(b"PK")  # of the archive, after a checksum
    with np.load(io.BytesIO(content[start:])) as arrays:
        changed = {name: arrays[name] for name in arrays}
    if member == "meta":
        changed["meta"] = np.array(str(changed["meta"]).replace('"t_max": ', '"t_max": 1'))
    else:
        changed[member] = changed[member] + 7
    with open(stored, "wb") as file:
        file.write(content[:start])
        np.savez(file, **changed)
    with open_recording(path) as recording:
        again = recording.index()
        assert recording.read(1000, 900_000) == events.between(1000, 900_000)
    assert again.tally == whole.tally
    np.testing.assert_array_equal(again.t_min, whole.t_min)
    np.testing.assert_array_equal(again.first, whole.first)


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_indexed_again(tmp_path: Path) -> None:
    path, events = big(tmp_path)
    open_recording(path).index()
    state = path.stat()
    later = events.shifted(5_000_000)
    write_events(path, later, format="evt2")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with open_recording(path) as recording:
        assert recording.start_us == later.t_us[0]
        assert recording.read(6_000_000, 7_000_000) == later.between(6_000_000, 7_000_000)


def test_a_closed_recording_says_so(tmp_path: Path) -> None:
    for name in ("evt3", "rvt-hdf5"):
        recording = open_recording(saved(tmp_path, make_events(10), name))
        recording.close()
        recording.close()
        with pytest.raises(FateError, match="is closed"):
            recording.read(0, 10)


def test_a_cache_that_cannot_be_written_is_said_once_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events = big(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FATE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(FateWarning, match="time index could not be kept"):
        assert open_recording(path).read() == events


def test_a_file_cut_while_open_is_refused(tmp_path: Path) -> None:
    path, _ = big(tmp_path)
    with open_recording(path, cache=False) as recording:
        recording.index()
        os.truncate(path, 200_000)
        with pytest.raises(FormatError, match="cut while being read|changed while"):
            recording.read()


def test_a_file_rewritten_while_open_is_refused(tmp_path: Path) -> None:
    path, _ = big(tmp_path)
    with open_recording(path, cache=False) as recording:
        recording.index()
        size = path.stat().st_size
        with open(path, "r+b") as file:
            file.seek(500_000)
            file.write(b"\x00\x00\x00\x80" * ((size - 500_000) // 4))
        with pytest.raises(FormatError, match="changed while it was open"):
            recording.read()


def overwrite(path: Path, data: bytes) -> None:
    """Put other bytes into the same file, of the size that it has."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(data[:size].ljust(size, b"\0"))
    assert path.stat().st_size == size


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_rewritten_in_place_with_the_same_times_is_refused(tmp_path: Path, name: str) -> None:
    events = make_events(20_000)
    path = saved(tmp_path, events, name)
    (tmp_path / "other").mkdir()
    mirrored = Events(events.t_us, events.sensor[1] - 1 - events.x, events.y, 1 - events.p, events.sensor)
    other = saved(tmp_path / "other", mirrored, name).read_bytes()
    os.utime(path, ns=(10**18, 10**18))
    with opened(path, events, cache=False) as recording:
        first = recording.read(0, 1000)
        assert first == events.between(0, 1000)
        overwrite(path, other)
        assert recording.read(0, 1000) == first  # these blocks are kept
        with pytest.raises(FormatError, match="changed while it was open"):
            for _ in recording.chunks(1000):
                pass
    if name != "npz":  # a damaged archive may be told by its checksum instead
        with opened(path, events, cache=False) as recording:
            path.touch()
            with pytest.raises(FormatError, match="changed while it was open"):
                recording.index()


@pytest.mark.parametrize("name", ["dat", "evt2", "evt3", "csv"])
def test_a_file_that_only_grows_is_read_as_it_was_when_opened(tmp_path: Path, name: str) -> None:
    events = make_events(20_000)
    path = saved(tmp_path, events, name)
    whole = path.read_bytes()
    os.utime(path, ns=(10**18, 10**18))
    with opened(path, events, cache=False) as recording:
        recording.index()
        for _ in range(3):
            with open(path, "ab") as file:
                file.write(whole[-64:])
            assert recording.read() == events
        overwrite(path, whole)  # after it grew, a change without growth is still noticed
        with pytest.raises(FormatError, match="changed while it was open"):
            recording.read()


@pytest.mark.parametrize("name", ["prophesee-hdf5", "rvt-hdf5", "npz", "npy"])
def test_a_rewritten_file_that_grew_is_refused_where_the_format_cannot_grow(tmp_path: Path, name: str) -> None:
    events = make_events(20_000)
    path = saved(tmp_path, events, name)
    (tmp_path / "other").mkdir()
    mirrored = Events(events.t_us, events.sensor[1] - 1 - events.x, events.y, 1 - events.p, events.sensor)
    other = saved(tmp_path / "other", mirrored, name).read_bytes()
    with opened(path, events, cache=False) as recording:
        first = recording.read(0, 1000)
        assert first == events.between(0, 1000)
        with open(path, "r+b") as file:  # the same times and number of events, and one byte more
            file.write(other.ljust(path.stat().st_size + 1, b"\0"))
        with pytest.raises(FormatError, match=f"{path.name}.*changed while it was open"):
            recording.read()


def test_a_file_renamed_or_replaced_while_open_is_read_on(tmp_path: Path) -> None:
    events = make_events(20_000)
    path = saved(tmp_path, events, "evt3")
    with open_recording(path, cache=False) as recording:
        recording.index()
        os.rename(path, tmp_path / "moved.raw")
        saved(tmp_path, make_events(100, seed=5), "evt3")
        assert recording.read() == events


def test_recordings_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    events = make_events(100)
    recording = open_recording(saved(tmp_path, events, "evt3"), sensor=events.sensor)
    assert pickle.loads(pickle.dumps(recording)).read() == recording.read()


def test_a_copy_without_a_name_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, make_events(10), "evt3")
    with pytest.raises(FateError, match="empty"):
        convert(path, "", output_format="csv")
