"""How the bones of people move their panels, and from which direction a person is seen.

A panel of a bone is a card in the plane of the picture. It turns with its bone about the axis from the person's left
to its right and is projected back along the viewing direction, so a thigh that is lifted towards the camera becomes
shorter. The joints move continuously with the person's direction; the pictures on the cards change in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.actors import Actor, Ego
from fate.simulation.art.skeleton import FEET, HARMONICS, HIP, PARENT_INDEX, Skeleton, turned

#: The view of a person is chosen this often, µs.
CHOICE_US = 100_000
#: A view is kept until the person has turned away from its middle by this share of the angle between two views.
KEEP = 0.8
#: No card is squeezed to less than this share of its area by foreshortening.
_MIN_AREA = 0.3
#: Gait phase when the right foot carries the body, rad.
_ON_RIGHT_FOOT = 0.3 * 2 * np.pi
#: Gait phase in the middle of a runner's flight, rad.
_IN_FLIGHT = 0.44 * 2 * np.pi


class Bones(NamedTuple):
    """The fields of :class:`Skeleton` of P people."""

    joints: Float64  # [P, N, 3]
    soles: Float64  # [P, 2]
    angles: Float64  # [P, N, 2 · HARMONICS + 1]
    flight: Float64  # [P]
    sway: Float64  # [P]
    phase: Float64  # [P]
    seat: Float64  # [P]

    @staticmethod
    def stack(skeletons: Sequence[Skeleton]) -> Bones:
        """Gather the skeletons of several people."""
        columns = [np.array([getattr(each, name) for each in skeletons]) for name in Bones._fields]
        return Bones(*columns)


class PosedBones(NamedTuple):
    """Where the joints are in the plane of the picture, and how the bones are turned, at R knots."""

    joints: Float64  # [R, P, N, 3] metres: right, down, away from the camera
    angle: Float64  # [R, P, N] rad, in space


def pose_bones(bones: Bones, gait: Float64, seen: Float64) -> PosedBones:
    """Pose P people by their gait phases [R, P]; ``seen`` [R, P] is their heading less their bearing, rad.

    The pelvis is as high as the lower foot needs to touch the ground, or as the seat that carries it.
    """
    phase = gait + bones.phase
    order = phase[..., None] * np.arange(1, HARMONICS + 1)
    basis = np.concatenate([np.ones_like(order[..., :1]), np.cos(order), np.sin(order)], axis=-1)
    angle = np.einsum("rph,pnh->rpn", basis, bones.angles)
    above = np.clip(bones.joints[..., 1] / bones.joints[:, :1, 1], 0.0, 1.0)  # the hips and all above them sway alike
    right = bones.joints[..., 0] + above * (bones.sway * np.cos(phase - _ON_RIGHT_FOOT))[..., None]
    down, forward = (np.broadcast_to(bones.joints[..., axis], angle.shape).copy() for axis in (1, 2))
    for bone, parent in enumerate(PARENT_INDEX):
        if parent >= 0:
            offset = bones.joints[:, bone] - bones.joints[:, parent]
            step_down, step_forward = turned(offset[:, 1], offset[:, 2], angle[..., parent])
            down[..., bone], forward[..., bone] = down[..., parent] + step_down, forward[..., parent] + step_forward
            angle[..., bone] += angle[..., parent]
    lowest = np.full_like(gait, -np.inf)
    for foot in FEET:
        for end in range(2):
            along = bones.soles[:, end] - bones.joints[:, foot, 2]
            below = turned(-bones.joints[:, foot, 1], along, angle[..., foot])[0]
            lowest = np.maximum(lowest, down[..., foot] + below)
    lift = lowest + bones.flight * np.square(np.cos(phase - _IN_FLIGHT))
    lift = np.where(np.isnan(bones.seat), lift, bones.joints[:, HIP, 1] + bones.seat)
    cos, sin = np.cos(seen)[..., None], np.sin(seen)[..., None]
    joints = np.stack([right * cos + forward * sin, down - lift[..., None], forward * cos - right * sin], axis=-1)
    return PosedBones(joints, angle)


def turn_cards(vectors: Float64, angle: Float64, seen: Float64, drawn: Float64, spread: Float64) -> Float64:
    """Vectors (right, down, 0) [V, K, 3] of cards turned by ``angle`` [R, K] and projected, [V, R, K, 3].

    ``seen`` [R, K] is the direction from which a person is seen, ``drawn`` [K] that for which the card was drawn,
    ``spread`` [K, 2] the width from the front and from the side.
    """
    cos, sin = np.cos(seen), np.sin(seen)
    cos_squared, sin_squared = cos * cos, sin * sin
    least = (_MIN_AREA - sin_squared) / np.maximum(cos_squared, 1e-6)
    upright = np.maximum(np.cos(angle), least)
    leaning = sin * np.copysign(np.sqrt(1 - upright * upright), angle)
    wider = np.hypot(spread[:, 0] * cos, spread[:, 1] * sin)
    wider /= np.hypot(spread[:, 0] * np.cos(drawn), spread[:, 1] * np.sin(drawn))
    right, down = vectors[:, None, :, 0] * wider, vectors[:, None, :, 1]
    turned = np.zeros((*right.shape, 3))
    turned[..., 0] = right * (cos_squared + sin_squared * upright) + down * leaning
    turned[..., 1] = down * upright - right * leaning
    return turned


class Views:
    """Which view of each person is drawn, at any time.

    The nearest view is chosen at the start. It is kept until the person has clearly turned towards another one, so that
    the picture does not change back and forth.
    """

    def __init__(self, actors: Sequence[Actor], ego: Ego) -> None:
        self._actors, self._ego = actors, ego
        self._chosen: dict[int, list[int]] = {}

    def at(self, index: int, start_us: int) -> int:
        """The view of an actor during the ``CHOICE_US`` that contain ``start_us``."""
        now = start_us // CHOICE_US
        kept = self._chosen.setdefault(index, [])
        if now >= len(kept):
            times = np.arange(len(kept), now + 50, dtype=np.float64) * (1e-6 * CHOICE_US)
            camera, pose, views = (
                self._ego.at(times),
                self._actors[index].path.at(times),
                self._actors[index].body.views,
            )
            bearing = np.arctan2(pose.x - camera.x, pose.z - camera.z)
            for turn in (pose.heading - bearing) * (views / (2 * np.pi)):
                away = (turn - kept[-1] + views / 2) % views - views / 2 if kept else np.inf
                kept.append(round(turn) % views if abs(away) > KEEP else kept[-1])
        return kept[now]
