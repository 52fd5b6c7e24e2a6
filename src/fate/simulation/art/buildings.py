"""House fronts, and what stands between a garden and the pavement.

They stand in the plane z = 0 of their frame, feet on the ground, and look forward: a viewer at positive z sees them. A
front is mostly plain wall: an event camera that drives past a street of dense window grids sees nothing but windows,
while in real recordings half of the picture stays silent. Edges lie on texel borders, so that they stay sharp close
by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.catalogue import Catalogue, choose
from fate.simulation.art.panels import Body, Canvas, Panel, Texture, smooth_noise, vector

_TEXELS = 128
_STOREY = 3.0  # m


@dataclass(frozen=True)
class Front:
    """How a style of house looks."""

    wall: tuple[float, float]  #: range of the wall's reflectance
    pane: tuple[float, float]  #: window width and height, m
    axis: tuple[float, float]  #: range of the distance between two windows' middles, m
    bare: float  #: share of the windows that are left out, whole axes at a time, so that plain wall remains
    frame: bool  #: whether windows have bright surrounds
    ground: Literal["windows", "shops", "gates", "columns"]  #: what is at street level
    balconies: bool = False


FACADES = Catalogue.load("facades", Front)
#: Lowest and highest height of each style, m.
BOUNDARIES = {"hedge": (1.0, 1.9), "fence": (1.0, 1.6), "wall": (0.8, 1.8)}


def make_facade(rng: np.random.Generator, width_m: float, height_m: float, style: str) -> Body:
    """A house front (a name in ``FACADES``) of 128 texels across, in metres up to the eaves.

    It has one panel for street level and one for the storeys above; anything under 4.5 m is all street level. Widths
    up to about 20 m keep texels under 16 cm.
    """
    front = FACADES.styles[style]
    wall = float(rng.uniform(*front.wall))
    street_level = height_m if height_m < 4.5 else float(rng.uniform(3.2, 3.9))
    axes = _axes(rng, front, width_m)
    lower = Canvas((0.0, street_level, width_m, 0.0), _TEXELS, 64, light=wall)
    _weather(rng, lower, float(rng.uniform(0.3, 0.9)))
    _draw_street_level(rng, lower, front, wall, axes)
    panels = [_upright(lower.texture(), width_m, 0.0, street_level)]
    if street_level < height_m:
        rows = int(np.clip(round((height_m - street_level) / width_m * _TEXELS), 24, _TEXELS))
        upper = Canvas((0.0, height_m, width_m, street_level), _TEXELS, rows, light=wall)
        _weather(rng, upper, float(rng.uniform(0.3, 0.9)))
        _draw_storeys(rng, upper, front, wall, axes)
        panels.append(_upright(upper.texture(), width_m, street_level, height_m))
    return Body(style, "scenery", tuple(panels), 0.0, width_m, height_m)


def make_boundary(rng: np.random.Generator) -> Body:
    """A hedge, fence or wall, 12 m long and 0.8 to 1.9 m high, seen from both sides."""
    style = choose(rng, BOUNDARIES)
    height, length = float(rng.uniform(*BOUNDARIES[style])), 12.0
    canvas = Canvas((0.0, height, length, 0.0), _TEXELS, 32)
    if style == "hedge":  # a ragged upper edge and soft blotches
        light = float(rng.uniform(0.06, 0.14))
        top = [(float(z), height * float(rng.uniform(0.90, 1.0))) for z in np.linspace(0.0, length, 25)]
        canvas.fill([(0.0, 0.0), *top, (length, 0.0)], (1.25 * light, 0.7 * light))
        canvas.tint(0.45 + 1.1 * smooth_noise(rng, canvas.rows, canvas.columns, (10, 48)))
    elif style == "wall":
        light = float(rng.uniform(0.2, 0.5))
        canvas.block(0, height, length, 0, (light, 0.85 * light))
        canvas.block(0, height, length, height - 0.12, min(1.3 * light, 0.7))
        _weather(rng, canvas, 0.4)
    else:  # posts and rails with gaps between them, three texels and one wide
        light = float(rng.uniform(0.15, 0.45))
        posts = round(length / 0.45)
        canvas = Canvas((0.0, height, 4 * posts, 0.0), 4 * posts, 32)
        for k in range(posts):
            canvas.block(4 * k, height, 4 * k + 3, 0.0, light * float(rng.uniform(0.92, 1.08)))
        for share in (0.22, 0.9):
            canvas.block(0.0, share * height + 0.05, 4 * posts, share * height - 0.04, 0.8 * light)
    panel = _upright(canvas.texture(), length, 0.0, height, both=True)
    return Body(style, "scenery", (panel,), 0.0, length, height)


def _axes(rng: np.random.Generator, front: Front, width: float) -> Float64:
    """Middles of the window columns, some left out in one run so that a stretch of wall stays bare."""
    count = max(1, int(width / rng.uniform(*front.axis)))
    middles = (np.arange(count) + 0.5) * width / count
    spared = round(count * front.bare * float(rng.uniform(0.6, 1.4)))
    begin = int(rng.integers(0, count + 1))
    keep = np.ones(count, dtype=bool)
    keep[[(begin + k) % count for k in range(min(spared, count - 1))]] = False
    return np.asarray(middles[keep], dtype=np.float64)


def _draw_storeys(rng: np.random.Generator, canvas: Canvas, front: Front, wall: float, axes: Float64) -> None:
    """Windows in rows, a cornice under the eaves, sills and balconies."""
    _, top, width, bottom = canvas.window
    storeys = max(1, int((top - bottom - 0.4) / _STOREY))
    balconies = axes[:: int(rng.integers(1, 3))] if front.balconies else axes[:0]
    glass = float(rng.uniform(0.03, 0.10))
    for storey in range(storeys):
        sill = bottom + storey * _STOREY + 0.9
        for x in axes:
            _draw_window(rng, canvas, float(x), sill, front, wall, glass)
        for x in balconies:
            canvas.block(x - 1.5, sill + 0.1, x + 1.5, sill - 0.85, 0.55 * wall)
            canvas.block(x - 1.5, sill - 0.85, x + 1.5, sill - 1.02, 0.35 * wall)
    canvas.block(0, top, width, top - 0.35, min(1.2 * wall, 0.75))
    canvas.block(0, top - 0.35, width, top - 0.5, 0.7 * wall)
    if rng.random() < 0.5:
        canvas.block(0, bottom + 0.18, width, bottom, min(1.15 * wall, 0.7))


def _draw_window(
    rng: np.random.Generator, canvas: Canvas, x: float, sill: float, front: Front, wall: float, glass: float
) -> None:
    """One window: dark glass, a lighter lower half where a curtain hangs, or closed shutters."""
    wide, tall = front.pane
    half = wide / 2
    if front.frame:
        canvas.block(x - half - 0.14, sill + tall + 0.16, x + half + 0.14, sill - 0.12, min(1.25 * wall + 0.03, 0.72))
    state = rng.random()
    if state < 0.15:
        canvas.block(x - half, sill + tall, x + half, sill, 0.6 * wall)
        return
    canvas.block(x - half, sill + tall, x + half, sill, (1.8 * glass, glass))
    if state < 0.40:
        canvas.block(x - half, sill + tall, x + half, sill + tall * float(rng.uniform(0.4, 0.8)), 0.30)
    if front.frame or wide > 2:
        for k in range(1, 2 if wide < 2 else 3):
            post = x - half + wide * k / (2 if wide < 2 else 3)
            canvas.block(post - 0.04, sill + tall, post + 0.04, sill, 0.8 * wall)


def _draw_street_level(rng: np.random.Generator, canvas: Canvas, front: Front, wall: float, axes: Float64) -> None:
    """A plinth, a door, and what the style has beside it."""
    _, top, width, _ = canvas.window
    canvas.block(0, 0.5, width, 0, 0.55 * wall)
    if front.ground == "shops":
        _draw_shops(rng, canvas)
        return
    door = float(rng.uniform(1.0, max(1.1, width - 1.0)))
    if front.ground == "gates":
        for x in np.arange(2.6, width - 1.8, 5.2):
            canvas.block(x - 1.7, 2.9, x + 1.7, 0, float(rng.uniform(0.15, 0.35)))
            canvas.block(x - 1.7, 3.05, x + 1.7, 2.9, 0.5 * wall)
    elif front.ground == "columns":
        glass = float(rng.uniform(0.03, 0.10))
        canvas.block(0.6, top - 0.7, width - 0.6, 0.5, (1.8 * glass, glass))
        for x in np.arange(0.0, width, 4.5):
            canvas.block(x, top - 0.6, x + 0.5, 0, wall)
    else:
        for x in axes:
            if abs(x - door) > 1.4:
                _draw_window(rng, canvas, float(x), 1.0, front, wall, 0.12)
    if front.ground != "gates":
        canvas.block(door - 0.75, 2.55, door + 0.75, 0, min(1.2 * wall, 0.7))
        canvas.block(door - 0.55, 2.35, door + 0.55, 0, float(rng.uniform(0.06, 0.22)))


def _draw_shops(rng: np.random.Generator, canvas: Canvas) -> None:
    """Shop windows under fascia boards with a block of lettering each, here and there an awning."""
    _, top, width, _ = canvas.window
    count = max(1, int(width / rng.uniform(4.5, 7.0)))
    for k in range(count):
        x0, x1 = (k + 0.06) * width / count, (k + 0.94) * width / count
        board = float(rng.choice([0.08, 0.2, 0.45, 0.65]))
        canvas.block(x0, top - 0.15, x1, top - 0.85, board)
        sign = rng.uniform(0.25, 0.45) * (x1 - x0)
        middle = 0.5 * (x0 + x1)
        canvas.block(middle - sign / 2, top - 0.35, middle + sign / 2, top - 0.65, 0.6 if board < 0.3 else 0.12)
        canvas.block(x0 + 0.15, top - 0.85, x1 - 0.15, 0.45, (0.22, float(rng.uniform(0.07, 0.14))))
        entry = rng.uniform(x0 + 0.3, max(x0 + 0.4, x1 - 1.4))
        canvas.block(entry, top - 0.9, entry + 0.1, 0, 0.3)
        canvas.block(entry + 0.1, 2.3, entry + 1.0, 0, 0.06)
        for _ in range(int(rng.integers(0, 4))):  # goods in the window
            at, light = rng.uniform(x0 + 0.3, x1 - 0.6), float(rng.uniform(0.2, 0.5))
            canvas.block(at, float(rng.uniform(0.9, 1.5)), at + rng.uniform(0.2, 0.6), 0.5, light)
        if rng.random() < 0.3:
            canvas.block(x0, top - 0.7, x1, top - 1.3, float(rng.uniform(0.2, 0.6)))


def _weather(rng: np.random.Generator, canvas: Canvas, depth: float) -> None:
    """Stains: large soft ones, and smaller ones down to a few decimetres."""
    large = smooth_noise(rng, canvas.rows, canvas.columns, (3, 5))
    small = smooth_noise(rng, canvas.rows, canvas.columns, (max(canvas.rows // 3, 1), canvas.columns // 3))
    canvas.tint(1.0 - depth * (0.4 * large + 0.6 * small))


def _upright(texture: Texture, width: float, bottom: float, top: float, both: bool = False) -> Panel:
    origin, down = vector(width / 2, -top, 0), vector(0, top - bottom, 0)
    return Panel(texture, origin, vector(-width, 0, 0), down, faces="both" if both else "outward")
