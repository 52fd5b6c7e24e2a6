"""The page of ``fate live`` without a browser: messages, pictures, who may open it, and viewers that do not read."""

from __future__ import annotations

import http.client
import io
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import fate
from fate.boxes.drawing import Palette, draw_events
from fate.events.events import Events, Sensor
from fate.events.window import Window
from fate.inference.recording_source import RecordingSource
from fate.inference.sources import LiveSource
from fate.inference.stream_types import StreamCounts, StreamFrame
from fate.processes import KILL_SIGNAL
from fate.text import grouped
from fate.workflows.detect_live import detect_live
from fate.workflows.live_page.messages import decode_message, encode_message, read_message, write_message
from fate.workflows.live_page.page_process import LivePage
from fate.workflows.live_page.pictures import EventPicture, unpack_picture
from fate.workflows.live_page.server import IN_FLIGHT, WRONG_TOKEN
from tests.cli.running import fate as run_command
from tests.conftest import make_events
from tests.inference.streams import QuickDetector, drive, pieces
from tests.inference.test_recording_source import Given

SENSOR = Sensor(24, 31)  # 744 pixels; a row does not end with a byte
PATIENCE_S = 60


class SomeEvents(LiveSource):
    """A source of a few pieces."""

    def __init__(self, *pieces: Events) -> None:
        super().__init__(SENSOR)
        self.pieces = pieces

    def __iter__(self) -> Iterator[Events]:
        yield from self.pieces


@pytest.fixture
def page() -> Iterator[LivePage]:
    """A page at any free port, whose detector is this test."""
    with LivePage("drive.raw", port=0) as opened:
        opened.show("waiting", sensor=list(SENSOR), classes=["car"], threshold=0.4)
        begin(opened)
        yield opened


def begin(page: LivePage) -> None:
    stream: Any = SimpleNamespace(counts=StreamCounts(), ended="the source ended")
    page.begin(stream)


def frame_at(t_us: int) -> StreamFrame:
    boxes, scores = np.array([[1, 2, 11.126, 12]], np.float32), np.array([0.91238], np.float32)
    window = Window(t_us - 5000, t_us)
    return StreamFrame(t_us, boxes, scores, np.array([0]), np.array([3]), window, 17, {"model": 2.0}, waited_ms=1.0)


def viewer_of(page: LivePage, query: str = "", host: str = "127.0.0.1", **options: Any) -> ClientConnection:
    address = ("127.0.0.1", page.port)  # whatever name is asked for
    url = f"ws://{host}:{page.port}/pictures{query}"
    return connect(url, address=address, proxy=None, open_timeout=PATIENCE_S, **options)


def next_message(viewer: ClientConnection, timeout: float = PATIENCE_S) -> tuple[dict[str, Any], bytes]:
    message = viewer.recv(timeout)
    assert isinstance(message, bytes)
    return decode_message(message)


def next_picture(viewer: ClientConnection) -> tuple[dict[str, Any], bytes]:
    while True:
        content, picture = next_message(viewer)
        if content["kind"] == "picture":
            return content, picture


def status_of(page: LivePage, path: str = "/", **headers: str) -> int:
    """The status of a request, with these headers in place of the usual ones."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


# ---- messages and pictures ----------------------------------------------------------------------------------------


def test_a_message_is_read_as_it_was_written() -> None:
    pipe, content = io.BytesIO(), {"kind": "picture", "name": "Straße", "boxes": [[1.5, 2]]}
    write_message(pipe, encode_message(content, b"\x00\x01\xff"))
    write_message(pipe, encode_message({"kind": "run"}))
    whole = pipe.getvalue()
    pipe.seek(0)
    read = [read_message(pipe) for _ in range(3)]
    assert [decode_message(each) for each in read if each] == [(content, b"\x00\x01\xff"), ({"kind": "run"}, b"")]
    assert read[2] is None
    assert read_message(io.BytesIO(whole[:20])) is None  # its writer was killed


def test_a_picture_has_the_last_event_of_each_pixel_as_other_pictures_have() -> None:
    events = make_events(500, SENSOR)
    picture = EventPicture(SENSOR)
    picture.is_watched = True
    for first in range(0, 500, 100):
        picture.add(events[first : first + 100])
    packed = picture.take(int(events.t_us[-1]) + 1)
    assert len(packed) == 186  # a quarter of a byte per pixel
    codes = unpack_picture(packed, SENSOR)
    shades = Palette(background=(0, 0, 0), on=(2, 2, 2), off=(1, 1, 1))
    np.testing.assert_array_equal(codes, draw_events(events, shades)[:, :, 0])
    assert not unpack_picture(picture.take(10**9), SENSOR).any()  # each event is drawn once
    assert picture.events == 500


def test_events_after_the_time_of_the_boxes_wait_for_the_next_picture() -> None:
    picture = EventPicture(SENSOR)
    picture.is_watched = True
    for t_us in (100, 200):
        picture.add(Events([t_us, t_us + 50], [1, 2], [3, 4], [1, 0], SENSOR))
    drawn = [np.argwhere(unpack_picture(picture.take(end), SENSOR)).tolist() for end in (150, 220, 1000)]
    assert drawn == [[[3, 1]], [[3, 1], [4, 2]], [[4, 2]]]
    picture.add(Events([10**9], [7], [5], [1], SENSOR))  # the clock of the source has jumped
    assert np.argwhere(unpack_picture(picture.take(1000), SENSOR)).tolist() == [[5, 7]]
    picture.has_ended = True
    assert np.argwhere(unpack_picture(picture.take(2000), SENSOR)).tolist() == [[5, 7]]  # the last picture stays


# ---- what viewers get ---------------------------------------------------------------------------------------------


def test_a_viewer_gets_the_boxes_of_the_json_line_and_the_events(page: LivePage) -> None:
    events = make_events(300, SENSOR)
    source = page.watch(RecordingSource(SomeEvents(events)))
    with viewer_of(page) as viewer:
        run, _ = next_message(viewer)
        assert run["name"] == "drive.raw"
        assert page.wait_for_viewer(PATIENCE_S)
        assert list(source) == [events]
        page.add(replace(frame_at(5000), t_us=int(events.t_us[-1]) + 1))
        content, packed = next_picture(viewer)
    line = content["line"]
    assert (line["boxes"], line["scores"]) == ([[1, 2, 11.13, 12]], [0.9124])
    assert (line["track_ids"], line["events"], content["latency_ms"]) == ([3], 17, [3.0])
    assert content["seen"] == 300
    assert set(np.unique(unpack_picture(packed, SENSOR))) == {0, 1, 2}


def test_a_viewer_that_does_not_read_gets_no_more_and_holds_up_nobody(page: LivePage) -> None:
    with viewer_of(page) as slow, viewer_of(page) as quick:
        assert page.wait_for_viewer(PATIENCE_S)
        while page.viewers < 2:
            time.sleep(0.01)
        for number in range(1, 21):
            page.add(frame_at(5000 * number))
            content, _ = next_picture(quick)
            while content["line"]["t_us"] < 5000 * number:  # the same window may be in two pictures
                quick.send('{"shown": 1}')
                content, _ = next_picture(quick)
            quick.send('{"shown": 1}')
        for _ in range(IN_FLIGHT):
            old, _ = next_picture(slow)
        assert old["line"]["t_us"] < 5000 * 20
        slow.send(f'{{"shown": {IN_FLIGHT}}}')
        newest, _ = next_picture(slow)
        assert newest["line"]["t_us"] == 5000 * 20  # not one of those between


def test_the_last_message_has_the_counters_and_the_reason(page: LivePage) -> None:
    stream: Any = SimpleNamespace(counts=StreamCounts(windows=7, boxes=9, windows_dropped=2), ended="the cable is out")
    page.begin(stream)
    with viewer_of(page) as viewer:
        next_message(viewer)
        page.close()
        while (content := next_message(viewer)[0])["state"] != "ended":
            pass
    assert content["reason"] == "the cable is out"
    assert [content["counts"][name] for name in ("windows", "boxes", "windows_dropped")] == [7, 9, 2]


def test_a_viewer_gets_the_last_window_of_a_run(page: LivePage) -> None:
    with viewer_of(page) as viewer:
        page.add(frame_at(5_000))
        next_picture(viewer)  # is not confirmed
        for t_us in range(10_000, 100_000, 5_000):  # more windows than pictures, then the end at once
            page.add(frame_at(t_us))
        page.close()
        contents = []
        with suppress(ConnectionClosed):
            while True:
                contents.append(next_message(viewer)[0])
    pictures = [content for content in contents if content["kind"] == "picture"]
    assert pictures[-1]["line"]["t_us"] == 95_000
    assert any(content.get("state") == "ended" for content in contents)


def record_all(viewer: Any, recorder: RecordingSource, source: LiveSource) -> None:
    """Let a viewer start a recording, then read the whole source."""
    viewer.send('{"record": true}')
    ends = time.monotonic() + PATIENCE_S
    while not recorder.state.is_active and time.monotonic() < ends:
        time.sleep(0.01)
    list(source)


def test_a_viewer_records_into_a_file_of_the_current_folder(
    page: LivePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = make_events(300, SENSOR)
    recorder = RecordingSource(SomeEvents(events))
    source = page.watch(recorder)
    with viewer_of(page) as viewer:
        record_all(viewer, recorder, source)
        viewer.send('{"record": true}')  # the source has ended; a further recording is empty
        page.add(frame_at(5000))
        content, _ = next_picture(viewer)
    first = min(tmp_path.glob("drive-*.raw"))
    assert content["recording"]["note"]
    assert fate.open_recording(first).read() == events


def test_a_viewer_records_a_source_with_the_time_of_day(
    page: LivePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = make_events(300, SENSOR).shifted(1_800_000_000_000_000)
    recorder = RecordingSource(SomeEvents(events))
    source = page.watch(recorder)
    page.add(frame_at(int(events.t_us[0])))
    with viewer_of(page) as viewer:
        record_all(viewer, recorder, source)
    (file,) = tmp_path.iterdir()
    assert fate.open_recording(file, sensor=SENSOR).read() == events


def test_recordings_of_viewers_are_in_the_summary_with_their_size(page: LivePage, tmp_path: Path) -> None:
    first, second = pieces(drive(), [1500])
    given = Given([])
    recorder = RecordingSource(given)
    given.given = [first, partial(recorder.start, tmp_path / "part.raw"), second]
    done = detect_live(page.watch(recorder), QuickDetector(), 100, budget_ms=1e6)  # type: ignore[arg-type]
    (note,) = [note for note in done.summary["notes"] if str(tmp_path / "part.raw") in note]
    assert "2 500 events" in note
    assert f"{grouped((tmp_path / 'part.raw').stat().st_size)} bytes" in note
    assert f"note: {note}" in done.lines()


# ---- who may open the page ----------------------------------------------------------------------------------------


def test_only_the_address_of_this_machine_and_the_page_itself_are_answered(page: LivePage) -> None:
    assert status_of(page) == 200
    assert status_of(page, Host=f"localhost:{page.port}") == 200
    assert status_of(page, Host="evil.example") == 403  # a name that was pointed at this machine
    assert status_of(page, Host=f"127.0.0.1:{page.port}", Origin="http://evil.example") == 403
    with viewer_of(page, origin=f"http://127.0.0.1:{page.port}") as viewer:
        assert next_message(viewer)
    for refused in ({"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"}):
        with pytest.raises(InvalidStatus, match="403"), viewer_of(page, **refused):
            pass


def test_other_machines_need_the_token() -> None:
    with LivePage("drive.raw", host="0.0.0.0", port=0) as page:
        query = page.url.partition("?")[2]
        assert query.startswith("token=")
        assert len(query) > 20
        assert status_of(page) == status_of(page, "/?token=guessed") == 403
        assert status_of(page, f"/?{query}") == status_of(page, f"/?{query}", Host="robot.local:8200") == 200
        for wrong in ("", "?token=guessed"):
            with viewer_of(page, wrong) as viewer, pytest.raises(ConnectionClosed, match=str(WRONG_TOKEN)):
                viewer.recv(PATIENCE_S)
        with pytest.raises(InvalidStatus, match="403"), viewer_of(page, f"?{query}", origin="http://evil.example"):
            pass
        with viewer_of(page, f"?{query}") as viewer:
            assert next_message(viewer)


def test_the_environment_gives_a_token_that_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATE_LIVE_TOKEN", "a-token_of-1234567")
    for _ in range(2):
        with LivePage("drive.raw", host="0.0.0.0", port=0) as page:
            assert page.url.endswith("/?token=a-token_of-1234567")
            assert status_of(page, "/?token=a-token_of-1234567") == 200
    for unsafe in ("", "short", "sixteen letters & more"):
        monkeypatch.setenv("FATE_LIVE_TOKEN", unsafe)
        with pytest.raises(fate.FateError, match=r"FATE_LIVE_TOKEN.*16"):
            LivePage("drive.raw", host="0.0.0.0", port=0)


@pytest.mark.parametrize("nonsense", ["[]", "no JSON", '{"shown": ' + "1" * 5000 + "}", b"\x00\x01"])
def test_nonsense_of_a_viewer_ends_its_connection_and_nothing_else(page: LivePage, nonsense: str | bytes) -> None:
    with viewer_of(page) as bad, viewer_of(page) as good:
        bad.send(nonsense)
        with pytest.raises(Exception, match="1009|1000|1003|close"):
            while True:
                bad.recv(PATIENCE_S)
        next_message(good)
        page.add(frame_at(5000))
        assert next_picture(good)[0]["line"]["t_us"] == 5000


# ---- errors -------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_refused_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(fate.FateError, match=rf"127\.0\.0\.1:{port}.*port="):
            LivePage("drive.raw", port=port)


def test_detection_continues_if_the_process_of_the_page_ends(page: LivePage) -> None:
    with viewer_of(page) as viewer, pytest.warns(fate.FateWarning, match="page has ended") as caught:
        next_message(viewer)
        os.kill(page.pid, KILL_SIGNAL)
        ends, number = time.monotonic() + PATIENCE_S, 0
        while not any("page" in str(each.message) for each in caught) and time.monotonic() < ends:
            number += 1
            page.add(frame_at(5000 * number))
            time.sleep(0.01)
        assert page.viewers == 0


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fate.workflows.live_page.page_process.find_spec", lambda name: None if name == "uvicorn" else True
    )
    with pytest.raises(fate.MissingDependencyError, match="pip install uvicorn$"):
        LivePage("drive.raw", port=0)


@pytest.mark.parametrize(
    ("words", "code", "fact"),
    [
        (["live", "no-such.raw"], 1, "no-such.raw"),
        (["live", "-", "--loop"], 2, "--loop"),
        (["live", "tcp:9000"], 2, "--sensor"),
        (["live", "a.raw", "--port", "70000"], 2, "70000"),
        (["live", "a.raw", "--hz", "50", "--window", "5ms"], 2, "20ms"),
        (["live", "tcp:9000", "--sensor", "304x240", "--filter", "roi:0,0,500,500"], 2, "304×240"),
    ],
)
def test_wrong_usage_is_refused_before_anything_starts(words: list[str], code: int, fact: str) -> None:
    done = run_command(*words)
    assert done.returncode == code
    assert fact in done.stderr
