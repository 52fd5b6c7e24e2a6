"""The cross-section of a street: its lanes, where cars park, and its kerbs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LANE = 3.5  #: metres


@dataclass(frozen=True)
class StreetLayout:
    """The cross-section of a street, in metres from the middle of the ego lane."""

    kind: str  #: "town", "suburb" or "open"
    left_kerb: float
    right_kerb: float
    parking_left: bool
    parking_right: bool
    oncoming_lanes: int
    length: float

    @property
    def sides(self) -> tuple[tuple[float, float], ...]:
        """The sign of x on the left and on the right side, and how far the kerb is away."""
        return (-1.0, abs(self.left_kerb)), (1.0, abs(self.right_kerb))


def make_layout(rng: np.random.Generator, fast: bool, stops: bool, length: float) -> StreetLayout:
    """A cross-section: wide and open where one drives fast; red lights are in town."""
    shares = [0.1, 0.35, 0.55] if fast else [0.65, 0.35, 0.0] if stops else [0.5, 0.35, 0.15]
    kind = str(rng.choice(["town", "suburb", "open"], p=shares))
    oncoming = 1 if kind != "open" or rng.random() < 0.5 else 2
    parking_left, parking_right = (kind != "open" and bool(rng.random() < 0.6) for _ in range(2))
    right = LANE / 2 + (2.3 if parking_right else 0.4) + rng.uniform(0, 0.8)
    left = -LANE / 2 - oncoming * LANE - (2.3 if parking_left else 0.4) - rng.uniform(0, 0.8)
    return StreetLayout(kind, left, right, parking_left, parking_right, oncoming, length)
