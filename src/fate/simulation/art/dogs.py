"""Dogs: a picture from the side and one from ahead, crossed like those of two-wheelers, and four legs that swing.

Drawings are for a dog 1 m high at the shoulder, in metres: z from the rump forwards, heights from the ground up.
"""

from __future__ import annotations

import numpy as np

from fate.simulation.art.panels import Body, Canvas, Panel, Swing, oval, vector

_LENGTH, _TOP = 1.75, 1.35  # from the tail to the nose, and up to the ears
_LEG_TOP, _LEG_SWING = 0.52, 0.45  # height of the joint; rad to either side
_HIND, _FRONT = 0.42, 1.18  # z of the joints


def make_dog(rng: np.random.Generator) -> Body:
    """A dog 0.45 to 0.75 m high at the shoulder, with a coat and a size of its own."""
    coat = float(rng.choice([0.04, 0.12, 0.3, 0.55]))
    chest = float(np.clip(coat * rng.uniform(0.8, 2.5), 0.04, 0.7))
    side, ahead = _side_panel(rng, coat, chest), _front_panel(coat, chest)
    far = [_leg_panel(0.6 * coat, z, phase) for z, phase in ((_HIND, np.pi), (_FRONT, 0.0))]
    near = [_leg_panel(coat, z, phase) for z, phase in ((_HIND, 0.0), (_FRONT, np.pi))]
    size = float(rng.uniform(0.45, 0.75))
    middle = vector(0, 0, _LENGTH / 2)
    panels = tuple(panel.scaled(size, about=middle) for panel in (ahead, *far, side, *near))
    return Body("dog", "dog", panels, size * _LENGTH, size * 0.5, size * _TOP)


def _side_panel(rng: np.random.Generator, coat: float, chest: float) -> Panel:
    """Trunk, neck, head and tail, 96 × 64."""
    canvas = Canvas((0.0, _TOP, _LENGTH, 0.35), 96, 64)
    tail = (0.02, float(rng.uniform(0.6, 1.25)))
    canvas.line(((0.28, 0.85), (0.12, 0.9), tail), 0.07, coat)
    canvas.fill(oval(0.78, 0.75, 0.56, 0.22), (coat, 0.7 * coat))
    canvas.fill(oval(1.1, 0.7, 0.26, 0.27), (coat, chest))
    canvas.fill(((1.05, 0.85), (1.3, 1.2), (1.48, 1.1), (1.3, 0.7)), coat)
    canvas.fill(oval(1.42, 1.12, 0.17, 0.14), coat)
    canvas.fill(((1.45, 1.2), (1.73, 1.1), (1.73, 1.0), (1.45, 0.98)), (coat, chest))
    canvas.disc(1.71, 1.08, 0.035, 0.02)
    canvas.fill(((1.3, 1.2), (1.36, _TOP), (1.44, 1.2)), 0.6 * coat)
    across, down = vector(0, 0, _LENGTH), vector(0, _TOP - 0.35, 0)
    return Panel(canvas.texture(), vector(0, -_TOP, 0), across, down, faces="both")


def _front_panel(coat: float, chest: float) -> Panel:
    """Head, chest and the four legs from ahead or behind, 32 × 64; they do not swing across."""
    canvas = Canvas((-0.25, _TOP, 0.25, 0.0), 32, 64)
    for x in (-0.13, 0.13):
        canvas.rect(x - 0.05, 0.6, x + 0.05, 0.0, coat)
    canvas.fill(oval(0.0, 0.72, 0.22, 0.26), (coat, chest))
    canvas.fill(oval(0.0, 1.1, 0.14, 0.17), coat)
    for side in (-1.0, 1.0):
        canvas.fill(((side * 0.04, 1.2), (side * 0.1, _TOP), (side * 0.14, 1.15)), 0.6 * coat)
    return canvas.upright(_FRONT)


def _leg_panel(light: float, z: float, phase: float) -> Panel:
    """One leg with its paw, 16 × 32, hanging from the joint."""
    canvas = Canvas((-0.12, _LEG_TOP + 0.1, 0.16, 0.0), 16, 32)
    canvas.fill(((-0.11, _LEG_TOP + 0.1), (0.13, _LEG_TOP + 0.1), (0.05, 0.25), (0.04, 0.0), (-0.05, 0.0)), light)
    canvas.rect(-0.05, 0.07, 0.13, 0.0, light)
    corner, down = vector(0, -_LEG_TOP - 0.1, z - 0.12), vector(0, _LEG_TOP + 0.1, 0)
    swing = Swing(vector(0, -_LEG_TOP, z), _LEG_SWING, phase)
    return Panel(canvas.texture(), corner, vector(0, 0, 0.28), down, faces="both", swing=swing)
