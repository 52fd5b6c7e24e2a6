"""What stands close to the kerb or over the road: rails, fences, barriers, foliage, dustbins, gantries, bridges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fate.simulation.art.actors import Actor, Layer, Straight, Swaying
from fate.simulation.art.panels import Body, Canvas, Panel, Swing, Texture, smooth_noise, vector
from fate.simulation.art.variety import Border

_TEXELS = 128


def line_kerb(
    rng: np.random.Generator, border: Border, side: float, away: float, ends: tuple[float, float]
) -> Iterator[Actor]:
    """A border along one side of the street, ``away`` metres from its middle, with gaps."""
    if border == "none":
        return
    bodies = [make_border(rng, border) for _ in range(2)]
    z, end = ends
    while z < end:
        body = bodies[int(rng.integers(2))]
        if rng.random() < 0.9:
            path = Straight(side * away, z + body.width / 2, -side * np.pi / 2)
            yield Actor(body, path, reach=body.width / 2)
        z += body.width + (0.0 if rng.random() < 0.95 else float(rng.uniform(3, 12)))


def make_border(rng: np.random.Generator, border: Border) -> Body:
    """A piece of a border, 4 to 12 m long, in the plane z = 0 of its frame; seen from both sides."""
    length, height = {
        "guard rail": (8.0, 0.75),
        "fence": (6.0, 1.5),
        "railing": (4.0, 1.1),
        "noise barrier": (12.0, float(rng.uniform(2.5, 4.0))),
        "hedge": (8.0, float(rng.uniform(0.8, 2.2))),
        "bollards": (6.0, 0.9),
    }[border]
    light = float(rng.uniform(0.15, 0.5))
    canvas = Canvas((0.0, height, length, 0.0), _TEXELS, 64)
    if border == "guard rail":
        for z in (1.0, 3.0, 5.0, 7.0):
            canvas.block(z - 0.07, height - 0.05, z + 0.07, 0.0, 0.7 * light)
        for top, shade in ((0.75, 1.2), (0.65, 0.6), (0.56, 1.1), (0.5, 0.5)):
            canvas.block(0.0, top, length, top - 0.1, min(shade * light, 0.8))
    elif border == "fence":
        for z in np.arange(0.0, length, 0.25):
            canvas.block(z, height, z + 0.12, 0.0, light * float(rng.uniform(0.85, 1.1)))
        for y in (0.3, height - 0.2):
            canvas.block(0.0, y + 0.05, length, y - 0.05, 0.8 * light)
    elif border == "railing":
        for z in np.arange(0.0, length, 0.125):
            canvas.block(z, height, z + 0.03, 0.08, light)
        for y in (height, 0.12):
            canvas.block(0.0, y, length, y - 0.05, light)
    elif border == "noise barrier":
        canvas.block(0.0, height, length, 0.0, (light, 0.8 * light))
        canvas.tint(0.8 + 0.4 * smooth_noise(rng, canvas.rows, canvas.columns, (6, 30)))
        for z in np.arange(0.0, length, 4.0):
            canvas.block(z, height, z + 0.25, 0.0, 0.5 * light)
        for y in np.arange(0.5, height, 0.5):
            canvas.block(0.0, y + 0.05, length, y, 0.75 * light)
    elif border == "hedge":
        return Body("hedge", "scenery", (_leaves(rng, length, height, 0.0, rough=0.15),), 0.0, length, height)
    else:
        for z in np.arange(0.75, length, 1.5):
            canvas.block(z - 0.07, height, z + 0.07, 0.0, light)
            canvas.block(z - 0.07, height - 0.1, z + 0.07, height - 0.2, min(1.8 * light, 0.8))
    panel = Panel(
        canvas.texture(), vector(-length / 2, -height, 0), vector(length, 0, 0), vector(0, height, 0), faces="both"
    )
    return Body(border, "scenery", (panel,), 0.0, length, height)


def plant(
    rng: np.random.Generator, density: float, side: float, kerb: float, ends: tuple[float, float]
) -> Iterator[Actor]:
    """Bushes along one kerb, and low crowns that reach over the road; many sway in the wind."""
    bushes = [make_foliage(rng, float(rng.uniform(1.0, 3.5)), float(rng.uniform(0.8, 3.0)), 0.0) for _ in range(4)]
    crowns = [
        make_foliage(rng, float(rng.uniform(2.5, 6)), float(rng.uniform(1.5, 3.5)), float(rng.uniform(2.0, 3.5)))
        for _ in range(3)
    ]
    gap = 2.0 + 30.0 * (1 - density) ** 2
    z = ends[0] + float(rng.exponential(gap))
    while z < ends[1]:
        hanging = rng.random() < 0.3
        body = crowns[int(rng.integers(3))] if hanging else bushes[int(rng.integers(4))]
        beside = 0.4 if hanging else 0.3 + body.width / 2
        x = side * (kerb + beside + float(rng.uniform(0.0, 1.0)))
        windy = rng.random() < 0.4
        yield Actor(body, Swaying(x, z, rng.uniform(0.3, 1.5), rng.uniform(0, 6.28)) if windy else Straight(x, z))
        z += float(rng.exponential(gap)) + 0.4


def make_foliage(rng: np.random.Generator, width: float, height: float, lift: float) -> Body:
    """A bush, or with ``lift`` a crown on a stem of that height; a billboard that sways on a swaying path."""
    panel = _leaves(rng, width, height, lift, rough=0.45)
    swing = Swing(vector(0, 0, 0), float(rng.uniform(0.01, 0.06)))
    swaying = Panel(panel.texture, panel.origin, panel.across, panel.down, "both", swing=swing)
    stem = Canvas((-0.08, lift + 0.6 * height, 0.08, 0.0), 4, 8, light=0.06).upright()
    return Body("foliage", "scenery", (stem, swaying) if lift else (swaying,), width, width, lift + height, facing=True)


def _leaves(rng: np.random.Generator, width: float, height: float, lift: float, rough: float) -> Panel:
    """Leaves in sun and shade with gaps between them, 96 × 128 texels, with a ragged edge."""
    rows, columns = 96, _TEXELS
    v, u = (np.arange(rows) + 0.5)[:, None] / rows, (np.arange(columns) + 0.5)[None, :] / columns
    to_edge = np.minimum(np.minimum(u, 1 - u) * width / height, v if lift == 0 else np.minimum(v, 1 - v)) * 2
    edge = to_edge - rough * smooth_noise(rng, rows, columns, (7, 9)) - 0.3 * smooth_noise(rng, rows, columns, (24, 32))
    gaps = smooth_noise(rng, rows, columns, (40, 52))
    alpha = np.clip((edge + 0.1) * 12, 0, 1) * np.clip((float(rng.uniform(0.65, 0.9)) - gaps) * 12, 0, 1)
    clumps = 0.5 * smooth_noise(rng, rows, columns, (8, 10)) + smooth_noise(rng, rows, columns, (44, 60)) ** 2
    light = float(rng.uniform(0.07, 0.2)) * (0.25 + 1.5 * clumps) * (1.2 - 0.6 * v)
    texture = Texture(np.clip(light, 0, 1).astype(np.float32), alpha.astype(np.float32))
    return Panel(
        texture, vector(-width / 2, -lift - height, 0), vector(width, 0, 0), vector(0, height, 0), faces="both"
    )


def make_bin(rng: np.random.Generator) -> Body:
    """A dustbin, a billboard."""
    width, height = float(rng.uniform(0.5, 1.2)), float(rng.uniform(0.9, 1.4))
    light = float(rng.uniform(0.03, 0.3))
    canvas = Canvas((-width / 2, height, width / 2, 0.0), 32, 40, light=light)
    canvas.block(-width / 2, height, width / 2, height - 0.12, min(1.6 * light, 0.8))
    canvas.block(-0.3 * width, 0.6 * height, 0.3 * width, 0.4 * height, min(2.5 * light, 0.8))
    return Body("dustbin", "scenery", (canvas.upright(),), width, width, height, facing=True)


def make_gantry(rng: np.random.Generator, width: float) -> Body:
    """A beam over the road with signs on it, between two posts."""
    height, half, steel = float(rng.uniform(5.5, 7)), width / 2, float(rng.uniform(0.2, 0.5))
    canvas = Canvas((-half, height, half, 0.0), _TEXELS, 96)
    canvas.block(-half, height - 0.6, half, height - 0.9, steel)
    canvas.block(-half, height - 1.4, half, height - 1.6, steel)
    for x in (-half, half - 0.3):
        canvas.block(x, height, x + 0.3, 0.0, 0.8 * steel)
    for x in rng.uniform(-0.8 * half, 0.4 * half, int(rng.integers(1, 4))):
        wide = float(rng.uniform(1.5, 3.5))
        canvas.block(x, height, x + wide, height - 1.9, 0.6)
        canvas.block(x + 0.15, height - 0.15, x + wide - 0.15, height - 1.75, float(rng.choice([0.08, 0.15])))
        for k in range(3):
            canvas.block(
                x + 0.4, height - 0.5 * k - 0.35, x + wide * rng.uniform(0.5, 0.85), height - 0.5 * k - 0.55, 0.6
            )
    return Body("gantry", "scenery", (canvas.upright(),), 0.5, width, height)


def make_bridge(rng: np.random.Generator, width: float) -> Body:
    """A bridge across the road: two faces with a railing, its underside, and piers at both sides."""
    low, high, deep = float(rng.uniform(4.5, 5.5)), float(rng.uniform(6.2, 7.2)), float(rng.uniform(5, 12))
    light, half = float(rng.uniform(0.2, 0.45)), width / 2
    canvas = Canvas((-30.0, high, 30.0, 0.0), _TEXELS, 96)
    canvas.block(-30.0, high - 0.9, 30.0, low, (light, 0.8 * light))
    canvas.tint(0.8 + 0.4 * smooth_noise(rng, 96, _TEXELS, (8, 40)))
    for x in np.arange(-30.0, 30.0, 1.0):
        canvas.block(x, high, x + 0.1, high - 0.9, 0.6 * light)
    canvas.block(-30.0, high, 30.0, high - 0.1, 0.6 * light)
    canvas.block(-half - 2.0, low, -half, 0.0, 0.7 * light)
    canvas.block(half, low, half + 2.0, 0.0, 0.7 * light)
    face = canvas.texture()
    below = Texture.plain(0.25 * light * (0.7 + 0.6 * smooth_noise(rng, 16, 32, (6, 12))))
    # Its underside is seen from below alone; of the faces the nearer one is listed last and lies on top.
    underside = Panel(below, vector(-30, -low, -deep / 2), vector(60, 0, 0), vector(0, 0, deep))
    faces = [
        Panel(face, vector(-30, -high, z), vector(60, 0, 0), vector(0, high, 0), faces="both")
        for z in (deep / 2, -deep / 2)
    ]
    return Body("bridge", "scenery", (faces[0], underside, faces[1]), deep, 60.0, high)


def bridge_shadow(length: float) -> Body:
    """The shadow under a bridge, on the ground."""
    texture = Texture.stain(0.02, np.full((2, 2), 0.65))
    panel = Panel(texture, vector(-30, 0, length / 2), vector(60, 0, 0), vector(0, 0, -length))
    return Body("bridge shadow", "scenery", (panel,), length, 60.0, 0.0)


def span_road(
    rng: np.random.Generator, left: float, right: float, ends: tuple[float, float], sunny: bool
) -> Iterator[Actor]:
    """Bridges and gantries over the road, 60 to 150 m apart."""
    z, middle = ends[0] + float(rng.uniform(25, 90)), (left + right) / 2
    while z < ends[1]:
        if rng.random() < 0.5:
            bridge = make_bridge(rng, right - left + 1.0)
            yield Actor(bridge, Straight(middle, z))
            if sunny:
                yield Actor(bridge_shadow(bridge.length), Straight(middle, z + rng.uniform(-2, 2)), Layer.SHADOW)
        else:
            yield Actor(make_gantry(rng, right - left + 1.0), Straight(middle, z))
        z += float(rng.uniform(60, 150))
