"""Cars: their shapes, what is drawn on their faces, and the bodies made of both.

A car has a lower body between the bumpers and one or two cabins on top. Lengths are counted from the rear bumper
(z = 0) forwards, heights from the ground up, in metres. Each ``_draw`` function draws one face of a
:class:`CarShape` on a :class:`Canvas`; the shading of the sun and the sky is painted in: faces that look up are
brighter, flanks grow darker towards the road.

The body is a hull of outward panels. From any side at most half of them are visible and they hardly overlap; where
they do, the order in the tuple decides: cabins, then the lower body, then the lamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from fate.simulation.art.canvas import Canvas, Point
from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.panels import Body, Panel, Texture, vector

TYRE = 0.03
ARCH = 0.012  # the hollow around a wheel
TRIM = 0.05  # unpainted plastic

# (reflectance, share): white, silver, grey, black, red, blue, dark green, beige
PAINTS = (
    (0.80, 0.26),
    (0.50, 0.18),
    (0.24, 0.20),
    (0.04, 0.18),
    (0.20, 0.06),
    (0.10, 0.08),
    (0.07, 0.02),
    (0.45, 0.02),
)

_LAMP_STANDS_OUT = 0.012  # m in front of the face behind it
_TAIL_LAMP_EMISSION = 1.2  # on a red lens of 0.25: light 0.3
_HEAD_LAMP_EMISSION = 1.2  # on clear glass of 0.85: light 1.0
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

    @property
    def side(self) -> tuple[Point, ...]:
        """Its outline seen from the side, (z, height), from the rear's bottom over the roof."""
        return (
            (self.rear[0], self.bottom),
            (self.rear[1], self.top),
            (self.front[1], self.top),
            (self.front[0], self.bottom),
        )


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
    def height(self) -> float:
        """The highest roof."""
        return max(cabin.top for cabin in self.cabins)

    @property
    def shoulder(self) -> float:
        """The highest point of the lower body."""
        return max(self.tail[0], self.nose[0], *(cabin.bottom for cabin in self.cabins))

    @property
    def lower_side(self) -> tuple[Point, ...]:
        """The lower body seen from the side without its wheels, (z, height), from the rear sill over the shoulder."""
        first, last = self.cabins[0], self.cabins[-1]
        return (
            (0.0, self.sill),
            (self.tail[1], self.tail[0]),
            (first.rear[0], first.bottom),
            (last.front[0], last.bottom),
            (self.length - self.nose[1], self.nose[0]),
            (self.length, self.sill),
        )


_SHAPES = {
    "hatchback": CarShape(
        length=4.1, width=1.76, sill=0.24, tail=(0.98, 0.09), nose=(0.76, 0.14), wheel=0.32, axles=(0.72, 3.28),
        cabins=(Cabin((0.09, 0.50), (3.16, 2.30), 0.98, 1.46, pillars=(0.72, 1.68)),),
        tail_lamp=(0.66, 0.93, 0.24), head_lamp=(0.58, 0.73, 0.36),
    ),
    "saloon": CarShape(
        length=4.7, width=1.82, sill=0.22, tail=(1.00, 0.10), nose=(0.76, 0.14), wheel=0.33, axles=(1.02, 3.82),
        cabins=(Cabin((0.62, 1.38), (3.55, 2.75), 0.98, 1.44, pillars=(1.38, 2.24)),),
        tail_lamp=(0.72, 0.92, 0.38), head_lamp=(0.58, 0.72, 0.40),
    ),
    "estate": CarShape(
        length=4.75, width=1.82, sill=0.22, tail=(0.99, 0.06), nose=(0.76, 0.14), wheel=0.33, axles=(0.98, 3.80),
        cabins=(Cabin((0.06, 0.42), (3.58, 2.78), 0.98, 1.48, pillars=(1.22, 2.22)),),
        tail_lamp=(0.66, 0.96, 0.22), head_lamp=(0.58, 0.72, 0.40),
    ),
    "suv": CarShape(
        length=4.55, width=1.88, sill=0.33, tail=(1.10, 0.06), nose=(0.98, 0.10), wheel=0.37, axles=(0.88, 3.62),
        cabins=(Cabin((0.06, 0.38), (3.30, 2.62), 1.10, 1.70, pillars=(1.02, 2.02)),),
        tail_lamp=(0.76, 1.06, 0.26), head_lamp=(0.74, 0.92, 0.34),
    ),
    "city-car": CarShape(
        length=3.45, width=1.63, sill=0.23, tail=(0.92, 0.05), nose=(0.80, 0.12), wheel=0.28, axles=(0.55, 2.88),
        cabins=(Cabin((0.05, 0.26), (2.92, 2.14), 0.93, 1.49, pillars=(1.22,)),),
        tail_lamp=(0.60, 0.92, 0.18), head_lamp=(0.58, 0.78, 0.30),
    ),
    "van": CarShape(
        length=5.2, width=1.98, sill=0.30, tail=(1.12, 0.02), nose=(1.00, 0.12), wheel=0.34, axles=(1.02, 4.22),
        cabins=(
            Cabin((0.02, 0.06), (4.72, 3.98), 1.12, 2.02, inset=(0.0, 0.10), pillars=(2.70, 3.30), glazing="front"),
        ),
        tail_lamp=(0.62, 1.08, 0.14), head_lamp=(0.70, 0.94, 0.32),
    ),
    "box-truck": CarShape(
        length=6.3, width=2.2, sill=0.42, tail=(0.98, 0.0), nose=(0.98, 0.02), wheel=0.40, axles=(1.35, 5.25),
        cabins=(
            Cabin((0.0, 0.0), (4.35, 4.35), 0.98, 3.05, inset=(0.0, 0.0), glazing="none"),
            Cabin((4.45, 4.50), (6.28, 5.70), 0.98, 2.25, inset=(0.02, 0.10), glazing="all"),
        ),
        tail_lamp=(0.62, 0.76, 0.30), head_lamp=(0.60, 0.80, 0.30),
    ),
    "pickup": CarShape(
        length=5.3, width=1.86, sill=0.38, tail=(1.08, 0.02), nose=(1.02, 0.10), wheel=0.39, axles=(1.12, 4.32),
        cabins=(Cabin((1.62, 1.78), (4.02, 3.32), 1.08, 1.80, pillars=(2.62,)),),
        tail_lamp=(0.68, 1.04, 0.15), head_lamp=(0.78, 0.97, 0.34),
    ),
    "minivan": CarShape(
        length=4.6, width=1.84, sill=0.24, tail=(1.04, 0.05), nose=(0.84, 0.14), wheel=0.33, axles=(0.82, 3.66),
        cabins=(Cabin((0.05, 0.28), (3.98, 2.72), 1.02, 1.69, pillars=(0.98, 2.00, 3.06)),),
        tail_lamp=(0.70, 1.02, 0.20), head_lamp=(0.62, 0.82, 0.38),
    ),
}  # fmt: skip

_HELD_OUT = ("pickup", "minivan")
CARS = Catalogue(
    "car body",
    common={name: shape for name, shape in _SHAPES.items() if name not in _HELD_OUT},
    held_out={name: _SHAPES[name] for name in _HELD_OUT},
)


def make_car(rng: np.random.Generator, body: str, *, night: bool = False) -> Body:
    """A car of one make, in a paint and a size of its own.

    Args:
        rng: decides paint, size (a few per cent), rims, bumpers, windows, lettering and daytime lights.
        body: one of ``CARS.names``.
        night: lamps on, at both ends.

    Returns:
        A body whose rear bumper is at ``z = -length / 2``.
    """
    shape = CARS.get(body)
    finish = _finish(rng)
    scale = np.array([rng.uniform(0.97, 1.03), rng.uniform(0.97, 1.04), rng.uniform(0.95, 1.05)])
    day_lamps = bool(rng.random() < _DAY_LAMP_SHARE)
    panels: list[Panel] = []
    for index, cabin in enumerate(shape.cabins):
        panels += _cabin_panels(shape, cabin, finish, with_rear=index == 0)
    panels += _lower_panels(shape, finish)
    panels.append(_lamp_panel(shape, front=False, emission=_TAIL_LAMP_EMISSION if night else 0.0))
    glow = _HEAD_LAMP_EMISSION if night else 0.6 * _HEAD_LAMP_EMISSION * day_lamps
    panels.append(_lamp_panel(shape, front=True, emission=glow))
    width, height, length = np.array([shape.width, shape.height, shape.length]) * scale
    middle = vector(0, 0, shape.length / 2)
    moved = tuple(panel.scaled(scale, about=middle) for panel in panels)
    return Body(body, "car", moved, float(length), float(width), float(height))


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


def _draw_cabin_side(cabin: Cabin, finish: Finish) -> Texture:
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


def _draw_cabin_end(shape: CarShape, cabin: Cabin, finish: Finish, front: bool) -> Texture:
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
    for side in (-1.0, 1.0):
        canvas.rect(side * (half - wide), high, side * (half - 0.02), low, (0.65, 0.35))
        canvas.rect(side * (half - wide), high, side * (half - wide + 0.03), low, 0.05)
        canvas.rect(side * (half - 0.34), shape.sill + 0.20, side * (half - 0.12), shape.sill + 0.10, 0.03)
    canvas.rect(-0.55 * half, shape.sill + 0.16, 0.55 * half, shape.sill + 0.02, 0.02)
    _number_plate(canvas, shape.sill + 0.5 * (low - shape.sill) + 0.05)
    return canvas.texture()


@lru_cache(maxsize=64)
def _draw_tyres(shape: CarShape, half: float, top: float) -> Texture:
    """A pair of tyres seen end on, 48 × 16, from ``top`` down to the road."""
    canvas = Canvas((-half, top, half, 0.0), 48, 16)
    for side in (-1.0, 1.0):
        canvas.rect(side * (half - 0.21), top, side * half, 0.0, TYRE)
    return canvas.texture()


@lru_cache(maxsize=64)
def _draw_lamps(shape: CarShape, front: bool) -> Texture:
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


def _draw_deck(finish: Finish, dark: bool = False) -> Texture:
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


def _finish(rng: np.random.Generator) -> Finish:
    shares = np.array([share for _, share in PAINTS])
    paint = PAINTS[int(rng.choice(len(PAINTS), p=shares / shares.sum()))][0] * rng.uniform(0.88, 1.08)
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
    tall, lean = cabin.top - cabin.bottom, low - high
    panels = [
        _deck(_draw_deck(finish), (cabin.rear[1], cabin.top), (cabin.front[1], cabin.top), high),
        _cross(_draw_cabin_end(shape, cabin, finish, True), (cabin.front[1], cabin.top),
               (cabin.front[0], cabin.bottom), low, front=True),
    ]  # fmt: skip
    if with_rear:
        face = _draw_cabin_end(shape, cabin, finish, False)
        panels.append(_cross(face, (cabin.rear[1], cabin.top), (cabin.rear[0], cabin.bottom), low, front=False))
    right = _draw_cabin_side(cabin, finish)
    left = right.mirrored()
    panels.append(Panel(left, vector(-high, -cabin.top, front), vector(0, 0, rear - front), vector(-lean, tall, 0)))
    panels.append(Panel(right, vector(high, -cabin.top, rear), vector(0, 0, front - rear), vector(lean, tall, 0)))
    return panels


def _lower_panels(shape: CarShape, finish: Finish) -> list[Panel]:
    """Tyres seen end on, bonnet and boot, flanks, tail and nose."""
    half, shoulder = shape.width / 2, shape.shoulder
    panels: list[Panel] = []
    track, top = half - 0.03, shape.sill + 0.12
    faces = _draw_tyres(shape, track, top)
    for axle, front in ((shape.axles[0] - 0.7 * shape.wheel, False), (shape.axles[1] + 0.7 * shape.wheel, True)):
        panels.append(_cross(faces, (axle, top), (axle, 0.0), track, front=front))
    tail_edge, nose_edge = (shape.tail[1], shape.tail[0]), (shape.length - shape.nose[1], shape.nose[0])
    boot_end = (shape.cabins[0].rear[0], shape.cabins[0].bottom)
    bonnet_end = (shape.cabins[-1].front[0], shape.cabins[-1].bottom)
    if boot_end[0] - tail_edge[0] > 0.1:
        bed = boot_end[0] - tail_edge[0] > 1.0
        panels.append(_deck(_draw_deck(finish, dark=bed), tail_edge, boot_end, half))
    if nose_edge[0] - bonnet_end[0] > 0.1:
        panels.append(_deck(_draw_deck(finish), bonnet_end, nose_edge, half))
    right = _draw_lower_side(shape, finish)
    left = right.mirrored()
    panels.append(
        Panel(left, vector(-half, -shoulder, shape.length), vector(0, 0, -shape.length), vector(0, shoulder, 0))
    )
    panels.append(Panel(right, vector(half, -shoulder, 0), vector(0, 0, shape.length), vector(0, shoulder, 0)))
    panels.append(_cross(_draw_tail(shape, finish), tail_edge, (0.0, shape.sill), half, front=False))
    panels.append(_cross(_draw_nose(shape, finish), nose_edge, (shape.length, shape.sill), half, front=True))
    return panels


def _lamp_panel(shape: CarShape, front: bool, emission: float) -> Panel:
    """Both lamps of one end, just in front of the leaning face they sit in."""
    (edge, lean), (low, high, _) = (shape.nose, shape.head_lamp) if front else (shape.tail, shape.tail_lamp)
    slope = lean / (edge - shape.sill)
    ends = []
    for height in (high, low):
        inwards = slope * (height - shape.sill) - _LAMP_STANDS_OUT
        ends.append((shape.length - inwards if front else inwards, height))
    texture = _draw_lamps(shape, front)
    return _cross(texture, ends[0], ends[1], shape.width / 2, front=front, emission=emission)


def _cross(
    texture: Texture,
    upper: tuple[float, float],
    lower: tuple[float, float],
    half: float,
    *,
    front: bool,
    emission: float = 0.0,
) -> Panel:
    """A panel from side to side between two (z, height) edges, seen from ahead or from behind."""
    side = 1.0 if front else -1.0
    origin = vector(side * half, -upper[1], upper[0])
    down = vector(0, upper[1] - lower[1], lower[0] - upper[0])
    return Panel(texture, origin, vector(-2 * side * half, 0, 0), down, emission=emission)


def _deck(texture: Texture, rear: tuple[float, float], front: tuple[float, float], half: float) -> Panel:
    """A panel from side to side that is seen from above, between two (z, height) edges."""
    down = vector(0, front[1] - rear[1], rear[0] - front[0])
    return Panel(texture, vector(-half, -front[1], front[0]), vector(2 * half, 0, 0), down)
