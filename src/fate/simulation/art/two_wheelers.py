"""Bicycles, motorbikes and scooters with their riders: a picture from the side and one from behind, crossed.

The side view stands in the plane x = 0 and is seen from both sides; the end view stands across it where the head is,
so that seen at an angle there is still one head, and the tyres' end views stand at the axles. At an angle both views
foreshorten and together fill about the right width. A cyclist's legs are panels of their own that swing at the
hip. Drawings are in metres: z from the rear tyre's back forwards, heights from the ground up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.panels import Body, Canvas, Panel, Point, Swing, Texture, vector

_RUBBER = 0.03
_TEXELS = 128
_PEDALLING = 0.30  # rad, swing of a cyclist's leg at the hip


@dataclass(frozen=True)
class Part:
    """A piece of a machine, seen from the side."""

    points: tuple[Point, ...]  #: (z, height) of an area's corners, of a line's ends, or of one disc's middle
    thickness: float = 0.0  #: of the line, or the disc's radius; 0 for an area
    light: float | None = None  #: None for the machine's paint
    opacity: float = 1.0


@dataclass(frozen=True)
class Machine:
    """Where things are on one make: (z, height) in metres."""

    length: float
    wheel: float  #: radius
    axles: tuple[float, float]  #: z of the rear and the front one
    hip: Point
    shoulder: Point
    hand: Point
    foot: Point
    head: Point
    bars: float  #: width of the handlebars
    parts: tuple[Part, ...]  #: all but the wheels, back to front
    lamps: tuple[float, float] | None = None  #: heights of the tail lamp and of the head lamp
    rims: tuple[tuple[float, float], ...] = ()  #: share of the radius and light of each disc in a tyre; none: spokes
    darkest: float = 0.0  #: of its paints

    @property
    def height(self) -> float:
        return self.head[1] + 0.13

    @property
    def pedals(self) -> bool:
        """Whether it is a bicycle."""
        return not self.rims


TWO_WHEELERS = Catalogue.load("two_wheelers", Machine)


@dataclass(frozen=True)
class Clothes:
    frame: float
    jacket: float
    trousers: float
    skin: float
    helmet: float


def make_two_wheeler(rng: np.random.Generator, body: str, *, night: bool = False, rider: bool = True) -> Body:
    """A two-wheeler (a name in ``TWO_WHEELERS``), with a drawn rider or none, in colours and a size of its own."""
    machine = TWO_WHEELERS.styles[body]
    clothes = Clothes(
        frame=float(rng.choice([0.05, 0.10, 0.20, 0.45, 0.7])),
        jacket=float(rng.choice([0.05, 0.10, 0.25, 0.45, 0.70])),
        trousers=float(rng.uniform(0.03, 0.15)),
        skin=float(rng.uniform(0.15, 0.38)),
        helmet=float(rng.choice([0.04, 0.15, 0.5, 0.8])),
    )
    scale = float(rng.uniform(0.95, 1.05))
    end, side = _end_panel(machine, clothes, rider), _side_panel(machine, clothes, rider)
    panels = [end, side]
    if (
        machine.pedals and rider
    ):  # one leg behind the frame, one in front; the frame is thin, so the order hardly matters
        panels = [end, _leg_panel(machine, clothes, 0.7, np.pi), side, _leg_panel(machine, clothes, 1.0, 0.0)]
    half, tall, rubber = 0.025 if machine.pedals else 0.07, 2 * machine.wheel, Texture.plain(np.full((2, 2), _RUBBER))
    across, down = vector(2 * half, 0, 0), vector(0, tall, 0)
    tyres = [Panel(rubber, vector(-half, -tall, z), across, down, faces="both") for z in machine.axles]  # seen end on
    panels = [*tyres, *panels, *_lamp_panels(machine, night)]
    middle = vector(0, 0, machine.length / 2)
    scaled = tuple(panel.scaled(scale, about=middle) for panel in panels)
    return Body(body, "two-wheeler", scaled, scale * machine.length, scale * machine.bars, scale * machine.height)


def _side_panel(machine: Machine, clothes: Clothes, rider: bool) -> Panel:
    canvas = Canvas((0.0, machine.height, machine.length, 0.0), _TEXELS, _TEXELS)
    for z in machine.axles:
        _draw_wheel(canvas, z, machine)
    for part in machine.parts:
        light = max(clothes.frame, machine.darkest) if part.light is None else part.light
        if len(part.points) == 1:
            canvas.disc(*part.points[0], part.thickness, light)
        elif part.thickness:
            canvas.line(part.points, part.thickness, light)
        else:
            canvas.fill(part.points, light, part.opacity)
    if rider:
        _draw_rider(canvas, machine, clothes)
    if rider and not machine.pedals:
        knee = (machine.foot[0] + 0.12, 0.5 * (machine.hip[1] + machine.foot[1]) + 0.12)
        _draw_leg(canvas, machine.hip, knee, machine.foot, clothes.trousers)
    down = vector(0, machine.height, 0)
    return Panel(canvas.texture(), vector(0, -machine.height, 0), vector(0, 0, machine.length), down, faces="both")


def _draw_wheel(canvas: Canvas, z: float, machine: Machine) -> None:
    """Discs in each other; or a thin tyre and spokes, between which it stays empty."""
    radius = machine.wheel
    if machine.rims:
        for share, light in ((1.0, _RUBBER), *machine.rims):
            canvas.disc(z, radius, share * radius, light)
        return
    angles = np.linspace(0.0, 2 * np.pi, 49)
    inner, reach = radius - 0.045, radius - 0.04
    tyre: list[Point] = [(z + radius * float(np.cos(a)), radius + radius * float(np.sin(a))) for a in angles]
    tyre += [(z + inner * float(np.cos(a)), radius + inner * float(np.sin(a))) for a in angles[::-1]]
    canvas.fill(tyre, _RUBBER)
    for a in np.pi * np.arange(6) / 6:  # spokes blur to a thin veil
        dz, dy = reach * float(np.cos(a)), reach * float(np.sin(a))
        canvas.line(((z - dz, radius - dy), (z + dz, radius + dy)), 0.008, 0.4)


def _draw_rider(canvas: Canvas, machine: Machine, clothes: Clothes) -> None:
    """Back, arm and helmeted head from the side."""
    (hip_z, hip), (neck_z, neck) = machine.hip, machine.shoulder
    back = ((hip_z - 0.15, hip - 0.06), (hip_z - 0.17, hip + 0.14), (neck_z - 0.16, neck - 0.02))
    front = ((neck_z - 0.02, neck + 0.07), (neck_z + 0.09, neck - 0.05), (hip_z + 0.17, hip + 0.08))
    canvas.fill((*back, *front, (hip_z + 0.15, hip - 0.05)), (clothes.jacket, 0.75 * clothes.jacket))
    elbow = (0.5 * (neck_z + machine.hand[0]) + 0.02, 0.5 * (neck + machine.hand[1]) - 0.08)
    canvas.line(((neck_z, neck - 0.06), elbow, machine.hand), 0.10, 0.85 * clothes.jacket)
    canvas.disc(*machine.hand, 0.05, clothes.skin)
    z, y = machine.head
    canvas.disc(z, y, 0.11, clothes.skin)
    helmet = (z - 0.14, y - 0.01), (z - 0.10, y + 0.10), (z, y + 0.13), (z + 0.10, y + 0.10), (z + 0.13, y + 0.02)
    canvas.fill(helmet, clothes.helmet)


def _draw_leg(canvas: Canvas, hip: Point, knee: Point, foot: Point, trousers: float) -> None:
    canvas.line((hip, knee), 0.16, trousers)
    canvas.line((knee, (foot[0], foot[1] + 0.04)), 0.12, trousers)
    canvas.rect(foot[0] - 0.08, foot[1] + 0.08, foot[0] + 0.18, foot[1], 0.03)


def _leg_panel(machine: Machine, clothes: Clothes, shade: float, phase: float) -> Panel:
    """One pedalling leg, bent, hanging from the hip."""
    (hip_z, hip), (foot_z, foot) = machine.hip, machine.foot
    canvas = Canvas((hip_z - 0.10, hip + 0.05, hip_z + 0.50, foot), 48, 80)
    _draw_leg(canvas, machine.hip, (hip_z + 0.34, hip - 0.34), (foot_z, foot), shade * clothes.trousers)
    corner, down = vector(0, -hip - 0.05, hip_z - 0.10), vector(0, hip + 0.05 - foot, 0)
    swing = Swing(vector(0, -hip, hip_z), _PEDALLING, phase)
    return Panel(canvas.texture(), corner, vector(0, 0, 0.60), down, faces="both", swing=swing)


def _end_panel(machine: Machine, clothes: Clothes, rider: bool) -> Panel:
    """The machine from ahead or behind: bars; and its rider's legs, shoulders and head."""
    half, top = machine.bars / 2, machine.height
    hip, neck, foot = machine.hip[1], machine.shoulder[1], machine.foot[1]
    canvas = Canvas((-half, top, half, foot), 64, _TEXELS)
    if not machine.pedals:
        canvas.fill(((-0.17, hip), (-0.13, foot), (0.13, foot), (0.17, hip)), (clothes.frame, 0.05))
    canvas.rect(-half, machine.hand[1] + 0.02, half, machine.hand[1] - 0.02, 0.08)
    if not rider:
        return canvas.upright(machine.hand[0])
    for side, lift in ((-1.0, 0.0), (1.0, 0.10 if machine.pedals else 0.0)):
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
    helmet = (-0.12, y - 0.02), (-0.10, y + 0.09), (0.0, y + 0.13), (0.10, y + 0.09), (0.12, y - 0.02)
    canvas.fill(helmet, clothes.helmet)
    return canvas.upright(machine.head[0])


def _lamp_panels(machine: Machine, night: bool) -> list[Panel]:
    """A tail lamp of light 0.3 and a head lamp of light 1; motorbikes ride with light by day too."""
    if machine.lamps is None:
        return []
    (tail, head), front = machine.lamps, machine.length - 0.4
    red, white = (Texture.plain(np.full((2, 2), light)) for light in (0.25, 0.85))
    rear, ahead, glow = vector(-0.06, -tail, 0.02), vector(0.08, -head, front), 1.2 if night else 0.7
    return [
        Panel(red, rear, vector(0.12, 0, 0), vector(0, 0.08, 0), emission=1.2 if night else 0.0),
        Panel(white, ahead, vector(-0.16, 0, 0), vector(0, 0.14, 0), emission=glow),
    ]
