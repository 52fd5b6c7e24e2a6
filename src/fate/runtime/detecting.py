"""``fate detect``: a recording in, boxes out: as a log, as files, on a video, on a page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fate.errors import FateError
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.runtime.detection_log import DetectionLog
from fate.runtime.frames import StreamFrame
from fate.runtime.loading import DEFAULT_DETECTOR, Model, load_detector
from fate.runtime.stream import StreamingDetector
from fate.view.rendering import VideoClock, render_video
from fate.view.report import measure_event_rate, write_report

STAGES = ("decode", "encode", "model", "post")
#: Tells (what is done, how much, of how much, a short line).
Show = Callable[[str, float, float, str], None]


@dataclass(frozen=True)
class Look:
    """How a video shows a recording.

    Attributes:
        acc_us: events of this time before each picture are shown, µs.
        fps: pictures a second of video.
        slow: how many times slower than the recording the video runs.
        palette: a name of ``fate.view.drawing.PALETTES``.
    """

    acc_us: int = 50_000
    fps: float = 25.0
    slow: float = 1.0
    palette: str = "dark"


@dataclass(frozen=True)
class Detected:
    """What was found, and what it took."""

    log: DetectionLog
    frames: list[StreamFrame]
    summary: dict[str, Any]

    def lines(self) -> list[str]:
        """The summary for people."""
        given = self.summary
        windows = "1 window" if given["windows"] == 1 else f"{given['windows']} windows"
        kinds = [f"{count} {name}" for name, count in given["boxes"].items()]
        if "tracks" in given:
            kinds.append(f"{given['tracks']} tracks in all")
        spent = [f"{name} {p50:.2f} / {p99:.2f}" for name, (p50, p99) in given["latency_ms"].items()]
        latency = (
            f"latency p50 / p99, ms: {', '.join(spent)} (without decode); a window lasts {given['budget_ms']:g} ms, and"
            f" {given['within_budget']:.1%} were done in that time"
        )
        lost = [f"{count} {name.replace('_', ' ')}" for name, count in given["dropped"].items() if count]
        return [
            f"{windows} at {given['hz']:g} Hz ({given['seconds']:.2f} s) in {given['took_s']:.1f} s:"
            f" {given['windows_per_s']:.0f} a second, {given['times_real_time']:.2f} × real time",
            f"boxes of score ≥ {given['threshold']:g}: {', '.join(kinds)}",
            latency if given["windows"] else "no window: no events came",
            *_age(given.get("age_ms")),
            f"dropped: {', '.join(lost) or 'nothing'}",
            *(f"note: {note}" for note in given["notes"] if note != given["adaptation"]),  # of that a warning spoke
        ]


def _age(ms: tuple[float, float, float] | None) -> list[str]:
    """Of live windows."""
    if ms is None:
        return []
    return [f"from a window's end to its boxes: {ms[0]:.2f} ms (p50), {ms[1]:.2f} (p99), {ms[2]:.2f} at most"]


def detect(
    file: str | os.PathLike[str] | Recording,
    model: Model = DEFAULT_DETECTOR,
    hz: float = 200.0,
    *,
    window_us: int | None = None,
    threshold: float = 0.4,
    track: bool = False,
    start_us: int | None = None,
    end_us: int | None = None,
    device: str = "cpu",
    open_options: dict[str, Any] | None = None,
    save: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    look: Look | None = None,
    show: Show | None = None,
) -> Detected:
    """Detect objects in a recording at any rate.

    Args:
        file: any recording that ``open_recording`` opens, or an open one.
        model: a bundled name, a .safetensors file, a detector, or what ``load_detector`` returned.
        hz: windows a second.
        window_us: their length; as long as the time between two unless given. Longer ones overlap.
        threshold: least score of a box.
        track: whether boxes get the number of their object.
        start_us, end_us: part of the recording, µs of its clock.
        device: cpu or cuda.
        open_options: of ``open_recording``.
        save: a video, .mp4.
        report: a page, .html, with the video in it.
        look: how the video shows events.
        show: is told how far it is.
    """
    if not 1 <= hz <= 1000:
        raise FateError(f"{hz:g} Hz was given; expected a rate from 1 to 1000")
    detector = model if isinstance(model, StreamingDetector) else load_detector(model, device)
    if isinstance(file, Recording):
        return _detect(
            file, detector, hz, window_us, threshold, track, start_us, end_us, save, report, look or Look(), show
        )
    with open_recording(file, **(open_options or {})) as recording:
        return _detect(
            recording, detector, hz, window_us, threshold, track, start_us, end_us, save, report, look or Look(), show
        )


def _detect(
    recording: Recording, detector: StreamingDetector, hz: float, window_us: int | None, threshold: float, track: bool,
    start_us: int | None, end_us: int | None, save: Any, report: Any, look: Look, show: Show | None,
) -> Detected:  # fmt: skip
    recording.refuse_empty()
    start_us, end_us = part_of(recording, start_us, end_us)
    stream = detector.stream(
        recording, hz, window_us=window_us, threshold=threshold, track=track, start_us=start_us, end_us=end_us
    )
    frames: list[StreamFrame] = []
    began = time.perf_counter()
    for frame in stream:
        frames.append(frame)
        if show is not None:
            spent = max(time.perf_counter() - began, 1e-9)
            text = f"{len(frames) / spent:.0f} windows/s, {len(frames) / spent / hz:.2f} × real time"
            show("detecting", len(frames), len(stream), text)
    took = time.perf_counter() - began
    name = Path(str(recording.path)).name
    notes = [text for text in (stream.adaptation.describe(), told_of_windows(window_us, hz)) if text]
    summary = summarise(frames, hz, took, threshold, detector.classes, stream.counts.to_dict(), notes)
    summary["adaptation"] = stream.adaptation.describe()
    facts = {"model": detector.name, "threshold": threshold, "summary": summary}
    size = recording.sensor
    log = DetectionLog(name, (size.height, size.width), tuple(detector.classes), hz, frames, facts)
    done = Detected(log, frames, summary)
    if save is not None or report is not None:
        _show_it(recording, done, detector, hz, start_us, end_us, save, report, look, show)
    return done


def told_of_windows(window_us: int | None, hz: float) -> str:
    """Of windows that overlap; empty where they do not."""
    return "" if window_us is None else f"windows of {window_us / 1000:g} ms, one every {1000 / hz:g} ms"


def part_of(recording: Recording, start_us: int | None, end_us: int | None) -> tuple[int | None, int | None]:
    """The part that was asked for, within the recording; one without events is refused."""
    first, last = recording.start_us, recording.end_us
    late, early = start_us is not None and start_us >= last, end_us is not None and end_us <= first
    if late or early:
        asked = f"starts at {start_us} µs" if late else f"ends at {end_us} µs"
        raise FateError(
            f"{recording.path}: a part that {asked} was asked for, and the recording goes from {first} to {last} µs"
            f" ({(last - first) / 1e6:.2f} s); times such as +2s count from the first event"
        )
    return None if start_us is None else max(start_us, first), None if end_us is None else min(end_us, last)


def _show_it(
    recording: Recording, done: Detected, detector: StreamingDetector, hz: float, start_us: int | None,
    end_us: int | None, save: Any, report: Any, look: Look, show: Show | None,
) -> None:  # fmt: skip
    """The video, and the page that holds it; only where it is too large for the page it lies beside it."""
    with ExitStack() as gone:
        own = Path(save) if save is not None else Path(gone.enter_context(TemporaryDirectory())) / "video.mp4"
        clock = _draw(recording, own, done, detector, start_us, end_us, look, show)
        if report is None:
            return
        write_report(
            Path(report), own if save is not None else own.read_bytes(), done.frames, _for_people(done, detector),
            title=f"{done.log.recording} at {hz:g} Hz", clock=clock, classes=detector.classes,
            event_rate=measure_event_rate(recording, start_us, end_us), hz=hz, lead="; ".join(done.lines()[:2]),
        )  # fmt: skip


def _draw(
    recording: Recording, video: Path, done: Detected, detector: StreamingDetector, start_us: int | None,
    end_us: int | None, look: Look, show: Show | None,
) -> VideoClock:  # fmt: skip
    # the last window may end after the part that was asked for, and its boxes are to be seen
    last_us = None if end_us is None else max([end_us, *(frame.t_us for frame in done.frames[-1:])])
    told = None if show is None else lambda at, of: show("drawing", at, of, "")
    return render_video(
        recording, video, done.frames, acc_us=look.acc_us, fps=look.fps, slow=look.slow, palette=look.palette,
        start_us=start_us, end_us=last_us, classes=detector.classes, progress=told,
    )  # fmt: skip


def _for_people(done: Detected, detector: StreamingDetector) -> dict[str, Any]:
    """What the page does not show already, in words."""
    given, size = done.summary, done.log.sensor
    told = {
        "sensor": f"{size[1]} × {size[0]} pixels",
        "detector": detector.name,
        "device": str(detector.device),
        "least score of a box": given["threshold"],
        "events": given["events"],
        "seconds of recording": given["seconds"],
        "seconds it took": given["took_s"],
        "windows a second": given["windows_per_s"],
        "times real time": given["times_real_time"],
        "windows done in their own time": f"{given['within_budget']:.1%}",
    }
    if given["notes"]:
        told["notes"] = "; ".join(given["notes"])
    dropped = {name.replace("_", " "): count for name, count in given["dropped"].items()}
    return {**told, "dropped": dropped}


def summarise(
    frames: list[StreamFrame], hz: float, took_s: float, threshold: float, classes: Any, counts: dict[str, Any],
    notes: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Plain values: boxes by class, latency by stage against the time a window lasts, what was dropped."""
    per_stage = {stage: np.array([frame.ms.get(stage, 0.0) for frame in frames]) for stage in STAGES}
    per_stage = {stage: spent for stage, spent in per_stage.items() if spent.any()}  # others were not measured
    total = np.array([frame.total_ms for frame in frames])
    quantiles = {
        stage: tuple(round(float(value), 3) for value in np.quantile(spent, [0.5, 0.99]))
        for stage, spent in {**per_stage, "total": total}.items()
        if len(spent)
    }
    found = np.concatenate([np.zeros(0, np.int64), *(frame.class_ids for frame in frames)])
    budget = 1e3 / hz
    summary: dict[str, Any] = {
        "hz": hz,
        "windows": len(frames),
        "seconds": len(frames) / hz,
        "took_s": round(took_s, 3),
        "windows_per_s": round(len(frames) / max(took_s, 1e-9), 2),
        "times_real_time": round(len(frames) / hz / max(took_s, 1e-9), 3),
        "threshold": threshold,
        "boxes": {name: int((found == number).sum()) for number, name in enumerate(classes)},
        "budget_ms": budget,
        "within_budget": round(float((total <= budget).mean()), 4) if len(frames) else 1.0,
        "latency_ms": quantiles,
        "events": sum(frame.num_events for frame in frames),
        "dropped": {name: counts[name] for name in
                    ("late_events", "excess_events", "skipped_windows", "windows_dropped", "events_in_dropped_windows")
                    if name in counts},
        "notes": [*notes, *counts.get("restart_reasons", ())],
    }  # fmt: skip
    if any(frame.track_ids is not None for frame in frames):
        seen = [frame.track_ids for frame in frames if frame.track_ids is not None]
        summary["tracks"] = len(np.unique(np.concatenate(seen))) if seen else 0
    return summary
