"""The worlds of the profile ``mixed``: what a recording shows, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fate.simulation.art.actors import Actor, Ego, Lighting
from fate.simulation.art.catalogue import Split
from fate.simulation.art.indoors import make_indoors
from fate.simulation.art.negatives.kinds import make_negative
from fate.simulation.art.panels import Body
from fate.simulation.art.street import make_street
from fate.simulation.art.variety import draw_variety

#: Share of the recordings without road users, of those with a street as the other profiles have it, and of those with
#: people in rooms.
NEGATIVE, PLAIN, INDOORS = 0.25, 0.13, 0.1


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
    """A street of any variety, a plain street of the other profiles, people in a room, or no road users at all."""
    rng = np.random.default_rng([seed, 0x3713])
    kind = rng.random()
    if kind < NEGATIVE:
        return World(*make_negative(seed, split, seconds))
    if kind < NEGATIVE + PLAIN:
        horizon = rng.uniform(0.46, 0.56)
        at_rest = bool(rng.random() < 0.3)
        height = rng.uniform(1.3, 5.0) if at_rest else rng.uniform(1.2, 1.4)
        return World(*make_street(seed, split, seconds, two_wheelers=True, at_rest=at_rest), height, horizon)
    if kind < NEGATIVE + PLAIN + INDOORS:
        return World(*make_indoors(seed, split, seconds))
    variety = draw_variety(rng)
    street = make_street(seed, split, seconds, two_wheelers=True, variety=variety)
    return World(*street, variety.height, 0.5)  # the camera's pitch is in its ego
