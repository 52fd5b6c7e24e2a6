"""The worlds of the profile ``mixed``: what a recording shows, drawn from its seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from fate.simulation.art.actors import Actor, Ego, Lighting
from fate.simulation.art.catalogue import Split
from fate.simulation.art.indoors import make_indoors
from fate.simulation.art.negatives.kinds import kind_of, make_negative
from fate.simulation.art.panels import Body
from fate.simulation.art.street import make_street
from fate.simulation.art.variety import draw_variety

Kind: TypeAlias = Literal["nothing", "plain street", "room", "street"]
#: Share of each kind: without road users, a street as the other profiles have it, people in a room, a street of any
#: variety.
SHARES: dict[Kind, float] = {"nothing": 0.25, "plain street": 0.13, "room": 0.1, "street": 0.52}


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
    kind, rng = _draw_kind(seed)
    if kind == "nothing":
        return World(*make_negative(seed, split, seconds))
    if kind == "room":
        return World(*make_indoors(seed, split, seconds))
    if kind == "plain street":
        horizon = rng.uniform(0.46, 0.56)
        at_rest = bool(rng.random() < 0.3)
        height = rng.uniform(1.3, 5.0) if at_rest else rng.uniform(1.2, 1.4)
        street = make_street(seed, split, seconds, two_wheelers=True, at_rest=at_rest, trucks_are_cars=False)
        return World(*street, height, horizon)
    variety = draw_variety(rng)
    street = make_street(seed, split, seconds, two_wheelers=True, variety=variety)
    return World(*street, variety.height, 0.5)  # the camera's pitch is in its ego


def scene_of(seed: int) -> str:
    """What the world of a seed shows: its kind and, after a comma, the camera's mount or what there is instead."""
    kind, rng = _draw_kind(seed)
    if kind == "nothing":
        return f"{kind}, {kind_of(seed)}"
    return f"{kind}, {draw_variety(rng).mount}" if kind == "street" else kind


def _draw_kind(seed: int) -> tuple[Kind, np.random.Generator]:
    """The kind of a world, and the generator of its variety."""
    rng = np.random.default_rng([seed, 0x3713])
    drawn = rng.random()
    for kind, share in SHARES.items():
        drawn -= share
        if drawn < 0:
            return kind, rng
    return "street", rng
