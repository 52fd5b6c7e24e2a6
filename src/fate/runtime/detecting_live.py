"""Live detection: standard input (``-``), ``tcp:PORT``, ``udp:PORT``, ``camera``, or a file at its own speed."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fate.errors import FateError
from fate.formats.recording import Recording
from fate.runtime.detecting import Detected, summarise, told_of_windows
from fate.runtime.detection_log import DetectionLog
from fate.runtime.frames import StreamFrame
from fate.runtime.live import LiveStream, Source
from fate.runtime.sources import FileSource, StandardInput
from fate.runtime.stream import StreamingDetector

_PORT = re.compile(r"(tcp|udp):(\d{1,5})")
#: How long a thread may keep others waiting, seconds.
TURN_S = 5e-4
_LOCK = threading.Lock()
_BEFORE: list[float] = []  # switch intervals, as each that runs has found it


def is_live(name: str) -> bool:
    """Whether a name stands for a source and not for a file."""
    return name == "-" or name == "camera" or name.startswith("camera:") or _PORT.fullmatch(name) is not None


def play(
    recording: Recording | str, hz: float = 200.0, start_us: int | None = None, end_us: int | None = None
) -> FileSource:
    """A file at its own speed, in pieces of a tenth of a window, so that none is closed much too late.

    Args:
        recording: of ``open_recording``, or a path.
        hz: windows a second.
        start_us, end_us: a part of it, µs of its clock.
    """
    if not 1 <= hz <= 1000:
        raise FateError(f"{hz:g} Hz was given; expected a rate from 1 to 1000")
    piece = round(min(max(1e5 / hz, 500), 5000))
    return FileSource(recording, piece_us=piece, start_us=start_us, end_us=end_us)


def check_source(name: str, sensor: Sequence[int] | None) -> None:
    """Refuse a source that cannot be opened, before anything else is done."""
    port = _PORT.fullmatch(name)
    if port is not None and not 0 < int(port[2]) < 1 << 16:
        raise FateError(f"{name}: there is no such port; expected {port[1]}:1 to {port[1]}:65535")
    if port is not None and sensor is None:
        raise FateError(f"{name}: a socket does not say how large the sensor is; give sensor=(height, width)")


def open_source(name: str, sensor: Sequence[int] | None = None, format: str | None = None) -> Source:
    """The live source a name stands for.

    Args:
        name: see above.
        sensor: (height, width), which sockets do not say, and standard input only where it begins like a file.
        format: of bytes: evt3 (the default) or evt2.
    """
    check_source(name, sensor)
    if name == "-":
        return StandardInput(sensor, format or "evt3")
    if name == "camera" or name.startswith("camera:"):
        from fate.runtime.camera import CameraSource  # noqa: PLC0415  (needs the extra camera)

        return CameraSource(name.partition(":")[2] or None)
    port = _PORT.fullmatch(name)
    if port is None or sensor is None:
        raise FateError(f"{name}: expected -, tcp:PORT, udp:PORT, camera or camera:SERIAL; a file is played by play")
    from fate.runtime.sockets import TcpSource, UdpSource  # noqa: PLC0415

    if port[1] == "udp":
        return UdpSource(int(port[2]), sensor, format=format or "evt3")
    return TcpSource(int(port[2]), sensor, format=format or "evt3", listens=False)  # nobody comes before all is ready


@contextmanager
def _undisturbed() -> Iterator[None]:
    """While a clock runs: threads take turns after half a ms instead of five, and what is there is not searched for
    garbage again and again, which takes 0.1 s on a slow core with all of torch.
    """
    with _LOCK:
        if not _BEFORE:  # several at once: the first changes it, the last puts it back
            gc.collect()
            gc.freeze()
        _BEFORE.append(sys.getswitchinterval())
        sys.setswitchinterval(min(_BEFORE[0], TURN_S))
    try:
        yield
    finally:
        with _LOCK:
            first, *_ = _BEFORE
            _BEFORE.pop()
            if not _BEFORE:
                gc.unfreeze()
                sys.setswitchinterval(first)


def detect_live(
    source: Source,
    detector: StreamingDetector,
    hz: float = 200.0,
    *,
    window_us: int | None = None,
    name: str = "live",
    threshold: float = 0.4,
    track: bool = False,
    budget_ms: float | None = None,
    on_frame: Callable[[StreamFrame], Any] | None = None,
) -> Detected:
    """Detect until the source ends; what could not be done in time is dropped and counted.

    Args:
        source: of ``open_source``.
        detector: of ``load_detector``.
        hz: windows a second.
        window_us: their length; as long as the time between two unless given. Longer ones overlap.
        name: of the source, for the log.
        threshold: least score of a box.
        track: whether boxes get the number of their object.
        budget_ms: from a window's closing to its boxes; two windows unless given.
        on_frame: is given every frame as it comes.
    """
    frames: list[StreamFrame] = []
    stream = detector.live(source, hz, window_us=window_us, threshold=threshold, track=track, budget_ms=budget_ms)
    with stream as live, _undisturbed():
        began, stopped = time.perf_counter(), ""
        try:
            for frame in live:
                frames.append(frame)
                if on_frame is not None:
                    on_frame(frame)
        except KeyboardInterrupt:  # what was found so far is kept
            stopped = "it was stopped (Ctrl-C)"
            live.close()
        took = time.perf_counter() - began
        counts, notes = live.counts.to_dict(), [live.adaptation.describe(), stopped or live.ended]
        notes.append(told_of_windows(window_us, hz))
        notes += _told(live, hz, took)
    summary = summarise(frames, hz, took, threshold, detector.classes, counts, [note for note in notes if note])
    summary |= {name: counts[name] for name in ("windows_late", "stalls", "restarts")}
    summary["adaptation"] = live.adaptation.describe()
    ages = [frame.age_ms for frame in frames if frame.age_ms is not None]
    if ages:
        summary["age_ms"] = tuple(round(float(value), 3) for value in np.quantile(ages, [0.5, 0.99, 1.0]))
    height, width = source.sensor
    facts = {"model": detector.name, "threshold": threshold, "live": True, "summary": summary}
    return Detected(DetectionLog(name, (height, width), tuple(detector.classes), hz, frames, facts), frames, summary)


def _told(live: LiveStream, hz: float, took_s: float) -> list[str]:
    """What else there is to say of a stream that has ended."""
    counts, notes = live.counts, []
    closed_s = (counts.windows + counts.windows_dropped) / hz
    if counts.windows_late:
        notes.append(f"{counts.windows_late} of {counts.windows} windows were late")
    if counts.windows_dropped and closed_s > 1.5 * took_s:
        notes.append(
            f"events came {closed_s / max(took_s, 1e-9):.0f} times as fast as they happened, and live keeps the newest;"
            " give the file itself to see every window"
        )
    if counts.stalls:
        notes.append(f"{counts.stalls} times the source was silent for more than a second")
    return notes + [f"{what}: {count}" for what, count in live.source_counts.items() if count]
