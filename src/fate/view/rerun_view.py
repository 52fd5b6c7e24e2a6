"""A recording in the rerun viewer: the events as a cloud in x, y and time, their picture with boxes, and their rate.

The viewer is an extra of 170 MB (``pip install rerun-sdk``) and is imported only when it is used. It sends
anonymous usage statistics to its makers from its second start on unless they are switched off once, for good, with
``rerun analytics disable``; see :data:`TELEMETRY`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.detection_files import read_frames
from fate.boxes.detections import DetectionFrame, FrameLookup, class_name
from fate.boxes.drawing import Palette, class_colour, label_boxes, palette_of
from fate.errors import PACKAGES, FateError, missing_packages
from fate.events.events import Events
from fate.formats.opening import open_recording
from fate.formats.recording import Recording
from fate.view.rendering import EventSurface
from fate.whole_files import Draft, find_target

#: What a command says before it opens the viewer.
TELEMETRY = (
    "the rerun viewer sends anonymous usage statistics to its makers from its second start on;"
    " 'rerun analytics disable' switches that off for good"
)
DEPTH = 2.0  # widths of the sensor that one second of time is deep: a car's path looks like a path


@dataclass(frozen=True)
class Shown:
    """Numbers of what the viewer shows."""

    events: int  #: points of the cloud
    events_left_out: int  #: evenly, to keep the viewer fast; pictures and rates count all events
    frames: int
    boxes: int


def import_rerun() -> Any:
    """Return the package of the viewer; if it is not installed, the error has the pip line."""
    try:
        return import_module("rerun")
    except ImportError:
        raise missing_packages("the viewer", PACKAGES["rerun"]) from None


def show_recording(
    recording: str | os.PathLike[str] | Recording,
    detections: str | os.PathLike[str] | Sequence[DetectionFrame] | None = None,
    *,
    acc_us: int = 50_000,
    step_us: int = 20_000,
    palette: str | Palette = "dark",
    start_us: int | None = None,
    end_us: int | None = None,
    threshold: float = 0.0,
    classes: Sequence[str] | None = None,
    max_events: int = 3_000_000,
    save: str | os.PathLike[str] | None = None,
    sensor: Sequence[int] | None = None,
    format: str | None = None,
) -> Shown:
    """Open the rerun viewer on a recording, or write a file that it opens. Needs ``pip install rerun-sdk``.

    Args:
        recording: a file, or an open recording.
        detections: a JSON file of ``fate detect``, a label file (COCO, Prophesee, npz), or frames in order of time.
        acc_us: the picture shows the events of this time before it, µs.
        step_us: time from one picture to the next, µs.
        palette: colours of events, a name in ``PALETTES`` or colours of one's own.
        start_us: where to start; the recording's start unless given.
        end_us: where to end; the recording's end unless given.
        threshold: boxes with a lower score are left out.
        classes: names of the class ids; the names in the file of detections unless given.
        max_events: points of the cloud at most; above, each step's events are thinned evenly, and counted.
        save: write this ``.rrd`` file, whole or not at all, instead of opening the viewer.
        sensor, format: see ``fate.open_recording``; for a file only.
    """
    if isinstance(detections, str | os.PathLike):
        detections, named = read_frames(detections)
        classes = classes or named
    if save is not None and Path(save).suffix.lower() != ".rrd":
        raise FateError(f"{save}: the viewer's files end in .rrd; give such a name")
    rerun = import_rerun()
    with ExitStack() as closing:
        if isinstance(recording, str | os.PathLike):
            recording = closing.enter_context(open_recording(recording, sensor=sensor, format=format))
            recording.refuse_empty()
        start = recording.start_us if start_us is None else start_us
        end = recording.end_us if end_us is None else end_us
        if end <= start or step_us < 1 or max_events < 1:
            raise FateError(
                f"a view from {start} to {end} µs, step_us = {step_us} and max_events = {max_events} were asked for; it"
                " must end after it starts, and the others must be at least 1"
            )
        stream = rerun.RecordingStream("fate")
        scene = _Scene(rerun, stream, recording, palette_of(palette), classes, threshold)
        kept = [frame for frame in FrameLookup(detections or ()).frames if start <= frame.t_us <= end]
        try:
            if save is None:
                stream.spawn(default_blueprint=_blueprint(rerun, scene.palette))
            else:
                draft = closing.enter_context(Draft(find_target(save, seeks=True)))
                closing.callback(stream.disconnect)  # before the draft gets its name
                stream.save(draft.path, default_blueprint=_blueprint(rerun, scene.palette))
            scene.log(kept, start, end, acc_us, step_us, max_events)
            stream.flush()
        except OSError as error:
            raise FateError(f"{save}: cannot be written ({error.strerror or error})") from None
    return Shown(scene.points, scene.left_out, len(kept), scene.boxes)


def _blueprint(rerun: Any, colours: Palette) -> Any:
    """Return the layout: the cloud on the left; the picture and the curves on the right."""
    views = import_module("rerun.blueprint")
    last_second = rerun.VisibleTimeRange(
        "time",
        start=rerun.TimeRangeBoundary.cursor_relative(seconds=-1.0),
        end=rerun.TimeRangeBoundary.cursor_relative(seconds=0.0),
    )
    cloud = views.Spatial3DView(
        origin="cloud", name="Events in x, y, t", background=colours.background, time_ranges=[last_second]
    )
    right = views.Vertical(
        views.Spatial2DView(origin="picture", name="Events and boxes"),
        views.TimeSeriesView(origin="rate", name="Events a second"),
        views.TimeSeriesView(origin="boxes", name="Boxes"),
        row_shares=[3, 1, 1],
    )
    return views.Blueprint(views.Horizontal(cloud, right, column_shares=[3, 2]), collapse_panels=True)


@dataclass
class _Scene:
    """Writes events and boxes into a stream of the viewer."""

    rerun: Any
    stream: Any
    recording: Recording
    palette: Palette
    classes: Sequence[str] | None
    threshold: float
    points: int = 0
    left_out: int = 0
    boxes: int = 0

    def log(self, frames: Sequence[DetectionFrame], start: int, end: int, acc_us: int, step_us: int, most: int) -> None:
        """Log cloud, picture, rate and boxes in order of time, so that the viewer can show the first ones early."""
        colours = (self.palette.background, self.palette.off, self.palette.on)
        context = [(index, name, colours[index]) for index, name in enumerate(("", "OFF", "ON"))]
        self.stream.log("picture", self.rerun.AnnotationContext(context), static=True)
        self.stream.log("cloud", self.rerun.ViewCoordinates.RDF, static=True)  # x right, y down, time away
        for each, name in enumerate(self.classes or ()):
            line = self.rerun.SeriesLines(colors=[class_colour(each)], names=[name])
            self.stream.log(_path_of(name), line, static=True)
        surface = EventSurface(self.recording.sensor, acc_us, self.palette)
        surface.feed(self.recording.read(start - acc_us, start))  # the first picture shows events before the start too
        times = [*range(start + step_us, end, step_us), end]
        before, left = start, deque(frames)
        for time in times:
            events = self.recording.read(before, time)
            surface.feed(events)
            self._set_time(time)
            self._log_cloud(events, max(1, most // len(times)))
            self.stream.log("picture/events", self.rerun.SegmentationImage(surface.shades(time), opacity=1.0))
            self.stream.log("rate/events", self.rerun.Scalars([len(events) / ((time - before) * 1e-6)]))
            while left and left[0].t_us <= time:
                self._log_boxes(left.popleft())
            before = time

    def _set_time(self, time_us: int) -> None:
        """Set the time of what is logged next."""
        self.stream.set_time("time", duration=(time_us - self.recording.start_us) * 1e-6)

    def _depth(self, time_us: NDArray[np.int64]) -> NDArray[np.float32]:
        seconds = (time_us - self.recording.start_us) * 1e-6
        return (seconds * DEPTH * self.recording.sensor[1]).astype(np.float32)

    def _log_cloud(self, events: Events, most: int) -> None:
        count = len(events)
        chosen = np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)
        x, y = events.x[chosen].astype(np.float32), events.y[chosen].astype(np.float32)
        positions = np.stack([x, y, self._depth(events.t_us[chosen])], 1)
        colours = np.array([self.palette.off, self.palette.on], np.uint8)[events.p[chosen]]
        self.stream.log("cloud/events", self.rerun.Points3D(positions, colors=colours, radii=0.6))
        self.points += len(chosen)
        self.left_out += count - len(chosen)

    def _log_boxes(self, frame: DetectionFrame) -> None:
        """Log the boxes of one frame, in the picture and in the cloud; a frame without boxes clears the last ones."""
        self._set_time(int(frame.t_us))
        kept = np.flatnonzero(np.asarray(frame.scores) >= self.threshold)
        boxes = np.asarray(frame.boxes, np.float32).reshape(-1, 4)[kept]
        ids = [int(each) for each in np.asarray(frame.class_ids)[kept]]
        colours = [class_colour(each) for each in ids]
        labels = label_boxes(frame, kept, self.classes)
        flat = self.rerun.Boxes2D(mins=boxes[:, :2], sizes=boxes[:, 2:] - boxes[:, :2], colors=colours, labels=labels)
        self.stream.log("picture/boxes", flat)
        z = float(self._depth(np.array([frame.t_us]))[0])
        corners = [
            [(x1, y1, z), (x2, y1, z), (x2, y2, z), (x1, y2, z), (x1, y1, z)] for x1, y1, x2, y2 in boxes.tolist()
        ]
        self.stream.log("cloud/boxes", self.rerun.LineStrips3D(corners, colors=colours, radii=0.8))
        for each in range(max(len(self.classes or ()), max(ids, default=-1) + 1)):
            self.stream.log(_path_of(class_name(each, self.classes)), self.rerun.Scalars([float(ids.count(each))]))
        self.boxes += len(kept)


def _path_of(name: str) -> str:
    """Return the entity path for the number of boxes of a class; a slash in the name would start a new level."""
    return f"boxes/{name.replace('/', '_')}"
