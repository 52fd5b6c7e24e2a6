"""``fate live``: detects objects in a live source or in a file played at its own speed, and shows them on a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, Unpack

from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.inference.loading import FASTEST_ON_A_CPU, Model, choose_device, load_detector
from fate.inference.recording_source import RecordingSource
from fate.inference.sources import LiveSource, is_live, open_source, play
from fate.inference.stream import StreamingDetector
from fate.inference.timing import choose_timing
from fate.workflows.detect import BoxFiles, Detected
from fate.workflows.detect_live import detect_live
from fate.workflows.live_page.page_process import HOST, PORT, LivePage, name_of, open_browser

#: How long a file waits for the browser that was opened, so that its beginning is seen, seconds.
VIEWER_S = 10.0


def live(
    source: str | os.PathLike[str] | Recording | LiveSource,
    model: Model = FASTEST_ON_A_CPU,
    hz: float | Literal["auto"] = "auto",
    *,
    window_us: int | None = None,
    threshold: float | None = None,
    filters: str | Sequence[str] = (),
    loop: bool = False,
    device: str = "auto",
    host: str = HOST,
    port: int = PORT,
    browser: bool = True,
    sensor: Sequence[int] | None = None,
    on_page: Callable[[str], Any] | None = None,
    **files: Unpack[BoxFiles],
) -> Detected:
    """Show live detection on a page in the browser, until the source ends or Ctrl-C is pressed.

    Args:
        source: a file or an open recording, which is played at its own speed; ``"-"``, ``"tcp:PORT"`` or ``"camera"``;
            or an object of ``inference.sources``.
        model: a bundled name, a .safetensors file, or what ``load_detector`` returned.
        hz: windows per second, or "auto" for the highest rate that this machine sustains.
        window_us: length of a window in µs; the most accurate one that is in time unless given.
        threshold: lowest score of a box; the detector's own unless given. The page can hide more boxes.
        filters: events to drop first, such as ``["hot-pixels", "background:5ms"]``; see ``fate.events.filters``.
        loop: whether a file is played again and again.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        host: address to serve the page on. If other machines can reach it, the address has a token.
        port: port of the page; 0 for any free one.
        browser: whether to open the page in the browser. A file then starts when the page is there.
        sensor: (height, width) of a socket, or of a pipe or file that does not say it.
        on_page: called with the address of the page.
        files: files of boxes to write: ``json``, ``jsonl``, ``csv`` and ``coco``, see ``BoxFiles``.
    """
    with ExitStack() as closing:
        opened: Recording | LiveSource
        if not isinstance(source, str | os.PathLike):
            opened = source
        elif is_live(os.fspath(source)):
            opened = open_source(os.fspath(source), sensor)
        else:
            opened = closing.enter_context(open_recording(source, sensor=sensor))
        page = closing.enter_context(LivePage(name_of(source), host, port))
        if on_page is not None:
            on_page(page.url)
        is_opened = browser and open_browser(page.url)
        detector = load_detector(model, choose_device(device))
        return show_live(
            page, opened, detector, hz, window_us=window_us, threshold=threshold, filters=filters, loop=loop,
            name=name_of(source), wait_for_viewer=is_opened, **files,
        )  # fmt: skip


def show_live(
    page: LivePage,
    source: Recording | LiveSource,
    detector: StreamingDetector,
    hz: float | Literal["auto"] = "auto",
    *,
    name: str,
    window_us: int | None = None,
    threshold: float | None = None,
    filters: str | Sequence[str] = (),
    loop: bool = False,
    wait_for_viewer: bool = False,
    on_timing: Callable[[str], Any] | None = None,
    **files: Unpack[BoxFiles],
) -> Detected:
    """Detect objects in a source and show them on a page that is open.

    Args:
        page: the page; close it afterwards.
        source: an open recording, or a live source.
        detector: what ``load_detector`` returns.
        hz, window_us, threshold, filters, loop, files: same as for :func:`live`.
        name: name of the source in the files.
        wait_for_viewer: whether a recording starts when a browser shows the page, after at most ``VIEWER_S``.
        on_timing: called with a sentence about the rate and the windows, if they were chosen.
    """
    timing = choose_timing(detector, source.sensor, hz, window_us, in_time=True)
    if timing.reason and on_timing is not None:
        on_timing(timing.reason)
    budget_ms = 2000 / timing.hz
    lowest = detector.calibration.threshold if threshold is None else threshold
    page.show(
        "waiting", sensor=list(source.sensor), classes=list(detector.classes), model=detector.name, hz=timing.hz,
        window_us=timing.window_us, threshold=round(float(lowest), 4), budget_ms=budget_ms, device=str(detector.device),
    )  # fmt: skip
    if isinstance(source, Recording):
        if wait_for_viewer:
            page.wait_for_viewer(VIEWER_S)
        source = play(source, timing.hz, loop=loop)

    return detect_live(
        page.watch(RecordingSource(source)), detector, timing.hz, window_us=timing.window_us, budget_ms=budget_ms,
        threshold=threshold, filters=filters, track=True, name=name, on_start=page.begin, on_frame=page.add, **files,
    )  # fmt: skip
