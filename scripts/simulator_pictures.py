"""Makes the pictures of docs/guides/simulator.md.

python scripts/simulator_pictures.py docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fate.boxes.drawing import draw_boxes, draw_events, enlarge, side_by_side
from fate.events.events import Events
from fate.simulation.camera.recorder import record
from fate.simulation.render.scene import Scene

#: (seed, time in µs) of drives by day and by night.
DRIVES = ((7, 1_140_000), (13, 1_140_000), (10, 1_140_000))
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


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    Image.fromarray(drives()).save(folder / "simulated_drives.png", optimize=True)
