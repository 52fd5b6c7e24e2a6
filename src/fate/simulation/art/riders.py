"""Riders of two-wheelers with the bodies of a parametric body model: they sit on the saddle, hold the bars and pedal.

A rider is a billboard with eight views, as people on foot are, on the path of the machine. The angles of its bones
follow from where saddle, bars and pedals are: two bones and the point that they reach give a triangle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fate.simulation.arrays import Float64
from fate.simulation.art.actors import Path, Pose
from fate.simulation.art.catalogue import Split
from fate.simulation.art.panels import Body
from fate.simulation.art.people import Figure, make_figure
from fate.simulation.art.skeleton import BONES, HARMONICS, Skeleton, fourier, half_a_cycle_later, turned
from fate.simulation.art.two_wheelers import Machine

_HEIGHT = 1.75  # of a rider for whom the machines are drawn, metres
_CRANK = 0.17  # length of a crank, metres
_BRACKET = -0.04, 0.14  # from the lower pedal of a bicycle to the axle of its cranks: metres forward, up
_MOMENTS = 12  # of one turn of the pedals at which the legs are posed


@dataclass(frozen=True)
class Riding:
    """The path of a rider: that of the machine, with the hips over the saddle."""

    machine: Path
    ahead: float  #: metres from the middle of the machine to the hips

    def at(self, seconds: Float64) -> Pose:
        """The pose at times [R] in seconds."""
        pose = self.machine.at(seconds)
        x, z = pose.x + self.ahead * np.sin(pose.heading), pose.z + self.ahead * np.cos(pose.heading)
        return pose._replace(x=x, z=z)


def make_rider(rng: np.random.Generator, split: Split, machine: Machine) -> Body:
    """A person in clothes for the saddle of a machine; a full turn of the gait phase is one of the pedals."""
    figure = make_figure(rng, split, seated=True, height=_HEIGHT * float(rng.uniform(0.94, 1.06)))
    lean = float(np.arctan2(machine.shoulder[0] - machine.hip[0], machine.shoulder[1] - machine.hip[1]))
    return figure.body(_pose(figure, machine, lean * float(rng.uniform(0.7, 1.15))), "two-wheeler")


def _pose(figure: Figure, machine: Machine, lean: float) -> Skeleton:
    """The bones of a rider whose trunk leans forward by so many rad."""
    joints = figure.joints
    turn = np.arange(_MOMENTS) * 2 * np.pi / _MOMENTS * float(machine.pedals)
    legs = np.array([_pose_leg(figure, machine, angle) for angle in turn])  # [moments, thigh · shank · foot]
    series = {"trunk": fourier([-lean]), "head": fourier([0.75 * lean])}
    series |= {name: fourier(angles) for name, angles in zip(("thigh", "shank", "foot"), legs.T.tolist(), strict=True)}
    arm = joints["upper_arm"] - joints["trunk"]
    shoulder = joints["trunk"] - joints["thigh"] + (arm[0], *turned(arm[1], arm[2], np.asarray(-lean)))
    reach = np.array([0.0, machine.hip[1] - machine.hand[1], machine.hand[0] - machine.hip[0]]) - shoulder
    upper, fore = _bend(joints["forearm"] - joints["upper_arm"], np.array([0.0, 0.85 * figure.arm, 0.0]), reach, -1.0)
    series |= {"upper_arm": fourier([upper + lean]), "forearm": fourier([fore - upper])}
    angles, at_rest = np.zeros((len(BONES), 2 * HARMONICS + 1)), np.zeros((len(BONES), 3))
    for index, bone in enumerate(BONES):
        side, _, name = bone.rpartition(" ")
        limb = "thigh" if name == "tail" else name
        angles[index] = half_a_cycle_later(series[limb]) if side == "left" else series[limb]
        at_rest[index] = joints[limb] * (-1.0 if side == "left" else 1.0, 1.0, 1.0)
    return Skeleton(at_rest, figure.soles, angles, flight=0.0, sway=0.0, phase=0.0, seat=machine.hip[1])


def _pose_leg(figure: Figure, machine: Machine, turn: float) -> tuple[float, float, float]:
    """The angles of thigh, shank and foot where the right pedal has turned by so many rad from its highest point."""
    joints, (forward, above) = figure.joints, machine.foot
    if machine.pedals:
        forward += _BRACKET[0] + _CRANK * float(np.sin(turn))
        above += _BRACKET[1] + _CRANK * float(np.cos(turn))
    forward -= 0.6 * (figure.soles[1] - float(joints["foot"][2]))  # the ball of the foot is on the pedal
    above -= float(joints["foot"][1])
    ankle = np.array([0.0, machine.hip[1] - above, forward - machine.hip[0]])
    thigh, shank = _bend(joints["shank"] - joints["thigh"], joints["foot"] - joints["shank"], ankle, 1.0)
    return thigh, shank - thigh, -shank


def _bend(first: Float64, second: Float64, reach: Float64, side: float) -> tuple[float, float]:
    """Turn two bones (right, down, forward) so that their end is at ``reach``; the angles of both in space, rad.

    The joint between them lies forward of the line to the end if ``side`` is 1, behind it if -1. Bones too short to
    reach the point are stretched towards it.
    """
    long, short = float(np.hypot(*first[1:])), float(np.hypot(*second[1:]))
    far = float(np.clip(np.hypot(*reach[1:]), 1.001 * abs(long - short), 0.999 * (long + short)))
    towards = float(np.arctan2(reach[2], reach[1]))
    at_start = float(np.arccos((long**2 + far**2 - short**2) / (2 * long * far)))
    at_end = float(np.arccos((short**2 + far**2 - long**2) / (2 * short * far)))
    upper, lower = towards + side * at_start, towards - side * at_end
    return upper - float(np.arctan2(first[2], first[1])), lower - float(np.arctan2(second[2], second[1]))
