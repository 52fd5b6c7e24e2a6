"""Textured ground: asphalt with cracks and patches, wet asphalt, cobbles, gravel, sand; and the shadows of trees on it.

A tile is about 5 m a side with 128 × 128 texels, so that grain gives events where the road streams past close by.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.actors import Actor, Layer, Straight
from fate.simulation.art.panels import MAX_TEXELS, Body, Canvas, Panel, Point, Texture, smooth_noise, vector
from fate.simulation.art.roadside import lay_on_ground
from fate.simulation.art.variety import Ground

_LENGTH = 6.0  # m of one tile along the street
_WIDTH = 5.0  # m at most, across it
_TILES = 4  # different ones in a street


def pave(
    rng: np.random.Generator, ground: Ground, grain: float, edges: tuple[float, float], ends: tuple[float, float]
) -> Iterator[Actor]:
    """Tiles over the road between the ``edges`` x and the ``ends`` z, with a contrast of ``grain``."""
    (left, right), (begin, end) = edges, ends
    columns = int(np.ceil((right - left) / _WIDTH))
    wide = (right - left) / columns
    light = float(rng.uniform(0.1, 0.2)) if ground != "sand" else float(rng.uniform(0.25, 0.4))
    size = wide + 0.05, _LENGTH + 0.05  # neighbours overlap
    textures = [draw_ground(rng, ground, light, grain) for _ in range(_TILES)]
    tiles = [lay_on_ground("paving", texture, *size) for texture in textures]
    # Far away a pixel is longer than the overlap: what shows between two tiles has their mean light.
    under = Texture.plain(np.mean([texture.light for texture in textures]))
    panel = Panel(under, vector(left, 0, 700), vector(right - left, 0, 0), vector(0, 0, -1400))
    yield Actor(Body("paving", "scenery", (panel,), 700.0, right - left, 0.0), Straight(0.0, 0.0), Layer.KERB)
    for column in range(columns):
        for z in np.arange(begin, end, _LENGTH):
            path = Straight(left + (column + 0.5) * wide, float(z), float(rng.choice([0.0, np.pi])))
            yield Actor(tiles[int(rng.integers(_TILES))], path, Layer.PAVING)


def draw_ground(rng: np.random.Generator, ground: Ground, light: float, grain: float) -> Texture:
    """One tile, 128 × 128, of a mean light and a contrast."""
    size = MAX_TEXELS
    coarse, fine = smooth_noise(rng, size, size, (6, 5)), smooth_noise(rng, size, size, (40, 40))
    speckle = rng.normal(0.0, 1.0, (size, size)).astype(np.float32)
    if ground == "cobbles":
        return Texture.plain(np.clip(light * _cobbles(rng, grain) * (0.8 + 0.4 * coarse), 0.02, 0.9))
    if ground == "gravel":
        factor = 1 + grain * (1.2 * (fine - 0.5) + 0.7 * speckle) + 0.5 * (coarse - 0.5)
    elif ground == "sand":
        ripples = np.sin(np.arange(size)[:, None] / 3.0 + 6 * smooth_noise(rng, size, size, (4, 4)))
        factor = 1 + grain * (0.25 * ripples + 0.2 * speckle + 0.6 * (coarse - 0.5))
    else:
        factor = 1 + grain * (0.45 * speckle + 0.8 * (fine - 0.5) + 0.6 * (coarse - 0.5))
    canvas = Canvas((0.0, 0.0, 1.0, 1.0), size, size, light=light)
    canvas.tint(np.clip(factor, 0.15, 3.0))
    if ground in ("asphalt", "wet"):
        _damage(rng, canvas, light, grain)
    if ground == "wet":
        canvas.tint(0.5)
        rise = np.sin(np.pi * (np.arange(size) + 0.5) / size)  # no puddle ends at the border of a tile
        depth = smooth_noise(rng, size, size, (4, 3)) + 0.2 * smooth_noise(rng, size, size, (16, 16))
        cover = np.clip((depth * np.sqrt(np.outer(rise, rise)) - rng.uniform(0.5, 0.9)) * 8, 0.0, 0.8)
        base = canvas.texture().light  # puddles show the sky, and no grain
        return Texture.plain(base * (1 - cover) + cover * float(rng.uniform(0.1, 0.25)))
    return canvas.texture()


def _damage(rng: np.random.Generator, canvas: Canvas, light: float, grain: float) -> None:
    """Cracks, seams sealed with tar, and mended places, drawn over a tile."""
    for _ in range(rng.poisson(1.2)):
        x, y, wide, tall = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.1, 0.5), rng.uniform(0.1, 0.6)
        canvas.rect(x, y, x + wide, y + tall, light * float(rng.choice([0.6, 0.75, 1.3])), min(2 * grain, 0.8))
    for _ in range(rng.poisson(2.0)):
        along = rng.random() < 0.5
        way = np.cumsum(rng.normal(0, 0.03, 9)) + rng.uniform(0, 1)
        points: list[Point] = [(float(a), float(b)) for a, b in zip(way, np.linspace(0, 1, 9), strict=True)]
        dark = light * float(rng.uniform(0.25, 0.6))
        canvas.line(points if along else [(b, a) for a, b in points], float(rng.uniform(0.006, 0.02)), dark)


def _cobbles(rng: np.random.Generator, grain: float) -> Float32:
    """Stones in offset rows with dark joints, [128, 128], mean about 1."""
    size, stone = MAX_TEXELS, 8
    rows, columns = np.indices((size, size))
    shifted = columns + (rows // stone % 2) * (stone // 2)
    each = rng.uniform(1 - grain, 1 + grain, (size // stone, size // stone + 1))
    value = each[rows // stone, shifted // stone] * (1 + 0.2 * grain * rng.normal(0, 1, (size, size)))
    joint = (rows % stone == 0) | (shifted % stone == 0)
    return np.where(joint, 1 - min(0.3 + grain, 0.8), value).astype(np.float32)


def cast_tree_shadows(
    rng: np.random.Generator, share: float, edges: tuple[float, float], ends: tuple[float, float]
) -> tuple[list[Actor], tuple[Point, ...]]:
    """Dappled shadows on the ground over a share of the street, and the shade (z, share) on what passes."""
    bodies = []
    for _ in range(4):
        size = 96
        spots = 0.6 * smooth_noise(rng, size, size, (14, 14)) + 0.4 * smooth_noise(rng, size, size, (34, 34))
        offset = np.abs((np.arange(size) + 0.5) / size * 2 - 1)
        edge = 1.15 - np.sqrt(offset[:, None] ** 2 + offset[None, :] ** 2) - 0.5 * smooth_noise(rng, size, size, (9, 9))
        alpha = rng.uniform(0.55, 0.75) * np.clip(edge * 9, 0, 1) * np.clip((0.58 - spots) * 8, 0, 1)
        wide, long = rng.uniform(5, 10), rng.uniform(4, 9)
        bodies.append(lay_on_ground("tree shadow", Texture.stain(0.02, alpha), wide, long))
    actors, shade = [], [(ends[0] - 1.0, 0.0)]
    z = ends[0]
    while z < ends[1]:
        body = bodies[int(rng.integers(len(bodies)))]
        if rng.random() < share:
            at = z + body.length / 2
            actors.append(Actor(body, Straight(rng.uniform(*edges), at), Layer.SHADOW))
            inside = np.arange(z, z + body.length, 0.6)  # leaves let spots of sun through
            shade += [(float(each), float(rng.choice([0.15, 0.6, 0.85]))) for each in inside]
            shade.append((z + body.length, 0.0))
            z += body.length * float(rng.uniform(0.5, 0.9))
        else:
            z += float(rng.uniform(2, 7))
    return actors, tuple(sorted(shade))
