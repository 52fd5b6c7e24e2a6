"""What is painted on a car's faces: doors and wheels, windows, lamps, grille, number plate.

Every function draws one face of a :class:`CarShape` in its own metres with :class:`Canvas`. The shading of the sun
and the sky is painted in: faces that look up are brighter, flanks grow darker towards the road.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from fate.simulation.art.car_shapes import Cabin, CarShape
from fate.simulation.art.drawing import Canvas, Point
from fate.simulation.art.textures import Texture

TYRE = 0.03
ARCH = 0.012  # the hollow around a wheel
TRIM = 0.05  # unpainted plastic


@dataclass(frozen=True)
class Finish:
    """What differs between two cars of one make.

    Attributes:
        paint: reflectance of the body.
        rim: reflectance of the wheels' rims.
        spokes: how many.
        bumper: reflectance of the bumpers: the paint's or plastic's.
        glass: the windows' own reflectance where no sky shows in them.
        sky: how much sky the windows show at their upper edge.
        stripe: reflectance of the lettering on a van's flank.
    """

    paint: float
    rim: float
    spokes: int
    bumper: float
    glass: float
    sky: float
    stripe: float

    @property
    def upper(self) -> float:
        """Paint that looks up into the sky."""
        return min(0.95, 1.08 * self.paint + 0.06)

    @property
    def flank(self) -> tuple[float, float]:
        """Paint of an upright face, from its upper to its lower edge."""
        return min(0.9, 0.92 * self.paint + 0.035), 0.58 * self.paint + 0.012


def lower_side(shape: CarShape, finish: Finish) -> Texture:
    """The right flank's doors, sill and wheels, 128 × 48; the front is at the right."""
    canvas = Canvas((0.0, shape.shoulder, shape.length, 0.0), 128, 48)
    canvas.fill(shape.lower_side, finish.flank)
    dark = 0.45 * finish.paint + 0.005
    canvas.rect(shape.axles[0], shape.sill + 0.10, shape.axles[1], shape.sill, TRIM)
    for z0, z1 in ((0.0, shape.tail[1] + 0.30), (shape.length - shape.nose[1] - 0.28, shape.length)):
        canvas.rect(z0, shape.sill + 0.26, z1, shape.sill, finish.bumper)
    crease = shape.sill + 0.62 * (shape.shoulder - shape.sill)
    canvas.line(((0.15, crease), (shape.length - 0.3, crease - 0.03)), 0.035, dark)
    for z in _door_gaps(shape):
        canvas.line(((z, shape.sill + 0.12), (z, shape.shoulder)), 0.03, dark)
        canvas.rect(z + 0.06, crease + 0.11, z + 0.24, crease + 0.07, dark)
    lamp_low, lamp_high, _ = shape.head_lamp
    canvas.rect(shape.length - 0.42, lamp_high, shape.length - 0.05, lamp_low + 0.03, 0.55)
    lamp_low, lamp_high, _ = shape.tail_lamp
    canvas.rect(0.02, lamp_high, 0.24, lamp_low, 0.10)
    outside = ((0.0, 0.0), (0.0, shape.sill), *shape.lower_side[1:-1], (shape.length, shape.sill), (shape.length, 0.0))
    canvas.keep(outside)
    for z in shape.axles:
        _wheel_arch(canvas, z, shape)
    for z in shape.axles:
        _wheel(canvas, z, shape.wheel, finish)
    return canvas.texture()


def cabin_side(cabin: Cabin, finish: Finish) -> Texture:
    """Roof line, posts and side windows from the right, 128 × 40; the front is at the right."""
    canvas = Canvas((min(cabin.rear), cabin.top, max(cabin.front), cabin.bottom), 128, 40)
    if cabin.glazing == "none":
        _box_flank(canvas, cabin)
        return canvas.texture()
    canvas.fill(cabin.side, (finish.upper, finish.flank[0]))
    posts = (None, *cabin.pillars, None)
    if cabin.glazing == "front":
        posts = (*cabin.pillars[-1:], None)
        _lettering(canvas, cabin.rear[0] + 0.5, cabin.pillars[0] - 0.2, cabin, finish.stripe)
        for z in cabin.pillars:
            canvas.line(((z, cabin.top - 0.10), (z, cabin.bottom)), 0.03, 0.45 * finish.paint)
    for begin, end in pairwise(posts):
        window = _side_window(cabin, begin, end)
        canvas.fill(window, (finish.glass + finish.sky, finish.glass))
    mirror = cabin.front[0] - 0.42 * (cabin.front[0] - cabin.front[1])
    canvas.rect(mirror - 0.22, cabin.bottom + 0.17, mirror, cabin.bottom + 0.02, 0.6 * finish.paint + 0.02)
    return canvas.texture()


def cabin_end(shape: CarShape, cabin: Cabin, finish: Finish, front: bool) -> Texture:
    """The windscreen or the rear window between its posts, 64 × 32; a van has two doors, a box a shutter."""
    low, high = (shape.width / 2 - inset for inset in cabin.inset)
    canvas = Canvas((-low, cabin.top, low, cabin.bottom), 64, 32)
    canvas.fill(((-low, cabin.bottom), (-high, cabin.top), (high, cabin.top), (low, cabin.bottom)), finish.flank)
    tall = cabin.top - cabin.bottom
    if cabin.glazing == "none":
        _shutter(canvas, low, cabin, front)
        return canvas.texture()
    sky = 1.3 * finish.sky
    if cabin.glazing == "front" and not front:
        for side in (-1.0, 1.0):
            x0, x1 = side * 0.09, side * (high - 0.08)
            canvas.rect(x0, cabin.top - 0.16 * tall, x1, cabin.bottom + 0.38 * tall, (finish.glass + sky, finish.glass))
        canvas.rect(-0.014, cabin.top, 0.014, cabin.bottom, 0.35 * finish.paint)
        return canvas.texture()
    v0, v1 = (0.02, 0.93) if front else (0.10, 0.90)
    edge = [low + (high - low) * v - 0.07 for v in (v0, v1)]
    y0, y1 = cabin.bottom + v0 * tall, cabin.bottom + v1 * tall
    canvas.fill(((-edge[0], y0), (-edge[1], y1), (edge[1], y1), (edge[0], y0)), (finish.glass + sky, finish.glass))
    for x in (-0.36, 0.36):  # head rests, dim behind the glass
        canvas.rect(x - 0.12, y0 + 0.42 * (y1 - y0), x + 0.12, y0 + 0.08 * (y1 - y0), 0.5 * finish.glass, 0.6)
    if front:
        canvas.rect(-0.10, y1 - 0.03, 0.10, y1 - 0.10, 0.02)
        canvas.line(((-0.62, y0 + 0.03), (0.05, y0 + 0.06)), 0.03, 0.02)
    else:
        canvas.rect(-0.14, y1 + 0.01, 0.14, y1 + 0.035, 0.10)
        canvas.line(((0.0, y0), (0.30, y0 + 0.10)), 0.025, 0.02)
    return canvas.texture()


def tail(shape: CarShape, finish: Finish) -> Texture:
    """The rear face: boot lid, lamp glass, plate, bumper, 96 × 48, from its upper edge down to the sill."""
    half, top = shape.width / 2, shape.tail[0]
    canvas = Canvas((-half, top, half, shape.sill), 96, 48, light=0.0)
    canvas.rect(-half, top, half, shape.sill, finish.flank)
    dark = 0.4 * finish.paint + 0.004
    bumper = shape.sill + 0.40 * (min(top, 1.0) - shape.sill)
    canvas.rect(-half, bumper, half, shape.sill, (finish.bumper, 0.6 * finish.bumper))
    canvas.rect(-half, bumper + 0.015, half, bumper - 0.015, dark)
    canvas.rect(-0.6 * half, shape.sill + 0.10, 0.6 * half, shape.sill, 0.02)
    low, high, wide = shape.tail_lamp
    for side in (-1.0, 1.0):
        canvas.rect(side * (half - wide), high, side * (half - 0.02), low, 0.09)
        canvas.rect(side * (half - wide), high - 0.06, side * (half - wide + 0.07), high - 0.13, 0.5)
        canvas.rect(side * (half - 0.20), bumper - 0.06, side * (half - 0.06), bumper - 0.10, 0.12)
        canvas.line(((side * (half - wide - 0.03), top), (side * (half - wide - 0.05), bumper)), 0.02, dark)
    plate = 0.5 * (bumper + min(top, 1.0)) - 0.03
    canvas.rect(-0.34, plate + 0.10, 0.34, plate - 0.09, dark)
    _number_plate(canvas, plate)
    canvas.rect(-0.07, plate + 0.20, 0.07, plate + 0.15, 0.55)
    return canvas.texture()


def nose(shape: CarShape, finish: Finish) -> Texture:
    """The front face: grille, lamp glass, plate, bumper, 96 × 48, from the bonnet's edge down to the sill."""
    half, top = shape.width / 2, shape.nose[0]
    canvas = Canvas((-half, top, half, shape.sill), 96, 48, light=0.0)
    canvas.rect(-half, top, half, shape.sill, finish.flank)
    low, high, wide = shape.head_lamp
    middle = 0.5 * (low + high)
    canvas.rect(-half, low - 0.05, half, shape.sill, (0.9 * finish.paint + 0.02, 0.6 * finish.bumper))
    canvas.rect(-half + wide + 0.05, high, half - wide - 0.05, low - 0.02, 0.03)
    for y in np.linspace(low + 0.02, high - 0.02, 3):
        canvas.rect(-half + wide + 0.08, float(y) + 0.012, half - wide - 0.08, float(y) - 0.012, 0.25)
    canvas.disc(0.0, middle, 0.07, 0.6)
    for side in (-1.0, 1.0):
        canvas.rect(side * (half - wide), high, side * (half - 0.02), low, (0.65, 0.35))
        canvas.rect(side * (half - wide), high, side * (half - wide + 0.03), low, 0.05)
        canvas.rect(side * (half - 0.34), shape.sill + 0.20, side * (half - 0.12), shape.sill + 0.10, 0.03)
    canvas.rect(-0.55 * half, shape.sill + 0.16, 0.55 * half, shape.sill + 0.02, 0.02)
    _number_plate(canvas, shape.sill + 0.5 * (low - shape.sill) + 0.05)
    return canvas.texture()


@lru_cache(maxsize=64)
def tyres(shape: CarShape, half: float, top: float) -> Texture:
    """A pair of tyres seen end on, 48 × 16, from ``top`` down to the road."""
    canvas = Canvas((-half, top, half, 0.0), 48, 16)
    for side in (-1.0, 1.0):
        canvas.rect(side * (half - 0.21), top, side * half, 0.0, TYRE)
    return canvas.texture()


@lru_cache(maxsize=64)
def lamps(shape: CarShape, front: bool) -> Texture:
    """The shining part of both lamps of one end, 64 × 8: as wide as the car, empty between the lamps."""
    half = shape.width / 2
    low, high, wide = shape.head_lamp if front else shape.tail_lamp
    canvas = Canvas((-half, high, half, low), 64, 8)
    for side in (-1.0, 1.0):
        if front:
            canvas.rect(side * (half - 0.75 * wide), high - 0.02, side * (half - 0.25 * wide), low + 0.02, 0.85)
        else:
            canvas.rect(side * (half - 0.9 * wide), high - 0.015, side * (half - 0.04), low + 0.03, 0.25)
    return canvas.texture()


def deck(finish: Finish, dark: bool = False) -> Texture:
    """A bonnet, boot lid or roof, 16 × 8: plain paint with a gap along its edges; or a covered load bed."""
    canvas = Canvas((0.0, 0.0, 1.0, 1.0), 16, 8, light=finish.upper)
    if dark:
        canvas.rect(0.08, 0.06, 0.92, 0.94, 0.04)
    else:
        canvas.rect(0.0, 0.0, 0.0625, 1.0, 0.75 * finish.upper)
        canvas.rect(0.9375, 0.0, 1.0, 1.0, 0.75 * finish.upper)
    return canvas.texture()


def _door_gaps(shape: CarShape) -> tuple[float, ...]:
    """z where doors end: under the posts, and behind the front wheel."""
    posts = [z for cabin in shape.cabins for z in cabin.pillars if z > shape.axles[0]]
    return (*posts, shape.axles[1] - 1.3 * shape.wheel - 0.08)


def _wheel_arch(canvas: Canvas, z: float, shape: CarShape) -> None:
    """The hollow the wheel sits in; below the sill there is nothing."""
    reach = 1.16 * shape.wheel
    angles = np.linspace(0.0, np.pi, 17)
    arch = [(z + reach * float(np.cos(a)), shape.wheel + reach * float(np.sin(a))) for a in angles]
    canvas.fill([*arch, (z - reach, shape.sill), (z + reach, shape.sill)], ARCH)


def _wheel(canvas: Canvas, z: float, radius: float, finish: Finish) -> None:
    """Tyre, rim, and dark gaps between the spokes."""
    canvas.disc(z, radius, radius, TYRE)
    canvas.disc(z, radius, 0.66 * radius, finish.rim)
    for k in range(finish.spokes):
        a = 2 * np.pi * (k + 0.25) / finish.spokes
        wide = 0.32 * 2 * np.pi / finish.spokes
        gap: list[Point] = [
            (z + r * radius * float(np.cos(a + s * wide)), radius + r * radius * float(np.sin(a + s * wide)))
            for r, s in ((0.22, 0.0), (0.58, -1.0), (0.58, 1.0))
        ]
        canvas.fill(gap, TYRE)


def _side_window(cabin: Cabin, begin: float | None, end: float | None) -> tuple[Point, ...]:
    """The pane between two posts; None stands for the cabin's own slanted end."""
    tall = cabin.top - cabin.bottom
    corners: list[Point] = []
    for v, order in ((0.05, 1), (0.86, -1)):
        rear = cabin.rear[0] + (cabin.rear[1] - cabin.rear[0]) * v + 0.09
        front = cabin.front[0] + (cabin.front[1] - cabin.front[0]) * v - 0.09
        z0 = rear if begin is None else max(begin + 0.04, rear)
        z1 = front if end is None else min(end - 0.04, front)
        y = cabin.bottom + v * tall
        corners += [(min(z0, z1), y), (max(z0, z1) if z1 > z0 else min(z0, z1), y)][::order]
    return tuple(corners)


def _box_flank(canvas: Canvas, cabin: Cabin) -> None:
    """A truck's box: plain, with a frame and the owner's lettering."""
    canvas.fill(cabin.side, (0.72, 0.60))
    canvas.rect(cabin.rear[0], cabin.bottom + 0.12, cabin.front[0], cabin.bottom, 0.25)
    canvas.rect(cabin.rear[0], cabin.top, cabin.front[0], cabin.top - 0.07, 0.35)
    _lettering(canvas, cabin.rear[0] + 0.6, cabin.front[0] - 0.7, cabin, 0.18)


def _lettering(canvas: Canvas, z0: float, z1: float, cabin: Cabin, light: float) -> None:
    """Something that could be a firm's name: a band of blocks of uneven width."""
    tall = cabin.top - cabin.bottom
    low, high = cabin.bottom + 0.38 * tall, cabin.bottom + 0.62 * tall
    z, k = z0, 0
    while z < z1 - 0.2:
        wide = (0.20, 0.14, 0.24, 0.16)[k % 4]
        canvas.rect(z, high, z + wide, low, light)
        z, k = z + wide + 0.10, k + 1
    canvas.rect(z0, low - 0.08, z1, low - 0.14, light)


def _shutter(canvas: Canvas, half: float, cabin: Cabin, front: bool) -> None:
    """The end wall of a truck's box; at the rear two doors with their locking rods."""
    canvas.rect(-half, cabin.top, half, cabin.bottom, (0.66, 0.52))
    canvas.rect(-half, cabin.top, half, cabin.top - 0.08, 0.30)
    if front:
        return
    for side in (-1.0, 1.0):
        canvas.rect(side * half, cabin.top, side * (half - 0.07), cabin.bottom, 0.30)
        canvas.rect(side * 0.34, cabin.top - 0.08, side * 0.38, cabin.bottom, 0.22)
    canvas.rect(-0.025, cabin.top, 0.025, cabin.bottom, 0.12)
    canvas.rect(-half, cabin.bottom + 0.14, half, cabin.bottom, 0.10)


def _number_plate(canvas: Canvas, y: float) -> None:
    """Bright, with dark signs."""
    canvas.rect(-0.27, y + 0.06, 0.27, y - 0.06, 0.70)
    for k in range(7):
        x = -0.21 + 0.062 * k
        if k != 2:
            canvas.rect(x, y + 0.035, x + 0.036, y - 0.035, 0.12)
