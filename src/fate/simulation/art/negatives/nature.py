"""Outdoors without a street: trees in the wind, water, smoke, birds and aeroplanes in the sky."""

from __future__ import annotations

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.actors import Layer, Straight
from fate.simulation.art.catalogue import Split
from fate.simulation.art.daylight import make_lighting
from fate.simulation.art.negatives.backdrop import add_backdrop
from fate.simulation.art.negatives.paths import Flight, hold, numbers, sway
from fate.simulation.art.negatives.solids import Solid, shade_solids
from fate.simulation.art.negatives.world import Contents, Negative, indoor_light, lying, turning, upright
from fate.simulation.art.panels import Canvas, Panel, Swing, Texture, oval, smooth_noise, vector
from fate.simulation.art.roadside import make_skyline, make_tree


def make_branch(rng: np.random.Generator) -> Texture:
    """A branch with leaves: it grows up from the middle of the lower edge."""
    canvas, light = Canvas((-1, -2, 1, 0), 112, 112), float(rng.uniform(0.06, 0.2))
    bend, size = rng.normal(0, 0.25), rng.uniform(0.07, 0.18)
    stem = [(bend * (y / 2) ** 2, y) for y in np.linspace(0, -1.9, 8)]
    canvas.line([(float(x), float(y)) for x, y in stem], 0.03, 0.05)
    for _ in range(int(rng.integers(40, 90))):
        y = -1.9 * np.sqrt(rng.uniform(0.02, 1))
        x, angle = bend * (y / 2) ** 2 + rng.normal(0, 0.28), rng.uniform(0, np.pi)
        cos, sin = np.cos(angle), np.sin(angle)
        leaf = [(x + cos * a - sin * b, y + sin * a + cos * b) for a, b in oval(0, 0, size, 0.45 * size, 8)]
        canvas.fill(leaf, light * float(rng.uniform(0.3, 2.0)))
    return canvas.texture()


def trees(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Branches close to the camera and trees behind them, all moved by the wind."""
    contents, wind = Contents(), rng.uniform(0.3, 1.5)
    drawn = [make_branch(rng) for _ in range(5)]
    near = rng.uniform(0.8, 3.0)
    for _ in range(int(rng.integers(10, 28))):
        texture, size, lean = drawn[int(rng.integers(5))], rng.uniform(0.4, 1.2), rng.normal(0, 0.5)
        panels = upright(texture.light, size, size, y=-size / 2, alpha=texture.alpha)
        middle = numbers(rng.normal(0, 0.8) * near, near * rng.uniform(0.8, 1.5), y=rng.uniform(-0.5, 0.9) * near)
        reach = numbers(0.02 * wind, 0, 0.1 * wind, 0.12 * wind, 0.01 * wind)
        path = sway(rng, middle, reach, rng.uniform(0.3, 1.2))
        contents.add("branch", turning(panels, float(lean)), path)
    for _ in range(int(rng.integers(2, 8))):
        tree = make_tree(rng)
        middle = numbers(rng.uniform(-15, 15), rng.uniform(9, 30), y=1.5)
        contents.add("tree", turning(list(tree.panels)), sway(rng, middle, numbers(0, 0, 0, 0.015 * wind), 0.5))
    contents.add("meadow", lying(float(rng.uniform(0.06, 0.16)), 400, 150, 0, 76, y=1.5), layer=Layer.MARKING)
    lighting = make_lighting(rng)[0]
    ego = hold(rng, seconds, rng.choice([0.0, 0.0, 0.02]), rng.uniform(-0.05, 0.3))
    return Negative(ego, contents, lighting, 0.0, 0.5)


def _ripples(rng: np.random.Generator, share: float, light: float) -> tuple[Float32, Float32]:
    """Light and coverage of crests that lie across the view."""
    crests = 0.6 * smooth_noise(rng, 128, 128, (60, 12)) + 0.4 * smooth_noise(rng, 128, 128, (30, 20))
    border = np.clip(3 - 3 * np.abs(np.linspace(-1, 1, 128)), 0, 1)
    alpha = np.clip((crests - (1 - share)) * 8, 0, 1) * border[:, None] * border[None, :]
    return np.full_like(alpha, light), alpha.astype(np.float32)


def water(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Waves and glints on water that fills the lower part of the view, or all of it."""
    contents, rough, height = Contents(), rng.uniform(0.3, 1.2), rng.uniform(0.8, 2.5)
    contents.add("water", lying(float(rng.uniform(0.04, 0.15)), 2000, 800, 0, 400), layer=Layer.KERB)
    for number in range(10):
        size = 1.6 * height * 1.9 ** (number // 2)  # the further, the larger
        light, alpha = _ripples(rng, rng.uniform(0.35, 0.6), float(rng.choice([0.02, 0.3, 0.9])))
        reach = size * numbers(0.05 * rough, 0.07 * rough, 0.0, 0, 0.004 * rough)
        path = sway(rng, numbers(rng.normal(0, 0.1) * size, 0.75 * size), reach, rng.uniform(0.2, 0.5))
        panels = lying(light, 2.4 * size, size, alpha=alpha)
        contents.add("waves", panels, path, Layer.MARKING, reach=float(-1000 * number))
    skyline = make_skyline(rng)
    contents.add("shore", upright(skyline.light, 1800, 97, y=-45, z=800, alpha=skyline.alpha), layer=Layer.FAR)
    ego = hold(rng, seconds, rng.choice([0.0, 0.02]), -rng.uniform(0.1, 0.6))
    return Negative(ego, contents, make_lighting(rng)[0], height, 0.5)


def smoke(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Smoke or steam that rises before a wall."""
    contents, speed, light = Contents(), rng.uniform(0.2, 1.0), float(rng.uniform(0.3, 0.9))
    middle, wide = rng.normal(0, 0.3), rng.uniform(0.05, 0.4)
    for number in range(14):
        size = rng.uniform(0.4, 1.2)
        v, u = np.mgrid[:96, :96] / 47.5 - 1
        clouds = 0.6 * smooth_noise(rng, 96, 96, (5, 5)) + 0.4 * smooth_noise(rng, 96, 96, (14, 12))
        alpha = np.clip((clouds - 0.38) * 4, 0, 1) * np.clip(1.3 - 1.3 * np.hypot(u, v), 0, 1) * rng.uniform(0.3, 0.9)
        shade = light * (0.6 + 0.4 * smooth_noise(rng, 96, 96, (6, 6)))
        panels = turning(upright(shade, size, size, alpha=alpha.astype(np.float32)))
        velocity = numbers(rng.normal(0, 0.1), gait=rng.normal(0, 0.6), y=-speed * rng.uniform(0.7, 1.3))
        start = numbers(middle + rng.normal(0, wide), rng.uniform(1.2, 1.5), y=2.4)
        life = 5.0 / -velocity[4]
        path = Flight(start, velocity, 0.0, life, 0.2 * life, numbers(x=6.0), 1.2 * life * (number + rng.random()) / 14)
        contents.add("smoke", panels, path)
    add_backdrop(rng, split, contents, 2.0, 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng, 0.3), 0.0, 0.5)


def _bird(rng: np.random.Generator, size: float) -> list[Panel]:
    """A bird of this wing span: a body between two wings that beat."""
    light = float(rng.choice([0.03, 0.1, 0.6]))
    body = shade_solids([Solid(-0.18, 0, 0.05, 0.18, 0, 0.03, light)], (-0.25, -0.1, 0.25, 0.1), 40, 16, (0, -1, 0.5))
    panels = upright(body.light, 0.5, 0.2, alpha=body.alpha)
    for side in (-1.0, 1.0):
        wing = Canvas((0.0, -0.15, side * 0.55, 0.15), 40, 24)
        wing.fill(((0, -0.08), (side * 0.25, -0.13), (side * 0.5, 0.05), (side * 0.22, 0.02), (0, 0.06)), light)
        drawn = wing.texture()
        corner, across, down = vector(0, -0.15, 0), vector(side * 0.55, 0, 0), vector(0, 0.3, 0)
        swing = Swing(vector(0, 0, 0), 0.6)  # the axis of a mirrored wing is mirrored too
        panels.append(Panel(drawn, corner, across, down, "both", swing=swing))
    return [part.scaled(size, vector(0, 0, 0)) for part in panels]


def _aeroplane(rng: np.random.Generator, length: float) -> list[Panel]:
    """An aeroplane from the side."""
    light = float(rng.choice([0.1, 0.5, 0.8]))
    parts = [
        Solid(-0.45, 0, 0.03, 0.42, 0, 0.045, light),
        Solid(-0.46, -0.13, 0.012, -0.36, -0.01, 0.025, light),
        Solid(-0.1, 0.02, 0.02, -0.25, 0.1, 0.01, 0.7 * light, 0.05),
        Solid(-0.02, 0.06, 0.02, 0.06, 0.06, 0.022, 0.5 * light, 0.04),
    ]
    drawn = shade_solids(parts, (-0.5, -0.16, 0.5, 0.14), 120, 36, (0.2, -1, 0.4))
    panels = upright(drawn.light, 1, 0.3, y=-0.01, alpha=drawn.alpha)
    return [part.scaled(length, vector(0, 0, 0)) for part in panels]


def sky(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Birds or an aeroplane before clouds; the camera may follow them."""
    contents, rise = Contents(), rng.uniform(0.1, 0.6)
    for number in range(int(rng.integers(0, 5))):
        clouds = 0.6 * smooth_noise(rng, 96, 128, (4, 6)) + 0.4 * smooth_noise(rng, 96, 128, (14, 20))
        edge = np.clip(2 - 2 * np.abs(np.linspace(-1, 1, 96)), 0, 1)[:, None] * np.clip(
            2 - 2 * np.abs(np.linspace(-1, 1, 128)), 0, 1
        )
        alpha = (np.clip((clouds - 0.45) * 5, 0, 1) * edge * 0.8).astype(np.float32)
        panels = upright(0.5 + 0.5 * clouds, 500, 200, 150.0 * number - 300, -rng.uniform(0, 400), 500, alpha=alpha)
        path = sway(rng, numbers(), numbers(5.0), 0.05, numbers(rng.normal(0, 5)))
        contents.add("cloud", panels, path, Layer.LAND, reach=float(number))
    birds = rng.random() < 0.65
    for _ in range(int(rng.integers(1, 12)) if birds else 1):
        away, side = rng.uniform(4, 40) if birds else rng.uniform(40, 120), float(rng.choice([-1, 1]))
        panels = _bird(rng, rng.uniform(0.3, 1.2)) if birds else _aeroplane(rng, rng.uniform(8, 25))
        speed, high = rng.uniform(2, 9) if birds else rng.uniform(15, 60), away * np.tan(rise + rng.normal(0, 0.12))
        parts = [part.scaled(np.array([side, 1.0, 1.0]), vector(0, high, 0)) for part in panels]
        x = -side * speed * rng.uniform(0, seconds) + rng.normal(0, 0.2) * away
        contents.add(
            "flyer", parts, Straight(x, away, side * np.pi / 2, speed, stride=speed / rng.uniform(2, 7)), facing=True
        )
    ego = hold(rng, seconds, rng.choice([0.0, 0.02, 0.08]), rise)
    return Negative(ego, contents, make_lighting(rng)[0], 1.6, 0.5)
