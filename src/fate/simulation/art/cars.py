"""Cars: their shapes, what is drawn on their faces, and the bodies made of both.

A car has a lower body between the bumpers and one or two cabins on top. Lengths are counted from the rear bumper
(z = 0) forwards, heights from the ground up, in metres. Each ``_draw`` function draws one face of a
:class:`CarShape` on a :class:`Canvas`; the shading of the sun and the sky is painted in: faces that look up are
brighter, flanks grow darker towards the road.

The body is a hull of outward panels. From any side at most half of them are visible and they hardly overlap; where
they do, the order in the tuple decides: cabins, then the lower body, then the lamps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.panels import Body, Canvas, Panel, Point, Texture, vector

TYRE = 0.03
ARCH = 0.012  # the hollow around a wheel
TRIM = 0.05  # unpainted plastic

#: White, silver, grey, black, red, blue, dark green, beige: how much light each reflects, and its share of the cars.
PAINTS = (0.80, 0.50, 0.24, 0.04, 0.20, 0.10, 0.07, 0.45)
PAINT_SHARES = np.array([0.26, 0.18, 0.20, 0.18, 0.06, 0.08, 0.02, 0.02])

_LAMP_STANDS_OUT = 0.012  # m in front of the face behind it
_LAMP_EMISSION = 1.2  # on a red lens of 0.25: light 0.3; on clear glass of 0.85: light 1.0
_DAY_LAMP_SHARE = 0.35  # of the cars drive with daytime running lights

Glazing = Literal["all", "front", "none"]  # windows all round, only at the front doors (a van), a closed box


@dataclass(frozen=True)
class Cabin:
    """A prism with slanted ends and sides that lean inwards: a greenhouse, a van's upper half, a truck's box."""

    rear: tuple[float, float]  #: z of the rear end at the bottom and at the top
    front: tuple[float, float]  #: z of the front end at the bottom and at the top
    bottom: float  #: height of the belt line
    top: float  #: height of the roof
    inset: tuple[float, float] = (0.03, 0.17)  #: distance of the sides from the widest, at the bottom and the top
    pillars: tuple[float, ...] = ()  #: z of the posts between the side windows
    glazing: Glazing = "all"  #: where there are windows


@dataclass(frozen=True)
class CarShape:
    """One make of car."""

    length: float  #: bumper to bumper
    width: float  #: without mirrors
    sill: float  #: clearance under the doors and bumpers
    tail: tuple[float, float]  #: height of the rear face's upper edge, and how far it leans forward there
    nose: tuple[float, float]  #: height of the front face's upper edge, and how far it leans back there
    wheel: float  #: radius
    axles: tuple[float, float]  #: z of the rear and the front axle
    cabins: tuple[Cabin, ...]  #: from the rear forwards
    tail_lamp: tuple[float, float, float]  #: lower and upper height, and width, of each rear lamp
    head_lamp: tuple[float, float, float]  #: the same at the front

    @property
    def shoulder(self) -> float:
        """The highest point of the lower body."""
        return max(self.tail[0], self.nose[0], *(cabin.bottom for cabin in self.cabins))


CARS = Catalogue.load("cars", CarShape)


def make_car(rng: np.random.Generator, body: str, *, night: bool = False) -> Body:
    """A car of one make (a name in ``CARS``), in a paint and a size of its own; by night its lamps are on."""
    finish, scale, day_lamps = draw_finish(rng), draw_scale(rng), draws_day_lamps(rng)
    return build_car(body, CARS.styles[body], finish, scale, night=night, day_lamps=day_lamps)


def draw_scale(rng: np.random.Generator) -> Float64:
    """How much wider, higher and longer than its make a car is, [3]."""
    return np.array([rng.uniform(0.97, 1.03), rng.uniform(0.97, 1.04), rng.uniform(0.95, 1.05)])


def draws_day_lamps(rng: np.random.Generator) -> bool:
    """Whether a car drives with daytime running lights."""
    return bool(rng.random() < _DAY_LAMP_SHARE)


def build_car(
    name: str,
    shape: CarShape,
    finish: Finish,
    scale: Float64,
    *,
    night: bool,
    day_lamps: bool,
    surface: Callable[[Panel], Panel] | None = None,
) -> Body:
    """The body of a shape in a finish, stretched by ``scale`` [3]; ``surface`` changes every panel but the lamps."""
    panels: list[Panel] = []
    for index, cabin in enumerate(shape.cabins):
        panels += _cabin_panels(shape, cabin, finish, with_rear=index == 0)
    panels += _lower_panels(shape, finish)
    if surface is not None:
        panels = [surface(panel) for panel in panels]
    panels.append(_lamp_panel(shape, front=False, emission=_LAMP_EMISSION if night else 0.0))
    glow = _LAMP_EMISSION if night else 0.6 * _LAMP_EMISSION * day_lamps
    panels.append(_lamp_panel(shape, front=True, emission=glow))
    tallest = max(cabin.top for cabin in shape.cabins)
    width, height, length = np.array([shape.width, tallest, shape.length]) * scale
    middle = vector(0, 0, shape.length / 2)
    moved = tuple(panel.scaled(scale, about=middle) for panel in panels)
    return Body(name, "car", moved, float(length), float(width), float(height))


@dataclass(frozen=True)
class Finish:
    """What differs between two cars of one make."""

    paint: float  #: reflectance of the body
    rim: float  #: reflectance of the wheels' rims
    spokes: int  #: how many
    bumper: float  #: reflectance of the bumpers: the paint's or plastic's
    glass: float  #: the windows' own reflectance where no sky shows in them
    sky: float  #: how much sky the windows show at their upper edge
    stripe: float  #: reflectance of the lettering on a van's flank

    @property
    def upper(self) -> float:
        """Paint that looks up into the sky."""
        return min(0.95, 1.08 * self.paint + 0.06)

    @property
    def flank(self) -> tuple[float, float]:
        """Paint of an upright face, from its upper to its lower edge."""
        return min(0.9, 0.92 * self.paint + 0.035), 0.58 * self.paint + 0.012


def _draw_lower_side(shape: CarShape, finish: Finish) -> Texture:
    """The right flank's doors, sill and wheels, 128 × 48; the front is at the right."""
    canvas = Canvas((0.0, shape.shoulder, shape.length, 0.0), 128, 48)
    first, last = shape.cabins[0], shape.cabins[-1]
    shoulders: tuple[Point, ...] = (
        (shape.tail[1], shape.tail[0]),
        (first.rear[0], first.bottom),
        (last.front[0], last.bottom),
        (shape.length - shape.nose[1], shape.nose[0]),
    )
    hull = ((0.0, shape.sill), *shoulders, (shape.length, shape.sill))
    canvas.fill(hull, finish.flank)
    dark = 0.45 * finish.paint + 0.005
    canvas.rect(shape.axles[0], shape.sill + 0.10, shape.axles[1], shape.sill, TRIM)
    for z0, z1 in ((0.0, shape.tail[1] + 0.30), (shape.length - shape.nose[1] - 0.28, shape.length)):
        canvas.rect(z0, shape.sill + 0.26, z1, shape.sill, finish.bumper)
    crease = shape.sill + 0.62 * (shape.shoulder - shape.sill)
    canvas.line(((0.15, crease), (shape.length - 0.3, crease - 0.03)), 0.035, dark)
    posts = [z for cabin in shape.cabins for z in cabin.pillars if z > shape.axles[0]]
    for z in (*posts, shape.axles[1] - 1.3 * shape.wheel - 0.08):  # where doors end
        canvas.line(((z, shape.sill + 0.12), (z, shape.shoulder)), 0.03, dark)
        canvas.rect(z + 0.06, crease + 0.11, z + 0.24, crease + 0.07, dark)
    canvas.rect(shape.length - 0.42, shape.head_lamp[1], shape.length - 0.05, shape.head_lamp[0] + 0.03, 0.55)
    canvas.rect(0.02, shape.tail_lamp[1], 0.24, shape.tail_lamp[0], 0.10)
    canvas.keep(((0.0, 0.0), *hull, (shape.length, 0.0)))
    reach = 1.16 * shape.wheel
    for z in shape.axles:  # the hollow that the wheel sits in; below the sill there is nothing
        arch = [_on_circle(z, shape.wheel, reach, a) for a in np.linspace(0.0, np.pi, 17)]
        canvas.fill([*arch, (z - reach, shape.sill), (z + reach, shape.sill)], ARCH)
    for z in shape.axles:
        _wheel(canvas, z, shape.wheel, finish)
    return canvas.texture()


def _draw_cabin_side(cabin: Cabin, finish: Finish) -> Texture:
    """Roof line, posts and side windows from the right, 128 × 40; the front is at the right."""
    canvas = Canvas((min(cabin.rear), cabin.top, max(cabin.front), cabin.bottom), 128, 40)
    rear, front, top, bottom = cabin.rear[0], cabin.front[0], cabin.top, cabin.bottom
    outline = ((rear, bottom), (cabin.rear[1], top), (cabin.front[1], top), (front, bottom))
    if cabin.glazing == "none":  # a truck's box: plain, with a frame and the owner's lettering
        canvas.fill(outline, (0.72, 0.60))
        canvas.rect(rear, bottom + 0.12, front, bottom, 0.25)
        canvas.rect(rear, top, front, top - 0.07, 0.35)
        _lettering(canvas, rear + 0.6, front - 0.7, cabin, 0.18)
        return canvas.texture()
    canvas.fill(outline, (finish.upper, finish.flank[0]))
    posts = (None, *cabin.pillars, None)
    if cabin.glazing == "front":
        posts = (*cabin.pillars[-1:], None)
        _lettering(canvas, rear + 0.5, cabin.pillars[0] - 0.2, cabin, finish.stripe)
        for z in cabin.pillars:
            canvas.line(((z, top - 0.10), (z, bottom)), 0.03, 0.45 * finish.paint)
    for begin, end in pairwise(posts):
        canvas.fill(_side_window(cabin, begin, end), (finish.glass + finish.sky, finish.glass))
    mirror = front - 0.42 * (front - cabin.front[1])
    canvas.rect(mirror - 0.22, bottom + 0.17, mirror, bottom + 0.02, 0.6 * finish.paint + 0.02)
    return canvas.texture()


def _draw_cabin_end(shape: CarShape, cabin: Cabin, finish: Finish, front: bool) -> Texture:
    """The windscreen or the rear window between its posts, 64 × 32; a van has two doors, a box a shutter."""
    low, high = (shape.width / 2 - inset for inset in cabin.inset)
    top, bottom = cabin.top, cabin.bottom
    canvas = Canvas((-low, top, low, bottom), 64, 32)
    canvas.fill(((-low, bottom), (-high, top), (high, top), (low, bottom)), finish.flank)
    tall, sky = top - bottom, 1.3 * finish.sky
    if cabin.glazing == "none":
        canvas.rect(-low, top, low, bottom, (0.66, 0.52))
        canvas.rect(-low, top, low, top - 0.08, 0.30)
        if not front:  # two doors with their locking rods
            canvas.pair(low, top, low - 0.07, bottom, 0.30)
            canvas.pair(0.34, top - 0.08, 0.38, bottom, 0.22)
            canvas.rect(-0.025, top, 0.025, bottom, 0.12)
            canvas.rect(-low, bottom + 0.14, low, bottom, 0.10)
        return canvas.texture()
    if cabin.glazing == "front" and not front:
        canvas.pair(0.09, top - 0.16 * tall, high - 0.08, bottom + 0.38 * tall, (finish.glass + sky, finish.glass))
        canvas.rect(-0.014, top, 0.014, bottom, 0.35 * finish.paint)
        return canvas.texture()
    v0, v1 = (0.02, 0.93) if front else (0.10, 0.90)
    edge = [low + (high - low) * v - 0.07 for v in (v0, v1)]
    y0, y1 = bottom + v0 * tall, bottom + v1 * tall
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


def _draw_tail(shape: CarShape, finish: Finish) -> Texture:
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
    canvas.pair(half - wide, high, half - 0.02, low, 0.09)
    canvas.pair(half - wide, high - 0.06, half - wide + 0.07, high - 0.13, 0.5)
    canvas.pair(half - 0.20, bumper - 0.06, half - 0.06, bumper - 0.10, 0.12)
    for side in (-1.0, 1.0):
        canvas.line(((side * (half - wide - 0.03), top), (side * (half - wide - 0.05), bumper)), 0.02, dark)
    plate = 0.5 * (bumper + min(top, 1.0)) - 0.03
    canvas.rect(-0.34, plate + 0.10, 0.34, plate - 0.09, dark)
    _number_plate(canvas, plate)
    canvas.rect(-0.07, plate + 0.20, 0.07, plate + 0.15, 0.55)
    return canvas.texture()


def _draw_nose(shape: CarShape, finish: Finish) -> Texture:
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
    canvas.pair(half - wide, high, half - 0.02, low, (0.65, 0.35))
    canvas.pair(half - wide, high, half - wide + 0.03, low, 0.05)
    canvas.pair(half - 0.34, shape.sill + 0.20, half - 0.12, shape.sill + 0.10, 0.03)
    canvas.rect(-0.55 * half, shape.sill + 0.16, 0.55 * half, shape.sill + 0.02, 0.02)
    _number_plate(canvas, shape.sill + 0.5 * (low - shape.sill) + 0.05)
    return canvas.texture()


@lru_cache(maxsize=64)
def _draw_tyres(shape: CarShape, half: float, top: float) -> Texture:
    """A pair of tyres seen end on, 48 × 16, from ``top`` down to the road."""
    canvas = Canvas((-half, top, half, 0.0), 48, 16)
    canvas.pair(half - 0.21, top, half, 0.0, TYRE)
    return canvas.texture()


@lru_cache(maxsize=64)
def _draw_lamps(shape: CarShape, front: bool) -> Texture:
    """The shining part of both lamps of one end, 64 × 8: as wide as the car, empty between the lamps."""
    half = shape.width / 2
    low, high, wide = shape.head_lamp if front else shape.tail_lamp
    canvas = Canvas((-half, high, half, low), 64, 8)
    if front:
        canvas.pair(half - 0.75 * wide, high - 0.02, half - 0.25 * wide, low + 0.02, 0.85)
    else:
        canvas.pair(half - 0.9 * wide, high - 0.015, half - 0.04, low + 0.03, 0.25)
    return canvas.texture()


def _draw_deck(finish: Finish, dark: bool = False) -> Texture:
    """A bonnet, boot lid or roof, 16 × 8: plain paint with a gap along its edges; or a covered load bed."""
    canvas = Canvas((0.0, 0.0, 1.0, 1.0), 16, 8, light=finish.upper)
    if dark:
        canvas.rect(0.08, 0.06, 0.92, 0.94, 0.04)
    else:
        for x in (0.0, 0.9375):
            canvas.rect(x, 0.0, x + 0.0625, 1.0, 0.75 * finish.upper)
    return canvas.texture()


def _wheel(canvas: Canvas, z: float, radius: float, finish: Finish) -> None:
    """Tyre, rim, and dark gaps between the spokes."""
    canvas.disc(z, radius, radius, TYRE)
    canvas.disc(z, radius, 0.66 * radius, finish.rim)
    for k in range(finish.spokes):
        a = 2 * np.pi * (k + 0.25) / finish.spokes
        wide = 0.32 * 2 * np.pi / finish.spokes
        corners = ((0.22, 0.0), (0.58, -1.0), (0.58, 1.0))
        canvas.fill([_on_circle(z, radius, r * radius, a + s * wide) for r, s in corners], TYRE)


def _on_circle(z: float, y: float, radius: float, angle: float) -> Point:
    return z + radius * float(np.cos(angle)), y + radius * float(np.sin(angle))


def _side_window(cabin: Cabin, begin: float | None, end: float | None) -> tuple[Point, ...]:
    """The pane between two posts; None stands for the cabin's own slanted end."""
    corners: list[Point] = []
    for v, order in ((0.05, 1), (0.86, -1)):
        rear = cabin.rear[0] + (cabin.rear[1] - cabin.rear[0]) * v + 0.09
        front = cabin.front[0] + (cabin.front[1] - cabin.front[0]) * v - 0.09
        z0 = rear if begin is None else max(begin + 0.04, rear)
        z1 = front if end is None else min(end - 0.04, front)
        y = cabin.bottom + v * (cabin.top - cabin.bottom)
        corners += [(min(z0, z1), y), (z1, y)][::order]
    return tuple(corners)


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


def _number_plate(canvas: Canvas, y: float) -> None:
    """Bright, with dark signs."""
    canvas.rect(-0.27, y + 0.06, 0.27, y - 0.06, 0.70)
    for k in range(7):
        x = -0.21 + 0.062 * k
        if k != 2:
            canvas.rect(x, y + 0.035, x + 0.036, y - 0.035, 0.12)


def draw_finish(rng: np.random.Generator) -> Finish:
    """Paint, wheels and glass of one car."""
    paint = PAINTS[int(rng.choice(len(PAINTS), p=PAINT_SHARES / PAINT_SHARES.sum()))] * rng.uniform(0.88, 1.08)
    return Finish(
        paint=float(paint),
        rim=float(rng.uniform(0.30, 0.60)) if rng.random() < 0.85 else 0.06,
        spokes=int(rng.integers(5, 8)),
        bumper=float(paint) if rng.random() < 0.7 else TRIM,
        glass=float(rng.uniform(0.025, 0.06)),
        sky=float(rng.uniform(0.06, 0.26)),
        stripe=float(rng.uniform(0.08, 0.30) if paint > 0.35 else rng.uniform(0.5, 0.8)),
    )


def _cabin_panels(shape: CarShape, cabin: Cabin, finish: Finish, with_rear: bool) -> list[Panel]:
    """Roof, ends and sides. Panels are written with the rear bumper at z = 0; make_car moves them to the middle."""
    low, high = (shape.width / 2 - inset for inset in cabin.inset)
    rear, front = min(cabin.rear), max(cabin.front)
    windscreen = _draw_cabin_end(shape, cabin, finish, True)
    panels = [
        _cross(_draw_deck(finish), (cabin.front[1], cabin.top), (cabin.rear[1], cabin.top), high, False),
        _cross(windscreen, (cabin.front[1], cabin.top), (cabin.front[0], cabin.bottom), low, True),
    ]
    if with_rear:
        face = _draw_cabin_end(shape, cabin, finish, False)
        panels.append(_cross(face, (cabin.rear[1], cabin.top), (cabin.rear[0], cabin.bottom), low, False))
    return panels + _flanks(_draw_cabin_side(cabin, finish), (high, low), (cabin.top, cabin.bottom), (rear, front))


def _lower_panels(shape: CarShape, finish: Finish) -> list[Panel]:
    """Tyres seen end on, bonnet and boot, flanks, tail and nose."""
    half, panels = shape.width / 2, list[Panel]()
    track, top = half - 0.03, shape.sill + 0.12
    faces = _draw_tyres(shape, track, top)
    for axle, front in ((shape.axles[0] - 0.7 * shape.wheel, False), (shape.axles[1] + 0.7 * shape.wheel, True)):
        panels.append(_cross(faces, (axle, top), (axle, 0.0), track, front))
    tail_edge, nose_edge = (shape.tail[1], shape.tail[0]), (shape.length - shape.nose[1], shape.nose[0])
    boot_end = (shape.cabins[0].rear[0], shape.cabins[0].bottom)
    bonnet_end = (shape.cabins[-1].front[0], shape.cabins[-1].bottom)
    if boot_end[0] - tail_edge[0] > 0.1:
        bed = boot_end[0] - tail_edge[0] > 1.0
        panels.append(_cross(_draw_deck(finish, dark=bed), boot_end, tail_edge, half, False))
    if nose_edge[0] - bonnet_end[0] > 0.1:
        panels.append(_cross(_draw_deck(finish), nose_edge, bonnet_end, half, False))
    panels += _flanks(_draw_lower_side(shape, finish), (half, half), (shape.shoulder, 0.0), (0.0, shape.length))
    panels.append(_cross(_draw_tail(shape, finish), tail_edge, (0.0, shape.sill), half, False))
    panels.append(_cross(_draw_nose(shape, finish), nose_edge, (shape.length, shape.sill), half, True))
    return panels


def _flanks(right: Texture, half: Point, heights: Point, ends: Point) -> list[Panel]:
    """Both sides of a car from the texture of the right one; ``half`` and ``heights`` are of upper and lower edge."""
    (upper, lower), (rear, front) = half, ends
    down, along = heights[0] - heights[1], front - rear
    left = Panel(
        right.mirrored(), vector(-upper, -heights[0], front), vector(0, 0, -along), vector(upper - lower, down, 0)
    )
    return [left, Panel(right, vector(upper, -heights[0], rear), vector(0, 0, along), vector(lower - upper, down, 0))]


def _lamp_panel(shape: CarShape, front: bool, emission: float) -> Panel:
    """Both lamps of one end, just in front of the leaning face they sit in."""
    (edge, lean), (low, high, _) = (shape.nose, shape.head_lamp) if front else (shape.tail, shape.tail_lamp)
    slope = lean / (edge - shape.sill)
    ends = []
    for height in (high, low):
        inwards = slope * (height - shape.sill) - _LAMP_STANDS_OUT
        ends.append((shape.length - inwards if front else inwards, height))
    texture = _draw_lamps(shape, front)
    return _cross(texture, ends[0], ends[1], shape.width / 2, front, emission)


def _cross(texture: Texture, upper: Point, lower: Point, half: float, front: bool, emission: float = 0.0) -> Panel:
    """A panel from side to side between two (z, height) edges, seen from ahead; or from behind and from above."""
    side = 1.0 if front else -1.0
    origin = vector(side * half, -upper[1], upper[0])
    down = vector(0, upper[1] - lower[1], lower[0] - upper[0])
    return Panel(texture, origin, vector(-2 * side * half, 0, 0), down, emission=emission)
