"""A desk with things on it, some of which are pushed."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.actors import Layer
from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import add_backdrop
from fate.simulation.art.negatives.hands import make_hand
from fate.simulation.art.negatives.paths import Push, hold, numbers
from fate.simulation.art.negatives.rooms import make_monitor
from fate.simulation.art.negatives.world import Contents, Negative, box, indoor_light, lying, upright
from fate.simulation.art.panels import Canvas, Panel, oval, vector

#: Things on a desk; those that are held out are a tin and a stack of boxes.
THINGS = Catalogue(
    {"mug": None, "books": None, "bottle": None, "monitor": None, "box": None}, {"tin": None, "stack": None}
)


def _round(rng: np.random.Generator, style: str) -> list[Panel]:
    """A mug, a bottle or a tin: an upright picture with the shading of a cylinder."""
    width, height = {"mug": (0.09, 0.1), "bottle": (0.08, 0.28), "tin": (0.08, 0.12)}[style]
    light, rows, columns = float(rng.uniform(0.08, 0.8)), 80, 64
    canvas = Canvas((-0.8, 0, 0.8, 1), columns, rows)
    if style == "mug":  # the handle
        ring = oval(0.52, 0.5, 0.2, 0.22)
        canvas.line([*ring, ring[0]], 0.08, 1.0)
    if style == "bottle":
        canvas.fill(
            ((-0.5, 1), (-0.5, 0.4), (-0.18, 0.22), (-0.18, 0), (0.18, 0), (0.18, 0.22), (0.5, 0.4), (0.5, 1)), 1.0
        )
    else:
        canvas.rect(-0.5, 0, 0.5, 1, 1.0)
    canvas.rect(-0.5, 0.5, 0.5, 0.8, float(rng.uniform(0.2, 1.0)))  # a label
    drawn = canvas.texture()
    across = np.linspace(-1.6, 1.6, columns)
    shade = 0.35 + 0.65 * np.cos(np.clip(across - rng.uniform(-0.6, 0.6), -1.5, 1.5))
    shade = shade + 0.8 * (np.abs(across - rng.uniform(-0.5, 0.5)) < 0.06)
    return upright(light * drawn.light * shade, 1.6 * width, height, y=-height / 2, alpha=drawn.alpha)


def make_thing(rng: np.random.Generator, split: Split, style: str) -> list[Panel]:
    """One of the things on a desk; it stands on y = 0."""
    if style in ("mug", "bottle", "tin"):
        return _round(rng, style)
    if style == "monitor":
        return make_monitor(rng, split, rng.uniform(0.3, 0.5))
    if style == "books":
        return box(textures.books(rng, 40, 60), rng.uniform(0.12, 0.3), 0.22, 0.16)
    wide, tall = rng.uniform(0.08, 0.25), rng.uniform(0.04, 0.2)
    lower = box(textures.draw_texture(rng, split, 48, 48), wide, tall, 0.7 * wide)
    if style == "box":
        return lower
    upper = box(float(rng.uniform(0.05, 0.8)), 0.7 * wide, tall, 0.5 * wide)
    return [*lower, *(part.scaled(1.0, vector(0, tall, 0)) for part in upper)]


def _flat_things(rng: np.random.Generator) -> list[Panel]:
    """Sheets of text, a keyboard and a cable that lie on the desk."""
    panels: list[Panel] = []
    for _ in range(int(rng.integers(0, 4))):
        panels += lying(textures.text(rng, 128, 96), 0.21, 0.3, rng.uniform(-0.5, 0.5), rng.uniform(0.3, 0.9))
    if rng.random() < 0.6:
        panels += lying(textures.keyboard(rng, 40, 120), 0.42, 0.14, rng.uniform(-0.3, 0.3), rng.uniform(0.3, 0.6))
    if rng.random() < 0.6:
        canvas, turns = Canvas((-0.6, 0, 0.6, 1.0), 128, 128), np.cumsum(rng.normal(0, 0.45, 30))
        points = np.cumsum(np.stack([0.04 * np.cos(turns), 0.04 * np.sin(turns)], 1), axis=0) + np.array([-0.4, 0.5])
        canvas.line([(float(x), float(y)) for x, y in points], 0.012, float(rng.choice([0.03, 0.7])))
        drawn = canvas.texture()
        panels += lying(drawn.light, 1.2, 1.0, 0.0, 0.7, alpha=drawn.alpha)
    return panels


def desk(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A desk before a wall: things that are pushed, or a camera that moves above it."""
    contents, height, far = Contents(), rng.uniform(0.25, 0.6), rng.uniform(1.1, 1.6)
    pushed = int(rng.integers(0, 4))
    for number in range(int(rng.integers(max(pushed, 2), 9))):
        panels = make_thing(rng, split, THINGS.choose(rng, split))
        x, z = rng.uniform(-0.6, 0.6) * (0.4 if number < pushed else 1.0), rng.uniform(0.45, far - 0.2)
        if number >= pushed:
            contents.add("thing", panels, (x, z))
            continue
        way = numbers(rng.normal(0, 0.25), rng.normal(0, 0.06), heading=rng.normal(0, 0.8))
        period, phase = rng.uniform(0.8, 3.0), rng.uniform(0, 1)
        contents.add("thing", panels, Push(numbers(x, z), numbers(x, z) + way, period, phase))
        if rng.random() < 0.6:
            hand = numbers(x, z - 0.02, y=-0.08)
            along = Push(hand, hand + way * [1, 1, 0, 0, 0], period, phase)
            arm = [
                part.scaled(np.array([1.0, -1.0, 1.0]), vector(0, 0, 0)) for part in make_hand(rng, 0.0)
            ]  # from above
            contents.add("hand", arm, along)
    table = lying(
        textures.wood(rng, 240, 320) if rng.random() < 0.7 else float(rng.uniform(0.05, 0.8)), 4.0, far, 0.0, far / 2
    )
    contents.add("desk", [*table, *_flat_things(rng)], layer=Layer.MARKING)
    add_backdrop(rng, split, contents, far, height)
    shake = rng.uniform(0.02, 0.15) if pushed == 0 else rng.choice([0.0, 0.01])
    ego = hold(rng, seconds, shake, -rng.uniform(0.15, 0.5))
    return Negative(ego, contents, indoor_light(rng), height, 0.5)
