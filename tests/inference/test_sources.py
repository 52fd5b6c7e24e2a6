"""Sources of live events: a file at its own pace, pipes, sockets with whatever comes through them, a camera."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fate
from fate.errors import FateError, FateWarning, MissingDependencyError
from fate.events.events import Events
from fate.formats.prophesee.header import parse_header
from fate.inference.sources import (
    BytesToEvents,
    CameraSource,
    FileSource,
    StandardInput,
    TcpSource,
    open_source,
)  # fmt: skip
from tests.conftest import make_events
from tests.inference.streams import SENSOR, drive

WAIT_S = 20  # for what comes at once


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> tuple[Events, bytes]:
    """Events, and the EVT3 file that holds them, with its header."""
    events = make_events(3000, tuple(SENSOR), start=5000)
    file = tmp_path_factory.mktemp("raw") / "drive.raw"
    fate.write_events(file, events)
    assert fate.open_recording(file).format == "EVT3"
    return events, file.read_bytes()


def words(raw: bytes) -> bytes:
    """Without the header."""
    return raw[parse_header(raw).num_bytes :]


def joined(pieces: Iterator[Events]) -> Events:
    return Events.concatenate([Events.empty(SENSOR), *pieces])


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_file_is_played_at_its_own_pace_and_whole(tmp_path: Path) -> None:
    fate.write_events(tmp_path / "drive.npz", drive(50_000))
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    source = FileSource(tmp_path / "drive.npz", speed=2, piece_us=4000, clock=lambda: now[0], sleep=sleep)
    given, whole = [], drive(50_000)
    for piece in source:
        if len(piece):  # it comes when it is over, not before
            assert now[0] >= 100 + (piece.t_us[-1] - whole.t_us[0]) / 2e6
        given.append(piece)
        given_us = piece.t_us[-1] if len(piece) else whole.t_us[0]
        assert source.age_s(int(given_us)) == pytest.approx(now[0] - 100 - (given_us - whole.t_us[0]) / 2e6, abs=1e-9)
    assert Events.concatenate(given) == whole
    assert sum(slept) == pytest.approx(0.025, rel=0.01)


def test_a_file_that_is_played_again_continues_its_times(tmp_path: Path) -> None:
    once = drive(50_000)
    fate.write_events(tmp_path / "drive.npz", once)
    source = FileSource(tmp_path / "drive.npz", loop=True, piece_us=4000, sleep=lambda _: None)
    given, count = [], 0
    for piece in source:
        given.append(piece)
        count += len(piece)
        if count >= 3 * len(once):
            break
    length = fate.open_recording(tmp_path / "drive.npz").end_us - int(once.t_us[0])
    assert joined(iter(given)) == Events.concatenate([once, once.shifted(length), once.shifted(2 * length)])


@pytest.mark.parametrize("piece_us", [700, 4000, 10**9])
def test_pieces_are_cut_where_they_should_be_whatever_is_read_ahead(tmp_path: Path, piece_us: int) -> None:
    fate.write_events(tmp_path / "drive.npz", drive(50_000))
    pieces = list(FileSource(tmp_path / "drive.npz", piece_us=piece_us, sleep=lambda _: None))
    assert Events.concatenate(pieces) == drive(50_000)
    start = drive(50_000).t_us[0]
    for number, piece in enumerate(pieces):
        assert ((piece.t_us - start) // piece_us == number).all()


def test_a_file_whose_reader_is_late_does_not_sleep_and_can_be_closed(tmp_path: Path) -> None:
    fate.write_events(tmp_path / "drive.npz", drive(50_000))
    now = iter(range(1000))
    with fate.open_recording(tmp_path / "drive.npz") as recording:
        source = FileSource(recording, clock=lambda: next(now), sleep=pytest.fail)
        pieces = iter(source)
        assert len(next(pieces))
        source.close()
        assert list(pieces) == []
        assert recording.num_events == 500  # the caller's own stays open


def test_a_reader_that_compiles_at_first_makes_no_piece_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fate.write_events(tmp_path / "drive.npz", drive(50_000))
    now, slept = [0.0], list[float]()
    with fate.open_recording(tmp_path / "drive.npz") as recording:
        source = FileSource(recording, clock=lambda: now[0], sleep=slept.append)
        read, delays = source._recording.read, iter([9.0])

        def slow_at_first(first: int, last: int) -> Events:
            now[0] += next(delays, 0.0)
            return read(first, last)

        monkeypatch.setattr(source._recording, "read", slow_at_first)
        next(iter(source))
    assert slept == [pytest.approx(0.005)]


@pytest.mark.parametrize("begin", [b"% Version 2\n% Width 4\n% Height 4\n", b"#!AER-DAT4.0\r\n", b"PK\x03\x04"])
def test_a_file_of_another_kind_on_a_pipe_is_refused(begin: bytes) -> None:
    with pytest.raises(FateError, match="begins like .*; give the file itself"):
        StandardInput((4, 4), stream=io.BytesIO(begin + bytes(64)))


# ---- pipes ----------------------------------------------------------------------------------------------------------


class Pipe(io.RawIOBase):
    """Gives what was written in pieces of given sizes."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self.data, self.sizes = data, sizes

    def read1(self, most: int) -> bytes:
        size = min(self.sizes.pop(0) if self.sizes else most, most)
        part, self.data = self.data[:size], self.data[size:]
        return part


@given(st.lists(st.integers(1, 300), max_size=40))
def test_a_raw_file_through_a_pipe_is_understood_however_it_is_cut(raw: tuple[Events, bytes], sizes: list[int]) -> None:
    source = StandardInput(stream=Pipe(raw[1], sizes))  # type: ignore[arg-type]
    assert source.sensor == SENSOR
    assert joined(iter(source)) == raw[0]
    assert source.counts == {}


def test_words_without_a_header_need_a_sensor(raw: tuple[Events, bytes]) -> None:
    with pytest.raises(FateError, match="how large the sensor is"):
        StandardInput(stream=io.BytesIO(words(raw[1])))
    assert joined(iter(StandardInput(SENSOR, stream=io.BytesIO(words(raw[1]))))) == raw[0]


def test_a_pipe_that_gives_nothing_is_an_error_with_a_reason() -> None:
    with pytest.raises(FateError, match="ended before the first event"):
        StandardInput(SENSOR, stream=io.BytesIO(b""))


def test_a_cut_word_at_the_end_and_events_outside_are_counted(raw: tuple[Events, bytes]) -> None:
    source = StandardInput((32, 64), stream=io.BytesIO(words(raw[1]) + b"\x01"))
    found = sum(len(piece) for piece in source)
    assert source.counts["bytes of an unfinished word"] == 1
    assert found + source.counts["events outside the sensor"] == len(raw[0])


def test_a_size_that_differs_from_the_header_of_a_pipe_is_refused(raw: tuple[Events, bytes]) -> None:
    assert joined(iter(StandardInput(SENSOR, stream=io.BytesIO(raw[1])))) == raw[0]
    for size in ((32, 64), (128, 64)):
        with pytest.raises(FateError, match=rf"64×64.*64×{size[0]}.*sensor=\(64, 64\)"):
            StandardInput(size, stream=io.BytesIO(raw[1]))


def test_a_client_that_is_wholly_outside_the_sensor_is_warned_of_and_counted() -> None:
    data = np.array([0x8000, 0x6000, *[0x0000 | 20, 0x2000 | 300] * 200], "<u2").tobytes()  # 200 events at (300, 20)
    source = TcpSource(0, SENSOR, once=False)
    with pytest.warns(FateWarning, match=r"64×64.*x = 300, y = 20.*sensor=") as caught:
        reading = Reading(source)
        with socket.create_connection(("127.0.0.1", source.port)) as client:
            client.sendall(data)
        reading.until(lambda: source.counts.get("clients without events"))
        assert len(reading.end()) == 0
    assert len(caught) == 1
    assert source.counts["events outside the sensor"] == 200


def test_time_that_goes_back_costs_one_piece_and_is_counted(raw: tuple[Events, bytes]) -> None:
    decoding = BytesToEvents("evt2", (4, 4))
    high = [(0x8 << 28) | number for number in (1000, 10)]
    event = (0x1 << 28) | (1 << 11) | 1
    later, earlier = (np.array([each, event], "<u4").tobytes() for each in high)
    assert [len(decoding.feed(piece)) for piece in (later, earlier, earlier)] == [1, 0, 1]
    assert decoding.counts["refused pieces"] == 1
    assert decoding.counts["refused bytes"] == 8


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_no_bytes_whatever_stop_the_decoding(pieces: list[bytes]) -> None:
    decoding = BytesToEvents("evt3", SENSOR)
    for piece in pieces:
        decoding.feed(piece)
    assert all(number > 0 for number in decoding.counts.values())


# ---- sockets --------------------------------------------------------------------------------------------------------


class Reading:
    """A source, read by a thread of its own."""

    def __init__(self, source: Any) -> None:
        self.source, self.pieces = source, list[Events]()
        self.grown = threading.Condition()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for piece in self.source:
            with self.grown:
                self.pieces.append(piece)
                self.grown.notify_all()
        with self.grown:
            self.grown.notify_all()

    def until(self, condition: Any) -> None:
        """Wait until something is true of the source."""
        with self.grown:
            for _ in range(WAIT_S * 50):
                if condition():
                    return
                self.grown.wait(0.02)
        raise AssertionError(f"it did not come about; the source counted {self.source.counts}")

    def end(self) -> Events:
        self.source.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return joined(iter(self.pieces))

    @property
    def events(self) -> int:
        return sum(len(piece) for piece in self.pieces)


def test_what_a_client_sends_over_tcp_arrives_whole(raw: tuple[Events, bytes]) -> None:
    source = TcpSource(0, SENSOR)
    assert source.host == "127.0.0.1"
    reading = Reading(source)
    with socket.create_connection(("127.0.0.1", source.port)) as client:
        data = words(raw[1])
        for begin in range(0, len(data), 777):
            client.sendall(data[begin : begin + 777])
    reading.thread.join(WAIT_S)  # with the client the source ends
    assert reading.end() == raw[0]
    assert source.counts["clients"] == 1


def test_a_second_client_is_refused_and_the_next_one_served(raw: tuple[Events, bytes]) -> None:
    source = TcpSource(0, SENSOR, once=False)
    reading = Reading(source)
    address = ("127.0.0.1", source.port)
    with socket.create_connection(address) as client:
        client.sendall(words(raw[1]))
        reading.until(lambda: reading.events == len(raw[0]))
        with socket.create_connection(address) as second:
            second.settimeout(WAIT_S)
            assert second.recv(1) == b""  # shut
    with socket.create_connection(address) as client:
        client.sendall(words(raw[1]))
        reading.until(lambda: reading.events == 2 * len(raw[0]))
    source.close()
    reading.thread.join(WAIT_S)
    assert (source.counts["clients"], source.counts["clients refused"]) == (2, 1)


def connect(source: TcpSource) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", source.port))
    client.settimeout(WAIT_S)
    return client


def test_clients_that_send_no_event_do_not_end_the_source(raw: tuple[Events, bytes]) -> None:
    source = TcpSource(0, SENSOR)
    reading = Reading(source)
    with connect(source):
        pass  # as a port scan does
    with connect(source) as client:
        client.sendall(b"\x00\x80\x00\x80")  # two words of time, and no event
    reading.until(lambda: source.counts.get("clients without events") == 2)
    assert reading.thread.is_alive()
    with connect(source), connect(source) as client:  # the first one stays and says nothing
        client.sendall(words(raw[1]))
    reading.thread.join(WAIT_S)
    assert not reading.thread.is_alive()
    assert reading.end() == raw[0]
    assert source.counts["clients"] == 1


def test_a_silent_client_is_dropped_and_the_source_waits_on(raw: tuple[Events, bytes]) -> None:
    now = [0.0]
    source = TcpSource(0, SENSOR, idle_s=5, clock=lambda: now[0])
    reading = Reading(source)
    with connect(source) as silent, connect(source) as talking:
        talking.sendall(words(raw[1]))
        assert silent.recv(1) == b""  # another has the stream
        reading.until(lambda: reading.events == len(raw[0]))
        now[0] = 6.0
        assert talking.recv(1) == b""
    reading.thread.join(WAIT_S)
    assert (source.counts["clients refused"], source.counts["silent clients dropped"]) == (1, 1)
    assert reading.end() == raw[0]


def test_a_client_without_events_loses_the_stream_to_one_that_has_some(raw: tuple[Events, bytes]) -> None:
    now = [0.0]
    source = TcpSource(0, SENSOR, idle_s=5, clock=lambda: now[0])
    reading = Reading(source)
    data = words(raw[1])
    with connect(source) as holding:
        holding.sendall(data)
        reading.until(lambda: reading.events == len(raw[0]))
        for now[0] in (3.0, 6.0, 9.0):  # bytes now and then, and no event
            pieces = len(reading.pieces)
            holding.sendall(b"\x00")
            reading.until(lambda pieces=pieces: len(reading.pieces) > pieces)
        with connect(source) as waiting:
            waiting.sendall(data)
            assert holding.recv(1) == b""
            reading.until(lambda: reading.events == 2 * len(raw[0]))
    reading.thread.join(WAIT_S)
    assert not reading.thread.is_alive()
    assert source.counts["clients"] == 2


def test_many_silent_clients_do_not_keep_the_camera_out(raw: tuple[Events, bytes]) -> None:
    source = TcpSource(0, SENSOR)
    reading = Reading(source)
    silent = [connect(source) for _ in range(40)]
    with connect(source) as camera:
        camera.sendall(words(raw[1]))
    reading.thread.join(WAIT_S)
    for client in silent:
        client.close()
    assert reading.end() == raw[0]
    assert source.counts["clients"] == 1


@pytest.mark.parametrize("name", ["tcp:0", "tcp:99999", "tcp:", "http:80", "udp:39471", "tcp:\uff11"])
def test_names_that_are_no_source_are_refused(name: str) -> None:
    with pytest.raises(FateError, match="tcp"):
        open_source(name, SENSOR)


def test_garbage_over_tcp_is_survived_and_counted(raw: tuple[Events, bytes]) -> None:
    source = TcpSource(0, SENSOR)
    reading = Reading(source)
    with connect(source) as client:
        client.sendall(words(raw[1]))
        reading.until(lambda: reading.events == len(raw[0]))
        client.sendall(np.random.default_rng(0).bytes(20_000))
    reading.thread.join(WAIT_S)
    assert not reading.thread.is_alive()
    assert sum(source.counts.values()) > 100
    assert reading.end()[: len(raw[0])] == raw[0]


def test_a_port_that_is_taken_is_an_error_with_a_reason() -> None:
    first = TcpSource(0, SENSOR)
    with pytest.raises(FateError, match="cannot be listened on"):
        TcpSource(first.port, SENSOR)
    first._listener.close()
    with pytest.raises(FateError, match="cannot be listened on"):
        TcpSource(99_999, SENSOR)


# ---- a camera; test_camera.py has the other tests ------------------------------------------------------------------


def test_a_pipe_does_not_return() -> None:
    with pytest.raises(FateError, match="tcp:PORT"):
        open_source("-", (64, 64), reconnect=True)


def test_without_the_driver_the_pip_line_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuromorphic_drivers", None)
    with pytest.raises(MissingDependencyError, match="pip install neuromorphic-drivers"):
        CameraSource()
