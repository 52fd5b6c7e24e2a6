"""The settings of a Pillar Encoding, the weights its kernels take, and the counts of what its caps dropped."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from fate.errors import FateError
from fate.events.events import Sensor

Weighting = Literal["trapezoid", "uniform"]
Pooling = Literal["legendre", "max"]


@dataclass(frozen=True)
class PillarSpec:
    """Geometry, caps and ablations of Pillar Encoding; checked when it is made."""

    sensor: Sensor
    pillar: int = 2  #: side of a pillar in pixels
    moments: int = 3  #: K, Legendre polynomials of degree 0 to K - 1
    max_events: int | None = 32  #: N, events kept of a pillar
    max_pillars: int | None = 16_000  #: P, pillars kept of a window
    center_offsets: bool = False  #: offsets from the pillar's centre among the features (D = 9 instead of 7)
    weighting: Weighting = "trapezoid"
    pooling: Pooling = "legendre"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        for name in ("pillar", "moments", "max_events", "max_pillars"):
            if getattr(self, name) is not None or name in ("pillar", "moments"):
                whole_number(name, getattr(self, name))
        if self.pillar > min(self.sensor):
            raise FateError(
                f"pillar={self.pillar} was given for a {self.sensor} frame; a pillar must fit into the frame"
            )
        if self.pillar > 64:
            raise FateError(f"pillar={self.pillar} was given; expected 1 to 64 pixels")
        for name, kind in (("weighting", Weighting), ("pooling", Pooling)):
            if getattr(self, name) not in get_args(kind):
                raise FateError(
                    f"{name}={getattr(self, name)!r} was given; expected one of {', '.join(get_args(kind))}"
                )
        if not isinstance(self.center_offsets, bool):
            raise FateError(f"center_offsets={self.center_offsets!r} was given; expected True or False")

    @property
    def rows(self) -> int:
        """Pillars from top to bottom; the last ones may reach over the frame's edge."""
        return -(-self.sensor.height // self.pillar)

    @property
    def columns(self) -> int:
        """Pillars from left to right."""
        return -(-self.sensor.width // self.pillar)

    @property
    def cells(self) -> int:
        """Pillars of the grid."""
        return self.rows * self.columns

    @property
    def features(self) -> int:
        """D, numbers that describe an event."""
        return 9 if self.center_offsets else 7


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int of at least ``least``; booleans and fractions are refused."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise FateError(f"{name}={value!r} was given; expected a whole number, {least} or more")
    return number


class Weights(NamedTuple):
    """H = relu(scale · features + shift); image = alpha · moments + beta. Gradients have the same fields."""

    scale: Tensor  #: [C, D] linear layer with BatchNorm folded in
    shift: Tensor  #: [C]
    alpha: Tensor  #: [C, K]
    beta: Tensor  #: [C]


@dataclass(frozen=True)
class PillarStats:
    """Events and pillars of one call and how many the caps dropped, all windows together."""

    events: int  #: in the batch
    pillars: int  #: that held events
    pillars_dropped: int  #: by ``max_pillars``
    events_dropped_with_pillars: int  #: that were in those
    events_dropped: int  #: by ``max_events``, from the pillars that stayed

    @property
    def events_kept(self) -> int:
        """Events in the image."""
        return self.events - self.events_dropped - self.events_dropped_with_pillars
