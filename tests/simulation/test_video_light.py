"""Video as light, and the light between its frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.simulation.arrays import Float32
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.event_camera import EventCamera
from fate.simulation.video.flow import (
    MAX_MOTION,
    TILE,
    MotionFinder,
    blend_tile,
    one_opencv_thread,
    start_tile,
)
from fate.simulation.video.frames import Fit, Frame, Video, linear_light
from fate.simulation.video.recorder import VideoPiece, record_video

cv2 = pytest.importorskip("cv2", reason="needs the extra video")
pytestmark = pytest.mark.slow  # compiling the loop over tiles takes ten seconds

SENSOR = Sensor(64, 96)
CAMERA = camera_preset("gen1", sensor=SENSOR, noise_hz=0.0, hot_pixels=0, leak_hz=0.0)
SPEED = 100.0  # pixels a second


@cache
def texture(shape: tuple[int, int], seed: int, low: float, high: float, blur: float = 2.0) -> Float32:
    """Smooth random light between two values."""
    rough = np.random.default_rng(seed).random(shape)
    smooth = cv2.GaussianBlur(rough, (0, 0), blur)
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
    period_us, count = 40_000, 8  # 25 frames a second: 4 pixels from frame to frame
    clip = write_video(tmp_path / "square.avi", [srgb(square(n * period_us)) for n in range(count)], 25)
    video = events_of(list(record_video(Video(str(clip)).frames(), CAMERA, threads=1)))
    exact = directly(square, (count - 1) * period_us)
    assert len(video) == pytest.approx(len(exact), rel=0.1)
    assert video.p.mean() == pytest.approx(exact.p.mean(), abs=0.05)
    for t_us in range(50_000, 280_000, 50_000):  # the mean place of both edges in 10 ms
        for polarity in (0, 1):
            ours, theirs = (
                each.x[(each.p == polarity) & (abs(each.t_us - t_us) < 5000)].astype(float) for each in (video, exact)
            )
            assert np.median(ours) == pytest.approx(np.median(theirs), abs=1.0)
            assert len(ours) == pytest.approx(len(theirs), rel=0.35)


@pytest.mark.parametrize("shift", [0.3, 3.0, 11.0])
def test_no_step_moves_by_more_than_half_a_pixel(shift: float) -> None:
    picture = texture((64, 160), 3, 0.1, 0.9, blur=4.0)
    columns, rows = np.meshgrid(np.arange(96, dtype=np.float32), np.arange(64, dtype=np.float32))
    light0, light1 = (cv2.remap(picture, columns + x, rows, cv2.INTER_CUBIC) for x in (20.0, 20.0 + shift))
    with one_opencv_thread():
        motion = MotionFinder().find(light0, light1, 40_000.0)
    assert motion is not None
    middle = (slice(16, 48), slice(32, 72))
    assert np.median(motion.forward[middle][..., 0]) == pytest.approx(-shift, abs=0.3)
    for flow in (motion.forward, motion.backward):
        speed = np.hypot(flow[..., 0], flow[..., 1])
        for tile, steps in enumerate(motion.steps):
            top, left = tile // 6 * TILE, tile % 6 * TILE
            assert speed[top : top + TILE, left : left + TILE].max() <= MAX_MOTION * steps
    found, light = np.empty((4, 64, 96), np.float32), np.empty((64, 96), np.float32)
    start_tile(motion, 0, 0, found)
    for share in (0.25, 0.5, 0.75):  # the picture between the frames lies between them
        blend_tile(light0, light1, motion, 0, 0, np.float32(share), found, light)
        expected = cv2.remap(picture, columns + np.float32(20 + share * shift), rows, cv2.INTER_CUBIC)
        assert np.abs(light - expected)[middle].max() < 0.06


def test_a_frame_that_does_not_change_makes_no_events() -> None:
    still = [Frame(index * 40_000, square(0)) for index in range(4)]
    assert len(events_of(list(record_video(still, CAMERA, threads=1)))) == 0


def test_a_cut_makes_no_burst_and_is_reported() -> None:
    first, second = texture(tuple(SENSOR), 4, 0.05, 0.9), texture(tuple(SENSOR), 5, 0.05, 0.9)
    pieces = list(record_video([Frame(n * 40_000, first if n < 3 else second) for n in range(6)], CAMERA, threads=1))
    assert [piece.cut for piece in pieces] == [False, False, True, False, False]
    assert [piece.last for piece in pieces] == [False, False, False, False, True]
    assert len(events_of(pieces)) == 0


def test_a_change_of_exposure_is_no_cut_and_every_pixel_sees_it() -> None:
    dim = texture(tuple(SENSOR), 4, 0.05, 0.4)
    (piece,) = record_video([Frame(0, dim), Frame(40_000, 2 * dim)], CAMERA, threads=1)
    assert not piece.cut
    assert piece.events.p.mean() == 1.0
    assert len(piece.events) > 0.9 * dim.size


def test_events_do_not_depend_on_threads() -> None:
    noisy = camera_preset("gen1", sensor=SENSOR, bursts=True)
    one, three = (events_of(list(record_video(frames(square, 4, 40_000), noisy, 7, threads))) for threads in (1, 3))
    assert len(one) > 1000
    assert all((getattr(one, name) == getattr(three, name)).all() for name in ("t_us", "x", "y", "p"))


def test_gamma_is_undone_before_pixels_are_averaged(tmp_path: Path) -> None:
    assert linear_light(np.array([0.0, 0.04045, 0.5, 1.0])) == pytest.approx([0, 0.0031308, 0.214041, 1], abs=1e-6)
    stripes = np.zeros((32, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    (light,) = (frame.light for frame in Video(str(write_video(tmp_path / "a.avi", [stripes], 25)), (16, 32)).frames())
    assert light == pytest.approx(np.full((16, 32), 0.5), abs=1e-3)  # the mean of the 8-bit values would give 0.21
    green = np.full((32, 64, 3), (0, 255, 0), np.uint8)
    (light,) = (frame.light for frame in Video(str(write_video(tmp_path / "b.avi", [green], 25))).frames())
    assert light == pytest.approx(np.full((32, 64), 0.7152), abs=0.02)


@pytest.mark.parametrize(("sensor", "box"), [((180, 320), (80, 40, 160, 80)), ((180, 240), (40, 40, 120, 80))])
def test_the_middle_of_the_picture_fills_the_sensor(sensor: tuple[int, int], box: tuple[int, ...]) -> None:
    fit = Fit.of(Sensor(720, 1280), Sensor(*sensor))
    assert fit.boxes(np.array([[320, 160, 640, 320]])).tolist() == [list(box)]


class FakeCapture:
    """A webcam with three frames."""

    def __init__(self, frames: int = 3, opens: bool = True) -> None:
        self.left, self.opens, self.released = frames, opens, False

    def isOpened(self) -> bool:
        return self.opens

    def get(self, key: int) -> float:
        return {cv2.CAP_PROP_FRAME_HEIGHT: 720.0, cv2.CAP_PROP_FRAME_WIDTH: 1280.0}.get(key, -1.0)

    def read(self) -> tuple[bool, NDArray[np.uint8] | None]:
        self.left -= 1
        return (True, np.full((720, 1280, 3), 128, np.uint8)) if self.left >= 0 else (False, None)

    def release(self) -> None:
        self.released = True


def test_frames_of_a_webcam_have_the_times_at_which_they_came() -> None:
    capture = FakeCapture()
    video = Video(0, capture=capture)
    assert video.sensor == (360, 640)
    times = [frame.t_us for frame in video.frames()]
    assert times[0] == 0
    assert len(times) == 3
    assert sorted(set(times)) == times
    assert capture.released


def test_errors_name_the_video(tmp_path: Path) -> None:
    with pytest.raises(FateError, match="webcam 3.*number"):
        Video(3, capture=FakeCapture(opens=False))
    with pytest.raises(FateError, match="none.mp4.*not a file"):
        Video(str(tmp_path / "none.mp4"))
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(FateError, match="text.mp4.*OpenCV"):
        Video(str(tmp_path / "text.mp4"))
    with pytest.raises(FateError, match="1 frames"):
        list(record_video([Frame(0, square(0))], CAMERA))
