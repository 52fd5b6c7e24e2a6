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
from fate.runtime.detecting import Detected, summarise
from fate.runtime.detection_log import DetectionLog
from fate.runtime.frames import StreamFrame
from fate.runtime.live import Source
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


def open_source(name: str, sensor: Sequence[int] | None = None, format: str | None = None, hz: float = 200.0) -> Source:
    """The source a name stands for; a file plays at its own speed.

    Args:
        name: see above.
        sensor: (height, width), which sockets do not say, and standard input only where it begins like a file.
        format: of bytes: evt3 (the default) or evt2.
        hz: windows a second; a file is played in pieces of a tenth of them, so that none is closed much too late.
    """
    if name == "-":
        return StandardInput(sensor, format or "evt3")
    if name == "camera" or name.startswith("camera:"):
        from fate.runtime.camera import CameraSource  # noqa: PLC0415  (needs the extra camera)

        return CameraSource(name.partition(":")[2] or None)
    port = _PORT.fullmatch(name)
    if port is None:
        return FileSource(name, piece_us=round(min(max(1e5 / hz, 500), 5000)))
    if sensor is None:
        raise FateError(f"{name}: a socket does not say how large the sensor is; give --sensor WIDTHxHEIGHT")
    from fate.runtime.sockets import TcpSource, UdpSource  # noqa: PLC0415

    kind = TcpSource if port[1] == "tcp" else UdpSource
    return kind(int(port[2]), sensor, format=format or "evt3")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """While a clock runs: threads take turns after half a ms instead of five, and what is there is not searched for
    garbage again and again, which takes Python 20 ms with all of torch.
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
        name: of the source, for the log.
        threshold: least score of a box.
        track: whether boxes get the number of their object.
        budget_ms: from a window's closing to its boxes; two windows unless given.
        on_frame: is given every frame as it comes.
    """
    frames: list[StreamFrame] = []
    began = time.perf_counter()
    with detector.live(source, hz, threshold=threshold, track=track, budget_ms=budget_ms) as live, _undisturbed():
        for frame in live:
            frames.append(frame)
            if on_frame is not None:
                on_frame(frame)
        counts, notes = live.counts.to_dict(), [live.ended]
        notes += [f"{count} {what}" for what, count in live.source_counts.items() if count]
    took = time.perf_counter() - began
    summary = summarise(frames, hz, took, threshold, detector.classes, counts, [note for note in notes if note])
    summary["windows_late"] = counts["windows_late"]
    ages = [frame.age_ms for frame in frames if frame.age_ms is not None]
    if ages:
        summary["age_ms"] = tuple(round(float(value), 3) for value in np.quantile(ages, [0.5, 0.99, 1.0]))
    height, width = source.sensor
    facts = {"model": detector.name, "threshold": threshold, "live": True, "summary": summary}
    return Detected(DetectionLog(name, (height, width), tuple(detector.classes), hz, frames, facts), frames, summary)
