"""SORT's Kalman filter, for many boxes at once: centre, area and aspect, the first three with a constant velocity.

Time is in seconds and velocity in pixels a second, so the same filter serves every rate. Its state in the textbook's
form is (cx, cy, area, aspect, vx, vy, v_area) with 7×7 matrices. All of them fall apart into four blocks, one for each
coordinate (position and velocity; the aspect has no velocity), for nothing ever couples two coordinates: so a filter is
a row of 17 numbers and a step a few multiplications.

Noise is relative to the object's size, for a large box is found less exactly, in pixels, than a small one:

- a detection every 50 ms has errors of ``CENTRE_ERROR`` sides (the root of the area), ``AREA_ERROR`` areas, and
  ``ASPECT_ERROR`` aspects. Detections that come faster than that see much the same events and err alike: ten at 200 Hz
  together count as one at 20 Hz (``noise``), which makes the filter as quick at any rate;
- between detections, velocities wander by white acceleration, exactly integrated over the time that has passed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled

Floats = NDArray[np.float64]

#: Numbers of a filter: 4 positions, 3 velocities, then their variances and covariances.
POSITION, VELOCITY, VARIANCE, COVARIANCE, VELOCITY_VARIANCE, NUMBERS = 0, 4, 7, 11, 14, 17
#: Standard deviations of a detection at 20 Hz.
CENTRE_ERROR, AREA_ERROR, ASPECT_ERROR = 0.05, 0.1, 0.1
#: Standard deviations of a new track's velocity: sides a second, areas a second.
CENTRE_SPEED, AREA_SPEED = 4.0, 2.0
#: By how much velocities have wandered after a second, and aspects: sides a second, areas a second, aspects.
CENTRE_WANDER, AREA_WANDER, ASPECT_WANDER = 4.0, 2.0, 0.2
#: The time between detections of the errors above, seconds.
CANONICAL_S = 0.05
#: The least width and height, pixels: a box without area has no aspect.
LEAST_SIDE = 1e-3


@compiled
def begin(boxes: Floats) -> Floats:
    """Filters of tracks that begin with these boxes [N, 4] xyxy: [N, 17]."""
    filters = np.zeros((len(boxes), NUMBERS))
    for n in range(len(boxes)):
        filter, seen = filters[n], measured(boxes[n])
        side, area, aspect = math.sqrt(seen[2]), seen[2], seen[3]
        filter[:4] = seen
        filter[VARIANCE : VARIANCE + 2] = (CENTRE_ERROR * side) ** 2
        filter[VARIANCE + 2] = (AREA_ERROR * area) ** 2
        filter[VARIANCE + 3] = (ASPECT_ERROR * aspect) ** 2
        filter[VELOCITY_VARIANCE : VELOCITY_VARIANCE + 2] = (CENTRE_SPEED * side) ** 2
        filter[VELOCITY_VARIANCE + 2] = (AREA_SPEED * area) ** 2
    return filters


@compiled
def measured(box: Floats) -> Floats:
    """(cx, cy, area, aspect = width / height) of a box [4] xyxy."""
    width, height = max(box[2] - box[0], LEAST_SIDE), max(box[3] - box[1], LEAST_SIDE)
    return np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, width * height, width / height])


@compiled
def predict(filters: Floats, seconds: float) -> None:
    """All filters [M, 17] move on by some time, in place."""
    for n in range(len(filters)):
        filter = filters[n]
        area, aspect = filter[2], filter[3]
        wander = (CENTRE_WANDER**2 * area, CENTRE_WANDER**2 * area, (AREA_WANDER * area) ** 2)
        if area + seconds * filter[VELOCITY + 2] <= 0:  # SORT's rule: what would vanish stops shrinking
            filter[VELOCITY + 2] = 0.0
        for i in range(3):
            covariance, of_velocity = filter[COVARIANCE + i], filter[VELOCITY_VARIANCE + i]
            filter[i] += seconds * filter[VELOCITY + i]
            filter[VARIANCE + i] += seconds * (2 * covariance + seconds * of_velocity) + wander[i] * seconds**3 / 3
            filter[COVARIANCE + i] += seconds * of_velocity + wander[i] * seconds**2 / 2
            filter[VELOCITY_VARIANCE + i] += wander[i] * seconds
        filter[VARIANCE + 3] += (ASPECT_WANDER * aspect) ** 2 * seconds


@compiled
def correct(filters: Floats, rows: NDArray[np.int64], boxes: Floats, noise: float) -> None:
    """Some of the filters [M, 17] learn what was seen, in place.

    Args:
        rows: [N] which.
        boxes: [N, 4] xyxy.
        noise: variance of these detections over that of detections at 20 Hz.
    """
    for n in range(len(rows)):
        filter, seen = filters[rows[n]], measured(boxes[n])
        area, aspect = filter[2], filter[3]
        centre = CENTRE_ERROR**2 * area
        errors = (centre, centre, (AREA_ERROR * area) ** 2, (ASPECT_ERROR * aspect) ** 2)
        for i in range(4):
            variance, surprise = filter[VARIANCE + i], seen[i] - filter[i]
            gain = variance / (variance + noise * errors[i])
            filter[i] += gain * surprise
            filter[VARIANCE + i] = (1 - gain) * variance
            if i < 3:
                covariance = filter[COVARIANCE + i]
                velocity_gain = covariance / (variance + noise * errors[i])
                filter[VELOCITY + i] += velocity_gain * surprise
                filter[COVARIANCE + i] = (1 - gain) * covariance
                filter[VELOCITY_VARIANCE + i] -= velocity_gain * covariance


@compiled
def boxes_of(filters: Floats) -> Floats:
    """Where the filters [M, 17] believe the objects to be: [M, 4] xyxy."""
    boxes = np.empty((len(filters), 4))
    for n in range(len(filters)):
        width = math.sqrt(filters[n, 2] * filters[n, 3])
        height = filters[n, 2] / width
        boxes[n, 0], boxes[n, 2] = filters[n, 0] - width / 2, filters[n, 0] + width / 2
        boxes[n, 1], boxes[n, 3] = filters[n, 1] - height / 2, filters[n, 1] + height / 2
    return boxes
