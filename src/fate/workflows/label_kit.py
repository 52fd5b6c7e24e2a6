"""``fate label-kit``: pictures of a recording for any labelling program, with a table of their times.

The folder has ``frames/NAME_000000.png``, … with the name of the recording, the table ``frames.csv``, a ``README.txt``,
and, with a detector, ``first_guess.xml`` for CVAT to import. A picture shows the events before its time, and its pixels
are those of the sensor. ``fate convert`` reads what the program exports.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from fate.boxes.cvat import encode_guess
from fate.boxes.detections import labels_from_frames
from fate.boxes.frame_times import picture_prefix, write_frame_times
from fate.errors import FateError
from fate.events.window import window_us as hop_of
from fate.formats.opening import as_recording
from fate.formats.recording import Recording
from fate.inference.loading import Model, load_detector
from fate.inference.stream import part_of
from fate.progress import Progress, name_part
from fate.text import encodable
from fate.view.rendering import EventSurface
from fate.whole_files import write_whole
from fate.workflows.detect import detect

TABLE, PICTURES, GUESS, README = "frames.csv", "frames", "first_guess.xml", "README.txt"
#: Pictures of one kit; nobody labels more.
MOST_FRAMES = 100_000
#: The lowest rate at which detectors run for a first guess; bundled ones are trained on windows of 50 ms.
DETECTION_HZ = 20

_README = """Pictures of {name} for labelling: {count} frames, {hz:g} per second, {width}x{height} pixels.

{table} has the time of each frame. Keep it, and keep the names and the order of the pictures.

1. Create a task with all pictures of the folder {pictures}. In CVAT, paste the classes into the field "Raw":
   {labels}
{guess}2. Draw a box around every object of these classes in every frame that you label.
3. Export the annotations. All of these work:
   CVAT: "CVAT for video 1.1" (keeps tracks), "CVAT for images 1.1", "COCO 1.0", "MOT 1.1", "PASCAL VOC 1.1".
   Unpack the zip file.
   Label Studio: "JSON"
4. Convert the export into labels, beside the recording, where a dataset finds them:
   fate convert annotations.xml {labels_file} --recording {recording} --frames {times}

Frames without boxes count as frames without objects, except in MOT, which does not list them. If you did not look at
all frames, add --skip-empty: frames without boxes then count as not labelled.
"""
_GUESS = """   Then import {guess} into the task ("Upload annotations", "CVAT 1.1"). These boxes are detections of
   {detector}, a first guess: correct, add and delete boxes. fate convert refuses this file itself.
"""


@dataclass(frozen=True)
class LabelKit:
    """The folder of a label kit."""

    folder: Path
    num_frames: int
    num_guessed: int | None  #: boxes of the first guess; None without a detector


def label_kit(
    recording: str | os.PathLike[str] | Recording,
    out: str | os.PathLike[str],
    hz: float = 10.0,
    *,
    window_us: int = 50_000,
    model: Model | None = None,
    threshold: float | None = None,
    classes: Sequence[str] | None = None,
    palette: str = "dark",
    start_us: int | None = None,
    end_us: int | None = None,
    device: str = "cpu",
    open_options: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> LabelKit:
    """Write numbered pictures of a recording and a table of their times, for a labelling program.

    Args:
        recording: any recording that ``open_recording`` opens, or an open one.
        out: folder to write; new or empty.
        hz: pictures per second of the recording, 0.1 to 1000.
        window_us: each picture shows the events of this time before it, µs.
        model: a detector for a first guess of the boxes, which CVAT imports: a bundled name, a ``.safetensors`` file or
            a detector; None for no guess.
        threshold: lowest score of a guess; the detector's own unless given.
        classes: classes to label, for the README; unless given, those of the detector, else car and pedestrian.
        palette: colours of the pictures: ``dark``, ``light``, ``gray``, ``coolwarm``, ``cvd`` or ``red-blue``.
        start_us, end_us: part of the recording, µs of its clock.
        device: ``"cpu"`` or ``"cuda"``, for the detector.
        open_options: arguments of ``open_recording``, for a file.
        progress: called with the pictures or windows done, their number, and the name of the part.

    Example:
        >>> fate.label_kit("drive.raw", "kit", 10, model="fate-s-tiny")                       # doctest: +SKIP
    """
    if not 0.1 <= hz <= 1000:
        raise FateError(f"{hz:g} pictures per second were asked for; expected 0.1 to 1000")
    folder = Path(out)
    with as_recording(recording, **(open_options or {})) as opened:
        opened.refuse_empty()
        start, end = part_of(opened, start_us, end_us)
        span = (opened.start_us if start is None else start, opened.end_us if end is None else end)
        detector = None if model is None else load_detector(model, device)
        steps = max(1, math.ceil(DETECTION_HZ / hz))  # windows of the detector from one picture to the next
        hop = steps * hop_of(hz * steps)
        count = (span[1] - span[0]) // hop
        if not 0 < count <= MOST_FRAMES:
            raise FateError(
                f"{opened.path}: from {span[0]} to {span[1]} µs, there are {count} pictures at {hz:g} Hz; expected 1 to"
                f" {MOST_FRAMES}; give another rate or another part"
            )
        prefix = picture_prefix(str(opened.path))
        files = {span[0] + (index + 1) * hop: f"{prefix}_{index:06d}.png" for index in range(count)}
        surface = EventSurface(opened.sensor, window_us, palette)
        _make_folder(folder)
        _draw_frames(opened, surface, files, span[0], folder / PICTURES, name_part(progress, "drawing"))
        write_frame_times(folder / TABLE, [(index, file, time) for index, (time, file) in enumerate(files.items())])
        num_guessed, guess = None, ""
        if detector is not None:
            done = detect(
                opened, detector, hz * steps, threshold=threshold, start_us=span[0], end_us=span[1], progress=progress
            )
            labels = labels_from_frames(
                [each for each in done.frames if each.t_us in files], done.log.classes, done.log.sensor
            )
            write_whole(folder / GUESS, encode_guess(labels, files, detector.name))
            num_guessed, guess = len(labels), _GUESS.format(guess=GUESS, detector=detector.name)
        path = Path(str(opened.path)).absolute()
        named = classes or (("car", "pedestrian") if detector is None else detector.classes)
        text = _README.format(
            name=path.name, labels_file=shlex.quote(str(path.with_name(f"{path.stem.removesuffix('_td')}_bbox.npz"))),
            recording=shlex.quote(str(path)),
            times=shlex.quote(str((folder / TABLE).absolute())), count=count, hz=hz,
            width=opened.sensor[1], height=opened.sensor[0],
            table=TABLE, pictures=PICTURES, guess=guess,
            labels=json.dumps([{"name": each, "attributes": []} for each in named]),
        )  # fmt: skip
        write_whole(folder / README, encodable(text).encode())
    return LabelKit(folder, count, num_guessed)


def _draw_frames(
    recording: Recording,
    surface: EventSurface,
    files: Mapping[int, str],
    start_us: int,
    folder: Path,
    progress: Progress | None,
) -> None:
    """Write a picture for each time in µs, with the events before it."""
    folder.mkdir()
    read_to = start_us
    for index, (time, file) in enumerate(files.items()):
        surface.feed(recording.read(max(read_to, time - surface.acc_us), time))
        read_to = time
        Image.fromarray(surface.picture(time)).save(folder / file)
        if progress is not None:
            progress(index + 1, len(files))


def _make_folder(folder: Path) -> None:
    """Create a folder; one that holds something is refused, because pictures of another kit would mix with ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FateError(f"{folder}: is not empty; expected a new folder for the pictures; choose another name")
    except OSError as error:
        raise FateError(f"{folder}: cannot be created ({error.strerror}); choose another folder") from None
