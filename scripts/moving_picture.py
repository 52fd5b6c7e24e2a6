"""Makes docs/images/detect.webp: one simulated drive, detected at 20 Hz on the left and at 200 Hz on the right.

    python scripts/moving_picture.py
    python scripts/moving_picture.py --model runs/mine/best.safetensors --seed 32 --start 2 --out mine.webp

Slow motion: every picture is one 5 ms window of the drive, so on the right each has boxes of its own, while on the
left boxes stay for ten pictures and fall behind what moves. Both sides show the same events. The strips below fill with
time and have a mark where boxes were made. The detector has seen the drive from its beginning, as it would in a car,
and the drive is one of the test split: half of its cars, people and houses are of makes that training never shows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import fate
from fate.boxes.detections import DetectionFrame, FrameLookup, class_name
from fate.boxes.drawing import Picture, draw_boxes, enlarge, font_of, side_by_side
from fate.events.events import Events
from fate.formats.recording import Recording
from fate.inference.loading import DEFAULT_DETECTOR
from fate.simulation.camera.recorder import record
from fate.simulation.render.scene import Scene
from fate.view.rendering import EventSurface, VideoClock

RATES = (20.0, 200.0)
DRIVE_S = 3.0  # another length would be another drive
SHOWN_US = 500_000
FPS, SLOW = 25.0, 8.0  # together 200 pictures for a second of the drive: one for each window at 200 Hz
ACC_US = 25_000  # events of this time are lit; longer ones smear what moves
ROWS = slice(40, 220)  # of the sensor: above is sky, below the bonnet's road
FACTOR = 2
TEXT, BAR = 22, 56  # pixels: height of letters, and of the strip under each side
PAPER, INK, SOFT, MARK = (16, 20, 28), (235, 240, 248), (150, 162, 180), (0, 200, 150)


def simulated(seed: int, end_us: int, file: Path) -> Recording:
    """The drive of a seed up to a time, on disk: what a detector is given is what a camera would have written."""
    pieces = []
    for piece in record(Scene(seed, split="test", seconds=DRIVE_S)):
        pieces.append(piece.events)
        if len(piece.events) and piece.events.t_us[-1] >= end_us:
            break
    fate.write_events(file, Events.concatenate(pieces).between(0, end_us))
    return fate.open_recording(file)


def boxes_on(picture: Picture, frame: DetectionFrame | None, classes: tuple[str, ...]) -> Picture:
    """The enlarged picture with what a detector said last."""
    if frame is None or not len(frame.boxes):
        return picture
    labels = [
        f"{class_name(int(kind), classes)} {score:.2f}"
        for kind, score in zip(frame.class_ids, frame.scores, strict=True)
    ]
    boxes = np.asarray(frame.boxes) - [0, ROWS.start, 0, ROWS.start]
    return draw_boxes(
        picture, boxes, labels=labels, class_ids=frame.class_ids, thickness=3, scale=FACTOR, text_size=TEXT - 5
    )


def strip(width: int, caption: str, lookup: FrameLookup, clock: VideoClock, now_us: int) -> Picture:
    """What stands under a side: its rate, the time, and a bar with a mark for every set of boxes made so far."""
    canvas = Image.new("RGB", (width, BAR), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((4, 4), caption, fill=INK, font=font_of(TEXT))
    begin, end = clock.first_us - clock.step_us, clock.time_us(clock.num_frames - 1)
    when = f"{(now_us - begin) / 1000:.0f} ms, {SLOW:g}x slower"  # the letter: the font has no multiplication sign
    pen.text((width - 4, 4), when, fill=SOFT, font=font_of(TEXT), anchor="ra")
    top, left, right = BAR - 20, 4, width - 5
    pen.line((left, BAR - 6, right, BAR - 6), fill=SOFT)
    for t_us in lookup.times:
        if begin < t_us <= now_us:
            x = left + round((right - left) * (t_us - begin) / (end - begin))
            pen.line((x, top, x, BAR - 6), fill=MARK, width=2)
    return np.asarray(canvas)


def pictures(
    recording: Recording, runs: Mapping[float, Sequence[DetectionFrame]], classes: tuple[str, ...], end_us: int
) -> list[Picture]:
    """Of the last ``SHOWN_US`` before a time, in order."""
    clock = VideoClock.over(end_us - SHOWN_US, end_us, FPS, SLOW)
    surface = EventSurface(recording.sensor, ACC_US)
    surface.feed(recording.read(clock.first_us - ACC_US - 5000, clock.first_us - 5000))
    lookups = {hz: FrameLookup(frames) for hz, frames in runs.items()}
    sheets = []
    for index in range(clock.num_frames):
        now = clock.time_us(index)
        surface.feed(recording.read(now - 5000, now))
        plain = enlarge(surface.picture(now)[ROWS], FACTOR)
        sides = []
        for hz, lookup in lookups.items():
            shown = boxes_on(plain, lookup.at(now), classes)
            caption = f"{hz:g} Hz: boxes every {1000 / hz:g} ms"
            sides.append(np.concatenate([shown, strip(shown.shape[1], caption, lookup, clock, now)]))
        sheets.append(side_by_side(sides))
    return sheets


def save(sheets: list[Picture], path: Path) -> None:
    """Without loss: single events stay single pixels. A browser plays it again and again."""
    first, *rest = [Image.fromarray(sheet) for sheet in sheets]
    first.save(
        path, save_all=True, append_images=rest, duration=round(1000 / FPS), loop=0, lossless=True, quality=75, method=4
    )
    print(f"{path}: {len(sheets)} pictures of {first.width} × {first.height}, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_DETECTOR, help="a bundled name, or a .safetensors file")
    parser.add_argument("--seed", type=int, default=30, help="of the drive")
    parser.add_argument("--start", type=float, default=2.25, help="where in the drive, s; the memory is warm by then")
    parser.add_argument("--threshold", type=float, default=0.4, help="least score of a box")
    parser.add_argument("--out", type=Path, default=Path("docs/images/detect.webp"))
    given = parser.parse_args()
    end_us = round(1e6 * given.start) + SHOWN_US
    detector = fate.load_detector(given.model)
    with tempfile.TemporaryDirectory() as folder:
        recording = simulated(given.seed, end_us, Path(folder) / "drive.npz")
        found = {hz: list(detector.stream(recording, hz, threshold=given.threshold, start_us=0)) for hz in RATES}
        save(pictures(recording, found, detector.classes, end_us), given.out)
