"""``record`` stores what a source sends: the file has the same events, and gives the same boxes."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fate
from fate.boxes.detection_files import read_detections
from fate.errors import FateError, FateWarning
from fate.formats.prophesee.header import parse_header
from fate.formats.saving import write_events
from fate.inference.live import LiveStream
from fate.inference.sources import LiveSource, TcpSource
from fate.inference.stream import StreamingDetector
from fate.workflows.record import record
from tests.inference.streams import SENSOR, drive, same, small_detector
from tests.inference.test_recording_source import Given, largest_file, pieces, read

HZ = 50
THRESHOLD = 0.01


class Patient(StreamingDetector):
    """A detector that drops no window, however slow this machine is, and keeps its frames."""

    def live(self, source: LiveSource, hz: float = 200, **options: Any) -> LiveStream:
        return super().live(source, hz, **options | {"budget_ms": 1e6, "waiting": 10_000, "patience_us": 10**12})


@pytest.fixture(scope="module")
def detector() -> Patient:
    return Patient(small_detector(), name="small")


def play_over_tcp(file: Path) -> TcpSource:
    """A socket to which another thread sends the words of a RAW file in pieces of odd sizes."""
    data = file.read_bytes()
    data = data[parse_header(data).num_bytes :]
    source = TcpSource(0, SENSOR)

    def send() -> None:
        with socket.create_connection(("127.0.0.1", source.port)) as client:
            for first in range(0, len(data), 1001):
                client.sendall(data[first : first + 1001])

    threading.Thread(target=send, daemon=True).start()
    return source


@pytest.mark.slow
def test_a_recording_over_tcp_has_the_same_events_and_gives_the_same_boxes(tmp_path: Path, detector: Patient) -> None:
    write_events(tmp_path / "drive.raw", drive(300_000, start_us=123_456))
    frames: list[Any] = []
    done = record(
        play_over_tcp(tmp_path / "drive.raw"), tmp_path / "out.raw", detector, HZ, track=True, threshold=THRESHOLD,
        on_state=lambda state, frame: frames.append(frame),
    )  # fmt: skip
    assert read(tmp_path / "out.raw") == drive(300_000, start_us=123_456)
    assert done.state.events == 3000
    assert not done.source_failed
    assert done.detected is not None
    assert done.detected.summary["dropped"]["windows_dropped"] == 0
    options: Any = {"track": True, "threshold": THRESHOLD}
    with fate.open_recording(tmp_path / "out.raw") as recording:
        offline = list(detector.stream(recording, HZ, **options))
    assert len(frames) == len(offline) == 15
    assert all(same(live, again) for live, again in zip(frames, offline, strict=True))  # bit by bit
    assert sum(len(frame.boxes) for frame in frames) > 30
    log = read_detections(tmp_path / "out.jsonl")
    assert (log.recording, log.hz, log.facts["window_us"]) == ("out.raw", HZ, 20_000)
    fate.detect(tmp_path / "out.raw", detector, HZ, clip_windows=1, jsonl=tmp_path / "again.jsonl", **options)
    assert read_detections(tmp_path / "again.jsonl").labels() == log.labels()


def test_a_file_that_is_played_is_recorded_whole_without_a_detector(tmp_path: Path) -> None:
    write_events(tmp_path / "drive.npz", drive(100_000))
    done = record(tmp_path / "drive.npz", tmp_path / "out.raw")
    assert read(tmp_path / "out.raw") == drive(100_000)
    assert (done.detected, done.source_failed, done.ended) == (None, False, "the source ended")
    assert not (tmp_path / "out.jsonl").exists()
    assert "1 000 events" in done.lines()[0]


def break_off() -> None:
    raise FateError("the cable was pulled")


def test_a_source_that_fails_leaves_what_it_sent(tmp_path: Path, detector: Patient) -> None:
    first, second = pieces(drive(), [3000])
    done = record(Given([first, break_off, second]), tmp_path / "a.raw")
    assert done.source_failed
    assert "the cable was pulled" in done.ended
    assert read(tmp_path / "a.raw") == first
    with pytest.warns(FateWarning, match="the cable was pulled"):
        done = record(Given([first, break_off, second]), tmp_path / "b.raw", detector, HZ)
    assert done.source_failed
    assert read(tmp_path / "b.raw") == first


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limit there")
def test_a_full_disk_ends_a_recording_and_detection_goes_on(tmp_path: Path, detector: Patient) -> None:
    events = drive()
    with largest_file(15_001):
        with pytest.warns(FateWarning, match=r"a\.raw.*make room"):
            done = record(Given(pieces(events, range(100, 4000, 100))), tmp_path / "a.raw", detector, HZ)
        assert done.detected is not None
        assert done.detected.summary["events"] == len(events)
        assert str(tmp_path / "a.raw") in done.state.failed
        assert read(tmp_path / "a.raw") == events[: done.state.events]
        assert 0 < done.state.events < len(events)
        assert len(read_detections(tmp_path / "a.jsonl").frames) == done.detected.summary["windows"]
        with pytest.raises(FateError, match=r"b\.raw.*make room"):
            record(Given(pieces(events, range(100, 4000, 100))), tmp_path / "b.raw")
    assert len(read(tmp_path / "b.raw")) > 0


def test_wrong_values_are_refused_before_a_file_is_made(tmp_path: Path, detector: Patient) -> None:
    (tmp_path / "old.jsonl").write_text("precious")
    with pytest.raises(FateError, match=r"old\.jsonl"):
        record(Given([]), tmp_path / "old.raw", detector)
    with pytest.raises(FateError, match="5000"):
        record(Given([]), tmp_path / "a.raw", detector, 5000)
    with pytest.raises(FateError, match="missing.raw"):
        record("missing.raw", tmp_path / "a.raw")
    assert [file.name for file in tmp_path.iterdir()] == ["old.jsonl"]
