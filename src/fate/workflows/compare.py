"""``fate compare``: several detectors, or several rates, on one recording, side by side in a video or a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fate.boxes.drawing import Picture, draw_events, draw_frame, draw_labels, enlargement, side_by_side
from fate.boxes.label_files import read_labels
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.formats.opening import as_recording
from fate.formats.recording import Recording
from fate.inference.loading import Model, load_detector
from fate.inference.stream import StreamingDetector, part_of
from fate.progress import Progress, name_part
from fate.view.look import Look
from fate.view.rendering import render_comparison
from fate.whole_files import find_target, write_whole
from fate.workflows.detect import Detected, detect

#: Number of rows of a picture if no times are given.
ROWS = 3
#: A column of labels shows those of the nearest time within this distance, µs.
NEAREST_LABEL_US = 25_000


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``."""

    path: Path
    runs: dict[str, Detected]  #: by caption, such as ``"fate-s-nano, 200 Hz"``
    times_us: tuple[int, ...]  #: times of the rows of a picture, µs; empty for a video


def compare(
    file: str | os.PathLike[str] | Recording,
    models: Sequence[Model],
    save: str | os.PathLike[str],
    *,
    hz: Sequence[float] = (200.0,),
    times_us: Sequence[int] = (),
    labels: str | os.PathLike[str] | None = None,
    window_us: int | None = None,
    threshold: float | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
    device: str = "cpu",
    open_options: dict[str, Any] | None = None,
    look: Look | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Detect with each detector at each rate, and draw the results side by side.

    Args:
        file: any recording that ``open_recording`` opens, or an open one.
        models: bundled names, .safetensors files or detectors: one column for each, and each rate.
        save: a video, .mp4, or a picture, .png, with one row for each time.
        hz: windows per second.
        times_us: times of the rows of a picture, µs of the recording's clock; by default three, evenly spaced.
        labels: a file of labels for a column of their own, in a picture.
        window_us: length of a window in µs; 1 / hz unless given.
        threshold: lowest score of a box; each detector's own unless given.
        start_us, end_us: part of the recording, µs of its clock.
        device: cpu or cuda.
        open_options: of ``open_recording``.
        look: how events are shown.
        progress: called with the work done, all of it, a short line and the name of the part.

    Example:
        >>> fate.compare("drive.raw", ["fate-s-nano", "fate-e-tiny"], "both.mp4", hz=[200])      # doctest: +SKIP
    """
    target, shown = Path(save), look or Look()
    _check_request(target, models, hz, for_picture=bool(times_us) or labels is not None)
    find_target(target)
    detectors = [load_detector(model, device) for model in models]
    classes = _shared_classes(detectors)
    pairs = list(product(zip(detectors, _names(models, detectors), strict=True), hz))
    runs: dict[str, Detected] = {}
    with as_recording(file, **(open_options or {})) as recording:
        recording.refuse_empty()
        first, last = part_of(recording, start_us, end_us)
        times = _row_times(recording, first, last, times_us)
        truth = None if labels is None else read_labels(labels, sensor=recording.sensor, classes=classes)
        for (detector, name), rate in pairs:
            runs[f"{name}, {rate:g} Hz"] = detect(
                recording, detector, rate, window_us=window_us, threshold=threshold, start_us=first, end_us=last,
                progress=name_part(progress, f"{name}, {rate:g} Hz"),
            )  # fmt: skip
        if target.suffix == ".mp4":
            frames = [(caption, run.frames) for caption, run in runs.items()]
            render_comparison(
                recording, target, frames, **asdict(shown), classes=classes, start_us=first, end_us=last,
                progress=name_part(progress, "drawing"),
            )  # fmt: skip
            return Comparison(target, runs, ())
        rows = [_draw_row(recording, time, runs, truth, classes, shown) for time in times]
        png = BytesIO()
        Image.fromarray(np.concatenate(rows)).save(png, "PNG")
        write_whole(target, png.getvalue())
    return Comparison(target, runs, times)


def _check_request(target: Path, models: Sequence[Model], hz: Sequence[float], for_picture: bool) -> None:
    """Refuse what cannot be compared or written, before anything is loaded."""
    if target.suffix not in (".mp4", ".png"):
        raise FateError(f"{target}: expected a video, .mp4, or a picture, .png")
    if isinstance(models, str) or not models or not hz:
        raise FateError("expected a list of detectors and a list of rates to compare, at least one of each")
    if len(set(hz)) < len(hz):
        raise FateError(
            f"rates {', '.join(f'{rate:g}' for rate in hz)} were given, some of them twice; give each rate once"
        )
    if target.suffix == ".mp4" and for_picture:
        raise FateError(f"times or labels were given for {target}; they are for a picture: give a file.png")


def _shared_classes(detectors: Sequence[StreamingDetector]) -> Sequence[str]:
    """The classes of all detectors; refuses detectors whose classes differ."""
    classes = detectors[0].classes
    for other in detectors:
        if tuple(other.classes) != tuple(classes):
            raise FateError(
                f"detectors of different classes were given: {', '.join(classes)}, and {other.name} has"
                f" {', '.join(other.classes)}; expected the same classes in the same order"
            )
    return classes


def _row_times(
    recording: Recording, first_us: int | None, last_us: int | None, given: Sequence[int]
) -> tuple[int, ...]:
    """The times of the rows of a picture: the given ones, or some that are evenly spaced in the part."""
    begin = recording.start_us if first_us is None else first_us
    end = recording.end_us if last_us is None else last_us
    for time in given:
        if not begin <= time <= end:
            raise FateError(
                f"the time {time / 1e6:g} s was given; expected times from {begin / 1e6:g} to {end / 1e6:g} s, by the"
                " clock of the recording"
            )
    return tuple(given) or tuple(begin + (end - begin) * row // (ROWS + 1) for row in range(1, ROWS + 1))


def _names(models: Sequence[Model], detectors: Sequence[StreamingDetector]) -> list[str]:
    """A name for each detector: its own, or folder and name of its file if two have the same."""
    names = [detector.name for detector in detectors]
    if len(set(names)) < len(names):
        paths = [Path(model) if isinstance(model, str | os.PathLike) else None for model in models]
        names = [
            name if path is None else f"{path.parent.name}/{name}" for path, name in zip(paths, names, strict=True)
        ]
    if len(set(names)) < len(names):
        raise FateError(
            f"{next(name for name in names if names.count(name) > 1)} was given twice; give each detector once"
        )
    return names


def _draw_row(
    recording: Recording,
    time_us: int,
    runs: dict[str, Detected],
    truth: Labels | None,
    classes: Sequence[str],
    look: Look,
) -> Picture:
    """Draw the events before a time, once for the labels and once for each run with the boxes it had by then."""
    factor = enlargement(recording.sensor)
    picture = draw_events(recording.read(time_us - look.acc_us, time_us), look.palette, factor=factor)
    pictures, captions = [], []
    if truth is not None:
        boxes = _labels_near(truth, time_us)
        pictures.append(picture if boxes is None else draw_labels(picture, boxes, factor, boxes.classes or classes))
        captions.append(f"{time_us / 1e6:.2f} s: {'no ' if boxes is None else ''}labels")
    for caption, run in runs.items():
        known = [frame for frame in run.frames if frame.t_us <= time_us]
        pictures.append(draw_frame(picture, known[-1], factor, classes=classes) if known else picture)
        captions.append(caption if captions else f"{time_us / 1e6:.2f} s: {caption}")
    return side_by_side(pictures, captions)


def _labels_near(truth: Labels, time_us: int) -> Labels | None:
    """The labels of the nearest labelled time; None if it is too far away."""
    known = truth.labelled_us
    if not len(known):
        return None
    nearest = int(known[np.argmin(np.abs(known - time_us))])
    return truth.at(nearest) if abs(nearest - time_us) <= NEAREST_LABEL_US else None
