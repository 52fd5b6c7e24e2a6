"""What is before the lens: a dashboard and its reflection, a wiper, drops, rain, snow, a branch.

All of it is in the camera's frame (``Layer.LENS``): x right, y down, z ahead, metres.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fate.simulation.art.actors import Actor, Falling, Layer, Straight, Swaying
from fate.simulation.art.borders import make_foliage
from fate.simulation.art.panels import Body, Canvas, Panel, Swing, Texture, smooth_noise, vector
from fate.simulation.art.variety import Variety

_GLASS = 0.8  # m from the lens to the windscreen
_STREAKS = {"rain": 110, "snow": 220}  # at most


def put_before_lens(rng: np.random.Generator, variety: Variety) -> Iterator[Actor]:
    """Everything before the lens, nearest first."""
    still = Straight(0.0, 0.0)
    if variety.dashboard > 0:
        yield Actor(_dashboard(rng, variety.dashboard), still, Layer.LENS)
    if variety.wiper_hz > 0:
        yield Actor(_wiper(rng), Swaying(0.0, 0.0, variety.wiper_hz, float(rng.uniform(0, 6.28))), Layer.LENS)
    if variety.drops:
        yield from _drops(rng, variety.drops)
    if variety.dashboard > 0 and rng.random() < 0.5:
        yield Actor(_reflection(rng), still, Layer.LENS)
    if variety.near_branch:
        yield _branch(rng)
    if variety.weather != "dry":
        yield from _precipitation(rng, variety)


def _dashboard(rng: np.random.Generator, edge: float) -> Body:
    """The upper edge of a dashboard, bent, and dark below."""
    canvas = Canvas((-1.0, -0.15, 1.0, 1.0), 128, 64)
    x = np.linspace(-1.0, 1.0, 17)
    bend, slope, light = rng.uniform(0.0, 0.25), rng.normal(0, 0.05), float(rng.uniform(0.02, 0.12))
    canvas.fill(
        [*((float(a), float(bend * a * a + slope * a)) for a in x), (1.0, 1.0), (-1.0, 1.0)], (2 * light, light)
    )
    corner = vector(-1.6 * _GLASS, (edge - 0.15) * _GLASS, _GLASS)
    panel = Panel(canvas.texture(), corner, vector(3.2 * _GLASS, 0, 0), vector(0, 1.15 * _GLASS, 0), faces="both")
    return Body("dashboard", "scenery", (panel,), 0.0, 1.0, 1.0)


def _reflection(rng: np.random.Generator) -> Body:
    """A faint picture of the dashboard in the glass."""
    alpha = float(rng.uniform(0.03, 0.15)) * smooth_noise(rng, 32, 32, (5, 4)) * np.linspace(0, 1, 32)[:, None]
    texture = Texture.stain(float(rng.uniform(0.1, 0.4)), alpha)
    corner, down = vector(-1.6 * _GLASS, -0.6 * _GLASS, _GLASS), vector(0, 1.6 * _GLASS, 0)
    panel = Panel(texture, corner, vector(3.2 * _GLASS, 0, 0), down, faces="both")
    return Body("reflection", "scenery", (panel,), 0.0, 1.0, 1.0)


def _wiper(rng: np.random.Generator) -> Body:
    """An arm with its blade that turns about a point below the picture, by up to 50° to either side."""
    long, wide = _GLASS * float(rng.uniform(1.1, 1.5)), 0.05
    canvas = Canvas((-wide / 2, long, wide / 2, 0.0), 8, 32)
    canvas.rect(-0.008, 0.5 * long, 0.008, 0.0, 0.06)
    canvas.rect(-0.5 * wide, long, 0.0, 0.25 * long, 0.02)
    canvas.rect(0.0, long, 0.006, 0.25 * long, 0.10)
    x, y = float(rng.uniform(-0.6, 0.6)) * _GLASS, float(rng.uniform(0.6, 0.9)) * _GLASS
    corner = vector(x - wide / 2, y - long, _GLASS)
    swing = Swing(vector(x, y, _GLASS), float(rng.uniform(0.7, 0.95)))
    panel = Panel(canvas.texture(), corner, vector(wide, 0, 0), vector(0, long, 0), faces="both", swing=swing)
    return Body("wiper", "scenery", (panel,), 0.0, wide, long)


def _drops(rng: np.random.Generator, count: int) -> Iterator[Actor]:
    """Drops on the glass: bright below and dark above, as they show the street upside down; some run down."""
    textures = []
    for _ in range(3):
        canvas = Canvas((-1.0, 1.0, 1.0, -1.0), 16, 16)
        canvas.disc(0.0, 0.0, 0.95, (0.1, 0.7), float(rng.uniform(0.4, 0.7)))
        textures.append(canvas.texture())
    for _ in range(count):
        size = float(rng.uniform(0.004, 0.02))
        corner, tall = vector(-size / 2, -size / 2, _GLASS), float(rng.uniform(1.0, 1.6)) * size
        panel = Panel(textures[int(rng.integers(3))], corner, vector(size, 0, 0), vector(0, tall, 0), faces="both")
        body = Body("drop", "scenery", (panel,), 0.0, size, size)
        x, y = float(rng.uniform(-0.9, 0.9)) * _GLASS, float(rng.uniform(-0.7, 0.7)) * _GLASS
        if rng.random() < 0.15:
            speed, way = float(rng.uniform(0.05, 0.4)), 1.6 * _GLASS
            path = Falling((x, -way / 2), (0.0, speed), way / speed, float(rng.uniform(0, way / speed)))
            yield Actor(body, path, Layer.LENS)
        else:
            yield Actor(body, Straight(x, y), Layer.LENS)


def _branch(rng: np.random.Generator) -> Actor:
    """A branch near the lens that hangs into the picture from above or from a side, and sways."""
    far = float(rng.uniform(0.8, 2.0))
    leaves = make_foliage(rng, far * float(rng.uniform(0.5, 1.2)), far * float(rng.uniform(0.3, 0.7)), 0.1).panels[-1]
    hung = vector(0, leaves.origin[1], -far)  # its upper edge comes to the height of the lens
    moved = replace(leaves.scaled(1.0, about=hung), swing=Swing(vector(0, 0, far), float(rng.uniform(0.02, 0.1))))
    body = Body("branch", "scenery", (moved,), 0.0, 1.0, 1.0)
    x, y = far * float(rng.uniform(-0.8, 0.8)), far * float(rng.uniform(-0.75, -0.35))
    # Straight paths take x and z; before the lens z is downwards.
    return Actor(body, Swaying(x, y, float(rng.uniform(0.4, 1.5)), float(rng.uniform(0, 6.28))), Layer.LENS)


def _precipitation(rng: np.random.Generator, variety: Variety) -> Iterator[Actor]:
    """Rain as long streaks, snow as slow flakes, at 1.5 to 8 m; from a car they come from the middle of the picture."""
    rain = variety.weather == "rain"
    alpha = np.outer(np.sin(np.linspace(0.1, np.pi - 0.1, 16)), [0.6, 1.0, 0.6]) * (0.5 if rain else 0.9)
    texture = Texture.stain(float(rng.uniform(0.5, 0.9)), alpha)
    wind = float(rng.normal(0, 1.0))
    for _ in range(int(_STREAKS[variety.weather] * rng.uniform(0.3, 1.0))):
        far = float(rng.uniform(3.0, 8.0) if rain else rng.uniform(1.5, 5.0))
        aside = float(rng.uniform(-0.9, 0.9))
        fall = float(rng.uniform(6, 9)) if rain else float(rng.uniform(0.8, 2.0))
        sideways = wind + (aside * fall * rng.uniform(0.5, 1.5) if variety.mount == "car" else 0.0)
        wide, long = (0.006 * far, 0.03 * fall) if rain else (0.04, 0.04)
        along = np.array([sideways, fall]) / np.hypot(sideways, fall)
        down, across = vector(along[0] * long, along[1] * long, 0), vector(along[1] * wide, -along[0] * wide, 0)
        body = Body(
            "streak", "scenery", (Panel(texture, vector(0, 0, far), across, down, faces="both"),), 0.0, 0.1, 0.1
        )
        way = 2.0 * far
        period = way / fall * float(rng.uniform(1.0, 1.5))
        start = far * aside - 0.5 * sideways * way / fall, -0.5 * way
        yield Actor(body, Falling(start, (sideways, fall), period, float(rng.uniform(0, period))), Layer.LENS)
