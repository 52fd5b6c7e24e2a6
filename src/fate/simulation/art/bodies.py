"""Cars in space: the faces of :mod:`fate.simulation.art.car_faces` put together, in paints as they drive about.

A car is a hull of outward panels. From any side at most half of them show, they hardly overlap, and where they do
the order in the tuple settles it: cabins, then the lower body, then the lamps.
"""

from __future__ import annotations

import numpy as np

from fate.simulation.art import car_faces
from fate.simulation.art.car_faces import TRIM, Finish
from fate.simulation.art.car_shapes import CAR_SHAPES, CARS, Cabin, CarShape
from fate.simulation.art.catalogue import Split
from fate.simulation.art.textures import Body, Float64, Panel, Texture
from fate.simulation.art.two_wheelers import TWO_WHEELERS, make_two_wheeler

__all__ = [
    "CAR_BODIES",
    "TWO_WHEELER_BODIES",
    "bodies_for",
    "choose_body",
    "make_car",
    "make_two_wheeler",
    "shadow",
]

CAR_BODIES: tuple[str, ...] = CARS.names
TWO_WHEELER_BODIES: tuple[str, ...] = TWO_WHEELERS.names

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


def bodies_for(split: Split, kind: str = "car") -> tuple[str, ...]:
    """The makes a split may show, of ``"car"`` or ``"two-wheeler"``."""
    return (TWO_WHEELERS if kind == "two-wheeler" else CARS).for_split(split)


def choose_body(rng: np.random.Generator, split: Split, kind: str = "car") -> str:
    """One make for a split; in validation and test a held-out one half of the time."""
    return (TWO_WHEELERS if kind == "two-wheeler" else CARS).choose(rng, split)


def make_car(rng: np.random.Generator, body: str, *, night: bool = False) -> Body:
    """A car of one make, in a paint and a size of its own.

    Args:
        rng: decides paint, size (a few per cent), rims, bumpers, windows, lettering and daytime lights.
        body: one of :data:`CAR_BODIES`.
        night: lamps on, at both ends.

    Returns:
        A body whose rear bumper is at ``z = -length / 2``.
    """
    shape = CAR_SHAPES[CARS.check(body)]
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
    middle = _v(0, 0, shape.length / 2)
    moved = tuple(panel.scaled(scale, about=middle) for panel in panels)
    return Body(body, "car", moved, float(length), float(width), float(height))


def shadow(body: Body) -> Panel:
    """The dark, soft-edged patch on the road under a body (y = 0, seen from above), alpha 0.6 at most."""
    texels = 24
    places = (np.arange(texels) + 0.5) / texels
    rise = np.clip(np.minimum(places, 1.0 - places) / 0.12, 0.0, 1.0)
    alpha = 0.6 * rise[:, None] * rise[None, :]
    texture = Texture(np.full((texels, texels), 0.015, dtype=np.float32), alpha.astype(np.float32))
    width, length = 1.08 * body.width + 0.1, 1.04 * max(body.length, 0.2) + 0.1
    return Panel(texture, _v(-width / 2, 0, length / 2), _v(width, 0, 0), _v(0, 0, -length))


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
        _deck(car_faces.deck(finish), (cabin.rear[1], cabin.top), (cabin.front[1], cabin.top), high),
        _cross(car_faces.cabin_end(shape, cabin, finish, True), (cabin.front[1], cabin.top),
               (cabin.front[0], cabin.bottom), low, front=True),
    ]  # fmt: skip
    if with_rear:
        face = car_faces.cabin_end(shape, cabin, finish, False)
        panels.append(_cross(face, (cabin.rear[1], cabin.top), (cabin.rear[0], cabin.bottom), low, front=False))
    right = car_faces.cabin_side(cabin, finish)
    left = right.mirrored()
    panels.append(Panel(left, _v(-high, -cabin.top, front), _v(0, 0, rear - front), _v(-lean, tall, 0)))
    panels.append(Panel(right, _v(high, -cabin.top, rear), _v(0, 0, front - rear), _v(lean, tall, 0)))
    return panels


def _lower_panels(shape: CarShape, finish: Finish) -> list[Panel]:
    """Tyres seen end on, bonnet and boot, flanks, tail and nose."""
    half, shoulder = shape.width / 2, shape.shoulder
    panels: list[Panel] = []
    track, top = half - 0.03, shape.sill + 0.12
    faces = car_faces.tyres(shape, track, top)
    for axle, front in ((shape.axles[0] - 0.7 * shape.wheel, False), (shape.axles[1] + 0.7 * shape.wheel, True)):
        panels.append(_cross(faces, (axle, top), (axle, 0.0), track, front=front))
    tail_edge, nose_edge = (shape.tail[1], shape.tail[0]), (shape.length - shape.nose[1], shape.nose[0])
    boot_end = (shape.cabins[0].rear[0], shape.cabins[0].bottom)
    bonnet_end = (shape.cabins[-1].front[0], shape.cabins[-1].bottom)
    if boot_end[0] - tail_edge[0] > 0.1:
        bed = boot_end[0] - tail_edge[0] > 1.0
        panels.append(_deck(car_faces.deck(finish, dark=bed), tail_edge, boot_end, half))
    if nose_edge[0] - bonnet_end[0] > 0.1:
        panels.append(_deck(car_faces.deck(finish), bonnet_end, nose_edge, half))
    right = car_faces.lower_side(shape, finish)
    left = right.mirrored()
    panels.append(Panel(left, _v(-half, -shoulder, shape.length), _v(0, 0, -shape.length), _v(0, shoulder, 0)))
    panels.append(Panel(right, _v(half, -shoulder, 0), _v(0, 0, shape.length), _v(0, shoulder, 0)))
    panels.append(_cross(car_faces.tail(shape, finish), tail_edge, (0.0, shape.sill), half, front=False))
    panels.append(_cross(car_faces.nose(shape, finish), nose_edge, (shape.length, shape.sill), half, front=True))
    return panels


def _lamp_panel(shape: CarShape, front: bool, emission: float) -> Panel:
    """Both lamps of one end, just in front of the leaning face they sit in."""
    (edge, lean), (low, high, _) = (shape.nose, shape.head_lamp) if front else (shape.tail, shape.tail_lamp)
    slope = lean / (edge - shape.sill)
    ends = []
    for height in (high, low):
        inwards = slope * (height - shape.sill) - _LAMP_STANDS_OUT
        ends.append((shape.length - inwards if front else inwards, height))
    texture = car_faces.lamps(shape, front)
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
    origin = _v(side * half, -upper[1], upper[0])
    down = _v(0, upper[1] - lower[1], lower[0] - upper[0])
    return Panel(texture, origin, _v(-2 * side * half, 0, 0), down, emission=emission)


def _deck(texture: Texture, rear: tuple[float, float], front: tuple[float, float], half: float) -> Panel:
    """A panel from side to side that is seen from above, between two (z, height) edges."""
    down = _v(0, front[1] - rear[1], rear[0] - front[0])
    return Panel(texture, _v(-half, -front[1], front[0]), _v(2 * half, 0, 0), down)


def _v(x: float, y: float, z: float) -> Float64:
    return np.array([x, y, z], dtype=np.float64)
