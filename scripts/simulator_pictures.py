"""Makes the pictures of docs/guides/simulator.md.

    python scripts/simulator_pictures.py docs/images [real.aedat4]

With a real recording of a street seen by a camera at rest, simulated moments at rest are put beside moments of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import fate
from fate.events.events import Events
from fate.simulation.camera.recorder import record
from fate.simulation.render.scene import Scene
from fate.view.drawing import draw_boxes, draw_events, enlarge, side_by_side

#: (seed, time in µs): drives by day and by night, and moments when the car stands and others move.
DRIVES = ((7, 1_140_000), (13, 1_140_000), (10, 1_140_000))
AT_REST = ((119, 1_140_000), (4, 980_000))
#: Where in the real recording to look, µs after its start.
REAL_MOMENTS = (600_000, 1_400_000)
WINDOW_US = 40_000


def moment(scene: Scene, t_us: int) -> Events:
    """The events of the last moments before ``t_us``."""
    pieces = []
    for piece in record(scene):
        pieces.append(piece.events)
        if len(piece.events) and piece.events.t_us[-1] >= t_us:
            break
    return Events.concatenate(pieces).between(t_us - WINDOW_US, t_us)


def drives() -> np.ndarray:
    """For each drive: the light on the sensor, and its events with the exact boxes."""
    rows = []
    for seed, t_us in DRIVES:
        scene = Scene(seed, seconds=10)
        light = scene.light(t_us)
        bright = np.clip(light / np.percentile(light, 99.5), 0, 1) ** (1 / 2.2)
        picture = np.repeat((bright * 255).astype(np.uint8)[:, :, None], 3, axis=2)
        seen = scene.boxes(t_us)
        names = [scene.classes[number] for number in seen.class_id]
        events = draw_events(moment(scene, t_us), factor=2)
        events = draw_boxes(events, seen.boxes, labels=names, class_ids=seen.class_id, scale=2)
        rows.append(side_by_side([enlarge(picture, 2), events]))
    return np.concatenate(rows)


def beside_real(path: str) -> np.ndarray:
    """Moments of the real recording on the left, simulated ones on the right."""
    recording = fate.open_recording(path)
    rows = []
    for after_us, (seed, t_us) in zip(REAL_MOMENTS, AT_REST, strict=True):
        start = recording.start_us + after_us
        real = draw_events(recording.read(start, start + WINDOW_US), factor=2)
        simulated = draw_events(moment(Scene(seed, seconds=10), t_us), factor=2)
        rows.append(side_by_side([real, simulated], ["real: DAVIS346, 40 ms", "simulated: gen1, 40 ms"]))
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    Image.fromarray(drives()).save(folder / "simulated_drives.png", optimize=True)
    if len(sys.argv) > 2:
        Image.fromarray(beside_real(sys.argv[2])).save(folder / "simulated_beside_real.png", optimize=True)
