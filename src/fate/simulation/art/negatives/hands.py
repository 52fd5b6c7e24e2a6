"""Hands and heads close to the lens. They have no labels: a hand or a face is no pedestrian."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives.backdrop import add_backdrop
from fate.simulation.art.negatives.paths import hold, numbers, sway
from fate.simulation.art.negatives.solids import Solid, shade_solids
from fate.simulation.art.negatives.textures import stripes
from fate.simulation.art.negatives.world import Contents, Negative, indoor_light, upright
from fate.simulation.art.panels import Panel, Swing, Texture, smooth_noise, vector


def _stands(texture: Texture, window: tuple[float, float, float, float], z: float = 0.0) -> list[Panel]:
    left, top, right, bottom = window
    x, y = (left + right) / 2, (top + bottom) / 2
    return upright(texture.light, right - left, bottom - top, x, y, z, alpha=texture.alpha)


def make_hand(rng: np.random.Generator, fingers: float = 0.2) -> list[Panel]:
    """A hand with its forearm, fingers up and palm at the origin, 0.1 m wide; fingers bend by up to ``fingers`` rad."""
    skin, lamp = float(rng.uniform(0.12, 0.55)), (rng.uniform(-1, 1), -0.6, 0.8)
    closed = rng.random() < 0.25
    arm = [Solid(0, 0.09, 0.028, rng.normal(0, 0.08), 1.2, 0.055, skin)]
    if rng.random() < 0.5:  # a sleeve
        arm.append(Solid(0, 0.2, 0.045, arm[0].x1, 1.2, 0.075, float(rng.uniform(0.03, 0.7))))
    window = (-0.2, 0.0, 0.2, 1.2)
    panels = _stands(shade_solids(arm, window, 128, 240, lamp), window)
    lengths, size = (0.07, 0.08, 0.075, 0.055), 0.11
    for number, length in enumerate(lengths):
        x = -0.034 + 0.0225 * number
        angle, reach = 0.12 * (number - 1.5) * rng.uniform(0.5, 1.8), 0.2 if closed else 1.0
        tip = np.sin(angle) * length * reach, -np.cos(angle) * length * reach
        knuckle = Solid(0, 0, 0.011, 0.5 * tip[0], 0.5 * tip[1], 0.0105, skin, 0.004)
        finger = Solid(0.5 * tip[0], 0.5 * tip[1], 0.0108, *tip, 0.008, 1.05 * skin)
        nail = Solid(tip[0], tip[1] + 0.002, 0.004, tip[0], tip[1] + 0.006, 0.0045, min(1.6 * skin, 0.9), 0.008)
        window = (-size / 2, -0.1, size / 2, 0.02)
        drawn = _stands(shade_solids([knuckle, finger, nail], window, 64, 70, lamp), window)
        swing = Swing(vector(0, 0, 0), fingers, float(rng.uniform(0, 6.3)))
        panels += [
            replace(part, swing=swing).scaled(1.0, vector(-x, 0.045 - 0.004 * (number % 3), 0)) for part in drawn
        ]
    palm = [
        Solid(-0.025, -0.035, 0.022, -0.018, 0.05, 0.022, skin),
        Solid(0.025, -0.03, 0.022, 0.015, 0.055, 0.022, skin),
        Solid(0, -0.03, 0.026, 0, 0.05, 0.028, 0.97 * skin),
        Solid(-0.02, 0.035, 0.02, -0.065, -0.005, 0.013, skin, 0.012),
        Solid(-0.065, -0.005, 0.0125, -0.075, -0.035, 0.009, 1.05 * skin, 0.012),
    ]
    window = (-0.1, -0.07, 0.06, 0.1)
    return panels + _stands(shade_solids(palm, window, 110, 117, lamp), window)


def hands(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """One or two hands that wave, point and turn before the camera."""
    contents = Contents()
    for side in (-1.0, 1.0) if rng.random() < 0.35 else (float(rng.choice([-1.0, 1.0])),):
        middle = numbers(rng.uniform(0.0, 0.1) * side, rng.uniform(0.25, 0.6), y=rng.uniform(-0.05, 0.12))
        reach = numbers(rng.uniform(0.02, 0.2), 0.05, rng.uniform(0, 0.6), 0.0, rng.uniform(0.02, 0.12))
        drift = numbers(gait=rng.uniform(3, 15))
        panels = [
            part.scaled(np.array([side, 1.0, 1.0]), vector(0, 0, 0)) for part in make_hand(rng, rng.uniform(0, 0.35))
        ]
        contents.add("hand", panels, sway(rng, middle, reach, rng.uniform(0.4, 1.2), drift))
    add_backdrop(rng, split, contents, rng.uniform(1.0, 3.0), 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng), 0.0, 0.5)


def make_head(rng: np.random.Generator) -> list[Panel]:
    """A head with neck and shoulders, its centre at the origin: four pictures in layers."""
    skin, hair = float(rng.uniform(0.12, 0.55)), float(rng.choice([0.02, 0.05, 0.12, 0.3]))
    lamp, shirt = (rng.uniform(-1, 1), -0.5, 0.6), float(rng.uniform(0.03, 0.8))
    wide = rng.uniform(0.92, 1.1)
    trunk = [
        Solid(0, 0.08, 0.055, 0, 0.2, 0.06, 0.8 * skin),
        Solid(-0.03, 0.19, 0.05, -0.17, 0.25, 0.055, shirt),
        Solid(0.03, 0.19, 0.05, 0.17, 0.25, 0.055, shirt),
        Solid(0, 0.33, 0.15, 0, 0.6, 0.18, shirt, -0.09),
        Solid(-0.18, 0.26, 0.055, -0.21, 0.6, 0.05, shirt),
        Solid(0.18, 0.26, 0.055, 0.21, 0.6, 0.05, shirt),
    ]
    below = shade_solids(trunk, (-0.3, 0.0, 0.3, 0.6), 128, 128, lamp)
    if rng.random() < 0.4:
        pattern = stripes(rng, 128, 128)
        below = Texture(np.where(np.arange(128)[:, None] > 45, below.light * (0.4 + pattern), below.light), below.alpha)
    window, size = (-0.15, -0.18, 0.15, 0.16), (120, 128)
    skull = [
        Solid(0, -0.04, 0.082 * wide, 0, 0.02, 0.072 * wide, skin),
        Solid(0, 0.02, 0.07 * wide, 0, 0.08, 0.042 * wide, skin),
        Solid(-0.083 * wide, -0.01, 0.012, -0.078 * wide, 0.03, 0.009, 0.9 * skin),
        Solid(0.083 * wide, -0.01, 0.012, 0.078 * wide, 0.03, 0.009, 0.9 * skin),
    ]
    long = rng.random() < 0.4
    behind = [Solid(0, -0.05, 0.098 * wide, 0, 0.1 if long else -0.02, 0.09 * wide if long else 0.08, hair)]
    face: list[Solid] = []
    for side in (-1.0, 1.0):
        x = 0.031 * side * wide
        face += [
            Solid(x - 0.01, -0.012, 0.0065, x + 0.01, -0.012, 0.0065, 0.75, 0.01),
            Solid(x, -0.012, 0.006, x, -0.012, 0.006, 0.02, 0.02),
            Solid(x - 0.016, -0.032, 0.004, x + 0.016, -0.034, 0.0045, hair, 0.01),
        ]
    if rng.random() < 0.35:  # glasses
        for x in (-0.033, 0.033):
            corners = [
                (x - 0.024, -0.028),
                (x + 0.024, -0.028),
                (x + 0.022, 0.01),
                (x - 0.022, 0.01),
                (x - 0.024, -0.028),
            ]
            for (xa, ya), (xb, yb) in pairwise(corners):
                face.append(Solid(xa, ya, 0.0025, xb, yb, 0.0025, 0.03, 0.03))
    face += [
        Solid(0, -0.015, 0.008, 0, 0.022, 0.014, skin, 0.02, 0.15),
        Solid(-0.02, 0.055, 0.005, 0.02, 0.055, 0.005, 0.55 * skin, 0.01),
        Solid(-0.014, 0.062, 0.004, 0.014, 0.062, 0.004, 0.75 * skin, 0.012),
    ]
    back, front, features = (shade_solids(solids, window, *size, lamp) for solids in (behind, skull, face))
    if rng.random() < 0.8:  # hair on the skull, above a curved line
        across, down = np.linspace(-0.15, 0.15, 120)[None, :], np.linspace(-0.18, 0.16, 128)[:, None]
        strands = hair / skin * (0.7 + 0.6 * smooth_noise(rng, 128, 120, (8, 40)))
        line = rng.uniform(-0.09, -0.06) + rng.uniform(4, 14) * (across - rng.normal(0, 0.02)) ** 2
        front = Texture(np.where(down < line, front.light * strands, front.light).astype(np.float32), front.alpha)
    panels = _stands(below, (-0.3, 0.0, 0.3, 0.6), 0.04)
    for drawn, z in ((back, 0.05), (front, 0.0), (features, -0.05)):
        panels += _stands(drawn, window, z)
    return panels


def head(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A head that fills much of the picture, which nods, turns and moves; or the camera moves.

    Most lenses show the face alone, and the widest ones the shoulders too. Somebody who is seen from the waist up would
    be a pedestrian, as in ``indoors``.
    """
    contents, own = Contents(), rng.random() < 0.75
    middle = numbers(rng.normal(0, 0.04), rng.uniform(0.2, 0.28), y=rng.normal(0.02, 0.03))
    reach = numbers(rng.uniform(0.01, 0.1), 0.05, rng.uniform(0.1, 0.6), 0.0, rng.uniform(0.005, 0.05)) * (
        1.0 if own else 0.1
    )
    contents.add("head", make_head(rng), sway(rng, middle, reach, rng.uniform(0.3, 1.5)))
    add_backdrop(rng, split, contents, rng.uniform(1.2, 3.5), 0.0)
    shake = 0.0 if own else rng.uniform(0.03, 0.12)
    return Negative(hold(rng, seconds, shake), contents, indoor_light(rng), 0.0, 0.5)
