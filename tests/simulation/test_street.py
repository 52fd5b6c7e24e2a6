"""The drive, the street and its surfaces: poses are functions of time, and panels land where geometry puts them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.simulation.art.actors import (
    STEP_S,
    Actor,
    Ego,
    Following,
    Layer,
    Lighting,
    Straight,
    accumulate_fading,
    drive,
    ornstein_uhlenbeck,
    smooth,
)
from fate.simulation.art.buildings import FACADES
from fate.simulation.art.cars import CARS
from fate.simulation.art.catalogue import Catalogue, Split
from fate.simulation.art.negatives.paths import numbers, turn
from fate.simulation.art.panels import Body, Panel, Swing, Texture
from fate.simulation.art.pedestrians import PEDESTRIANS
from fate.simulation.art.street import make_street
from fate.simulation.art.two_wheelers import TWO_WHEELERS
from fate.simulation.render.scene import Scene
from fate.simulation.render.surfaces import KNOT_US, Pinhole, SurfaceBuilder, Surfaces
from tests.simulation.panel_points import panel_points

Floats = NDArray[np.float64]

PINHOLE = Pinhole(240, 304, 263.0, 152.0, 120.0)
NOON = Lighting(0.5, 1.0, (0.0, -1.0, 0.0), 1.0, 0.7, 0.0, 0.5)
HEIGHT = 1.3
BOARD = np.array([[-1.0, -1, 0], [2, 0, 0], [0, 1, 0]])  #: corner, across and down of 2 × 1 m across the way


def world_light(seed: int) -> Lighting:
    return make_street(seed, "train", 0.3, two_wheelers=False)[2]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- motion ---


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("seconds", [0.2, 3.0, 20.0])
def test_the_ego_car_moves_as_fast_as_its_speed_says(seed: int, seconds: float) -> None:
    ego = drive(rng(seed), seconds)
    assert (ego.speed >= 0).all()
    assert ego.speed.max() <= 30
    assert len(ego.z) * STEP_S >= seconds
    way = np.hypot(np.diff(ego.x), np.diff(ego.z))
    np.testing.assert_allclose(way, ego.speed[1:] * STEP_S, atol=1e-9)
    assert (np.diff(ego.z) >= 0).all()
    assert np.abs(np.diff(ego.yaw)).max() < 0.3 * STEP_S + 1e-12  # rad/s
    assert np.abs(np.diff(ego.speed)).max() < 15 * STEP_S + 0.15  # m/s²; below 0.15 m/s it stands
    assert np.abs(ego.x).max() < 3.5  # it keeps near its lane


def test_the_ego_path_is_continuous_between_its_samples() -> None:
    ego = drive(rng(1), 5.0)
    fine = np.arange(0.0, 5.0, 1e-4)
    for values, fastest in zip(ego.at(fine)[:4], (2.0, 31.0, 0.4, 0.4), strict=True):
        assert np.abs(np.diff(values)).max() < fastest * 1e-4 + 1e-9
    at_samples = ego.at(np.arange(len(ego.z), dtype=np.float64) * STEP_S)
    for ours, theirs in zip(at_samples[:4], (ego.x, ego.z, ego.yaw, ego.pitch), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_some_drives_stand_still_for_a_while_and_some_never_do() -> None:
    standing = [float((drive(rng(seed), 20.0).speed == 0).mean()) for seed in range(40)]
    assert max(standing) > 0.1
    assert min(standing) == 0


def test_standing_town_and_open_road_take_their_shares_of_the_time() -> None:
    shares = np.zeros(3)
    for seed in range(150):
        speed = drive(rng(seed), 10.0).speed
        shares += [(speed == 0).mean(), ((speed >= 2) & (speed < 14)).mean(), (speed >= 14).mean()]
    np.testing.assert_allclose(shares / 150, [0.15, 0.60, 0.25], atol=0.07)


def test_even_motion_goes_along_its_heading() -> None:
    seconds = np.array([0.0, 0.5, 2.0])
    pose = Straight(1.0, 10.0, heading=np.pi / 6, speed=3.0, stride=1.5).at(seconds)
    np.testing.assert_allclose(pose.x, 1 + 3 * seconds * 0.5)
    np.testing.assert_allclose(pose.z, 10 + 3 * seconds * np.sqrt(0.75))
    np.testing.assert_allclose(pose.heading, np.pi / 6)
    np.testing.assert_allclose(pose.gait, 2 * np.pi * 3 * seconds / 1.5)
    parked = Straight(1.0, 10.0).at(seconds)
    assert (parked.x == 1).all()
    assert (parked.z == 10).all()
    assert (parked.gait == 0).all()


def test_a_follower_keeps_its_distance() -> None:
    ego = drive(rng(3), 30.0)
    seconds = np.linspace(0, 30, 3001)
    pose = Following(ego, x=0.3, gap=15.0, sway=3.0, period=8.0, phase=1.0).at(seconds)
    gap = pose.z - ego.at(seconds)[1]
    assert gap.min() == pytest.approx(12.0, abs=0.01)
    assert gap.max() == pytest.approx(18.0, abs=0.01)
    np.testing.assert_allclose(gap[:2201], gap[800:], atol=1e-9)  # it comes back after a period
    assert (pose.x == 0.3).all()


def test_poses_do_not_depend_on_what_was_asked_together() -> None:
    ego = drive(rng(4), 5.0)
    for path in (Straight(0, 5, 0.3, 2.0, 1.0), Following(ego, 0, 12, 2, 9, 0.5, 5.0)):
        seconds = np.linspace(0, 5, 37)
        together = np.stack(path.at(seconds))
        alone = np.concatenate([np.stack(path.at(seconds[i : i + 1])) for i in range(37)], axis=1)
        np.testing.assert_array_equal(together, alone)


def test_a_random_walk_has_its_spread_and_its_memory() -> None:
    values = ornstein_uhlenbeck(rng(0), 400_000, 0.3, 0.5)
    assert values.std() == pytest.approx(0.3, rel=0.1)
    later = int(0.5 / STEP_S)
    assert np.corrcoef(values[:-later], values[later:])[0, 1] == pytest.approx(np.exp(-1), abs=0.06)


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.5, 4.0])
def test_smoothing_keeps_length_constants_and_range(seconds: float) -> None:
    values = rng(1).normal(0, 1, 300)
    smoothed = smooth(values, seconds)
    assert len(smoothed) == 300
    assert smoothed.min() >= values.min() - 1e-9
    assert smoothed.max() <= values.max() + 1e-9
    np.testing.assert_allclose(smooth(np.full(50, 3.3), seconds), 3.3)


# --- the street ---


@cache
def world(seed: int, split: Split = "train") -> tuple[Ego, Any, Lighting]:
    return make_street(seed, split, 1.0, two_wheelers=True)


def test_a_seed_gives_one_street() -> None:
    (_, first, light), (_, second, same_light) = world(2), make_street(2, "train", 1.0, two_wheelers=True)
    assert light == same_light
    assert [actor.body.name for actor in first.actors] == [actor.body.name for actor in second.actors]
    seconds = np.array([0.0, 0.7])
    for one, other in zip(first.actors, second.actors, strict=True):
        np.testing.assert_array_equal(np.stack(one.path.at(seconds)), np.stack(other.path.at(seconds)))
    assert [actor.body.name for actor in world(3)[1].actors] != [actor.body.name for actor in first.actors]


@pytest.mark.parametrize("seed", range(6))
def test_every_labelled_object_is_one_actor_with_its_own_number(seed: int) -> None:
    _, street, _ = world(seed)
    owners = [actor.owner for actor in street.actors if actor.owner >= 0]
    assert owners == list(range(len(street.objects)))
    for actor in street.actors:
        labelled = actor.owner >= 0
        assert labelled == (actor.body.kind != "scenery")
        assert not labelled or (street.objects[actor.owner] is actor.body and actor.layer == Layer.STANDING)


@pytest.mark.parametrize("seed", range(10))
def test_training_never_sees_what_is_held_out(seed: int) -> None:
    _, street, _ = world(seed)
    kinds: dict[str, Catalogue[Any]] = {"car": CARS, "pedestrian": PEDESTRIANS, "two-wheeler": TWO_WHEELERS}
    everything = [*street.objects, *street.cars, *street.people, *street.two_wheelers]
    for body in everything:
        assert body.name in kinds[body.kind].common
    scenery = {actor.body.name for actor in street.actors if actor.body.kind == "scenery"}
    assert not scenery & set(FACADES.held_out)


def test_the_other_splits_do_see_what_is_held_out() -> None:
    for split in ("val", "test"):
        names = {body.name for seed in range(4) for body in world(seed, split)[1].cars}
        assert names & set(CARS.held_out)
        assert names & set(CARS.common)


# --- surfaces ---


def plain(name: str = "board", faces: Any = "both", swing: Swing | None = None, facing: bool = False) -> Body:
    """A board of 2 × 1 m that stands on the ground across the way."""
    texture = Texture(np.full((2, 4), 0.5, "f4"), np.ones((2, 4), "f4"))
    panel = Panel(texture, BOARD[0], BOARD[1], BOARD[2], faces=faces, swing=swing)
    return Body(name, "scenery", (panel,), 0.1, 2.0, 1.0, facing=facing)


def resting(yaw: float = 0.0, pitch: float = 0.0, speed: float = 0.0) -> Ego:
    steps = 400
    z = speed * STEP_S * np.arange(steps, dtype=np.float64)
    return Ego(np.zeros(steps), z, np.full(steps, speed), np.full(steps, yaw), np.full(steps, pitch))


def posed(actors: list[Actor], ego: Ego | None = None, light: Lighting = NOON) -> Surfaces:
    return SurfaceBuilder(PINHOLE, ego or resting(), actors, light, HEIGHT).surfaces(0, 3)


def place(surfaces: Surfaces, k: int, column: float, row: float, knot: int = 0) -> Floats:
    u, v, w = surfaces.maps[knot, k, :9].astype(np.float64).reshape(3, 3) @ [column, row, 1.0]
    return np.array([u / w, v / w])


def project(point: Floats, yaw: float, pitch: float, eye: Floats) -> Floats:
    """A street point as column and row: turn the head to the right by yaw, then up by pitch."""
    x, y, z = point - eye
    x, z = x * np.cos(yaw) - z * np.sin(yaw), x * np.sin(yaw) + z * np.cos(yaw)
    y, z = y * np.cos(pitch) + z * np.sin(pitch), z * np.cos(pitch) - y * np.sin(pitch)
    return np.array([PINHOLE.centre_x + PINHOLE.focal * x / z, PINHOLE.centre_y + PINHOLE.focal * y / z])


@pytest.mark.parametrize(("yaw", "pitch", "heading"), [(0, 0, 0), (0.1, 0, 0.4), (-0.2, 0.05, -0.6), (0.05, -0.1, 2.8)])
def test_panels_land_where_geometry_puts_them(yaw: float, pitch: float, heading: float) -> None:
    path = Straight(1.5, 9.0, heading)
    surfaces = posed([Actor(plain(), path)], resting(yaw, pitch))
    assert surfaces.maps.shape == (3, 1, 11)
    right = np.array([np.cos(heading), 0.0, -np.sin(heading)])
    for u, v in ((0, 0), (1, 0), (0.3, 0.8), (1, 1)):
        point = np.array([1.5, 0, 9.0]) + (2 * u - 1) * right + [0, v - 1, 0]
        column, row = project(point, yaw, pitch, np.array([0, -HEIGHT, 0]))
        np.testing.assert_allclose(place(surfaces, 0, column, row), [u, v], atol=1e-3)
        x1, y1, x2, y2 = surfaces.bounds[0]
        assert x1 < column < x2
        assert y1 < row < y2


def test_the_ground_ends_at_the_horizon_of_the_sky() -> None:
    surfaces = posed([Actor(plain(), Straight(0, 9))], resting(pitch=0.04))
    far = project(np.array([0.0, -HEIGHT, 1e6]), 0.0, 0.04, np.array([0, -HEIGHT, 0]))
    np.testing.assert_allclose(surfaces.sky[:, 0], far[1], atol=0.01)


def test_the_camera_moves_past_what_stands() -> None:
    surfaces = posed([Actor(plain(), Straight(0, 9))], resting(speed=20.0))
    for knot in range(3):
        away = 9.0 - 20.0 * knot * KNOT_US * 1e-6
        column = PINHOLE.centre_x + PINHOLE.focal * 1.0 / away
        assert place(surfaces, 0, column, 130.0, knot)[0] == pytest.approx(1.0, abs=1e-3)


def test_a_billboard_turns_towards_the_camera() -> None:
    surfaces = posed([Actor(plain(facing=True), Straight(3.0, 6.0, heading=1.1))])
    bearing = np.arctan2(3.0, 6.0)
    right = np.array([np.cos(bearing), 0.0, -np.sin(bearing)])
    for u in (0.0, 1.0):
        point = np.array([3.0, -0.5, 6.0]) + (2 * u - 1) * right
        column, row = project(point, 0.0, 0.0, np.array([0, -HEIGHT, 0]))
        np.testing.assert_allclose(place(surfaces, 0, column, row), [u, 0.5], atol=1e-3)


def test_limbs_swing_with_the_gait() -> None:
    swing = Swing(np.array([0.0, -1.0, 0.0]), 0.5, 0.2)
    path = Straight(0, 6.0, heading=np.pi / 2, speed=1.0, stride=0.04)
    body = plain(swing=swing)
    surfaces = posed([Actor(body, path)])
    for knot in range(3):
        pose = path.at(np.array([knot * KNOT_US * 1e-6]))
        for corner in ((0.0, 0.0), (0.4, 1.0)):
            local = panel_points(body.panels[0], [corner], float(pose.gait[0]))[0]
            # heading to the right: the body's x is the street's -z, its z the street's x
            point = np.array([pose.x[0] + local[2], local[1], pose.z[0] - local[0]])
            if abs(point[0]) < 1e-3:
                continue  # edge-on
            column, row = project(point, 0.0, 0.0, np.array([0, -HEIGHT, 0]))
            np.testing.assert_allclose(place(surfaces, 0, column, row, knot), corner, atol=5e-3)


def test_a_path_lifts_a_body_and_a_panel_can_turn_full_circle() -> None:
    path = turn(numbers(0.5, 6.0, y=-0.7), hertz=30.0, phase=0.4)
    surfaces = posed([Actor(plain(swing=Swing(np.zeros(3), 0.0, 0.2, turns=True)), path)])
    for knot in range(3):
        angle = 0.6 + 2 * np.pi * 30.0 * knot * KNOT_US * 1e-6
        for u, v in ((0.0, 0.0), (0.4, 1.0)):
            x, y = 2 * u - 1, v - 1
            point = np.array(
                [0.5 + np.cos(angle) * x - np.sin(angle) * y, -0.7 + np.sin(angle) * x + np.cos(angle) * y, 6.0]
            )
            column, row = project(point, 0.0, 0.0, np.array([0, -HEIGHT, 0]))
            np.testing.assert_allclose(place(surfaces, 0, column, row, knot), [u, v], atol=5e-3)


def test_nearer_actors_and_higher_layers_come_first() -> None:
    actors = [
        Actor(plain(), Straight(0, 30), Layer.STANDING, owner=0),
        Actor(plain(), Straight(0, 5), Layer.MARKING, owner=1),
        Actor(plain(), Straight(0, 10), Layer.STANDING, owner=2),
        Actor(plain(), Straight(0, 7), Layer.SHADOW, owner=3),
        Actor(plain(), Straight(0, 20), Layer.STANDING, owner=4, reach=15.0),
    ]
    assert posed(actors).owner.tolist() == [2, 0, 4, 3, 1]


def test_later_panels_of_a_body_lie_over_its_earlier_ones() -> None:
    texture = [Texture(np.full((1, 1), light, "f4"), np.ones((1, 1), "f4")) for light in (0.1, 0.2, 0.3)]
    panels = tuple(Panel(part, BOARD[0], BOARD[1], BOARD[2], faces="both") for part in texture)
    surfaces = posed([Actor(Body("stack", "scenery", panels, 0.1, 2.0, 1.0), Straight(0, 9))])
    assert surfaces.texture.tolist() == [2, 1, 0]


@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_outward_panels_are_seen_from_their_front_alone(mirror: float) -> None:
    body = plain(faces="outward")
    front = posed([Actor(body, Straight(0, 9, 0.0), mirror=mirror), Actor(plain(), Straight(0, 20))])
    back = posed([Actor(body, Straight(0, 9, np.pi), mirror=mirror), Actor(plain(), Straight(0, 20))])
    assert front.maps.shape[1] == 2
    assert back.maps.shape[1] == 1


def test_what_is_out_of_sight_is_left_out() -> None:
    seen = Actor(plain(), Straight(0, 20), owner=7)
    away = [Straight(0, -9), Straight(80, 20), Straight(0, 400), Straight(-60, 30)]
    surfaces = posed([seen, *(Actor(plain(), path) for path in away)])
    assert surfaces.owner.tolist() == [7]


def test_light_is_ambient_and_sun_by_the_slant_plus_headlamps_by_distance() -> None:
    light = Lighting(0.2, 1.0, (0.0, -0.6, -0.8), 1.0, 0.7, 0.5, 0.5)
    facing_us = posed([Actor(plain(), Straight(0, 24 - 1e-9, 0.0))], light=light)
    turned = posed([Actor(plain(), Straight(0, 24, np.pi / 3))], light=light)
    distance = np.hypot(24, HEIGHT - 0.5)
    lamps = 0.5 / (1 + (distance / 12) ** 2)
    assert facing_us.maps[0, 0, 9] == pytest.approx(0.2 + 0.8 + lamps, rel=1e-3)
    assert turned.maps[0, 0, 9] == pytest.approx(0.2 + 0.8 * 0.5 + lamps, rel=1e-3)


@pytest.mark.parametrize("night", [False, True], ids=["by day", "by night"])
def test_light_hardly_jumps_where_one_stretch_ends(night: bool) -> None:
    jumped: list[float] = []
    for seed in range(40):
        if len(jumped) == 2:
            break
        scene = Scene(seed, seconds=0.3)
        if (world_light(seed).headlamps > 0.5) == night:
            before, after = (np.log(scene.light(t) + 0.02) for t in (99_999, 100_000))
            # the ego car's headlamps light a surface evenly over a stretch: by night there are steps, but small ones
            jumped.append(float((np.abs(after - before) > (0.2 if night else 0.05)).mean()))
    assert np.mean(jumped) < 0.01


@pytest.mark.parametrize(("keep", "before"), [(0.975, 0.0), (0.5, -1.25)])
def test_fading_sums_are_those_of_a_recursive_filter(keep: float, before: float) -> None:
    from scipy.signal import lfilter

    values = np.random.default_rng(0).normal(size=1000)
    expected, _ = lfilter([1.0], [1.0, -keep], values, zi=[keep * before])
    assert np.array_equal(accumulate_fading(values, keep, before), expected)
