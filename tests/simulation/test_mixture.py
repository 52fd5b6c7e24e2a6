"""The worlds of the profile mixed: drawn from the seed; a quarter has no road users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fate.simulation.art import mixture
from fate.simulation.art.indoors import make_indoors
from fate.simulation.art.mixture import SHARES, make_world, scene_of
from fate.simulation.art.negatives.kinds import make_negative


def test_a_seed_gives_one_world() -> None:
    one, same, other = (make_world(seed, "train", 0.2) for seed in (3, 3, 4))
    assert (one.height, one.horizon) == (same.height, same.horizon) != (other.height, other.horizon)
    assert [actor.body.name for actor in one.street.actors] == [actor.body.name for actor in same.street.actors]


@pytest.mark.slow
def test_streets_show_all_classes_and_the_rest_shows_none() -> None:
    worlds = [make_world(seed, "train", 0.2) for seed in range(12)]
    kinds = {body.kind for world in worlds for body in world.street.objects}
    assert kinds == {"car", "pedestrian", "two-wheeler"}
    for world in worlds:
        assert len(world.street.objects) == 1 + max(actor.owner for actor in world.street.actors)
    assert 0 < sum(not world.street.objects for world in worlds) < 12


def test_each_kind_of_world_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def street(*_: Any, variety: Any = None, **__: Any) -> tuple[str, None, None]:
        return "plain street" if variety is None else "street", None, None

    monkeypatch.setattr(mixture, "make_street", street)
    monkeypatch.setattr(mixture, "make_negative", lambda *_: ("nothing", None, None, 1.0, 0.5))
    monkeypatch.setattr(mixture, "make_indoors", lambda *_: ("room", None, None, 1.0, 0.5))
    found = [str(make_world(seed, "train", 1.0).ego) for seed in range(1000)]
    assert {kind: found.count(kind) / len(found) for kind in SHARES} == pytest.approx(SHARES, abs=0.05)
    assert found == [scene_of(seed).partition(",")[0] for seed in range(1000)]


def test_people_in_rooms_have_boxes_and_nothing_else_has() -> None:
    for seed in range(4):
        scene = make_indoors(seed, "train", 0.5)
        assert 1 <= len(scene.street.objects) <= 3
        assert {body.kind for body in scene.street.objects} == {"pedestrian"}
        labelled = [actor for actor in scene.street.actors if actor.owner >= 0]
        assert [actor.body for actor in labelled] == scene.street.objects


@pytest.mark.parametrize(("scene", "seeds"), [("plain street", 40), ("street, car", 12)])
def test_box_trucks_are_cars_in_no_street_of_the_mixture(scene: str, seeds: int) -> None:
    worlds = [make_world(seed, "train", 0.2) for seed in range(seeds) if scene_of(seed) == scene]
    seen = [actor for world in worlds for actor in world.street.actors if actor.body.name == "box-truck"]
    assert seen
    assert all(actor.owner < 0 for actor in seen)


def test_heads_without_a_label_are_too_close_for_a_picture_of_the_body() -> None:
    """At 100 degrees and 4:3, a lens shows at most 0.72 m of height at the distance of the face."""
    for seed in range(30):
        scene = make_negative(seed, "train", 2.0, "head")
        times = np.linspace(0, 2, 50)
        (near,) = (actor.path.at(times) for actor in scene.street.actors if actor.body.name == "head")
        ego = scene.ego.at(times)
        assert (np.asarray(near.z) - ego.z).max() < 0.4
