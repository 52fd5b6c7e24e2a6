"""``fate detect``: a recording in, boxes out: as a log, as files, on a video, on a page."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fate.boxes.detection_files import DetectionFiles
from fate.boxes.detection_log import DetectionLog
from fate.errors import FateError
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.inference.loading import DEFAULT_DETECTOR, Model, load_detector
from fate.inference.stream import StreamingDetector
from fate.inference.stream_frames import StreamFrame
from fate.models.nms import MAX_OVERLAP
from fate.progress import Progress, name_part
from fate.text import duration, encodable, frequency, plural, significant
from fate.view.rendering import VideoClock, render_video
from fate.view.report import measure_event_rate, write_report
from fate.workflows.summary import RunningSummary

#: Tells (what is done, how much, of how much, a short line).


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
    """What was found, and what it took.

    Attributes:
        log: the frames, and what they were made with.
        frames: all frames of a recording; empty for a live source, whose frames are not kept in memory.
        summary: plain values, as ``RunningSummary`` gives them.
    """

    log: DetectionLog
    frames: list[StreamFrame]
    summary: dict[str, Any]

    def lines(self) -> list[str]:
        """The summary for people."""
        given = self.summary
        took_s = max(given["took_s"], 1e-9)
        speed = (
            f"{frequency(given['windows'] / took_s, 'window')}, {significant(given['seconds'] / took_s)} × real time"
        )
        kinds = [f"{count} {name}" for name, count in given["boxes"].items()]
        if "tracks" in given:
            kinds.append(f"{plural(given['tracks'], 'track')} in all")
        spent = [f"{name} {p50:.2f} / {p99:.2f}" for name, (p50, p99) in given["latency_ms"].items()]
        latency = (
            f"latency p50 / p99, ms: {', '.join(spent)} (without decode); a window lasts {given['budget_ms']:g} ms, and"
            f" {given['within_budget']:.1%} were done in that time"
        )
        lost = [f"{count} {name.replace('_', ' ')}" for name, count in given["dropped"].items() if count]
        return [
            f"{plural(given['windows'], 'window')} at {given['hz']:g} Hz ({given['seconds']:.2f} s) in"
            f" {duration(given['took_s'])}: {speed}",
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
    max_overlap: float = MAX_OVERLAP,
    start_us: int | None = None,
    end_us: int | None = None,
    device: str = "cpu",
    open_options: dict[str, Any] | None = None,
    save: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    json: str | os.PathLike[str] | None = None,
    jsonl: str | os.PathLike[str] | None = None,
    csv: str | os.PathLike[str] | None = None,
    coco: str | os.PathLike[str] | None = None,
    look: Look | None = None,
    progress: Progress | None = None,
) -> Detected:
    """Detect objects in a recording at any rate.

    Args:
        file: any recording that ``open_recording`` opens, or an open one.
        model: a bundled name, a .safetensors file, a detector, or what ``load_detector`` returned.
        hz: windows a second.
        window_us: their length; as long as the time between two unless given. Longer ones overlap.
        threshold: least score of a box.
        track: whether boxes get the number of their object.
        max_overlap: IoU, 0 to 1, above which the weaker of two boxes of a class goes; 1 keeps every box.
        start_us, end_us: part of the recording, µs of its clock.
        device: cpu or cuda.
        open_options: of ``open_recording``.
        save: a video, .mp4.
        report: a page, .html, with the video in it.
        json: all frames and the summary in one JSON document; ``"-"`` is standard output, here and below.
        jsonl: JSON lines, one for each window as soon as it is detected.
        csv: a row for each box, as soon as its window is detected.
        coco: COCO's JSON, with times.
        look: how the video shows events.
        progress: called with the windows done, the windows in all, the speed and the name of the part.
    """
    if not 1 <= hz <= 1000:
        raise FateError(f"{hz:g} Hz was given; expected a rate from 1 to 1000")
    detector = model if isinstance(model, StreamingDetector) else load_detector(model, device)
    files = {"json": json, "jsonl": jsonl, "csv": csv, "coco": coco}
    with nullcontext(file) if isinstance(file, Recording) else open_recording(file, **(open_options or {})) as opened:
        return _detect(
            opened, detector, hz, window_us, threshold, track, max_overlap, start_us, end_us, save, report, files,
            look or Look(), progress,
        )  # fmt: skip


def _detect(
    recording: Recording, detector: StreamingDetector, hz: float, window_us: int | None, threshold: float, track: bool,
    max_overlap: float, start_us: int | None, end_us: int | None, save: Any, report: Any, files: dict[str, Any],
    look: Look,
    progress: Progress | None,
) -> Detected:  # fmt: skip
    recording.refuse_empty()
    start_us, end_us = part_of(recording, start_us, end_us)
    stream = detector.stream(
        recording, hz, window_us=window_us, threshold=threshold, track=track, max_overlap=max_overlap,
        start_us=start_us, end_us=end_us,
    )  # fmt: skip
    frames: list[StreamFrame] = []
    running = RunningSummary(detector.classes, hz, threshold)
    facts: dict[str, Any] = {"model": detector.name, "threshold": threshold}
    height, width = recording.sensor
    about = (encodable(Path(str(recording.path)).name), (height, width), tuple(detector.classes), hz)
    with DetectionFiles(*about, facts, **files) as written:
        began = time.perf_counter()
        for frame in stream:
            frames.append(frame)
            running.add(frame)
            written.add(frame)
            if progress is not None:
                spent = max(time.perf_counter() - began, 1e-9)
                speed = len(frames) / spent
                text = f"{frequency(speed, 'window')}, {significant(speed / hz)} × real time"
                progress(len(frames), len(stream), text, "detecting")
        took = time.perf_counter() - began
        notes = [text for text in (stream.adaptation.describe(), told_of_windows(window_us, hz)) if text]
        summary = running.result(took, stream.counts.to_dict(), notes)
        summary["adaptation"] = stream.adaptation.describe()
        written.finish({"summary": summary})
    done = Detected(DetectionLog(*about, frames, {**facts, "summary": summary}), frames, summary)
    if save is not None or report is not None:
        _show_it(recording, done, detector, hz, start_us, end_us, save, report, look, progress)
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
    end_us: int | None, save: Any, report: Any, look: Look, progress: Progress | None,
) -> None:  # fmt: skip
    """The video, and the page that holds it; only where it is too large for the page it lies beside it."""
    with ExitStack() as gone:
        own = Path(save) if save is not None else Path(gone.enter_context(TemporaryDirectory())) / "video.mp4"
        clock = _draw(recording, own, done, detector, start_us, end_us, look, progress)
        if report is None:
            return
        write_report(
            Path(report), own if save is not None else own.read_bytes(), done.frames, _for_people(done, detector),
            title=f"{done.log.recording} at {hz:g} Hz", clock=clock, classes=detector.classes,
            event_rate=measure_event_rate(recording, start_us, end_us), hz=hz, lead="; ".join(done.lines()[:2]),
        )  # fmt: skip


def _draw(
    recording: Recording, video: Path, done: Detected, detector: StreamingDetector, start_us: int | None,
    end_us: int | None, look: Look, progress: Progress | None,
) -> VideoClock:  # fmt: skip
    # the last window may end after the part that was asked for, and its boxes are to be seen
    last_us = None if end_us is None else max([end_us, *(frame.t_us for frame in done.frames[-1:])])
    return render_video(
        recording, video, done.frames, acc_us=look.acc_us, fps=look.fps, slow=look.slow, palette=look.palette,
        start_us=start_us, end_us=last_us, classes=detector.classes, progress=name_part(progress, "drawing"),
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
