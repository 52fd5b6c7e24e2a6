"""What people wear: how much light each part of a body reflects, and things that hang on it.

Positions are in metres in the picture of one part, x to the right and y down from the part's joint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fate.simulation.arrays import Float32, Float64
from fate.simulation.art.panels import Canvas, Point, Texture, oval, smooth_noise

#: One direction of view in rad after the other: from behind, from behind on the right, from the right, ...
DIRECTIONS = np.arange(8) * (np.pi / 4)
_SOLE = 0.022  # metres


@dataclass(frozen=True)
class Outfit:
    """The clothes of one person. Light is reflected light, 0 to 1; lengths are shares of the part they cover."""

    upper: float
    lower: float
    skin: float
    hair: float
    shoes: float
    second: float  #: light of the pattern, of an open jacket's front and of the collar
    pattern: Literal["plain", "stripes", "bars", "checks", "print", "open"]
    pitch: float  #: metres from stripe to stripe
    folds: float  #: contrast of folds
    sleeves: float  #: of the upper arm that is covered; above 1 the forearm is covered too
    trousers: float  #: of the thigh that is covered; above 1 the shank is covered too
    hem: float  #: metres from the hips down to the end of the jacket
    tail: float  #: of the leg that a skirt or a coat covers; 0: there is none
    coat: bool  #: whether the tail belongs to the jacket
    loose: tuple[float, float]  #: how much wider than the body sleeves and trouser legs are
    collar: float  #: metres of the neck that are covered
    long_hair: bool
    hat: bool
    load: Literal["none", "backpack", "bag"]
    bright: tuple[float, float, float]  #: where the light comes from: unit vector (right, down, forward) of the person
    hardness: float  #: share of the light that comes from there


def draw_outfit(rng: np.random.Generator, skirts: float, long_hair: float) -> Outfit:
    """Clothes at random; ``skirts`` and ``long_hair`` are shares of people."""
    upper, second = (float(rng.uniform(*((0.03, 0.25), (0.25, 0.85))[int(rng.integers(2))])) for _ in range(2))
    summer, skirt, coat = rng.random() < 0.35, rng.random() < skirts, rng.random() < 0.2
    length = rng.uniform(0.3, 0.75) if skirt else rng.uniform(0.3, 0.6) if coat and not summer else 0.0
    short = summer and rng.random() < 0.5
    azimuth, height = rng.uniform(0, 2 * np.pi), rng.uniform(0.4, 1.3)
    sun = np.cos(height) * np.sin(azimuth), -np.sin(height), np.cos(height) * np.cos(azimuth)
    return Outfit(
        upper=upper,
        lower=float(rng.uniform(0.03, 0.14) if rng.random() < 0.65 else rng.uniform(0.14, 0.6)),
        skin=float(rng.uniform(0.12, 0.42)),
        hair=float(rng.choice([0.02, 0.04, 0.10, 0.25, 0.45])),
        shoes=float(rng.choice([0.03, 0.06, 0.25, 0.6], p=[0.4, 0.25, 0.15, 0.2])),
        second=second,
        pattern=rng.choice(["plain", "stripes", "bars", "checks", "print", "open"], p=[0.5, 0.1, 0.03, 0.07, 0.1, 0.2]),
        pitch=float(rng.uniform(0.03, 0.14)),
        folds=float(rng.uniform(0.05, 0.35)),
        sleeves=float(rng.uniform(0.3, 0.8) if summer else 2.0),
        trousers=0.0 if skirt else float(rng.uniform(0.4, 1.0)) if short else 2.0,
        hem=float(rng.uniform(-0.06, 0.10)),
        tail=float(length),
        coat=not skirt,
        loose=(float(rng.uniform(1.0, 1.1 if summer else 1.25)), float(rng.uniform(1.0, 1.2))),
        collar=float(rng.uniform(0.0, 0.05)),
        long_hair=bool(rng.random() < long_hair),
        hat=bool(rng.random() < 0.15),
        load=rng.choice(["none", "backpack", "bag"], p=[0.65, 0.2, 0.15]),
        bright=(float(sun[0]), float(sun[1]), float(sun[2])),
        hardness=float(rng.uniform(0.15, 0.75)),
    )


def shade(outfit: Outfit, right: Float32, down: Float32, view: int) -> Float32:
    """Share of the light that a surface throws back, from the normal in the picture (right, down) [h, w] each."""
    cos, sin = float(np.cos(DIRECTIONS[view])), float(np.sin(DIRECTIONS[view]))  # plain floats keep single precision
    x, y, z = outfit.bright
    near = np.sqrt(np.maximum(1 - right * right - down * down, 0))  # towards the viewer
    facing = right * (x * cos + z * sin) + down * y + near * (x * sin - z * cos)
    soft = 0.87 - 0.22 * down  # more light comes from above
    light = (1 - outfit.hardness) * soft + outfit.hardness * (0.3 + 1.1 * np.maximum(facing, 0))
    return np.asarray(light, np.float32)


def paint(outfit: Outfit, part: str, view: int, x: Float64, y: Float64, length: float) -> Float64:
    """Light [h, w] that the cloth or the skin of a part reflects, at columns ``x`` [w] and rows ``y`` [h].

    ``length`` is the distance from the part's joint to the next one, or to its end.
    """
    down, across = y[:, None], x[None, :]
    if part == "trunk":
        top = _pattern(outfit, view, across, down)
        below = tail_light(outfit) if outfit.tail else outfit.lower
        return np.where(down < outfit.hem - 0.03, top, np.where(down < outfit.hem, 0.5 * outfit.upper, below))
    if part == "upper_arm":
        return np.where(down < outfit.sleeves * length, _pattern(outfit, 2, across, down), outfit.skin)
    if part == "forearm":
        wrist = 0.57 * length if outfit.sleeves > 1 else -1.0
        return np.where(down < wrist, _pattern(outfit, 2, across, down), outfit.skin)
    if part == "thigh":
        return np.where(down < outfit.trousers * length, outfit.lower, outfit.skin)
    if part == "shank":
        covered = length if outfit.trousers > 1 else -1.0
        return np.where(down < covered, outfit.lower, np.where(down > 0.75 * length, outfit.shoes, outfit.skin))
    if part == "foot":
        return np.where(down > length - _SOLE, 0.5 * (outfit.shoes + outfit.second), outfit.shoes)
    return np.where(down > -outfit.collar, outfit.second, outfit.skin)


def _pattern(outfit: Outfit, view: int, across: Float64, down: Float64) -> Float64:
    """Light of the jacket or shirt."""
    front = 0.11 * np.sin(DIRECTIONS[view])  # of the breastbone, in the picture
    ahead = view in (3, 4, 5)
    light = np.full(np.broadcast_shapes(across.shape, down.shape), outfit.upper)
    if outfit.pattern in ("stripes", "bars", "checks"):
        rows = (np.mod(down / outfit.pitch, 1) < 0.5) & (outfit.pattern != "bars")
        columns = (np.mod(across / outfit.pitch, 1) < 0.5) & (outfit.pattern != "stripes")
        light[rows ^ columns] = outfit.second
    elif outfit.pattern == "print" and (ahead or view == 0):
        chest = (np.abs(across - front) < 0.5 * outfit.pitch + 0.05) & (down > -0.42) & (down < -0.24)
        light[chest] = outfit.second
    elif outfit.pattern == "open" and ahead:
        light = np.where(np.abs(across - front) < 0.2 * outfit.pitch + 0.03, outfit.second, light)
    if outfit.load == "backpack" and ahead:
        straps = (np.abs(np.abs(across - front) - 0.11) < 0.022) & (down < -0.2)
        light = np.where(straps, load_light(outfit), light)
    return light


def tail_light(outfit: Outfit) -> float:
    """Light of the skirt, or of the coat."""
    return outfit.upper if outfit.coat else outfit.second


def load_light(outfit: Outfit) -> float:
    """Light of the bag or backpack: unlike the jacket."""
    return 0.06 if outfit.upper > 0.25 else 0.45


def draw_folds(rng: np.random.Generator, rows: int, columns: int, contrast: float) -> Float32:
    """Folds of cloth, [rows, columns] around 1."""
    coarse, fine = smooth_noise(rng, rows, columns, (5, 2)), smooth_noise(rng, rows, columns, (12, 4))
    return np.asarray(1 + contrast * (coarse + 0.7 * fine - 0.85), np.float32)


def draw_tail(outfit: Outfit, half: float, length: float) -> Canvas:
    """A skirt, or the lower part of a coat, from the hips down: ``half`` its width there, wider below."""
    light, wider = tail_light(outfit), 1.08 if outfit.coat else 1.3
    canvas = Canvas((-wider * half, -0.1, wider * half, length), 40, 48)
    canvas.fill(((-0.8 * half, -0.1), (0.8 * half, -0.1), (wider * half, length), (-wider * half, length)), light)
    columns = np.linspace(-1, 1, 40)
    canvas.tint(1 - 0.35 * columns**2 + outfit.folds * 0.5 * np.sin(9 * columns + 3 * columns**2))
    return canvas


def draw_hair(outfit: Outfit, half: float, length: float) -> Canvas:
    """Long hair, from the middle of the head down."""
    canvas = Canvas((-half, -length, half, 0.0), 24, 32)
    canvas.fill(_rounded(half, length), outfit.hair)
    columns = np.linspace(-1, 1, 24)
    canvas.tint(1 - 0.4 * columns**2 + 0.1 * np.sin(14 * columns))
    return canvas


def draw_brim(outfit: Outfit, view: int, half: float) -> Canvas:
    """The brim of a cap, which points forward."""
    ahead = half * np.sin(DIRECTIONS[view])
    canvas = Canvas((-2 * half, -0.03, 2 * half, 0.03), 40, 12)
    canvas.fill(oval(ahead, 0.0, half * (1.0 - 0.25 * abs(np.sin(DIRECTIONS[view]))), 0.022), 0.7 * outfit.second)
    return canvas


def draw_load(outfit: Outfit, half: float, height: float) -> Canvas:
    """A backpack or a bag."""
    canvas = Canvas((-half, -height / 2, half, height / 2), 32, 40)
    middle: tuple[Point, ...] = tuple((x, y + height / 2) for x, y in _rounded(half, height))
    light = load_light(outfit)
    canvas.fill(middle, (light, 0.7 * light))
    canvas.rect(-0.7 * half, 0.05 * height, 0.7 * half, 0.09 * height, 0.4 * light)
    return canvas


def wear(light: Float64, share: Float32, alpha: Float32, folds: Float32) -> Texture:
    """A texture from the light of cloth, the share of it that is thrown back, and the coverage."""
    return Texture(np.clip(light * share * folds, 0, 1).astype(np.float32), alpha)


def _rounded(half: float, height: float) -> tuple[Point, ...]:
    """A box from y = -height to 0 with its corners taken off."""
    cut = 0.45 * min(half, height)
    right = ((half - cut, -height), (half, cut - height), (half, -cut), (half - cut, 0.0))
    return (*right, *((-x, y) for x, y in right[::-1]))
