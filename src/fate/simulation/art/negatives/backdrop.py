"""The wall behind a scene: plain, blotchy, textured, or with a window, pictures and shelves."""

from __future__ import annotations

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.actors import Layer
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.world import Contents, upright
from fate.simulation.art.panels import Canvas, Panel, smooth_noise


def plain_wall(rng: np.random.Generator, rows: int = 64, columns: int = 96) -> Float32:
    """Paint with faint blotches."""
    base = float(np.exp(rng.uniform(np.log(0.03), np.log(0.8))))
    return np.asarray(base * (0.9 + 0.2 * smooth_noise(rng, rows, columns, (5, 8))), np.float32)


def window(rng: np.random.Generator, width: float, height: float, x: float, y: float, z: float) -> list[Panel]:
    """A bright window with a frame and bars, perhaps with blinds."""
    canvas = Canvas((0, 0, 1, 1), 64, 64, light=0.6)
    frame = float(rng.choice([0.05, 0.3]))
    if rng.random() < 0.4:
        for row in np.arange(0.02, 1, 1 / int(rng.integers(8, 20))):
            canvas.rect(0, row, 1, row + 0.02, 0.3)
    else:  # roofs and trees outside
        canvas.rect(0, rng.uniform(0.4, 0.8), 1, 1, 0.25)
        canvas.disc(rng.uniform(0, 1), rng.uniform(0.5, 0.9), 0.25, 0.12)
    for bar in np.linspace(0, 1, int(rng.integers(2, 5))):
        canvas.rect(bar - 0.03, 0, bar + 0.03, 1, frame)
    for bar in (0.0, 1.0):
        canvas.rect(0, bar - 0.04, 1, bar + 0.04, frame)
    return upright(canvas.texture().light, width, height, x, y, z, emission=float(rng.uniform(0.3, 1.5)))


def wall_pieces(rng: np.random.Generator, split: Split, width: float, height: float, z: float) -> list[Panel]:
    """Windows, pictures, shelves and notices side by side on a wall whose middle is at height 0."""
    panels: list[Panel] = []
    x = -width / 2 + rng.uniform(0, 0.1) * width
    while x < width / 2:
        wide, tall = rng.uniform(0.12, 0.3) * width, rng.uniform(0.3, 0.65) * height
        middle, y = x + wide / 2, rng.uniform(-0.15, 0.1) * height
        style = rng.choice(["window", "shelf", "picture", "none"], p=[0.2, 0.25, 0.35, 0.2])
        if style == "window":
            panels += window(rng, wide, tall, middle, y, z)
        elif style == "shelf":
            panels += upright(textures.books(rng, 120, 100), wide, 1.5 * tall, middle, y, z)
        elif style == "picture":
            picture = textures.draw_texture(rng, split, 96, 96)
            picture[:3], picture[-3:], picture[:, :3], picture[:, -3:] = 0.05, 0.05, 0.05, 0.05
            panels += upright(picture, 0.7 * wide, 0.7 * tall, middle, y, z)
        x += wide * rng.uniform(1.1, 1.5)
    return panels


def add_backdrop(rng: np.random.Generator, split: Split, contents: Contents, z: float, camera_height: float) -> None:
    """Put a wall at a distance ``z`` behind everything; it fills the view of a wide lens."""
    width, height = 4.4 * z, 3.4 * z
    style = rng.choice(["plain", "texture", "pieces"], p=[0.45, 0.2, 0.35])
    light = textures.draw_texture(rng, split, 250, 320) if style == "texture" else plain_wall(rng)
    panels = upright(light, width, height)
    if style == "pieces":
        panels += wall_pieces(rng, split, 0.6 * width, 0.35 * height, 0.0)
    panels = [panel.scaled(1.0, np.array([0.0, camera_height, 0.0])) for panel in panels]
    contents.add("wall", panels, (0.0, z), Layer.MARKING, reach=10.0)
