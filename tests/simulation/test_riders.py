"""Riders: hips on the saddle, feet on the pedals, hands on the bars, and one box with the machine."""

from __future__ import annotations

import numpy as np
import pytest

from fate.simulation.art.actors import Straight
from fate.simulation.art.riders import Riding, make_rider
from fate.simulation.art.skeleton import BONES
from fate.simulation.art.street import make_street
from fate.simulation.art.two_wheelers import TWO_WHEELERS
from fate.simulation.art.variety import draw_variety
from fate.simulation.render.limbs import Bones, pose_bones

STYLES = sorted(TWO_WHEELERS.styles)
PHASES = np.linspace(0, 2 * np.pi, 9)[:, None]


def posed(style: str, seed: int) -> dict[str, np.ndarray]:
    """Joints [9, 3] (right, down, away in metres) of a rider seen from its left side, by name."""
    rider = make_rider(np.random.default_rng(seed), "train", TWO_WHEELERS.styles[style])
    assert rider.skeleton is not None
    bones = pose_bones(Bones.stack([rider.skeleton]), PHASES, np.full_like(PHASES, np.pi / 2))
    return {name: bones.joints[:, 0, index] for index, name in enumerate(BONES)}


@pytest.mark.parametrize("style", STYLES)
def test_the_hips_stay_on_the_saddle(style: str) -> None:
    hips = posed(style, 0)["right thigh"]
    np.testing.assert_allclose(hips[:, 1], -TWO_WHEELERS.styles[style].hip[1], atol=1e-9)
    np.testing.assert_allclose(hips, hips[:1].repeat(len(hips), axis=0), atol=1e-9)


def test_feet_of_cyclists_go_round_opposite_each_other() -> None:
    for seed in range(5):
        joints = posed("bicycle", seed)
        right, left = (joints[f"{side} foot"][:-1, :2] for side in ("right", "left"))
        centre = right.mean(axis=0)
        radius = np.hypot(*(right - centre).T)
        np.testing.assert_allclose(radius, 0.17, atol=0.03)  # a crank
        np.testing.assert_allclose((right + left) / 2, np.tile(centre, (len(right), 1)), atol=0.02)
        assert -0.5 < centre[1] < -0.25  # the axle of the cranks is 0.3 m above the ground, the ankle 0.1 m above it
        turned = np.unwrap(np.arctan2(right[:, 0] - centre[0], centre[1] - right[:, 1]))
        assert (np.diff(turned) > 0).all()  # from the highest point forward


@pytest.mark.parametrize("style", [style for style in STYLES if style != "bicycle"])
def test_feet_rest_on_a_motorbike(style: str) -> None:
    feet = posed(style, 0)["right foot"]
    np.testing.assert_allclose(feet, feet[:1].repeat(len(feet), axis=0), atol=1e-9)


@pytest.mark.parametrize("style", STYLES)
def test_elbows_are_near_and_hands_reach_the_bars(style: str) -> None:
    machine, joints = TWO_WHEELERS.styles[style], posed(style, 1)
    bars = np.array([machine.hand[0] - machine.hip[0], -machine.hand[1]])
    elbow = joints["right forearm"][0, :2] - (joints["right thigh"][0, 0], 0.0)
    assert 0.2 < np.hypot(*(bars - elbow)) < 0.45  # a forearm with its hand


def test_a_rider_keeps_its_place_on_the_machine() -> None:
    machine = Straight(1.0, 2.0, np.pi / 2, 3.0)
    seconds = np.array([0.0, 1.0, 2.0])
    ridden, rider = machine.at(seconds), Riding(machine, -0.2).at(seconds)
    np.testing.assert_allclose(rider.x - ridden.x, -0.2)
    np.testing.assert_allclose(rider.z, ridden.z, atol=1e-9)


def test_rider_and_machine_are_one_object() -> None:
    street = make_street(3, "train", 0.5, True, variety=draw_variety(np.random.default_rng(0)))[1]
    ridden = [index for index, body in enumerate(street.objects) if body.kind == "two-wheeler"]
    assert ridden
    for index in ridden:
        machine, rider = (actor for actor in street.actors if actor.owner == index)
        assert machine.body is street.objects[index]
        assert rider.body.skeleton is not None
