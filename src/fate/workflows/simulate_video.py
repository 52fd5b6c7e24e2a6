"""Datasets from video: each video becomes a recording of an event camera, with the boxes of its labels.

    simulate_video("streets", ["a.mp4", "b.mp4"], labels=["a.txt", "b.json"], camera="gen1")

The files are those of :mod:`fate.workflows.simulate`, so every command opens them. The same input gives the same bytes
for any number of threads, and a run that was stopped keeps its finished recordings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fate.boxes.labels import Labels
from fate.errors import FateError, warn
from fate.events.events import Events, Sensor
from fate.processes import lock_folder
from fate.progress import Progress, ignore
from fate.simulation.art.catalogue import SPLITS, Split
from fate.simulation.camera.camera_model import CameraModel, camera_preset
from fate.simulation.camera.random_sensor import RandomSensor
from fate.simulation.render.scene import BoxesAt
from fate.simulation.video.frames import Frame, Video
from fate.simulation.video.labels import CLASSES, Tracks, read_tracks
from fate.simulation.video.manifest import VideoEntry, VideoInput, VideoManifest, VideoRequest
from fate.simulation.video.recorder import record_video
from fate.simulation.writing import request as requests
from fate.simulation.writing.manifest import load_manifest
from fate.simulation.writing.recording_files import RecordingFiles, camera_values, clear_leftovers, truth_times
from fate.simulation.writing.request import RecordingJob
from fate.text import plural
from fate.workflows.simulate import describe_fault, make_folder, refuse_other_files, with_preview

#: Seconds that are taken from a webcam, if no length is given.
WEBCAM_SECONDS = 10.0


class LabelledPiece(NamedTuple):
    """The next events of a recording, and its next boxes."""

    events: Events
    boxes: BoxesAt


@dataclass
class VideoScene:
    """What the files of a recording need to know about a video."""

    frame: Sensor
    camera: CameraModel
    tracks: Tracks
    label_hz: int
    shows = "video"
    classes: tuple[str, ...] = CLASSES
    duration_us: int = 0  #: known at the end of the video
    random_sensor: RandomSensor | None = None


def simulate_video(
    folder: str | os.PathLike[str],
    videos: Sequence[str | int],
    labels: Sequence[str] = (),
    *,
    camera: str = "gen1",
    sensor: tuple[int, int] | None = None,
    split: Split = "test",
    seed: int = 0,
    seconds: float | None = None,
    threads: int | None = None,
    preview: bool = True,
    progress: Progress | None = None,
) -> VideoManifest:
    """Make a dataset from videos, or continue one that was begun with the same arguments.

    Args:
        folder: a new or empty folder, or one with such a dataset.
        videos: files that OpenCV can read, or numbers of webcams. More videos at the end add recordings.
        labels: none, or a file for each video: MOT text, or COCO JSON.
        camera: name of a camera preset; its pixels are used, not the size of its sensor.
        sensor: (height, width); by default that of the first video, at most 640 wide. A picture of another shape is
            cut on two sides.
        split: of all recordings: "train", "val" or "test".
        seed: of the pixels and their noise.
        seconds: longest time that is taken of each video; by default all of a file, and 10 s of a webcam.
        threads: CPU threads; all cores by default. The bytes do not depend on it.
        preview: whether the split gets a video of up to ten seconds.
        progress: called with the seconds of video so far and in total.

    Returns:
        The manifest of the finished dataset.
    """
    if split not in SPLITS:
        raise FateError(f"there is no split {split!r}; give one of {', '.join(SPLITS)}")
    requests.check_number("the seed", seed, 0)
    requests.check_machine("cpu", threads)
    if seconds is not None:
        requests.check_seconds(seconds)
    if not videos or len(labels) not in (0, len(videos)):
        raise FateError(
            f"{plural(len(videos), 'video')} and {plural(len(labels), 'label file')} were given; expected one video or"
            " more, and a label file for each of them or none"
        )
    home = requests.check_folder(folder)
    opened = _open(videos, sensor)
    pixels = opened[0].sensor
    tracks = _read_labels(opened, labels)
    size = (pixels.height, pixels.width)
    preset = camera_preset(camera, sensor=pixels)
    inputs = tuple(VideoInput.of(*pair) for pair in zip(videos, labels or [""] * len(videos), strict=True))
    request = VideoRequest(camera, size, split, int(seed), None if seconds is None else float(seconds), inputs)
    manifest = VideoManifest(request, CLASSES, size, camera_values(preset))
    known = load_manifest(home, VideoManifest)
    if known is None:
        refuse_other_files(home)
    else:
        manifest = _continued(home, manifest, known)
    make_folder(home / split)
    with lock_folder(home, wait_s=0) as locked:
        if not locked:
            warn(f"{home}: this disk cannot be locked; start one run at a time on it")
        clear_leftovers(home, manifest)
        manifest.save(home)
        lengths = [_length_s(video, seconds) for video in opened]
        finished = {entry.index for entry in manifest.recordings}
        for index, (video, own) in enumerate(zip(opened, tracks, strict=True)):
            if index in finished:
                video.close()
                continue
            scene = VideoScene(pixels, preset, own, _label_hz(own.labels))
            seed_of = requests.scene_seed(int(seed), split, index)
            job = RecordingJob(index, split, seed_of, f"sim_{_plain_name(inputs[index].video)}_{index:06d}")
            done = sum(lengths[:index])
            entry = _record(home, video, scene, job, inputs[index], seconds, threads, done, sum(lengths), progress)
            entries = sorted([*manifest.recordings, entry], key=lambda entry: entry.index)
            manifest = replace(manifest, recordings=tuple(entries))
            manifest.save(home)
        if preview:
            manifest = with_preview(home, manifest, split)
    return manifest


def _open(videos: Sequence[str | int], sensor: tuple[int, int] | None) -> list[Video]:
    """Open all videos for one sensor."""
    first = Video(videos[0], sensor)
    opened = [first, *(Video(each, sensor) for each in videos[1:])]
    other = next((video for video in opened if video.sensor != first.sensor), None)
    if other is not None:
        raise FateError(
            f"{other.name}: gives {other.sensor} pixels, and {first.name} {first.sensor}; a dataset has one sensor:"
            " give sensor=(height, width)"
        )
    return opened


def _read_labels(videos: Sequence[Video], labels: Sequence[str]) -> list[Tracks]:
    if not labels:
        return [Tracks(Labels.empty(classes=CLASSES)) for _ in videos]
    live = next((video for video in videos if video.live), None)
    if live is not None:
        raise FateError(f"{live.name}: labels were given; a webcam has none; record a video, and label that")
    return [
        read_tracks(Path(file), video.time_of, video.picture, video.num_frames)
        for video, file in zip(videos, labels, strict=True)
    ]


def _continued(home: Path, asked_for: VideoManifest, known: VideoManifest) -> VideoManifest:
    """The manifest with the recordings that are finished; raises if the folder holds something else."""
    for name in ("camera", "sensor", "split", "seed", "seconds"):
        there, asked = getattr(known.request, name), getattr(asked_for.request, name)
        if there != asked:
            raise FateError(
                f"{home}: holds a dataset with {name} {there}, and {name} {asked} was asked for; give another folder"
            )
    count = min(len(known.request.videos), len(asked_for.request.videos))
    different = known.request.videos[:count] != asked_for.request.videos[:count]
    if different or len(known.request.videos) > count:
        raise FateError(
            f"{home}: holds a dataset of other videos or labels; add new ones at the end, or give another folder"
        )
    return replace(known, request=asked_for.request).still_there(home)


def _length_s(video: Video, seconds: float | None) -> float:
    """The length of a recording in seconds, as far as it is known before."""
    limit = WEBCAM_SECONDS if video.live and seconds is None else seconds
    claimed = None if video.num_frames is None else (video.num_frames - 1) / video.fps
    known = [each for each in (limit, claimed) if each is not None]
    return min(known) if known else requests.MOST_SECONDS


def _label_hz(labels: Labels) -> int:
    """The rate of the labels, rounded; 1 if there are fewer than two."""
    gaps = np.diff(labels.labelled_us)
    return max(round(1e6 / float(np.median(gaps))), 1) if len(gaps) else 1


def _plain_name(name: str) -> str:
    """The part of a file name that can be part of any other."""
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(name).stem).strip("_")[:60] or "video"


def _record(
    home: Path, video: Video, scene: VideoScene, job: RecordingJob, source: VideoInput, seconds: float | None,
    threads: int | None, done_s: float, total_s: float, progress: Progress | None,
) -> VideoEntry:  # fmt: skip
    """Record one video and return its entry; an error removes its files."""
    report = progress or ignore
    limit_us = round(1e6 * min(_length_s(video, seconds) if seconds or video.live else np.inf, requests.MOST_SECONDS))
    files = RecordingFiles(home, job, scene)
    try:
        cuts, count = [], 1
        none = scene.tracks.boxes_at(np.zeros(0, np.int64), video.fit, scene.frame)
        with closing(_until(video, limit_us)) as frames:
            for piece in record_video(frames, scene.camera, job.seed, threads):
                files.take(LabelledPiece(piece.events, none))
                scene.duration_us, count = piece.end_us, count + 1
                if piece.cut:
                    cuts.append(piece.end_us)
                report(min(done_s + piece.end_us / 1e6, total_s), total_s)
        label_us = scene.tracks.times_until(scene.duration_us)
        truth_us = truth_times(scene.duration_us)
        span = (label_us[0], label_us[-1]) if len(label_us) else (1, 0)
        truth_us = truth_us[(truth_us >= span[0]) & (truth_us <= span[1])]
        boxes = scene.tracks.boxes_at(np.union1d(label_us, truth_us), video.fit, scene.frame)
        files.take(LabelledPiece(Events.empty(scene.frame), boxes))
        entry = files.finish("cpu", camera_values(scene.camera), (label_us, truth_us))
    except (FateError, OSError) as error:
        files.discard()
        raise FateError(f"{video.name}: {describe_fault(error, home)}; finished recordings are kept") from error
    except BaseException:
        files.discard()
        raise
    if cuts:
        shown = ", ".join(f"{cut / 1e6:.2f} s" for cut in cuts[:5]) + (" …" if len(cuts) > 5 else "")
        warn(f"{video.name}: has {plural(len(cuts), 'cut')}, at {shown}; the camera starts again there")
    if scene.tracks.dropped:
        counts = ", ".join(f"{name} {count}" for name, count in scene.tracks.dropped.items())
        warn(f"{source.labels}: boxes of other classes were left out: {counts}")
    return VideoEntry(**vars(entry), source=source, frames=count, cuts_us=tuple(cuts), dropped=scene.tracks.dropped)


def _until(video: Video, limit_us: float) -> Generator[Frame, None, None]:
    """The frames up to a time; the video is closed at the end."""
    with closing(video):
        yield from takewhile(lambda frame: frame.t_us <= limit_us, video.frames())
