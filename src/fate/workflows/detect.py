"""``fate detect``: detects objects in a recording, and writes files of boxes, a video and a report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict, Unpack

from fate.boxes.detection_files import DetectionFiles, DetectionLog
from fate.errors import FateError
from fate.events.filters import check_filters
from fate.formats.opening import as_recording
from fate.formats.recording import Recording
from fate.inference.live import LiveStream
from fate.inference.loading import DEFAULT_DETECTOR, Model, load_detector
from fate.inference.results import DetectionResult
from fate.inference.stream import CLIP_WINDOWS, RecordingStream, StreamingDetector, part_of
from fate.inference.stream_types import STALE_US, StreamFrame, StreamKeywords, StreamOptions
from fate.models.nms import MAX_OVERLAP
from fate.progress import Progress, name_part
from fate.text import encodable, frequency, plural, significant
from fate.threads import limit_threads
from fate.view.look import Look
from fate.view.rendering import VideoClock, render_video
from fate.view.report import measure_event_rate, write_report
from fate.workflows.summary import RunningSummary, summary_lines, summary_table


class BoxFiles(TypedDict, total=False):
    """Files of boxes; ``"-"`` is standard output, and ``jsonl`` and ``csv`` may be a listener, ``"tcp:HOST:PORT"``."""

    json: str | os.PathLike[str] | None  #: all frames and the summary in one JSON document
    jsonl: str | os.PathLike[str] | None  #: JSON lines, one for each window as soon as it is detected
    csv: str | os.PathLike[str] | None  #: a row for each box, as soon as its window is detected
    coco: str | os.PathLike[str] | None  #: COCO's JSON, with times
    rotate_bytes: int | None  #: size of ``jsonl`` and ``csv`` after which a further file begins


@dataclass(frozen=True, repr=False)
class Detected(DetectionResult):
    """The result of ``detect``; it has no frames of a live source, because those are not kept in memory."""

    summary: dict[str, Any]  #: plain values, see ``RunningSummary``

    def lines(self) -> list[str]:
        """The summary as printed."""
        return summary_lines(self.summary)


class ResultRecorder(DetectionFiles):
    """Writes the files of boxes of a run, and makes its summary. Use it in a ``with`` block."""

    def __init__(
        self,
        name: str,
        sensor: Sequence[int],
        detector: StreamingDetector,
        options: StreamOptions,
        files: BoxFiles,
        **facts: Any,
    ) -> None:
        """Take the name and sensor (height, width) of the source, and more ``facts`` for the head of the files."""
        self.options = options
        threshold = detector.calibration.threshold if options.threshold is None else options.threshold
        self.facts: dict[str, Any] = {
            "model": detector.name, "threshold": threshold, "window_us": options.length_us, **facts
        }  # fmt: skip
        if options.filters:
            self.facts["filters"] = check_filters(options.filters)
        size, classes = (sensor[0], sensor[1]), tuple(detector.classes)
        self._log = DetectionLog(encodable(name), size, classes, options.hz, facts=self.facts)
        self._summary = RunningSummary(detector.classes, options.hz, threshold)
        super().__init__(self._log, **files)

    def add(self, frame: Any) -> None:
        """Take the next :class:`StreamFrame`."""
        self._summary.add(frame)
        super().add(frame)

    def result(
        self,
        stream: RecordingStream | LiveStream,
        took_s: float,
        frames: Sequence[StreamFrame] = (),
        notes: Sequence[str] = (),
        counted: Sequence[str] = (),
    ) -> Detected:
        """Complete the files and return the result of a stream that has ended.

        The summary shows ``notes``, which are sentences, and those values of ``StreamCounts`` that ``counted`` names.
        """
        counts, adaptation, options = stream.counts.to_dict(), stream.adaptation.describe(), self.options
        overlap = ""
        if options.length_us > options.hop_us:
            overlap = f"windows of {options.length_us / 1000:g} ms, one every {1000 / options.hz:g} ms"
        if any(overlap in note for note in notes):
            overlap = ""
        dropped_lines = self.count_dropped_lines()
        unsent = [f"{name} did not take {plural(count, 'line')}" for name, count in dropped_lines.items()]
        few = self._summary.describe_few_boxes() if options.threshold is None else ""
        said = [note for note in (adaptation, overlap, *notes, few, *unsent) if note]
        summary = self._summary.result(took_s, counts, said)
        if dropped_lines:
            summary["dropped"]["lines_to_listeners"] = sum(dropped_lines.values())
        summary |= {name: counts[name] for name in counted} | {"adaptation": adaptation}
        if isinstance(stream, LiveStream):
            is_garbage = stream.source_ended and not counts["windows"] and any(stream.source_counts.values())
            summary["source_failed"] = stream.source_failed or is_garbage
        self.finish({"summary": summary})
        if series := self.series():
            summary["series"] = {name: list(files) for name, files in series.items()}
        if dropped_lines and not self.facts.get("live"):
            raise FateError(
                f"{'; '.join(unsent)}; start the listener first and run this again; other files are complete"
            )
        log = replace(self._log, frames=list(frames), facts={**self.facts, "summary": summary})
        return Detected(log, list(frames), summary)


def detect(
    file: str | os.PathLike[str] | Recording,
    model: Model = DEFAULT_DETECTOR,
    hz: float | Literal["auto"] = 200.0,
    *,
    window_us: int | None = None,
    threshold: float | None = None,
    track: bool = False,
    max_overlap: float = MAX_OVERLAP,
    stale_us: int | None = STALE_US,
    clip_windows: int = CLIP_WINDOWS,
    filters: str | Sequence[str] = (),
    start_us: int | None = None,
    end_us: int | None = None,
    device: str = "cpu",
    open_options: dict[str, Any] | None = None,
    save: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    look: Look | None = None,
    progress: Progress | None = None,
    **files: Unpack[BoxFiles],
) -> Detected:
    """Detect objects in a recording at any rate.

    Args:
        file: any recording that ``open_recording`` opens, or an open one.
        model: a bundled name, a .safetensors file, a detector, or what ``load_detector`` returned.
        hz: windows per second, 1 to 1000, or "auto" for the highest rate that this machine detects as fast as the
            recording was made.
        window_us: length of a window in µs. Windows longer than 1 / hz overlap. Unless given, it is the most accurate
            one by the header of the weights; 1 / hz if that says nothing.
        threshold: lowest score of a box; the detector's own unless given.
        track: whether objects are tracked, so that each has a number.
        max_overlap: IoU, 0 to 1, above which the weaker of two boxes of a class is dropped; 1 keeps every box.
        stale_us: a box in whose area no event has occurred for longer is dropped; None keeps it.
        clip_windows: windows that a CPU detects in one call, which is faster; boxes are equal up to rounding. With 1,
            they are exactly those of a live run that dropped no window.
        filters: events to drop first, such as ``["hot-pixels", "background:5ms"]``; see ``fate.events.filters``.
        start_us, end_us: part of the recording, µs of its clock.
        device: ``"cpu"`` or ``"cuda"``, for a name or a file of weights.
        open_options: arguments of ``open_recording``, for a file.
        save: name of a video to write, .mp4.
        report: name of a page to write, .html; it contains the video.
        look: how the video shows events.
        progress: called with the windows done, the windows in all, the speed and the name of the part.
        files: files of boxes to write: ``json``, ``jsonl``, ``csv`` and ``coco``, and ``rotate_bytes``; see
            ``BoxFiles``.
    """
    asked: StreamKeywords = {
        "window_us": window_us, "threshold": threshold, "track": track, "max_overlap": max_overlap,
        "stale_us": stale_us,
        "clip_windows": clip_windows,
        "filters": filters,
    }  # fmt: skip
    StreamOptions(200 if hz == "auto" else hz, **asked)  # refuses wrong values before the weights are loaded
    detector = load_detector(model, device)
    with as_recording(file, **(open_options or {})) as opened, limit_threads(str(detector.device)):
        opened.refuse_empty()
        part = part_of(opened, start_us, end_us)
        options, reason = detector.choose_options(opened.sensor, hz, **asked)
        stream = detector.stream(opened, start_us=part[0], end_us=part[1], **asdict(options))
        frames: list[StreamFrame] = []
        with ResultRecorder(Path(str(opened.path)).name, opened.sensor, detector, options, files) as recorder:
            began = time.perf_counter()
            for frame in stream:
                frames.append(frame)
                recorder.add(frame)
                if progress is not None:
                    speed = len(frames) / max(time.perf_counter() - began, 1e-9)
                    text = f"{frequency(speed, 'window')}, {significant(speed / options.hz)} × real time"
                    progress(len(frames), len(stream), text, "detecting")
            done = recorder.result(stream, time.perf_counter() - began, frames, notes=(reason,))
        if save is not None or report is not None:
            _write_pages(opened, done, detector, part, save, report, look or Look(), name_part(progress, "drawing"))
    return done


def _write_pages(
    recording: Recording,
    done: Detected,
    detector: StreamingDetector,
    part: tuple[int | None, int | None],
    save: str | os.PathLike[str] | None,
    report: str | os.PathLike[str] | None,
    look: Look,
    progress: Progress | None,
) -> None:
    """Write the video, and the report that contains it; a video that is too large for the page lies next to it."""
    start_us, end_us = part
    if end_us is not None:  # the last window may end after the part, and its boxes are shown
        end_us = max([end_us, *(frame.t_us for frame in done.frames[-1:])])
    with ExitStack() as closing:
        video = Path(save) if save is not None else Path(closing.enter_context(TemporaryDirectory())) / "video.mp4"
        clock = render_video(
            recording, video, done.frames, **asdict(look), start_us=start_us, end_us=end_us, classes=detector.classes,
            progress=progress,
        )  # fmt: skip
        if report is not None:
            shown = video if save is not None else video.read_bytes()
            write_run_report(report, done, detector, recording, shown, clock, part)


def write_run_report(
    path: str | os.PathLike[str],
    done: Detected,
    detector: StreamingDetector,
    recording: Recording,
    video: Path | bytes,
    clock: VideoClock,
    part: tuple[int | None, int | None] = (None, None),
    title: str = "",
) -> None:
    """Write the page of a run, with a video and its clock; ``part`` is the part of the recording in µs."""
    hz, extra = done.log.hz, {"detector": detector.name, "device": str(detector.device)}
    write_report(
        Path(path), video, done.frames, summary_table(done.summary, done.log.sensor, extra),
        title=title or f"{done.log.recording} at {hz:g} Hz", clock=clock, classes=detector.classes,
        event_rate=measure_event_rate(recording, *part), hz=hz, lead="; ".join(done.lines()[:2]),
    )  # fmt: skip
