"""What makes one car differ from another of its make: its own proportions, and what its paint and glass reflect.

The cars of ``cars.py`` have the shape of their make, in clean paint. Real cars come in far more shapes, and their
surfaces mirror the sky, the street and the sun, so that they have edges everywhere. :func:`reshape_car` draws
other proportions, and :func:`reflections` paints onto a texture what might be mirrored in it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.cars import (
    CARS,
    TRIM,
    TYRE,
    Cabin,
    CarShape,
    Finish,
    build_car,
    draw_finish,
    draw_scale,
    draws_day_lamps,
)
from fate.simulation.art.panels import Body, Panel, Texture

_MOST_LIGHT = 0.95
_FLUSH = 0.12  # m; a boot or a bonnet shorter than this is none: the glass begins at the edge of the face
_ARCH = 1.16  # radius of the hollow around a wheel, in radii of the wheel
_DUST = 0.18  # light of dried dirt
_FINE = 32  # texels along a side below which reflections would be coarse squares


def make_individual_car(rng: np.random.Generator, body: str, *, night: bool = False) -> Body:
    """A car of one make (a name in ``CARS``) that looks like no other; by night its lamps are on."""
    shape, finish = reshape_car(rng, CARS.styles[body]), _unusual(rng, draw_finish(rng))
    scale, day_lamps = draw_scale(rng), draws_day_lamps(rng)
    strength, dirt = float(rng.uniform(0.5, 1.0)), float(0.3 * rng.uniform(0, 1) ** 2)
    roof = float(rng.uniform(0.02, 0.8)) if rng.random() < 0.15 else None

    flank: list[Texture] = []  # of the left side, which comes first; the right one is its mirror image

    def surface(panel: Panel) -> Panel:
        texture = panel.texture
        if panel.across[2] > 0:
            return replace(panel, texture=flank.pop().mirrored())
        if roof is not None and panel.down[1] == 0 and panel.origin[1] < -1.15:
            texture = Texture(np.full_like(texture.light, roof), texture.alpha)
        if panel.origin[1] + panel.down[1] > -0.6:  # down to the road
            texture = _dirty(rng, texture, dirt)
        texture = reflections(rng, texture, strength, matt=TYRE)
        if panel.across[2] < 0:
            flank.append(texture)
        return replace(panel, texture=texture)

    return build_car(body, shape, finish, scale, night=night, day_lamps=day_lamps, surface=surface)


def reflections(rng: np.random.Generator, texture: Texture, strength: float = 1.0, matt: float = 0.0) -> Texture:
    """The same texture with blotches, a mirrored horizon, highlights, and now and then a sticker or a stripe.

    ``strength`` (0 to 1) scales all of them. What is as dark as ``matt`` or darker, such as rubber, mirrors nothing.
    The coverage stays as it is.
    """
    if min(texture.shape) * 2 < _FINE:
        texture = _refined(texture)
    rows, columns = texture.shape
    v, u = _middles(rows)[:, None], _middles(columns)
    factor = np.ones((rows, columns), np.float32)
    for most, fewest, end in ((0.5, (1, 1), (6, 6)), (0.4, (2, 6), (8, 25))):  # coarse and fine blotches
        down, across = rng.integers(fewest, end).tolist()
        contrast = np.float32(2 * strength * rng.uniform(0, most))
        factor += contrast * (_blotches(rng, texture.shape, (down, across)) - np.float32(0.5))
    wave = np.interp(u, np.linspace(0, 1, 7), rng.uniform(-0.5, 0.5, 7))
    if rng.random() < 0.6:  # houses and parked cars stand before the sky
        ends = np.sort(rng.random(int(rng.integers(2, 14))))
        wave += rng.uniform(-0.5, 0.5, len(ends) + 1)[np.searchsorted(ends, u)]
    border = rng.uniform(0.1, 0.75) + rng.uniform(-0.12, 0.12) * (u - 0.5) + rng.uniform(0.0, 0.3) * wave
    softness = np.float32(rng.uniform(0.01, 0.08))
    above = np.clip((border.astype(np.float32) - v) / softness + np.float32(0.5), 0, 1)
    darker = np.float32(strength * rng.uniform(0, 0.4))
    factor *= 1 - darker + darker * above
    shine = np.float32(rng.uniform(0, 0.3)) * above
    for _ in range(int(rng.integers(0, 4))):
        wide = np.exp(-(((u - rng.random()) / rng.uniform(0.02, 0.2)) ** 2))
        tall = np.exp(-(((v - rng.random()) / rng.uniform(0.02, 0.15)) ** 2))
        shine += np.float32(rng.uniform(0.2, 0.7)) * (tall * wide)
    gloss = np.clip((texture.light - matt) / 0.03, 0, 1) if matt > 0 else np.float32(1.0)
    light = texture.light * factor + np.float32(strength) * gloss * shine
    if rng.random() < 0.1:
        stripe = rng.random() < 0.5
        length, height = rng.uniform(0.5, 1.0) if stripe else rng.uniform(0.05, 0.2), rng.uniform(0.03, 0.1)
        left, top = rng.uniform(0, 1 - length), rng.uniform(0, 1 - height)
        inside = (u >= left) & (u < left + length) & (v >= top) & (v < top + height)
        light = np.where(inside & (texture.light > matt), rng.choice([0.03, 0.1, 0.6, 0.85]), light)
    return Texture(np.clip(light, 0, _MOST_LIGHT).astype(np.float32), texture.alpha)


def reshape_car(rng: np.random.Generator, shape: CarShape) -> CarShape:
    """Another car of the same layout: longer or shorter, higher or lower, with steeper or flatter glass."""
    along, belt, bow = rng.uniform(0.9, 1.12), rng.uniform(0.92, 1.08), rng.uniform(0.88, 1.06)
    length, width = along * shape.length, rng.uniform(0.95, 1.06) * shape.width
    tail_lean, nose_lean = rng.uniform(0.4, 2.5, 2) * along * (shape.tail[1], shape.nose[1])
    tail, nose, ends = belt * shape.tail[0], belt * bow * shape.nose[0], (tail_lean, length - nose_lean)
    cabins = [_reshape_cabin(rng, shape, index, along, belt, ends) for index in range(len(shape.cabins))]
    if cabins[0].rear[0] == tail_lean:
        tail = max(tail, cabins[0].bottom)
    nose = cabins[-1].bottom if cabins[-1].front[0] == ends[1] else min(nose, cabins[-1].bottom + 0.02)
    tail_lamp = _reshape_lamp(rng, shape.tail_lamp, belt, tail, width / 2)
    head_lamp = _reshape_lamp(rng, shape.head_lamp, nose / shape.nose[0], nose, width / 2)
    sill = min(rng.uniform(0.8, 1.25) * shape.sill, tail_lamp[0] - 0.12, head_lamp[0] - 0.12)
    outline = (
        (tail_lean, tail),
        (cabins[0].rear[0], cabins[0].bottom),
        (cabins[-1].front[0], cabins[-1].bottom),
        (ends[1], nose),
    )
    axles, wheel = along * np.array(shape.axles) + rng.uniform(-0.06, 0.06, 2), rng.uniform(0.92, 1.12) * shape.wheel
    for axle in axles:  # the hollow around the wheel stays below the body's upper edge
        for out in np.linspace(-1.1, 1.1, 7):
            above = 1.0 + np.sqrt(_ARCH**2 - out**2)  # its height there, in radii of the wheel
            wheel = min(wheel, (_height(outline, axle + out * wheel) - 0.03) / above)
    margin = _ARCH * wheel + 0.05
    return CarShape(
        length=float(length),
        width=float(width),
        sill=float(sill),
        tail=(float(tail), float(tail_lean)),
        nose=(float(nose), float(nose_lean)),
        wheel=float(wheel),
        axles=(max(float(axles[0]), margin), min(float(axles[1]), length - margin)),
        cabins=tuple(cabins),
        tail_lamp=tail_lamp,
        head_lamp=head_lamp,
    )


def _reshape_cabin(
    rng: np.random.Generator, shape: CarShape, index: int, along: float, belt: float, ends: tuple[float, float]
) -> Cabin:
    """One cabin on a body whose upper edge goes from z = ``ends[0]`` to ``ends[1]``."""
    cabin = shape.cabins[index]
    glazed = cabin.glazing != "none"
    bottom = belt * cabin.bottom
    top = bottom + rng.uniform(0.85, 1.2 if glazed else 1.1) * (cabin.top - cabin.bottom)
    moves = rng.uniform(-1, 1, 4) * (0.15, 0.25, 0.15, 0.25)
    if not glazed or index > 0:
        moves[:2] = 0.0  # upright, or against the box in front of it
    if not glazed or index < len(shape.cabins) - 1:
        moves[2:] = 0.0
    rear0, rear1, front0, front1 = along * np.array([*cabin.rear, *cabin.front]) + moves
    if index == 0 and rear0 < ends[0] + _FLUSH:
        rear0 = ends[0]
    if index == len(shape.cabins) - 1 and front0 > ends[1] - _FLUSH:
        front0 = ends[1]
    if glazed:
        rear1 = max(rear1, rear0 + 0.03)
        front1 = min(front1, front0 - 0.1)
        short = max(0.0, 0.9 - (front1 - rear1))  # no roof is shorter than 0.9 m
        rear1 = max(rear1 - short, rear0 + 0.03)
    else:
        rear1, front1 = rear0, front0
    inset = cabin.inset
    if glazed:
        inset = (inset[0], max(inset[0] + 0.02, inset[1] + rng.uniform(-0.04, 0.08)))
    pillars = np.sort(along * np.array(cabin.pillars) + rng.uniform(-0.1, 0.1, len(cabin.pillars)))
    low, high = rear0 + 0.3, front0 - 0.35
    return Cabin(
        rear=(float(rear0), float(rear1)),
        front=(float(front0), float(front1)),
        bottom=float(bottom),
        top=float(top),
        inset=inset,
        pillars=tuple(float(z) for z in np.clip(pillars, low, high)),
        glazing=cabin.glazing,
    )


def _reshape_lamp(
    rng: np.random.Generator, lamp: tuple[float, float, float], belt: float, edge: float, half: float
) -> tuple[float, float, float]:
    """Lower and upper height, and width, of a lamp below the ``edge`` of its face, which is 2 · ``half`` wide."""
    high = min(belt * lamp[1], edge - 0.02)
    tall = rng.uniform(0.6, 1.3) * belt * (lamp[1] - lamp[0])
    return float(high - tall), float(high), float(min(rng.uniform(0.7, 1.4) * lamp[2], half - 0.2))


def _height(outline: tuple[tuple[float, float], ...], z: float) -> float:
    """The height at z of a broken line of (z, height)."""
    return float(np.interp(z, [point[0] for point in outline], [point[1] for point in outline]))


def _unusual(rng: np.random.Generator, finish: Finish) -> Finish:
    """A finish with other wheels, bumpers of another colour, and glass that shows little or much of the sky."""
    return replace(
        finish,
        paint=finish.paint * rng.uniform(0.85, 1.12),
        rim=float(rng.uniform(0.04, 0.7)),
        bumper=float(rng.choice([finish.paint, finish.bumper, TRIM, rng.uniform(0.05, 0.4)])),
        glass=float(rng.uniform(0.02, 0.1)),
        sky=float(0.03 + 0.57 * rng.uniform(0, 1) ** 1.5),
    )


def _dirty(rng: np.random.Generator, texture: Texture, amount: float) -> Texture:
    """Dust that grows thicker downwards, in blotches."""
    down = _middles(texture.shape[0])[:, None]
    cover = np.float32(amount) * down * down * _blotches(rng, texture.shape, (3, 8))
    return Texture(np.asarray(texture.light + cover * (_DUST - texture.light), np.float32), texture.alpha)


def _blotches(rng: np.random.Generator, shape: tuple[int, int], cells: tuple[int, int]) -> Float32:
    """What ``smooth_noise`` gives, for many small textures: random numbers at ``cells`` (down, across), blended."""
    knots = rng.random((cells[0] + 1, cells[1] + 1), np.float32)
    return np.asarray(_blend(shape[0], cells[0]) @ knots @ _blend(shape[1], cells[1]).T, np.float32)


@lru_cache(maxsize=512)
def _blend(texels: int, cells: int) -> Float32:
    """The share [texels, cells + 1] of each knot in each texel."""
    away = np.abs(np.linspace(0, cells, texels)[:, None] - np.arange(cells + 1))
    near = np.clip(1 - away, 0, 1)
    return np.asarray(near * near * (3 - 2 * near), np.float32)


def _middles(texels: int) -> Float32:
    """Where the texels of a row or a column lie, 0 to 1."""
    return np.asarray((np.arange(texels) + 0.5) / texels, np.float32)


def _refined(texture: Texture) -> Texture:
    """The same picture in at least ``_FINE`` / 2 texels along each side."""
    light, alpha = texture.light, texture.alpha
    for axis in (0, 1):
        times = -(-_FINE // light.shape[axis])
        light, alpha = np.repeat(light, times, axis), np.repeat(alpha, times, axis)
    return Texture(light, alpha)
