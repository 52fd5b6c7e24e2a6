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
    oncoming_lanes: int  #: all lanes left of ours; if there are two and this is no motorway, the first goes our way
    length: float
    lanes_beside: tuple[int, int] = (0, 0)  #: only on a motorway: further lanes that go our way, left and right of ours

    @property
    def is_motorway(self) -> bool:
        """Whether several lanes go our way, and nobody walks, parks or comes from a side street."""
        return any(self.lanes_beside)

    @property
    def sides(self) -> tuple[tuple[float, float], ...]:
        """The sign of x on the left and on the right side, and how far the kerb is away."""
        return (-1.0, abs(self.left_kerb)), (1.0, abs(self.right_kerb))


def make_motorway(rng: np.random.Generator, length: float) -> StreetLayout:
    """A cross-section with two to six lanes that go our way, and none to two oncoming ones."""
    left, right = int(rng.integers(0, 3)), int(rng.integers(0, 4))
    right = max(right, 1 - left)
    lanes = left + int(rng.integers(0, 3))
    left_kerb = -LANE / 2 - lanes * LANE - rng.uniform(0.4, 2.5)
    right_kerb = LANE / 2 + right * LANE + rng.uniform(0.4, 2.5)
    return StreetLayout("open", left_kerb, right_kerb, False, False, lanes, length, (left, right))


def make_layout(rng: np.random.Generator, fast: bool, stops: bool, length: float) -> StreetLayout:
    """A cross-section: wide and open where one drives fast; red lights are in town."""
    shares = [0.1, 0.35, 0.55] if fast else [0.65, 0.35, 0.0] if stops else [0.5, 0.35, 0.15]
    kind = str(rng.choice(["town", "suburb", "open"], p=shares))
    oncoming = 1 if kind != "open" or rng.random() < 0.5 else 2
    parking_left, parking_right = (kind != "open" and bool(rng.random() < 0.6) for _ in range(2))
    right = LANE / 2 + (2.3 if parking_right else 0.4) + rng.uniform(0, 0.8)
    left = -LANE / 2 - oncoming * LANE - (2.3 if parking_left else 0.4) - rng.uniform(0, 0.8)
    return StreetLayout(kind, left, right, parking_left, parking_right, oncoming, length)
