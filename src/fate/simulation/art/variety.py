"""How one street differs from the plain ones: where the camera is, its light, its ground, and what stands in the way.

A :class:`Variety` is drawn once for a recording. It says what there is and how much of it; ``street.py`` draws the
street itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, cast

import numpy as np

Mount: TypeAlias = Literal["car", "mast", "hand"]
Light: TypeAlias = Literal["sun", "low sun", "overcast", "dusk", "night"]
Ground: TypeAlias = Literal["asphalt", "wet", "cobbles", "gravel", "sand"]
Exposure: TypeAlias = Literal["steady", "tunnel", "jump", "ramp", "automatic"]
Weather: TypeAlias = Literal["dry", "rain", "snow"]
Border: TypeAlias = Literal["none", "guard rail", "fence", "railing", "noise barrier", "hedge", "bollards"]

Name = TypeVar("Name", bound=str)

_MOUNTS: Mapping[Mount, float] = {"car": 0.5, "mast": 0.25, "hand": 0.25}
_LIGHTS: Mapping[Light, float] = {"sun": 0.4, "low sun": 0.12, "overcast": 0.24, "dusk": 0.1, "night": 0.14}
_GROUNDS: Mapping[Ground, float] = {"asphalt": 0.64, "wet": 0.12, "cobbles": 0.12, "gravel": 0.07, "sand": 0.05}
_EXPOSURES: Mapping[Exposure, float] = {"steady": 0.6, "tunnel": 0.1, "jump": 0.1, "ramp": 0.1, "automatic": 0.1}
_BORDERS: Mapping[Border, float] = {
    "none": 0.4,
    "guard rail": 0.2,
    "fence": 0.08,
    "railing": 0.1,
    "noise barrier": 0.06,
    "hedge": 0.1,
    "bollards": 0.06,
}
#: Share of motorways where the camera is on a car.
MOTORWAYS = 0.25
#: Lowest and highest place of the camera on each mount, metres above the ground.
HEIGHTS: Mapping[Mount, tuple[float, float]] = {"car": (0.6, 2.2), "mast": (1.0, 8.0), "hand": (1.2, 1.8)}
#: Largest angles of a camera on a car, rad: it looks ahead, more or less.
CAR_YAW, CAR_PITCH = np.deg2rad(20.0), np.deg2rad(8.0)
#: Largest vibration of a camera on a car, rad.
MAX_SHAKE = np.deg2rad(0.3)
#: Fastest slow turn of a camera in a hand, rad/s.
MAX_TURN = np.deg2rad(60.0)


@dataclass(frozen=True)
class Variety:
    """What one recording is like. Angles are in rad; shares are 0 to 1."""

    mount: Mount
    height: float  #: of the camera, metres above the ground
    yaw: float  #: on a car from straight ahead; else the share of a half turn from along the street to back along it
    pitch: float  #: on a car upwards; else added to the angle at which the road is in the middle of the picture
    roll: float  #: on average
    shake: float  #: amplitude of the vibration of a car or the tremor of a hand
    shake_hz: float
    sway: float  #: amplitude of a mast in the wind or of a walking person's camera
    sway_hz: float
    turn: float  #: rad/s of the turns that a hand makes now and then
    walk: float  #: m/s along the street, of the person with the camera; negative: against the traffic of our lane
    light: Light
    mains_hz: float  #: at which lamps flicker
    exposure: Exposure
    weather: Weather
    ground: Ground
    grain: float  #: contrast of the ground's texture; 0: asphalt that gives no events, 0.1: faint, 0.5: strong
    border: Border  #: what stands along the kerb
    foliage: float  #: how densely bushes and branches stand along the kerb
    dapple: float  #: share of the street that lies under trees, where their shadows are if the sun shines
    overhead: bool  #: whether there are bridges and sign gantries
    near_branch: bool  #: whether a branch sways before the lens
    wiper_hz: float  #: sweeps a second; 0: no wiper
    dashboard: float  #: height of its edge as tan of the angle below the middle of the picture; 0: not seen
    drops: int  #: on the windscreen
    crowding: float  #: how close and how dense other cars are
    large_vehicles: float  #: share of lorries and buses in the traffic; they have no box
    people: float  #: about how many people are near the camera, besides those on the pavements
    motorway: bool  #: several lanes go our way, fast


def draw_variety(rng: np.random.Generator) -> Variety:
    """Draw what one recording is like."""
    mount = _choose(rng, _MOUNTS)
    light, weather = _choose(rng, _LIGHTS), "dry"
    if light in ("overcast", "dusk", "night") and rng.random() < 0.35:
        weather = "rain" if rng.random() < 0.7 else "snow"
    behind_glass = mount == "car" and rng.random() < 0.55
    amount = rng.uniform(0, 1, 3) ** 2  # most streets have a little of each, some are full of one
    on_car = mount == "car"
    return Variety(
        mount=mount,
        height=float(rng.uniform(*HEIGHTS[mount])),
        yaw=float(np.clip(rng.normal(0, 0.4), -1, 1) * CAR_YAW if on_car else rng.uniform(0.02, 0.98)),
        pitch=float(rng.uniform(-1, 1) * CAR_PITCH if on_car else rng.normal(0, 0.06)),
        roll=float(rng.normal(0, 0.01 if mount != "hand" else 0.05)),
        shake=float(rng.uniform(0.02, 1) ** 2 * MAX_SHAKE if mount != "mast" else 0.0),
        shake_hz=float(rng.uniform(5, 25) if on_car else rng.uniform(7, 12)),
        sway=float(rng.choice([0.0, rng.uniform(0.001, 0.006)]) if mount == "mast" else rng.uniform(0.005, 0.03)),
        sway_hz=float(rng.uniform(0.3, 1.0) if mount == "mast" else rng.uniform(1.0, 2.0)),
        turn=float(rng.uniform(0, 1) ** 2 * MAX_TURN if mount == "hand" else 0.0),
        walk=float(rng.choice([-1.0, 0.0, 0.0, 1.0]) * rng.uniform(0.7, 1.6) if mount == "hand" else 0.0),
        light=light,
        mains_hz=float(rng.choice([100.0, 120.0])),
        exposure=_choose(rng, _EXPOSURES),
        weather=cast(Weather, weather),
        ground="wet" if weather == "rain" else _choose(rng, _GROUNDS),
        grain=float(0.05 + 0.5 * amount[2]) if rng.random() < 0.75 else 0.0,
        border=_choose(rng, _BORDERS),
        foliage=float(amount[0]),
        dapple=float(rng.uniform(0.1, 0.9) if rng.random() < 0.5 else 0.0),
        overhead=bool(rng.random() < 0.2),
        near_branch=bool(not on_car and rng.random() < 0.2),
        wiper_hz=float(rng.uniform(0.7, 1.0) if behind_glass and (weather != "dry" or rng.random() < 0.1) else 0.0),
        dashboard=float(rng.uniform(0.25, 0.55) if behind_glass and rng.random() < 0.6 else 0.0),
        drops=int(rng.integers(10, 60)) if behind_glass and weather == "rain" else 0,
        crowding=float(rng.uniform(0, 1)),
        large_vehicles=float(0.25 * amount[1]),
        people=float(min(rng.exponential(2.0 if on_car else 4.0), 12.0)),
        motorway=bool(on_car and rng.random() < MOTORWAYS),
    )


def _choose(rng: np.random.Generator, shares: Mapping[Name, float]) -> Name:
    """One of the names, by their shares."""
    names = list(shares)
    return names[int(rng.choice(len(names), p=np.array(list(shares.values())) / sum(shares.values())))]
