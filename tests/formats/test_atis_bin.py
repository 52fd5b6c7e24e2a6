"""The .bin files of N-MNIST and N-Caltech101: records, overflows, recognition without a magic number."""

from __future__ import annotations

import random
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
from fate.formats.others.atis_bin import AtisBinDecoder

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def record(t: int, x: int, y: int, p: int) -> bytes:
    """One record: x, y, then polarity and 23 bits of time, highest byte first."""
    return bytes([x, y]) + (p << 23 | t).to_bytes(3, "big")


def slow_decode(data: bytes) -> list[tuple[int, int, int, int]]:
    """(t, x, y, p) of every event, one record after the other."""
    found, added = [], 0
    for i in range(0, len(data) - len(data) % 5, 5):
        x, y = data[i], data[i + 1]
        rest = int.from_bytes(data[i + 2 : i + 5], "big")
        if y == 240:
            added += 8192
        else:
            found.append((rest % 2**23 + added, x, y, rest // 2**23))
    return found


def rows(events: Events) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in (events.t_us, events.x, events.y, events.p)), strict=True))


def write(folder: Path, data: bytes, name: str = "00001.bin") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def saccade(n: int, width: int, height: int) -> bytes:
    rng = np.random.default_rng(n)
    times = np.cumsum(rng.integers(0, 60, n)).tolist()
    return b"".join(record(t, int(rng.integers(width)), int(rng.integers(height)), int(rng.integers(2))) for t in times)


@pytest.mark.parametrize(("width", "height", "sensor"), [(34, 34, (34, 34)), (233, 175, (180, 240))])
def test_files_are_recognised_and_their_sensor_is_that_of_the_dataset(
    tmp_path: Path, width: int, height: int, sensor: tuple[int, int]
) -> None:
    data = saccade(3000, width, height)
    with open_recording(write(tmp_path, data)) as recording:
        assert recording.format == "ATIS BIN"
        assert recording.sensor == sensor
        assert rows(recording.read()) == slow_decode(data)
        start = recording.start_us + 20_000
        assert recording.read(start, start + 9000) == recording.read().between(start, start + 9000)


def test_a_long_file_reads_by_window_as_by_linear_scan(tmp_path: Path) -> None:
    data = b"".join(saccade(7500, 34, 34) + record(0, 0, 240, 0) * 80 for _ in range(4))  # more than two blocks
    with open_recording(write(tmp_path, data)) as recording:
        whole = recording.read()
        assert rows(whole) == slow_decode(data)
        assert recording.index().num_blocks > 2
        for start in range(0, recording.end_us, 170_000):
            assert recording.read(start, start + 60_000) == whole.between(start, start + 60_000)


def test_overflow_records_move_time_on_and_are_counted(tmp_path: Path) -> None:
    data = record(8000, 1, 2, 1) + record(0, 0, 240, 0) + record(10, 3, 4, 0) + record(20, 0, 240, 1)
    with open_recording(write(tmp_path, data)) as recording:
        assert rows(recording.read()) == [(8000, 1, 2, 1), (8202, 3, 4, 0)]
        assert recording.index().skipped == {"time overflows": 2}


def test_a_cut_record_is_reported_and_the_rest_delivered(tmp_path: Path) -> None:
    path = write(tmp_path, saccade(40, 34, 34)[:-2])
    with open_recording(path) as recording, pytest.warns(FateWarning, match="last 3 bytes"):
        assert len(recording.read()) == 39


@pytest.mark.parametrize(
    "content",
    [
        random.Random(1).randbytes(5000),
        bytes(5000),
        saccade(100, 34, 34)[5:][::-1],
        b"\x01\x02",
        b"\x00" + saccade(300, 34, 34),
    ],
    ids=["random", "zeros", "backwards", "too short", "shifted by a byte"],
)
def test_other_bin_files_are_refused_with_what_was_expected(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    with pytest.raises(FormatError, match="is not a .bin recording .*5-byte records") as caught:
        open_recording(path)
    assert str(caught.value).startswith(str(path))
    assert "format=" in str(caught.value)


def test_the_suffix_is_needed_unless_the_format_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, saccade(100, 34, 34), "00001.events")
    with pytest.raises(FormatError, match="not an event file that is known"):
        open_recording(path)
    with open_recording(path, format="bin", sensor=(240, 304)) as recording:
        assert recording.sensor == (240, 304)
        assert len(recording.read()) == 100


@relaxed
@given(
    st.lists(
        st.tuples(st.integers(0, 2**23 - 1), st.integers(0, 255), st.integers(0, 255), st.integers(0, 1)), max_size=60
    ),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_bytes_in_any_pieces_give_what_a_slow_decoder_gives(
    found: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    data = b"".join(record(*row) for row in sorted(found))
    edges = sorted({0, len(data), *(min(5 * (cut // 5), len(data)) for cut in cuts)})
    decoder = AtisBinDecoder((256, 256))
    decoded: list[tuple[int, ...]] = []
    for a, b in pairwise(edges):
        columns, used = decoder.decode(data[a:b])
        assert used == b - a
        decoded += zip(*(column.tolist() for column in columns), strict=True)
    assert decoded == slow_decode(data)
    if decoded == sorted(decoded, key=lambda row: row[0]):
        stream = AtisBinDecoder((256, 256))
        fed = [
            stream.feed(data[a:b]) for a, b in pairwise(sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)}))
        ]
        assert rows(Events.concatenate([Events.empty((256, 256)), *fed])) == decoded


@relaxed
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6), st.integers(1, 400))
def test_damaged_files_give_a_sentence_or_valid_events(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(saccade(80, 34, 34))
    for position, value in changes:
        data[position % len(data)] = value
    path = write(tmp_path_factory.mktemp("damaged"), bytes(data[:length]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_recording(path, out_of_bounds="drop", unsorted="sort") as recording:
                assert (np.diff(recording.read().t_us) >= 0).all()
        except FateError as error:
            assert str(error).startswith(str(path))
