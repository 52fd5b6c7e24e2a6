"""Lorries and buses: boxes on wheels. They are no cars, but a detector of cars is not wrong about them: neutral."""

from __future__ import annotations

import numpy as np

from fate.boxes.labels import NEUTRAL
from fate.simulation.art.individual_cars import reflections
from fate.simulation.art.panels import Body, Canvas, Panel, Texture, vector

_GLOSS = 0.5  # how strongly they mirror what is around them


def make_large_vehicle(rng: np.random.Generator, night: bool) -> Body:
    """A bus or a lorry with a box, 7 to 13 m long and 2.8 to 3.9 m high."""
    bus = bool(rng.random() < 0.4)
    length, width = float(rng.uniform(10, 13) if bus else rng.uniform(7, 13)), float(rng.uniform(2.4, 2.6))
    height = float(rng.uniform(2.8, 3.2) if bus else rng.uniform(3.0, 3.9))
    paint = float(rng.choice([0.12, 0.3, 0.5, 0.7]))
    half_long, half = length / 2, width / 2
    side = reflections(rng, _draw_side(rng, length, height, paint, bus), _GLOSS)
    flanks = [
        Panel(side.mirrored(), vector(-half, -height, half_long), vector(0, 0, -length), vector(0, height, 0)),
        Panel(side, vector(half, -height, -half_long), vector(0, 0, length), vector(0, height, 0)),
    ]
    roof = Panel(
        Texture.plain(min(1.1 * paint, 0.8)),
        vector(-half, -height, half_long),
        vector(width, 0, 0),
        vector(0, 0, -length),
    )
    ends = []
    for front in (False, True):
        turn = 1.0 if front else -1.0
        corner, across = vector(turn * half, -height, turn * half_long), vector(-turn * width, 0, 0)
        face = reflections(rng, _draw_end(width, height, paint, bus or front, front), _GLOSS)
        ends.append(Panel(face, corner, across, vector(0, height, 0)))
        lamp = Canvas((-half, 1.1, half, 0.8), 32, 6)
        lamp.pair(half - 0.45, 1.1, half - 0.1, 0.8, 0.85 if front else 0.3)
        position = corner + vector(0, height - 1.1, 0.02 * turn)
        glow = 1.0 if night else 0.0
        ends.append(Panel(lamp.texture(), position, across, vector(0, 0.3, 0), emission=glow))
    return Body("bus" if bus else "lorry", NEUTRAL, (roof, *flanks, *ends), length, width, height)


def _draw_side(rng: np.random.Generator, length: float, height: float, paint: float, bus: bool) -> Texture:
    """The right side, 128 × 48: windows all along, or a box with lettering behind a cab; the front is at the right."""
    canvas = Canvas((0.0, height, length, 0.0), 128, 48)
    floor = 0.35 if bus else 1.0
    canvas.rect(0.0, height, length, floor, (paint, 0.8 * paint))
    if bus:
        for z in np.arange(0.3, length - 0.8, 1.45):
            canvas.block(z, height - 0.45, z + 1.3, 1.2, (0.2, 0.06))
        canvas.block(length - 3.0, height - 0.5, length - 1.9, 0.45, 0.08)
    else:
        cab = length - 2.1
        canvas.rect(cab - 0.35, height + 0.1, cab, 0.0, 0.03)
        canvas.rect(cab, height, length, 0.5, 0.5 * paint + 0.1)
        canvas.rect(cab + 0.7, height - 0.6, length - 0.2, height - 1.4, (0.2, 0.06))
        canvas.rect(0.0, 1.05, cab - 0.3, 0.75, 0.06)
        canvas.rect(
            0.15 * length, 0.75 * height, 0.15 * length + rng.uniform(0.2, 0.5) * length, 0.6 * height, 1 - paint
        )
    for z in (0.2 * length, 0.3 * length, 0.85 * length) if not bus else (0.25 * length, 0.8 * length):
        canvas.disc(z, 0.5, 0.5, 0.03)
        canvas.disc(z, 0.5, 0.25, 0.3)
    return canvas.texture()


def _draw_end(width: float, height: float, paint: float, glazed: bool, front: bool) -> Texture:
    """The front or the rear face, 48 × 64, down to the tyres."""
    half = width / 2
    canvas = Canvas((-half, height, half, 0.0), 48, 64)
    canvas.pair(half - 0.4, 0.6, half - 0.05, 0.0, 0.03)
    canvas.rect(-half, height, half, 0.4, (paint, 0.75 * paint))
    if glazed:
        low = 1.2 if front else 0.55 * height
        canvas.rect(-0.9 * half, height - 0.45, 0.9 * half, low, (0.25, 0.06))
    else:
        canvas.rect(-0.02, height, 0.02, 1.0, 0.3 * paint)
        canvas.pair(0.4 * half, height, 0.44 * half, 1.0, 0.5 * paint)
    canvas.rect(-half, 0.7, half, 0.4, 0.06)
    canvas.rect(-0.27, 0.85, 0.27, 0.73, 0.7)
    return canvas.texture()
