"""The page as the detector has it: a process that serves it, and a thread that draws and sends the newest picture.

The detector calls :meth:`LivePage.add` with every frame, which only keeps a reference. The thread wakes up at most
``PICTURES_HZ`` times a second, and does nothing while nobody watches. If the process of the page is slow or ends,
detection continues, and the page gets fewer pictures.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fate.boxes.detection_files import encode_line
from fate.boxes.drawing import CLASS_COLOURS, PALETTES, readable_on
from fate.errors import PACKAGES, FateError, missing_packages, warn
from fate.formats.recording import Recording
from fate.inference.sources import is_live
from fate.text import plural
from fate.view.page import render_page
from fate.workflows.live_page.messages import VERSION, encode_message, write_message
from fate.workflows.live_page.pictures import EventPicture, WatchedSource

if TYPE_CHECKING:  # they load torch, which takes seconds; the page is there before
    from fate.inference.live import LiveStream
    from fate.inference.recording_source import RecordingSource
    from fate.inference.stream_types import StreamFrame

#: Address of the page unless another one is given. It does not change, so that an open page finds the next run.
HOST, PORT = "127.0.0.1", 8200
#: Environment variable with the token of a page that other machines can open, and what a token may be.
TOKEN_VARIABLE, TOKEN = "FATE_LIVE_TOKEN", re.compile(r"[A-Za-z0-9_-]{16,}")
#: Most pictures per second.
PICTURES_HZ = 30.0
#: Latencies of windows that wait for the next picture; older ones are not sent.
MAX_LATENCIES = 200
#: Counters that the page shows.
COUNTED = ("windows", "boxes", "windows_dropped", "windows_late", "events", "events_in_dropped_windows", "stalls")
#: How long the process of the page may take to start and to end, seconds.
START_S, END_S = 60.0, 4.0


class LivePage(AbstractContextManager["LivePage"]):
    """A page in the browser, in a process of its own. Use it in a ``with`` block.

    ``watch`` and ``begin`` start the pictures of a stream; ``add`` takes its frames.
    """

    def __init__(self, name: str, host: str = HOST, port: int = PORT) -> None:
        """Start the process and wait until it listens.

        Args:
            name: title of the page.
            host: address to listen on. Any other than one of this machine needs a token, which is part of ``url``. The
                environment variable ``FATE_LIVE_TOKEN`` can give it; otherwise it is random.
            port: port to listen on; 0 for any free one.
        """
        missing = [package for package in PACKAGES["live"] if find_spec(package) is None]
        if missing:
            raise missing_packages("fate live", missing)
        from fate.workflows.live_page.server import is_loopback  # noqa: PLC0415  (needs the packages)

        self._token = "" if is_loopback(host) else _choose_token()
        html = render_page("live.html", title=name).encode("utf-8", "backslashreplace")
        setup = {"host": host, "port": port, "token": self._token}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fate.workflows.live_page.server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,  # Ctrl-C is for the detector alone
        )  # fmt: skip
        self.pid = self._process.pid  #: of the process of the page
        self._pipe, self._lines = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        self._run: dict[str, Any] = {
            "kind": "run", "version": VERSION, "session": secrets.token_hex(8), "name": name, "state": "starting",
            "palettes": {key: [each.background, each.off, each.on] for key, each in PALETTES.items()},
            "colours": [[colour, readable_on(colour)] for colour in CLASS_COLOURS], "pictures_hz": PICTURES_HZ,
        }  # fmt: skip
        self._frame: tuple[StreamFrame, dict[str, int], float] | None = None  # with counters, and when it came
        self._latencies: deque[float] = deque(maxlen=MAX_LATENCIES)
        self._picture: EventPicture | None = None
        self._stream: LiveStream | None = None
        self._changed, self._ending, self._is_new = threading.Event(), threading.Event(), True
        self._watched = threading.Event()  # set while there is a viewer
        self.viewers = 0  #: browsers that show the page now
        self._recorder: RecordingSource | None = None
        self._refused = ""  # why the last recording could not be started
        self._writer = threading.Thread(target=self._write, name="fate-page", daemon=True)
        self._reader = threading.Thread(target=self._read, name="fate-page-wishes", daemon=True)
        with suppress(OSError):  # it has ended already, and the answer is empty
            write_message(self._pipe, encode_message(setup, html))
        answer = self._first_answer()
        if "port" not in answer:
            self._process.wait(END_S)
            raise FateError(
                f"{host}:{port}: the page cannot be served there ({answer.get('error', 'its process ended')}); pass"
                " another port=NUMBER or host=ADDRESS, or stop the program that uses it"
            )
        self.port: int = answer["port"]
        query = f"/?token={self._token}" if self._token else "/"
        name_of_host = socket.gethostname() if host in ("0.0.0.0", "::") else host
        shown = f"[{name_of_host}]" if ":" in name_of_host else name_of_host
        self.url = f"http://{shown}:{self.port}{query}"  #: address of the page
        self._writer.start()
        self._reader.start()

    def _first_answer(self) -> dict[str, Any]:
        """Wait for the first line of the process; empty if it ended without one."""
        killer = threading.Timer(START_S, self._process.kill)
        killer.start()
        line = self._lines.readline()
        killer.cancel()
        return dict(json.loads(line)) if line else {}

    def show(self, state: str, **facts: Any) -> None:
        """Tell viewers about the run: its state (starting, waiting, running, ended) and facts by name."""
        self._run = {**self._run, **facts, "state": state}
        self._is_new = True
        self._changed.set()

    def watch(self, source: RecordingSource) -> WatchedSource:
        """Return the source; its events are drawn when they are read, and viewers may record them."""
        self._recorder = source
        self._picture = EventPicture(source.sensor)
        self._picture.is_watched = self.viewers > 0
        return WatchedSource(source, self._picture)

    def begin(self, stream: LiveStream) -> None:
        """Take the stream whose counters are shown; called before its first frame."""
        self._stream = stream

    def add(self, frame: StreamFrame) -> None:
        """Show a frame, if it is the newest one when the next picture is sent."""
        if self._stream is None:
            return
        if self.viewers:
            latency = frame.waited_ms + frame.total_ms if frame.age_ms is None else frame.age_ms
            self._latencies.append(round(latency, 2))
        self._frame = frame, self._counts(), time.monotonic()
        if self._run["state"] != "running":
            self.show("running")

    def wait_for_viewer(self, timeout_s: float) -> bool:
        """Wait until a browser shows the page, for at most this time; whether one does."""
        return self._watched.wait(timeout_s)

    def close(self, reason: str = "") -> None:
        """Show the last counters and why the run has ended, and end the process."""
        if self._ending.is_set():
            return
        facts: dict[str, Any] = {} if self._stream is None else {"counts": self._counts()}
        ended = "" if self._stream is None else self._stream.ended
        self.show("ended", reason=reason or ended or "it was closed", **facts)
        self._ending.set()
        self._changed.set()
        if self._writer.ident is not None:
            self._writer.join(END_S)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close(f"it broke off ({error})" if isinstance(error, Exception) else "")

    def _counts(self) -> dict[str, int]:
        counts = self._stream.counts if self._stream is not None else None
        return {name: getattr(counts, name) for name in COUNTED}

    def _write(self) -> None:
        """The writing thread: sends what is new, at most ``PICTURES_HZ`` times a second."""
        period = 1 / PICTURES_HZ
        try:
            with self._pipe:
                while True:
                    if self._frame is None or not self.viewers:  # else the rate of pictures sets the pace
                        self._changed.wait()
                        self._changed.clear()
                    is_ending = self._ending.is_set()
                    if is_ending and self._frame is not None and self.viewers:
                        write_message(self._pipe, self._encode_picture(*self._frame))  # the last window
                    if self._is_new:
                        self._is_new = False
                        write_message(self._pipe, encode_message({**self._run, **self._recording()}))
                    if is_ending:
                        return
                    if self._frame is not None and self.viewers:
                        began = time.monotonic()
                        write_message(self._pipe, self._encode_picture(*self._frame))
                        self._ending.wait(max(0.0, began + period - time.monotonic()))
        except OSError:  # the process has ended; the reading thread says so
            pass

    def _encode_picture(self, frame: StreamFrame, counts: dict[str, int], came: float) -> bytes:
        """Return the message with the boxes of the newest window and the events up to its end.

        Until the next window is detected, events go on from there at the speed of the clock, so that they move smoothly
        and boxes fit them.
        """
        now = time.monotonic()
        latencies = [self._latencies.popleft() for _ in range(len(self._latencies))]
        content: dict[str, Any] = {"kind": "picture", "at_s": round(now, 4), "line": encode_line(frame)}
        content |= {"counts": counts, "latency_ms": latencies, **self._recording()}
        if self._picture is None:
            return encode_message(content)
        packed = self._picture.take(frame.t_us + round(1e6 * (now - came)))
        return encode_message({**content, "seen": self._picture.events}, packed)

    def _read(self) -> None:
        """The reading thread: what viewers do and ask for."""
        for line in self._lines:
            content: Mapping[str, Any] = json.loads(line)
            if "viewers" in content:
                self._count_viewers(content["viewers"])
            if "record" in content and self._recorder is not None:
                self._record(self._recorder, content["record"])
        self._count_viewers(0)
        if not self._ending.is_set():
            warn("the process of the page has ended; detection continues without it")

    def _count_viewers(self, viewers: int) -> None:
        self.viewers = viewers
        if self._picture is not None:
            self._picture.is_watched = viewers > 0
        (self._watched.set if viewers else self._watched.clear)()
        self._changed.set()

    def _record(self, recorder: RecordingSource, starts: bool) -> None:
        """Start a recording in the current folder, or stop it. CSV has any times, also those of the day."""
        from fate.formats.prophesee.raw import Evt3Writer  # noqa: PLC0415  (slow; the recorder has loaded it)

        self._refused = ""
        try:
            if starts:
                name = re.sub(r"[^\w.-]+", "-", Path(self._run["name"]).stem)
                now_us = 0 if self._frame is None else self._frame[0].t_us
                suffix = "raw" if 0 <= now_us < Evt3Writer.max_start_us else "csv"
                recorder.start(f"{name}-{datetime.now():%Y%m%d-%H%M%S}.{suffix}")
            else:
                recorder.stop()
        except FateError as error:
            self._refused = str(error)
        self.show(self._run["state"])

    def _recording(self) -> dict[str, Any]:
        """Return whether events are recorded and what viewers read about it; empty before there is a source."""
        if self._recorder is None:
            return {}
        state, refused = self._recorder.state, self._refused
        text = ""
        if state.files:
            done = f"{state.files[-1]}: {state.bytes / 1e6:.1f} MB, {plural(state.events, 'event')}"
            text = f"Recording {done}" if state.is_active else f"Recorded {done}"
        failed = refused or state.failed
        return {"recording": {"active": state.is_active, "note": failed or text, "failed": bool(failed)}}


def _choose_token() -> str:
    """Return the token that the environment gives, or a random one."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given is None:
        return secrets.token_urlsafe(16)
    if TOKEN.fullmatch(given) is None:
        raise FateError(
            f"{TOKEN_VARIABLE} has {plural(len(given), 'character')}; expected 16 or more letters, digits, - and _, as"
            " the token of a page; for example the output of: openssl rand -hex 16"
        )
    return given


def name_of(source: object) -> str:
    """Return a short name of a source: the last part of a path."""
    if source == "-":
        return "standard input"
    given = source.path if isinstance(source, Recording) else source
    if isinstance(given, str | os.PathLike):
        return given if isinstance(given, str) and is_live(given) else os.path.basename(os.fspath(given))
    return type(source).__name__


def open_browser(url: str) -> bool:
    """Open a page in the browser; whether there is one. Without a screen, Python would open one in the terminal."""
    has_screen = sys.platform in ("win32", "darwin") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
    return has_screen and webbrowser.open(url)
