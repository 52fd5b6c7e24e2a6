"""People around the camera: from far away to so near that they fill the picture, alone and in groups.

Each is placed where the camera looks at some moment, at any distance, so that people of all sizes and people cut by the
edge of the picture are common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fate.simulation.art.actors import Ego, Layer, Path, Straight, Swaying
from fate.simulation.art.catalogue import Split
from fate.simulation.art.panels import Body, Canvas
from fate.simulation.art.people import make_person
from fate.simulation.art.skeleton import Motion

#: Metres from the camera to the nearest and to the furthest people.
NEAREST, FURTHEST = 1.2, 30.0
#: For a camera at rest, someone who stays in place further away than this gives next to no events, metres.
NEAR_ENOUGH = 7.0
#: People are within this angle from the middle of the picture, rad.
ASIDE = 0.6
_SHARES: dict[Motion, float] = {"walk": 0.5, "run": 0.12, "stand": 0.22, "sit": 0.1, "crouch": 0.06}
#: Metres that a bicycle goes while its pedals turn once.
TURN_OF_PEDALS = 5.0
_TRIES = 4  # attempts to find a free spot for someone
_SEAT = 0.255  # height of a seat, of a person's height


class Street(Protocol):
    """What people are added to: a street builder."""

    rng: np.random.Generator
    split: Split
    ego: Ego
    seconds: float
    at_rest: bool

    def add(self, body: Body, path: Path, mirror: float = 1.0, labelled: bool = True) -> bool:
        """Add someone; False if it would pass through another one."""

    def add_two_wheeler(self, body: Body, path: Path) -> None:
        """Add a two-wheeler and its rider, unless it would pass through another one."""

    def add_scenery(self, body: Body, x: float, z: float, layer: Layer = Layer.STANDING) -> None:
        """Add something that stays where it is."""


def add_people(street: Street, number: float) -> None:
    """Add about ``number`` people to what the camera sees, a third of them in groups; fewer where there is no room."""
    rng = street.rng
    for _ in range(rng.poisson(0.7 * number)):
        motion = list(_SHARES)[int(rng.choice(len(_SHARES), p=list(_SHARES.values())))]
        _add_person(street, motion)
    for _ in range(rng.poisson(0.1 * number)):
        _add_group(street)


def add_riders(street: Street, machines: Sequence[Body], number: float) -> None:
    """Add about ``number`` of these two-wheelers to what the camera sees, on any way."""
    rng = street.rng
    for _ in range(rng.poisson(number)):
        machine, spot, speed = machines[int(rng.integers(len(machines)))], _draw_spot(street, False), rng.uniform(2, 9)
        street.add_two_wheeler(machine, spot.way(speed, TURN_OF_PEDALS))


def stride_of(body: Body, speed: float, motion: Motion) -> float:
    """Metres of two steps of a person who walks or runs at ``speed`` m/s."""
    return body.height * (0.6 + 0.3 * speed if motion == "run" else 0.55 + 0.2 * speed)


class Spot(NamedTuple):
    """A point that the camera sees at a moment, and the heading of someone there."""

    when: float  # seconds
    x: float
    z: float
    heading: float

    def way(self, speed: float, stride: float) -> Straight:
        """The straight way that leads here at this moment."""
        come, sin, cos = speed * self.when, float(np.sin(self.heading)), float(np.cos(self.heading))
        return Straight(self.x - come * sin, self.z - come * cos, self.heading, speed, stride)

    def beside(self, right: float, ahead: float, turn: float = 0.0) -> Spot:
        """The point that lies so many metres to the right and ahead, as someone sees it after a turn to the right."""
        heading = self.heading + turn
        cos, sin = float(np.cos(heading)), float(np.sin(heading))
        return Spot(self.when, self.x + right * cos + ahead * sin, self.z - right * sin + ahead * cos, heading)


def _draw_spot(street: Street, stays: bool) -> Spot:
    """A point in sight, at a log-uniform distance; across the picture, to the camera or away from it, or anyhow."""
    rng, furthest = street.rng, NEAR_ENOUGH if stays and street.at_rest else FURTHEST
    when, distance = rng.uniform(0, street.seconds), np.exp(rng.uniform(np.log(NEAREST), np.log(furthest)))
    camera = street.ego.at(np.array([when]))
    bearing = float(camera.yaw[0]) + rng.uniform(-ASIDE, ASIDE)
    kind = rng.choice(["across", "along", "any"], p=[0.45, 0.25, 0.3])
    turn = rng.uniform(0, 2 * np.pi)
    if kind != "any":
        turn = rng.choice([0.0, np.pi]) + (np.pi / 2 if kind == "across" else 0.0) + rng.normal(0, 0.15)
    x, z = camera.x[0] + distance * np.sin(bearing), camera.z[0] + distance * np.cos(bearing)
    return Spot(when, float(x), float(z), float(bearing + turn))


def _path(rng: np.random.Generator, body: Body, motion: Motion, spot: Spot, speed: float) -> Path:
    """The way of someone who is at a spot at its moment; without speed it stays there and sways."""
    if speed == 0:
        return Swaying(spot.x, spot.z, float(rng.uniform(0.25, 0.9)), float(rng.uniform(0, 2 * np.pi)), spot.heading)
    return spot.way(speed, stride_of(body, speed, motion))


def _add_person(street: Street, motion: Motion) -> None:
    rng = street.rng
    body = make_person(rng, street.split, motion)
    speed = {"walk": rng.uniform(0.6, 1.9), "run": rng.uniform(2.2, 4.5)}.get(motion, 0.0)
    for _ in range(_TRIES):
        spot = _draw_spot(street, stays=speed == 0)
        if street.add(body, _path(rng, body, motion, spot, speed)):
            if motion == "sit":
                behind = spot.beside(0.0, -0.12)
                street.add_scenery(make_seat(rng, body.height), behind.x, behind.z)
            return


def _add_group(street: Street) -> None:
    """Two to four people who walk side by side, or stand and talk."""
    rng = street.rng
    motion: Motion = "walk" if rng.random() < 0.6 else "stand"
    spot = _draw_spot(street, stays=motion == "stand")
    count, speed, apart = int(rng.integers(2, 5)), float(rng.uniform(0.7, 1.5)), rng.uniform(0.75, 0.95)
    for number in range(count):
        body = make_person(rng, street.split, motion)
        if motion == "walk":
            street.add(body, _path(rng, body, motion, spot.beside(apart * number, rng.normal(0, 0.2)), speed))
        else:  # in a circle, facing its middle
            at = spot.beside(0.0, -0.35 - 0.15 * count, 2 * np.pi * number / count)
            street.add(body, _path(rng, body, motion, at, 0.0))


def make_seat(rng: np.random.Generator, height: float) -> Body:
    """A bench or a stool for a person of this height, a billboard."""
    wide, seat = float(rng.choice([0.22, 0.7])), _SEAT * height
    back = bool(rng.random() < 0.6)
    top, light = 0.95 if back else seat + 0.02, float(rng.choice([0.05, 0.15, 0.3]))
    canvas = Canvas((-wide, top, wide, 0.0), 64, 64)
    canvas.rect(-wide, seat, wide, seat - 0.06, light)
    for x in (-0.9 * wide, 0.9 * wide):
        canvas.line(((x, seat), (x, 0.0)), 0.05, 0.7 * light)
    if back:
        for y in (0.9, 0.75, 0.6):
            canvas.rect(-wide, y, wide, y - 0.09, light)
        canvas.line(((-0.9 * wide, 0.9), (-0.9 * wide, seat)), 0.05, 0.7 * light)
        canvas.line(((0.9 * wide, 0.9), (0.9 * wide, seat)), 0.05, 0.7 * light)
    return Body("seat", "scenery", (canvas.upright(),), 2 * wide, 2 * wide, top, facing=True)
