"""Who drives and walks in a street: the few bodies that its many actors share.

What a person would hesitate to call a car, such as a box truck or a lorry, is neutral (:mod:`fate.boxes.labels`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fate.boxes.labels import NEUTRAL
from fate.simulation.art.cars import CARS, make_car
from fate.simulation.art.catalogue import Split
from fate.simulation.art.dogs import make_dog
from fate.simulation.art.individual_cars import make_individual_car
from fate.simulation.art.large_vehicles import make_large_vehicle
from fate.simulation.art.panels import Body
from fate.simulation.art.pedestrians import PEDESTRIANS, make_pedestrian
from fate.simulation.art.people import make_person
from fate.simulation.art.two_wheelers import TWO_WHEELERS, make_two_wheeler
from fate.simulation.art.variety import Variety


class Cast(NamedTuple):
    """Bodies to choose from; bodies of the kind scenery have no boxes, and those of neutral ones are neutral."""

    cars: list[Body]
    people: list[Body]
    two_wheelers: list[Body]


def make_cast(
    rng: np.random.Generator, split: Split, night: bool, variety: Variety | None = None, trucks_are_cars: bool = True
) -> Cast:
    """Cars, pedestrians and two-wheelers of a street.

    In one of any variety, and where ``trucks_are_cars`` is false, trucks are neutral, and every car has a shape and
    reflections of its own.
    """
    individual = variety is not None or not trucks_are_cars
    new_car = make_individual_car if individual else make_car
    cars = [new_car(rng, CARS.choose(rng, split), night=night) for _ in range(10)]
    people = [make_pedestrian(rng, PEDESTRIANS.choose(rng, split)) for _ in range(8)]
    drawn = variety is None  # riders in a street of any variety have bodies: see riders.py
    styles = (TWO_WHEELERS.choose(rng, split) for _ in range(4))
    two_wheelers = [make_two_wheeler(rng, style, night=night, rider=drawn) for style in styles]
    if individual:
        cars = [replace(car, kind=NEUTRAL) if car.name == "box-truck" else car for car in cars]
    if variety is not None:
        people = [make_person(rng, split, "walk") for _ in range(8)]
        cars += [make_large_vehicle(rng, night) for _ in range(round(10 * variety.large_vehicles))]
    return Cast(cars, people, two_wheelers)


def make_park_cast(rng: np.random.Generator, split: Split, night: bool) -> Cast:
    """Vans, dogs and cyclists, which have boxes, among cars and people, which have none."""
    vans = ["van", "van" if split == "train" else "minivan"]
    others = [style for style in CARS.common if style not in ("van", "box-truck")]
    cars = [
        replace(make_car(rng, str(rng.choice(styles)), night=night), kind=kind)
        for styles, kind, number in ((vans, "van", 5), (others, "scenery", 5))
        for _ in range(number)
    ]
    people = [make_dog(rng) for _ in range(5)]
    people += [replace(make_pedestrian(rng, PEDESTRIANS.choose(rng, split)), kind="scenery") for _ in range(3)]
    cyclists = [replace(make_two_wheeler(rng, "bicycle", night=night), kind="cyclist") for _ in range(4)]
    return Cast(cars, people, cyclists)
