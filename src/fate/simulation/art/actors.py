"""Who is in a street and how it moves: paths, the car that carries the camera, actors, and the light on them.

The street runs along z; x is to the right of its middle line. A heading of 0 looks along +z and grows towards +x.
Every path is a function of time alone, so the pose at any microsecond does not depend on earlier calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.panels import Body, Point

#: The ego car's path is integrated in steps of this many seconds.
STEP_S = 0.005
#: Nothing further ahead than this is drawn, metres: it would be lost in the haze.
REACH = 170.0


class Pose(NamedTuple):
    """Where something is at some times; every field has one entry a time."""

    x: Float64  #: metres right of the middle line
    z: Float64  #: metres along the street
    heading: Float64  #: rad
    gait: Float64  #: rad, how far the walk has come; 0 for what does not walk
    y: Float64 = np.zeros(1)  #: metres below the ground; negative above it. One entry holds for all times.


class CameraPose(NamedTuple):
    """Where the camera is at some times [R], and where it looks."""

    x: Float64  #: metres right of the middle line
    z: Float64  #: metres along the street
    yaw: Float64  #: rad, to the right
    pitch: Float64  #: rad, upwards
    height: Float64 | None = None  #: metres above the ground; None: the height that the renderer was given
    roll: Float64 | None = None  #: rad, clockwise as the camera sees it; None: upright


@dataclass(frozen=True)
class Straight:
    """Even motion along the heading; speed 0 is something parked or planted."""

    x: float
    z: float
    heading: float = 0.0
    speed: float = 0.0  #: m/s
    stride: float = 0.0  #: metres of one full walking cycle, or of one turn of the pedals; 0: it rolls

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        way = self.speed * seconds
        gait = 2 * np.pi * way / self.stride if self.stride > 0 else np.zeros_like(way)
        return Pose(
            self.x + way * np.sin(self.heading),
            self.z + way * np.cos(self.heading),
            np.full_like(way, self.heading),
            gait,
            np.zeros_like(way),
        )


@dataclass(frozen=True, eq=False)
class Ego:
    """The car with the camera: its path and the camera's angles, sampled every ``STEP_S`` seconds."""

    x: Float64
    z: Float64
    speed: Float64  #: m/s
    yaw: Float64  #: rad, to the right
    pitch: Float64  #: rad, upwards
    height: Float64 | None = None  #: metres above the ground; None: the height that the renderer was given
    roll: Float64 | None = None  #: rad, clockwise as the camera sees it; None: upright

    def at(self, seconds: Float64) -> CameraPose:
        """The camera's pose at times [R] in seconds."""
        sample = np.clip(seconds / STEP_S, 0, len(self.z) - 1)
        first = np.minimum(sample.astype(np.int64), len(self.z) - 2)
        share = sample - first

        def between(values: Float64) -> Float64:
            return np.asarray(values[first] + share * (values[first + 1] - values[first]))

        rest = (None if values is None else between(values) for values in (self.height, self.roll))
        return CameraPose(between(self.x), between(self.z), between(self.yaw), between(self.pitch), *rest)


@dataclass(frozen=True, eq=False)
class Following:
    """A car ahead in traffic: it keeps near a distance from the ego car, a little closer and a little further."""

    ego: Ego
    x: float
    gap: float  #: metres, on average
    sway: float  #: metres closer or further at most
    period: float  #: seconds of one approach and retreat
    phase: float  #: rad
    stride: float = 0.0  #: metres of one turn of the pedals; 0: nobody pedals

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        z = self.ego.at(seconds).z
        gap = self.gap + self.sway * np.sin(2 * np.pi * seconds / self.period + self.phase)
        gait = 2 * np.pi * (z + gap) / self.stride if self.stride > 0 else np.zeros_like(seconds)
        level = np.zeros_like(seconds)
        return Pose(np.full_like(seconds, self.x), z + gap, level, gait, level)


@dataclass(frozen=True)
class Swaying:
    """Something planted whose swinging panels sway to and fro, a wiper that sweeps, or a person who stays in place."""

    x: float
    z: float
    hertz: float
    phase: float = 0.0  #: rad
    heading: float = 0.0

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        x, z, heading = (np.full_like(seconds, value) for value in (self.x, self.z, self.heading))
        return Pose(x, z, heading, 2 * np.pi * self.hertz * seconds + self.phase)


@dataclass(frozen=True)
class Falling:
    """A drop or a flake that crosses the picture again and again, on the same way.

    It jumps back to its start between calls, never between two times of one call, so that a stretch of time that is
    asked for at once holds no jump.
    """

    start: tuple[float, float]  #: x and z
    velocity: tuple[float, float]  #: m/s along x and z
    period: float  #: seconds from one start to the next
    phase: float  #: seconds after its start at time 0

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        since = seconds + self.phase
        since = since - self.period * np.floor(since[0] / self.period)
        x, z = (start + speed * since for start, speed in zip(self.start, self.velocity, strict=True))
        return Pose(x, z, np.zeros_like(x), np.zeros_like(x))


class Path(Protocol):
    """A way through the street, with a pose at any time."""

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""


class Layer(IntEnum):
    """What lies over what, whatever the distance."""

    LENS = -1  #: fixed to the camera, whose frame is its own; x and z of its path are metres to the right and down
    STANDING = 0  #: everything upright, sorted by depth
    SHADOW = 1  #: on the ground, over markings
    MARKING = 2  #: on the ground
    PAVING = 3  #: on the ground, under markings
    KERB = 4  #: on the ground; from here on the same all along the street, so it moves with the camera
    GROUND = 5  #: road and pavements
    LAND = 6  #: the land beside them
    FAR = 7  #: the skyline


class Actor(NamedTuple):
    """A body on its way."""

    body: Body
    path: Path
    layer: Layer = Layer.STANDING
    owner: int = -1  #: the labelled object it is; -1: scenery, or something neutral
    mirror: float = 1.0  #: -1 turns a billboard's left to its right, unless it has bones
    reach: float = 0.0  #: metres from its origin to its far end: walls beside the street are sorted by that end


@dataclass(frozen=True)
class Lighting:
    """The light of one drive, in units where a white wall in full sun gives 1."""

    ambient: float  #: from everywhere
    sun: float  #: from the sun's direction
    to_sun: tuple[float, float, float]  #: unit vector in street coordinates (x right, y down, z along)
    horizon: float  #: light of the sky just above the skyline
    zenith: float  #: light of the sky one focal length higher
    headlamps: float  #: of the ego car, on something right in front
    lamps: float  #: share of their full glow at which lamps shine
    exposure: tuple[Point, ...] = ()  #: (seconds, factor) of the whole picture's light, straight in between; (): 1
    shade: tuple[Point, ...] = ()  #: (z, share) of the sun that trees keep from what passes under them; (): none


def ornstein_uhlenbeck(rng: np.random.Generator, steps: int, sigma: float, time_constant: float) -> Float64:
    """A random walk [steps] drawn back to 0, with standard deviation ``sigma`` and a memory of seconds."""
    keep = np.exp(-STEP_S / time_constant)
    kicks = rng.normal(0.0, sigma * np.sqrt(1 - keep * keep), steps)
    return accumulate_fading(kicks, keep, rng.normal(0.0, sigma))


def accumulate_fading(values: Float64, keep: float, before: float = 0.0) -> Float64:
    """The sums y_i = x_i + keep · y_{i−1} [N], with ``before`` as y before the first; scipy.signal loads for 1.5 s."""
    sums = np.empty(len(values))
    for index, value in enumerate(values.tolist()):
        before = value + keep * before
        sums[index] = before
    return sums


def smooth(values: Float64, seconds: float) -> Float64:
    """A moving average over ``seconds``, the ends held."""
    width = max(int(seconds / STEP_S), 1)
    padded = np.concatenate([np.full(width // 2, values[0]), values, np.full(width - 1 - width // 2, values[-1])])
    sums = np.cumsum(np.concatenate([[0.0], padded]))
    return np.asarray((sums[width:] - sums[:-width]) / width)


def drive(rng: np.random.Generator, seconds: float, motorway: bool = False) -> Ego:
    """A drive of ``seconds``: 15 % of the time standing, 60 % at 2 to 14 m/s, 25 % at 14 to 30 m/s.

    On a motorway, the speed is 18 to 38 m/s and nearly constant. A recording keeps to town speed or to the open road;
    in town, two of three wait at a red light for up to a third of their time. The yaw rate is an Ornstein-Uhlenbeck
    process of 0.05 rad/s (less above 8 m/s), steered back to the lane; the pitch swings by about 0.2° at 1 to 3 Hz,
    less when the car stands.
    """
    steps = int(np.ceil(seconds / STEP_S)) + 2
    cruise = rng.uniform(14, 28) if rng.random() < 0.26 else rng.uniform(6, 14)
    cruise = rng.uniform(18, 38) if motorway else cruise
    speed = cruise * (1 + ornstein_uhlenbeck(rng, steps, 0.04 if motorway else 0.12, 4.0))
    clock = np.arange(steps) * STEP_S
    brakes = min(4.0, 0.3 * seconds)  # seconds from the first touch of the brakes to full stop, and back
    if cruise < 14 and rng.random() < 0.65:  # one red light
        standing = rng.uniform(0.12, 0.34) * seconds
        begin = rng.uniform(-0.2 * standing, seconds - 0.8 * standing) - brakes / 2
        speed[(clock >= begin) & (clock < begin + standing + brakes)] = 0.0
    speed = np.clip(smooth(smooth(speed, brakes), 0.5), 0.0, 40.0 if motorway else 30.0)
    speed[speed < 0.15] = 0.0

    gentle = np.minimum(speed / 3, 1) * np.minimum(8 / np.maximum(speed, 8), 1)  # no swerving at speed
    yaw_rate = smooth(ornstein_uhlenbeck(rng, steps, 0.05, 1.2), 0.2) * gentle
    x, yaw = np.zeros(steps), np.zeros(steps)
    for i in range(1, steps):  # the driver steers back to the middle of the lane
        back = -1.6 * yaw[i - 1] - 0.9 * x[i - 1] / max(speed[i], 4.0)
        yaw[i] = yaw[i - 1] + (yaw_rate[i] + back * min(speed[i] / 3, 1.0)) * STEP_S
        x[i] = x[i - 1] + speed[i] * np.sin(yaw[i]) * STEP_S
    z = np.concatenate([[0.0], np.cumsum(speed[1:] * np.cos(yaw[1:]) * STEP_S)])

    pitch = np.zeros(steps)
    shake = 0.04 + 0.96 * np.minimum(speed / 8, 1)
    for _ in range(3):
        hertz, phase = rng.uniform(1, 3), rng.uniform(0, 2 * np.pi)
        pitch += np.deg2rad(0.2) / np.sqrt(3) * np.sin(2 * np.pi * hertz * clock + phase)
    return Ego(x, z, speed, yaw, pitch * shake)


def stand(rng: np.random.Generator, seconds: float, left_kerb: float, right_kerb: float) -> Ego:
    """A camera that stands behind one of the kerbs for ``seconds``, and looks along the street and onto it."""
    steps = int(np.ceil(seconds / STEP_S)) + 2
    on_the_right = rng.random() < 0.5
    x = right_kerb + 0.5 if on_the_right else left_kerb - 0.5
    towards = rng.uniform(-0.1, 0.8) * (-1 if on_the_right else 1)
    still = np.zeros(steps)
    return Ego(np.full(steps, x), still, still, np.full(steps, towards), np.full(steps, -rng.uniform(0.0, 0.2)))
