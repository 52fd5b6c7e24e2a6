"""A lens with radial distortion, for events and boxes of a pinhole picture.

The renderer is a pinhole. A pixel at a distance r from the middle of the sensor (in half diagonals) sees what a pinhole
sees at r · zoom · (1 − k r²): k < 0 is a barrel, as wide lenses have it, k > 0 a pincushion. So the pinhole picture is
simulated a little larger than the sensor, and each pixel of the sensor takes the events of one simulated pixel; no
border stays empty, and no event is counted twice. An edge is then drawn up to half a simulated pixel off.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from fate.compiled import compiled
from fate.events.events import Events, Sensor
from fate.simulation.arrays import Float32, Float64, Int32
from fate.simulation.render.surfaces import Pinhole

#: The simulated picture grows in steps of this share of the sensor: many recordings then have the same size, and a GPU
#: simulates them together.
STEP = 1 / 8
#: Steps of Newton's method; k from -0.3 to 0.05 needs four.
ITERATIONS = 8


class Lens:
    """A sensor of a size, with a field of view in degrees across its width, and distortion k."""

    def __init__(self, sensor: Sensor, field_of_view: float, distortion: float) -> None:
        self.sensor, self.distortion = sensor, distortion
        self.radius = 0.5 * math.hypot(*sensor)
        # neighbouring pixels of a pincushion would see the same simulated pixel without it
        self.zoom = 1 / (1 - 3 * max(distortion, 0.0))
        stretch = [self.zoom * (1 - distortion * r * r) for r in (1.0, *(0.5 * side / self.radius for side in sensor))]
        steps = math.ceil(max(stretch) / STEP - 1e-9)
        self.simulated = Sensor(*(math.ceil(side * steps * STEP) for side in sensor))  #: size of the pinhole picture
        self.focal = 0.5 * sensor.width * stretch[2] / math.tan(math.radians(field_of_view / 2))  #: of the pinhole, px

    def pinhole(self, horizon: float) -> Pinhole:
        """The camera to simulate, with the horizon at this share of the height of the sensor."""
        height, width = self.simulated
        centre_y = height / 2 + (horizon - 0.5) * self.sensor.height * self.zoom
        return Pinhole(height, width, self.focal, width / 2, centre_y)

    def seen(self, points: Float64) -> Float64:
        """Where the pinhole picture has what the points [..., 2] (x, y) of the sensor see, in pixels."""
        offset = points - 0.5 * np.array(self.sensor[::-1])
        square = np.sum(offset * offset, axis=-1, keepdims=True) / self.radius**2
        return np.asarray(offset * self.zoom * (1 - self.distortion * square) + 0.5 * np.array(self.simulated[::-1]))

    def shown(self, points: Float64) -> Float64:
        """Where the sensor shows the points [..., 2] (x, y) of the pinhole picture; the inverse of :meth:`seen`."""
        offset = (points - 0.5 * np.array(self.simulated[::-1])) / self.zoom
        far = np.linalg.norm(offset, axis=-1, keepdims=True) / self.radius
        r = far.copy()
        for _ in range(ITERATIONS):
            r -= (r - self.distortion * r**3 - far) / (1 - 3 * self.distortion * r * r)
        share = np.divide(r, far, out=np.ones_like(far), where=far > 0)
        return np.asarray(offset * share + 0.5 * np.array(self.sensor[::-1]))

    @cached_property
    def _pixel(self) -> Int32:
        """The pixel of the sensor (row by row) of each simulated pixel; -1: none sees it."""
        height, width = self.sensor
        rows, columns = np.indices(self.sensor, np.float64).reshape(2, -1) + 0.5
        column, row = np.floor(self.seen(np.stack([columns, rows], axis=-1))).astype(np.int64).T
        table = np.full(self.simulated, -1, np.int32)
        table[row, column] = np.arange(height * width)
        return table

    def events(self, events: Events) -> Events:
        """Events of the pinhole picture as the sensor gives them."""
        x, y, which = _move(events.x, events.y, self._pixel, self.sensor.width)
        return Events.trusted(events.t_us[which], x, y, events.p[which], self.sensor)

    def boxes(self, boxes: Float32) -> Float32:
        """Boxes [N, 4] of the pinhole picture on the sensor: an object reaches each side in the middle half of it."""
        along = np.array([0.25, 0.5, 0.75])
        x1, y1, x2, y2 = boxes.astype(np.float64).T[:, :, None]
        x, y = x1 + along * (x2 - x1), y1 + along * (y2 - y1)
        sides = [np.broadcast_arrays(*side) for side in ((x1, y), (x, y1), (x2, y), (x, y2))]
        left, top, right, bottom = (self.shown(np.stack(side, axis=-1)) for side in sides)
        ends = left[..., 0].min(1), top[..., 1].min(1), right[..., 0].max(1), bottom[..., 1].max(1)
        return np.stack(ends, axis=1).astype(np.float32)


@compiled
def _move(x: Any, y: Any, pixel: Int32, width: int) -> tuple[Any, Any, Any]:
    """Columns and rows on the sensor of events at (x, y) of the pinhole picture, and which events they are."""
    columns, rows, which = np.empty_like(x), np.empty_like(y), np.empty(len(x), np.int64)
    count = 0
    for index in range(len(x)):
        moved = pixel[y[index], x[index]]
        if moved >= 0:
            columns[count], rows[count], which[count] = moved % width, moved // width, index
            count += 1
    return columns[:count], rows[:count], which[:count]
