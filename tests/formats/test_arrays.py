"""NPY and NPZ: what numpy itself writes is the oracle, in every layout, unit and order."""

from __future__ import annotations

import json
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FateWarning, FormatError
from fate.events.events import Events
from fate.formats.opening import open_recording
from fate.formats.tables.writers import NpyWriter, NpzWriter
from tests.conftest import REAL, event_lists, make_events

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
FIELDS = [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")]


def table(events: Events, order: str = "txyp", dtype: Any = np.int64) -> np.ndarray:
    """[E, 4] in the given order of columns."""
    columns = {"t": events.t_us, "x": events.x, "y": events.y, "p": events.p}
    return np.stack([columns[role].astype(dtype) for role in order], axis=1)


def structured(events: Events, fields: Any = FIELDS) -> np.ndarray:
    array = np.zeros(len(events), fields)
    for name, column in zip(array.dtype.names, (events.t_us, events.x, events.y, events.p), strict=True):
        array[name] = column
    return array


def saved(folder: Path, array: np.ndarray, name: str = "events.npy") -> Path:
    np.save(folder / name, array)
    return folder / name


def read(path: Path, **options: Any) -> Events:
    with open_recording(path, **{"sensor": (48, 64), **options}) as recording:
        return recording.read()


# ---- NPY ----------------------------------------------------------------------------------------------------


def test_the_public_recordings_have_the_published_counts_and_sums() -> None:
    if not (REAL / "pedro").is_dir():
        pytest.skip("the folder of real recordings is not on this machine")
    facts = [e for e in json.loads((REAL / "manifest.json").read_text()) if e["file"].endswith(".npy") and "n" in e]
    assert len(facts) >= 5
    for fact in facts:
        with open_recording(REAL / fact["file"]) as recording:
            with pytest.warns(FateWarning, match="346×260 is the smallest known sensor"):
                events = recording.read()
            assert recording.notes["columns"] == "txyp (recognised)"
            assert recording.sensor == (260, 346)
            assert len(events) == fact["n"]
            assert (int(events.t_us[0]), int(events.t_us[-1])) == (fact["tmin"], fact["tmax"])
            assert int((events.t_us - events.t_us[0]).sum()) == fact["sum_t_rel"]
            assert int(events.x.sum(dtype=np.int64)) == fact["sum_x"]
            assert int(events.y.sum(dtype=np.int64)) == fact["sum_y"]
            assert int(events.p.sum(dtype=np.int64)) == fact["on"]
            for start in np.random.default_rng(0).integers(fact["tmin"] - 5000, fact["tmax"], 20):
                end = int(start) + 3000
                assert recording.read(int(start), end) == events.between(int(start), end)


@pytest.mark.parametrize("order", ["txyp", "xytp", "xypt", "ptxy", "tpxy"])
@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint64, ">i4", ">f8"])
def test_every_order_of_columns_is_recognised_in_every_type(tmp_path: Path, order: str, dtype: Any) -> None:
    events = make_events()
    assert read(saved(tmp_path, table(events, order, dtype))) == events


def test_column_order_given_by_the_user_is_taken_as_it_is(tmp_path: Path) -> None:
    events = make_events()
    swapped = Events(events.t_us, events.y, events.x, events.p, (64, 64))
    assert read(saved(tmp_path, table(events)), columns="tyxp", sensor=(64, 64)) == swapped
    with pytest.raises(FateError, match="each of t, x, y, p once"):
        read(tmp_path / "events.npy", columns="txyy")


def test_one_row_is_read_in_the_common_order(tmp_path: Path) -> None:
    for row, order in (([5, 7, 9, 1], "txyp"), ([5, 7, 1000, 1], "xytp"), ([5, 7, 1, 90000], "xypt")):
        with open_recording(saved(tmp_path, np.array([row])), sensor=(48, 64)) as recording:
            assert recording.notes["columns"] == f"{order} (recognised)"


def test_rows_sorted_by_column_instead_of_time_are_not_misread(tmp_path: Path) -> None:
    events = make_events(300)  # times end below 65536 µs would also fit a coordinate
    rows = table(events, "xytp")
    rows[:, 2] = np.arange(300) * 100
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    with pytest.raises(FormatError, match='columns="txyp"'):
        read(saved(tmp_path, rows), unsorted="sort")


def test_numbers_that_fit_no_order_ask_for_it(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(2, 48, (50, 4))
    with pytest.raises(FormatError, match="columns=.txyp"):
        read(saved(tmp_path, rows))


def test_unsorted_rows_are_reported_as_unsorted(tmp_path: Path) -> None:
    rows = table(make_events())[::-1]
    with pytest.raises(FormatError, match="time goes back"):
        read(saved(tmp_path, rows))
    with pytest.warns(FateWarning, match="sorted"):
        events = read(tmp_path / "events.npy", unsorted="sort")
    assert np.array_equal(events.t_us, np.sort(rows[:, 0]))


@pytest.mark.parametrize("names", ["t x y p", "ts x y pol", "Timestamp X Y Polarity", "time_us x_pos y_pos on"])
def test_fields_are_found_by_their_usual_names_and_in_any_place(tmp_path: Path, names: str) -> None:
    t, x, y, p = names.split()
    events = make_events()
    array = np.zeros(len(events), [(p, "i1"), ("extra", "f4"), (y, ">u2"), (x, "i4"), (t, "<u8")])
    array[t], array[x], array[y], array[p] = events.t_us, events.x, events.y, np.where(events.p, 1, -1)
    assert read(saved(tmp_path, array)) == events


def test_column_by_column_storage_is_read(tmp_path: Path) -> None:
    events = make_events()
    path = saved(tmp_path, np.asfortranarray(table(events)))
    assert read(path) == events
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FormatError, match="cut short"):
        read(path)


def test_float_seconds_are_rounded_as_numpy_rounds_them(tmp_path: Path) -> None:
    seconds = np.sort(np.random.default_rng(0).uniform(1.6e9, 1.6e9 + 1, 5000))
    rows = np.stack([seconds, *np.random.default_rng(1).integers(0, 48, (2, 5000)), np.arange(5000) % 2], axis=1)
    with open_recording(saved(tmp_path, rows), sensor=(48, 64)) as recording:
        assert recording.notes["time unit"] == "s (not whole numbers)"
        assert np.array_equal(recording.read().t_us, np.rint(seconds * 1e6).astype(np.int64))


@pytest.mark.parametrize(("unit", "micro"), [("s", 10**6), ("ms", 1000), ("us", 1)])
def test_given_units_scale_integers_exactly(tmp_path: Path, unit: Any, micro: int) -> None:
    events = make_events()
    expected = Events(events.t_us * micro, events.x, events.y, events.p, events.sensor)
    assert read(saved(tmp_path, structured(events)), time_unit=unit) == expected


def test_nanoseconds_are_rounded_to_the_nearest_even(tmp_path: Path) -> None:
    times = [-1500, -501, -500, 499, 500, 501, 1499, 1500, 2500, 2501]
    array = np.zeros(len(times), FIELDS)
    array["t"] = times
    assert read(saved(tmp_path, array), time_unit="ns").t_us.tolist() == [-2, -1, 0, 0, 0, 1, 1, 2, 2, 3]


def test_times_in_coarse_floats_are_warned_of(tmp_path: Path) -> None:
    events = make_events(start=10**9)
    array = structured(events, [("t", "f4"), *FIELDS[1:]])
    with pytest.warns(FateWarning, match="float32, in steps of 64 µs"):
        read(saved(tmp_path, array))


@pytest.mark.filterwarnings("ignore:.*keeps time as float64")
@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        (0, np.nan, "row 1 234 has t = nan, which is not a number"),
        (0, 1e300, "row 1 234 has t"),
        (1, 3.5, "row 1 234 has x = 3.5, which is no whole number"),
        (2, np.inf, "row 1 234 has y = inf"),
        (3, 7, "polarity that is none of 0, 1, -1"),
    ],
)
def test_values_that_are_no_events_are_refused_with_their_row(
    tmp_path: Path, column: int, value: float, sentence: str
) -> None:
    names = "txyp"
    events = make_events()
    array = structured(events, [(name, "f8") for name in names])
    whole = table(events, dtype=np.float64)
    array[names[column]][1234] = whole[1234, column] = value
    with pytest.raises(FormatError, match=sentence):
        read(saved(tmp_path, array))
    if column:
        with pytest.raises(FormatError, match=sentence):
            read(saved(tmp_path, whole), columns="txyp")


def test_fraction_that_opening_did_not_see_is_refused_unless_the_unit_is_given(tmp_path: Path) -> None:
    array = structured(make_events(200_000), [(name, "f8") for name in "txyp"])
    array["t"] = np.arange(len(array))
    array["t"][153_500] += 0.25
    with pytest.raises(FormatError, match=r"row 153 500 has t = 153500\.25, which is no whole number; times are µs"):
        read(saved(tmp_path, array))
    assert int(read(tmp_path / "events.npy", time_unit="us").t_us[153_500]) == 153_500


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros((4, 100), np.int64), "shape \\(4, 100\\).*save its transpose"),
        (np.zeros((9, 5)), "shape \\(9, 5\\)"),
        (np.zeros(9), "expected N×4"),
        (np.zeros((9, 4), "c16"), "complex128"),
        (np.zeros((9, 4), "S4"), "\\|S4"),
        (np.zeros(3, [("t", "i8"), ("x", "u2"), ("y", "u2")]), "fields t, x, y; expected"),
        (np.zeros(3, [("t", "i8"), ("x", "u2", (2,)), ("y", "u2"), ("p", "u1")]), "expected integers or floats"),
        (np.array([[1, 2, 3, None]], object), "Python objects"),
        (np.zeros((3, 4), "V0"), "rows of no bytes"),
        (np.array(5), "shape \\(\\)"),
    ],
)
def test_other_arrays_are_refused_with_a_sentence(tmp_path: Path, array: np.ndarray, sentence: str) -> None:
    path = tmp_path / "events.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(FormatError, match=sentence):
        read(path)


def test_label_file_is_not_taken_for_events(tmp_path: Path) -> None:
    boxes = np.zeros(3, [("t", "i8"), ("x", "f4"), ("y", "f4"), ("w", "f4"), ("h", "f4"), ("class_id", "u4")])
    with pytest.raises(FormatError, match="fields t, x, y, w, h, class_id"):
        read(saved(tmp_path, boxes))


@pytest.mark.filterwarnings("ignore::fate.errors.FateWarning")
@given(cut=st.integers(1, 500))
@relaxed
def test_cut_file_gives_its_whole_rows_and_says_what_is_missing(tmp_path: Path, cut: int) -> None:
    events = make_events(100)
    data = saved(tmp_path, structured(events)).read_bytes()
    path = tmp_path / "cut.npy"
    path.write_bytes(data[:-cut])
    whole, missing = 100 - -(-cut // 13), -(-cut // 13)
    with open_recording(path, sensor=(48, 64)) as recording:
        with pytest.warns(FateWarning, match=f"{missing} rows") as seen:
            assert recording.read() == events[:whole]
        assert recording.index().tail == (-cut % 13, len(data) - 13 * missing, f"{missing} rows")
    assert any(", at position" in str(warning.message) for warning in seen) == (cut % 13 != 0)
    with pytest.raises(FormatError, match="cut short"):
        read(path, strict=True)


def test_bytes_after_the_array_are_reported(tmp_path: Path) -> None:
    path = saved(tmp_path, structured(make_events(10)))
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.warns(FateWarning, match="the last 4 bytes"):
        assert len(read(path)) == 10


def test_claimed_size_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "events.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": FIELDS, "fortran_order": False, "shape": (10**15,)})
        file.write(structured(make_events(5)).tobytes())
    with pytest.warns(FateWarning, match="999 999 999 999 995 rows"):
        assert read(path) == make_events(5)


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["fields", "N×4", "floats", "by column"]))
@settings(relaxed, max_examples=80)
def test_damaged_npy_gives_events_or_one_sentence(tmp_path: Path, seed: int, kind: str) -> None:
    events = make_events(60)
    array = {
        "fields": structured(events),
        "N×4": table(events),
        "floats": table(events, dtype=np.float64),
        "by column": np.asfortranarray(table(events)),
    }[kind]
    damage_and_read(saved(tmp_path, array), seed)


def damage_and_read(path: Path, seed: int) -> None:
    """Change, cut or lengthen a file at random: an Events or a FateError comes out, nothing else."""
    random = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for _ in range(random.integers(1, 4)):
        at = int(random.integers(len(data) if random.random() < 0.5 else min(len(data), 200)))
        data[at] = int(random.integers(256))
    if random.random() < 0.3:
        del data[int(random.integers(1, len(data))) :]
    if random.random() < 0.1:
        data += random.bytes(20)
    path.write_bytes(data)
    sentence = str(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, sensor=(48, 64)) as recording:
                events = recording.read()
                assert np.all(np.diff(events.t_us) >= 0)
        except FateError as error:
            sentence = str(error)
    assert str(path) in sentence
    assert "\n" not in sentence


# ---- NPZ ----------------------------------------------------------------------------------------------------


def columns(events: Events) -> dict[str, Any]:
    return {"t": events.t_us, "x": events.x, "y": events.y, "p": events.p}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_are_read_by_columns_and_by_table(tmp_path: Path, save: Any) -> None:
    events = make_events(30_000)
    path = tmp_path / "events.npz"
    named = dict(zip(("timestamps", "xs", "ys", "polarities"), columns(events).values(), strict=True))
    for arrays in (
        {**columns(events), "sensor": [48, 64]},
        {**named, "height": 48, "width": np.array([64])},
        {"events": structured(events), "sensor": np.array([48, 64])},
        {"arr_0": table(events, "xytp"), "note": np.array("made up"), "height": 48, "width": 64},
        {"data": np.asfortranarray(table(events, dtype=np.float64)), "sensor": (48, 64)},
    ):
        save(path, **arrays)
        with open_recording(path) as recording:
            assert recording.sensor == (48, 64)
            assert recording.read() == events
            for start in (0, 777, events.t_us[-1] - 5):
                assert recording.read(start, start + 40_000) == events.between(start, start + 40_000)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_that_are_no_events_are_refused_with_a_sentence(tmp_path: Path, save: Any) -> None:
    events, path = make_events(50), tmp_path / "events.npz"
    several = {"train": table(events), "test": table(events)}
    for arrays, sentence in (
        ({"format": "fate-labels", "t_us": [1]}, "holds labels, not events"),
        ({**columns(events), "x": events.x[:-1]}, "different lengths \\(t 50, x 49, y 50, p 50\\)"),
        ({**columns(events), "x": events.x[:, None]}, "array 'x' is uint16 of shape \\(50, 1\\)"),
        (several, "2 tables of events \\(train, test\\)"),
        ({"a": np.arange(3), "b": np.arange(4)}, "the arrays a, b; expected"),
        ({**columns(events), "sensor": [0, 64]}, "sensor"),
        ({**columns(events), "sensor": [48, 64, 1]}, "sensor"),
        ({**columns(events), "p": np.array([None] * 50)}, "Python objects"),
        ({}, "the arrays \\(none\\)"),
    ):
        save(path, **arrays)
        with pytest.raises(FormatError, match=sentence):
            open_recording(path).read()


def test_flipped_byte_in_a_column_is_found_by_its_checksum(tmp_path: Path) -> None:
    events, path = make_events(3000), tmp_path / "events.npz"
    for save in (np.savez, np.savez_compressed):
        save(path, **columns(events))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"\.npy is damaged"):
            read(path)


def test_encrypted_and_oddly_compressed_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.npz"
    np.savez(path, **columns(make_events(5)))
    data = bytearray(path.read_bytes())
    for at in find_all(data, b"PK\x01\x02"):
        data[at + 8] |= 1  # flag bits of the directory entry
    path.write_bytes(data)
    with pytest.raises(FormatError, match="encrypted"):
        read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name in "txyp":
            archive.writestr(f"{name}.npy", b"none")
    with pytest.raises(FormatError, match="compressed by method 14"):
        read(path)


def find_all(data: bytes, piece: bytes) -> list[int]:
    found, at = [], data.find(piece)
    while at >= 0:
        found.append(at)
        at = data.find(piece, at + 1)
    return found


def test_member_that_claims_more_than_deflate_can_hold_is_a_trap(tmp_path: Path) -> None:
    path = tmp_path / "events.npz"
    np.savez_compressed(path, **columns(make_events(5)))
    data = bytearray(path.read_bytes())
    for at in find_all(data, b"PK\x01\x02"):
        struct.pack_into("<I", data, at + 24, 0x7FFFFFFF)  # size after inflating, in the directory
    path.write_bytes(data)
    with pytest.raises(FormatError, match="more than deflate can"):
        read(path)


def test_member_shorter_or_longer_than_its_header_promises_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.npz"
    for change in (-3, 3):
        with zipfile.ZipFile(path, "w") as archive:
            for name, column in columns(make_events(50)).items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(column))
                    data = column.tobytes()
                    member.write(data[:change] if change < 0 else data + b"\0" * change)
        with pytest.raises(FormatError, match="its header promises"):
            read(path)


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["stored", "deflated", "table"]))
@settings(relaxed, max_examples=80)
def test_damaged_npz_gives_events_or_one_sentence(tmp_path: Path, seed: int, kind: str) -> None:
    events, path = make_events(60), tmp_path / "events.npz"
    save = np.savez_compressed if kind == "deflated" else np.savez
    save(path, **({"events": table(events)} if kind == "table" else columns(events)))
    damage_and_read(path, seed)


# ---- writers ------------------------------------------------------------------------------------------------


@given(events=event_lists(max_start=2**61), pieces=st.integers(1, 4))
@relaxed
def test_what_is_written_comes_back(tmp_path: Path, events: Events, pieces: int) -> None:
    for writer, suffix in ((NpyWriter, "npy"), (NpzWriter, "npz")):
        path = tmp_path / f"events.{suffix}"
        with writer(path, events.sensor) as file:
            for part in np.array_split(np.arange(len(events)), pieces):
                if len(part):
                    file.write(events[int(part[0]) : int(part[-1]) + 1])
        sensor = None if suffix == "npz" else events.sensor
        with open_recording(path, sensor=sensor) as recording:
            assert recording.read() == events
            assert recording.sensor == events.sensor


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    events = make_events(start=-5000)
    for writer, suffix in ((NpyWriter, "npy"), (NpzWriter, "npz")):
        with writer(tmp_path / f"events.{suffix}", events.sensor) as file:
            file.write(events)
    loaded = np.load(tmp_path / "events.npy", allow_pickle=False)
    assert loaded.dtype == np.dtype(FIELDS)
    archive = np.load(tmp_path / "events.npz", allow_pickle=False)
    assert str(archive["format"]) == "fate-events"
    assert int(archive["version"]) == 1
    assert archive["sensor"].tolist() == [48, 64]
    for name, column in columns(events).items():
        assert np.array_equal(loaded[name], column)
        assert np.array_equal(archive[name], column)
        assert archive[name].dtype == loaded[name].dtype
    assert all(info.compress_type == zipfile.ZIP_STORED for info in zipfile.ZipFile(tmp_path / "events.npz").infolist())


def test_same_events_give_the_same_bytes_and_leave_nothing_behind(tmp_path: Path) -> None:
    events = make_events()
    for name in ("a.npz", "b.npz"):
        with NpzWriter(tmp_path / name, events.sensor) as file:
            file.write(events)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with pytest.raises(FateError), NpzWriter(tmp_path / "c.npz", (48, 65)) as file:  # of another sensor
        file.write(events)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]
