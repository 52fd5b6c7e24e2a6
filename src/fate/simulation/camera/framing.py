"""From the simulated picture to the frame of the profile ``mixed``, as ``fate detect`` shows a sensor to a detector.

The lens bends the picture, the readout loses events and rounds time stamps, k × k pixels of a large sensor become one
(``events/merging.py``), and the result lies at a drawn place in the frame: what reaches over its border is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from fate.events.events import Events
from fate.events.merging import PixelMerger
from fate.simulation.camera.random_sensor import RandomSensor
from fate.simulation.camera.readout import SLICE_US, Readout
from fate.simulation.render.scene import MIN_VISIBLE, Boxes, BoxesAt, RecordedPiece, Scene


class Framing:
    """The frame of one recording, fed piece by piece."""

    def __init__(self, scene: Scene, sensor: RandomSensor) -> None:
        self.frame, self.sensor, self.smallest = scene.frame, sensor, scene.profile.min_diagonal
        self._readout = Readout(round(sensor.readout_mev * SLICE_US), sensor.step_us, scene.seed)
        self._merger = PixelMerger(sensor.size, sensor.divisor)

    def __call__(self, piece: RecordedPiece) -> RecordedPiece:
        """The next piece of the recording in its frame."""
        return piece._replace(events=self.events(piece.events, piece.last), boxes=self.boxes(piece.boxes))

    def events(self, events: Events, last: bool) -> Events:
        """The next events of the recording; those of the last millisecond come with the next call."""
        events = self._merger(self._readout(self.sensor.lens.events(events), last))
        x, y = events.x.astype(np.int32) + self.sensor.left, events.y.astype(np.int32) + self.sensor.top
        inside = (x >= 0) & (x < self.frame.width) & (y >= 0) & (y < self.frame.height)
        column, row = x[inside].astype(np.uint16), y[inside].astype(np.uint16)
        return Events.trusted(events.t_us[inside], column, row, events.p[inside], self.frame)

    def boxes(self, found: BoxesAt) -> BoxesAt:
        """Boxes in the frame, without those that are too small or of which too little is left."""
        sensor, (t_us, rows, boxes) = self.sensor, found
        origin = np.array([sensor.left, sensor.top] * 2, np.float32)
        size = np.array(sensor.size[::-1], np.float32) / sensor.divisor
        whole = sensor.lens.boxes(boxes.boxes) / np.float32(sensor.divisor) + origin
        lowest = np.maximum(origin[:2], 0)
        highest = np.minimum(origin[:2] + size, np.array(self.frame[::-1], np.float32))
        cut = np.clip(whole, np.tile(lowest, 2), np.tile(np.maximum(highest, lowest), 2))
        (width, height), (full_width, full_height) = ((each[:, 2:] - each[:, :2]).T for each in (cut, whole))
        visible = boxes.visible * (width * height / np.maximum(full_width * full_height, np.float32(1e-9)))
        keep = (visible >= MIN_VISIBLE) & (np.hypot(width, height) >= self.smallest)
        time = np.repeat(np.arange(len(t_us)), rows)[keep]
        left = Boxes(cut[keep], boxes.class_id[keep], boxes.track_id[keep], visible[keep])
        return BoxesAt(t_us, np.bincount(time, minlength=len(t_us)), left)


def framed(pieces: Iterable[RecordedPiece]) -> Iterator[RecordedPiece]:
    """The pieces of recordings, each in its frame; those of profiles with one sensor stay as they are."""
    framings: dict[int, Framing] = {}
    for piece in pieces:
        if piece.scene.random_sensor is None:
            yield piece
            continue
        if piece.recording not in framings:
            framings[piece.recording] = Framing(piece.scene, piece.scene.random_sensor)
        yield framings[piece.recording](piece)
        if piece.last:
            del framings[piece.recording]
