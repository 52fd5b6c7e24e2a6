"""The worlds of the profile mixed: drawn from the seed, half of them with a camera at rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fate.simulation.art import mixture
from fate.simulation.art.mixture import make_world


def test_a_seed_gives_one_world_with_all_classes_to_see() -> None:
    one, same, other = (make_world(seed, "train", 0.2) for seed in (3, 3, 4))
    assert (one.height, one.horizon) == (same.height, same.horizon) != (other.height, other.horizon)
    assert [actor.body.name for actor in one.street.actors] == [actor.body.name for actor in same.street.actors]
    assert {body.kind for body in (*one.street.objects, *other.street.objects)} == {"car", "pedestrian", "two-wheeler"}
    assert len(one.street.objects) == 1 + max(actor.owner for actor in one.street.actors)


def test_half_of_the_cameras_are_at_rest_and_may_be_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    def street(*_: Any, at_rest: bool, **__: Any) -> tuple[bool, None, None]:
        return at_rest, None, None

    monkeypatch.setattr(mixture, "make_street", street)
    worlds = [make_world(seed, "train", 1.0) for seed in range(400)]
    assert 0.4 < np.mean([bool(world.ego) for world in worlds]) < 0.6
    assert all(1.2 <= world.height <= (5.0 if world.ego else 1.4) for world in worlds)
    assert max(world.height for world in worlds) > 4
