"""Lines of boxes go to a series of files, or to a listener that may be late, gone or stuck; nothing waits for it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fate.boxes import line_outputs
from fate.boxes.detection_files import DetectionFiles, DetectionLog, read_detections
from fate.boxes.detections import DetectionFrame
from fate.boxes.line_outputs import open_lines
from fate.errors import FateError

WAIT_S = 60
LOG = DetectionLog("drive.raw", (48, 64), ("car",), 100, facts={"live": True})


def frame(number: int) -> DetectionFrame:
    box = np.array([[number % 8, 1, number % 8 + 5, 9]], np.float32)
    return DetectionFrame(10_000 * number, box, np.array([0.5], np.float32), np.array([0]), None)


def wait_for(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Listener:
    """A program that listens, and keeps what each connection said."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.said: list[bytes] = []
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._connections.append(connection)
                self.said.append(b"")
                while data := connection.recv(65536):
                    self.said[-1] += data

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines of all connections."""
        texts = [said.rpartition(b"\n")[0] for said in self.said]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def die(self) -> None:
        for each in (*self._connections, self._socket):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(WAIT_S)


@contextmanager
def listening(port: int = 0) -> Iterator[Listener]:
    listener = Listener(port)
    try:
        yield listener
    finally:
        listener.die()


def times(lines: list[dict[str, Any]]) -> list[int]:
    return [line["t_us"] // 10_000 for line in lines if "t_us" in line]


def test_each_file_of_a_rotation_can_be_read_alone_and_all_of_them_together(tmp_path: Path) -> None:
    frames = [frame(number) for number in range(100)]
    with DetectionFiles(LOG, jsonl=tmp_path / "a.jsonl", csv=tmp_path / "a.csv", rotate_bytes=2000) as files:
        for each in frames:
            files.add(each)
        files.finish({"summary": {"windows": 100}})
    parts = sorted(tmp_path.glob("a*.jsonl"), key=lambda path: (len(path.name), path.name))
    assert [path.name for path in parts[:3]] == ["a.jsonl", "a.001.jsonl", "a.002.jsonl"]
    logs = [read_detections(path) for path in parts]
    assert [each.t_us for log in logs for each in log.frames] == [each.t_us for each in frames]
    assert all(log.classes == ("car",) and log.frames for log in logs[:-1])
    assert all(path.stat().st_size <= 2000 for path in parts)
    (tmp_path / "all.jsonl").write_bytes(b"".join(path.read_bytes() for path in parts))
    together = read_detections(tmp_path / "all.jsonl")
    assert len(together.frames) == 100
    assert together.facts["summary"] == {"windows": 100}
    tables = sorted(tmp_path.glob("a*.csv"))
    assert all(path.read_text().startswith("t_us,x1") for path in tables)
    assert sum(path.read_text().count("\n") - 1 for path in tables) == 100


def test_a_restart_is_kept_when_a_file_is_read_and_written_again(tmp_path: Path) -> None:
    frames = [frame(5), replace(frame(2), restarted="time went back"), frame(3)]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for target in (first, second):
        with DetectionFiles(LOG, jsonl=target) as files:
            for each in frames:
                files.add(each)
            files.finish({})
        frames = list(read_detections(target).frames)
    assert [each.restarted for each in frames] == ["", "time went back", ""]
    assert first.read_bytes() == second.read_bytes()


def test_a_run_that_is_started_again_replaces_no_file_of_a_rotation(tmp_path: Path) -> None:
    for number in range(3):
        with DetectionFiles(LOG, jsonl=tmp_path / "a.jsonl", rotate_bytes=10_000) as files:
            files.add(frame(number))
            files.finish({})
            expected = "a.jsonl" if number == 0 else f"a.{number:03d}.jsonl"
            assert files.series() == {str(tmp_path / "a.jsonl"): (str(tmp_path / expected),)}
    found = [read_detections(path).frames[0].t_us for path in sorted(tmp_path.iterdir(), key=lambda p: len(p.name))]
    assert sorted(found) == [0, 10_000, 20_000]
    with pytest.raises(FateError, match="rotate_bytes=0"):
        open_lines(tmp_path / "b.jsonl", rotate_bytes=0)


def test_a_listener_gets_each_line_at_once() -> None:
    with listening() as listener, DetectionFiles(LOG, jsonl=f"tcp:127.0.0.1:{listener.port}") as files:
        for number in range(5):
            files.add(frame(number))
            wait_for(lambda: times(listener.lines()) == list(range(number + 1)))  # noqa: B023  (waits here)
        assert files.count_dropped_lines() == {}
        files.finish({"summary": {"windows": 5}})
        wait_for(lambda: "summary" in listener.lines()[-1])
        assert listener.lines()[0]["format"] == "fate-detections-lines"
        assert listener.lines()[0]["version"] == 1


def test_a_listener_that_comes_late_dies_and_returns_gets_the_head_each_time() -> None:
    with listening() as first:
        port = first.port
    with DetectionFiles(LOG, jsonl=f"tcp:localhost:{port}") as files:
        files.add(frame(0))
        with listening(port) as second:
            wait_for(lambda: times(second.lines()) == [0])
        for number in range(1, 5):
            files.add(frame(number))
        with listening(port) as third:
            wait_for(lambda: times(third.lines()) == [1, 2, 3, 4])
            assert third.lines()[0]["format"] == "fate-detections-lines"
        assert files.count_dropped_lines() == {}


@pytest.mark.parametrize("is_stuck", [False, True])
def test_lines_that_a_listener_does_not_take_are_dropped_and_counted(
    is_stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_outputs, "MAX_WAITING", 10)
    monkeypatch.setattr(line_outputs, "LAST_WAIT_S", 0.1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_stuck:  # it accepts a connection, and reads nothing
            listener.listen(1)
        name = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with open_lines(name) as lines:
            lines.write("head\n")
            text = f"{'x' * 1_000_000}\n" if is_stuck else "line\n"  # more than the network takes
            for _ in range(100):
                lines.write(text)
            lines.settle()
            assert 80 <= lines.dropped_lines <= 100
            if not is_stuck:
                assert lines.dropped_lines == 100


def test_a_recording_waits_for_a_listener_and_says_if_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_outputs, "MAX_WAITING", 10)
    log = DetectionLog("drive.raw", (48, 64), ("car",), 100)
    with listening() as listener, DetectionFiles(log, csv=f"tcp:127.0.0.1:{listener.port}") as files:
        for number in range(500):
            files.add(frame(number))
        assert files.count_dropped_lines() == {}
        files.finish({})
        wait_for(lambda: listener.said[0].count(b"\n") == 501)
    monkeypatch.setattr(line_outputs, "TIMEOUT_S", 0.2)
    name = f"tcp:127.0.0.1:{listener.port}"
    with DetectionFiles(log, csv=name) as files, pytest.raises(FateError, match=rf"{name}.*start it"):
        for number in range(500):
            files.add(frame(number))


@pytest.mark.parametrize("name", ["tcp:9000", "tcp::9000", "tcp:host:0", "tcp:host:65536", "tcp:host:", "tcp:a b:1"])
def test_a_name_that_is_no_address_is_refused(name: str) -> None:
    with pytest.raises(FateError, match=r"tcp:HOST:PORT"):
        open_lines(name)
    with pytest.raises(FateError, match="name of a file"), DetectionFiles(LOG, json=name):
        pass
