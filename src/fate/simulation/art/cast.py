"""Who is in a scene: actors, the bodies they share, and room for each of them.

Cars, people and two-wheelers are solid: one that would pass through another, or through the ego car, where the camera
may see it, is not cast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.simulation.art.bodies import choose_body, make_car, make_two_wheeler, shadow
from fate.simulation.art.catalogue import Split
from fate.simulation.art.motion import Ego, Path, Straight
from fate.simulation.art.people import choose_style, make_pedestrian
from fate.simulation.art.textures import Body, Panel
from fate.simulation.render.stage import REACH, Actor, Layer

LANE = 3.5  #: metres
#: Two bodies must be this far apart along each axis, metres.
ELBOW_ROOM = 0.25
#: How often the way of a body is checked, seconds.
CHECK_S = 0.2
#: What is further behind the camera than this need not keep out of the way, metres.
BEHIND = 12.0
#: Half the width of a side street, metres.
SIDE_STREET = 5.0


@dataclass(frozen=True)
class Street:
    """The cross-section of a street, in metres from the middle of the ego lane."""

    kind: str  #: "town", "suburb" or "open"
    left_kerb: float
    right_kerb: float
    parking_left: bool
    parking_right: bool
    oncoming_lanes: int
    length: float


class Cast:
    """Collects actors, and remembers bodies so that many actors share a few of them."""

    def __init__(
        self, rng: np.random.Generator, split: Split, night: bool, ego: Ego, seconds: float, at_rest: bool = False
    ) -> None:
        self.rng, self.night, self.split = rng, night, split
        self.ego, self.seconds, self.at_rest = ego, seconds, at_rest
        self.actors: list[Actor] = []
        self.objects: list[Body] = []  #: labelled ones; an actor's owner is its place here
        self.side_streets: list[float] = []  #: z of streets that cross
        self.cars = [make_car(rng, choose_body(rng, split), night=night) for _ in range(10)]
        self.people = [make_pedestrian(rng, choose_style(rng, split)) for _ in range(8)]
        self.two_wheelers = [
            make_two_wheeler(rng, choose_body(rng, split, "two-wheeler"), night=night) for _ in range(4)
        ]
        self.shadows = {id(body): _lying(shadow(body), body) for body in (*self.cars, *self.people, *self.two_wheelers)}
        self._times = np.arange(0.0, seconds + CHECK_S, CHECK_S)
        x, z, _, _ = ego.at(self._times)
        self._ego_z = z
        self._ways: list[NDArray[np.float64]] = []  # of each solid thing while it is near, [4, its times]
        self._spans: list[tuple[int, int]] = []  # which of the times those are
        self._keep(np.stack([x, z, np.full_like(x, 0.9), np.full_like(x, 2.5)]))  # the ego car itself

    def pick(self, bodies: list[Body]) -> Body:
        """One of them."""
        return bodies[int(self.rng.integers(len(bodies)))]

    def labelled(self, body: Body, path: Path, mirror: float = 1.0) -> bool:
        """A car, a two-wheeler or a pedestrian, with its shadow; False if it would pass through someone."""
        placed = self._place(body, path, mirror, owner=len(self.objects))
        if placed:
            self.objects.append(body)
        return placed

    def unlabelled(self, body: Body, path: Path) -> bool:
        """The same of one that hides others, and has no box itself."""
        return self._place(body, path, 1.0, owner=-1)

    def _place(self, body: Body, path: Path, mirror: float, owner: int) -> bool:
        way = self._way(body, path)
        if self._meets_someone(way):
            return False
        self._keep(way)
        self.actors.append(Actor(body, path, owner=owner, mirror=mirror))
        self.actors.append(Actor(self.shadows[id(body)], path, Layer.SHADOW))
        return True

    def _near(self, way: NDArray[np.float64]) -> tuple[int, int]:
        """The first and past-last time at which something is where the camera may see it."""
        near = np.flatnonzero((way[1] > self._ego_z - BEHIND) & (way[1] < self._ego_z + REACH))
        return (int(near[0]), int(near[-1]) + 1) if len(near) else (0, 0)

    def _keep(self, way: NDArray[np.float64]) -> None:
        begin, end = self._near(way)
        self._ways.append(way[:, begin:end].copy())
        self._spans.append((begin, end))

    def _meets_someone(self, way: NDArray[np.float64]) -> bool:
        """Whether it would pass through someone while it is near."""
        begin, end = self._near(way)
        spans = np.array(self._spans)
        for other in np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > begin)):
            first, last = max(begin, spans[other, 0]), min(end, spans[other, 1])
            theirs = self._ways[other][:, first - spans[other, 0] : last - spans[other, 0]]
            mine = way[:, first:last]
            apart = np.abs(theirs[:2] - mine[:2]) - theirs[2:] - mine[2:] - ELBOW_ROOM
            if bool(np.any(np.all(apart < 0, axis=0))):
                return True
        return False

    def _way(self, body: Body, path: Path) -> NDArray[np.float64]:
        """x, z and half the extent along x and z, [4, T]."""
        pose = path.at(self._times)
        along, across = np.abs(np.cos(pose.heading)), np.abs(np.sin(pose.heading))
        half_length, half_width = max(body.length, 0.4) / 2, max(min(body.width, 3.0), 0.4) / 2
        return np.stack(
            [
                pose.x,
                pose.z,
                half_width * along + half_length * across,
                half_length * along + half_width * across,
            ]
        )

    def scenery(self, body: Body, x: float, z: float, layer: Layer = Layer.STANDING) -> None:
        """Something that stays where it is."""
        self.actors.append(Actor(body, Straight(x, z), layer))

    def in_side_street(self, z: float, half: float = 0.0) -> bool:
        """Whether something of half a length ``half`` at ``z`` beside the street would stand in a side street."""
        return any(abs(z - middle) < SIDE_STREET + half for middle in self.side_streets)


def _lying(panel: Panel, body: Body) -> Body:
    return Body(f"{body.name}'s shadow", "scenery", (panel,), body.length, body.width, 0.0)
