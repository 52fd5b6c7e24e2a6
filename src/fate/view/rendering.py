"""A video of a recording: events, boxes, and a line with the time, the event rate and the rate of the boxes.

Accumulation time and display rate are two controls. Each picture shows the events of the last ``acc_us`` before its
time; pictures are ``1 / (fps · slow)`` seconds of the recording apart. Every event is read once: a surface keeps the
time and polarity of the last event of each pixel, and a pixel is drawn while its last event is younger than ``acc_us``.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes import drawing
from fate.boxes.detections import DetectionFrame, FrameLookup
from fate.boxes.drawing import ColourBy, Palette, Picture
from fate.errors import FateError
from fate.events.events import Events
from fate.formats.recording import Recording
from fate.progress import Progress
from fate.view.video import VideoWriter

PICTURE_WIDTH = 800  # small sensors are enlarged by the largest whole factor up to this width
MOST_FRAMES = 1_000_000  # of one video, 11 hours at 25 per second; more is a wrong unit
FAINT = (165, 175, 190)  # the text below a video that says how it was drawn
LONG_AGO = np.iinfo(np.int64).min // 2  # of a pixel without events; halved, so that differences do not overflow


@dataclass(frozen=True)
class VideoClock:
    """Which time of the recording each picture of a video shows."""

    first_us: int  #: time of the first picture
    step_us: float  #: time in the recording from one picture to the next
    fps: float  #: pictures per second of the video
    num_frames: int
    origin_us: int = 0  #: time shown as 0 s, the recording's first event

    def time_us(self, frame: int) -> int:
        """Return the time of picture ``frame``, which shows events before it and the last detections up to it."""
        return self.first_us + round(frame * self.step_us)

    @classmethod
    def over(cls, start_us: int, end_us: int, fps: float, slow: float, origin_us: int = 0) -> VideoClock:
        """Return a clock for ``[start_us, end_us)``; the first picture shows the first step, the last one the end."""
        is_known = 0 < fps <= 1000 and 0 < slow < math.inf
        step_us = 1e6 / (fps * slow) if is_known else math.inf
        requested = (end_us - start_us) / step_us
        if not is_known or not 0 < requested <= MOST_FRAMES:
            raise FateError(
                f"a video from {start_us} to {end_us} µs with {fps:g} pictures a second, slowed {slow:g} times, was"
                f" asked for; expected an end after the start, up to 1000 pictures a second, a factor above 0 (4 plays"
                f" four times slower), and at most {MOST_FRAMES} pictures in all"
            )
        return cls(start_us + round(step_us), step_us, fps, max(1, math.ceil(requested - 1e-9)), origin_us)


class EventSurface:
    """The last event of each pixel, updated chunk by chunk and drawn as pictures, for ``acc_us`` µs after the event."""

    def __init__(self, sensor: tuple[int, int], acc_us: int, palette: str | Palette = "dark") -> None:
        if acc_us < 1:
            raise FateError(f"an accumulation time of {acc_us} µs was asked for; expected at least 1 µs")
        colours = drawing.palette_of(palette)
        self.acc_us = acc_us
        self._lookup = np.array([colours.background, colours.off, colours.on], np.uint8)
        self._last_us = np.full(sensor, LONG_AGO, np.int64)
        self._shade = np.zeros(sensor, np.uint8)
        self._times: deque[NDArray[np.int64]] = deque()  # of events that may still be drawn, to count them

    def feed(self, events: Events) -> None:
        """Add the next events, none of them earlier than those before."""
        if len(events):
            self._last_us[events.y, events.x] = events.t_us  # numpy keeps the last value of a pixel
            self._shade[events.y, events.x] = events.p + 1
            self._times.append(events.t_us)

    def shades(self, time_us: int) -> NDArray[np.uint8]:
        """Return [H, W] with the last event in ``[time_us - acc_us, time_us)``: 0 for none, 1 for OFF, 2 for ON.

        All events fed so far must be before ``time_us``.
        """
        lit = self._last_us >= time_us - self.acc_us
        return np.where(lit, self._shade, 0)

    def picture(self, time_us: int) -> Picture:
        """Return the same as a picture [H, W, 3] in the colours of the palette."""
        return self._lookup.take(self.shades(time_us), axis=0)  # faster than indexing

    def count(self, time_us: int) -> int:
        """Return the number of events in ``[time_us - acc_us, time_us)``."""
        oldest = time_us - self.acc_us
        while self._times and self._times[0][-1] < oldest:
            self._times.popleft()
        if not self._times:
            return 0
        return sum(map(len, self._times)) - int(np.searchsorted(self._times[0], oldest))


def render_video(
    recording: Recording,
    path: str | os.PathLike[str],
    frames: Sequence[DetectionFrame] | None = None,
    *,
    acc_us: int = 50_000,
    fps: float = 25.0,
    slow: float = 1.0,
    palette: str | Palette = "dark",
    start_us: int | None = None,
    end_us: int | None = None,
    threshold: float = 0.0,
    classes: Sequence[str] | None = None,
    colour_by: ColourBy = "class",
    beside: Sequence[tuple[str, Sequence[DetectionFrame]]] = (),
    progress: Progress | None = None,
) -> VideoClock:
    """Write a video of events and boxes, H.264 that plays in browsers.

    Args:
        recording: see :func:`fate.open_recording`.
        path: an ``.mp4``; replaced if it exists, whole or not at all.
        frames: detections in order of time; each picture shows the boxes of the last frame before it.
        acc_us: each picture shows the events of this time before it, in µs.
        fps: pictures per second of the video.
        slow: seconds of video for each second of the recording; below 1 it plays faster.
        palette: ``dark``, ``light``, ``gray``, ``coolwarm``, ``cvd``, ``red-blue``, or a palette.
        start_us: start of the video; the default is the start of the recording.
        end_us: end of the video; the default is the end of the recording or of the last detections, if that is later.
        threshold: boxes with a lower score are not drawn.
        classes: names of the class ids.
        colour_by: ``class``, or ``track`` to follow single objects.
        beside: captions and detections of several runs, shown side by side instead of ``frames``.
        progress: called with pictures done and their number.

    Returns:
        The time of each picture, for :func:`fate.view.report.write_report`.
    """
    if colour_by not in ("class", "track"):
        raise FateError(f"boxes coloured by {colour_by!r} were asked for; expected 'class' or 'track'")
    runs = beside or [("", frames or ())]
    lookups = [FrameLookup(of_run) for _, of_run in runs]
    start = recording.start_us if start_us is None else start_us
    ends = [int(lookup.times[-1]) for lookup in lookups if len(lookup.times)]  # may be after the last event
    end = max([recording.end_us, *ends]) if end_us is None else end_us
    clock = VideoClock.over(start, end, fps, slow, recording.start_us)
    surface = EventSurface(recording.sensor, acc_us, palette)
    captions = [caption for caption, _ in runs] if any(caption for caption, _ in runs) else None
    factor = drawing.enlargement(recording.sensor, PICTURE_WIDTH)
    speed = "" if slow == 1 else f" · {slow:g}x slower" if slow > 1 else f" · {1 / slow:g}x faster"
    video: VideoWriter | None = None
    read_to = clock.first_us - acc_us
    with ExitStack() as closing:
        for index in range(clock.num_frames):
            time = clock.time_us(index)
            surface.feed(recording.read(max(read_to, time - acc_us), time))
            read_to = time
            plain = drawing.enlarge(surface.picture(time), factor)
            shown = [
                plain
                if (frame := lookup.at(time)) is None
                else drawing.draw_frame(plain, frame, factor, threshold=threshold, classes=classes, colour_by=colour_by)
                for lookup in lookups
            ]
            sheet = shown[0] if captions is None and len(shown) == 1 else drawing.side_by_side(shown, captions)
            rates = [f" · boxes {lookup.hz:.3g} Hz" for lookup in lookups if lookup.hz and captions is None]
            per_s = surface.count(time) / (acc_us * 1e-6)
            about = f"{per_s / 1e6:.2f} Mev/s" if per_s >= 1e5 else f"{per_s / 1e3:.1f} kev/s"
            since_start = f"{(time - clock.origin_us) / 1e6:.3f} s"
            sheet = _with_footer(sheet, since_start, f"{about}{''.join(rates)} · acc {acc_us / 1000:g} ms{speed}")
            video = video or closing.enter_context(VideoWriter(path, fps, (sheet.shape[0], sheet.shape[1])))
            video.write(sheet)
            if progress is not None:
                progress(index + 1, clock.num_frames)
    return clock


def render_comparison(
    recording: Recording,
    path: str | os.PathLike[str],
    runs: Sequence[tuple[str, Sequence[DetectionFrame]]],
    **options: Any,
) -> VideoClock:
    """Write a video of several detection runs side by side, such as ``[("20 Hz", slow), ("200 Hz", fast)]``.

    Each run is a caption and its detections. Same options as :func:`render_video`.
    """
    if not runs:
        raise FateError("no detection runs were given to show side by side; give at least one")
    return render_video(recording, path, beside=runs, **options)


def _with_footer(picture: Picture, left: str, right: str) -> Picture:
    """Add a line of text below the picture; height and width become even."""
    height, width = picture.shape[:2]
    size = max(11, min(18, width // 38))
    band = round(1.8 * size) + (height + round(1.8 * size)) % 2
    sheet = np.empty((height + band, width + width % 2, 3), np.uint8)
    sheet[:height, :width], sheet[:height, width:] = picture, drawing.BAND
    texts = ((size // 2, left, "lm"), (width - size // 2, right, "rm"))
    sheet[height:] = drawing.draw_band((band, sheet.shape[1]), size, texts, FAINT)
    return sheet
