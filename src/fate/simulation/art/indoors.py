"""People in rooms and corridors, close to a camera that stands or is held in a hand; they gesture, sit or pass by."""

from __future__ import annotations

import numpy as np

from fate.simulation.art.actors import Swaying
from fate.simulation.art.catalogue import Split
from fate.simulation.art.crowd import Spot, make_seat, stride_of
from fate.simulation.art.negatives.paths import hold
from fate.simulation.art.negatives.rooms import corridor, room
from fate.simulation.art.negatives.world import Negative
from fate.simulation.art.people import make_person
from fate.simulation.art.skeleton import Motion

#: Metres from the camera to the nearest and to the furthest people.
NEAREST, FURTHEST = 0.8, 3.2
#: People are within this angle from the middle of the picture, rad.
ASIDE = 0.45
_SHARES: dict[Motion, float] = {"gesture": 0.4, "stand": 0.15, "walk": 0.3, "sit": 0.15}


def make_indoors(seed: int, split: Split, seconds: float) -> Negative:
    """Draw a room or a corridor with one to three people, who have boxes."""
    rng = np.random.default_rng([seed, 0x1D0025])
    scene = (room if rng.random() < 0.75 else corridor)(rng, split, seconds)
    if rng.random() < 0.6:  # on a tripod or a monitor
        scene = scene._replace(ego=hold(rng, seconds, 0.0, -float(rng.uniform(0.0, 0.15))))
    for _ in range(1 + min(int(rng.poisson(0.6)), 2)):
        _add_person(rng, split, scene, seconds)
    return scene


def _add_person(rng: np.random.Generator, split: Split, scene: Negative, seconds: float) -> None:
    """Add someone whom the camera sees at some moment, most of them turned to it or passing across its view."""
    motion = list(_SHARES)[int(rng.choice(len(_SHARES), p=list(_SHARES.values())))]
    person, when = make_person(rng, split, motion), rng.uniform(0, seconds)
    camera = scene.ego.at(np.array([when]))
    distance = np.exp(rng.uniform(np.log(NEAREST), np.log(FURTHEST)))
    bearing = float(camera.yaw[0]) + rng.uniform(-ASIDE, ASIDE)
    x, z = (float(camera.x[0] + distance * np.sin(bearing)), float(camera.z[0] + distance * np.cos(bearing)))
    if motion == "walk":
        heading, speed = bearing + rng.choice([-1, 1]) * rng.normal(np.pi / 2, 0.4), float(rng.uniform(0.4, 1.4))
        way = Spot(when, x, z, float(heading)).way(speed, stride_of(person, speed, motion))
        scene.street.add_labelled(person, way)
        return
    spot = Spot(when, x, z, bearing + np.pi + float(rng.normal(0, 0.6)))
    hertz = rng.uniform(0.3, 1.5) if motion == "gesture" else rng.uniform(0.25, 0.9)
    scene.street.add_labelled(person, Swaying(x, z, float(hertz), float(rng.uniform(0, 2 * np.pi)), spot.heading))
    if motion == "sit":
        behind = spot.beside(0.0, -0.12)
        scene.street.add("seat", make_seat(rng, person.height).panels, (behind.x, behind.z), facing=True)
