"""A video of a recording: events, boxes, and a line that says when, how fast and how dense.

Accumulation time and display rate are two controls. Each picture shows the events of the last ``acc_us`` before its
moment; pictures are ``1 / (fps · slow)`` seconds of the recording apart. Every event is read once: a surface keeps the
time and polarity of the last event of each pixel, and a pixel is lit while that time is younger than ``acc_us``, which
is the same picture as drawing the whole window anew.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fate.boxes.frames import DetectionFrame, EventSource, FrameLookup, class_name
from fate.errors import FateError
from fate.events.events import Events
from fate.progress import Progress
from fate.view.drawing import (
    Colour,
    Palette,
    Picture,
    class_colour,
    draw_boxes,
    enlarge,
    enlargement,
    font_of,
    palette_of,
    readable_on,
    side_by_side,
    track_colour,
)
from fate.view.video import VideoWriter

ColourBy = Literal["class", "track"]

PICTURE_WIDTH = 800  # small sensors are enlarged by the largest whole factor up to this width
MOST_FRAMES = 1_000_000  # of one video: 11 hours at 25 a second; more is a slip of a unit
LONG_AGO = np.iinfo(np.int64).min // 2  # a pixel that never fired; halved, so that differences do not overflow


@dataclass(frozen=True)
class VideoClock:
    """Which time of the recording each picture of a video shows."""

    first_us: int  #: shown by the first picture
    step_us: float  #: of the recording, from one picture to the next
    fps: float  #: pictures a second at which the video plays
    num_frames: int
    origin_us: int = 0  #: called 0 s on the screen: the recording's first event

    def time_us(self, frame: int) -> int:
        """The time that picture ``frame`` shows: events before it, boxes of the last frame up to it."""
        return self.first_us + round(frame * self.step_us)

    @classmethod
    def over(cls, start_us: int, end_us: int, fps: float, slow: float, origin_us: int = 0) -> VideoClock:
        """Pictures over ``[start_us, end_us)``; the first shows the first step, the last reaches the end."""
        if not 0 < fps <= 1000:
            raise FateError(f"{fps:g} pictures a second were asked for; expected more than 0 and at most 1000")
        if not 0 < slow < math.inf:
            raise FateError(f"slow = {slow:g} was given; expected a factor above 0: 4 plays four times slower")
        if end_us <= start_us:
            raise FateError(f"a video from {start_us} to {end_us} µs was asked for; it must end after it starts")
        step_us = 1e6 / (fps * slow)
        wanted = (end_us - start_us) / step_us
        if wanted > MOST_FRAMES:
            raise FateError(
                f"{(end_us - start_us) / 1e6:g} s at {fps:g} pictures a second, slowed {slow:g} times, make"
                f" {wanted:.3g} pictures; the most is {MOST_FRAMES}; give a shorter part, or a lower fps or slow"
            )
        return cls(start_us + round(step_us), step_us, fps, max(1, math.ceil(wanted - 1e-9)), origin_us)


class EventSurface:
    """The last event of each pixel; turns events that come piece by piece into pictures.

    Args:
        sensor: ``(height, width)`` in pixels.
        acc_us: how long an event stays lit, µs.
        palette: a name in ``PALETTES``, or colours of one's own.
    """

    def __init__(self, sensor: tuple[int, int], acc_us: int, palette: str | Palette = "dark") -> None:
        if acc_us < 1:
            raise FateError(f"an accumulation time of {acc_us} µs was asked for; expected at least 1 µs")
        colours = palette_of(palette)
        self.acc_us = acc_us
        self._lookup = np.array([colours.background, colours.off, colours.on], np.uint8)
        self._last_us = np.full(sensor, LONG_AGO, np.int64)
        self._shade = np.zeros(sensor, np.uint8)
        self._times: deque[NDArray[np.int64]] = deque()  # of the events that may still be lit, to count them

    def feed(self, events: Events) -> None:
        """Take the next events, none of them earlier than those before."""
        if len(events):
            self._last_us[events.y, events.x] = events.t_us  # where a pixel fired twice, numpy keeps the last value
            self._shade[events.y, events.x] = events.p + 1
            self._times.append(events.t_us)

    def shades(self, time_us: int) -> NDArray[np.uint8]:
        """[H, W]: 0 for nothing, 1 for OFF, 2 for ON, of the last event in ``[time_us - acc_us, time_us)``.

        All events fed so far must be before ``time_us``.
        """
        lit = self._last_us >= time_us - self.acc_us
        return np.where(lit, self._shade, 0)

    def picture(self, time_us: int) -> Picture:
        """[H, W, 3]: the same in the colours of the palette."""
        return self._lookup[self.shades(time_us)]

    def count(self, time_us: int) -> int:
        """How many events those are."""
        oldest = time_us - self.acc_us
        while self._times and self._times[0][-1] < oldest:
            self._times.popleft()
        if not self._times:
            return 0
        return sum(map(len, self._times)) - int(np.searchsorted(self._times[0], oldest))


def render_video(
    recording: EventSource,
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
    progress: Progress | None = None,
) -> VideoClock:
    """Write a video of events and boxes, H.264 that plays in browsers.

    Args:
        recording: see :func:`fate.open_recording`.
        path: an ``.mp4``; replaced if it exists, whole or not at all.
        frames: detections in order of time; each picture shows those of the frame nearest before it.
        acc_us: each picture shows the events of this time before it, µs.
        fps: pictures a second at which the video plays.
        slow: seconds of video for each second of the recording; below 1 it plays faster.
        palette: ``dark``, ``light``, ``gray``, ``coolwarm``, ``cvd``, ``red-blue``, or colours of one's own.
        start_us: where the video starts; the recording's start unless given.
        end_us: where it ends; unless given, with the recording, or with the last frame where its window ends later.
        threshold: boxes with a lower score are not drawn.
        classes: names of the class ids.
        colour_by: ``class``, or ``track`` to follow single objects.
        progress: called with pictures done and their number.

    Returns:
        Which time each picture shows; :func:`fate.view.report.write_report` wants to know.
    """
    return render_comparison(
        recording, path, [("", frames or ())], acc_us=acc_us, fps=fps, slow=slow, palette=palette, start_us=start_us,
        end_us=end_us, threshold=threshold, classes=classes, colour_by=colour_by, progress=progress,
    )  # fmt: skip


def render_comparison(
    recording: EventSource,
    path: str | os.PathLike[str],
    runs: Sequence[tuple[str, Sequence[DetectionFrame]]],
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
    progress: Progress | None = None,
) -> VideoClock:
    """Several detection runs over the same events side by side, such as ``[("20 Hz", slow), ("200 Hz", fast)]``.

    Each run is a caption and its frames; all else as in :func:`render_video`.
    """
    if not runs:
        raise FateError("no detection runs were given to show side by side; give at least one")
    if colour_by not in ("class", "track"):
        raise FateError(f"boxes coloured by {colour_by!r} were asked for; expected 'class' or 'track'")
    start = recording.start_us if start_us is None else start_us
    end = max([recording.end_us, *_last_times(runs)]) if end_us is None else end_us
    clock = VideoClock.over(start, end, fps, slow, recording.start_us)
    surface = EventSurface(recording.sensor, acc_us, palette)
    painters = [_Painter(FrameLookup(frames), classes, threshold, colour_by) for _, frames in runs]
    captions = [caption for caption, _ in runs] if any(caption for caption, _ in runs) else None
    factor = enlargement(recording.sensor, PICTURE_WIDTH)
    video: VideoWriter | None = None
    read_to = clock.first_us - acc_us
    try:
        for index in range(clock.num_frames):
            time = clock.time_us(index)
            surface.feed(recording.read(max(read_to, time - acc_us), time))
            read_to = time
            plain = enlarge(surface.picture(time), factor)
            shown = [painter.paint(plain, time, factor) for painter in painters]
            sheet = shown[0] if captions is None and len(shown) == 1 else side_by_side(shown, captions)
            rates = [painter.lookup.hz for painter in painters] if captions is None else []
            line = _status(time - clock.origin_us, surface.count(time) / (acc_us * 1e-6), rates, slow, acc_us)
            sheet = _with_footer(sheet, *line)
            video = video or VideoWriter(path, fps, (sheet.shape[0], sheet.shape[1]))
            video.write(sheet)
            if progress is not None:
                progress(index + 1, clock.num_frames)
        if video is not None:
            video.close()
    except BaseException:
        if video is not None:
            video.discard()
        raise
    return clock


def _last_times(runs: Sequence[tuple[str, Sequence[DetectionFrame]]]) -> list[int]:
    """When the last frames are: after the last event, since a window that a recording begins is seen whole, µs."""
    return [frames[-1].t_us for _, frames in runs if len(frames)]


@dataclass(frozen=True)
class _Painter:
    """Draws the boxes of one detection run."""

    lookup: FrameLookup
    classes: Sequence[str] | None
    threshold: float
    colour_by: ColourBy

    def paint(self, picture: Picture, time_us: int, factor: int) -> Picture:
        frame = self.lookup.at(time_us)
        if frame is None:
            return picture
        kept = np.flatnonzero(np.asarray(frame.scores) >= self.threshold)
        kept = kept[np.argsort(np.asarray(frame.scores)[kept], kind="stable")]  # the surest on top
        tracks = None if frame.track_ids is None else np.asarray(frame.track_ids)[kept]
        class_ids = np.asarray(frame.class_ids)[kept]
        labels = []
        colours: list[Colour] = []
        for row, place in enumerate(kept):
            track = -1 if tracks is None else int(tracks[row])
            number = f"#{track} " if track >= 0 else ""
            labels.append(f"{number}{class_name(int(class_ids[row]), self.classes)} {frame.scores[place]:.2f}")
            by_track = self.colour_by == "track" and track >= 0
            colours.append(track_colour(track) if by_track else class_colour(int(class_ids[row])))
        boxes = np.asarray(frame.boxes).reshape(-1, 4)[kept]
        if not len(boxes):
            return picture
        return draw_boxes(picture, boxes, labels=labels, colours=colours, thickness=max(2, factor), scale=factor)


def _status(
    since_start_us: int, events_per_s: float, rates: Sequence[float], slow: float, acc_us: int
) -> tuple[str, str]:
    """The words of the line below: the time on the left, the rest on the right."""
    parts = [f"{events_per_s / 1e6:.2f} Mev/s" if events_per_s >= 1e5 else f"{events_per_s / 1e3:.1f} kev/s"]
    parts += [f"boxes {hz:.3g} Hz" for hz in rates if hz]
    parts.append(f"acc {acc_us / 1000:g} ms")
    if slow != 1:  # with the letter x: the built-in font has no multiplication sign
        parts.append(f"{slow:g}x slower" if slow > 1 else f"{1 / slow:g}x faster")
    return f"{since_start_us / 1e6:.3f} s", " · ".join(parts)


def _with_footer(picture: Picture, left: str, right: str) -> Picture:
    """A line of words under the picture, so that none of it is covered; the sides come out even."""
    height, width = picture.shape[:2]
    size = max(11, min(18, width // 38))
    band = round(1.8 * size) + (height + round(1.8 * size)) % 2
    background: Colour = (16, 20, 28)
    sheet = np.empty((height + band, width + width % 2, 3), np.uint8)
    sheet[:] = background
    sheet[:height, :width] = picture
    canvas = Image.fromarray(sheet)
    pen = ImageDraw.Draw(canvas)
    middle = height + band // 2
    ink = readable_on(background)
    pen.text((size // 2, middle), left, fill=ink, font=font_of(size), anchor="lm")
    pen.text((width - size // 2, middle), right, fill=(165, 175, 190), font=font_of(size), anchor="rm")
    return np.asarray(canvas)
