"""HDF5 files as others lay them out (made here with h5py), what is refused and how, and the two writers."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning, FormatError, MissingDependencyError
from fate.events.events import Events
from fate.formats.hdf5 import writers as hdf5_writers
from fate.formats.hdf5.text import root_text_attributes
from fate.formats.hdf5.writers import PropheseeHdf5Writer, RvtHdf5Writer
from fate.formats.opening import open_recording
from fate.formats.source import ByteFile
from tests.conftest import REAL, event_lists, make_events

EVENTS = make_events(40_000, (480, 640), start=1_000_000)
WRITERS = [(PropheseeHdf5Writer, "a.hdf5", "HDF5 Prophesee"), (RvtHdf5Writer, "a.h5", "HDF5 RVT")]


def columns(events: Events = EVENTS, names: str = "t x y p", **settings: Any) -> Callable[[Any], None]:
    """A function that puts the four columns of ``events`` into an h5py group."""

    def put(group: Any) -> None:
        for name, column in zip(names.split(), (events.t_us, events.x, events.y, events.p), strict=True):
            group.create_dataset(name, data=column, **settings)

    return put


def read(path: Path, **options: Any) -> Events:
    with open_recording(path, **options) as recording:
        return recording.read()


# ---- layouts ----------------------------------------------------------------------------------------------------


def test_prophesee_records_without_a_filter_are_read_with_sensor_notes_and_triggers(tmp_path: Path) -> None:
    records = np.zeros(len(EVENTS), hdf5_writers.RECORD)
    records["t"], records["x"], records["y"], records["p"] = EVENTS.t_us, EVENTS.x, EVENTS.y, EVENTS.p
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("CD/events", data=records, chunks=(16_384,), compression="gzip")
        file["EXT_TRIGGER/events"] = np.zeros(5, hdf5_writers.TRIGGER)
        file.attrs["geometry"], file.attrs["serial_number"], file.attrs["time_shift"] = "640x480", "0001", 77
    with open_recording(tmp_path / "a.hdf5") as recording:
        assert recording.format == "HDF5 Prophesee"
        assert recording.read() == EVENTS
        assert recording.notes == {"geometry": "640x480", "serial_number": "0001", "time_shift": "77"}
        assert recording.index().skipped == {"triggers": 5}


@pytest.mark.parametrize("minus_one", [False, True])
@pytest.mark.parametrize("as_attribute", [False, True])
def test_rvt_columns_are_read_with_either_polarity_and_either_place_of_the_sensor(
    tmp_path: Path, minus_one: bool, as_attribute: bool
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        columns(chunks=(10_000,), compression="gzip")(file.create_group("events"))
        if minus_one:
            del file["events/p"]
            file["events/p"] = EVENTS.p.astype(np.int8) * 2 - 1
        for name, side in (("height", 480), ("width", 640)):
            if as_attribute:
                file["events"].attrs[name] = side
            else:
                file[f"events/{name}"] = side
        file["events/divider"] = 1
    with open_recording(tmp_path / "a.h5") as recording:
        assert (recording.format, recording.sensor) == ("HDF5 RVT", (480, 640))
        assert recording.read() == EVENTS


def test_dsec_times_are_counted_from_t_offset_and_the_sensor_is_known(tmp_path: Path) -> None:
    offset = 50_000_000_000  # with it, times need more than the 32 bits they are stored in
    with h5py.File(tmp_path / "a.h5", "w") as file:
        columns()(file.create_group("events"))
        del file["events/t"]
        file["events/t"] = EVENTS.t_us.astype(np.uint32)
        file["ms_to_idx"], file["t_offset"] = np.zeros(9, np.uint64), np.int64(offset)
    with open_recording(tmp_path / "a.h5") as recording:
        assert (recording.format, recording.sensor) == ("HDF5 DSEC", (480, 640))
        assert recording.read() == EVENTS.shifted(offset)


@pytest.mark.parametrize("place", ["", "CD/events", "camera/left"])
@pytest.mark.parametrize("names", ["t x y p", "ts xs ys ps", "timestamps x y polarity"])
def test_any_one_group_with_the_columns_is_read(tmp_path: Path, place: str, names: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        columns(names=names)(file.require_group(place) if place else file)
        file["something/else"] = np.zeros(3)
    assert read(tmp_path / "a.h5", sensor=(480, 640)) == EVENTS


def test_big_endian_columns_and_boolean_polarities_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"], file["x"] = EVENTS.t_us.astype(">i8"), EVENTS.x.astype(">i4")
        file["y"], file["p"] = EVENTS.y.astype(">u2"), EVENTS.p.astype(bool)
    assert read(tmp_path / "a.h5", sensor=(480, 640)) == EVENTS


@pytest.mark.parametrize(("unit", "per_us"), [("s", 1e-6), ("ms", 1e-3), ("ns", 1e3)])
def test_times_in_other_units_become_microseconds(tmp_path: Path, unit: Any, per_us: float) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        columns()(file)
        del file["t"]
        file["t"] = EVENTS.t_us * per_us
    assert read(tmp_path / "a.h5", sensor=(480, 640), time_unit=unit) == EVENTS
    with pytest.raises(FormatError, match=r"times as float64, without a unit; pass time_unit="):
        open_recording(tmp_path / "a.h5")


@settings(max_examples=40)
@given(window=st.tuples(st.integers(-100, 10**8), st.integers(-100, 10**8)).map(sorted), chunk=st.integers(1, 2))
def test_windows_equal_a_linear_scan(tmp_path_factory: pytest.TempPathFactory, window: list[int], chunk: int) -> None:
    path = tmp_path_factory.getbasetemp() / f"windows{chunk}.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            columns(chunks=(chunk * 5_000,))(file.create_group("events"))
    start, end = (EVENTS.t_us[0] + offset for offset in window)
    with open_recording(path, sensor=(480, 640)) as recording:
        assert recording.read(start, end) == EVENTS.between(start, end)


# ---- compression --------------------------------------------------------------------------------------------------


def test_plugin_filters_are_read_where_hdf5plugin_is_there_and_named_where_it_is_not(tmp_path: Path) -> None:
    """In processes of their own: a filter, once registered, stays."""
    pytest.importorskip("hdf5plugin")
    path = tmp_path / "a.h5"
    make = (
        "import h5py, hdf5plugin, numpy as np, sys; f = h5py.File(sys.argv[1], 'w')\n"
        "for n in 'txyp': f.create_dataset('events/' + n, data=np.ones(999, 'i4'), chunks=(99,), **hdf5plugin.Blosc())"
    )
    subprocess.run([sys.executable, "-c", make, str(path)], check=True)
    show = (
        "import sys; from fate.formats.opening import open_recording\n"
        "try: print(len(open_recording(sys.argv[1], sensor=(9, 9)).read()))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    there = subprocess.run([sys.executable, "-c", show, str(path)], check=True, capture_output=True, text=True)
    assert there.stdout.split() == ["999"]
    without = f"import sys; sys.modules['hdf5plugin'] = None; {show}"
    absent = subprocess.run([sys.executable, "-c", without, str(path)], check=True, capture_output=True, text=True)
    assert absent.stdout.startswith(f"{MissingDependencyError.__name__} {path}: /events/")
    assert "HDF5 filter 32001 (blosc)" in absent.stdout
    assert "pip install hdf5plugin" in absent.stdout


def test_a_filter_nobody_knows_is_refused_by_its_number(tmp_path: Path) -> None:
    pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        columns()(file)
        del file["t"]
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((64,))
        made.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((len(EVENTS),))
        table = h5py.h5d.create(file.id, b"t", h5py.h5t.NATIVE_INT64, space, made)
        for first in range(0, len(EVENTS), 64):
            table.write_direct_chunk((first,), bytes(512))
    with pytest.raises(FormatError, match=r"HDF5 filter 40000 .*which hdf5plugin does not have"):
        open_recording(tmp_path / "a.h5")


# ---- refusals -----------------------------------------------------------------------------------------------------


def shorter(file: Any) -> None:
    columns()(file)
    del file["y"]
    file["y"] = EVENTS.y[:-1]


def two_tables(file: Any) -> None:
    columns()(file.create_group("left"))
    columns()(file.create_group("right"))


def histograms(file: Any) -> None:
    file["data"] = np.zeros((2, 20, 3, 4), np.uint8)


def many_datasets(file: Any) -> None:
    for i in range(9):
        file[f"d{i}"] = i


def float_coordinates(file: Any) -> None:
    columns()(file)
    del file["x"]
    file["x"] = EVENTS.x.astype(np.float32)


def fractions(file: Any) -> None:
    columns()(file)
    file["divider"] = 32


def two_dimensions(file: Any) -> None:
    columns()(file)
    del file["p"]
    file["p"] = EVENTS.p[:, None]


def never_written(file: Any) -> None:
    columns()(file)
    del file["t"]
    file.create_dataset("t", (len(EVENTS),), np.int64, chunks=(1000,))


def huge_chunks(file: Any) -> None:
    columns()(file)
    del file["t"]
    file.create_dataset("t", (len(EVENTS),), np.int64, chunks=(1 << 24,), maxshape=(None,))


def elsewhere(file: Any) -> None:
    columns()(file)
    del file["t"]
    layout = h5py.VirtualLayout((len(EVENTS),), np.int64)
    layout[:] = h5py.VirtualSource("other.h5", "t", (len(EVENTS),))
    file.create_virtual_dataset("t", layout)


def late_times(file: Any) -> None:
    columns()(file)
    del file["t"]
    file["t"] = np.full(len(EVENTS), 2**64 - 1, np.uint64)


def no_sensor(file: Any) -> None:
    columns()(file)
    file.attrs["geometry"] = "wide"


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (shorter, r"expected one dimension and one length"),
        (two_tables, r"2 tables of events \(left, right\)"),
        (histograms, "holds histograms of events"),
        (many_datasets, r"no table of events; expected /CD/events .* d0, d1, d2, d3, d4, d5, d6, d7 …"),
        (float_coordinates, "/x is of type float32; expected integers"),
        (fractions, "fractions of a pixel"),
        (two_dimensions, r"/p \(40000, 1\)"),
        (never_written, "only 0 of its 40 chunks were written"),
        (huge_chunks, "chunks of 128 MiB"),
        (elsewhere, "keeps its rows in other files"),
        (late_times, "t = 18446744073709551615"),
        (no_sensor, "gives a sensor of height '', width 'wide'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, put: Callable[[Any], None], message: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        put(file)
    with pytest.raises(FormatError, match=message) as caught:
        read(tmp_path / "a.h5")
    assert str(caught.value).startswith(str(tmp_path / "a.h5"))


SCALARS = ("height", "width", "t_offset", "divider")


def with_scalar(path: Path, name: str, put: Callable[[Any, str], None]) -> Path:
    """RVT's layout, with one number put in another way."""
    with h5py.File(path, "w") as file:
        group = file.create_group("events")
        columns()(group)
        for side, number in (("height", EVENTS.sensor[0]), ("width", EVENTS.sensor[1])):
            if side != name:
                group[side] = number
        put(group if name in ("height", "width") else file, name)
    return path


@pytest.mark.parametrize("name", SCALARS)
def test_numbers_in_another_file_are_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"KEY=hunter2.....")

    def external(group: Any, name: str) -> None:
        group.create_dataset(name, (1,), np.uint32, external=[(str(tmp_path / "secret"), 0, 4)])

    path = with_scalar(tmp_path / "a.h5", name, external)
    with pytest.raises(FormatError, match=f"{name} keeps its rows in other files") as caught:
        open_recording(path)
    assert str(int.from_bytes(b"KEY=", "little")) not in str(caught.value)


@pytest.mark.parametrize("kind", ["external", "virtual", "growing virtual"])
def test_a_pipe_as_the_other_file_is_never_opened(tmp_path: Path, kind: str) -> None:
    """In a process of its own, which can be ended where it waits for the pipe."""
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)

    def put(file: Any, name: str) -> None:
        if kind == "external":
            file.create_dataset(name, (1,), np.int64, external=[(pipe, 0, 8)])
            return
        limit = None if kind == "growing virtual" else 1
        layout = h5py.VirtualLayout((1,), np.int64, maxshape=(limit,))
        source = h5py.VirtualSource(pipe, "n", (1,), np.int64, maxshape=(limit,))
        if limit is None:
            layout[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        else:
            layout[:] = source
        file.create_virtual_dataset(name, layout)

    paths = [with_scalar(tmp_path / f"{i}.h5", name, put) for i, name in enumerate((*SCALARS, "EXT_TRIGGER/events"))]
    with h5py.File(tmp_path / "data.h5", "w") as file:
        put(file, "data")
    code = """
import sys, fate
for path in sys.argv[1:]:
    try:
        fate.open_recording(path)
        print("opened", path)
    except fate.FateError as error:
        print(error)
"""
    call = [sys.executable, "-c", code, *map(str, paths), str(tmp_path / "data.h5")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=True)
    assert [line.partition(" keeps its rows ")[2][:14] for line in done.stdout.splitlines()] == ["in other files"] * 6


@pytest.mark.parametrize("name", SCALARS)
def test_a_number_in_a_huge_or_an_unwritten_chunk_is_refused(tmp_path: Path, name: str) -> None:
    def huge(group: Any, name: str) -> None:
        stored = group.create_dataset(name, (1,), np.int64, maxshape=(None,), chunks=(1 << 24,), compression="gzip")
        stored[0] = 1

    def swollen(group: Any, name: str) -> None:
        group.create_dataset(name, (1,), np.int64, maxshape=(None,), chunks=(1 << 15,))[0] = 1

    def unwritten(group: Any, name: str) -> None:
        group.create_dataset(name, (1,), np.int64, maxshape=(None,), chunks=(16,))

    for put, message in ((huge, "chunks of 128 MiB"), (swollen, "262144 bytes"), (unwritten, "stored in 0 bytes")):
        path = with_scalar(tmp_path / "a.h5", name, put)
        with pytest.raises(FormatError, match=message):
            open_recording(path)


def test_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        columns()(file.create_group("events"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["events"] = h5py.ExternalLink("other.h5", "/events")
    with pytest.raises(FormatError, match="no table of events"):
        open_recording(tmp_path / "a.h5")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    with PropheseeHdf5Writer(tmp_path / "whole.hdf5", EVENTS.sensor) as writer:
        writer.write(EVENTS[:5000])
    data = (tmp_path / "whole.hdf5").read_bytes()
    for length in (8, 9, 50, 96, 500, 2000, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.hdf5").write_bytes(data[:length])
        with pytest.raises(FormatError, match="cannot be read as HDF5"):
            open_recording(tmp_path / "cut.hdf5")


@pytest.mark.slow
def test_mutated_files_give_an_error_sentence_or_events_and_never_end_the_process(tmp_path: Path) -> None:
    """In a process of its own: libhdf5 is C, and what it does with damage is not ours to promise."""
    for writer, name, _ in WRITERS:
        with writer(tmp_path / name, EVENTS.sensor) as target:
            target.write(EVENTS[:300])
    fuzz = """
import random, sys, warnings
from pathlib import Path
from fate.errors import FateError
from fate.formats.opening import open_recording
warnings.simplefilter("ignore")
path, chance, refused = Path(sys.argv[1]), random.Random(1), 0
data = path.read_bytes()
used = [i for i in range(8, len(data)) if any(data[i - 4 : i + 5])]  # not in the middle of long zeros
target = path.with_name("mutated.h5")
for _ in range(150):
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        changed[chance.choice(used)] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    target.write_bytes(changed)
    try:
        with open_recording(target, unsorted="sort", out_of_bounds="drop") as recording:
            recording.read()
    except FateError as error:
        assert str(error).startswith(str(target)), error
        refused += 1
print(refused)
"""
    for _, name, _ in WRITERS:
        done = subprocess.run(
            [sys.executable, "-c", fuzz, str(tmp_path / name)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 15


# ---- text attributes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["earliest", "v110", "latest"])
def test_text_attributes_are_those_that_h5py_reads(tmp_path: Path, version: str) -> None:
    texts = {"geometry": "1280x720", "long": "µ" * 500, "empty": "", "date": "2024-01-01"}
    with h5py.File(tmp_path / "a.h5", "w", libver=version) as file:
        for name, text in texts.items():
            file.attrs[name] = text
            file[f"data {name}"] = 1
        file.attrs["fixed"] = np.bytes_(b"640x480")
        file.attrs["number"], file.attrs["list"] = 3, ["a", "b"]
    file = ByteFile(tmp_path / "a.h5")
    assert root_text_attributes(file) == texts | {"fixed": "640x480"}
    file.close()


# ---- writers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("writer", "name", "format"), WRITERS)
@given(events=event_lists(max_start=2**61), size=st.integers(1, 50))
def test_what_is_written_in_pieces_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, *, writer: Any, name: str, format: str, events: Events, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    with writer(path, events.sensor) as target:
        for first in range(0, len(events), size):
            target.write(events[first : first + size])
    with open_recording(path) as recording:
        assert (recording.format, recording.sensor) == (format, events.sensor)
        assert recording.read() == events


@pytest.mark.parametrize(("writer", "name", "format"), WRITERS)
def test_many_events_and_negative_times_are_read_back_exactly(
    tmp_path: Path, writer: Any, name: str, format: str
) -> None:
    events = make_events(200_000, (720, 1280), start=-(10**9))
    with writer(tmp_path / name, events.sensor) as target:
        for first in range(0, len(events), 70_001):
            target.write(events[first : first + 70_001])
    assert read(tmp_path / name) == events


def indexes_event_by_event(t_us: Any) -> list[tuple[int, int]]:
    """OpenEB's index in its plainest form: one entry whenever the next 2 ms begin."""
    rows, entry, before = [], (0, -1), (0, -1)
    for i, t in enumerate((t_us - t_us[0]).tolist()):
        while t // 2000 + 1 > len(rows):
            if i != entry[0]:
                before = entry
            rows.append(before)
            entry = (i, t)
    return [*rows, entry]


@given(events=event_lists(max_gap=30_000), size=st.integers(1, 50))
def test_the_prophesee_index_is_the_one_openeb_writes(
    tmp_path_factory: pytest.TempPathFactory, events: Events, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "indexed.hdf5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5_writers, "BUFFER_ROWS", size)
        with PropheseeHdf5Writer(path, events.sensor) as target:
            target.write(events)
    with h5py.File(path) as file:
        assert file.attrs["version"] == "1.0"
        assert [len(file[f"EXT_TRIGGER/{name}"]) for name in ("events", "indexes")] == [0, 0]
        stored = [(int(row["id"]), int(row["ts"])) for row in file["CD/indexes"][:]]
        assert stored == (indexes_event_by_event(events.t_us) if len(events) else [])
        if len(events):
            assert file["CD/indexes"].attrs["offset"] == str(-events.t_us[0])


def test_a_span_of_more_than_a_day_is_refused_by_the_prophesee_layout_alone(tmp_path: Path) -> None:
    events = Events([0, 2**61], [1, 1], [1, 1], [0, 1], (4, 4))
    with (
        pytest.raises(FateError, match="for a day at most"),
        PropheseeHdf5Writer(tmp_path / "a.hdf5", events.sensor) as target,
    ):
        target.write(events)
    assert list(tmp_path.iterdir()) == []
    with RvtHdf5Writer(tmp_path / "a.h5", events.sensor) as target:
        target.write(events)
    assert read(tmp_path / "a.h5") == events


def test_rvt_files_hold_what_rvt_expects(tmp_path: Path) -> None:
    with RvtHdf5Writer(tmp_path / "a.h5", EVENTS.sensor) as target:
        target.write(EVENTS)
    with h5py.File(tmp_path / "a.h5") as file:
        group = file["events"]
        assert {name: group[name].dtype.str for name in "xypt"} == {"x": "<u2", "y": "<u2", "p": "|u1", "t": "<i8"}
        assert (group["height"][()], group["width"][()]) == (480, 640)
        np.testing.assert_array_equal(group["t"][:], EVENTS.t_us)


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real recordings is not on this machine")
@pytest.mark.parametrize(("writer", "name", "format"), WRITERS)
def test_a_real_recording_survives_the_way_through_hdf5(tmp_path: Path, writer: Any, name: str, format: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)
        with open_recording(REAL / "evt2" / "sparklers.raw", sensor=(480, 640)) as recording:
            events = recording.read()
            with writer(tmp_path / name, recording.sensor) as target:
                for piece in recording.chunks(100_000):
                    target.write(piece)
    assert len(events) == 521_252
    with open_recording(tmp_path / name) as copy:
        assert copy.read() == events
        for start in range(copy.start_us, copy.end_us, 9_777):
            assert copy.read(start, start + 5_000) == events.between(start, start + 5_000)
