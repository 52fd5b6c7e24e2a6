"""Streets and roads with nobody on them, seen from a car or by a camera in a hand."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives.paths import hold
from fate.simulation.art.negatives.world import Contents, Negative
from fate.simulation.art.street import make_street


def empty_road(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """A drive along a road without traffic, parked cars and people."""
    ego, street, lighting = make_street(int(rng.integers(2**31)), split, seconds, two_wheelers=False, empty=True)
    contents = Contents()
    contents.actors = street.actors
    return Negative(ego, contents, lighting, rng.uniform(0.8, 2.0), rng.uniform(0.4, 0.6))


def empty_street(rng: np.random.Generator, split: Split, seconds: float) -> Negative:
    """An empty street, seen by a camera in a hand that stands or walks."""
    seed = int(rng.integers(2**31))
    kerb, street, lighting = make_street(seed, split, seconds, two_wheelers=False, at_rest=True, empty=True)
    contents = Contents()
    contents.actors = street.actors
    walk = float(rng.choice([0.0, rng.uniform(0.8, 2.0)]))
    ego = hold(rng, seconds, rng.uniform(0.02, 0.12), float(kerb.pitch[0]), walk)
    ego.x[:] += kerb.x[0]
    ego.yaw[:] += 0.0 if walk else kerb.yaw[0]
    return Negative(ego, contents, lighting, rng.uniform(1.2, 1.8), float(np.clip(rng.normal(0.5, 0.05), 0.35, 0.65)))
