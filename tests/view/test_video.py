"""Videos: what is written can be decoded, and a failure leaves nothing behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs, get_ffmpeg_exe, read_frames

from fate import FateError
from fate.view.video import VideoWriter


def frames(count: int, height: int, width: int) -> list[np.ndarray]:
    """A bright square that moves over a dark ground."""
    made = []
    for index in range(count):
        image = np.full((height, width, 3), (30, 37, 52), np.uint8)
        image[8:24, 4 * index : 4 * index + 16] = (216, 60, 40)
        made.append(image)
    return made


def write(path: Path, images: list[np.ndarray], fps: float = 25) -> None:
    height, width, _ = images[0].shape
    with VideoWriter(path, fps, (height, width)) as video:
        for image in images:
            video.write(image)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (49, 65)])
def test_every_frame_comes_back_in_its_colours_and_odd_sizes_are_padded(
    tmp_path: Path, height: int, width: int
) -> None:
    images = frames(10, height, width)
    write(tmp_path / "drive.mp4", images)
    assert count_frames_and_secs(str(tmp_path / "drive.mp4")) == (10, pytest.approx(0.4))
    reader = read_frames(str(tmp_path / "drive.mp4"))
    size = next(reader)["size"]
    assert size == (-(-width // 2) * 2, -(-height // 2) * 2)
    for image, data in zip(images, reader, strict=True):
        back = np.frombuffer(data, np.uint8).reshape(size[1], size[0], 3)[:height, :width]
        assert np.abs(back.astype(int) - image).mean() < 4


def test_it_is_what_browsers_play_with_the_index_in_front(tmp_path: Path) -> None:
    write(tmp_path / "drive.mp4", frames(3, 48, 64))
    told = subprocess.run(
        [get_ffmpeg_exe(), "-i", str(tmp_path / "drive.mp4")], capture_output=True, text=True, check=False
    ).stderr
    assert "h264" in told
    assert "yuv420p" in told
    data = (tmp_path / "drive.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


def test_the_same_frames_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        write(tmp_path / name, frames(4, 48, 64))
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


def test_an_error_while_writing_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    target = tmp_path / "drive.mp4"
    target.write_bytes(b"old")
    with pytest.raises(RuntimeError), VideoWriter(target, 25, (48, 64)) as video:
        video.write(frames(1, 48, 64)[0])
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["drive.mp4"]


def test_an_encoder_that_dies_is_a_sentence(tmp_path: Path) -> None:
    def go_on() -> None:
        with VideoWriter(tmp_path / "drive.mp4", 25, (480, 640)) as video:
            video._process.kill()
            for image in frames(20, 480, 640):
                video.write(image)

    with pytest.raises(FateError, match="the video cannot be written"):
        go_on()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "fps", "size", "sentence"),
    [
        ("missing/drive.mp4", 25, (48, 64), "does not exist; make it first"),
        ("drive.avi", 25, (48, 64), "ends in .mp4"),
        ("drive.mp4", 0, (48, 64), "0 frames a second"),
        ("drive.mp4", 25, (0, 64), "sides of 1 to 8192"),
    ],
)
def test_impossible_videos_get_a_sentence(
    tmp_path: Path, name: str, fps: float, size: tuple[int, int], sentence: str
) -> None:
    with pytest.raises(FateError) as caught:
        VideoWriter(tmp_path / name, fps, size)
    assert sentence in str(caught.value)


def test_frames_of_another_size_and_no_frames_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(FateError, match=r"frame 0 has shape \(10, 10, 3\)"),
        VideoWriter(tmp_path / "drive.mp4", 25, (48, 64)) as video,
    ):
        video.write(np.zeros((10, 10, 3), np.uint8))
    with pytest.raises(FateError, match="no frame was written"), VideoWriter(tmp_path / "drive.mp4", 25, (48, 64)):
        pass
    assert not list(tmp_path.iterdir())
