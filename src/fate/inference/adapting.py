"""A detector for a sensor that it was not trained on.

Every layer but the encoder's x and y (which are relative to the sensor) works on frames of any size, and no parameter
depends on it. What does matter is how many pixels an object has. So a sensor that is larger than the trained one is
made smaller by a whole number k, chosen so that its size comes nearest to the trained one: each k × k pixels become one
(x // k, y // k), no event is lost, and boxes grow back by k. A smaller sensor stays as it is. The detector is then
built again for the size that results, with the same weights.

This is a way to see something, not a promise: a detector is as good as its training on that sensor, optics and scene.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Events, Sensor
from fate.models.detector import Detector
from fate.models.zoo import rebuild


@dataclass(frozen=True)
class Adaptation:
    """How events of a sensor come to a detector, and how its boxes come back."""

    model: Detector  #: for ``model_sensor``
    sensor: Sensor  #: of the events and of the boxes that are reported
    trained: Sensor  #: that the weights were trained on
    divisor: int  #: k

    @property
    def model_sensor(self) -> Sensor:
        """What the detector sees."""
        return self.model.sensor

    def describe(self) -> str:
        """One sentence; empty where nothing was done."""
        if self.sensor == self.trained:
            return ""
        how = f", each {self.divisor}×{self.divisor} pixels as one ({self.model_sensor})" if self.divisor > 1 else ""
        return f"the detector was trained on a {self.trained} sensor and runs on one of {self.sensor}{how}"

    def events(self, events: Events) -> Events:
        """As the detector sees them."""
        if events.sensor != self.sensor:
            raise FateError(f"events of a {events.sensor} sensor were given to a stream of a {self.sensor} one")
        if self.divisor == 1:
            return events
        k = np.uint16(self.divisor)
        return Events.trusted(events.t_us, events.x // k, events.y // k, events.p, self.model_sensor)

    def boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """[M, 4] xyxy of the detector in pixels of the sensor."""
        if self.divisor == 1:
            return boxes
        # the last column of cells may reach over the sensor's edge
        limits = np.array([self.sensor.width, self.sensor.height] * 2, np.float32)
        grown: NDArray[np.float32] = np.minimum(boxes * np.float32(self.divisor), limits)
        return grown


def divisor_for(sensor: Sensor, trained: Sensor) -> int:
    """The whole number by which a sensor's sides come nearest to the trained ones, by the ratio of diagonals.

    Example:
        >>> [divisor_for(Sensor(*size), Sensor(240, 304)) for size in ((128, 128), (260, 346), (480, 640), (720, 1280))]
        [1, 1, 2, 4]
    """
    ratio = math.hypot(*sensor) / math.hypot(*trained)
    return max(1, min((math.floor(ratio), math.ceil(ratio)), key=lambda k: abs(math.log(ratio / max(k, 1)))))


def adapt(model: Detector, sensor: Sensor) -> Adaptation:
    """A detector for events of ``sensor``.

    Args:
        model: built by ``zoo.build_model``; it is not changed.
        sensor: (height, width) of the events.
    """
    if sensor == model.sensor:
        return Adaptation(model, sensor, model.sensor, 1)
    divisor = divisor_for(sensor, model.sensor)
    size = Sensor(*(-(-side // divisor) for side in sensor))
    if size == model.sensor:
        return Adaptation(model, sensor, model.sensor, divisor)
    if not model.description:
        raise FateError(
            f"a detector for a {model.sensor} sensor, without a description, was asked to see events of a {sensor} one;"
            " expected one built with fate.build_model, which can be built again for another size"
        )
    other = rebuild({**model.description, "sensor": list(size)})
    other.load_state_dict(model.state_dict())
    return Adaptation(other.eval(), sensor, model.sensor, divisor)


def fit_dataset(model: Detector, sensor: Sensor, name: str) -> tuple[Detector, str]:
    """A detector for the recordings of a dataset, and one sentence on what was done; empty where nothing was.

    A stream divides the pixels of a sensor that is too large. A dataset is divided by its own ``downscale``, which
    divides its labels too, so the error names that number.

    Args:
        model: built by ``zoo.build_model``; it is not changed.
        sensor: what models see of the dataset.
        name: of the dataset, for the texts.
    """
    if sensor == model.sensor:
        return model, ""
    divisor = divisor_for(sensor, model.sensor)
    if divisor > 1:
        raise FateError(
            f"{name} is of a {sensor} sensor, the detector of a {model.sensor} one; expected sizes that are nearer:"
            f" write downscale: {divisor} into a YAML file of the dataset, or give a detector trained on this size"
        )
    adapted = adapt(model, sensor)
    return adapted.model, f"{adapted.describe()}; figures and boxes may be worse for that"
