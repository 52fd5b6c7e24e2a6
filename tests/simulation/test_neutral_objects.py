"""Neutral objects of the profile mixed: they gain boxes, and light, events and all other boxes stay the same."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fate.simulation.render.scene import PROFILES, Scene

T_US = 150_000
#: Seeds with a lorry or a box truck in view, and one with cars parked before a camera that does not move.
TRUCKS, PARKED = (12, 22), 29


@cache
def scene(seed: int) -> Scene:
    return Scene(seed, "mixed", "val", 1.5)


@pytest.mark.parametrize("seed", [*TRUCKS, PARKED])
def test_other_boxes_and_their_tracks_are_those_without_neutral_objects(seed: int) -> None:
    plain = Scene(seed, "mixed", "val", 1.5)
    plain.classes = plain.classes[:-1]
    assert scene(seed).classes == (*plain.classes, "neutral")
    found, expected = scene(seed).boxes(T_US), plain.boxes(T_US)
    neutral = found.class_id == len(plain.classes)
    assert neutral.any()
    for column, wanted in zip(found, expected, strict=True):
        assert np.array_equal(column[~neutral], wanted)
    assert np.array_equal(scene(seed).light(T_US), plain.light(T_US))


def test_neutral_boxes_are_around_large_vehicles_and_cars_parked_before_a_camera_at_rest() -> None:
    names = {}
    for seed in (*TRUCKS, PARKED):
        found = scene(seed).boxes(T_US)
        rows = found.class_id == scene(seed).classes.index("neutral")
        shown = {actor.owner: actor.body.name for actor in scene(seed).builder.actors if actor.owner >= 0}
        names[seed] = {shown[track] for track in found.track_id[rows].tolist()}
        assert len(np.unique(found.track_id)) == len(found.track_id)
    large, cars = {"lorry", "bus", "box-truck"}, {"saloon", "estate", "hatchback", "van", "pickup"}
    assert names[TRUCKS[0]] & large
    assert names[PARKED] & cars
    for shown in names.values():
        assert shown
        assert shown <= large | cars


def test_only_the_profile_mixed_has_neutral_boxes() -> None:
    assert [name for name, profile in PROFILES.items() if "neutral" in profile.classes] == ["mixed"]
    at_rest = Scene(3, "gen1", seconds=1.0, at_rest=True)
    kinds = {actor.body.kind for actor in at_rest.builder.actors}
    owned = {actor.body.kind for actor in at_rest.builder.actors if actor.owner >= 0}
    assert "neutral" in kinds  # parked cars
    assert owned <= {"car", "pedestrian"}
