"""A street, from a seed: what stands along it, who drives and walks on it, and in which light.

x = 0 is the middle of the ego lane, z runs along it. Traffic keeps to the right. Everything is drawn from one
generator in one order, so a seed gives one street.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.simulation import facades, street
from fate.simulation.bodies import choose_body, make_car, make_two_wheeler, shadow
from fate.simulation.catalogue import Split
from fate.simulation.motion import Ego, Following, Path, Straight, drive
from fate.simulation.people import choose_style, make_pedestrian
from fate.simulation.stage import Actor, Layer, Lighting
from fate.simulation.textures import Body, Panel, Texture

#: How far ahead of the end of the drive the street goes on, metres.
AHEAD = 150.0
LANE = 3.5  #: metres


@dataclass(frozen=True)
class Street:
    """The cross-section of a street, in metres from the middle of the ego lane."""

    kind: str  #: "town", "suburb" or "open"
    left_kerb: float
    right_kerb: float
    parking_left: bool
    parking_right: bool
    oncoming_lanes: int
    length: float


class Cast:
    """Collects actors, and remembers bodies so that many actors share a few of them."""

    def __init__(self, rng: np.random.Generator, split: Split, night: bool) -> None:
        self.rng, self.night = rng, night
        self.actors: list[Actor] = []
        self.objects: list[Body] = []  #: labelled ones; an actor's owner is its place here
        self.cars = [make_car(rng, choose_body(rng, split), night=night) for _ in range(10)]
        self.people = [make_pedestrian(rng, choose_style(rng, split)) for _ in range(8)]
        self.two_wheelers = [
            make_two_wheeler(rng, choose_body(rng, split, "two-wheeler"), night=night) for _ in range(4)
        ]
        self.shadows = {id(body): _lying(shadow(body), body) for body in (*self.cars, *self.people, *self.two_wheelers)}

    def pick(self, bodies: list[Body]) -> Body:
        """One of them."""
        return bodies[int(self.rng.integers(len(bodies)))]

    def labelled(self, body: Body, path: Path, mirror: float = 1.0) -> None:
        """A car, a two-wheeler or a pedestrian, with its shadow."""
        self.actors.append(Actor(body, path, owner=len(self.objects), mirror=mirror))
        self.objects.append(body)
        self.actors.append(Actor(self.shadows[id(body)], path, Layer.SHADOW))

    def scenery(self, body: Body, x: float, z: float, layer: Layer = Layer.STANDING, reach: float = 0.0) -> None:
        """Something that stays where it is."""
        self.actors.append(Actor(body, Straight(x, z), layer, reach=reach))


def make_world(seed: int, split: Split, seconds: float, two_wheelers: bool) -> tuple[Ego, Cast, Lighting]:
    """The drive, its actors and its light."""
    rng = np.random.default_rng([seed, 0x5CE7E])
    ego = drive(rng, seconds)
    fast = float(np.mean(ego.speed)) > 13
    lighting, night = make_lighting(rng)
    layout = make_street(rng, fast, float(ego.z[-1]) + AHEAD)
    cast = Cast(rng, split, night)
    _ground(cast, layout)
    _roadside(cast, layout, sunny=lighting.sun > 0.3)
    _buildings(cast, layout, split)
    _hedges(cast, layout)
    _kerbside(cast, layout)
    _parked(cast, layout)
    _traffic(cast, layout, ego, seconds)
    _pedestrians(cast, layout, ego, seconds)
    if two_wheelers:
        _two_wheelers(cast, layout, ego, seconds)
    return ego, cast, lighting


def make_lighting(rng: np.random.Generator) -> tuple[Lighting, bool]:
    """Sun, overcast, dusk or night; the second value says whether lamps are lit."""
    kind = rng.choice(["sun", "overcast", "dusk", "night"], p=[0.45, 0.35, 0.1, 0.1])
    azimuth, elevation = rng.uniform(0, 2 * np.pi), rng.uniform(0.35, 1.1)
    to_sun = (
        float(np.cos(elevation) * np.sin(azimuth)),
        float(-np.sin(elevation)),
        float(np.cos(elevation) * np.cos(azimuth)),
    )
    if kind == "sun":
        return Lighting(0.55, 1.3, to_sun, rng.uniform(1.2, 1.7), rng.uniform(0.7, 1.1), 0.0, 0.3), False
    if kind == "overcast":
        return Lighting(1.25, 0.2, to_sun, rng.uniform(1.2, 1.6), rng.uniform(1.0, 1.5), 0.0, 0.3), False
    if kind == "dusk":
        return Lighting(0.45, 0.15, to_sun, rng.uniform(0.5, 0.9), rng.uniform(0.25, 0.5), 0.05, 0.8), True
    return Lighting(0.13, 0.0, to_sun, 0.035, 0.012, 1.0, 1.5), True


def make_street(rng: np.random.Generator, fast: bool, length: float) -> Street:
    """A cross-section: wide and open where one drives fast."""
    kind = str(rng.choice(["town", "suburb", "open"], p=[0.1, 0.35, 0.55] if fast else [0.6, 0.3, 0.1]))
    oncoming = 1 if kind != "open" or rng.random() < 0.5 else 2
    parking_left, parking_right = (kind != "open" and bool(rng.random() < 0.6) for _ in range(2))
    right = LANE / 2 + (2.3 if parking_right else 0.4) + rng.uniform(0, 0.8)
    left = -LANE / 2 - oncoming * LANE - (2.3 if parking_left else 0.4) - rng.uniform(0, 0.8)
    return Street(kind, left, right, parking_left, parking_right, oncoming, length)


def _lying(panel: Panel, body: Body) -> Body:
    return Body(f"{body.name}'s shadow", "scenery", (panel,), body.length, body.width, 0.0)


def _on_ground(name: str, texture: Texture, width: float, length: float) -> Body:
    """A texture on the road, its rows from far to near, its middle at the origin."""
    panel = Panel(texture, _v(-width / 2, 0, length / 2), _v(width, 0, 0), _v(0, 0, -length))
    return Body(name, "scenery", (panel,), length, width, 0.0)


def _v(x: float, y: float, z: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([x, y, z], np.float64)


def _ground(cast: Cast, layout: Street) -> None:
    """Asphalt and pavements, lane markings, crossings, patches and covers; and the skyline far behind."""
    rng = cast.rng
    profile = street.ground_profile(rng, layout.left_kerb, layout.right_kerb, -30.0, 30.0)
    meadow = Texture(np.full((1, 1), rng.uniform(0.08, 0.16), np.float32), np.ones((1, 1), np.float32))
    for layer, texture, reach in ((Layer.GROUND, profile, 30.0), (Layer.LAND, meadow, 500.0)):
        panel = Panel(texture, _v(-reach, 0, 700), _v(2 * reach, 0, 0), _v(0, 0, -699.5))
        cast.scenery(Body("ground", "scenery", (panel,), 700.0, 2 * reach, 0.0), 0.0, 0.0, layer)
    if layout.kind != "open":
        strips = street.kerb_strip("left"), street.kerb_strip("right")
        for x, strip in zip((layout.left_kerb, layout.right_kerb), strips, strict=True):
            panel = Panel(strip, _v(x - 0.25, 0, 300), _v(0.5, 0, 0), _v(0, 0, -299.5))
            cast.scenery(Body("kerb", "scenery", (panel,), 300.0, 0.5, 0.0), 0.0, 0.0, Layer.KERB)
    skyline = street.make_skyline(rng)
    far = Panel(skyline, _v(-900, -95, 800), _v(1800, 0, 0), _v(0, 97, 0))
    cast.scenery(Body("skyline", "scenery", (far,), 0.0, 1800.0, 95.0), 0.0, 0.0, Layer.FAR)

    dashes, count, pitch = street.dash_strip(8), 8, 9.0 if layout.kind != "open" else 12.0
    line = _on_ground("dashes", dashes, 0.14, count * pitch)
    for lane in range(1, layout.oncoming_lanes + 1):
        for z in np.arange(-10.0, layout.length, count * pitch):
            cast.scenery(line, LANE / 2 - lane * LANE, z + count * pitch / 2, Layer.MARKING)
    patches = [_on_ground("patch", street.patch(rng), rng.uniform(0.8, 2.5), rng.uniform(1.5, 6)) for _ in range(4)]
    cover = _on_ground("manhole", street.manhole(), 0.7, 0.7)
    z = 0.0
    while z < layout.length:
        z += rng.exponential(14.0)
        body = cover if rng.random() < 0.35 else patches[int(rng.integers(len(patches)))]
        cast.scenery(body, rng.uniform(layout.left_kerb + 1, layout.right_kerb - 0.5), z, Layer.MARKING)
    if layout.kind != "open":
        width = layout.right_kerb - layout.left_kerb
        crossing = _on_ground("crossing", street.crosswalk(), width, 3.5)
        z = rng.uniform(15, 90)
        while z < layout.length:
            cast.scenery(crossing, (layout.left_kerb + layout.right_kerb) / 2, z, Layer.MARKING)
            z += rng.uniform(70, 200)


def _roadside(cast: Cast, layout: Street, sunny: bool) -> None:
    """Paving, grass or gravel along the road, and shadows across it when the sun shines."""
    rng = cast.rng
    surface = street.paving if layout.kind == "town" else street.verge
    strips = [_on_ground("roadside", surface(rng), 3.0, 16.0) for _ in range(2)]
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        away = side * (abs(kerb) + 0.3 + 1.5 + (2.2 if layout.kind == "suburb" else 0.0))
        for z in np.arange(-8.0, layout.length, 16.0):
            cast.scenery(cast.pick(strips), away, float(z), Layer.MARKING)
    if sunny:
        shadows = [
            _on_ground("shadow", street.cast_shadow(rng), rng.uniform(3, 7), rng.uniform(3, 8)) for _ in range(4)
        ]
        z = rng.uniform(0, 20)
        while z < layout.length:
            x = rng.uniform(layout.left_kerb, layout.right_kerb + 1.0)
            cast.scenery(cast.pick(shadows), x, z, Layer.SHADOW)
            z += rng.exponential(14.0)


def _buildings(cast: Cast, layout: Street, split: Split) -> None:
    """Facades along both sides, set back behind the pavement, with gaps; hedges and fences where it is greener."""
    rng = cast.rng
    if layout.kind == "open":
        walls = [facades.make_boundary(rng) for _ in range(3)]
    else:
        walls = []
        for _ in range(8):
            style = facades.choose_facade_style(rng, split)
            width = rng.uniform(9, 20) if layout.kind == "town" else rng.uniform(8, 14)
            height = rng.uniform(6, 16) if layout.kind == "town" else rng.uniform(4, 8)
            walls.append(facades.make_facade(rng, width, height, style))
    density = {"town": 0.88, "suburb": 0.6, "open": 0.6}[layout.kind]
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        back = abs(kerb) + (rng.uniform(2.5, 4.5) if layout.kind == "town" else rng.uniform(4.5, 10))
        z = -15.0
        while z < layout.length:
            wall = cast.pick(walls)
            if rng.random() < density:
                heading = -side * np.pi / 2  # a wall's front looks at the street
                set_back = back + (rng.uniform(0, 0.6) if layout.kind == "town" else rng.uniform(0, 3))
                middle = z + wall.width / 2
                path = Straight(side * set_back, middle, heading)
                cast.actors.append(Actor(wall, path, reach=wall.width / 2))
                z += wall.width + (-0.5 if layout.kind == "town" else rng.uniform(2, 9))  # neighbours overlap: no gap
            else:
                z += rng.uniform(6, 14)


def _hedges(cast: Cast, layout: Street) -> None:
    """Hedges, fences and low walls in front of gardens and fields."""
    rng = cast.rng
    if layout.kind == "town":
        return
    bodies = [facades.make_boundary(rng) for _ in range(3)]
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        back, share = abs(kerb) + rng.uniform(2.6, 4.5), rng.uniform(0.2, 0.95)
        for z in np.arange(-12.0, layout.length, bodies[0].width):
            if rng.random() < share:
                body = cast.pick(bodies)
                path = Straight(side * back, float(z), -side * np.pi / 2)
                cast.actors.append(Actor(body, path, reach=body.width / 2))


def _kerbside(cast: Cast, layout: Street) -> None:
    """Lamp posts, signs, traffic lights and trees."""
    rng = cast.rng
    if layout.kind != "town":  # gardens and woods behind
        far_trees = [street.make_tree(rng) for _ in range(4)]
        for side in (-1.0, 1.0):
            z = rng.uniform(-5, 10)
            pitch = rng.uniform(4, 14)
            while z < layout.length:
                cast.scenery(cast.pick(far_trees), side * rng.uniform(11, 30), z)
                z += rng.exponential(pitch)
    poles = [street.make_pole(rng, night=cast.night) for _ in range(6)]
    trees = [street.make_tree(rng) for _ in range(4)]
    wooded = rng.uniform(0.1, 0.9)
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        z = rng.uniform(-5, 12)
        while z < layout.length:
            beside = side * (abs(kerb) + rng.uniform(0.4, 0.8))
            if rng.random() < wooded:
                cast.scenery(cast.pick(trees), side * (abs(kerb) + rng.uniform(0.8, 2.2)), z)
            else:
                cast.scenery(cast.pick(poles), beside, z)
            z += rng.uniform(5, 12)


def _parked(cast: Cast, layout: Street) -> None:
    rng = cast.rng
    taken = rng.uniform(0.25, 0.85)
    for on, x, heading in (
        (layout.parking_right, layout.right_kerb - 1.05, 0.0),
        (layout.parking_left, layout.left_kerb + 1.05, np.pi),
    ):
        z = rng.uniform(4, 14)
        while on and z < layout.length:
            car = cast.pick(cast.cars)
            if rng.random() < taken:
                away = np.pi if rng.random() < 0.15 else 0.0
                cast.labelled(car, Straight(x + rng.normal(0, 0.08), z, heading + away + rng.normal(0, 0.01)))
            z += car.length + rng.uniform(0.6, 2.0)


def _traffic(cast: Cast, layout: Street, ego: Ego, seconds: float) -> None:
    """Cars ahead in the lane, oncoming ones, and ones that cross."""
    rng = cast.rng
    if rng.random() < 0.75:
        gap = rng.uniform(8, 26)
        sway = rng.uniform(0.1, 0.3) * gap
        cast.labelled(
            cast.pick(cast.cars),
            Following(ego, rng.normal(0, 0.2), gap + 2, sway, rng.uniform(6, 20), rng.uniform(0, 6.28)),
        )
        if rng.random() < 0.5:
            second = gap + sway + rng.uniform(12, 25)
            cast.labelled(cast.pick(cast.cars), Following(ego, rng.normal(0, 0.2), second, 2.0, 11.0, 0.0))
    mean = float(np.mean(ego.speed))
    for lane in range(1, layout.oncoming_lanes + 1):
        speed = rng.uniform(5, 12) if layout.kind != "open" else rng.uniform(12, 20)
        z = rng.uniform(10, 40)
        headway = rng.uniform(18, 60)
        while z < layout.length + speed * seconds:
            path = Straight(-lane * LANE + rng.normal(0, 0.15), z, np.pi, speed + rng.normal(0, 0.05))
            cast.labelled(cast.pick(cast.cars), path)
            z += 8 + rng.exponential(headway)
    if layout.kind == "open" or rng.random() < 0.25:  # someone overtakes, or is overtaken, one lane to the left
        lead = rng.uniform(-20, 40)
        cast.labelled(cast.pick(cast.cars), Straight(-LANE, lead, 0.0, max(mean + rng.uniform(-6, 6), 1.0)))
    for _ in range(rng.poisson(seconds / 12)):
        when, speed = rng.uniform(0, seconds), rng.uniform(3, 10)
        side = float(rng.choice([-1, 1]))
        z = float(ego.at(np.array([when]))[1][0]) + rng.uniform(14, 38)
        path = Straight(-side * speed * when, z, side * np.pi / 2, speed)
        if _clear(path, ego, seconds, 3.5):
            cast.labelled(cast.pick(cast.cars), path)


def _pedestrians(cast: Cast, layout: Street, ego: Ego, seconds: float) -> None:
    """On the pavements, and now and then across the street."""
    rng = cast.rng
    busy = {"town": 16.0, "suburb": 35.0, "open": 200.0}[layout.kind]
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        z = rng.exponential(busy / 2)
        while z < layout.length:
            body = cast.pick(cast.people)
            heading, speed = float(rng.choice([0.0, np.pi])), rng.uniform(0.8, 1.8)
            x = side * (abs(kerb) + rng.uniform(0.7, 2.2))
            stride = 0.8 * body.height
            cast.labelled(body, Straight(x, z, heading, speed, stride), float(rng.choice([-1, 1])))
            z += rng.exponential(busy)
    for _ in range(rng.poisson(seconds / 5 if layout.kind != "open" else 0.1)):
        when, speed, side = rng.uniform(0, seconds), rng.uniform(0.9, 1.8), float(rng.choice([-1, 1]))
        z = float(ego.at(np.array([when]))[1][0]) + rng.uniform(8, 22)
        body = cast.pick(cast.people)
        path = Straight(rng.uniform(-2, 2) - side * speed * when, z, side * np.pi / 2, speed, 0.8 * body.height)
        if _clear(path, ego, seconds, 2.0):
            cast.labelled(body, path, side)


def _two_wheelers(cast: Cast, layout: Street, ego: Ego, seconds: float) -> None:
    rng = cast.rng
    for _ in range(1 + rng.poisson(1.5)):
        gap = rng.uniform(6, 22)
        cast.labelled(
            cast.pick(cast.two_wheelers),
            Following(ego, rng.uniform(0.9, 1.5), gap, 0.2 * gap, rng.uniform(5, 15), rng.uniform(0, 6.28), 5.0),
        )
    z = rng.uniform(15, 60)
    while z < layout.length + 6 * seconds:
        cast.labelled(cast.pick(cast.two_wheelers), Straight(-LANE - 1.0, z, np.pi, rng.uniform(3, 9), 5.0))
        z += 15 + rng.exponential(60)


def _clear(path: Straight, ego: Ego, seconds: float, margin: float) -> bool:
    """Whether something that crosses keeps out of the ego car's way."""
    times = np.arange(0.0, seconds, 0.1)
    pose = path.at(times)
    x, z, _, _ = ego.at(times)
    return not bool(np.any((np.abs(pose.x - x) < margin) & (np.abs(pose.z - z) < 6.0)))
