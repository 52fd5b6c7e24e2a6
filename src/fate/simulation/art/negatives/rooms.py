"""Rooms and corridors seen by a camera in a hand: walls, windows, shelves, tables, chairs, monitors, doors."""

from __future__ import annotations

import numpy as np

from fate.simulation.arrays import Float32
from fate.simulation.art.actors import Layer
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import plain_wall, wall_pieces
from fate.simulation.art.negatives.paths import hold
from fate.simulation.art.negatives.world import Contents, Negative, box, indoor_light, lying, plane, upright
from fate.simulation.art.panels import Canvas, Panel, vector
from fate.simulation.art.roadside import make_tree

FLOORS = (textures.wood, textures.bricks, textures.noise)


def _floor(rng: np.random.Generator, rows: int, columns: int) -> Float32:
    return FLOORS[int(rng.integers(len(FLOORS)))](rng, rows, columns)


def make_monitor(rng: np.random.Generator, split: Split, width: float) -> list[Panel]:
    """A lit screen on a foot that stands on y = 0."""
    tall, stand = 0.6 * width, 0.3 * width
    screen = textures.draw_texture(rng, split, 96, 150)
    glow = float(rng.uniform(0.1, 1.0))
    return [
        *upright(0.05, 0.1 * width, stand, y=-stand / 2, z=0.01),
        *lying(0.05, 0.5 * width, 0.3 * width),
        *upright(0.03, 1.06 * width, 1.1 * tall, y=-stand - tall / 2),
        *upright(screen, width, tall, y=-stand - tall / 2, z=-0.005, emission=glow),
    ]


def make_chair(rng: np.random.Generator) -> list[Panel]:
    """A chair: legs, a seat and a back."""
    light = float(rng.uniform(0.03, 0.5))
    back = Canvas((-0.22, -0.9, 0.22, 0.0), 44, 90)
    for x in (-0.2, 0.2):
        back.rect(x - 0.02, -0.9, x + 0.02, 0.0, light)
    if rng.random() < 0.5:
        back.rect(-0.2, -0.88, 0.2, -0.55, 1.1 * light)
    else:
        for y in np.arange(-0.88, -0.5, 0.12):
            back.rect(-0.2, y, 0.2, y + 0.05, light)
    drawn = back.texture()
    legs = Canvas((-0.22, -0.45, 0.22, 0.0), 44, 45)
    for x in (-0.2, 0.2):
        legs.rect(x - 0.02, -0.45, x + 0.02, 0.0, 0.8 * light)
    front = legs.texture()
    return [
        *upright(drawn.light, 0.44, 0.9, y=-0.45, z=0.2, alpha=drawn.alpha),
        *lying(1.1 * light, 0.44, 0.44, y=-0.45),
        *upright(front.light, 0.44, 0.45, y=-0.225, z=-0.2, alpha=front.alpha),
    ]


def make_table(rng: np.random.Generator, width: float) -> list[Panel]:
    """A table: a top on four legs."""
    top, light = textures.wood(rng, 64, 100), float(rng.uniform(0.05, 0.4))
    legs = [
        part for x in (-0.46, 0.46) for z in (0.3, -0.3) for part in upright(light, 0.06, 0.72, x * width, -0.36, z)
    ]
    return [*legs, *lying(top, width, 0.8, y=-0.74), *upright(light, width, 0.05, y=-0.715, z=-0.4)]


def room(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A furnished room, seen by a camera that is shaken and turned."""
    contents = Contents()
    half, depth, height = rng.uniform(2.0, 3.5), rng.uniform(2.5, 5.0), 2.7
    shell = lying(_floor(rng, 240, 240), 4 * half, depth + 6, z=depth / 2 - 1)
    shell += lying(0.8, 4 * half, depth + 6, z=depth / 2 - 1, y=-height)
    back = upright(plain_wall(rng), 4 * half, height, y=-height / 2)
    back += [part.scaled(1.0, vector(0, 1.45, 0)) for part in wall_pieces(rng, split, 2 * half, height, 0.0)]
    shell += [part.scaled(1.0, vector(0, 0, -depth)) for part in back]
    side = plain_wall(rng)
    for x in (-half, half):
        shell += plane(side, vector(x, -height, -2), vector(0, 0, depth + 2), vector(0, height, 0))
        if rng.random() < 0.7:
            shelf, z = textures.books(rng, 120, 90), rng.uniform(0.2, 0.6) * depth
            shell += plane(shelf, vector(x * 0.98, -2.0, z), vector(0, 0, 1.2), vector(0, 1.9, 0))
    contents.add("room", shell, layer=Layer.MARKING)
    for _ in range(int(rng.integers(2, 7))):
        x, z = rng.uniform(-0.8, 0.8) * half, rng.uniform(0.35, 0.9) * depth
        style = rng.choice(["table", "chair", "cupboard", "plant"], p=[0.35, 0.35, 0.15, 0.15])
        if style == "table":
            contents.add("table", make_table(rng, rng.uniform(1.0, 1.6)), (x, z))
            for place in (-0.3, 0.3):
                parts = make_monitor(rng, split, rng.uniform(0.35, 0.6))
                contents.add("monitor", [part.scaled(1.0, vector(-place, 0.74, 0)) for part in parts], (x, z - 0.01))
        elif style == "chair":
            contents.add("chair", make_chair(rng), (x, z))
        elif style == "cupboard":
            front = textures.wood(rng, 60, 60) if rng.random() < 0.5 else textures.books(rng, 100, 60)
            contents.add("cupboard", box(front, rng.uniform(0.5, 1.0), rng.uniform(0.7, 2.0), 0.4), (x, z))
        else:
            tree = make_tree(rng)
            parts = [part.scaled(rng.uniform(1.0, 1.8) / tree.height, vector(0, 0, 0)) for part in tree.panels]
            contents.add("plant", parts, (x, z), facing=True)
    shake = float(np.exp(rng.uniform(np.log(0.02), np.log(0.2))))
    ego = hold(rng, seconds, shake, -rng.uniform(0.0, 0.15), room=0.3)
    return Negative(ego, contents, indoor_light(rng), rng.uniform(1.0, 1.6), 0.5)


def corridor(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A walk through an empty corridor with doors, lamps and notices."""
    contents, half, height, piece = Contents(), rng.uniform(0.8, 1.6), rng.uniform(2.3, 3.0), 4.0
    wall, floor, ceiling = plain_wall(rng), _floor(rng, 128, 96), float(rng.uniform(0.3, 0.8))
    door_light, rail = float(rng.uniform(0.05, 0.6)), rng.random() < 0.5
    bodies = []
    for _ in range(3):
        long = piece + 0.1
        parts = [*lying(floor, 2.4 * half, long), *lying(ceiling, 2.4 * half, long, y=-height)]
        parts += lying(0.9, 0.5, 1.2, y=-height + 0.01, emission=float(rng.uniform(0.5, 1.5)))
        for x in (-half, half):
            parts += plane(wall, vector(x, -height, -long / 2), vector(0, 0, long), vector(0, height, 0))
            flush = x * 0.995
            if rng.random() < 0.6:
                door = Canvas((0, 0, 0.9, 2.05), 45, 100, light=1.3 * door_light)
                door.rect(0.06, 0.06, 0.84, 2.05, door_light)
                door.disc(0.74, 1.1, 0.03, 0.8)
                corner = vector(flush, -2.05, rng.uniform(-1.8, 0.9))
                parts += plane(door.texture().light, corner, vector(0, 0, 0.9), vector(0, 2.05, 0))
            if rng.random() < 0.4:
                notice = textures.draw_texture(rng, split, 64, 64)
                parts += plane(
                    notice, vector(flush, -1.8, rng.uniform(-1.9, 1.4)), vector(0, 0, 0.5), vector(0, 0.6, 0)
                )
            if rail:
                parts += plane(0.1, vector(flush, -0.95, -long / 2), vector(0, 0, long), vector(0, 0.1, 0))
        bodies.append(parts)
    for number in range(17):
        contents.add("corridor", bodies[int(rng.integers(3))], (0.0, number * piece - 2), Layer.MARKING)
    end = upright(door_light, 2.4 * half, height, y=-height / 2)
    contents.add("end", end, (0.0, 16.4 * piece), Layer.MARKING, reach=20.0)
    ego = hold(rng, seconds, rng.uniform(0.01, 0.06), walk=rng.uniform(0.7, 2.0))
    return Negative(ego, contents, indoor_light(rng), rng.uniform(1.2, 1.7), 0.5)
