"""What stands and lies along a street: trees, posts and signs, markings on the road, shadows, the skyline.

Trees and posts are billboards. Markings are textures for the ground: columns run to the right, the first row is the
far end; :func:`lay_on_ground` makes a body of one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fate.simulation.art.catalogue import choose
from fate.simulation.art.panels import MAX_TEXELS, Body, Canvas, Panel, Texture, smooth_noise, vector

#: Of each style of tree: range of the height in m, width over height, height of the stem over height.
TREES = {"round": ((5.5, 9.0), 0.75, 0.32), "tall": ((8.0, 12.0), 0.40, 0.22), "bush": ((1.2, 2.4), 1.15, 0.02)}

PAINT = 0.60  # reflectance of worn road paint
#: Eight dashes in a row along the road, one texel wide, 2 texels of paint after each gap of 3.
DASHES = Texture.stain(PAINT, np.tile(np.r_[np.zeros(3), np.ones(2)], 8)[:, None])
#: A zebra crossing: seven bars side by side across the road, as wide as the gaps between them.
CROSSWALK = Texture.stain(PAINT, (np.arange(13) % 2 == 0)[None, :])
MAINS_FLICKER_HZ = 100.0  # lamps on 50 Hz mains
_FLICKER_DEPTH = 0.3
KERB = 0.36  # reflectance of kerb stones
_STEEL = 0.22
#: A sharp kerb on the right, from left to right, for a strip 0.5 m wide: gutter, bright stone, the pavement's joint.
KERB_STRIP = (0.10, KERB, KERB, 0.22)
_KERB = 0.16  # m, width of the stones
_GUTTER = 0.40  # m, a darker rim of the asphalt
_PAVEMENT = 2.5  # m, width of the pavement on either side


def make_tree(rng: np.random.Generator) -> Body:
    """A trunk and a blotchy crown with a ragged edge; a billboard of one panel, 96 × 128."""
    style = choose(rng, TREES)
    tall, wide, stem = TREES[style]
    height = float(rng.uniform(*tall))
    width = height * wide * float(rng.uniform(0.9, 1.1))
    rows, columns = 128, 96
    v, u = (np.arange(rows) + 0.5)[:, None] / rows, (np.arange(columns) + 0.5)[None, :] / columns * 2 - 1
    middle = 0.5 * (1 - stem)
    rise = (v - middle) / middle
    if style == "bush":
        rise = np.minimum(rise, 0.35)  # it sits on the ground, with no underside
    edge = 1.0 - np.sqrt(u**2 + rise**2)
    ragged = edge - 0.30 * smooth_noise(rng, rows, columns, (9, 9)) - 0.12 * smooth_noise(rng, rows, columns, (28, 24))
    gaps = smooth_noise(rng, rows, columns, (24, 18))  # the sky shows through the leaves
    crown = np.clip(ragged * 16.0, 0.0, 1.0) * np.clip((0.84 - gaps) * 14.0, 0.0, 1.0)
    light = float(rng.uniform(0.06, 0.14))
    clumps = 0.5 * smooth_noise(rng, rows, columns, (7, 6)) + 0.9 * smooth_noise(rng, rows, columns, (32, 24)) ** 2
    leaves = light * (0.35 + 1.3 * clumps) * (1.15 - 0.5 * v)
    trunk = (np.abs(u) < np.clip(0.28 / width, 0.04, 0.2)) & (v > 0.5 * (1 - stem))
    alpha = np.maximum(crown, trunk).astype(np.float32)
    shade = np.where(crown > 0.5, leaves, 0.07).astype(np.float32)
    # Trim to what is drawn, so that width and height are the tree's own.
    solid = alpha >= 0.5
    top, sides = int(solid.any(axis=1).argmax()), np.flatnonzero(solid.any(axis=0))
    left, right = int(sides[0]), int(sides[-1]) + 1
    corner, across = vector((left / columns - 0.5) * width, -height, 0), vector((right - left) / columns * width, 0, 0)
    texture = Texture(shade[top:, left:right], alpha[top:, left:right])
    panel = Panel(texture, corner, across, vector(0, height, 0), faces="both")
    drawn = width * max(0.5 - left / columns, right / columns - 0.5) * 2
    return Body(style, "scenery", (panel,), drawn, drawn, height, facing=True)


def make_pole(rng: np.random.Generator, night: bool) -> Body:
    """A lamp post, sign, traffic light or bollard; a billboard.

    By night street lamps burn, and flicker with the mains. Traffic lights burn day and night, without flicker.
    """
    style = choose(rng, POLES)
    panels, width, height = POLES[style](rng, night)
    return Body(style, "scenery", tuple(panels), width, width, height, facing=True)


def make_skyline(rng: np.random.Generator) -> Texture:
    """Far roofs and trees in haze, 32 × 128: low contrast against a sky of about 0.9."""
    rows, columns = 32, 128
    ends = np.linspace(0.0, 2 * np.pi, columns, endpoint=False)
    hills = 4 + sum(float(rng.uniform(0.5, 2.0)) * np.sin(k * ends + rng.uniform(0, 6.28)) for k in (1, 2, 3, 5))
    far, near = np.clip(hills + 3, 2, rows - 2), np.clip(hills - 1, 1, rows - 6)
    at = 0
    while at < columns:
        wide = int(rng.integers(3, 12))
        if rng.random() < 0.55:
            near[at : at + wide] += rng.uniform(1, 12)
        else:
            near[at : at + wide] += 2 * rng.random(near[at : at + wide].size)
        at += wide
    heights = rows - 0.5 - np.arange(rows)[:, None]
    haze = float(rng.uniform(0.55, 0.75))
    light = np.where(heights < near, haze, haze + 0.12)
    alpha = np.clip(np.maximum(near, far) - heights + 0.5, 0.0, 1.0)
    return Texture(light.astype(np.float32), alpha.astype(np.float32))


def lay_on_ground(name: str, texture: Texture, width: float, length: float) -> Body:
    """A texture on the road, its rows from far to near, its middle at the origin."""
    panel = Panel(texture, vector(-width / 2, 0, length / 2), vector(width, 0, 0), vector(0, 0, -length))
    return Body(name, "scenery", (panel,), length, width, 0.0)


def make_shadow(body: Body) -> Body:
    """The dark, soft-edged patch on the road under a body, alpha 0.6 at most."""
    texels = 24
    centres = (np.arange(texels) + 0.5) / texels
    rise = np.clip(np.minimum(centres, 1.0 - centres) / 0.12, 0.0, 1.0)
    texture = Texture.stain(0.015, 0.6 * rise[:, None] * rise[None, :])
    ground = lay_on_ground("", texture, 1.08 * body.width + 0.1, 1.04 * max(body.length, 0.2) + 0.1)
    return Body(f"{body.name}'s shadow", "scenery", ground.panels, body.length, body.width, 0.0)


def make_patch(rng: np.random.Generator) -> Body:
    """Mended asphalt, 24 × 24 texels: a dark or pale spot with a rough edge, of alpha 0.3 at most."""
    size = 24
    offset = np.abs((np.arange(size) + 0.5) / size * 2 - 1)
    edge = 1.0 - np.maximum(offset[:, None], offset[None, :]) - 0.25 * smooth_noise(rng, size, size, (6, 6))
    alpha = float(rng.uniform(0.15, 0.30)) * np.clip(edge * 12.0, 0.0, 1.0)
    texture = Texture.stain(0.06 if rng.random() < 0.7 else 0.28, alpha)
    return lay_on_ground("patch", texture, rng.uniform(0.8, 2.5), rng.uniform(1.5, 6))


def verge(rng: np.random.Generator) -> Texture:
    """Grass, gravel or paving beside the road, 128 × 24, blotchy at every scale."""
    rows, columns = 128, 24
    blotches = 0.6 * smooth_noise(rng, rows, columns, (12, 3)) + 0.8 * smooth_noise(rng, rows, columns, (60, 12))
    return Texture.plain(float(rng.uniform(0.07, 0.14)) * (0.4 + 1.1 * blotches))


def paving(rng: np.random.Generator) -> Texture:
    """Slabs of a pavement, 128 × 24: each of its own light, with dark joints."""
    rows, columns, slab = 128, 24, 8
    slabs = rng.uniform(0.75, 1.15, (rows // slab, columns // slab))
    light = float(rng.uniform(0.22, 0.32)) * np.kron(slabs, np.ones((slab, slab)))
    light[::slab], light[:, ::slab] = 0.10, 0.10
    return Texture.plain(light)


def make_cast_shadow(rng: np.random.Generator) -> Body:
    """The shadow of a tree or a house on the road, 48 × 48 texels: dark, with a ragged edge and spots of light."""
    size = 48
    offset = np.abs((np.arange(size) + 0.5) / size * 2 - 1)
    edge = 1.0 - np.sqrt(offset[:, None] ** 2 + offset[None, :] ** 2) - 0.45 * smooth_noise(rng, size, size, (8, 8))
    spots = smooth_noise(rng, size, size, (12, 12))
    alpha = float(rng.uniform(0.4, 0.6)) * np.clip(edge * 10.0, 0.0, 1.0) * np.clip((0.75 - spots) * 8.0, 0.0, 1.0)
    return lay_on_ground("shadow", Texture.stain(0.02, alpha), rng.uniform(3, 7), rng.uniform(3, 8))


def manhole() -> Texture:
    """An iron lid in its ring, 24 × 24."""
    canvas = Canvas((-0.5, -0.5, 0.5, 0.5), 24, 24)
    canvas.disc(0, 0, 0.5, 0.24)
    canvas.disc(0, 0, 0.42, 0.09)
    for y in (-0.2, 0.0, 0.2):
        canvas.rect(-0.25, y - 0.03, 0.25, y + 0.03, 0.16)
    return canvas.texture()


def ground_profile(rng: np.random.Generator, left_kerb: float, right_kerb: float, left: float, right: float) -> Texture:
    """The ground across the street from x = ``left`` to ``right``, 1 × 128, the same along its whole length.

    A texel holds the mean of what it covers: over a wide stretch of ground a kerb is a faint blur, and the street lays
    ``KERB_STRIP`` over it. Beyond the pavements lies grass or gravel.
    """
    fine = 16  # samples within a texel
    x = left + (np.arange(MAX_TEXELS * fine) + 0.5) / (MAX_TEXELS * fine) * (right - left)
    road = right_kerb - left_kerb
    away = np.abs(x - 0.5 * (left_kerb + right_kerb)) - road / 2  # metres beyond the kerb
    asphalt = float(rng.uniform(0.12, 0.19))
    rng.uniform(0.08, 0.14)  # unused; it keeps the sequence of random numbers, and so the streets of all seeds
    light = np.full(x.size, float(rng.uniform(0.10, 0.20)))
    light[away < _KERB + _PAVEMENT] = float(rng.uniform(0.26, 0.32))
    light[away < _KERB] = KERB
    worn = 1.0 + 0.06 * float(rng.uniform(0.3, 1.0)) * np.cos(2 * np.pi * away / (road / 4))
    light = np.where(away < 0, asphalt * worn, light)
    light[(away < 0) & (away >= -_GUTTER)] = 0.8 * asphalt
    return Texture.plain(light.reshape(MAX_TEXELS, fine).mean(axis=1))


Post = tuple[list[Panel], float, float]  # panels, width and height in metres


def _make_bollard(rng: np.random.Generator, night: bool) -> Post:
    height = float(rng.uniform(0.8, 1.1))
    canvas = Canvas((-0.08, height, 0.08, 0.0), 8, 40, light=float(rng.choice([0.05, 0.12, 0.35])))
    canvas.block(-0.08, height - 0.12, 0.08, height - 0.24, 0.7)
    return [canvas.upright()], 0.16, height


def _make_lamp_post(rng: np.random.Generator, night: bool) -> Post:
    height, reach = float(rng.uniform(5.0, 8.0)), float(rng.uniform(0.7, 1.4))
    side = float(rng.choice([-1.0, 1.0]))
    light = float(rng.choice([0.12, _STEEL, 0.40]))
    mast = Canvas((-0.09, height, 0.09, 0.0), 6, 64)
    mast.fill(((-0.05, height), (0.05, height), (0.09, 0.0), (-0.09, 0.0)), light)
    beam = Canvas((0.0, height, side * reach, height - 0.2), 24, 8)
    beam.block(0.0, height, 0.6 * side * reach, height - 0.08, light)
    beam.block(0.5 * side * reach, height, side * reach, height - 0.2, 0.8 * light)
    # Drawn outwards from the mast: to the left the panel's own columns run to the left as well.
    across = vector(side * reach, 0, 0)
    arm = Panel(beam.texture(), vector(0, -height, 0), across, vector(0, 0.2, 0), faces="both")
    x0, x1 = sorted((0.55 * side * reach, 0.97 * side * reach))
    corner, across, down = vector(x0, -height + 0.16, 0), vector(x1 - x0, 0, 0), vector(0, 0.09, 0)
    glow = 1.25 if night else 0.0
    bulb = Panel(Texture.plain(0.8), corner, across, down, "both", glow, MAINS_FLICKER_HZ, _FLICKER_DEPTH)
    return [mast.upright(), arm, bulb], 2 * reach, height


def _make_sign(rng: np.random.Generator, night: bool) -> Post:
    """A round, three-cornered or square sign with a dark or bright rim on a post."""
    height, size = float(rng.uniform(2.3, 2.9)), float(rng.uniform(0.55, 0.75))
    half = size / 2
    y = height - half
    face, rim = ((0.65, 0.14), (0.10, 0.6), (0.70, 0.08))[int(rng.integers(3))]
    canvas = Canvas((-half, height, half, height - size), 40, 40)
    shape = int(rng.integers(3))
    for scale, light in ((1.0, rim), (0.74, face)):
        if shape == 0:
            canvas.disc(0.0, y, scale * half, light)
        elif shape == 1:
            middle, wide = y - 0.12 * size, scale * 0.5 * size
            top, bottom = middle + scale * 0.62 * size, middle - scale * 0.38 * size
            canvas.fill([(0.0, top), (wide, bottom), (-wide, bottom)], light)
        else:
            canvas.rect(-scale * half, y + scale * half, scale * half, y - scale * half, light)
    canvas.rect(-0.15 * size, y + 0.08 * size, 0.15 * size, y - 0.12 * size, rim)
    post = Texture.plain(_STEEL)
    mast = Panel(post, vector(-0.03, -height + half, 0), vector(0.06, 0, 0), vector(0, height - half, 0), faces="both")
    return [mast, canvas.upright()], size, height


def _make_traffic_light(rng: np.random.Generator, night: bool) -> Post:
    """A black box with three lenses on a post; one lens is lit."""
    height = float(rng.uniform(2.9, 3.5))
    post = Texture.plain(0.15)
    mast = Panel(post, vector(-0.05, -height + 0.5, 0), vector(0.10, 0, 0), vector(0, height - 0.5, 0), faces="both")
    box = Canvas((-0.17, height, 0.17, height - 1.0), 24, 64, light=0.025)
    lenses = [height - 0.19 - 0.31 * k for k in range(3)]
    for y in lenses:
        box.disc(0.0, y, 0.11, 0.07)
    lit = lenses[(0, 2)[int(rng.integers(2))]]
    lamp = Canvas((-0.12, lit + 0.12, 0.12, lit - 0.12), 16, 16)
    lamp.disc(0.0, lit, 0.11, 0.4)
    panels = [mast, box.upright(), lamp.upright(emission=1.5)]
    return panels, 0.34, height


POLES: dict[str, Callable[[np.random.Generator, bool], Post]] = {
    "lamp": _make_lamp_post,
    "sign": _make_sign,
    "traffic-light": _make_traffic_light,
    "bollard": _make_bollard,
}
