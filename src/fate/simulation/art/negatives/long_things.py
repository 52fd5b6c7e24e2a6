"""Long things that cross the picture: arms in sleeves, and cloths, ropes and cables that hang. They have no labels.

Their length and their folds look like a person who is cut by the frame, so these scenes teach the difference.
"""

from __future__ import annotations

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import add_backdrop
from fate.simulation.art.negatives.desk import THINGS, make_thing
from fate.simulation.art.negatives.hands import make_hand
from fate.simulation.art.negatives.paths import hold, numbers, sway
from fate.simulation.art.negatives.solids import Solid, shade_solids
from fate.simulation.art.negatives.world import Contents, Negative, indoor_light, turning, upright
from fate.simulation.art.panels import Panel, Texture, smooth_noise, vector


def _sleeve(rng: np.random.Generator, cuff: float, end: float) -> list[Panel]:
    """The sleeve of an arm along y, from its cuff to its end, with folds across it."""
    cloth, wide = float(rng.uniform(0.03, 0.8)), rng.uniform(0.04, 0.06)
    lamp = (rng.uniform(-1, 1), -0.6, 0.8)
    window = (-0.16, cuff - 0.05, 0.16, end)
    rows, columns = 240, 90
    parts = [Solid(0, cuff, wide, 0, end, wide * rng.uniform(1.2, 1.7), cloth)]
    if rng.random() < 0.5:  # a cuff, a bracelet or a watch
        parts.append(Solid(0, cuff - 0.01, 1.04 * wide, 0, cuff, 1.05 * wide, float(rng.uniform(0.02, 0.9)), 0.01))
    drawn = shade_solids(parts, window, columns, rows, lamp)
    folds = smooth_noise(rng, rows, columns, (int(rng.integers(6, 26)), int(rng.integers(2, 5))))
    depth = rng.uniform(0.0, 1.6)
    light = drawn.light * (1 - 0.5 * depth + depth * folds)
    return upright(light, 0.32, end - window[1], 0.0, (window[1] + end) / 2, -0.002, alpha=drawn.alpha)


def make_arm(rng: np.random.Generator, length: float) -> list[Panel]:
    """An arm with its hand up and its shoulder at the origin, ``length`` metres below the palm."""
    panels = make_hand(rng, 0.0)  # the swing of its fingers gives way to the turning of the arm
    if rng.random() < 0.8:
        panels += _sleeve(rng, rng.uniform(0.1, 0.45), 1.15)
    return [part.scaled(1.0, vector(0, length, 0)) for part in panels]


def arms(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """One or two arms that reach into the picture or across it from a side, mostly from above or below."""
    contents, z = Contents(), rng.uniform(0.35, 0.9)
    for _ in range(2 if rng.random() < 0.25 else 1):
        sideways = rng.random() < 0.25
        direction = rng.choice([-0.5, 0.5] if sideways else [0.0, 1.0, 1.0]) * np.pi + rng.normal(0, 0.25)
        distance = rng.uniform(0.6, 0.9)  # from the shoulder to the middle of the picture
        panels = turning(make_arm(rng, distance + rng.uniform(-0.15, 0.3)), direction)
        aside = rng.normal(0, 0.1)
        x = -distance * np.sin(direction) + aside * np.cos(direction)
        y = distance * np.cos(direction) + aside * np.sin(direction)
        reach = numbers(rng.uniform(0.0, 0.12), 0.03, 0.0, rng.uniform(0.02, 0.25), rng.uniform(0.0, 0.12))
        contents.add("arm", panels, sway(rng, numbers(x, z, y=y), reach, rng.uniform(0.15, 1.0)))
    for _ in range(int(rng.integers(0, 4))):
        position = rng.normal(0, 0.35), z + rng.uniform(0.05, 0.4)
        raised = vector(0, -rng.uniform(0.0, 0.3), 0)
        thing = make_thing(rng, split, THINGS.choose(rng, split))
        contents.add("thing", [part.scaled(1.0, raised) for part in thing], position)
    add_backdrop(rng, split, contents, z + rng.uniform(0.5, 1.5), 0.0)
    shake = rng.choice([0.0, 0.0, rng.uniform(0.005, 0.04)])
    return Negative(hold(rng, seconds, shake), contents, indoor_light(rng, 0.05), 0.0, 0.5)


def _cloth(rng: np.random.Generator, split: Split) -> Texture:
    """Cloth with folds along its length, which make its edges uneven; perhaps printed."""
    rows, columns = 120, 60
    folds: Float32 = smooth_noise(rng, rows, columns, (int(rng.integers(1, 4)), int(rng.integers(2, 9))))
    light = float(rng.uniform(0.05, 0.8)) * (0.4 + 0.8 * folds)
    if rng.random() < 0.3:
        light = light * (0.3 + textures.draw_texture(rng, split, rows, columns))
    sides = 1 - rng.uniform(0, 0.6) * smooth_noise(rng, rows, 2, (int(rng.integers(1, 6)), 1))
    across = np.linspace(-1, 1, columns)[None, :]
    inside = np.minimum(across + sides[:, :1], sides[:, 1:] - across)
    return Texture(light.astype(np.float32), np.clip(0.5 + 0.5 * columns * inside, 0, 1).astype(np.float32))


def hanging(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Curtains, towels, ropes, cables and poles that hang from above the picture and sway, or the camera moves."""
    contents = Contents()
    for number in range(int(rng.integers(1, 5))):
        z, drawn = rng.uniform(0.8, 2.2), _cloth(rng, split)
        wide = float(np.exp(rng.uniform(np.log(0.015), np.log(0.6))))
        top, long = rng.uniform(0.4, 1.2) * z, rng.uniform(0.4, 2.2) * z
        x = rng.normal(0, 0.4) * z
        if number == 0:  # a narrow lens sees it, too
            x, long = 0.2 * x, top + 0.5 * long
        panels = turning(upright(drawn.light, wide, long, 0.0, long / 2, alpha=drawn.alpha))
        reach = numbers(rng.uniform(0.03, 0.2), 0.05, 0.0, rng.uniform(0.02, 0.15))
        contents.add("cloth", panels, sway(rng, numbers(x, z, y=-top), reach, rng.uniform(0.3, 1.2)))
    add_backdrop(rng, split, contents, 3.0, 0.0)
    shake = rng.choice([0.0, rng.uniform(0.01, 0.08)])
    return Negative(hold(rng, seconds, shake), contents, indoor_light(rng), 0.0, 0.5)
