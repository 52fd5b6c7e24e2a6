"""Varied streets: cameras where their mounts put them, light that changes as a whole, and boxes on what they label."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fate.simulation.art.actors import STEP_S, Actor, Ego, Falling, Layer, Lighting, Straight
from fate.simulation.art.daylight import draw_exposure
from fate.simulation.art.layout import LANE
from fate.simulation.art.panels import Body, Panel, Texture, vector
from fate.simulation.art.street import StreetBuilder, make_street
from fate.simulation.art.variety import CAR_PITCH, CAR_YAW, HEIGHTS, MAX_SHAKE, MAX_TURN, Variety, draw_variety
from fate.simulation.render.scene import Scene
from fate.simulation.render.surfaces import Pinhole, SurfaceBuilder
from fate.simulation.render.visible_boxes import Outlines

PINHOLE = Pinhole(240, 304, 263.0, 152.0, 120.0)
NOON = Lighting(0.5, 1.0, (0.0, -1.0, 0.0), 1.0, 0.7, 0.0, 0.5)
SECONDS = 0.4
VARIETIES = [draw_variety(np.random.default_rng(seed)) for seed in range(400)]
MOUNTS = ("car", "mast", "hand")


def of_mount(mount: str, seed: int = 0, **changes: Any) -> Variety:
    """The ``seed``-th variety with a camera of this mount."""
    return replace([each for each in VARIETIES if each.mount == mount][seed], **changes)


@cache
def street(mount: str, seed: int) -> tuple[Ego, StreetBuilder, Lighting]:
    return make_street(seed, "train", SECONDS, True, variety=of_mount(mount, seed))


class VariedScene(Scene):
    """A scene of a variety, seen with a level pinhole of the gen1 sensor."""

    def __init__(self, seed: int, variety: Variety, without: int | None = None, **light: Any) -> None:
        super().__init__(seed, "1mpx", seconds=SECONDS)
        ego, built, lighting = make_street(seed, "train", SECONDS, True, variety=variety)
        actors = [actor for actor in built.actors if without is None or actor.owner != without]
        self.sensor = self.sensor._replace(height=PINHOLE.height, width=PINHOLE.width)
        builder = SurfaceBuilder(PINHOLE, ego, actors, replace(lighting, **light), 1.3)
        kinds = np.array([self.classes.index(body.kind.replace("-", " ")) for body in built.objects], np.int32)
        self.__dict__["_world"] = builder, Outlines.build(builder.textures), kinds


def standing(steps: int = 200, **angles: float) -> Ego:
    """A camera that does not move."""
    still = {name: np.full(steps, angles.get(name, 0.0)) for name in ("x", "z", "speed", "yaw", "pitch")}
    tilt = {name: np.full(steps, angles[name]) for name in ("height", "roll") if name in angles}
    return Ego(**still, **tilt)


def board() -> Body:
    """A board of 2 × 1 m that stands across the way."""
    shown = Texture.plain(np.full((2, 2), 0.5))
    panel = Panel(shown, vector(-1, -1, 0), vector(2, 0, 0), vector(0, 1, 0), "both")
    return Body("board", "scenery", (panel,), 0.1, 2.0, 1.0)


def corners(builder: SurfaceBuilder, start_us: int = 0) -> NDArray[np.float64]:
    """Pixels of the upper left and the lower right corner of the first surface, at the first knot."""
    matrix = builder.surfaces(start_us, 3).maps[0, 0, :9].astype(np.float64).reshape(3, 3)
    points = np.linalg.inv(matrix) @ np.array([[0.0, 1], [0, 1], [1, 1]])
    return np.asarray(points[:2] / points[2]).T


# --- what is drawn ---


def test_varieties_lie_in_their_ranges_and_use_them() -> None:
    for mount in MOUNTS:
        heights = [each.height for each in VARIETIES if each.mount == mount]
        low, high = HEIGHTS[mount]  # type: ignore[index]
        assert low <= min(heights) < low + 0.2 * (high - low)
        assert high - 0.2 * (high - low) < max(heights) <= high
    on_cars = [each for each in VARIETIES if each.mount == "car"]
    assert max(abs(each.yaw) for each in on_cars) <= CAR_YAW
    assert max(abs(each.pitch) for each in on_cars) <= CAR_PITCH
    assert all(5 <= each.shake_hz <= 25 for each in on_cars)
    assert all(each.shake <= MAX_SHAKE and each.turn <= MAX_TURN for each in VARIETIES)
    assert all(each.wiper_hz == 0 or 0.7 <= each.wiper_hz <= 1 for each in VARIETIES)
    assert {each.motorway for each in on_cars} == {False, True}
    assert not any(each.motorway for each in VARIETIES if each.mount != "car")
    for name, count in (("light", 5), ("ground", 5), ("exposure", 5), ("weather", 3), ("border", 7), ("mains_hz", 2)):
        assert len({getattr(each, name) for each in VARIETIES}) == count


def test_a_plain_street_has_nothing_of_a_variety() -> None:
    for at_rest in (False, True):
        ego, built, light = make_street(5, "train", SECONDS, True, at_rest)
        assert ego.height is None
        assert ego.roll is None
        assert light.exposure == light.shade == ()
        assert not {Layer.LENS, Layer.PAVING} & {actor.layer for actor in built.actors}


@pytest.mark.parametrize("mount", MOUNTS)
def test_a_seed_and_a_variety_give_one_street(mount: str) -> None:
    ego, built, light = street(mount, 1)
    again, same, same_light = make_street(1, "train", SECONDS, True, variety=of_mount(mount, 1))
    assert light == same_light
    np.testing.assert_array_equal(ego.yaw, again.yaw)
    assert [actor.body.name for actor in built.actors] == [actor.body.name for actor in same.actors]


# --- the camera ---


@pytest.mark.parametrize("mount", MOUNTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_camera_is_where_its_mount_puts_it(mount: str, seed: int) -> None:
    variety, (ego, built, _) = of_mount(mount, seed), street(mount, seed)
    assert ego.height is not None
    assert ego.roll is not None
    assert np.abs(ego.height - variety.height).max() < 0.05
    assert np.abs(ego.roll).max() < 0.3
    if mount == "car":
        assert np.abs(ego.yaw - variety.yaw).max() < 0.15
        assert np.abs(ego.pitch - variety.pitch).max() < 0.05
        return
    assert np.ptp(ego.x) == 0
    np.testing.assert_allclose(np.diff(ego.z), variety.walk * STEP_S, atol=1e-9)
    lanes = [actor.path.x for actor in built.actors if isinstance(actor.path, Straight) and actor.path.speed > 4]
    assert lanes
    assert all((ego.x[0] - x) * np.sin(ego.yaw[0]) < 0 for x in lanes)  # it looks towards the traffic
    turned = np.abs(np.diff(ego.yaw)) / STEP_S
    assert turned.mean() < MAX_TURN + 0.5


def test_on_a_motorway_cars_drive_beside_the_camera_and_nobody_walks() -> None:
    beside = []
    for seed in range(12):
        ego, built, _ = make_street(seed, "train", SECONDS, True, variety=of_mount("car", seed, motorway=True))
        assert 14 < ego.speed.min() <= ego.speed.max() <= 40
        assert {body.kind for body in built.objects} <= {"car", "two-wheeler"}
        for actor in built.actors:
            if actor.owner < 0 or actor.layer != Layer.STANDING:
                continue
            start, end = actor.path.at(np.array([0.0])), actor.path.at(np.array([SECONDS]))
            speed = (end.z[0] - start.z[0]) / SECONDS
            assert abs(speed) >= 5
            if start.x[0] > LANE / 2:
                assert start.heading[0] == 0
                beside.append(speed - ego.speed.mean())
    assert len(beside) > 30
    assert np.mean(np.abs(beside) < 2) > 0.5  # most keep to the camera's speed


def test_height_and_roll_of_the_camera_move_the_picture() -> None:
    actors = [Actor(board(), Straight(1.5, 9.0))]
    level = corners(SurfaceBuilder(PINHOLE, standing(), actors, NOON, 1.3))
    higher = corners(SurfaceBuilder(PINHOLE, standing(height=2.2), actors, NOON, 1.3))
    np.testing.assert_allclose(higher - level, [[0.0, PINHOLE.focal * 0.9 / 9]] * 2, atol=1e-3)
    rolled = corners(SurfaceBuilder(PINHOLE, standing(height=1.3, roll=0.3), actors, NOON, 5.0))
    turn = np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]])
    centre = np.array(PINHOLE[3:])
    np.testing.assert_allclose(rolled - centre, (level - centre) @ turn.T, atol=1e-3)


def test_a_camera_that_looks_back_sees_what_is_behind() -> None:
    actors = [Actor(board(), Straight(1.5, -40.0)), Actor(board(), Straight(0.0, 40.0))]
    for yaw, side in ((0.0, 0.0), (np.pi, -1.5)):
        builder = SurfaceBuilder(PINHOLE, standing(yaw=yaw), actors, NOON, 1.3)
        assert builder.surfaces(0, 3).maps.shape[1] == 1
        expected = PINHOLE.centre_x + PINHOLE.focal * side / 40
        assert corners(builder).mean(axis=0)[0] == pytest.approx(expected, abs=0.01)


def test_what_is_before_the_lens_stays_there_and_lies_over_all_else() -> None:
    panel = Panel(Texture.plain(0.5), vector(-0.1, 0, 1), vector(0.2, 0, 0), vector(0, 0.1, 0), "both")
    body = Body("dirt", "scenery", (panel,), 0.0, 1.0, 1.0)
    actors = [Actor(board(), Straight(0.0, 0.5)), Actor(body, Straight(0.3, 0.2), Layer.LENS)]
    seen = [
        corners(SurfaceBuilder(PINHOLE, ego, actors, NOON, 1.3))
        for ego in (standing(), standing(yaw=2.0, pitch=-0.4, height=5.0, roll=0.2))
    ]
    expected = np.array(PINHOLE[3:]) + PINHOLE.focal * np.array([[0.2, 0.2], [0.4, 0.3]])
    for found in seen:
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_a_drop_that_falls_again_and_again_never_jumps_within_a_call() -> None:
    path = Falling((0.0, -2.0), (1.0, 4.0), 1.1, 0.3)
    starts = set()
    for first in np.arange(0, 4, 0.1):
        pose = path.at(first + np.arange(11) * 0.01)
        np.testing.assert_allclose(np.diff(pose.z), 0.04)
        np.testing.assert_allclose(np.diff(pose.x), 0.01)
        assert -2.0 <= pose.z[0] < -2.0 + 4.0 * 1.1
        starts.add(round(first - pose.x[0], 6))
    assert len(starts) == 4


# --- light ---


def test_exposure_changes_the_light_of_the_whole_picture_and_nothing_else() -> None:
    variety = of_mount("car", 2, light="dusk", exposure="steady")
    steady = VariedScene(2, variety)
    changing = VariedScene(2, variety, exposure=((0.0, 1.0), (0.1, 1.0), (0.15, 0.25)))
    np.testing.assert_allclose(changing.light(60_000), steady.light(60_000), rtol=1e-4)
    flickering = steady.surfaces(2).lamps[:, 2] * steady.surfaces(2).lamps[:, 0]
    tolerance = 1e-4 if flickering.max() == 0 else 0.05
    for t_us, factor in ((200_000, 0.25), (125_000, 0.625)):
        ratio = changing.light(t_us) / steady.light(t_us)
        share = np.mean(np.abs(ratio / factor - 1) < 1e-3)
        assert share > 1 - tolerance
    assert len(changing.boxes(200_000).boxes) == len(steady.boxes(200_000).boxes)


@pytest.mark.parametrize("kind", ["tunnel", "jump", "ramp", "automatic"])
def test_drawn_exposures_change_within_the_recording(kind: Any) -> None:
    for seed in range(20):
        points = np.array(draw_exposure(np.random.default_rng(seed), kind, 3.0))
        assert (np.diff(points[:, 0]) >= 0).all()
        assert points[0, 0] == 0
        assert (points[:, 1] > 0.05).all()
        factors = np.interp(np.linspace(0, 3, 301), *points.T)
        assert np.ptp(factors) > 0.05
    assert draw_exposure(np.random.default_rng(0), "steady", 3.0) == ()


def test_trees_shade_what_stands_under_them() -> None:
    light = replace(NOON, to_sun=(0.0, 0.0, -1.0), shade=((0.0, 0.0), (10.0, 0.0), (11.0, 0.8), (20.0, 0.8)))
    actors = [Actor(board(), Straight(0.0, 5.0)), Actor(board(), Straight(4.0, 15.0))]
    actors.append(Actor(board(), Straight(-4.0, 15.0), Layer.MARKING))
    gains = SurfaceBuilder(PINHOLE, standing(), actors, light, 1.3).surfaces(0, 3).maps[0, :, 9]
    np.testing.assert_allclose(gains, [1.5, 0.5 + 0.2, 1.5], rtol=1e-5)


# --- what is labelled ---


def test_only_what_a_person_calls_a_car_is_a_car() -> None:
    variety = of_mount("car", 0, large_vehicles=0.4, crowding=1.0)
    built = [make_street(seed, "train", SECONDS, True, variety=variety)[1] for seed in range(3)]
    large = {"bus", "lorry", "box-truck"}
    assert {body.name for one in built for body in one.cars} & large == large
    for one in built:
        assert not large & {body.name for body in one.objects}
        for actor in one.actors:
            assert (actor.owner >= 0) == (actor.body.kind not in ("scenery", "neutral"))
            assert actor.body.name not in large or actor.body.kind == "neutral"
            assert actor.owner < 0 or one.objects[actor.owner].kind == actor.body.kind


@pytest.mark.parametrize(("mount", "seed"), [("car", 0), ("mast", 0), ("hand", 0)])
@pytest.mark.slow
def test_boxes_lie_where_the_light_shows_the_objects(mount: str, seed: int) -> None:
    """Take the largest object away: the picture changes in its box, up to its borders, and nowhere else."""
    variety = of_mount(mount, seed, drops=0, wiper_hz=0.0)
    whole, t_us = VariedScene(seed, variety), 150_000
    found = whole.boxes(t_us)
    sizes = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    largest = int(np.argmax(sizes))
    fewer = VariedScene(seed, variety, without=int(found.track_id[largest]))
    changed = np.abs(np.log(whole.light(t_us) + 0.02) - np.log(fewer.light(t_us) + 0.02)) > 0.05
    x1, y1, x2, y2 = found.boxes[largest]
    rows, columns = np.nonzero(changed)
    inside = (columns > x1 - 3) & (columns < x2 + 2) & (rows > y1 - 3) & (rows < y2 + 2)
    assert len(inside) > 50
    assert inside.mean() > 0.99
    extent = np.array([columns[inside].min(), rows[inside].min(), columns[inside].max() + 1, rows[inside].max() + 1])
    np.testing.assert_allclose(extent, [x1, y1, x2, y2], atol=4.0)
