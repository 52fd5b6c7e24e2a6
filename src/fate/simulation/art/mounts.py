"""The ways of a camera: on a car that drives, on a mast beside the street, in the hand of a person."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.actors import STEP_S, Ego, accumulate_fading, drive, ornstein_uhlenbeck, smooth
from fate.simulation.art.variety import Variety

#: A camera that does not drive stands this far along the street, metres: it may look either way.
MIDDLE = 110.0


def mount_on_car(rng: np.random.Generator, variety: Variety, seconds: float) -> Ego:
    """A drive as ``actors.drive`` draws it, with the camera's own height and angles, its vibration, and bumps."""
    ego = drive(rng, seconds, variety.motorway)
    clock = np.arange(len(ego.z)) * STEP_S
    running = 0.25 + 0.75 * np.minimum(ego.speed / 8, 1)  # the engine alone shakes less than the road
    shaking = variety.shake * running * np.clip(0.6 + ornstein_uhlenbeck(rng, len(clock), 0.25, 0.5), 0.0, 1.0)
    waves = [np.sin(2 * np.pi * variety.shake_hz * clock + rng.uniform(0, 2 * np.pi)) for _ in range(3)]
    jolt = np.zeros_like(clock)
    for when in rng.uniform(0, seconds, rng.poisson(0.25 * seconds)):
        since = np.maximum(clock - when, 0.0)
        jolt += rng.uniform(0.003, 0.015) * np.exp(-since / 0.2) * np.sin(2 * np.pi * 2.2 * since) * running
    return replace(
        ego,
        yaw=ego.yaw + variety.yaw + 0.4 * shaking * waves[0],
        pitch=ego.pitch + variety.pitch + shaking * waves[1] + jolt,
        height=variety.height + 0.5 * jolt,
        roll=variety.roll + 0.6 * shaking * waves[2],
    )


def mount_beside(
    rng: np.random.Generator, variety: Variety, seconds: float, left_kerb: float, right_kerb: float
) -> Ego:
    """A camera behind one of the kerbs, on a mast or in a hand, that looks onto the street.

    A person walks along the pavement or stands. The camera bobs with the steps, trembles, and turns now and then.
    """
    steps = int(np.ceil(seconds / STEP_S)) + 2
    clock = np.arange(steps) * STEP_S
    side = float(rng.choice([-1.0, 1.0]))
    kerb = right_kerb if side > 0 else -left_kerb
    beyond = float(rng.uniform(0.3, 1.6))
    across = beyond + rng.uniform(0.2, 0.6) * (right_kerb - left_kerb)  # metres to the point of the road it looks at
    yaw = -side * np.pi * variety.yaw
    away = min(across / max(abs(np.sin(yaw)), 1e-3), rng.uniform(10, 30))
    pitch = -np.arctan(variety.height / away) * rng.uniform(0.3, 1.0) + variety.pitch

    def wave(hertz: float) -> Float64:
        return np.asarray(np.sin(2 * np.pi * hertz * clock + rng.uniform(0, 2 * np.pi)))

    hand = variety.mount == "hand"
    speed = np.full(steps, variety.walk)
    moving = 0.25 + 0.75 * min(abs(variety.walk), 1.0) if hand else 1.0
    sway = variety.sway * moving
    tremor = variety.shake * (0.7 * wave(variety.shake_hz) + 0.5 * wave(1.3 * variety.shake_hz))
    wander = ornstein_uhlenbeck(rng, steps, 0.02 if hand else 0.0, 1.0)
    turning = smooth(variety.turn * np.clip(1.5 * ornstein_uhlenbeck(rng, steps, 1.0, 0.8), -1, 1), 0.3)
    turned = accumulate_fading(STEP_S * turning, 1.0 - STEP_S / 2.0)  # back to the street within about two seconds
    return Ego(
        x=np.full(steps, side * (kerb + beyond)),
        z=np.asarray(MIDDLE + variety.walk * clock),
        speed=np.abs(speed),
        yaw=yaw + sway * wave(variety.sway_hz / 2) + wander + turned,
        pitch=pitch + sway * wave(variety.sway_hz) + smooth(wander, 0.4)[::-1] + tremor,
        height=variety.height + (0.03 * moving * wave(variety.sway_hz) if hand else np.zeros(steps)),
        roll=variety.roll + 0.7 * sway * wave(variety.sway_hz / 2) + 0.5 * tremor,
    )
