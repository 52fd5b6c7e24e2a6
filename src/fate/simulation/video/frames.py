"""The frames of a video or webcam as linear light on a sensor, one after the other.

8-bit frames hold sRGB values. Each channel is made linear, the three give the luminance of Rec. 709, and the
luminance is averaged over the area of each pixel of the sensor. 1 is white, as for the pixel model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.errors import PACKAGES, FateError, FormatError, missing_packages
from fate.events.events import Sensor
from fate.simulation.arrays import Float32, Float64

#: Columns of the sensor, if it is not given and the video has more.
WIDEST = 640
#: Weights of blue, green and red in the luminance of linear light (Rec. 709), in the order of OpenCV's channels.
LUMINANCE = (0.0722, 0.7152, 0.2126)
#: Frames a second that a file may claim to have.
LOWEST_FPS, HIGHEST_FPS = 1.0, 10_000.0


def opencv() -> Any:
    """The module ``cv2``; raises an error with the pip line if it is not installed."""
    try:
        import cv2  # noqa: PLC0415  (an extra)
    except ImportError:
        raise missing_packages("reading a video", PACKAGES["video"]) from None
    return cv2


def linear_light(value: NDArray[Any]) -> Float64:
    """Linear light from sRGB values between 0 and 1 (IEC 61966-2-1)."""
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


class Fit(NamedTuple):
    """How the picture lies on the sensor: the largest part in its middle that has the shape of the sensor, scaled."""

    left: float  #: columns of the picture that are cut off on the left
    top: float  #: rows that are cut off at the top
    scale: float  #: pixels of the sensor for each pixel of the picture

    @staticmethod
    def of(picture: Sensor, sensor: Sensor) -> Fit:
        """The fit of a picture of one size to a sensor of another."""
        scale = max(sensor.height / picture.height, sensor.width / picture.width)
        left, top = (picture.width - sensor.width / scale) / 2, (picture.height - sensor.height / scale) / 2
        return Fit(left, top, scale)

    def boxes(self, boxes: NDArray[Any]) -> Float64:
        """Boxes [N, 4] on the sensor, given boxes x1, y1, x2, y2 in pixels of the picture."""
        offset = np.array([self.left, self.top, self.left, self.top])
        return np.asarray((np.asarray(boxes, np.float64) - offset) * self.scale)


class Frame(NamedTuple):
    """One frame."""

    t_us: int  #: after the first frame
    light: Float32  #: [H, W] linear light on the sensor


class Video:
    """A video file, or a webcam by its number. Use it once; :meth:`frames` closes it.

    Args:
        source: a file, or the number of a webcam.
        sensor: (height, width); by default that of the video, at most 640 wide.
        capture: an object like OpenCV's ``VideoCapture``, in place of the one for ``source``.

    Attributes:
        picture: (height, width) of the video.
        sensor: (height, width) of the light.
        fps: frames a second. Times of a file are the number of the frame divided by it; times of a webcam are those at
            which its frames came.
        num_frames: as the file claims, or None.
    """

    def __init__(self, source: str | int, sensor: tuple[int, int] | None = None, capture: Any = None) -> None:
        self._cv2 = opencv()
        self.source, self.live = source, isinstance(source, int)
        self.name = f"webcam {source}" if self.live else str(source)
        if not self.live and capture is None and not Path(str(source)).is_file():
            raise FateError(f"{source}: is not a file; give a video, or the number of a webcam")
        self._capture = self._cv2.VideoCapture(source) if capture is None else capture
        if not self._capture.isOpened():
            expected = "no webcam with this number" if self.live else "no video that OpenCV can read"
            raise FormatError(f"{self.name}: {expected}; give an MP4, MKV or AVI file, or the number of a webcam")
        height, width, fps, count = (
            float(self._capture.get(getattr(self._cv2, f"CAP_PROP_{name}")))
            for name in ("FRAME_HEIGHT", "FRAME_WIDTH", "FPS", "FRAME_COUNT")
        )
        if not (height >= 1 and width >= 1):
            raise FormatError(f"{self.name}: its frames have {width:g}×{height:g} pixels; give another video")
        if not self.live and not LOWEST_FPS <= fps <= HIGHEST_FPS:
            raise FormatError(f"{self.name}: has {fps:g} frames a second; expected 1 to 10000; encode it again")
        self.fps = fps
        self.num_frames = int(count) if not self.live and 0 < count < 2**31 else None
        self.picture = Sensor(int(height), int(width))
        self.sensor = Sensor.of(self._default_sensor() if sensor is None else sensor)
        self.fit = Fit.of(self.picture, self.sensor)
        levels = linear_light(np.arange(256) / 255)[:, None] * np.array(LUMINANCE)
        self._table = levels.astype(np.float32)[None]  # [1, 256, 3]

    def _default_sensor(self) -> tuple[int, int]:
        scale = min(1.0, WIDEST / self.picture.width)
        return max(round(self.picture.height * scale), 1), max(round(self.picture.width * scale), 1)

    def time_of(self, frame: int) -> int:
        """The time of a frame of a file in µs; the first frame has number 0."""
        return round(frame * 1e6 / self.fps)

    def close(self) -> None:
        """Close the file or webcam."""
        self._capture.release()

    def frames(self) -> Iterator[Frame]:
        """All frames, with times that increase; a frame that comes in the microsecond of the last one is left out."""
        with closing(self):
            number, start, last_us = 0, math.nan, -1
            while True:
                whole, picture = self._capture.read()
                if not whole:
                    break
                now = time.monotonic()
                start = now if number == 0 else start
                t_us = round((now - start) * 1e6) if self.live else self.time_of(number)
                if t_us > last_us:
                    yield Frame(t_us, self.light(picture))
                    last_us = t_us
                number += 1

    def light(self, picture: NDArray[np.uint8]) -> Float32:
        """Linear light [H, W] on the sensor, from a frame [h, w, 3] of 8-bit blue, green and red."""
        if picture.shape != (*self.picture, 3) or picture.dtype != np.uint8:
            raise FormatError(
                f"{self.name}: a frame has shape {picture.shape} and type {picture.dtype}; expected"
                f" {(*self.picture, 3)} and uint8, as the first frame; cut the video where its size changes"
            )
        full = self._cv2.LUT(picture, self._table).sum(axis=2)
        left, top, scale = self.fit
        if (left, top, scale) != (0.0, 0.0, 1.0):
            rows, columns = (slice(round(a), round(b)) for a, b in (
                (top, self.picture.height - top), (left, self.picture.width - left)))  # fmt: skip
            way = self._cv2.INTER_AREA if scale < 1 else self._cv2.INTER_LINEAR
            full = self._cv2.resize(full[rows, columns], self.sensor[::-1], interpolation=way)
        return np.asarray(np.clip(full, 0.0, 1.0), np.float32)
