"""A street, from a seed: what stands along it, who drives and walks on it, and in which light.

x = 0 is the middle of the ego lane, z runs along it. Traffic keeps to the right. Everything is drawn from one
generator in one order, so a seed gives one street.
"""

from __future__ import annotations

import numpy as np

from fate.simulation.art import facades, street
from fate.simulation.art.cast import LANE, Cast, Street
from fate.simulation.art.catalogue import Split
from fate.simulation.art.motion import Ego, Straight, drive, stand
from fate.simulation.art.textures import Body, Panel, Texture
from fate.simulation.art.traffic import add_parked, add_pedestrians, add_traffic, add_two_wheelers
from fate.simulation.render.stage import Actor, Layer, Lighting

#: How far ahead of the end of the drive the street goes on, metres.
AHEAD = 150.0


def make_world(
    seed: int, split: Split, seconds: float, two_wheelers: bool, at_rest: bool = False
) -> tuple[Ego, Cast, Lighting]:
    """The drive, its actors and its light; or a camera at rest, and who passes it."""
    rng = np.random.default_rng([seed, 0x5CE7E])
    if at_rest:
        lighting, night = make_lighting(rng)
        layout = make_street(rng, fast=bool(rng.random() < 0.3), stops=False, length=AHEAD)
        ego = stand(rng, seconds, layout.left_kerb, layout.right_kerb)
    else:
        ego = drive(rng, seconds)
        fast = float(np.mean(ego.speed)) > 13
        lighting, night = make_lighting(rng)
        stops = bool(np.any(ego.speed == 0))
        layout = make_street(rng, fast, stops, float(ego.z[-1]) + AHEAD)
    cast = Cast(rng, split, night, ego, seconds, at_rest)
    add_traffic(cast, layout)
    if two_wheelers:
        add_two_wheelers(cast, layout)
    add_parked(cast, layout)
    add_pedestrians(cast, layout)
    _ground(cast, layout)
    _roadside(cast, layout, sunny=lighting.sun > 0.3)
    _buildings(cast, layout, split)
    _hedges(cast, layout)
    _kerbside(cast, layout)
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
    return Lighting(0.32, 0.0, to_sun, 0.06, 0.02, 1.5, 1.5), True


def make_street(rng: np.random.Generator, fast: bool, stops: bool, length: float) -> Street:
    """A cross-section: wide and open where one drives fast; red lights are in town."""
    shares = [0.1, 0.35, 0.55] if fast else [0.65, 0.35, 0.0] if stops else [0.5, 0.35, 0.15]
    kind = str(rng.choice(["town", "suburb", "open"], p=shares))
    oncoming = 1 if kind != "open" or rng.random() < 0.5 else 2
    parking_left, parking_right = (kind != "open" and bool(rng.random() < 0.6) for _ in range(2))
    right = LANE / 2 + (2.3 if parking_right else 0.4) + rng.uniform(0, 0.8)
    left = -LANE / 2 - oncoming * LANE - (2.3 if parking_left else 0.4) - rng.uniform(0, 0.8)
    return Street(kind, left, right, parking_left, parking_right, oncoming, length)


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
            if rng.random() < density and not cast.in_side_street(z + wall.width / 2, wall.width / 2):
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
            body = cast.pick(bodies)
            if rng.random() < share and not cast.in_side_street(float(z), body.width / 2):
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
            if cast.in_side_street(z):
                pass
            elif rng.random() < wooded:
                cast.scenery(cast.pick(trees), side * (abs(kerb) + rng.uniform(0.8, 2.2)), z)
            else:
                cast.scenery(cast.pick(poles), beside, z)
            z += rng.uniform(5, 12)
