"""A source that is recorded: its events are unchanged, the file has them all, and a full disk stops nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

import fate
from fate.errors import FateError
from fate.events.events import Events
from fate.formats.saving import open_writer
from fate.inference import recording_source
from fate.inference.recording_source import RecordingSource
from fate.inference.sources import FileSource, LiveSource
from tests.inference.streams import SENSOR, drive, largest_file, pieces


class Given(LiveSource):
    """A source that yields what it was given; a function is called in between."""

    def __init__(self, given: Sequence[Events | Callable[[], object]]) -> None:
        super().__init__(SENSOR)
        self.given, self.closed = given, threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()

    def __iter__(self) -> Iterator[Events]:
        for each in self.given:
            if isinstance(each, Events):
                yield each
            else:
                each()


def read(file: Path) -> Events:
    with fate.open_recording(file) as recording:
        return recording.read()


@pytest.mark.parametrize("name", ["drive.raw", "drive.dat", "drive.csv"])
def test_a_recording_decodes_to_the_events_that_the_source_sent(tmp_path: Path, name: str) -> None:
    events = drive()
    source = RecordingSource(Given(pieces(events, [0, 0, 1, 700, 701, 3000])))
    source.start(tmp_path / name)
    assert Events.concatenate(list(source)) == events
    assert read(tmp_path / name) == events
    state = source.state
    assert (state.path, state.events, state.is_active, state.failed) == (tmp_path / name, len(events), False, "")
    assert state.bytes == (tmp_path / name).stat().st_size


def test_a_recording_has_the_events_from_start_to_stop_and_may_be_repeated(tmp_path: Path) -> None:
    first, second, third, fourth, fifth = pieces(drive(), [500, 1200, 2000, 3000])
    given = Given([])
    source = RecordingSource(given)
    begin_a, begin_b = (partial(source.start, tmp_path / name) for name in ("a.raw", "b.raw"))
    given.given = [first, begin_a, second, source.stop, third, begin_b, fourth, fifth]
    assert not source.state.is_active
    assert Events.concatenate(list(source)) == drive()
    assert read(tmp_path / "a.raw") == second
    assert read(tmp_path / "b.raw") == Events.concatenate([fourth, fifth])


def test_closing_a_source_completes_its_recording(tmp_path: Path) -> None:
    source = RecordingSource(Given(pieces(drive(), [1000])))
    source.start(tmp_path / "a.raw")
    sent = iter(source)
    first = next(sent)
    source.close()
    assert read(tmp_path / "a.raw") == first
    assert not source.state.is_active


def test_a_clock_that_starts_again_begins_a_further_file(tmp_path: Path) -> None:
    late, early = drive(start_us=9_000_000), drive()
    source = RecordingSource(Given([late, early]))
    source.start(tmp_path / "a.raw")
    list(source)
    assert read(tmp_path / "a.raw") == late
    assert read(tmp_path / "a.001.raw") == early
    assert source.state.files == (tmp_path / "a.raw", tmp_path / "a.001.raw")
    assert source.state.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())


class ComingBack(Given):
    """A source that has gone and come back before every piece but the first."""

    number = 0

    @property
    def reconnections(self) -> int:
        return self.number - 1

    def __iter__(self) -> Iterator[Events]:
        for events in super().__iter__():
            self.number += 1
            yield events


def test_each_connection_has_a_file_of_its_own_and_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "a.001.raw").write_bytes(b"precious")
    first, later, again = drive(), drive(start_us=500_000), drive(start_us=600_000)  # the last goes back a little
    source = RecordingSource(ComingBack([first, later, again]))
    source.start(tmp_path / "a.raw")
    list(source)
    names = ["a.raw", "a.002.raw", "a.003.raw"]
    assert [read(tmp_path / name) for name in names] == [first, later, again]
    assert (tmp_path / "a.001.raw").read_bytes() == b"precious"
    assert source.state.files == tuple(tmp_path / name for name in names)
    assert source.state.skipped_events == 0
    assert all(fact in source.state.describe() for fact in [*names, "12 000 events", "bytes"])


def test_events_that_are_a_little_too_early_are_not_recorded_but_counted(tmp_path: Path) -> None:
    first, second = drive(), drive(start_us=300_000)
    source = RecordingSource(Given([first, second]))
    source.start(tmp_path / "a.raw")
    list(source)
    skipped = int((second.t_us < first.t_us[-1]).sum())
    assert source.state.skipped_events == skipped > 0
    assert read(tmp_path / "a.raw") == Events.concatenate([first, second[skipped:]])


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
@pytest.mark.parametrize("name", ["drive.raw", "drive.dat", "drive.csv"])
def test_a_full_disk_ends_the_recording_and_not_the_source(tmp_path: Path, name: str) -> None:
    events = drive()
    source = RecordingSource(Given(pieces(events, range(100, 4000, 100))))
    with largest_file(15_001):
        source.start(tmp_path / name)
        assert Events.concatenate(list(source)) == events
    state = source.state
    assert str(tmp_path / name) in state.failed
    assert "make room" in state.failed
    assert not state.is_active
    assert 0 < state.events < len(events)
    assert state.bytes == (tmp_path / name).stat().st_size <= 15_001
    assert read(tmp_path / name) == events[: state.events]
    source.start(tmp_path / f"again_{name}")  # after room was made
    assert source.stop().failed == ""


def test_a_disk_that_is_too_slow_ends_the_recording_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = pieces(drive(), [10, 3500])
    monkeypatch.setattr(recording_source, "MAX_WAITING_EVENTS", 1000)
    source = RecordingSource(Given([first, second, third]))
    source.start(tmp_path / "a.raw")
    assert Events.concatenate(list(source)) == drive()
    assert "slow" in source.state.failed
    assert read(tmp_path / "a.raw") == first


def test_a_recording_replaces_no_file_and_is_not_started_twice(tmp_path: Path) -> None:
    (tmp_path / "old.raw").write_bytes(b"precious")
    source = RecordingSource(Given([drive()]))
    with pytest.raises(FateError, match=r"old\.raw.*another name"):
        source.start(tmp_path / "old.raw")
    assert (tmp_path / "old.raw").read_bytes() == b"precious"
    for name in ("a.h5", "a.hdf5", "a.npz", "a.npy", "a.mp4", "missing/a.raw"):
        with pytest.raises(FateError, match="a.raw|RAW|raw"):
            source.start(tmp_path / name)
        assert not (tmp_path / name).exists()
    source.start(tmp_path / "a.raw")
    with pytest.raises(FateError, match=r"b\.raw.*a\.raw"):
        source.start(tmp_path / "b.raw")
    list(source)
    assert read(tmp_path / "a.raw") == drive()


def test_times_that_a_format_cannot_hold_end_the_recording_with_the_remedy(tmp_path: Path) -> None:
    unix = drive(start_us=1_800_000_000_000_000)
    source = RecordingSource(Given([unix]))
    source.start(tmp_path / "a.raw")
    assert Events.concatenate(list(source)) == unix
    assert "CSV" in source.state.failed
    assert list(tmp_path.iterdir()) == []  # a file without events helps nobody
    assert (source.state.files, source.state.bytes) == ((), 0)
    source = RecordingSource(Given([drive(), unix]))
    source.start(tmp_path / "b.raw")
    list(source)
    assert read(tmp_path / "b.raw") == drive()  # what was written before stays


def test_the_age_of_events_is_known_if_the_other_source_knows_it(tmp_path: Path) -> None:
    fate.write_events(tmp_path / "drive.npz", drive(1000))
    played = FileSource(tmp_path / "drive.npz", clock=lambda: 0.0)
    assert RecordingSource(played).age_s(1000) == played.age_s(1000)
    assert not hasattr(RecordingSource(Given([])), "age_s")


def test_a_recording_of_days_is_written_in_evt3(tmp_path: Path) -> None:
    hour = 3_600_000_000
    parts = [drive(1000, start_us=number * hour) for number in range(0, 48, 8)]  # a wrap of the format lasts 17 s
    with open_writer(tmp_path / "a.raw", SENSOR, grows=True) as writer:
        for part in parts:
            writer.write(part)
    assert read(tmp_path / "a.raw") == Events.concatenate(parts)
