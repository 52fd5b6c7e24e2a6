"""Live detection over real sockets survives its sources and listeners; every event that is lost is counted."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fate
from fate.boxes.detection_files import read_detections
from fate.errors import FateError, FateWarning
from fate.events.events import Events
from fate.formats.prophesee.header import parse_header
from fate.inference.sources import LiveSource, TcpSource
from fate.workflows.detect import Detected
from fate.workflows.detect_live import detect_live
from tests.inference.streams import SENSOR, QuickDetector, drive, largest_file

HZ = 100
WAIT_S = 60


def words(events: Events, folder: Path) -> bytes:
    """The words of EVT3, as a camera sends them."""
    file = folder / f"{time.monotonic_ns()}.raw"
    fate.write_events(file, events)
    data = file.read_bytes()
    return data[parse_header(data).num_bytes :]


def run(send: Callable[[int], object], detector: Any = None, **options: Any) -> tuple[Detected, dict[str, int]]:
    """Detect in what ``send`` sends to a port, until it returns; the result, and the counts of the source."""
    source = TcpSource(0, SENSOR, once=False)

    def send_and_close() -> None:
        try:
            send(source.port)
        finally:
            source.close()

    sender = threading.Thread(target=send_and_close, daemon=True)
    sender.start()
    done = detect_live(source, detector or QuickDetector(), HZ, budget_ms=1e6, **options)
    sender.join(WAIT_S)
    return done, source.counts


def accounted(done: Detected) -> int:
    """Events that were detected or dropped."""
    dropped = done.summary["dropped"]
    return done.summary["events"] + sum(
        dropped[name] for name in ("late_events", "excess_events", "events_in_dropped_windows")
    )


def send(port: int, data: bytes) -> None:
    """One client, from its connection until the source has read all it sent."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1):
            pass


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Events, bytes]]:
    """A drive of 0.4 s, one that starts 20 s later, and their words."""
    folder = tmp_path_factory.mktemp("words")
    return [(events, words(events, folder)) for events in (drive(), drive(seed=1, start_us=20_000_000))]


def test_a_client_that_dies_within_a_word_and_returns_is_detected_on(parts: list[tuple[Events, bytes]]) -> None:
    (events, data), _ = parts
    half = len(data) // 4 * 2 + 1

    def twice(port: int) -> None:
        send(port, data[:half])
        send(port, data)

    done, counts = run(twice)
    assert counts["clients"] == 2
    assert counts["bytes of an unfinished word"] == 1
    sent = len(whole_events(data[:half])) + len(events)
    assert accounted(done) == sent
    assert not done.summary["source_failed"]


def whole_events(data: bytes) -> Events:
    """The events of whole words."""
    return fate.decoder_for("evt3", sensor=SENSOR).feed(data)


def test_jumps_in_time_restart_the_stream_and_lose_nothing(parts: list[tuple[Events, bytes]]) -> None:
    (early, early_words), (late, late_words) = parts

    def jump(port: int) -> None:
        for data in (early_words, late_words, early_words):
            send(port, data)

    done, counts = run(jump)
    assert counts["clients"] == 3
    assert accounted(done) == 2 * len(early) + len(late)
    assert done.summary["restarts"] == 2
    assert done.summary["dropped"]["skipped_windows"] > 1000


def test_a_flood_drops_windows_and_counts_their_events(parts: list[tuple[Events, bytes]]) -> None:
    (events, data), _ = parts
    slow = QuickDetector(meanwhile=lambda: time.sleep(0.05))  # 20 windows a second, and 40 come at once
    done, _ = run(lambda port: send(port, data), slow)
    assert accounted(done) == len(events)
    assert done.summary["dropped"]["windows_dropped"] > 0
    assert done.summary["windows"] + done.summary["dropped"]["windows_dropped"] >= 40


def test_garbage_between_clients_is_counted_and_forgotten(parts: list[tuple[Events, bytes]]) -> None:
    (events, data), _ = parts
    garbage = np.random.default_rng(0).bytes(100_000)

    def mixed(port: int) -> None:
        send(port, data)
        send(port, garbage)
        send(port, data)

    done, counts = run(mixed)
    assert accounted(done) >= 2 * len(events)  # garbage may look like events too
    assert counts["clients"] >= 2
    assert sum(count for name, count in counts.items() if "refused" in name or "passed over" in name) > 0


@pytest.mark.slow  # it waits twice at the end
def test_a_missing_listener_costs_lines_and_no_windows(parts: list[tuple[Events, bytes]], tmp_path: Path) -> None:
    (_, data), _ = parts
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    name = f"tcp:127.0.0.1:{port}"
    done, _ = run(lambda port: send(port, data), jsonl=name, csv=tmp_path / "a.csv")
    windows = done.summary["windows"]
    assert done.summary["dropped"]["lines_to_listeners"] == windows > 0
    assert any(name in note for note in done.summary["notes"])
    assert (tmp_path / "a.csv").read_text().count("\n") == 2 * windows + 1


def test_a_full_disk_ends_a_run_and_keeps_the_windows_before(parts: list[tuple[Events, bytes]], tmp_path: Path) -> None:
    (_, data), _ = parts
    lines, rows = tmp_path / "a.jsonl", tmp_path / "a.csv"
    with largest_file(800), pytest.raises(FateError, match=r"a\.jsonl.*make room") as error:
        run(lambda port: send(port, data), jsonl=lines, csv=rows)
    assert "\n" not in str(error.value)
    with pytest.warns(FateWarning, match="whole lines"):
        kept = read_detections(lines).frames
    assert len(kept) > 0
    assert rows.read_text().count("\n") == 2 * len(kept) + 1  # two boxes of each window, and the names of the columns


class Endless(LiveSource):
    """Events of a window, one piece after another, as fast as they are detected."""

    def __init__(self, windows: int) -> None:
        super().__init__(SENSOR)
        self.windows, self.room = windows, threading.Semaphore(4)

    def __iter__(self) -> Iterator[Events]:
        piece = drive(1000, start_us=0)
        for number in range(self.windows):
            self.room.acquire()
            yield piece.shifted(1000 * number)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_memory_stays_the_same_over_50_000_windows(tmp_path: Path) -> None:
    source = Endless(50_000)
    detector = QuickDetector(meanwhile=source.room.release, patience_us=10**15)  # time is that of the events alone
    memory: list[int] = []

    def look(frame: Any) -> None:
        if frame.t_us % 5_000_000 < 1000:
            memory.append(resident_bytes())

    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            connection, _ = server.accept()
            while connection.recv(1 << 20):
                pass

        threading.Thread(target=listen, daemon=True).start()
        done = detect_live(
            source, detector, 1000, budget_ms=1e6, on_frame=look,  # type: ignore[arg-type]
            jsonl=tmp_path / "a.jsonl", csv=f"tcp:127.0.0.1:{server.getsockname()[1]}", rotate_bytes=10_000_000,
        )  # fmt: skip
    dropped = done.summary["dropped"]
    assert done.summary["windows"] == 50_000
    assert (dropped["windows_dropped"], dropped["late_events"], dropped["excess_events"]) == (0, 0, 0)
    lines = sum(len(read_detections(path).frames) for path in tmp_path.glob("a*.jsonl"))
    assert lines == 50_000
    grown = memory[-1] - memory[0]
    print(f"memory grew by {grown / 1e6:.1f} MB, from {memory[0] / 1e6:.0f} MB, in {done.summary['took_s']} s")
    assert grown < 5_000_000
