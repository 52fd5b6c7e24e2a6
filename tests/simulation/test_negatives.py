"""Scenes without road users: every kind can be drawn, moves, and holds nothing that is labelled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fate.errors import FateError
from fate.simulation.art.actors import Path
from fate.simulation.art.catalogue import Catalogue
from fate.simulation.art.negatives import kinds, machines, patterns
from fate.simulation.art.negatives.kinds import KINDS, Kind, make_negative
from fate.simulation.art.negatives.paths import Bounce, Flight, Push, Wave, hold, numbers, sway, turn
from fate.simulation.art.negatives.solids import Solid, ball, shade_solids
from fate.simulation.art.negatives.textures import TEXTURES
from fate.simulation.art.negatives.world import plane
from fate.simulation.art.panels import MAX_TEXELS, vector
from fate.simulation.art.street import make_street
from fate.simulation.camera.recorder import record
from fate.simulation.render.surfaces import KNOT_US
from tests.simulation.negative_scene import NegativeScene, world_of

MOVING = [name for name in KINDS if name != "still"]
SEEDS = range(2)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- every kind ---


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_light_and_no_boxes(kind: str) -> None:
    for seed in SEEDS:
        scene = NegativeScene(seed, kind)
        light = scene.light(500_000)
        assert np.isfinite(light).all()
        assert light.min() >= 0
        assert 0 < light.max() < 8
        assert len(scene.boxes(500_000).boxes) == 0
        assert len(scene.surfaces(5).texture) < 300


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_holds_anything_that_is_labelled(kind: str) -> None:
    for seed in SEEDS:
        street = world_of(seed, "train", 1.0, kind).street
        assert street.objects == []
        assert {(actor.owner, actor.body.kind) for actor in street.actors} == {(-1, "scenery")}


@pytest.mark.parametrize("focal", [35.0, 150.0], ids=["wide", "narrow"])
@pytest.mark.parametrize("kind", MOVING)
def test_the_light_changes_where_something_moves(kind: str, focal: float) -> None:
    changed = []
    for seed in SEEDS:
        scene = NegativeScene(seed, kind)
        scene.focal = focal
        light = np.log(np.stack([scene.light(t) for t in range(0, 1_000_000, 133_700)]) + 0.02)
        changed.append(int((np.ptp(light, axis=0) > 0.25).sum()))
    assert max(changed) > 5


def test_nothing_changes_in_a_still_scene() -> None:
    for seed in SEEDS:
        scene = NegativeScene(seed, "still")
        np.testing.assert_allclose(scene.light(0), scene.light(912_345), rtol=1e-4)


def test_a_still_scene_has_noise_alone_and_a_moving_one_has_more() -> None:
    counts = {}
    for kind in ("still", "hands", "room"):
        scene = NegativeScene(1, kind, seconds=0.1)
        counts[kind] = sum(len(piece.events) for piece in record(scene))
        noise = (scene.camera.noise_hz + scene.camera.leak_hz) * 60 * 76 * 0.1
        noise += scene.camera.hot_pixels * scene.camera.hot_hz_max * 0.1
        assert (counts[kind] < 1.2 * noise) == (kind == "still")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_scene(kind: str) -> None:
    one, other = (NegativeScene(seed, kind).surfaces(2) for seed in (0, 1))
    world_of.cache_clear()
    same = NegativeScene(0, kind).surfaces(2)
    for first, second in zip(one, same, strict=True):
        np.testing.assert_array_equal(first, second)
    assert one.maps.shape != other.maps.shape or not np.array_equal(one.maps, other.maps)


def test_kinds_are_drawn_as_often_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> Any:
        return lambda rng, split, seconds: name

    monkeypatch.setattr(kinds, "KINDS", {name: Kind(kind.weight, named(name)) for name, kind in KINDS.items()})
    drawn = Counter(str(make_negative(seed, "train", 1.0)) for seed in range(4000))
    total = sum(kind.weight for kind in KINDS.values())
    for name, kind in KINDS.items():
        assert drawn[name] / 4000 == pytest.approx(kind.weight / total, rel=0.4)


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FateError, match=r"no kind of scene 'lorry'; give one of texture, "):
        make_negative(0, "train", 1.0, "lorry")


def test_training_never_draws_what_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def choose(self: Catalogue[Any], random: np.random.Generator, split: str) -> str:
        drawn.append(original(self, random, split))  # type: ignore[arg-type]
        return drawn[-1]

    original = Catalogue.choose
    monkeypatch.setattr(Catalogue, "choose", choose)
    catalogues = TEXTURES, patterns.BOARDS, machines.ROTORS, machines.BALLS
    held_out = {name for each in catalogues for name in each.held_out} - set(TEXTURES.common)
    for split, expected in (("train", False), ("val", True)):
        drawn.clear()
        for kind in ("bars", "calibration", "balls", "rotors", "pendulums"):
            for seed in range(4):
                make_negative(seed, split, 1.0, kind)  # type: ignore[arg-type]
        assert bool(held_out & set(drawn)) == expected


def test_an_empty_street_has_all_its_scenery_and_no_road_users() -> None:
    for at_rest in (False, True):
        _, street, _ = make_street(3, "train", 1.0, two_wheelers=True, at_rest=at_rest, empty=True)
        assert street.objects == []
        assert {actor.body.kind for actor in street.actors} == {"scenery"}
        assert len(street.actors) > 50


# --- how things move ---

FLIGHT = Flight(numbers(1, 2, y=3), numbers(0.5, y=-6), 9.81, 1.2, 0.4, numbers(y=2), 0.3)
PATHS: dict[str, Path] = {
    "sway": sway(rng(), numbers(1, 2, y=-1), numbers(0.3, 0.1, 0.2, 1.0, 0.2), 2.0, numbers(gait=2.0)),
    "turn": turn(numbers(z=1), 3.0),
    "flight": FLIGHT,
    "bounce": Bounce(numbers(0, 1, y=-0.1), 0.5, 0.4, 0.6, 0.2),
    "push": Push(numbers(0, 1), numbers(0.5, 1.2, 0.3), 1.5, 0.1),
}


@pytest.mark.parametrize("name", PATHS)
def test_poses_depend_on_the_time_alone_and_never_jump(name: str) -> None:
    seconds = np.linspace(0, 7, 701)
    together = np.stack(PATHS[name].at(seconds))
    alone = np.concatenate([np.stack(PATHS[name].at(seconds[i : i + 1])) for i in range(701)], axis=1)
    np.testing.assert_allclose(together, alone, atol=1e-12)
    step = np.abs(np.diff(np.stack(PATHS[name].at(np.arange(0, 7, KNOT_US * 1e-7))), axis=1))  # a tenth of a knot
    assert step[[0, 1, 4]].max() < 0.03


def test_something_thrown_follows_a_parabola_and_returns_below() -> None:
    since = np.linspace(0, 1.19, 50)
    pose = FLIGHT.at(0.3 + 1.6 + since)
    np.testing.assert_allclose(pose.x, 1 + 0.5 * since)
    np.testing.assert_allclose(pose.y, 3 - 6 * since + 0.5 * 9.81 * since**2)
    assert FLIGHT.at(0.3 + np.linspace(1.2, 1.6, 50)).y.min() > 2.8


def test_a_ball_bounces_between_the_ground_and_its_height() -> None:
    pose = PATHS["bounce"].at(np.linspace(0, 20, 20_001))
    assert pose.y.max() == pytest.approx(-0.1, abs=1e-2)
    assert pose.y.min() == pytest.approx(-0.6, abs=1e-3)
    assert pose.x.min() == pytest.approx(-0.4, abs=1e-2)
    assert pose.x.max() == pytest.approx(0.4, abs=1e-2)


def test_what_is_pushed_rests_at_both_ends() -> None:
    x = PATHS["push"].at(np.linspace(0, 1.5, 1500, endpoint=False)).x
    assert (x == 0.0).mean() == pytest.approx(0.25, abs=0.02)
    assert (np.abs(x - 0.5) < 1e-9).mean() == pytest.approx(0.25, abs=0.02)


def test_a_sway_keeps_to_its_reach() -> None:
    path = sway(rng(3), numbers(1, 2, 3, 4, 5), numbers(0.1, 0.2, 0.3, 0.4, 0.5))
    assert isinstance(path, Wave)
    away = np.abs(np.stack(path.at(np.linspace(0, 60, 5000))) - np.arange(1, 6)[:, None])
    assert (away.max(axis=1) <= numbers(0.1, 0.2, 0.3, 0.4, 0.5)).all()
    assert (away.max(axis=1) > 0.5 * numbers(0.1, 0.2, 0.3, 0.4, 0.5)).all()


def test_a_camera_in_a_hand_stands_shakes_or_walks() -> None:
    still, shaken, walking = hold(rng(), 60), hold(rng(), 60, 0.1), hold(rng(), 60, 0.02, walk=1.5)
    seconds = np.linspace(0, 60, 3001)
    assert all(np.ptp(part) == 0 for part in still.at(seconds) if part is not None)
    assert 0.03 < np.std(shaken.at(seconds).yaw) < 0.2
    assert np.abs(shaken.at(seconds).z).max() < 1
    assert walking.at(seconds).z[[0, 1000]] == pytest.approx([0, 30], abs=0.5)
    assert walking.at(seconds).z.max() < 51  # it turns back


# --- pictures ---


def test_a_large_picture_is_cut_into_panels_without_gaps() -> None:
    light = rng().random((300, 130), dtype=np.float32)
    panels = plane(light, vector(1, 2, 3), vector(13, 0, 0), vector(0, 30, 0))
    covered = np.zeros(light.shape, np.int64)
    for panel in panels:
        rows, columns = panel.texture.shape
        assert max(rows, columns) <= MAX_TEXELS
        top, left = round((panel.origin[1] - 2) * 10), round((panel.origin[0] - 1) * 10)
        np.testing.assert_allclose([panel.across[0], panel.down[1]], [columns / 10, rows / 10])
        np.testing.assert_array_equal(panel.texture.light, light[top : top + rows, left : left + columns])
        covered[top : top + rows, left : left + columns] += 1
    assert covered.min() == 1
    assert covered.max() > 1  # neighbours overlap


@pytest.mark.parametrize("name", TEXTURES.styles)
def test_textures_have_contrast_within_zero_and_one(name: str) -> None:
    for seed in range(3):
        light = TEXTURES.styles[name](rng(seed), 90, 120)
        assert light.shape == (90, 120)
        assert light.min() >= 0
        assert light.max() <= 1
        assert light.max() > 1.3 * light.min()


def test_solids_are_brighter_towards_the_lamp_and_the_nearest_is_seen() -> None:
    near, far = Solid(0, 0, 0.5, 0, 0, 0.5, 0.2, near=1.0), Solid(0, 0, 0.8, 0, 0, 0.8, 0.9)
    for solids in ((near, far), (far, near)):
        drawn = shade_solids(solids, (-1, -1, 1, 1), 40, 40, (-1, 0, 0.5))
        assert drawn.light[20, 20] < 0.25
        assert drawn.light[20, 6] > 2 * drawn.light[20, 33]
        assert drawn.alpha.mean() == pytest.approx(np.pi * 0.64 / 4, rel=0.02)
        assert drawn.alpha[0, 0] == 0


@pytest.mark.parametrize("style", machines.BALLS.styles)
def test_balls_are_round_and_shaded(style: str) -> None:
    drawn = ball(rng(1), style)
    assert drawn.alpha.mean() == pytest.approx(np.pi / 4, rel=0.01)
    assert np.std(drawn.light[drawn.alpha == 1]) > 0.02
