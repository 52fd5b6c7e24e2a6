"""``fate record``: stores everything that a live source sends, and on request the boxes beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fate.errors import FateError, warn
from fate.inference.live import stopping_gracefully
from fate.inference.loading import Model, load_detector
from fate.inference.recording_source import RecordingSource, RecordingState
from fate.inference.sources import LiveSource, is_live, open_source, play
from fate.inference.stream_types import StreamFrame, StreamOptions
from fate.workflows.detect import Detected
from fate.workflows.detect_live import detect_live

#: How often the state of a recording is reported, seconds.
REPORT_S = 0.1


@dataclass(frozen=True)
class Recorded:
    """A recording that has ended."""

    state: RecordingState  #: the file, and what it has
    ended: str  #: why it ended
    source_failed: bool  #: whether it ended because the source failed
    source_counts: dict[str, int]  #: what the source lost or refused
    detected: Detected | None = None  #: the result of detection, with a detector

    def lines(self) -> list[str]:
        """The summary as printed."""
        if self.detected is not None:  # its notes have the recording
            return self.detected.lines()
        lost = [f"note: {what}: {count}" for what, count in self.source_counts.items() if count]
        return [self.state.describe(), f"note: {self.ended}", *lost]


def record(
    source: str | os.PathLike[str] | LiveSource,
    path: str | os.PathLike[str],
    model: Model | None = None,
    hz: float = 200.0,
    *,
    window_us: int | None = None,
    threshold: float | None = None,
    track: bool = False,
    device: str = "cpu",
    sensor: Sequence[int] | None = None,
    format: str | None = None,
    reconnect: bool = False,
    on_state: Callable[[RecordingState, StreamFrame | None], Any] | None = None,
) -> Recorded:
    """Store all events of a source in a file until the source ends, or until Ctrl-C or SIGTERM.

    The file is written in place by a thread and has every event that was sent before an error. If it cannot be written
    any more, a recording without a detector ends with an error. With a detector, detection continues, and a warning
    says what was kept.

    Args:
        source: ``"-"``, ``"tcp:PORT"``, ``"camera"``, a file that is played at its own speed, or an object of
            ``fate.inference.sources``.
        path: a new file, .raw (EVT3), .dat or .csv. If the source comes back, or its time goes back by more than a
            second, a further file begins (``drive.001.raw``, or the next number that is free).
        model: the detector to run meanwhile: a bundled name, a .safetensors file, or what ``load_detector`` returned.
            JSON lines with its boxes go to a file beside ``path``, with the suffix .jsonl.
        hz: windows per second.
        window_us, threshold, track: the same as for ``detect``.
        device: ``"cpu"`` or ``"cuda"``, for a name or a file of weights.
        sensor, format, reconnect: the same as for ``fate.inference.sources.open_source``.
        on_state: called with the state of the recording and, with a detector, each frame; otherwise ten times a second.
    """
    lines = Path(path).with_suffix(".jsonl")
    options: dict[str, Any] = {"window_us": window_us, "threshold": threshold, "track": track}
    StreamOptions(hz, **options)  # refuses wrong values before the file is made
    if model is not None and lines.exists():
        raise FateError(f"{lines}: exists, and a recording replaces no file; give another name, or remove it")
    detector = None if model is None else load_detector(model, device)
    if not isinstance(source, LiveSource):
        name = os.fspath(source)
        source = open_source(name, sensor, format, reconnect) if is_live(name) else play(name, hz)
    recorder = RecordingSource(source)
    recorder.start(path)
    if detector is None:
        ended, failed = _read_all(recorder, on_state)
        if recorder.state.failed:
            raise FateError(recorder.state.failed)
        return Recorded(recorder.state, ended, failed, recorder.counts)
    is_warned = False

    def look(frame: StreamFrame) -> None:
        nonlocal is_warned
        if recorder.state.failed and not is_warned:
            is_warned = True
            warn(f"{recorder.state.failed}; detection continues")
        if on_state is not None:
            on_state(recorder.state, frame)

    try:
        done = detect_live(recorder, detector, hz, name=Path(path).name, on_frame=look, jsonl=lines, **options)
    finally:
        recorder.close()
    failed = bool(done.summary["source_failed"])
    return Recorded(recorder.state, done.summary["notes"][0], failed, recorder.counts, done)


def _read_all(
    recorder: RecordingSource, on_state: Callable[[RecordingState, StreamFrame | None], Any] | None
) -> tuple[str, bool]:
    """Read a source to its end in a thread, because a pipe blocks; return why it ended, and whether it failed."""
    stopped: list[str] = []
    failed: list[Exception] = []

    def read() -> None:
        try:
            for _ in recorder:
                pass
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read, name="fate-source", daemon=True)
    with stopping_gracefully(stopped.append):
        reader.start()
        while reader.is_alive() and not stopped and not recorder.state.failed:
            reader.join(REPORT_S)
            if on_state is not None:
                on_state(recorder.state, None)
        recorder.close()
    if on_state is not None:  # the file is complete
        on_state(recorder.state, None)
    if stopped or not failed:
        return (stopped or ["the source ended"])[0], False
    if not isinstance(failed[0], FateError | OSError):
        raise failed[0]  # a defect
    return f"the source failed: {failed[0]}", True
