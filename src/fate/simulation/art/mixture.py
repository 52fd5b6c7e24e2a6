"""The worlds of the profile ``mixed``: what a recording shows, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fate.simulation.art.actors import Actor, Ego, Lighting
from fate.simulation.art.catalogue import Split
from fate.simulation.art.panels import Body
from fate.simulation.art.street import make_street


class Street(Protocol):
    """What there is in a street, a room or any other scene."""

    @property
    def actors(self) -> Sequence[Actor]:
        """All there is to see."""

    @property
    def objects(self) -> Sequence[Body]:
        """The labelled ones; an actor's owner is its index here."""


class World(NamedTuple):
    """What there is to see, and from where."""

    ego: Ego
    street: Street
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
