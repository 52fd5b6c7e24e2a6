"""The shapes of cars: a lower body between the bumpers and one or two cabins on top, in metres.

Lengths are counted from the rear bumper (z = 0) forwards, heights from the ground up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.drawing import Point

Glazing = Literal["all", "front", "none"]  # windows all round, only at the front doors (a van), a closed box


@dataclass(frozen=True)
class Cabin:
    """A prism with slanted ends and sides that lean inwards: a greenhouse, a van's upper half, a truck's box.

    Attributes:
        rear: z of the rear end at the bottom and at the top.
        front: z of the front end at the bottom and at the top.
        bottom: height of the belt line.
        top: height of the roof.
        inset: how far the sides stand in from the widest, at the bottom and at the top.
        pillars: z of the posts between the side windows.
        glazing: where there are windows.
    """

    rear: tuple[float, float]
    front: tuple[float, float]
    bottom: float
    top: float
    inset: tuple[float, float] = (0.03, 0.17)
    pillars: tuple[float, ...] = ()
    glazing: Glazing = "all"

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
    """One make of car.

    Attributes:
        length: bumper to bumper.
        width: without mirrors.
        sill: clearance under the doors and bumpers.
        tail: height of the rear face's upper edge, and how far it leans forward there.
        nose: height of the front face's upper edge, and how far it leans back there.
        wheel: radius.
        axles: z of the rear and the front axle.
        cabins: from the rear forwards.
        tail_lamp: lower and upper height, and width, of each rear lamp.
        head_lamp: the same at the front.
    """

    length: float
    width: float
    sill: float
    tail: tuple[float, float]
    nose: tuple[float, float]
    wheel: float
    axles: tuple[float, float]
    cabins: tuple[Cabin, ...]
    tail_lamp: tuple[float, float, float]
    head_lamp: tuple[float, float, float]

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


CAR_SHAPES: dict[str, CarShape] = {
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

CARS = Catalogue("car body", common=tuple(CAR_SHAPES)[:-2], held_out=tuple(CAR_SHAPES)[-2:])
