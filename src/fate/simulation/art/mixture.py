"""The worlds of the profile ``mixed``: what a recording shows, drawn from its seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fate.simulation.art.actors import Ego, Lighting
from fate.simulation.art.catalogue import Split
from fate.simulation.art.street import StreetBuilder, make_street


class World(NamedTuple):
    """What there is to see, and from where."""

    ego: Ego
    street: StreetBuilder
    lighting: Lighting
    height: float  #: of the camera above the ground, metres
    horizon: float  #: share of the sensor's height at which the horizon of a level camera lies


def make_world(seed: int, split: Split, seconds: float) -> World:
    """A drive, or a camera at rest beside a street, with equal chance."""
    rng = np.random.default_rng([seed, 0x3713])
    at_rest = bool(rng.random() < 0.5)
    height = rng.uniform(1.3, 5.0) if at_rest else rng.uniform(1.2, 1.4)
    horizon = rng.uniform(0.46, 0.56)
    return World(*make_street(seed, split, seconds, two_wheelers=True, at_rest=at_rest), height, horizon)
