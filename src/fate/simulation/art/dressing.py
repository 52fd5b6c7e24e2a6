"""What a :class:`Variety` adds to a street: ground, borders, foliage, bridges, shadows of trees, lamps, the lens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fate.simulation.art import borders
from fate.simulation.art.actors import Actor, CameraPose, Ego, Following, Layer, Straight
from fate.simulation.art.panels import Body, Panel, Point, Texture, vector
from fate.simulation.art.paving import cast_tree_shadows, pave
from fate.simulation.art.roadside import lay_on_ground
from fate.simulation.art.variety import Variety
from fate.simulation.art.windscreen import put_before_lens

#: Nothing that stands still is closer to a camera beside the street than this, metres.
CLEARANCE = 0.8
#: Along the street from its start to its end, metres.
Ends = tuple[float, float]


def dress(
    rng: np.random.Generator, variety: Variety, edges: tuple[float, float], ends: Ends, sunny: bool
) -> tuple[list[Actor], tuple[Point, ...]]:
    """Everything that a variety adds between the kerbs ``edges`` and beside them; and the shade of trees over z."""
    left, right = edges
    actors = list(put_before_lens(rng, variety))
    if variety.grain > 0:
        actors += pave(rng, variety.ground, variety.grain, edges, ends)
    bins = [borders.make_bin(rng) for _ in range(3)]
    for side, kerb in ((-1.0, -left), (1.0, right)):
        if rng.random() < 0.75:
            away = kerb + (3.2 if variety.border == "noise barrier" else float(rng.uniform(0.25, 0.6)))
            actors += borders.line_kerb(rng, variety.border, side, away, ends)
        if variety.foliage > 0.02:
            actors += borders.plant(rng, variety.foliage, side, kerb, ends)
        for z in rng.uniform(*ends, rng.poisson((ends[1] - ends[0]) / 40)):
            actors.append(Actor(bins[int(rng.integers(3))], Straight(side * (kerb + rng.uniform(0.5, 1.5)), float(z))))
    if variety.overhead:
        actors += borders.span_road(rng, left, right, ends, sunny)
    if not sunny or variety.dapple == 0:
        return actors, ()
    shadows, shade = cast_tree_shadows(rng, variety.dapple, edges, ends)
    return actors + shadows, shade


def light_lamps(
    rng: np.random.Generator, variety: Variety, actors: list[Actor], ego: Ego, night: bool
) -> Iterator[Actor]:
    """The same actors with the flicker of their mains; by night with pools of light under lamps and before cars."""
    depth = float(rng.uniform(0.2, 0.8))
    size, ground_flickers = (
        float(rng.uniform(3, 7)),
        bool(rng.random() < 0.3),
    )  # many lamps flicker too little to be seen
    pool = _pool("lamp light", size, size, float(rng.uniform(0.1, 0.5)), variety.mains_hz, depth * ground_flickers)
    beam = _pool("headlight", 3.5, 14.0, float(rng.uniform(0.1, 0.4)), 0.0, 0.0)
    if night and variety.mount == "car":
        own = _pool("headlight", 8.0, 26.0, float(rng.uniform(0.3, 0.8)), 0.0, 0.0)
        yield Actor(own, Following(ego, 0.0, 0.0, 0.0, 1.0, 0.0), Layer.SHADOW)
    changed: dict[int, Body] = {}
    for actor in actors:
        body = actor.body
        if any(panel.flicker_hz > 0 for panel in body.panels) and id(body) not in changed:
            panels = [
                replace(panel, flicker_hz=variety.mains_hz, flicker_depth=depth) if panel.flicker_hz else panel
                for panel in body.panels
            ]
            changed[id(body)] = replace(body, panels=tuple(panels))
        yield actor._replace(body=changed.get(id(body), body))
        if night and body.name == "lamp":
            yield Actor(pool, actor.path, Layer.SHADOW)
        if night and body.kind == "car" and not (isinstance(actor.path, Straight) and actor.path.speed == 0):
            yield Actor(beam, actor.path, Layer.SHADOW)


def surround(skyline: Body) -> Iterator[Actor]:
    """The skyline to the left, to the right and behind."""
    for heading in (-np.pi / 2, np.pi / 2, np.pi):
        yield Actor(skyline, Straight(0.0, 0.0, heading), Layer.FAR)


def clear_of(actors: list[Actor], camera: CameraPose) -> Iterator[Actor]:
    """Those actors that do not stand right before a camera beside the street; without the shadows of the others."""
    left_out = set[int]()
    for actor in actors:
        if id(actor.path) in left_out:
            continue
        standing = actor.layer == Layer.STANDING and actor.owner < 0 and not actor.body.name.startswith("bridge")
        if standing:
            x, z = (values[0] for values in actor.path.at(np.zeros(1))[:2])
            wide = 0.0 if actor.reach else actor.body.width / 2
            beside, along = np.abs(x - camera.x) - wide, np.abs(z - camera.z) - actor.reach - wide
            if np.any((beside < CLEARANCE) & (along < CLEARANCE)):
                left_out.add(id(actor.path))
                continue
        yield actor


def _pool(name: str, width: float, length: float, glow: float, hertz: float, depth: float) -> Body:
    """Light on the ground, brightest in its middle; that of headlights begins at the car's front."""
    offset = (np.arange(128) + 0.5) / 64 - 1
    alpha = 0.5 * np.clip(1 - offset[:, None] ** 2 - offset[None, :] ** 2, 0, 1)
    panel = lay_on_ground(name, Texture.stain(0.35, alpha), width, length).panels[0]
    origin = panel.origin + vector(0, 0, length / 2 + 1.5 if hertz == 0 else 0.0)
    lit = Panel(panel.texture, origin, panel.across, panel.down, "outward", glow, hertz, depth)
    return Body(name, "scenery", (lit,), 2 * length, width, 0.0)
