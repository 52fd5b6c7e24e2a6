"""Light without things: flickering lamps and screens, lamps that move in the dark, sparks, and a still picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.actors import Lighting
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import add_backdrop, plain_wall
from fate.simulation.art.negatives.paths import GRAVITY, Flight, hold, numbers, sway
from fate.simulation.art.negatives.rooms import room
from fate.simulation.art.negatives.world import Contents, Negative, indoor_light, turning, upright
from fate.simulation.art.panels import Canvas, Texture


def _dark(rng: np.random.Generator) -> Lighting:
    """A dark room in which lamps shine at their full light."""
    level = float(np.exp(rng.uniform(np.log(0.005), np.log(0.2))))
    return Lighting(level, 0.0, (0.0, -1.0, 0.0), level, level, 0.0, 1.0)


def _glow() -> Texture:
    """A bright spot that fades outwards."""
    canvas = Canvas((-1, -1, 1, 1), 48, 48)
    for radius, opacity in ((1.0, 0.1), (0.7, 0.2), (0.45, 0.5), (0.3, 1.0)):
        canvas.disc(0, 0, radius, 0.9, opacity)
    return canvas.texture()


def _ray() -> Float32:
    """How much a ray covers: it is thin and fades to the right."""
    v, u = np.abs(np.mgrid[:8, :64] - np.array([3.5, 0])[:, None, None])
    return np.asarray(np.clip(1.5 - u / 50, 0, 1) * np.clip(3 - v * (0.7 + u / 40), 0, 1), np.float32)


def flicker(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Lamps, light-emitting diodes and screens that flicker or blink; the wall may flicker in their light."""
    contents = Contents()
    mains, bulb = float(rng.choice([100.0, 120.0])), _glow()
    for _ in range(int(rng.integers(1, 5))):
        hertz = float(rng.choice([mains, mains, rng.uniform(1, 30), rng.uniform(50, 240)]))
        lamp: dict[str, Any] = {"emission": float(rng.uniform(0.5, 3.0)), "flicker_hz": hertz}
        x, y, z = rng.normal(0, 0.3), rng.normal(0, 0.2), rng.uniform(1.0, 1.5)
        style = rng.choice(["bulb", "tube", "screen"])
        lamp["flicker_depth"] = float(rng.uniform(0.1, 0.5) if style == "screen" else rng.uniform(0.3, 1.0))
        if style == "bulb":
            size = rng.uniform(0.02, 0.3)
            panels = upright(bulb.light, size, size, alpha=bulb.alpha, **lamp)
        elif style == "tube":
            panels = upright(0.9, rng.uniform(0.3, 1.0), 0.04, **lamp)
        else:
            size = rng.uniform(0.2, 0.6)
            panels = upright(textures.draw_texture(rng, split, 96, 128), size, 0.6 * size, **lamp)
        contents.add("lamp", turning(panels, rng.normal(0, 0.3)), sway(rng, numbers(x, z, y=y), numbers()))
    lamp = {}
    if rng.random() < 0.15:
        lamp = {
            "emission": float(rng.uniform(0.1, 0.6)),
            "flicker_hz": mains,
            "flicker_depth": float(rng.uniform(0.2, 0.5)),
        }
    contents.add("wall", upright(plain_wall(rng), 10, 8, **lamp), (0.0, 2.0))
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.0, 0.02])), contents, _dark(rng), 0.0, 0.5)


def carried(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Lamps that hang, are carried or waved in the dark, with glare around them, and reflections."""
    contents, glow, ray = Contents(), _glow(), _ray()
    for _ in range(int(rng.integers(1, 4))):
        x, y, z = rng.normal(0, 0.35), rng.normal(0, 0.2), float(rng.uniform(0.9, 1.6))
        reach, hertz = float(np.exp(rng.uniform(np.log(0.005), np.log(0.3)))), float(rng.uniform(0.3, 3.0))
        size, light = float(np.exp(rng.uniform(np.log(0.02), np.log(0.25)))), float(rng.uniform(0.8, 4.0))
        moves = sway(rng, numbers(x, z, y=y), numbers(reach, gait=0.2, y=0.6 * reach), hertz)
        for _ in range(int(rng.integers(4, 14)) if rng.random() < 0.5 else 0):
            long = size * rng.uniform(0.8, 4.0)
            part = upright(np.full(ray.shape, 0.9), long, 0.012, long / 2, alpha=ray, emission=0.1 * light)
            contents.add("ray", turning(part, rng.uniform(0, 2 * np.pi)), moves)
        contents.add("lamp", upright(glow.light, size, size, alpha=glow.alpha, emission=light), moves)
        for _ in range(int(rng.integers(0, 4))):
            middle = numbers(-x * rng.uniform(0.3, 1.2), z, y=-y * rng.uniform(0.3, 1.2))
            mirrored = sway(rng, middle, numbers(0.7 * reach, gait=0.2, y=0.4 * reach), hertz)
            tall, faint = size * rng.uniform(0.4, 2.0), float(rng.uniform(0.01, 0.2))
            part = upright(glow.light, size, tall, alpha=0.4 * glow.alpha, emission=faint)
            contents.add("reflection", part, mirrored)
        for _ in range(int(rng.integers(0, 4))):
            middle = numbers(x + rng.normal(0, 0.15), z, y=y + rng.normal(0, 0.15))
            beside = sway(rng, middle, numbers(reach, gait=0.2), hertz)
            wide, faint = size * rng.uniform(0.15, 0.8), light * float(rng.uniform(0.05, 0.5))
            part = upright(glow.light, wide, wide * rng.uniform(0.5, 2.5), alpha=glow.alpha, emission=faint)
            contents.add("reflection", part, beside)
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.0, 0.01])), contents, _dark(rng), 0.0, 0.5)


def sparks(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A sparkler whose rays flare up, and sparks that fly up from below the view, in the dark."""
    contents, glow, ray = Contents(), _glow(), _ray()
    for _ in range(int(rng.integers(0, 3))):
        x, y, size = rng.normal(0, 0.3), rng.normal(0, 0.2), rng.uniform(0.1, 0.5)
        hand = sway(rng, numbers(x, 1.0, y=y), numbers(0.15, 0, 0, 0.5, 0.1), 0.5)
        for _ in range(int(rng.integers(6, 18))):
            lamp: dict[str, Any] = {"emission": float(rng.uniform(0.5, 3.0)), "flicker_hz": float(rng.uniform(3, 20))}
            long = size * rng.uniform(0.3, 1.0)
            part = upright(np.full(ray.shape, 0.9), long, 0.02, long / 2, alpha=ray, flicker_depth=1.0, **lamp)
            contents.add("ray", turning(part, rng.uniform(0, 2 * np.pi)), hand)
        contents.add("glow", upright(glow.light, 0.08, 0.08, alpha=glow.alpha, emission=3.0), hand)
    x, reach = rng.normal(0, 0.4), rng.uniform(0.1, 0.8)
    for _ in range(int(rng.integers(15, 40))):
        up, sideways = rng.uniform(3.5, 7.0), rng.normal(0, reach)
        panels = turning(upright(0.9, 0.008, rng.uniform(0.01, 0.04), emission=float(rng.uniform(0.5, 3.0))))
        start, life = numbers(x, rng.uniform(1.0, 1.2), y=1.6), 2 * up / GRAVITY
        velocity = numbers(sideways, gait=rng.normal(0, 2), y=-up)
        path = Flight(start, velocity, GRAVITY, life, rng.uniform(0.3, 1.0), numbers(y=1.0), rng.uniform(0, 3))
        contents.add("spark", panels, path)
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds), contents, _dark(rng), 0.0, 0.5)


def still(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Nothing moves: a wall or a room, bright or dark. Only the sensor's own noise is left."""
    if rng.random() < 0.4:
        return room(rng, split, seconds)._replace(ego=hold(rng, seconds))
    contents = Contents()
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng, 0.01), 0.0, 0.5)
