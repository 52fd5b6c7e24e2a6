"""The kinds of recordings without road users, and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fate.errors import FateError
from fate.simulation.art.catalogue import Split
from fate.simulation.art.negatives import desk, hands, lights, long_things, machines, nature, patterns, rooms, streets
from fate.simulation.art.negatives.world import Negative


class Kind(NamedTuple):
    """One kind of recording."""

    weight: float  #: how often it is drawn, relative to the others
    make: Callable[[np.random.Generator, Split, float], Negative]


KINDS = {
    "texture": Kind(6, patterns.moving_texture),
    "bars": Kind(5, patterns.moving_bars),
    "calibration": Kind(5, patterns.calibration_board),
    "text": Kind(4, patterns.text_page),
    "cards": Kind(4, patterns.swinging),
    "hands": Kind(7, hands.hands),
    "arms": Kind(20, long_things.arms),
    "hanging": Kind(6, long_things.hanging),
    "head": Kind(7, hands.head),
    "room": Kind(9, rooms.room),
    "corridor": Kind(5, rooms.corridor),
    "desk": Kind(9, desk.desk),
    "rotors": Kind(4, machines.rotors),
    "gears": Kind(2, machines.gears),
    "pendulums": Kind(3, machines.pendulums),
    "balls": Kind(5, machines.balls),
    "conveyor": Kind(3, machines.conveyor),
    "trees": Kind(6, nature.trees),
    "water": Kind(3, nature.water),
    "smoke": Kind(3, nature.smoke),
    "sky": Kind(4, nature.sky),
    "flicker": Kind(5, lights.flicker),
    "lamps": Kind(10, lights.carried),
    "sparks": Kind(3, lights.sparks),
    "still": Kind(8, lights.still),
    "empty road": Kind(10, streets.empty_road),
    "empty street": Kind(6, streets.empty_street),
}


def make_negative(seed: int, split: Split, seconds: float, kind: str | None = None) -> Negative:
    """Draw a scene without road users from a seed, of one of ``KINDS`` or of any kind."""
    if kind is not None and kind not in KINDS:
        raise FateError(f"there is no kind of scene {kind!r}; give one of {', '.join(KINDS)}, or None for any of them")
    drawn, rng = _draw_kind(seed)
    return KINDS[kind or drawn].make(rng, split, seconds)


def kind_of(seed: int) -> str:
    """The kind that :func:`make_negative` draws from a seed."""
    return _draw_kind(seed)[0]


def _draw_kind(seed: int) -> tuple[str, np.random.Generator]:
    """The kind of a scene, and the generator of everything else in it."""
    rng = np.random.default_rng([seed, 0x9E6A7E])
    weights = np.array([each.weight for each in KINDS.values()])
    return str(rng.choice(list(KINDS), p=weights / weights.sum())), rng
