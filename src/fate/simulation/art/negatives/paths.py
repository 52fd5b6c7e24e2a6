"""How things without wheels or legs move: to and fro, thrown, bouncing or pushed; and a camera in a hand.

A pose is written as five numbers in the order of :class:`Pose`: x, z, heading, gait and y. Bodies whose panels turn
(:class:`Swing` with ``turns``) take the gait as their angle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.actors import STEP_S, Ego, Pose, ornstein_uhlenbeck, smooth

GRAVITY = 9.81  #: m/s²


def numbers(x: float = 0.0, z: float = 0.0, heading: float = 0.0, gait: float = 0.0, y: float = 0.0) -> Float64:
    """The five numbers [5] of a pose, or how much each of them changes."""
    return np.array([x, z, heading, gait, y], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Wave:
    """Even motion and sines about a middle pose: what shakes, swings, circles, drifts or turns."""

    middle: Float64  #: [5] pose
    drift: Float64  #: [5] change of the pose per second
    amplitude: Float64  #: [n, 5] of n sines
    hertz: Float64  #: [n, 5]
    phase: Float64  #: [n, 5] rad

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        angle = 2 * np.pi * self.hertz[..., None] * seconds + self.phase[..., None]
        sines = (self.amplitude[..., None] * np.sin(angle)).sum(axis=0)
        return Pose(*(self.middle[:, None] + self.drift[:, None] * seconds + sines))


def sway(
    rng: np.random.Generator, middle: Float64, reach: Float64, hertz: float = 1.0, drift: Float64 | None = None
) -> Wave:
    """Move irregularly about a pose, up to ``reach`` [5] to either side, at about ``hertz``."""
    sines = 3
    hz = hertz * rng.uniform(0.4, 1.6, (sines, 5))
    phase = rng.uniform(0, 2 * np.pi, (sines, 5))
    return Wave(middle, numbers() if drift is None else drift, np.tile(reach / sines, (sines, 1)), hz, phase)


def turn(middle: Float64, hertz: float, phase: float = 0.0) -> Wave:
    """Stay in place while the gait goes round ``hertz`` times a second."""
    still = np.zeros((1, 5))
    return Wave(middle + numbers(gait=phase), numbers(gait=2 * np.pi * hertz), still, still, still)


@dataclass(frozen=True, eq=False)
class Flight:
    """Throw something from the same place again and again.

    It starts and ends outside the view. After each flight it returns to the start by a way that leads ``aside`` first,
    so that it stays outside and never jumps: a jump would be drawn as a very fast motion.
    """

    start: Float64  #: [5] pose
    velocity: Float64  #: [5] per second
    fall: float  #: m/s² downwards
    life: float  #: seconds of the flight
    back: float  #: seconds of the return
    aside: Float64  #: [5] how far the return leads aside
    delay: float = 0.0  #: seconds until the first throw

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        cycle = np.mod(seconds - self.delay, self.life + self.back)
        age, share = np.minimum(cycle, self.life), np.clip((cycle - self.life) / self.back, 0.0, 1.0)
        travel = self.velocity[:, None] * age
        travel[4] += 0.5 * self.fall * age**2
        outside = np.clip(4 * np.minimum(share, 1 - share), 0.0, 1.0)
        home = np.clip(2 * share - 0.5, 0.0, 1.0)
        return Pose(*(self.start[:, None] + travel * (1 - home) + self.aside[:, None] * outside))


@dataclass(frozen=True, eq=False)
class Bounce:
    """Bounce on the ground at full height again and again, to and fro between two sides."""

    middle: Float64  #: [5] pose at the lowest point
    height: float  #: metres above the lowest point
    half_width: float  #: metres to either side
    speed: float  #: m/s to the side
    phase: float  #: seconds

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        time = seconds + self.phase
        hop = np.mod(time / np.sqrt(8 * self.height / GRAVITY), 1.0)
        across = np.abs(np.mod(time * self.speed / (2 * self.half_width), 2.0) - 1.0) * 2 - 1
        x, z, heading, gait, y = np.broadcast_to(self.middle[:, None], (5, len(seconds)))
        return Pose(x + self.half_width * across, z, heading, gait + 3 * across, y - 4 * self.height * hop * (1 - hop))


@dataclass(frozen=True, eq=False)
class Push:
    """Be pushed from one pose to another, rest, be pushed back, and rest again."""

    start: Float64  #: [5] pose
    end: Float64  #: [5] pose
    period: float  #: seconds
    phase: float  #: of the period

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        cycle = np.mod(seconds / self.period + self.phase, 1.0)
        share = np.clip(1.5 - np.abs(4 * cycle - 2), 0.0, 1.0)
        share = share * share * (3 - 2 * share)
        return Pose(*(self.start[:, None] + (self.end - self.start)[:, None] * share))


def hold(
    rng: np.random.Generator,
    seconds: float,
    shake: float = 0.0,
    pitch: float = 0.0,
    walk: float = 0.0,
    room: float = 0.1,
) -> Ego:
    """Hold a camera in a hand: it turns by about ``shake`` rad and moves by up to ``room`` metres.

    With a ``walk`` of so many m/s it goes ahead for up to 50 m, then back; the picture bobs with every step. With a
    shake and a walk of 0 it stands still.
    """
    steps = int(np.ceil(seconds / STEP_S)) + 2
    clock = np.arange(steps) * STEP_S
    memory = rng.uniform(0.25, 0.9)
    turns = [smooth(smooth(ornstein_uhlenbeck(rng, steps, shake, memory), 0.12), 0.08) for _ in range(2)]
    sizes = room * min(1.0, shake / 0.05) / 2
    x, z = (sizes * smooth(ornstein_uhlenbeck(rng, steps, 1.0, 1.0), 0.3) for _ in range(2))
    step_hz, moving = rng.uniform(1.6, 2.1), float(walk > 0)
    bob = moving * rng.uniform(0.004, 0.012) * np.sin(2 * np.pi * step_hz * clock)
    x = x + moving * 0.03 * np.sin(np.pi * step_hz * clock)
    z = z + 50 - np.abs(np.mod(walk * clock, 100) - 50)
    return Ego(x, z, np.full(steps, walk), turns[0], pitch + 0.7 * turns[1] + bob)
