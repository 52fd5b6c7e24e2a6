"""Things that turn, swing, fall and roll: fans and propellers, pendulums, balls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fate.simulation.art.actors import Layer, Path
from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.negatives import textures
from fate.simulation.art.negatives.backdrop import add_backdrop, plain_wall
from fate.simulation.art.negatives.paths import GRAVITY, Bounce, Flight, Wave, hold, numbers, sway, turn
from fate.simulation.art.negatives.solids import ball
from fate.simulation.art.negatives.world import Contents, Negative, box, indoor_light, lying, turning, upright
from fate.simulation.art.panels import Canvas, Panel, Point, Swing, Texture, oval, vector

BALLS = Catalogue({"matte": None, "steel": None, "striped": None}, {"spotted": None})
#: Of each style of rotor: range of the number of blades, width of a blade at the tip in radians.
ROTORS = Catalogue(
    {"fan": ((3, 6), 0.9), "propeller": ((2, 4), 0.25), "wheel": ((5, 12), 0.12), "disc": ((1, 9), 0.0)},
    {"ventilator": ((5, 9), 0.35), "marked disc": ((1, 3), 0.0)},
)


def make_rotor(rng: np.random.Generator, split: Split) -> Texture:
    """A rotor of radius 1: blades and a hub, spokes and a rim, or a disc with a pattern; 128 × 128."""
    style = ROTORS.choose(rng, split)
    (fewest, most), width = ROTORS.styles[style]
    blades, light = int(rng.integers(fewest, most)), float(rng.uniform(0.04, 0.8))
    canvas = Canvas((-1, -1, 1, 1), 128, 128)
    if style == "disc":
        pattern = textures.draw_texture(rng, split, 128, 128)
        canvas.disc(0, 0, 0.97, 1.0)
        return Texture(pattern, canvas.texture().alpha)
    if style == "marked disc":
        canvas.disc(0, 0, 0.97, light)
        for number in range(blades):
            canvas.disc(0.7 * np.cos(2.3 * number), 0.7 * np.sin(2.3 * number), 0.12, 0.85 - light)
    skew = rng.uniform(0.1, 0.5) if width > 0.3 else 0.0
    for number in range(blades if width else 0):
        angle = 2 * np.pi * number / blades
        edge: list[Point] = []
        for radius, offset in ((0.1, -0.3), (0.5, -0.5), (0.95, -0.5), (0.97, 0.4), (0.6, 0.5), (0.1, 0.3)):
            at = angle + offset * width + skew * radius
            edge.append((radius * float(np.cos(at)), radius * float(np.sin(at))))
        canvas.fill(edge, light * (1.0 - 0.4 * (number % 2)))
    if style == "wheel":
        rim = Canvas((-1, -1, 1, 1), 128, 128)
        rim.disc(0, 0, 0.98, light)
        ring = rim.texture().alpha * (np.hypot(*(np.mgrid[:128, :128] - 63.5)) > 54)
        drawn = canvas.texture()
        return Texture(np.where(ring > 0.5, 0.5 * light, drawn.light).astype(np.float32), np.maximum(ring, drawn.alpha))
    canvas.disc(0, 0, 0.16, 0.7 * light)
    canvas.disc(0, 0, 0.05, 0.8)
    return canvas.texture()


def _guard() -> list[Panel]:
    """The wire guard of a fan of radius 1: rings and spokes."""
    v, u = np.mgrid[:128, :128] - 63.5
    radius, angle = np.hypot(u, v) / 62, np.arctan2(v, u)
    wires = (np.mod(radius * 7, 1) < 0.17) | (np.abs(np.mod(angle * 12 / np.pi, 1) - 0.5) * radius < 0.02)
    alpha = np.where((radius < 1.0) & (radius > 0.18), wires, radius <= 0.18).astype(np.float32)
    return upright(np.full((128, 128), 0.35), 2.1, 2.1, alpha=alpha, z=-0.02)


def rotors(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """One to four fans, propellers, wheels or discs that turn; they hover, stand on a foot, or hang."""
    contents = Contents()
    count = int(rng.choice([1, 1, 2, 4]))
    for number in range(count):
        drawn, radius = make_rotor(rng, split), rng.uniform(0.12, 0.5) / np.sqrt(count)
        x, y, z = (
            (number - (count - 1) / 2) * 2.2 * radius + rng.normal(0, 0.05),
            rng.normal(0, 0.1),
            rng.uniform(0.7, 1.3),
        )
        panels = turning(upright(drawn.light, 2, 2, alpha=drawn.alpha))
        if rng.random() < 0.3:
            panels += _guard()
        panels = [part.scaled(radius, vector(0, 0, 0)) for part in panels]
        if rng.random() < 0.5:
            panels = [*upright(rng.uniform(0.03, 0.5), 0.1 * radius, 2.0, y=1.0, z=0.02), *panels]
        rim = float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.2), np.log(4.0))))  # m/s
        spin = rim / (2 * np.pi * radius)
        path = turn(numbers(x, z, heading=rng.normal(0, 0.3), y=y), spin, rng.uniform(0, 6.3))
        if rng.random() < 0.3:  # it hovers
            path = sway(rng, path.middle, numbers(0.1, 0.05, 0.2, 0, 0.06), 0.6, path.drift)
        contents.add("rotor", panels, path)
    add_backdrop(rng, split, contents, rng.uniform(1.8, 3.0), 0.0)
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.0, 0.02])), contents, indoor_light(rng), 0.0, 0.5)


def pendulums(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Weights on strings or rods that swing from side to side; or a metronome, whose weight is above its pivot."""
    contents, light = Contents(), float(rng.uniform(0.03, 0.8))
    count, spread = int(rng.integers(1, 7)), rng.uniform(0.12, 0.3)
    upside_down = rng.random() < 0.2
    for number in range(count):
        length, radius = rng.uniform(0.3, 0.8), rng.uniform(0.03, 0.1)
        bob = ball(rng, BALLS.choose(rng, split), 64)
        sign = -1.0 if upside_down else 1.0
        panels = upright(light, 0.008, length, y=sign * length / 2)
        panels += upright(bob.light, 2 * radius, 2 * radius, y=sign * length, alpha=bob.alpha)
        swing = Swing(vector(0, 0, 0), float(rng.uniform(0.15, 0.7)))
        hertz = float(np.sqrt(GRAVITY / length) / (2 * np.pi))
        middle = numbers((number - (count - 1) / 2) * spread, rng.uniform(0.9, 1.1), y=-sign * rng.uniform(0.3, 0.5))
        contents.add(
            "pendulum", [replace(part, swing=swing) for part in panels], turn(middle, hertz, rng.uniform(0, 6.3))
        )
    add_backdrop(rng, split, contents, 2.5, 0.0)
    return Negative(hold(rng, seconds, rng.choice([0.0, 0.0, 0.02])), contents, indoor_light(rng), 0.0, 0.5)


def _ball_path(rng: np.random.Generator, radius: float, falls: bool) -> Path:
    z, x = rng.uniform(0.7, 1.6), rng.normal(0, 0.2)
    if falls:  # from above the view to below it
        start, velocity = numbers(x, z, y=-3.0), numbers(rng.normal(0, 0.2), gait=rng.normal(0, 5), y=1.0)
        return Flight(start, velocity, GRAVITY, 1.0, rng.uniform(0.8, 2.0), numbers(x=6.0), rng.uniform(0, 3))
    if rng.random() < 0.5:
        middle = numbers(x, z, y=-radius)
        return Bounce(middle, rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.6), rng.uniform(0, 0.8), rng.uniform(0, 9))
    amplitude, hertz = rng.uniform(0.1, 0.6), rng.uniform(0.2, 0.6)
    reach = numbers(amplitude, rng.uniform(0, 0.2), gait=amplitude / radius)
    phases = np.full((1, 5), rng.uniform(0, 6.3))
    return Wave(numbers(x, z, y=-radius), numbers(), reach[None], np.full((1, 5), hertz), phases)


def balls(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Balls that roll and bounce on a table, or fall past the camera; one or a dozen."""
    contents, camera_height = Contents(), rng.uniform(0.1, 0.7)
    same, size, fall = rng.random() < 0.5, rng.uniform(0.03, 0.12), rng.random() < 0.25
    for _ in range(int(rng.choice([1, 3, 6, 12]))):
        style, radius = BALLS.choose(rng, split), size if same else rng.uniform(0.02, 0.12)
        drawn = ball(rng, "steel" if same and size < 0.06 else style)
        panels = upright(drawn.light, 2 * radius, 2 * radius, alpha=drawn.alpha)
        rolls = turning(panels) if style in ("striped", "spotted") else panels
        contents.add("ball", rolls, _ball_path(rng, radius, fall))
    if not fall:
        top = textures.wood(rng, 128, 128) if rng.random() < 0.5 else plain_wall(rng)
        contents.add("table", lying(top, 6.0, 2.4, 0, 1.2), layer=Layer.MARKING)
    add_backdrop(rng, split, contents, 2.4, camera_height)
    return Negative(hold(rng, seconds, pitch=-rng.uniform(0, 0.25)), contents, indoor_light(rng), camera_height, 0.5)


def conveyor(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Parcels, tins and bottles that pass on a belt with ribs."""
    contents, height, z = Contents(), rng.uniform(0.2, 0.6), rng.uniform(0.7, 1.2)
    speed, towards, end = rng.uniform(0.15, 1.0), float(rng.choice([-1, 1])), 3.0
    life, back = 2 * end / speed, end / speed
    parcels, ribs = int(rng.integers(5, 12)), 24
    for number in range(parcels + ribs):
        share = (number + 0.5 * rng.random()) / parcels if number < parcels else (number - parcels) / ribs
        start = numbers(-towards * end, z, heading=rng.normal(0, 0.4) if number < parcels else 0.0)
        path = Flight(start, numbers(towards * speed), 0.0, life, back, numbers(y=6.0), share * (life + back))
        if number < parcels:
            wide, tall, light = (
                rng.uniform(0.06, 0.2),
                rng.uniform(0.06, 0.3),
                textures.draw_texture(rng, split, 48, 48),
            )
            contents.add("parcel", box(light, wide, tall, wide), path)
        else:
            contents.add("rib", lying(0.04, 0.03, 0.4), path, Layer.SHADOW)
    contents.add("belt", lying(float(rng.uniform(0.08, 0.3)), 8.0, 0.4), (0.0, z), Layer.MARKING)
    add_backdrop(rng, split, contents, 2.5, height)
    return Negative(hold(rng, seconds, pitch=-rng.uniform(0.1, 0.3)), contents, indoor_light(rng), height, 0.5)


def gears(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """Toothed wheels in a row, each turning against its neighbour."""
    contents, teeth, spin = Contents(), 12, float(rng.uniform(0.1, 0.8))
    radius = rng.uniform(0.15, 0.3)
    for number in range(3):
        canvas = Canvas((-1.1, -1.1, 1.1, 1.1), 128, 128)
        light = float(rng.uniform(0.1, 0.7))
        for tooth in range(teeth):
            angle = 2 * np.pi * tooth / teeth
            outline = [
                (r * float(np.cos(angle + o)), r * float(np.sin(angle + o)))
                for r, o in ((0.8, -0.16), (1.05, -0.08), (1.05, 0.08), (0.8, 0.16))
            ]
            canvas.fill(outline, light)
        canvas.disc(0, 0, 0.86, light)
        for hole in range(int(rng.integers(3, 6))):
            canvas.fill(oval(0.5 * float(np.cos(2.0 * hole)), 0.5 * float(np.sin(2.0 * hole)), 0.15, 0.15), 0.3 * light)
        drawn = canvas.texture()
        sign = 1.0 if number % 2 else -1.0
        panels = turning(upright(drawn.light, 2.2 * radius, 2.2 * radius, alpha=drawn.alpha))
        middle = numbers((number - 1) * 1.86 * radius, 1.0 + 0.01 * number, gait=number * np.pi / teeth)
        contents.add("gear", panels, turn(middle, sign * spin))
    add_backdrop(rng, split, contents, 1.5, 0.0)
    return Negative(hold(rng, seconds), contents, indoor_light(rng), 0.0, 0.5)
