"""The bones of a person, and how they turn while it walks, runs, stands, gestures, sits or crouches.

All bones turn about the axis from left to right, so the angle of a bone in space is the sum of the angles along its
chain. An angle is positive where the lower end of a hanging limb moves forward; of the trunk, where it leans back. Each
joint follows a short Fourier series of the gait phase, made from its angles at a few moments of a cycle. A cycle begins
when the right heel meets the ground. The body also sways over the foot that carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from fate.simulation.arrays import Float64

Motion: TypeAlias = Literal["walk", "run", "stand", "gesture", "sit", "crouch"]
MOTIONS: tuple[Motion, ...] = get_args(Motion)

#: Each bone and the one that carries it; None is the pelvis, which does not turn. The tails are those of skirts.
PARENTS: dict[str, str | None] = {
    "trunk": None, "head": "trunk",
    "right upper_arm": "trunk", "right forearm": "right upper_arm",
    "right thigh": None, "right shank": "right thigh", "right foot": "right shank", "right tail": None,
    "left upper_arm": "trunk", "left forearm": "left upper_arm",
    "left thigh": None, "left shank": "left thigh", "left foot": "left shank", "left tail": None,
}  # fmt: skip
BONES = tuple(PARENTS)
#: Index of each bone's parent in ``BONES``; -1 is the pelvis. A parent comes before its children.
PARENT_INDEX = tuple(-1 if parent is None else BONES.index(parent) for parent in PARENTS.values())
FEET = BONES.index("right foot"), BONES.index("left foot")
HIP = BONES.index("right thigh")
HARMONICS = 3


@dataclass(frozen=True, eq=False)
class Skeleton:
    """Where the joints of one person are, and how they move. N bones; (right, down, forward) in metres."""

    joints: Float64  #: [N, 3] at rest (upright, arms hanging), from the ground under the hips
    soles: tuple[float, float]  #: forward position of heel and toes at rest
    angles: Float64  #: [N, 2 · HARMONICS + 1] rad: mean, cosines, sines
    flight: float  #: metres above the ground between two steps of a run
    sway: float  #: metres by which the body moves to the right, over the right foot, and to the left
    phase: float  #: rad, ahead of the gait phase of the path
    seat: float = np.nan  #: height of the hips, metres; nan: as high as the lower foot needs to touch the ground


#: Of each motion and joint: degrees at evenly spaced moments of a cycle, for the right side; one number: it is held.
#: A negative angle of the shank bends the knee, a positive one of the forearm the elbow.
_CYCLES: dict[Motion, dict[str, tuple[float, ...]]] = {
    "walk": {
        "trunk": (-3, -4, -3, -4), "head": (2, 3, 2, 3),
        "thigh": (27, 22, 12, 1, -9, -17, -9, 12, 27, 32),
        "shank": (-5, -17, -13, -6, -7, -16, -42, -62, -43, -10),
        "foot": (1, -5, 3, 7, 11, 6, -18, -9, 2, 2),
        "upper_arm": (-22, -19, -9, 4, 14, 18, 15, 6, -6, -17), "forearm": (10, 9, 10, 14, 20, 24, 24, 21, 16, 12),
    },
    "run": {
        "trunk": (-9, -11, -9, -11), "head": (6, 8, 6, 8),
        "thigh": (38, 30, 14, -6, -22, -18, 4, 30, 48, 46),
        "shank": (-18, -36, -40, -28, -18, -40, -80, -102, -82, -34),
        "foot": (4, 10, 18, 4, -20, -22, -12, -4, 2, 4),
        "upper_arm": (-48, -42, -26, -6, 12, 18, 12, -6, -26, -42), "forearm": (76, 74, 70, 70, 74, 80, 82, 80, 78, 76),
    },
    "stand": {
        "trunk": (0, 2.4, 0.8, -2.4, -1.2), "head": (0, 6, 4, -6, -2), "foot": (2, 2.5, 2, 1.5, 2),
        "thigh": (1, 1.6, 1, 0.4, 1), "shank": (-3, -4, -3, -2, -3),
        "upper_arm": (0, 4, 10, 4, -3), "forearm": (6, 12, 28, 14, 4),
    },
    "gesture": {
        "trunk": (0, 3, 1, -4, -2), "head": (0, 8, 3, -7, -2), "foot": (2,), "thigh": (1,), "shank": (-3,),
        "upper_arm": (8, 38, 60, 44, 16), "forearm": (30, 92, 70, 110, 60),
    },
    "sit": {
        "trunk": (4, 7, 4, 0), "head": (-3, 6, 2, -8), "thigh": (82,), "shank": (-78,), "foot": (-4,),
        "upper_arm": (10, 14, 22, 14), "forearm": (40, 44, 62, 48),
    },
    "crouch": {
        "trunk": (-30, -28, -31, -34), "head": (12, 18, 14, 8), "thigh": (104,), "shank": (-126,), "foot": (22,),
        "upper_arm": (36, 46, 52, 40), "forearm": (16, 32, 42, 22),
    },
}  # fmt: skip
#: Range of the right arm's amplitude, times that of the left one.
_GESTURES: dict[Motion, tuple[float, float]] = {"stand": (0.0, 2.5), "sit": (0.0, 2.5), "gesture": (-1.0, 1.4)}
_FLIGHT = {"run": 0.06}  # of the height
_SWAY = 0.007, 0.02  # of the height
_TAIL = 0.55  # share of the thigh's motion that a skirt follows
_SHAKEN = 0.15  # spread of the amplitude of a joint between people


def make_skeleton(
    rng: np.random.Generator, motion: Motion, joints: Mapping[str, Float64], soles: tuple[float, float], height: float
) -> Skeleton:
    """A person who moves in its own way. ``joints`` are those of trunk, head and the right limbs, at rest."""
    cycles, angles = _CYCLES[motion], np.zeros((len(BONES), 2 * HARMONICS + 1))
    at_rest = np.zeros((len(BONES), 3))
    own = {name: float(rng.uniform(1 - _SHAKEN, 1 + _SHAKEN)) for name in cycles}
    gesture = rng.uniform(*_GESTURES[motion]) if motion in _GESTURES else 1.0
    for index, bone in enumerate(BONES):
        side, _, name = bone.rpartition(" ")
        limb = "thigh" if name == "tail" else name
        series = np.deg2rad(fourier(cycles[limb]))
        if side == "left":
            series = half_a_cycle_later(series)
        series[1:] *= own[limb] * (gesture if side == "right" and limb in ("upper_arm", "forearm") else 1.0)
        angles[index] = series * (_TAIL if name == "tail" and motion not in ("sit", "crouch") else 1.0)
        at_rest[index] = joints[limb] * (-1.0 if side == "left" else 1.0, 1.0, 1.0)
    flight, sway = _FLIGHT.get(motion, 0.0) * height, float(rng.uniform(*_SWAY)) * height
    return Skeleton(at_rest, soles, angles, flight, sway, float(rng.uniform(0, 2 * np.pi)))


def turned(down: Float64, forward: Float64, angle: Float64) -> tuple[Float64, Float64]:
    """A vector turned about the axis from left to right by an angle in rad."""
    cos, sin = np.cos(angle), np.sin(angle)
    return down * cos - forward * sin, down * sin + forward * cos


def half_a_cycle_later(series: Float64) -> Float64:
    """The series of the other side, whose limbs move half a cycle later."""
    sign = (-1.0) ** np.arange(1, HARMONICS + 1)
    return np.asarray(series * np.concatenate([[1.0], sign, sign]))


def fourier(values: Sequence[float]) -> Float64:
    """Mean, cosines and sines up to ``HARMONICS`` of a cycle given at evenly spaced phases."""
    knots = np.interp(np.arange(60) / 60, np.arange(len(values) + 1) / len(values), [*values, values[0]])
    spectrum = np.fft.rfft(knots)[: HARMONICS + 1] / 60
    return np.concatenate([[spectrum[0].real], 2 * spectrum[1:].real, -2 * spectrum[1:].imag])
