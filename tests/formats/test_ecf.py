"""ECF chunks. The oracle is Prophesee's own encoder: ``ecf_reference.npz`` holds what it made of the events that
``synthetic_events`` makes again here."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fate.errors import FateError, FormatError
from fate.events.events import Events
from fate.formats.opening import open_recording
from fate.formats.prophesee.ecf import FILTER_ID, decode_chunk

REFERENCE = Path(__file__).parents[1] / "data" / "ecf_reference.npz"
RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")], align=True)
CHUNK_ROWS = 16_384


def synthetic_events(kind: str) -> np.ndarray:
    """[E] records. RandomState, not Generator: its numbers are the same in every version of numpy."""
    random = np.random.RandomState(sum(kind.encode()))
    sizes = {"empty": 0, "one event": 1, "five events": 5, "one instant": 40_000, "stream": 2 * CHUNK_ROWS + 1234}
    n = sizes.get(kind, 3000)
    events = np.zeros(n, RECORD)
    events["t"] = 5_000_000_000 + np.cumsum(random.randint(0, 3, n))
    events["x"], events["y"] = random.randint(0, 2048, n), random.randint(0, 2048, n)
    events["p"] = random.randint(0, 2, n)
    if kind in ("rows", "lines", "stream"):
        events["y"] = np.repeat(events["y"], 6)[:n]
    if kind in ("lines", "stream"):
        events["x"] = np.cumsum(random.randint(1, 4, n)) % 1280
        events["y"] %= 720
        events["p"] = np.repeat(events["p"], 200)[:n]
    if kind == "gaps":
        events["t"] = np.cumsum(random.randint(0, 2, n) << random.randint(0, 45, n))
    if kind == "one instant":
        events["t"], events["y"], events["p"] = 7, 719, 1
        events["x"] = np.arange(n) % 2000
    return events


KINDS = ("empty", "one event", "five events", "scattered", "rows", "lines", "gaps", "one instant", "stream")
MODES = {"scattered": 2, "rows": 1, "lines": 0}  # the two low bits of a chunk: how y, x and p are packed


def reference_chunks(kind: str) -> list[bytes]:
    with np.load(REFERENCE, allow_pickle=False) as stored:
        data, offsets = stored[f"{kind} bytes"].tobytes(), stored[f"{kind} offsets"].tolist()
    return [data[first:last] for first, last in pairwise(offsets)]


def write_ecf_file(path: Path, chunks: list[bytes], rows: int, plain: dict[int, bytes] | None = None) -> None:
    """A Prophesee HDF5 file with these chunks; those in ``plain`` are stored with the filter skipped."""
    with h5py.File(path, "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((CHUNK_ROWS,))
        settings.set_filter(FILTER_ID, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((rows,), (h5py.h5s.UNLIMITED,))
        table = h5py.h5d.create(
            file.create_group("CD").id, b"events", h5py.h5t.py_create(RECORD, logical=True), space, settings
        )
        for i, chunk in enumerate(chunks):
            stored = (plain or {}).get(i)
            if stored is None:
                table.write_direct_chunk((i * CHUNK_ROWS,), chunk)
            else:
                table.write_direct_chunk((i * CHUNK_ROWS,), stored, filter_mask=1)
        file["EXT_TRIGGER/events"] = np.zeros(3, [("p", "<i2"), ("t", "<i8"), ("id", "<i2")])
        file.attrs["geometry"] = "1280x720"


def as_events(records: np.ndarray) -> Events:
    return Events(records["t"], records["x"], records["y"], records["p"], (720, 1280))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_the_reference_encoder_decode_to_the_events_they_were_made_from(kind: str) -> None:
    events = synthetic_events(kind)
    pieces = [decode_chunk(chunk) for chunk in reference_chunks(kind)]
    for i, name in enumerate("txyp"):
        np.testing.assert_array_equal(np.concatenate([piece[i] for piece in pieces]), events[name])


def test_the_reference_covers_all_three_packings() -> None:
    assert {kind: reference_chunks(kind)[0][0] & 3 for kind in MODES} == MODES


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_cut_anywhere_is_refused(kind: str) -> None:
    chunk = reference_chunks(kind)[0]
    for length in {*range(min(40, len(chunk))), len(chunk) // 2, len(chunk) - 1}:
        with pytest.raises(FormatError, match="is damaged"):
            decode_chunk(chunk[:length])


def test_more_events_than_a_chunk_may_hold_are_refused() -> None:
    with pytest.raises(FormatError, match="claims 3000 events; at most 2999 fit"):
        decode_chunk(reference_chunks("rows")[0], 2999)


def test_a_step_of_time_beyond_64_bits_is_refused() -> None:
    with pytest.raises(FormatError, match="64 bits"):
        decode_chunk((1 << 2 | 2).to_bytes(4, "little") + bytes(8) + b"\xf1" * 17 + b"\x01" + bytes(12))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS[1:]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
)
def test_mutated_chunks_decode_or_are_refused(kind: str, changes: list[tuple[float, int]]) -> None:
    chunk = bytearray(reference_chunks(kind)[-1][:4096])
    for place, value in changes:
        chunk[int(place * len(chunk))] = value
    try:
        columns = decode_chunk(bytes(chunk))
    except FateError:
        return
    assert len({len(column) for column in columns}) == 1


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 3))
def test_random_bytes_decode_or_are_refused(data: bytes, num_events: int, packing: int) -> None:
    try:
        columns = decode_chunk((num_events << 2 | packing).to_bytes(4, "little") + data)
    except FateError:
        return
    assert len(columns.t) == num_events


# ---- in an HDF5 file ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stream_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ecf") / "stream.hdf5"
    write_ecf_file(path, reference_chunks("stream"), len(synthetic_events("stream")))
    return path


def test_an_ecf_file_gives_its_events_sensor_and_triggers(stream_file: Path) -> None:
    with open_recording(stream_file) as recording:
        assert recording.format == "HDF5 Prophesee"
        assert recording.sensor == (720, 1280)
        assert recording.read() == as_events(synthetic_events("stream"))
        assert recording.index().skipped == {"triggers": 3}


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(-100, 35_000), st.integers(-100, 35_000)).map(sorted))
def test_windows_of_an_ecf_file_equal_a_linear_scan(stream_file: Path, window: list[int]) -> None:
    events = as_events(synthetic_events("stream"))
    start, end = (int(events.t_us[0]) + offset for offset in window)
    with open_recording(stream_file) as recording:
        assert recording.read(start, end) == events.between(start, end)


def test_a_chunk_stored_without_the_filter_is_read_as_it_is(tmp_path: Path) -> None:
    records = synthetic_events("stream")
    plain = {1: records[CHUNK_ROWS : 2 * CHUNK_ROWS].tobytes()}
    write_ecf_file(tmp_path / "a.hdf5", reference_chunks("stream"), len(records), plain)
    with open_recording(tmp_path / "a.hdf5") as recording:
        assert recording.read() == as_events(records)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    chunks = reference_chunks("stream")
    chunks[1] = chunks[1][:1000]
    write_ecf_file(tmp_path / "a.hdf5", chunks, len(synthetic_events("stream")))
    with (
        pytest.raises(FormatError, match=r"a\.hdf5: chunk 1 of /CD/events: is damaged"),
        open_recording(tmp_path / "a.hdf5") as recording,
    ):
        recording.read()


def test_a_chunk_with_too_few_events_and_a_missing_chunk_are_refused(tmp_path: Path) -> None:
    chunks, rows = reference_chunks("stream"), len(synthetic_events("stream"))
    write_ecf_file(tmp_path / "short.hdf5", [chunks[0], chunks[2], chunks[2]], rows)
    with (
        pytest.raises(FormatError, match="1234 events where 16384 were expected"),
        open_recording(tmp_path / "short.hdf5") as recording,
    ):
        recording.read()
    write_ecf_file(tmp_path / "missing.hdf5", chunks[:2], rows)
    with pytest.raises(FormatError, match="only 2 of its 3 chunks"):
        open_recording(tmp_path / "missing.hdf5")


def test_an_ecf_file_without_events_opens(tmp_path: Path) -> None:
    write_ecf_file(tmp_path / "none.hdf5", [], 0)
    with open_recording(tmp_path / "none.hdf5") as recording:
        assert recording.read() == Events.empty((720, 1280))
