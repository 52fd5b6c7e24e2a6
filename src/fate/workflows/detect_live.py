"""Live detection: standard input (``-``), ``tcp:PORT``, ``camera``, or a file at its own speed."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fate.boxes.detection_files import DetectionFiles, DetectionLog
from fate.errors import FateError
from fate.formats.recording import Recording
from fate.inference.live import LiveStream, Source
from fate.inference.source_names import PORT, check_source
from fate.inference.sources import FileSource, StandardInput
from fate.inference.stopping import stopping_gracefully
from fate.inference.stream import StreamingDetector
from fate.inference.stream_frames import StreamFrame
from fate.models.nms import MAX_OVERLAP
from fate.text import encodable, plural, significant
from fate.workflows.detect import Detected, told_of_windows
from fate.workflows.summary import RunningSummary

#: How long a thread may keep others waiting, seconds.
TURN_S = 5e-4
_LOCK = threading.Lock()
_BEFORE: list[float] = []  # switch intervals, as each that runs has found it


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
        from fate.inference.camera import CameraSource  # noqa: PLC0415  (needs the extra camera)

        return CameraSource(name.partition(":")[2] or None)
    port = PORT.fullmatch(name)
    if port is None or sensor is None:
        raise FateError(f"{name}: expected -, tcp:PORT, camera or camera:SERIAL; a file is played by play")
    from fate.inference.sockets import TcpSource  # noqa: PLC0415

    return TcpSource(int(port[1]), sensor, format=format or "evt3", listens=False)  # nobody comes before all is ready


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
    max_overlap: float = MAX_OVERLAP,
    budget_ms: float | None = None,
    json: str | os.PathLike[str] | None = None,
    jsonl: str | os.PathLike[str] | None = None,
    csv: str | os.PathLike[str] | None = None,
    coco: str | os.PathLike[str] | None = None,
    on_frame: Callable[[StreamFrame], Any] | None = None,
) -> Detected:
    """Detect until the source ends; what could not be done in time is dropped and counted.

    Ctrl-C and SIGTERM end it like the end of the source: all files are completed, and the summary is returned. So does
    an error, which is raised when the files are complete. Frames are not kept in memory, however long the source lasts:
    take them from ``on_frame`` or from a file.

    Args:
        source: of ``open_source``.
        detector: of ``load_detector``.
        hz: windows a second.
        window_us: their length; as long as the time between two unless given. Longer ones overlap.
        name: of the source, for the log.
        threshold: least score of a box.
        track: whether boxes get the number of their object.
        max_overlap: IoU, 0 to 1, above which the weaker of two boxes of a class goes; 1 keeps every box.
        budget_ms: from a window's closing to its boxes; two windows unless given.
        json, jsonl, csv, coco: files with the boxes, as of ``fate.detect``; JSON lines and CSV can be read while they
            grow, the others are there at the end.
        on_frame: is given every frame as it comes.
    """
    height, width = source.sensor
    facts: dict[str, Any] = {"model": detector.name, "threshold": threshold, "live": True}
    about = (encodable(name), (height, width), tuple(detector.classes), hz)
    running = RunningSummary(detector.classes, hz, threshold)
    stream = detector.live(
        source, hz, window_us=window_us, threshold=threshold, track=track, max_overlap=max_overlap, budget_ms=budget_ms
    )
    with (
        stopping_gracefully() as stop,
        DetectionFiles(*about, facts, json=json, jsonl=jsonl, csv=csv, coco=coco) as written,
        stream as live,
        _undisturbed(),
    ):
        stop.call(live.stop)
        began, ended, failure = time.perf_counter(), "", None
        try:
            for frame in live:
                running.add(frame)
                written.add(frame)
                if on_frame is not None:
                    on_frame(frame)
        except KeyboardInterrupt:  # outside the main thread, or raised by on_frame
            ended = "it was stopped (Ctrl-C)"
            live.close()
        except Exception as error:  # what was found so far is written before it is raised
            ended, failure = f"it broke off ({error})", error
            live.close()
        took = time.perf_counter() - began
        notes = [live.adaptation.describe(), ended or live.ended, told_of_windows(window_us, hz)]
        notes += _told(live, hz, took)
        counts = live.counts.to_dict()
        summary = running.result(took, counts, [note for note in notes if note])
        summary |= {name: counts[name] for name in ("windows_late", "stalls", "restarts")}
        summary["adaptation"] = live.adaptation.describe()
        try:
            written.finish({"summary": summary})
        finally:
            if failure is not None:
                raise failure
    return Detected(DetectionLog(*about, [], {**facts, "summary": summary}), [], summary)


def _told(live: LiveStream, hz: float, took_s: float) -> list[str]:
    """What else there is to say of a stream that has ended."""
    counts, notes = live.counts, []
    closed_s = (counts.windows + counts.windows_dropped) / hz
    if counts.windows_late:
        notes.append(f"{counts.windows_late} of {plural(counts.windows, 'window')} came late")
    if counts.windows_dropped and closed_s > 1.5 * took_s:
        notes.append(
            f"events came {significant(closed_s / max(took_s, 1e-9))} times as fast as they happened, and live keeps"
            " the newest; give the file itself to see every window"
        )
    if counts.stalls:
        notes.append(f"the source was silent for more than a second {plural(counts.stalls, 'time')}")
    return notes + [f"{what}: {count}" for what, count in live.source_counts.items() if count]
