"""The light of a street: the sun's place, dusk and night, and an exposure that changes during the recording."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.actors import Lighting
from fate.simulation.art.panels import Point
from fate.simulation.art.variety import Exposure, Variety


def make_lighting(rng: np.random.Generator) -> tuple[Lighting, bool]:
    """Sun, overcast, dusk or night; the second value says whether lamps are lit."""
    kind = rng.choice(["sun", "overcast", "dusk", "night"], p=[0.45, 0.35, 0.1, 0.1])
    azimuth, elevation = rng.uniform(0, 2 * np.pi), rng.uniform(0.35, 1.1)
    flat = np.cos(elevation)
    to_sun = float(flat * np.sin(azimuth)), float(-np.sin(elevation)), float(flat * np.cos(azimuth))
    if kind == "night":
        return Lighting(0.32, 0.0, to_sun, 0.06, 0.02, 1.5, 1.5), True
    ambient, sun, horizon, zenith, headlamps, lamps = {
        "sun": (0.55, 1.3, (1.2, 1.7), (0.7, 1.1), 0.0, 0.3),
        "overcast": (1.25, 0.2, (1.2, 1.6), (1.0, 1.5), 0.0, 0.3),
        "dusk": (0.45, 0.15, (0.5, 0.9), (0.25, 0.5), 0.05, 0.8),
    }[str(kind)]
    light = Lighting(ambient, sun, to_sun, rng.uniform(*horizon), rng.uniform(*zenith), headlamps, lamps)
    return light, kind == "dusk"


def draw_lighting(rng: np.random.Generator, variety: Variety, seconds: float) -> Lighting:
    """The light of a recording of ``seconds``; the camera's own headlamps shine on a car at dusk and night."""
    azimuth = rng.uniform(0, 2 * np.pi)
    elevation = rng.uniform(0.08, 0.3) if variety.light == "low sun" else rng.uniform(0.35, 1.2)
    flat = np.cos(elevation)
    to_sun = float(flat * np.sin(azimuth)), float(-np.sin(elevation)), float(flat * np.cos(azimuth))
    ambient, sun, horizon, zenith, headlamps, lamps = {
        "sun": ((0.35, 0.7), (0.9, 1.8), (1.0, 1.8), (0.6, 1.2), 0.0, 0.3),
        "low sun": ((0.25, 0.5), (0.9, 1.6), (1.2, 2.5), (0.4, 0.9), 0.0, 0.3),
        "overcast": ((0.8, 1.4), (0.05, 0.3), (1.0, 1.7), (0.9, 1.5), 0.0, 0.3),
        "dusk": ((0.2, 0.5), (0.0, 0.15), (0.4, 0.9), (0.15, 0.5), 0.15, 0.9),
        "night": ((0.05, 0.3), (0.0, 0.0), (0.02, 0.1), (0.01, 0.04), 1.5, 1.5),
    }[variety.light]
    return Lighting(
        float(rng.uniform(*ambient)),
        float(rng.uniform(*sun)),
        to_sun,
        float(rng.uniform(*horizon)),
        float(rng.uniform(*zenith)),
        headlamps * rng.uniform(0.6, 1.4) if variety.mount == "car" else 0.0,
        lamps,
        draw_exposure(rng, variety.exposure, seconds),
    )


def draw_exposure(rng: np.random.Generator, kind: Exposure, seconds: float) -> tuple[Point, ...]:
    """(seconds, factor) of the whole picture's light.

    A tunnel or a bridge darkens the picture for a while. A jump stays. A ramp goes up or down slowly. An automatic
    exposure jumps and drifts back, again and again.
    """
    if kind == "steady":
        return ()
    when = float(rng.uniform(0.1, 0.7) * seconds)
    dark = float(rng.uniform(0.12, 0.6))
    quick = float(rng.uniform(0.01, 0.15))  # seconds of a jump
    if kind == "tunnel":
        end = when + quick + float(rng.uniform(0.15, 0.5) * min(seconds, 6.0))
        return (0.0, 1.0), (when, 1.0), (when + quick, dark), (end, dark), (end + quick, 1.0)
    levels = (1.0, dark) if rng.random() < 0.5 else (dark, 1.0)
    if kind == "jump":
        return (0.0, levels[0]), (when, levels[0]), (when + quick, levels[1])
    if kind == "ramp":
        return (0.0, levels[0]), (when, levels[0]), (when + float(rng.uniform(0.3, 2.0)), levels[1])
    points, at = [(0.0, 1.0)], float(rng.uniform(0.0, 0.6))
    while at < seconds:
        jump, drift = float(np.exp(rng.normal(0, 0.35))), float(rng.uniform(0.2, 0.8))
        points += [(at, 1.0), (at + 0.01, jump), (at + 0.01 + drift, 1.0)]
        at += 0.05 + drift + float(rng.exponential(0.6))
    return tuple(points)
