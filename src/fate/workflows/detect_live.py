"""Live detection: standard input (``-``), ``tcp:PORT``, ``camera``, or a file at its own speed."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Unpack

from fate.inference.live import LiveStream, stopping_gracefully
from fate.inference.sources import LiveSource
from fate.inference.stream import StreamingDetector
from fate.inference.stream_types import StreamFrame, StreamKeywords, StreamOptions
from fate.text import plural, significant
from fate.threads import leave_a_processor
from fate.workflows.detect import BoxFiles, Detected, ResultRecorder

#: Switch interval of threads during a live run, seconds; Python's own is ten times as long.
SWITCH_S = 5e-4
_LOCK = threading.Lock()
_BEFORE: list[float] = []  # the switch interval before each live run that is under way


class LiveKeywords(StreamKeywords, BoxFiles, total=False):
    """The keywords of :func:`detect_live`."""


@contextmanager
def low_latency() -> Iterator[None]:
    """Let threads switch after 0.5 ms instead of 5, and exclude the objects that exist from garbage collection: with
    torch loaded, one collection takes 0.1 s on a slow core.
    """
    with _LOCK:
        if not _BEFORE:  # of several runs the first one changes it, and the last one restores it
            gc.collect()
            gc.freeze()
        _BEFORE.append(sys.getswitchinterval())
        sys.setswitchinterval(min(_BEFORE[0], SWITCH_S))
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
    source: LiveSource,
    detector: StreamingDetector,
    hz: float = 200.0,
    *,
    name: str = "live",
    budget_ms: float | None = None,
    on_start: Callable[[LiveStream], Any] | None = None,
    on_frame: Callable[[StreamFrame], Any] | None = None,
    **options: Unpack[LiveKeywords],
) -> Detected:
    """Detect until the source ends; windows that cannot be detected in time are dropped and counted.

    Ctrl-C and SIGTERM end the run like the end of the source: all files are completed, and the summary is returned. An
    error is raised after the files are completed. Frames are not kept in memory, so a source may last for any time:
    take them from ``on_frame`` or from a file.

    Args:
        source: what ``open_source`` or ``play`` of ``inference.sources`` returns, or an object with the same methods.
        detector: what ``load_detector`` returns.
        hz: windows per second.
        name: name of the source in the files.
        budget_ms: longest time from a window's end to its boxes; two windows unless given.
        on_start: called with the stream before its first frame; its ``counts`` can be read at any time.
        on_frame: called with every frame.
        options: options of the stream, see ``StreamOptions``, and files of boxes, see ``BoxFiles``. Files of JSON lines
            and CSV can be read while they grow; the others are written at the end.
    """
    given: dict[str, Any] = {**options}
    files: BoxFiles = {name: given.pop(name, None) for name in BoxFiles.__annotations__}  # type: ignore[assignment]
    chosen = StreamOptions(hz, **given)
    with (
        leave_a_processor(detector.device),
        stopping_gracefully((stream := detector.live(source, budget_ms=budget_ms, **asdict(chosen))).stop),
        ResultRecorder(name, source.sensor, detector, chosen, files, live=True) as recorder,
        stream as live,
        low_latency(),
    ):
        began, ended, failure = time.perf_counter(), "", None
        try:
            if on_start is not None:
                on_start(live)
            for frame in live:
                recorder.add(frame)
                if on_frame is not None:
                    on_frame(frame)
        except KeyboardInterrupt:  # outside the main thread, or raised by on_frame
            ended = "it was stopped (Ctrl-C)"
        except Exception as error:  # raised after the files are completed
            ended, failure = f"it broke off ({error})", error
        took = time.perf_counter() - began
        live.close()  # windows that still wait are dropped, and counted in the summary
        notes = [ended or live.ended, *_notes(live, hz, took)]
        try:
            done = recorder.result(live, took, notes=notes, counted=("windows_late", "stalls", "restarts"))
        finally:
            if failure is not None:
                raise failure
    return done


def _notes(live: LiveStream, hz: float, took_s: float) -> list[str]:
    """Sentences about late and dropped windows, stalls, recordings, and what the source lost."""
    counts, notes = live.counts, []
    closed_s = (counts.windows + counts.windows_dropped) / hz
    if counts.windows_late:
        notes.append(f"{counts.windows_late} of {plural(counts.windows, 'window')} came late")
    if counts.windows_dropped and closed_s > 1.5 * took_s:
        notes.append(
            f"events came {significant(closed_s / max(took_s, 1e-9))} times as fast as they happened, and live keeps"
            " the newest; a file that is given itself loses no window"
        )
    if counts.stalls:
        notes.append(f"the source was silent for more than a second {plural(counts.stalls, 'time')}")
    notes += [each.describe() for each in getattr(live.source, "recordings", ())]
    return notes + [f"{what}: {count}" for what, count in live.source_counts.items() if count]
