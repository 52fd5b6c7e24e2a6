"""Video as light, and the light between its frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.simulation.arrays import Float32
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.video.flow import MAX_MOTION, TILE, MotionFinder, one_opencv_thread
from fate.simulation.video.frames import Fit, Frame, Video, linear_light
from fate.simulation.video.recorder import VideoPiece, record_video

cv2 = pytest.importorskip("cv2", reason="needs the extra video")

SENSOR = Sensor(64, 96)
CAMERA = camera_preset("gen1", sensor=SENSOR, noise_hz=0.0, hot_pixels=0, leak_hz=0.0)
SPEED = 100.0  # pixels a second


def texture(shape: tuple[int, int], seed: int, low: float, high: float) -> Float32:
    """Smooth random light between two values."""
    rough = np.random.default_rng(seed).random(shape)
    smooth = cv2.GaussianBlur(rough, (0, 0), 2.0)
    return (low + (high - low) * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.float32)


def square(t_us: int) -> Float32:
    """A dark textured square of 24 pixels that moves to the right before a brighter texture; exact at any time."""
    left, top, scale = 10 + SPEED * t_us / 1e6, 20, 4
    light = cv2.resize(texture(tuple(SENSOR), 1, 0.5, 0.9), None, fx=scale, fy=scale)  # finer, so that edges are exact
    body = cv2.resize(texture((24, 24), 2, 0.05, 0.25), None, fx=scale, fy=scale)
    moved = np.float32([[1, 0, scale * left], [0, 1, scale * top]])
    size = (light.shape[1], light.shape[0])
    alpha = cv2.warpAffine(np.ones_like(body), moved, size)
    light = light * (1 - alpha) + cv2.warpAffine(body, moved, size)
    return cv2.resize(light, SENSOR[::-1], interpolation=cv2.INTER_AREA).astype(np.float32)


def srgb(light: Float32) -> NDArray[np.uint8]:
    """A grey 8-bit frame of linear light."""
    value = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.repeat(np.rint(value * 255).astype(np.uint8)[..., None], 3, axis=2)


def write_video(path: Path, pictures: list[NDArray[np.uint8]], fps: float) -> Path:
    """A lossless video."""
    height, width = pictures[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"FFV1"), fps, (width, height))
    for picture in pictures:
        writer.write(picture)
    writer.release()
    return path


def frames(make: Callable[[int], Float32], count: int, period_us: int) -> list[Frame]:
    return [Frame(index * period_us, make(index * period_us)) for index in range(count)]


def events_of(pieces: list[VideoPiece]) -> Events:
    return Events.concatenate([piece.events for piece in pieces])


def directly(make: Callable[[int], Float32], duration_us: int, camera: CameraModel = CAMERA) -> Events:
    """The events of a scene that is rendered at 1 kHz, from the readable pixel model."""
    times = np.arange(0, duration_us + 1, 1000)
    light = torch.from_numpy(np.stack([make(int(time)) for time in times]))
    return EventCamera(camera, seeds=[0]).simulate(light, times)[0]


def test_a_moving_square_gives_the_events_that_it_gives_at_1_khz(tmp_path: Path) -> None:
    period_us, count = 40_000, 11  # 25 frames a second: 4 pixels from frame to frame
    clip = write_video(tmp_path / "square.avi", [srgb(square(n * period_us)) for n in range(count)], 25)
    video = events_of(list(record_video(Video(str(clip)).frames(), CAMERA, threads=1)))
    exact = directly(square, (count - 1) * period_us)
    assert len(video) == pytest.approx(len(exact), rel=0.1)
    assert video.p.mean() == pytest.approx(exact.p.mean(), abs=0.05)
    for t_us in range(50_000, 400_000, 50_000):  # the mean place of both edges in 10 ms
        for polarity in (0, 1):
            ours, theirs = (
                each.x[(each.p == polarity) & (abs(each.t_us - t_us) < 5000)].astype(float) for each in (video, exact)
            )
            assert np.median(ours) == pytest.approx(np.median(theirs), abs=1.0)
            assert len(ours) == pytest.approx(len(theirs), rel=0.35)
