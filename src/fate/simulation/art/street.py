"""A street, from a seed: what stands along it, who drives and walks on it, and in which light.

x = 0 is the middle of the ego lane, z runs along it. Traffic keeps to the right. Everything is drawn from one
generator in one order, so a seed gives one street.

Cars, people and two-wheelers are solid: one that would pass through another, or through the ego car, where the camera
may see it, is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from fate.boxes.labels import NEUTRAL
from fate.simulation.arrays import Float64
from fate.simulation.art import buildings, roadside
from fate.simulation.art.actors import (
    REACH,
    STEP_S,
    Actor,
    Ego,
    Following,
    Layer,
    Lighting,
    Path,
    Straight,
    drive,
    stand,
)
from fate.simulation.art.cast import make_cast, make_park_cast
from fate.simulation.art.catalogue import Split
from fate.simulation.art.crowd import add_people, add_riders
from fate.simulation.art.daylight import draw_lighting, make_lighting
from fate.simulation.art.dressing import clear_of, dress, light_lamps, surround
from fate.simulation.art.layout import LANE, StreetLayout, make_layout, make_motorway
from fate.simulation.art.mounts import MIDDLE, mount_beside, mount_on_car
from fate.simulation.art.panels import Body, Panel, Texture, vector
from fate.simulation.art.riders import Riding, make_rider
from fate.simulation.art.roadside import lay_on_ground, make_shadow
from fate.simulation.art.two_wheelers import TWO_WHEELERS
from fate.simulation.art.variety import Variety

#: How far beyond the end of the drive the street continues, metres.
AHEAD = 150.0
#: Two bodies must be this far apart along each axis, metres.
ELBOW_ROOM = 0.25
#: How often the way of a body is checked, seconds.
CHECK_S = 0.2
#: Bodies further behind the camera than this may pass through each other, metres.
BEHIND = 12.0
#: Half the width of a side street, metres.
SIDE_STREET = 5.0
#: Two-wheelers near the camera in a street of any variety, on average.
RIDERS = 0.8


class StreetBuilder:
    """Collects the actors of a street; many actors share a few bodies."""

    def __init__(
        self,
        rng: np.random.Generator,
        split: Split,
        night: bool,
        ego: Ego,
        seconds: float,
        at_rest: bool,
        variety: Variety | None = None,
        park: bool = False,
        trucks_are_cars: bool = True,
    ) -> None:
        self.rng, self.night, self.split = rng, night, split
        self.ego, self.seconds, self.at_rest = ego, seconds, at_rest
        self.has_riders = variety is not None  #: whether machines of its cast come without drawn ones
        self.motionless = at_rest if variety is None else variety.mount == "mast" and variety.sway == 0
        self.actors: list[Actor] = []
        self.objects: list[Body] = []  #: labelled ones; an actor's owner is its place here
        self.side_streets: list[float] = []  #: z of streets that cross
        self._neutral: dict[int, Body] = {}  # neutral copies of bodies, by the identity of the body
        cast = make_park_cast(rng, split, night) if park else make_cast(rng, split, night, variety, trucks_are_cars)
        self.cars, self.people, self.two_wheelers = cast
        self.shadows = {id(body): make_shadow(body) for body in (*self.cars, *self.people, *self.two_wheelers)}
        self._times = np.arange(0.0, seconds + CHECK_S, CHECK_S)
        x, z = ego.at(self._times)[:2]
        self._ego_z = z
        self._behind = BEHIND if variety is None or not at_rest else REACH
        self._ways: list[tuple[int, int, Float64]] = []  # of each solid thing: see _claim
        half_x, half_z = (0.9, 2.5) if variety is None or not at_rest else (0.3, 0.3)
        self._claim(np.stack([x, z, np.full_like(x, half_x), np.full_like(x, half_z)]))  # the ego car, or a person

    def pick(self, bodies: list[Body]) -> Body:
        """Choose one of the bodies at random."""
        return bodies[int(self.rng.integers(len(bodies)))]

    def add(self, body: Body, path: Path, mirror: float = 1.0, labelled: bool = True) -> bool:
        """A car, a two-wheeler or a pedestrian, with its shadow; False if it would pass through someone.

        One that is not labelled hides others, and is neutral itself.
        """
        if not self._claim(self._way(body, path)):
            return False
        shown = body if labelled or body.kind == "scenery" else self._neutral.setdefault(id(body), _as_neutral(body))
        labelled = shown.kind not in ("scenery", NEUTRAL)
        self.actors.append(Actor(shown, path, owner=len(self.objects) if labelled else -1, mirror=mirror))
        if id(body) not in self.shadows:
            self.shadows[id(body)] = make_shadow(body)
        self.actors.append(Actor(self.shadows[id(body)], path, Layer.SHADOW))
        if labelled:
            self.objects.append(body)
        return True

    def add_two_wheeler(self, body: Body, path: Path) -> None:
        """A two-wheeler; in a street of any variety with a rider of its own, who belongs to the same object."""
        if self.add(body, path) and self.has_riders:
            machine = TWO_WHEELERS.styles[body.name]
            ahead = machine.hip[0] - machine.length / 2
            rider = make_rider(self.rng, self.split, machine)
            self.actors.append(Actor(rider, Riding(path, ahead), owner=len(self.objects) - 1))

    def add_scenery(self, body: Body, x: float, z: float, layer: Layer = Layer.STANDING) -> None:
        """Something that stays where it is."""
        self.actors.append(Actor(body, Straight(x, z), layer))

    def add_wall(self, body: Body, side: float, away: float, z: float) -> None:
        """A wall or a fence beside the street, its front to the street."""
        self.actors.append(Actor(body, Straight(side * away, z, -side * np.pi / 2), reach=body.width / 2))

    def in_side_street(self, z: float, half: float = 0.0) -> bool:
        """Whether something of half a length ``half`` at ``z`` beside the street would stand in a side street."""
        return any(abs(z - middle) < SIDE_STREET + half for middle in self.side_streets)

    def _claim(self, way: Float64) -> bool:
        """Keep the way [4, T] of something solid; False if it would pass through another one.

        Only the times count from the first to the last one at which the camera may see it. They are kept as the index
        of the first, the index past the last, and the way between them.
        """
        near = np.flatnonzero((way[1] > self._ego_z - self._behind) & (way[1] < self._ego_z + REACH))
        begin, end = (int(near[0]), int(near[-1]) + 1) if len(near) else (0, 0)
        for start, stop, other in self._ways:
            first, last = max(begin, start), min(end, stop)
            if first < last:
                ours, theirs = way[:, first:last], other[:, first - start : last - start]
                apart = np.abs(theirs[:2] - ours[:2]) - theirs[2:] - ours[2:] - ELBOW_ROOM
                if bool(np.any(np.all(apart < 0, axis=0))):
                    return False
        self._ways.append((begin, end, way[:, begin:end].copy()))
        return True

    def _way(self, body: Body, path: Path) -> Float64:
        """x, z and half the extent along x and z, [4, T]."""
        pose = path.at(self._times)
        along, across = np.abs(np.cos(pose.heading)), np.abs(np.sin(pose.heading))
        half_length, half_width = max(body.length, 0.4) / 2, max(min(body.width, 3.0), 0.4) / 2
        half_x, half_z = half_width * along + half_length * across, half_length * along + half_width * across
        return np.stack([pose.x, pose.z, half_x, half_z])


def _as_neutral(body: Body) -> Body:
    """The same body, neutral."""
    return replace(body, kind=NEUTRAL)


def spaced(start: float, end: float, gap: Callable[[], float]) -> Iterator[float]:
    """Yield positions z from ``start`` to ``end``; ``gap`` is called for the distance to each next one."""
    z = start
    while z < end:
        yield z
        z += gap()


def make_street(
    seed: int,
    split: Split,
    seconds: float,
    two_wheelers: bool,
    at_rest: bool = False,
    variety: Variety | None = None,
    empty: bool = False,
    park: bool = False,
    trucks_are_cars: bool = True,
) -> tuple[Ego, StreetBuilder, Lighting]:
    """The drive, its actors and its light; or a camera at rest, and who passes it.

    An ``empty`` street has neither traffic nor parked cars nor people. A ``variety`` says itself where the camera is;
    its ego holds the camera's height and roll, too. In a ``park``, vans, dogs and cyclists have boxes.
    Box trucks have boxes as cars if ``trucks_are_cars``, but never in a street of any variety.
    """
    rng = np.random.default_rng([seed, 0x5CE7E])
    if variety is not None:
        lighting, night = draw_lighting(rng, variety, seconds), variety.light in ("dusk", "night")
        ego, layout = _mount_camera(rng, variety, seconds)
        at_rest = variety.mount != "car"
    elif at_rest:
        lighting, night = make_lighting(rng)
        layout = make_layout(rng, fast=bool(rng.random() < 0.3), stops=False, length=AHEAD)
        ego = stand(rng, seconds, layout.left_kerb, layout.right_kerb)
    else:
        ego = drive(rng, seconds)
        fast = float(np.mean(ego.speed)) > 13
        lighting, night = make_lighting(rng)
        stops = bool(np.any(ego.speed == 0))
        layout = make_layout(rng, fast, stops, float(ego.z[-1]) + AHEAD)
    builder = StreetBuilder(rng, split, night, ego, seconds, at_rest, variety, park, trucks_are_cars)
    if not empty:
        if variety is not None:
            _add_crowd(builder, layout, variety.crowding)
        if variety is not None and not layout.is_motorway:
            add_people(builder, variety.people)
            add_riders(builder, builder.two_wheelers, RIDERS)
        if park:
            _add_dogs(builder)
        _add_road_users(builder, layout, two_wheelers)
    _add_ground(builder, layout)
    _add_roadside(builder, layout, sunny=lighting.sun > 0.3)
    _add_walls(builder, layout)
    _add_kerbside(builder, layout)
    if variety is not None:
        ends = -20.0, layout.length
        added, shade = dress(rng, variety, (layout.left_kerb, layout.right_kerb), ends, lighting.sun > 0.3)
        skyline = next(actor.body for actor in builder.actors if actor.layer == Layer.FAR)
        actors = list(light_lamps(rng, variety, [*builder.actors, *added, *surround(skyline)], ego, night))
        builder.actors = list(clear_of(actors, ego.at(np.arange(0.0, seconds, 0.5)))) if at_rest else actors
        lighting = replace(lighting, shade=shade)
    return ego, builder, lighting


def _mount_camera(rng: np.random.Generator, variety: Variety, seconds: float) -> tuple[Ego, StreetLayout]:
    """The camera's way and the street around it; few cars park between the street and a camera beside it."""
    if variety.mount == "car":
        ego = mount_on_car(rng, variety, seconds)
        fast, stops = float(np.mean(ego.speed)) > 13, bool(np.any(ego.speed == 0))
        length = float(ego.z[-1]) + AHEAD
        return ego, make_motorway(rng, length) if variety.motorway else make_layout(rng, fast, stops, length)
    layout = make_layout(rng, fast=bool(rng.random() < 0.3), stops=False, length=MIDDLE + AHEAD)
    ego = mount_beside(rng, variety, seconds, layout.left_kerb, layout.right_kerb)
    if rng.random() < 0.7:
        layout = replace(layout, parking_right=False) if ego.x[0] > 0 else replace(layout, parking_left=False)
    return ego, layout


def _add_crowd(builder: StreetBuilder, layout: StreetLayout, crowding: float) -> None:
    """Cars close to the camera: right ahead of its car, and those that pass it and are cut by the frame."""
    rng, ego = builder.rng, builder.ego
    if not builder.at_rest and rng.random() < 0.5 * crowding:
        gap = rng.uniform(6.0, 10.0)
        ahead = Following(
            ego, rng.normal(0, 0.3), gap, rng.uniform(0, 0.1) * gap, rng.uniform(4, 12), rng.uniform(0, 6.28)
        )
        builder.add(builder.pick(builder.cars), ahead)
    for _ in range(rng.poisson(crowding * builder.seconds / 2)):
        when = rng.uniform(0, builder.seconds)
        x, z = (float(values[0]) for values in ego.at(np.array([when]))[:2])
        if builder.at_rest:
            oncoming, speed = bool(rng.random() < 0.5), rng.uniform(3, 14)
            x, z, heading = -LANE * oncoming, z + rng.uniform(-12, 12), np.pi * oncoming
        else:  # it overtakes
            speed = float(np.interp(when, STEP_S * np.arange(len(ego.z)), ego.speed)) + rng.uniform(1.5, 6)
            on_right = layout.is_motorway and not layout.lanes_beside[0]
            x, heading = x + (1 if on_right else -1) * rng.uniform(2.6, 3.4), 0.0
        way = speed * when * np.cos(heading)
        builder.add(builder.pick(builder.cars), Straight(x + rng.normal(0, 0.15), z - way, heading, speed))


def _add_road_users(builder: StreetBuilder, layout: StreetLayout, two_wheelers: bool) -> None:
    """Add everything that is labelled."""
    _add_traffic(builder, layout)
    if layout.is_motorway:
        _add_lanes_beside(builder, layout)
        return
    if two_wheelers:
        _add_two_wheelers(builder, layout)
    _add_parked(builder, layout)
    _add_pedestrians(builder, layout)


def _add_traffic(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Add cars ahead in the lane, oncoming cars, cars that overtake, and cars from side streets."""
    rng, ego = builder.rng, builder.ego
    if builder.at_rest:  # cars come from behind the camera and drive on
        speed, headway = rng.uniform(5, 12) if layout.kind != "open" else rng.uniform(12, 20), rng.uniform(12, 50)
        z = rng.uniform(-10, 60) + float(ego.z[0])
        while z > -speed * builder.seconds:
            builder.add(builder.pick(builder.cars), Straight(rng.normal(0, 0.15), z, 0.0, speed))
            z -= 9 + rng.exponential(headway)
    elif rng.random() < 0.75:
        gap = rng.uniform(8, 26)
        sway = rng.uniform(0.1, 0.3) * gap
        ahead = Following(ego, rng.normal(0, 0.2), gap + 2, sway, rng.uniform(6, 20), rng.uniform(0, 6.28))
        builder.add(builder.pick(builder.cars), ahead)
        if rng.random() < 0.5:
            second = gap + sway + rng.uniform(12, 25)
            builder.add(builder.pick(builder.cars), Following(ego, rng.normal(0, 0.2), second, 2.0, 11.0, 0.0))
    ours = layout.lanes_beside[0]  # lanes on the left that go our way
    if layout.is_motorway and ours == layout.oncoming_lanes:
        return
    mean = float(np.mean(ego.speed))
    if layout.oncoming_lanes == 2 and not layout.is_motorway:
        ours = 1
        for z in spaced(rng.uniform(-20, 20), 90, lambda: 15 + rng.exponential(40)):
            speed = max(mean + rng.uniform(-6, 6), 2.0)
            builder.add(builder.pick(builder.cars), Straight(-LANE + rng.normal(0, 0.15), z, 0.0, speed))
    speed = rng.uniform(5, 12) if layout.kind != "open" else rng.uniform(12, 20)
    speed = mean * rng.uniform(0.7, 1.2) if layout.is_motorway else speed
    first, headway = rng.uniform(10, 40), rng.uniform(18, 60)
    for z in spaced(first, layout.length + speed * builder.seconds, lambda: 9 + rng.exponential(headway)):
        path = Straight(-(1 + ours) * LANE + rng.normal(0, 0.15), z, np.pi, speed + rng.normal(0, 0.02))
        builder.add(builder.pick(builder.cars), path)
    if layout.is_motorway:
        return
    for _ in range(rng.poisson(builder.seconds / 8)):
        when, speed = rng.uniform(0, builder.seconds), rng.uniform(3, 10)
        side = float(rng.choice([-1, 1]))
        z = float(ego.at(np.array([when]))[1][0]) + rng.uniform(14, 38)
        if builder.add(builder.pick(builder.cars), Straight(-side * speed * when, z, side * np.pi / 2, speed)):
            builder.side_streets.append(z)


def _add_lanes_beside(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Cars and some motorbikes in the other lanes of a motorway; most are nearly as fast as the camera's car."""
    rng, ego = builder.rng, builder.ego
    left, right = layout.lanes_beside
    mean, dense = float(np.mean(ego.speed)), rng.uniform(8, 50)
    motorbikes = [body for body in builder.two_wheelers if not TWO_WHEELERS.styles[body.name].pedals]
    for lane in (*range(-left, 0), *range(1, right + 1)):
        for z in spaced(rng.uniform(-12, 20), 110, lambda: 9 + rng.exponential(dense)):
            x = lane * LANE + rng.normal(0, 0.2)
            if rng.random() < 0.6:
                sway, period = rng.uniform(0, 3), rng.uniform(6, 20)
                path: Path = Following(ego, x, z, sway, period, rng.uniform(0, 6.28))
            else:
                path = Straight(x, z, 0.0, max(mean + rng.uniform(-8, 8), 5.0))
            if motorbikes and rng.random() < 0.1:
                builder.add_two_wheeler(builder.pick(motorbikes), path)
            else:
                builder.add(builder.pick(builder.cars), path)


def _add_parked(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Add parked cars along the kerbs, but not in a side street.

    For a camera that does not move they cause next to no events, so they are neutral there; they still hide others.
    """
    rng = builder.rng
    taken = rng.uniform(0.25, 0.85)
    right = layout.parking_right, layout.right_kerb - 1.05, 0.0
    left = layout.parking_left, layout.left_kerb + 1.05, np.pi
    for on, x, heading in (right, left):
        z = rng.uniform(4, 14)
        while on and z < layout.length:
            car = builder.pick(builder.cars)
            if rng.random() < taken and not builder.in_side_street(z, car.length / 2):
                away = np.pi if rng.random() < 0.15 else 0.0
                path = Straight(x + rng.normal(0, 0.08), z, heading + away + rng.normal(0, 0.01))
                builder.add(car, path, labelled=not builder.motionless)
            z += car.length + rng.uniform(0.8, 2.0)


def _add_pedestrians(builder: StreetBuilder, layout: StreetLayout) -> None:
    """On the pavements, those who come nearer to the kerb, and now and then across the street."""
    rng = builder.rng
    busy = {"town": 16.0, "suburb": 35.0, "open": 200.0}[layout.kind]
    for side, kerb in layout.sides:
        for z in spaced(rng.exponential(busy / 2), layout.length, lambda: rng.exponential(busy)):
            body = builder.pick(builder.people)
            away = bool(rng.random() < 0.5)
            pace = rng.uniform()  # the faster, the further from the kerb: nobody runs into the one ahead
            speed, beside = 0.8 + pace, 0.4 + 0.8 * pace + (1.1 if away else 0.0)
            path = Straight(side * (kerb + beside), z, 0.0 if away else np.pi, speed, 0.8 * body.height)
            builder.add(body, path, float(rng.choice([-1, 1])))
    for _ in range(rng.poisson(builder.seconds / 4 if layout.kind != "open" else 0.1)):
        when, speed, side = rng.uniform(0, builder.seconds), rng.uniform(0.9, 1.8), float(rng.choice([-1, 1]))
        z = float(builder.ego.at(np.array([when]))[1][0]) + rng.uniform(8, 22)
        body = builder.pick(builder.people)
        path = Straight(rng.uniform(-2, 2) - side * speed * when, z, side * np.pi / 2, speed, 0.8 * body.height)
        builder.add(body, path, side)


def _add_dogs(builder: StreetBuilder) -> None:
    """Dogs that cross the street, or run along it, close to the camera."""
    rng, dogs = builder.rng, [body for body in builder.people if body.kind == "dog"]
    for _ in range(2 + rng.poisson(builder.seconds)):
        when, speed, body = rng.uniform(0, builder.seconds), rng.uniform(0.8, 3.0), builder.pick(dogs)
        heading = float(rng.choice([-np.pi / 2, np.pi / 2, 0.0, np.pi]) + rng.normal(0, 0.3))
        x, z = (float(values[0]) for values in builder.ego.at(np.array([when]))[:2])
        x, z = x + rng.uniform(-3, 3), z + rng.uniform(4, 14)
        way = speed * when
        path = Straight(x - way * np.sin(heading), z - way * np.cos(heading), heading, speed, 1.4 * body.length)
        builder.add(body, path)


def _add_two_wheelers(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Beside the traffic in our lane, and at the edge of the oncoming one."""
    rng = builder.rng
    gap = rng.uniform(5, 10)
    for _ in range(1 + rng.poisson(1.5)):
        sway = rng.uniform(0.5, 1.5)
        body, x = builder.pick(builder.two_wheelers), rng.uniform(1.3, 1.5)
        following = Following(builder.ego, x, gap, sway, rng.uniform(5, 15), rng.uniform(0, 6.28), 5.0)
        passing = Straight(x, gap - 12.0 + float(builder.ego.z[0]), 0.0, 5.0, 5.0)  # from behind the camera
        builder.add_two_wheeler(body, passing if builder.at_rest else following)
        gap += rng.uniform(6, 12)
    first, speed = rng.uniform(15, 60), rng.uniform(3, 9)
    for z in spaced(first, layout.length + speed * builder.seconds, lambda: 10 + rng.exponential(50)):
        x = -layout.oncoming_lanes * LANE - 1.6
        builder.add_two_wheeler(builder.pick(builder.two_wheelers), Straight(x, z, np.pi, speed, 5.0))


def _add_ground(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Asphalt and pavements, lane markings, crossings, patches and covers; and the skyline far behind."""
    rng = builder.rng
    profile = roadside.ground_profile(rng, layout.left_kerb, layout.right_kerb, -30.0, 30.0)
    meadow = Texture.plain(rng.uniform(0.08, 0.16))
    back = 0.5 if builder.ego.height is None else -700.0  # a camera of any height and direction may look behind itself
    for layer, texture, reach in ((Layer.GROUND, profile, 30.0), (Layer.LAND, meadow, 500.0)):
        panel = Panel(texture, vector(-reach, 0, 700), vector(2 * reach, 0, 0), vector(0, 0, back - 700))
        builder.add_scenery(Body("ground", "scenery", (panel,), 700.0, 2 * reach, 0.0), 0.0, 0.0, layer)
    if layout.kind != "open":
        for x in (layout.left_kerb, layout.right_kerb):
            kerb = Texture.plain(roadside.KERB_STRIP if x > 0 else roadside.KERB_STRIP[::-1])
            panel = Panel(kerb, vector(x - 0.25, 0, 300), vector(0.5, 0, 0), vector(0, 0, max(back, -300.0) - 300))
            builder.add_scenery(Body("kerb", "scenery", (panel,), 300.0, 0.5, 0.0), 0.0, 0.0, Layer.KERB)
    skyline = roadside.make_skyline(rng)
    far = Panel(skyline, vector(-900, -95, 800), vector(1800, 0, 0), vector(0, 97, 0))
    builder.add_scenery(Body("skyline", "scenery", (far,), 0.0, 1800.0, 95.0), 0.0, 0.0, Layer.FAR)

    length = 8 * (9.0 if layout.kind != "open" else 12.0)
    line = lay_on_ground("dashes", roadside.DASHES, 0.14, length)
    for lane in range(1, layout.oncoming_lanes + 1):
        for z in np.arange(-10.0, layout.length, length):
            builder.add_scenery(line, LANE / 2 - lane * LANE, z + length / 2, Layer.MARKING)
    for lane in range(1, layout.lanes_beside[1] + 1):
        for z in np.arange(-10.0, layout.length, length):
            builder.add_scenery(line, lane * LANE - LANE / 2, z + length / 2, Layer.MARKING)
    patches = [roadside.make_patch(rng) for _ in range(4)]
    cover = lay_on_ground("manhole", roadside.manhole(), 0.7, 0.7)
    z = 0.0
    while z < layout.length:
        z += rng.exponential(14.0)
        body = cover if rng.random() < 0.35 else builder.pick(patches)
        builder.add_scenery(body, rng.uniform(layout.left_kerb + 1, layout.right_kerb - 0.5), z, Layer.MARKING)
    if layout.kind != "open":
        width = layout.right_kerb - layout.left_kerb
        crossing = lay_on_ground("crossing", roadside.CROSSWALK, width, 3.5)
        for z in spaced(rng.uniform(15, 90), layout.length, lambda: rng.uniform(70, 200)):
            builder.add_scenery(crossing, (layout.left_kerb + layout.right_kerb) / 2, z, Layer.MARKING)


def _add_roadside(builder: StreetBuilder, layout: StreetLayout, sunny: bool) -> None:
    """Paving, grass or gravel along the road, and shadows across it when the sun shines."""
    rng = builder.rng
    surface = roadside.paving if layout.kind == "town" else roadside.verge
    strips = [lay_on_ground("roadside", surface(rng), 3.0, 16.0) for _ in range(2)]
    for side, kerb in layout.sides:
        away = side * (kerb + 0.3 + 1.5 + (2.2 if layout.kind == "suburb" else 0.0))
        for z in np.arange(-8.0, layout.length, 16.0):
            builder.add_scenery(builder.pick(strips), away, float(z), Layer.MARKING)
    if sunny:
        shadows = [roadside.make_cast_shadow(rng) for _ in range(4)]
        for z in spaced(rng.uniform(0, 20), layout.length, lambda: rng.exponential(14.0)):
            x = rng.uniform(layout.left_kerb, layout.right_kerb + 1.0)
            builder.add_scenery(builder.pick(shadows), x, z, Layer.SHADOW)


def _add_walls(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Facades along both sides, set back behind the pavement, with gaps; out of town also hedges, fences, low walls."""
    rng, town = builder.rng, layout.kind == "town"
    if layout.kind == "open":
        walls = [buildings.make_boundary(rng) for _ in range(3)]
    else:
        walls = []
        for _ in range(8):
            style = buildings.FACADES.choose(rng, builder.split)
            width, height = rng.uniform(*((9, 20) if town else (8, 14))), rng.uniform(*((6, 16) if town else (4, 8)))
            walls.append(buildings.make_facade(rng, width, height, style))
    density = 0.88 if town else 0.6
    for side, kerb in layout.sides:
        back = kerb + rng.uniform(*((2.5, 4.5) if town else (4.5, 10)))
        z = -15.0
        while z < layout.length:
            wall = builder.pick(walls)
            middle = z + wall.width / 2
            if rng.random() < density and not builder.in_side_street(middle, wall.width / 2):
                builder.add_wall(wall, side, back + rng.uniform(0, 0.6 if town else 3), middle)
                z += wall.width + (-0.5 if town else rng.uniform(2, 9))  # neighbours overlap: no gap
            else:
                z += rng.uniform(6, 14)
    if town:
        return
    bodies = [buildings.make_boundary(rng) for _ in range(3)]
    for side, kerb in layout.sides:
        back, share = kerb + rng.uniform(2.6, 4.5), rng.uniform(0.2, 0.95)
        for z in np.arange(-12.0, layout.length, bodies[0].width):
            body = builder.pick(bodies)
            if rng.random() < share and not builder.in_side_street(float(z), body.width / 2):
                builder.add_wall(body, side, back, float(z))


def _add_kerbside(builder: StreetBuilder, layout: StreetLayout) -> None:
    """Lamp posts, signs, traffic lights and trees."""
    rng = builder.rng
    if layout.kind != "town":  # gardens and woods behind
        far_trees = [roadside.make_tree(rng) for _ in range(4)]
        for side in (-1.0, 1.0):
            first, pitch = rng.uniform(-5, 10), rng.uniform(4, 14)
            for z in spaced(first, layout.length, partial(rng.exponential, pitch)):
                builder.add_scenery(builder.pick(far_trees), side * rng.uniform(11, 30), z)
    poles = [roadside.make_pole(rng, builder.night) for _ in range(6)]
    trees = [roadside.make_tree(rng) for _ in range(4)]
    wooded = rng.uniform(0.1, 0.9)
    for side, kerb in layout.sides:
        for z in spaced(rng.uniform(-5, 12), layout.length, lambda: rng.uniform(5, 12)):
            beside = side * (kerb + rng.uniform(0.4, 0.8))
            if builder.in_side_street(z):
                continue
            if rng.random() < wooded:
                builder.add_scenery(builder.pick(trees), side * (kerb + rng.uniform(0.8, 2.2)), z)
            else:
                builder.add_scenery(builder.pick(poles), beside, z)
