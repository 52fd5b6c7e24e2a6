"""Adapts a detector to a sensor that it was not trained on.

Every layer works on frames of any size, and no parameter depends on it; the encoder's x and y are relative to the
sensor. What matters is the size of objects in pixels, and the number of events per pixel. A sensor that is larger than
the trained one is therefore divided by an integer k that brings its size nearest to the trained one: each k × k pixels
become one that sums their events and fires less often (``events/merging.py``), and boxes are multiplied by k. If the
detector was trained on recordings that were downscaled by k, as those of 1Mpx are, all events are kept, as in training.
A smaller sensor stays as it is. The detector is then built again for the resulting size, with the same weights.

Results may be worse than on the trained sensor: a detector is as good as its training on sensor, optics and scene.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.merging import PixelMerger, divisor_for, firing_sum
from fate.inference.backends.graph_detector import GraphDetector
from fate.models.detector import Detector
from fate.models.zoo import rebuild


@dataclass(frozen=True)
class Adaptation:
    """Maps events of a sensor to a detector, and its boxes back."""

    model: Detector  #: built for the size of the events that it takes, ``model.sensor``
    sensor: Sensor  #: of the events and of the returned boxes
    trained: Sensor  #: of the training
    divisor: int  #: k
    needed: int = 1  #: events that a merged pixel needs to fire

    def describe(self) -> str:
        """One sentence on what was changed; empty if nothing was."""
        if self.sensor == self.trained:
            return ""
        how = f", each {self.divisor}×{self.divisor} pixels as one ({self.model.sensor})" if self.divisor > 1 else ""
        if self.needed > 1:
            how += f" that fires after {self.needed} events"
        return f"the detector was trained on a {self.trained} sensor and runs on one of {self.sensor}{how}"

    def merger(self) -> PixelMerger:
        """Makes of the events of one stream what the detector takes."""
        return PixelMerger(self.sensor, self.divisor, self.needed)

    def boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """[M, 4] xyxy of the detector in pixels of the sensor."""
        if self.divisor == 1:
            return boxes
        # the last cells may reach beyond the sensor
        limits = np.array([self.sensor.width, self.sensor.height] * 2, np.float32)
        grown: NDArray[np.float32] = np.minimum(boxes * np.float32(self.divisor), limits)
        return grown


def adapt(model: Detector, sensor: Sensor, downscale: int = 1) -> Adaptation:
    """The detector (built by ``zoo.build_model``, not changed) for events of ``sensor``.

    ``downscale`` is that of the recordings of its training; 1 if they were not downscaled.
    """
    divisor = divisor_for(sensor, model.sensor)
    size = Sensor(*(-(-side // divisor) for side in sensor))
    needed = 1 if divisor == downscale else firing_sum(divisor)
    if size == model.sensor:
        return Adaptation(model, sensor, model.sensor, divisor, needed)
    if isinstance(model, GraphDetector):
        raise FateError(
            f"the detector was exported for a {model.sensor} sensor, and the events are of a {sensor} one; export it"
            f" again with sensor=({sensor.height}, {sensor.width})"
        )
    if not model.description:
        raise FateError(
            f"a detector for a {model.sensor} sensor, without a description, was asked to see events of a {sensor} one;"
            " expected one built with fate.build_model, which can be built again for another size"
        )
    other = rebuild({**model.description, "sensor": list(size)})
    other.load_state_dict(model.state_dict())
    return Adaptation(other.eval(), sensor, model.sensor, divisor, needed)


def fit_dataset(model: Detector, sensor: Sensor, name: str, known: Collection[Sensor] = ()) -> tuple[Detector, str]:
    """The detector for a dataset, and one sentence on what was changed for it; empty if nothing was.

    A stream divides the pixels of a sensor that is too large. A dataset is divided by its own ``downscale``, which
    divides its labels too, so the error names that number. If the sensor is among the ``known`` ones of the training,
    the sentence is empty.
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
    return adapted.model, "" if sensor in known else f"{adapted.describe()}; figures and boxes may be worse for that"
