"""What stands and lies along a street: trees, lamp posts, signs, markings on the road, the skyline.

Trees and posts are billboards. Markings are textures for the ground: columns run to the right, the first row is the
far end; :func:`on_ground` lays one down.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fate.errors import FateError
from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.drawing import Canvas, Point, smooth_noise
from fate.simulation.art.facades import (
    BOUNDARIES,
    BOUNDARY_STYLES,
    FACADE_STYLES,
    FACADES,
    choose_facade_style,
    make_boundary,
    make_facade,
)
from fate.simulation.art.textures import MAX_TEXELS, Body, Float32, Float64, Panel, Texture

__all__ = [
    "BOUNDARIES",
    "BOUNDARY_STYLES",
    "FACADES",
    "FACADE_STYLES",
    "POLES",
    "POLE_STYLES",
    "TREES",
    "TREE_STYLES",
    "arrow",
    "choose_facade_style",
    "crosswalk",
    "dash_strip",
    "ground_profile",
    "kerb_strip",
    "make_boundary",
    "make_facade",
    "make_pole",
    "make_skyline",
    "make_tree",
    "manhole",
    "on_ground",
    "patch",
]

TREES = Catalogue("tree style", common=("round", "tall", "bush"), held_out=("fir",))
TREE_STYLES: tuple[str, ...] = TREES.names
POLES = Catalogue("pole style", common=("lamp", "sign", "traffic-light", "bollard"), held_out=("double-lamp",))
POLE_STYLES: tuple[str, ...] = POLES.names

PAINT = 0.60  # reflectance of worn road paint
MAINS_FLICKER_HZ = 100.0  # lamps on 50 Hz mains
_FLICKER_DEPTH = 0.3
KERB = 0.36  # reflectance of kerb stones
_STEEL = 0.22
_KERB = 0.16  # m, width of the stones
_GUTTER = 0.40  # m, a darker rim of the asphalt


def make_tree(rng: np.random.Generator, style: str | None = None) -> Body:
    """A trunk and a blotchy crown with a ragged edge; a billboard of one panel, 96 × 128.

    Args:
        rng: decides size, light and growth.
        style: one of :data:`TREE_STYLES`; None draws one that no split holds out.
    """
    style = TREES.choose(rng, "train") if style is None else TREES.check(style)
    tall, wide, stem = {
        "round": ((5.5, 9.0), 0.75, 0.32),
        "tall": ((8.0, 12.0), 0.40, 0.22),
        "bush": ((1.2, 2.4), 1.15, 0.02),
        "fir": ((6.0, 11.0), 0.48, 0.10),
    }[style]
    height = float(rng.uniform(*tall))
    width = height * wide * float(rng.uniform(0.9, 1.1))
    rows, columns = 128, 96
    v, u = (np.arange(rows) + 0.5)[:, None] / rows, (np.arange(columns) + 0.5)[None, :] / columns * 2 - 1
    if style == "fir":
        edge = 1.0 - np.abs(u) / np.maximum(v / (1 - stem), 1e-3) * (1.0 + 0.25 * ((v * 7) % 1.0))
        edge = np.where(v > 1 - stem, -1.0, edge)
    else:
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
    panel = Panel(
        Texture(shade[top:, left:right], alpha[top:, left:right]),
        _v((left / columns - 0.5) * width, -height, 0),
        _v((right - left) / columns * width, 0, 0),
        _v(0, height, 0),
        faces="both",
    )
    drawn = width * max(0.5 - left / columns, right / columns - 0.5) * 2
    return Body(style, "scenery", (panel,), drawn, drawn, height, facing=True)


def make_pole(rng: np.random.Generator, style: str | None = None, *, night: bool = False) -> Body:
    """A lamp post, sign, traffic light or bollard; a billboard.

    Args:
        rng: decides size, light, which sign and which lamp is lit.
        style: one of :data:`POLE_STYLES`; None draws one that no split holds out.
        night: street lamps burn, and flicker with the mains. Traffic lights burn day and night, without flicker.
    """
    style = POLES.choose(rng, "train") if style is None else POLES.check(style)
    if style in ("lamp", "double-lamp"):
        return _lamp_post(rng, style, night)
    if style == "sign":
        return _sign(rng)
    if style == "traffic-light":
        return _traffic_light(rng)
    height = float(rng.uniform(0.8, 1.1))
    canvas = Canvas((-0.08, height, 0.08, 0.0), 8, 40, light=float(rng.choice([0.05, 0.12, 0.35])))
    canvas.block(-0.08, height - 0.12, 0.08, height - 0.24, 0.7)
    return _billboard(style, [_standing(canvas)], 0.16, height)


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


def on_ground(texture: Texture, x: float, z: float, width: float, length: float) -> Panel:
    """Lay a marking on the road, its middle at (x, z), ``length`` metres along z; the first row at the far end."""
    return Panel(texture, _v(x - width / 2, 0, z + length / 2), _v(width, 0, 0), _v(0, 0, -length))


def dash_strip(n: int, *, painted: int = 2, gap: int = 3) -> Texture:
    """``n`` dashes in a row along the road, one texel wide, ``painted`` to ``gap`` in length; each ends in its gap."""
    if n < 1 or painted < 1 or gap < 0 or n * (painted + gap) > MAX_TEXELS:
        raise FateError(
            f"A strip of {n} dashes of {painted} + {gap} texels cannot be; give at least one dash, "
            f"and at most {MAX_TEXELS} texels in all."
        )
    alpha = np.tile(np.r_[np.zeros(gap), np.ones(painted)], n)[:, None]
    return _painted(alpha)


def crosswalk(stripes: int = 7) -> Texture:
    """A zebra crossing: ``stripes`` bars side by side across the road, as wide as the gaps between them."""
    if not 1 <= stripes <= MAX_TEXELS // 2:
        raise FateError(f"A crosswalk of {stripes} stripes cannot be; give 1 to {MAX_TEXELS // 2}.")
    return _painted((np.arange(2 * stripes - 1) % 2 == 0)[None, :])


def arrow(turn: Literal["ahead", "left", "right"] = "ahead") -> Texture:
    """A direction arrow, 96 × 32, drawn as long as the driver sees it."""
    left, right = (1.0, 0.0) if turn == "left" else (0.0, 1.0)
    canvas = Canvas((left, 0.0, right, 5.0), 32, 96)
    if turn == "ahead":
        canvas.rect(0.40, 1.6, 0.60, 5.0, PAINT)
        canvas.fill(((0.5, 0.0), (0.95, 1.8), (0.05, 1.8)), PAINT)
    else:
        canvas.rect(0.15, 1.4, 0.35, 5.0, PAINT)
        canvas.rect(0.15, 1.0, 0.60, 1.8, PAINT)
        canvas.fill(((0.55, 0.2), (0.98, 1.4), (0.55, 2.6)), PAINT)
    return canvas.texture()


def patch(rng: np.random.Generator) -> Texture:
    """Mended asphalt, 24 × 24: a rough-edged dark or pale spot of alpha 0.3 at most."""
    size = 24
    place = np.abs((np.arange(size) + 0.5) / size * 2 - 1)
    edge = 1.0 - np.maximum(place[:, None], place[None, :]) - 0.25 * smooth_noise(rng, size, size, (6, 6))
    alpha = float(rng.uniform(0.15, 0.30)) * np.clip(edge * 12.0, 0.0, 1.0)
    light = 0.06 if rng.random() < 0.7 else 0.28
    return Texture(np.full((size, size), light, dtype=np.float32), alpha.astype(np.float32))


def verge(rng: np.random.Generator) -> Texture:
    """Grass, gravel or paving beside the road, 128 × 24, blotchy at every scale."""
    rows, columns = 128, 24
    blotches = 0.6 * smooth_noise(rng, rows, columns, (12, 3)) + 0.8 * smooth_noise(rng, rows, columns, (60, 12))
    light = float(rng.uniform(0.07, 0.14)) * (0.4 + 1.1 * blotches)
    return Texture(light.astype(np.float32), np.ones((rows, columns), dtype=np.float32))


def paving(rng: np.random.Generator) -> Texture:
    """Slabs of a pavement, 128 × 24: each of its own light, with dark joints."""
    rows, columns, slab = 128, 24, 8
    slabs = rng.uniform(0.75, 1.15, (rows // slab, columns // slab))
    light = float(rng.uniform(0.22, 0.32)) * np.kron(slabs, np.ones((slab, slab)))
    light[::slab], light[:, ::slab] = 0.10, 0.10
    return Texture(light.astype(np.float32), np.ones((rows, columns), dtype=np.float32))


def cast_shadow(rng: np.random.Generator) -> Texture:
    """The shadow of a tree or a house on the road, 48 × 48: dark, with a ragged edge and spots of light."""
    size = 48
    place = np.abs((np.arange(size) + 0.5) / size * 2 - 1)
    edge = 1.0 - np.sqrt(place[:, None] ** 2 + place[None, :] ** 2) - 0.45 * smooth_noise(rng, size, size, (8, 8))
    spots = smooth_noise(rng, size, size, (12, 12))
    alpha = float(rng.uniform(0.4, 0.6)) * np.clip(edge * 10.0, 0.0, 1.0) * np.clip((0.75 - spots) * 8.0, 0.0, 1.0)
    return Texture(np.full((size, size), 0.02, dtype=np.float32), alpha.astype(np.float32))


def manhole() -> Texture:
    """An iron lid in its ring, 24 × 24."""
    canvas = Canvas((-0.5, -0.5, 0.5, 0.5), 24, 24)
    canvas.disc(0, 0, 0.5, 0.24)
    canvas.disc(0, 0, 0.42, 0.09)
    for y in (-0.2, 0.0, 0.2):
        canvas.rect(-0.25, y - 0.03, 0.25, y + 0.03, 0.16)
    return canvas.texture()


def ground_profile(
    rng: np.random.Generator,
    left_kerb: float,
    right_kerb: float,
    left: float,
    right: float,
    *,
    pavement_m: float = 2.5,
    verge_m: float = 0.0,
    edge_lines: bool = False,
) -> Texture:
    """The ground across the street, 1 × 128, the same along its whole length.

    A texel holds the mean of what it covers: over a wide stretch of ground a kerb is a faint blur, and a
    :func:`kerb_strip` laid over it makes it sharp.

    Args:
        rng: decides the lights and the wear.
        left_kerb: x of the road's left edge, m.
        right_kerb: x of its right edge.
        left: x where the texture begins.
        right: x where it ends; beyond the pavements lies grass or gravel.
        pavement_m: width of the pavement on either side.
        verge_m: a strip of grass between kerb and pavement.
        edge_lines: paint lines just inside the kerbs.
    """
    if not left <= left_kerb < right_kerb <= right or pavement_m < 0.0 or verge_m < 0.0:
        raise FateError(
            f"A road from {left_kerb} to {right_kerb} m on ground from {left} to {right} m with {pavement_m} m "
            f"pavement and {verge_m} m verge cannot be; give a road inside the ground and widths ≥ 0."
        )
    fine = 16  # samples within a texel
    x = left + (np.arange(MAX_TEXELS * fine) + 0.5) / (MAX_TEXELS * fine) * (right - left)
    road = right_kerb - left_kerb
    away = np.abs(x - 0.5 * (left_kerb + right_kerb)) - road / 2  # metres beyond the kerb
    asphalt, grass = float(rng.uniform(0.12, 0.19)), float(rng.uniform(0.08, 0.14))
    light = np.full(x.size, float(rng.uniform(0.10, 0.20)))
    light[away < _KERB + verge_m + pavement_m] = float(rng.uniform(0.26, 0.32))
    light[away < _KERB + verge_m] = grass
    light[away < _KERB] = KERB
    worn = 1.0 + 0.06 * float(rng.uniform(0.3, 1.0)) * np.cos(2 * np.pi * away / (road / 4))
    light = np.where(away < 0, asphalt * worn, light)
    light[(away < 0) & (away >= -_GUTTER)] = 0.8 * asphalt
    if edge_lines:
        light[(away < -_GUTTER) & (away >= -_GUTTER - 0.15)] = PAINT
    texels = light.reshape(MAX_TEXELS, fine).mean(axis=1)[None, :].astype(np.float32)
    return Texture(texels, np.ones_like(texels))


def kerb_strip(side: Literal["left", "right"] = "right") -> Texture:
    """A sharp kerb, 1 × 4, for a strip about 0.5 m wide: gutter, two texels of bright stone, the pavement's joint."""
    light = np.array([[0.10, KERB, KERB, 0.22]], dtype=np.float32)
    return Texture(light if side == "right" else light[:, ::-1], np.ones((1, 4), dtype=np.float32))


def _lamp_post(rng: np.random.Generator, style: str, night: bool) -> Body:
    height, reach = float(rng.uniform(5.0, 8.0)), float(rng.uniform(0.7, 1.4))
    if style == "double-lamp":
        arms: tuple[float, ...] = (-1.0, 1.0)
    else:
        arms = (float(rng.choice([-1.0, 1.0])),)
    light = float(rng.choice([0.12, _STEEL, 0.40]))
    mast = Canvas((-0.09, height, 0.09, 0.0), 6, 64)
    mast.fill(((-0.05, height), (0.05, height), (0.09, 0.0), (-0.09, 0.0)), light)
    panels = [_standing(mast)]
    for side in arms:
        beam = Canvas((0.0, height, side * reach, height - 0.2), 24, 8)
        beam.block(0.0, height, 0.6 * side * reach, height - 0.08, light)
        beam.block(0.5 * side * reach, height, side * reach, height - 0.2, 0.8 * light)
        # Drawn outwards from the mast: to the left the panel's own columns run to the left as well.
        across = _v(side * reach, 0, 0)
        panels.append(Panel(beam.texture(), _v(0, -height, 0), across, _v(0, 0.2, 0), faces="both"))
        bulb = Texture(np.full((1, 1), 0.8, dtype=np.float32), np.ones((1, 1), dtype=np.float32))
        x0, x1 = sorted((0.55 * side * reach, 0.97 * side * reach))
        panels.append(
            Panel(bulb, _v(x0, -height + 0.16, 0), _v(x1 - x0, 0, 0), _v(0, 0.09, 0), faces="both",
                  emission=1.25 if night else 0.0, flicker_hz=MAINS_FLICKER_HZ, flicker_depth=_FLICKER_DEPTH)
        )  # fmt: skip
    return _billboard(style, panels, 2 * reach, height)


def _sign(rng: np.random.Generator) -> Body:
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
            middle = y - 0.12 * size
            corners: list[Point] = [(0.0, middle + 0.62 * size), (0.5 * size, middle - 0.38 * size)]
            corners.append((-0.5 * size, middle - 0.38 * size))
            canvas.fill([(scale * cx, middle + scale * (cy - middle)) for cx, cy in corners], light)
        else:
            canvas.rect(-scale * half, y + scale * half, scale * half, y - scale * half, light)
    canvas.rect(-0.15 * size, y + 0.08 * size, 0.15 * size, y - 0.12 * size, rim)
    post = Texture(np.full((1, 1), _STEEL, dtype=np.float32), np.ones((1, 1), dtype=np.float32))
    mast = Panel(post, _v(-0.03, -height + half, 0), _v(0.06, 0, 0), _v(0, height - half, 0), faces="both")
    return _billboard("sign", [mast, _standing(canvas, bottom=height - size)], size, height)


def _traffic_light(rng: np.random.Generator) -> Body:
    """A black box with three lenses on a post; one lens is lit."""
    height = float(rng.uniform(2.9, 3.5))
    post = Texture(np.full((1, 1), 0.15, dtype=np.float32), np.ones((1, 1), dtype=np.float32))
    mast = Panel(post, _v(-0.05, -height + 0.5, 0), _v(0.10, 0, 0), _v(0, height - 0.5, 0), faces="both")
    box = Canvas((-0.17, height, 0.17, height - 1.0), 24, 64, light=0.025)
    lenses = [height - 0.19 - 0.31 * k for k in range(3)]
    for y in lenses:
        box.disc(0.0, y, 0.11, 0.07)
    lit = lenses[(0, 2)[int(rng.integers(2))]]
    lamp = Canvas((-0.12, lit + 0.12, 0.12, lit - 0.12), 16, 16)
    lamp.disc(0.0, lit, 0.11, 0.4)
    panels = [mast, _standing(box, bottom=height - 1.0), _standing(lamp, bottom=lit - 0.12, emission=1.5)]
    return _billboard("traffic-light", panels, 0.34, height)


def _billboard(name: str, panels: list[Panel], width: float, height: float) -> Body:
    return Body(name, "scenery", tuple(panels), width, width, height, facing=True)


def _standing(canvas: Canvas, bottom: float = 0.0, emission: float = 0.0) -> Panel:
    """A canvas drawn in (x, height) as a panel in the plane z = 0."""
    left, top, right, _ = canvas.window
    down = _v(0, top - bottom, 0)
    return Panel(canvas.texture(), _v(left, -top, 0), _v(right - left, 0, 0), down, faces="both", emission=emission)


def _painted(alpha: np.typing.ArrayLike) -> Texture:
    cover: Float32 = np.asarray(alpha, dtype=np.float32)
    return Texture(np.full(cover.shape, PAINT, dtype=np.float32), cover)


def _v(x: float, y: float, z: float) -> Float64:
    return np.array([x, y, z], dtype=np.float64)
