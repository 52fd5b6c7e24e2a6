"""Bicycles, motorbikes and scooters with their riders: a picture from the side and one from behind, crossed.

The side view stands in the plane x = 0 and is seen from both sides; the end view stands across it where the head is,
so that seen at an angle there is still one head, and the tyres' end views stand at the axles. At an angle both views
foreshorten and together fill about the right width. A cyclist's legs are panels of their own that swing at the
hip. Drawings are in metres: z from the rear tyre's back forwards, heights from the ground up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.simulation.art.canvas import Canvas, Point
from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.panels import Body, Panel, Swing, Texture, vector

_RUBBER = 0.03
_TEXELS = 128
_PEDALLING = 0.30  # rad, swing of a cyclist's leg at the hip


@dataclass(frozen=True)
class _Machine:
    """Where things are on one make: (z, height) in metres."""

    length: float
    wheel: float
    axles: tuple[float, float]
    hip: Point
    shoulder: Point
    hand: Point
    foot: Point
    head: Point
    bars: float  # width of the handlebars
    lamps: tuple[float, float] | None  # heights of the tail lamp and of the head lamp

    @property
    def height(self) -> float:
        return self.head[1] + 0.13


# length, wheel, axles, hip, shoulder, hand, foot, head, bars, lamps
TWO_WHEELERS = Catalogue("two-wheeler", common={
    "bicycle": _Machine(1.76, 0.34, (0.34, 1.42), (0.64, 0.98), (0.98, 1.46), (1.22, 1.06), (0.82, 0.16), (1.08, 1.64),
                        0.58, None),
    "motorbike": _Machine(2.08, 0.31, (0.31, 1.77), (0.72, 0.86), (1.00, 1.38), (1.42, 1.00), (0.88, 0.34),
                          (1.10, 1.57), 0.74, (0.78, 0.88)),
}, held_out={
    "scooter": _Machine(1.82, 0.22, (0.26, 1.58), (0.66, 0.82), (0.76, 1.34), (1.30, 1.02), (1.16, 0.30), (0.82, 1.54),
                        0.68, (0.62, 0.86)),
})  # fmt: skip


@dataclass(frozen=True)
class _Clothes:
    frame: float
    jacket: float
    trousers: float
    skin: float
    helmet: float


def make_two_wheeler(rng: np.random.Generator, body: str, *, night: bool = False) -> Body:
    """A two-wheeler with its rider.

    Args:
        rng: decides colours and size (a few per cent).
        body: one of ``TWO_WHEELERS.names``.
        night: lamps on, where the machine has lamps.
    """
    machine = TWO_WHEELERS.get(body)
    clothes = _Clothes(
        frame=float(rng.choice([0.05, 0.10, 0.20, 0.45, 0.7])),
        jacket=float(rng.choice([0.05, 0.10, 0.25, 0.45, 0.70])),
        trousers=float(rng.uniform(0.03, 0.15)),
        skin=float(rng.uniform(0.15, 0.38)),
        helmet=float(rng.choice([0.04, 0.15, 0.5, 0.8])),
    )
    scale = float(rng.uniform(0.95, 1.05))
    end, side = _end_panel(body, machine, clothes), _side_panel(body, machine, clothes)
    panels = [end, side]
    if body == "bicycle":  # one leg behind the frame, one in front; the frame is thin, so the order hardly matters
        panels = [end, _leg_panel(machine, clothes, 0.7, np.pi), side, _leg_panel(machine, clothes, 1.0, 0.0)]
    panels = [*_tyre_panels(body, machine), *panels, *_lamp_panels(machine, night)]
    middle = vector(0, 0, machine.length / 2)
    scaled = tuple(panel.scaled(scale, about=middle) for panel in panels)
    return Body(body, "two-wheeler", scaled, scale * machine.length, scale * machine.bars, scale * machine.height)


def _side_panel(body: str, machine: _Machine, clothes: _Clothes) -> Panel:
    canvas = Canvas((0.0, machine.height, machine.length, 0.0), _TEXELS, _TEXELS)
    if body == "bicycle":
        _draw_bicycle(canvas, machine, clothes)
    elif body == "motorbike":
        _draw_motorbike(canvas, machine, clothes)
    else:
        _draw_scooter(canvas, machine, clothes)
    _draw_rider(canvas, machine, clothes)
    if body != "bicycle":
        knee = (machine.foot[0] + 0.12, 0.5 * (machine.hip[1] + machine.foot[1]) + 0.12)
        _draw_leg(canvas, machine.hip, knee, machine.foot, clothes.trousers)
    down = vector(0, machine.height, 0)
    return Panel(canvas.texture(), vector(0, -machine.height, 0), vector(0, 0, machine.length), down, faces="both")


def _draw_bicycle(canvas: Canvas, machine: _Machine, clothes: _Clothes) -> None:
    radius, (rear, front) = machine.wheel, machine.axles
    for z in machine.axles:
        _ring(canvas, z, radius, radius - 0.045, _RUBBER)
        for k in range(6):  # spokes blur to a thin veil
            a = np.pi * k / 6
            dz, dy = (radius - 0.04) * float(np.cos(a)), (radius - 0.04) * float(np.sin(a))
            canvas.line(((z - dz, radius - dy), (z + dz, radius + dy)), 0.008, 0.4)
    bracket, seat, head, crown = (0.78, 0.30), (0.64, 0.90), (1.20, 0.94), (1.25, 0.68)
    for line in (
        (seat, bracket, (rear, radius), (seat[0] + 0.02, seat[1] - 0.08)),
        (seat, (head[0], head[1] - 0.05)),
        (bracket, crown),
        (head, crown, (front, radius)),
    ):
        canvas.line(line, 0.042, clothes.frame)
    canvas.line((head, (machine.hand[0] - 0.02, 1.04)), 0.035, 0.1)
    canvas.rect(0.52, 0.97, 0.78, 0.90, 0.03)
    canvas.disc(*bracket, 0.09, 0.25)


def _draw_motorbike(canvas: Canvas, machine: _Machine, clothes: _Clothes) -> None:
    radius, (rear, front) = machine.wheel, machine.axles
    for z in machine.axles:
        canvas.disc(z, radius, radius, _RUBBER)
        canvas.disc(z, radius, 0.62 * radius, 0.22)
        canvas.disc(z, radius, 0.30 * radius, 0.05)
    canvas.line(((front, radius), (1.50, 0.98)), 0.07, 0.35)
    canvas.fill(((0.62, 0.62), (1.42, 0.70), (1.36, 0.22), (0.74, 0.20)), 0.08)
    canvas.disc(1.02, 0.42, 0.15, 0.25)
    canvas.line(((rear, radius), (0.80, 0.36)), 0.07, 0.10)
    canvas.line(((0.80, 0.26), (0.10, 0.36)), 0.09, 0.40)
    canvas.fill(((0.12, 0.84), (0.30, 0.66), (0.95, 0.68), (0.92, 0.80), (0.40, 0.84)), 0.04)
    canvas.fill(((0.88, 0.72), (0.95, 0.94), (1.34, 1.00), (1.50, 0.82), (1.30, 0.66)), clothes.frame)
    canvas.fill(((1.40, 1.02), (1.62, 0.98), (1.64, 0.78), (1.46, 0.76)), clothes.frame)
    canvas.fill(((1.48, 1.02), (1.60, 0.99), (1.44, 1.20)), 0.3, 0.6)
    canvas.fill(((1.52, 0.66), (1.96, 0.62), (2.02, 0.54), (1.60, 0.60)), clothes.frame)


def _draw_scooter(canvas: Canvas, machine: _Machine, clothes: _Clothes) -> None:
    radius = machine.wheel
    for z in machine.axles:
        canvas.disc(z, radius, radius, _RUBBER)
        canvas.disc(z, radius, 0.5 * radius, 0.3)
    paint = max(clothes.frame, 0.1)
    canvas.fill(
        ((0.02, 0.66), (0.22, 0.36), (0.62, 0.22), (1.30, 0.22), (1.30, 0.30), (0.94, 0.32), (0.88, 0.72)), paint
    )
    canvas.fill(((0.06, 0.80), (0.10, 0.68), (0.96, 0.70), (0.94, 0.80)), 0.04)
    canvas.fill(((1.24, 0.24), (1.36, 0.24), (1.50, 0.42), (1.42, 1.00), (1.28, 1.02), (1.34, 0.50)), paint)
    canvas.fill(((1.40, 0.48), (1.78, 0.36), (1.76, 0.44), (1.46, 0.56)), paint)
    canvas.line(((1.34, 1.00), (1.28, 1.06)), 0.05, 0.06)


def _draw_rider(canvas: Canvas, machine: _Machine, clothes: _Clothes) -> None:
    """Back, arm and helmeted head from the side."""
    (hip_z, hip), (neck_z, neck) = machine.hip, machine.shoulder
    canvas.fill(
        (
            (hip_z - 0.15, hip - 0.06),
            (hip_z - 0.17, hip + 0.14),
            (neck_z - 0.16, neck - 0.02),
            (neck_z - 0.02, neck + 0.07),
            (neck_z + 0.09, neck - 0.05),
            (hip_z + 0.17, hip + 0.08),
            (hip_z + 0.15, hip - 0.05),
        ),
        (clothes.jacket, 0.75 * clothes.jacket),
    )
    elbow = (0.5 * (neck_z + machine.hand[0]) + 0.02, 0.5 * (neck + machine.hand[1]) - 0.08)
    canvas.line(((neck_z, neck - 0.06), elbow, machine.hand), 0.10, 0.85 * clothes.jacket)
    canvas.disc(*machine.hand, 0.05, clothes.skin)
    z, y = machine.head
    canvas.disc(z, y, 0.11, clothes.skin)
    canvas.fill(
        ((z - 0.14, y - 0.01), (z - 0.10, y + 0.10), (z, y + 0.13), (z + 0.10, y + 0.10), (z + 0.13, y + 0.02)),
        clothes.helmet,
    )


def _draw_leg(canvas: Canvas, hip: Point, knee: Point, foot: Point, trousers: float) -> None:
    canvas.line((hip, knee), 0.16, trousers)
    canvas.line((knee, (foot[0], foot[1] + 0.04)), 0.12, trousers)
    canvas.rect(foot[0] - 0.08, foot[1] + 0.08, foot[0] + 0.18, foot[1], 0.03)


def _leg_panel(machine: _Machine, clothes: _Clothes, shade: float, phase: float) -> Panel:
    """One pedalling leg, bent, hanging from the hip."""
    (hip_z, hip), (foot_z, foot) = machine.hip, machine.foot
    canvas = Canvas((hip_z - 0.10, hip + 0.05, hip_z + 0.50, foot), 48, 80)
    _draw_leg(canvas, machine.hip, (hip_z + 0.34, hip - 0.34), (foot_z, foot), shade * clothes.trousers)
    corner, down = vector(0, -hip - 0.05, hip_z - 0.10), vector(0, hip + 0.05 - foot, 0)
    swing = Swing(vector(0, -hip, hip_z), _PEDALLING, phase)
    return Panel(canvas.texture(), corner, vector(0, 0, 0.60), down, faces="both", swing=swing)


def _end_panel(body: str, machine: _Machine, clothes: _Clothes) -> Panel:
    """The rider from ahead or behind: bars, legs, shoulders, head."""
    half, top = machine.bars / 2, machine.height
    hip, neck, foot = machine.hip[1], machine.shoulder[1], machine.foot[1]
    canvas = Canvas((-half, top, half, foot), 64, _TEXELS)
    if body != "bicycle":
        canvas.fill(((-0.17, hip), (-0.13, foot), (0.13, foot), (0.17, hip)), (clothes.frame, 0.05))
    canvas.rect(-half, machine.hand[1] + 0.02, half, machine.hand[1] - 0.02, 0.08)
    for side, lift in ((-1.0, 0.0), (1.0, 0.10 if body == "bicycle" else 0.0)):
        sole = foot + lift
        upper, lower = hip + 0.05, sole + 0.06
        leg = ((side * 0.02, upper), (side * 0.19, upper), (side * 0.20, lower), (side * 0.09, lower))
        canvas.fill(leg, clothes.trousers)
        canvas.rect(side * 0.08, sole + 0.07, side * 0.20, sole, 0.03)
        elbow, hand = (side * 0.27, 0.5 * (neck + machine.hand[1])), (side * (half - 0.06), machine.hand[1])
        canvas.line(((side * 0.19, neck - 0.06), elbow, hand), 0.09, 0.8 * clothes.jacket)
    back = ((0.17, hip - 0.05), (0.22, neck), (0.08, neck + 0.08))
    canvas.fill((*back, *((-x, y) for x, y in back[::-1])), (clothes.jacket, 0.75 * clothes.jacket))
    y = machine.head[1]
    canvas.disc(0.0, y, 0.10, clothes.skin)
    canvas.fill(
        ((-0.12, y - 0.02), (-0.10, y + 0.09), (0.0, y + 0.13), (0.10, y + 0.09), (0.12, y - 0.02)), clothes.helmet
    )
    origin = vector(-half, -top, machine.head[0])
    return Panel(canvas.texture(), origin, vector(2 * half, 0, 0), vector(0, top - foot, 0), faces="both")


def _tyre_panels(body: str, machine: _Machine) -> list[Panel]:
    """Both tyres seen end on."""
    half, tall = (0.025 if body == "bicycle" else 0.07), 2 * machine.wheel
    rubber = Texture.plain(np.full((2, 2), _RUBBER))
    return [
        Panel(rubber, vector(-half, -tall, z), vector(2 * half, 0, 0), vector(0, tall, 0), faces="both")
        for z in machine.axles
    ]


def _lamp_panels(machine: _Machine, night: bool) -> list[Panel]:
    """A tail lamp of light 0.3 and a head lamp of light 1; motorbikes ride with light by day too."""
    if machine.lamps is None:
        return []
    (tail, head), front = machine.lamps, machine.length - 0.4
    glow = 1.2 if night else 0.7
    return [
        Panel(
            Texture.plain(np.full((2, 2), 0.25)),
            vector(-0.06, -tail, 0.02),
            vector(0.12, 0, 0),
            vector(0, 0.08, 0),
            emission=1.2 if night else 0.0,
        ),
        Panel(
            Texture.plain(np.full((2, 2), 0.85)),
            vector(0.08, -head, front),
            vector(-0.16, 0, 0),
            vector(0, 0.14, 0),
            emission=glow,
        ),
    ]


def _ring(canvas: Canvas, z: float, outer: float, inner: float, light: float) -> None:
    """A thin tyre; what lies between its spokes stays empty."""
    angles = np.linspace(0.0, 2 * np.pi, 49)
    around: list[Point] = [(z + outer * float(np.cos(a)), outer + outer * float(np.sin(a))) for a in angles]
    back: list[Point] = [(z + inner * float(np.cos(a)), outer + inner * float(np.sin(a))) for a in angles[::-1]]
    canvas.fill((*around, *back), light)
