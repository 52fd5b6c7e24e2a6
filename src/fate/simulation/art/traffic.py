"""Everyone who moves or is parked: traffic ahead, oncoming, overtaking and crossing, people, two-wheelers."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.cast import LANE, Cast, Street
from fate.simulation.art.motion import Following, Straight


def add_traffic(cast: Cast, layout: Street) -> None:
    """Cars ahead in the lane, oncoming ones, ones that overtake, and ones that come out of a side street."""
    rng, ego = cast.rng, cast.ego
    if cast.at_rest:
        _add_passing(cast, layout)
    elif rng.random() < 0.75:
        gap = rng.uniform(8, 26)
        sway = rng.uniform(0.1, 0.3) * gap
        first = Following(ego, rng.normal(0, 0.2), gap + 2, sway, rng.uniform(6, 20), rng.uniform(0, 6.28))
        cast.labelled(cast.pick(cast.cars), first)
        if rng.random() < 0.5:
            second = gap + sway + rng.uniform(12, 25)
            cast.labelled(cast.pick(cast.cars), Following(ego, rng.normal(0, 0.2), second, 2.0, 11.0, 0.0))
    mean = float(np.mean(ego.speed))
    wide = layout.oncoming_lanes == 2  # then the lane beside ours goes our way
    if wide:
        z = rng.uniform(-20, 20)
        while z < 90:
            speed = max(mean + rng.uniform(-6, 6), 2.0)
            cast.labelled(cast.pick(cast.cars), Straight(-LANE + rng.normal(0, 0.15), z, 0.0, speed))
            z += 15 + rng.exponential(40)
    speed = rng.uniform(5, 12) if layout.kind != "open" else rng.uniform(12, 20)
    z, headway = rng.uniform(10, 40), rng.uniform(18, 60)
    lane = 2 if wide else 1
    while z < layout.length + speed * cast.seconds:
        path = Straight(-lane * LANE + rng.normal(0, 0.15), z, np.pi, speed + rng.normal(0, 0.02))
        cast.labelled(cast.pick(cast.cars), path)
        z += 9 + rng.exponential(headway)
    for _ in range(rng.poisson(cast.seconds / 8)):
        when, speed = rng.uniform(0, cast.seconds), rng.uniform(3, 10)
        side = float(rng.choice([-1, 1]))
        z = float(ego.at(np.array([when]))[1][0]) + rng.uniform(14, 38)
        if cast.labelled(cast.pick(cast.cars), Straight(-side * speed * when, z, side * np.pi / 2, speed)):
            cast.side_streets.append(z)


def _add_passing(cast: Cast, layout: Street) -> None:
    """Cars that come from behind a camera at rest and drive on."""
    rng = cast.rng
    speed, headway = rng.uniform(5, 12) if layout.kind != "open" else rng.uniform(12, 20), rng.uniform(12, 50)
    z = rng.uniform(-10, 60)
    while z > -speed * cast.seconds:
        cast.labelled(cast.pick(cast.cars), Straight(rng.normal(0, 0.15), z, 0.0, speed))
        z -= 9 + rng.exponential(headway)


def add_parked(cast: Cast, layout: Street) -> None:
    """Cars along the kerbs, not at the mouth of a side street.

    From a camera at rest nothing can be seen of them by their events: there they hide others, and have no boxes.
    """
    rng = cast.rng
    taken = rng.uniform(0.25, 0.85)
    for on, x, heading in (
        (layout.parking_right, layout.right_kerb - 1.05, 0.0),
        (layout.parking_left, layout.left_kerb + 1.05, np.pi),
    ):
        z = rng.uniform(4, 14)
        while on and z < layout.length:
            car = cast.pick(cast.cars)
            if rng.random() < taken and not cast.in_side_street(z, car.length / 2):
                away = np.pi if rng.random() < 0.15 else 0.0
                path = Straight(x + rng.normal(0, 0.08), z, heading + away + rng.normal(0, 0.01))
                (cast.unlabelled if cast.at_rest else cast.labelled)(car, path)
            z += car.length + rng.uniform(0.8, 2.0)


def add_pedestrians(cast: Cast, layout: Street) -> None:
    """On the pavements, those who come nearer to the kerb, and now and then across the street."""
    rng = cast.rng
    busy = {"town": 16.0, "suburb": 35.0, "open": 200.0}[layout.kind]
    for side, kerb in ((-1.0, layout.left_kerb), (1.0, layout.right_kerb)):
        z = rng.exponential(busy / 2)
        while z < layout.length:
            body = cast.pick(cast.people)
            away = bool(rng.random() < 0.5)
            pace = rng.uniform()  # the faster, the further from the kerb: nobody runs into the one ahead
            speed, beside = 0.8 + pace, 0.4 + 0.8 * pace + (1.1 if away else 0.0)
            path = Straight(side * (abs(kerb) + beside), z, 0.0 if away else np.pi, speed, 0.8 * body.height)
            cast.labelled(body, path, float(rng.choice([-1, 1])))
            z += rng.exponential(busy)
    for _ in range(rng.poisson(cast.seconds / 4 if layout.kind != "open" else 0.1)):
        when, speed, side = rng.uniform(0, cast.seconds), rng.uniform(0.9, 1.8), float(rng.choice([-1, 1]))
        z = float(cast.ego.at(np.array([when]))[1][0]) + rng.uniform(8, 22)
        body = cast.pick(cast.people)
        path = Straight(rng.uniform(-2, 2) - side * speed * when, z, side * np.pi / 2, speed, 0.8 * body.height)
        cast.labelled(body, path, side)


def add_two_wheelers(cast: Cast, layout: Street) -> None:
    """Beside the traffic in our lane, and at the edge of the oncoming one."""
    rng = cast.rng
    gap = rng.uniform(5, 10)
    for _ in range(1 + rng.poisson(1.5)):
        sway = rng.uniform(0.5, 1.5)
        body, x = cast.pick(cast.two_wheelers), rng.uniform(1.3, 1.5)
        following = Following(cast.ego, x, gap, sway, rng.uniform(5, 15), rng.uniform(0, 6.28), 5.0)
        passing = Straight(x, gap - 12.0, 0.0, 5.0, 5.0)  # from behind the camera
        cast.labelled(body, passing if cast.at_rest else following)
        gap += rng.uniform(6, 12)
    z, speed = rng.uniform(15, 60), rng.uniform(3, 9)
    while z < layout.length + speed * cast.seconds:
        x = -layout.oncoming_lanes * LANE - 1.6
        cast.labelled(cast.pick(cast.two_wheelers), Straight(x, z, np.pi, speed, 5.0))
        z += 10 + rng.exponential(50)
