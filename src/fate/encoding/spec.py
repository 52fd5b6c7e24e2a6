"""The settings of Pillar Encoding, the weights and counts that its kernels exchange, and checks of settings."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from fate.errors import FateError
from fate.events.events import Sensor
from fate.text import suggest_name

Weighting = Literal["trapezoid", "uniform"]
Pooling = Literal["legendre", "max"]


@dataclass(frozen=True)
class PillarSpec:
    """Settings of Pillar Encoding, checked on construction; see ``PillarEncoder`` for the ablations."""

    sensor: Sensor
    pillar: int = 2  #: side of a pillar in pixels
    moments: int = 3  #: K, the number of Legendre polynomials (degrees 0 to K - 1)
    max_events: int | None = 32  #: N, the most events of a pillar; None for no limit
    max_pillars: int | None = 16_000  #: P, the most pillars of a window; None for no limit
    center_offsets: bool = False  #: whether offsets from the pillar's centre are features (D = 9 instead of 7)
    weighting: Weighting = "trapezoid"
    pooling: Pooling = "legendre"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        for name in ("pillar", "moments", "max_events", "max_pillars"):
            if getattr(self, name) is not None or name in ("pillar", "moments"):
                whole_number(name, getattr(self, name))
        if self.pillar > min(64, *self.sensor):
            raise FateError(
                f"pillar={self.pillar} was given for a {self.sensor} frame; expected 1 to 64 pixels, and a pillar must"
                " fit into the frame"
            )
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_choice("pooling", self.pooling, get_args(Pooling))
        if not isinstance(self.center_offsets, bool):
            raise FateError(f"center_offsets={self.center_offsets!r} was given; expected True or False")

    @property
    def rows(self) -> int:
        """Rows of pillars; pillars of the last row may extend beyond the frame."""
        return -(-self.sensor.height // self.pillar)

    @property
    def columns(self) -> int:
        """Columns of pillars; pillars of the last column may extend beyond the frame."""
        return -(-self.sensor.width // self.pillar)

    @property
    def cells(self) -> int:
        """Number of cells of the grid, each with or without a pillar."""
        return self.rows * self.columns

    @property
    def features(self) -> int:
        """D, the number of features of an event."""
        return 9 if self.center_offsets else 7


class Weights(NamedTuple):
    """H = relu(scale · features + shift); image = alpha · moments + beta. Gradients have the same fields."""

    scale: Tensor  #: [C, D] linear layer with BatchNorm folded in
    shift: Tensor  #: [C]
    alpha: Tensor  #: [C, K]
    beta: Tensor  #: [C]


@dataclass(frozen=True)
class PillarStats:
    """Counts of events and pillars of one call, over all windows."""

    events: int  #: events of the batch
    pillars: int  #: cells with events
    pillars_dropped: int  #: pillars dropped by ``max_pillars``
    events_dropped_with_pillars: int  #: events of the dropped pillars
    events_dropped: int  #: events dropped by ``max_events`` from the other pillars

    @property
    def events_kept(self) -> int:
        """Events that the image represents."""
        return self.events - self.events_dropped - self.events_dropped_with_pillars


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int of at least ``least``; booleans and fractions are refused."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise FateError(f"{name}={value!r} was given; expected a whole number, {least} or more")
    return number


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise FateError(f"{name}={value!r} was given; expected one of {', '.join(map(repr, choices))}")


def check_options(name: str, build: Callable[..., Any], positional: int, options: Mapping[str, Any]) -> None:
    """Refuse options that ``build`` does not take after its first ``positional`` arguments."""
    known = list(inspect.signature(build).parameters)[positional:]
    for option, value in options.items():
        if option not in known:
            takes = ", ".join(known) or "no options"
            raise FateError(f"{option}={value!r} was given; {name} takes {takes}{suggest_name(option, known)}")
