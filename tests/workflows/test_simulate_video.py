"""Datasets from video."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fate
from fate.boxes.label_files import read_labels
from fate.data.opening import open_dataset
from fate.errors import FateError, FateWarning
from fate.simulation.video.manifest import VideoManifest
from fate.simulation.writing.manifest import load_manifest
from fate.workflows.simulate import simulate
from fate.workflows.simulate_video import simulate_video

cv2 = pytest.importorskip("cv2", reason="needs the extra video")
pytestmark = pytest.mark.slow  # compiling the loop over tiles takes ten seconds


def write_clip(path: Path, seed: int = 0, frames: int = 8) -> str:
    """Texture that moves by two pixels a frame, 50 frames a second, 64×48; lossless."""
    picture = cv2.GaussianBlur(np.random.default_rng(seed).random((48, 64 + 2 * frames)), (0, 0), 2.5)
    picture = cv2.normalize(picture, None, 20, 250, cv2.NORM_MINMAX).astype(np.uint8)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"FFV1"), 50, (64, 48))
    for frame in range(frames):
        writer.write(cv2.cvtColor(picture[:, 2 * frame : 2 * frame + 64], cv2.COLOR_GRAY2BGR))
    writer.release()
    return str(path)


@pytest.fixture
def clip(tmp_path: Path) -> str:
    return write_clip(tmp_path / "My clip.avi")


@pytest.fixture
def labels(tmp_path: Path) -> str:
    path = tmp_path / "boxes.txt"
    path.write_text("1,1,10,10,20,20,1,3\n7,1,22,10,20,20,1,3\n7,2,0,0,20,20,1,bus\n")
    return str(path)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_labelled_video_becomes_a_dataset(tmp_path: Path, clip: str, labels: str) -> None:
    with pytest.warns(FateWarning, match="boxes.txt: .*bus 1"):
        done = simulate_video(tmp_path / "set", [clip], [labels], sensor=(36, 48), split="train", threads=1)
    (entry,) = done.recordings
    assert (entry.name, entry.frames, entry.seconds, entry.cuts_us) == ("sim_My_clip_000000", 8, 0.14, ())
    assert entry.dropped == {"bus": 1}
    assert load_manifest(tmp_path / "set", VideoManifest) == done
    base = tmp_path / "set" / "train" / entry.name
    written, truth = read_labels(f"{base}_bbox.npy"), read_labels(f"{base}_truth.npz")
    assert written.labelled_us.tolist() == [120_000]
    assert written.boxes.tolist() == [[16.5, 7.5, 31.5, 22.5]]
    assert truth.labelled_us.tolist() == [120_000]
    assert (tmp_path / "set" / "train" / "preview.mp4").is_file()
    with fate.open_recording(f"{base}_td.dat") as recording:
        assert recording.sensor == (36, 48)
        assert recording.num_events == entry.events > 1000
    dataset = open_dataset(tmp_path / "set", split="train")
    assert len(dataset.recordings) == 1


def test_the_same_input_gives_the_same_bytes_and_more_videos_continue_a_dataset(tmp_path: Path, clip: str) -> None:
    other = write_clip(tmp_path / "other.avi", seed=1)
    options: dict[str, Any] = {"threads": 1, "preview": False}
    simulate_video(tmp_path / "a", [clip], **options)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("sim_*")}
    assert len(simulate_video(tmp_path / "a", [clip, other], **options).recordings) == 2
    assert {path: path.stat().st_mtime_ns for path in before} == before
    simulate_video(tmp_path / "b", [clip, other], **{**options, "threads": 2})
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    for changes, word in (
        ({"seed": 3}, "seed 0"),
        ({"camera": "1mpx"}, "camera gen1"),
        ({"split": "val"}, "split test"),
    ):
        with pytest.raises(FateError, match=word):
            simulate_video(tmp_path / "a", [clip, other], **options, **changes)
    with pytest.raises(FateError, match="other videos"):
        simulate_video(tmp_path / "a", [other], **options)
    with pytest.raises(FateError, match="from video, and drives"):
        simulate(tmp_path / "a")


def test_videos_of_two_sizes_need_a_sensor(tmp_path: Path, clip: str) -> None:
    small = str(tmp_path / "small.avi")
    writer = cv2.VideoWriter(small, cv2.VideoWriter_fourcc(*"FFV1"), 50, (32, 32))
    writer.write(np.zeros((32, 32, 3), np.uint8))
    writer.release()
    with pytest.raises(FateError, match="small.avi: .*one sensor"):
        simulate_video(tmp_path / "set", [clip, small])
    with pytest.raises(FateError, match="2 videos and 1 label file"):
        simulate_video(tmp_path / "set", [clip, small], [small])
    assert not (tmp_path / "set").exists()
    with pytest.raises(FateError, match="small.avi: 1 frames"):
        simulate_video(tmp_path / "set", [small])
    assert list((tmp_path / "set").rglob("sim_*")) == []


def test_seconds_limit_each_video(tmp_path: Path, clip: str) -> None:
    (entry,) = simulate_video(tmp_path / "set", [clip], seconds=0.05, threads=1, preview=False).recordings
    assert (entry.seconds, entry.frames) == (0.04, 3)
