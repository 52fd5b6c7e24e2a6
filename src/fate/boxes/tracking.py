"""SORT: each detection gets the id of the object it belongs to, one time after another.

A Kalman filter predicts the box of each track; the Hungarian method pairs tracks and detections of one class so that
the sum of their IoUs is largest, and no pair has an IoU below ``min_overlap``. Unpaired detections begin tracks; a
track without detections for ``max_age_us`` ends. Nothing looks ahead, so the same tracker serves labels and live
cameras. All limits are times, not numbers of frames, so tracks are alike at any rate.

The filter's state is (cx, cy, area, aspect, vx, vy, v_area), the first three with a constant velocity. Time is in
seconds and velocity in pixels a second, so the same filter serves every rate. The 7×7 matrices of the textbook consist
of four independent blocks, one for each coordinate (position and velocity; the aspect has no velocity). A filter is
therefore a row of 17 numbers, and a step a few multiplications. Noise is relative to the object's size, because a large
box is detected less exactly, in pixels, than a small one:

- a detection every 50 ms has errors of ``CENTRE_ERROR`` sides (square roots of the area), ``AREA_ERROR`` areas and
  ``ASPECT_ERROR`` aspects. Detections at a higher rate share most of their events, and their errors are correlated: ten
  at 200 Hz count as one at 20 Hz (``noise``), so the filter reacts equally fast at any rate;
- between detections, velocities change by white acceleration, integrated exactly over the elapsed time.
"""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.compiled import compiled
from fate.errors import FateError
from fate.events.window import clip_time

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Smallest IoU of a track's predicted box and a detection of the same object.
MIN_OVERLAP = 0.3
#: A track ends after this time without a detection, µs: five steps of 20 Hz.
MAX_AGE_US = 250_000
#: Offsets in a filter: 4 positions, 3 velocities, then variances, covariances and variances of the velocities.
POSITION, VELOCITY, VARIANCE, COVARIANCE, VELOCITY_VARIANCE, FILTER_SIZE = 0, 4, 7, 11, 14, 17
#: Standard deviations of a detection at 20 Hz.
CENTRE_ERROR, AREA_ERROR, ASPECT_ERROR = 0.05, 0.1, 0.1
#: Standard deviations of a new track's velocity: sides a second, areas a second.
CENTRE_SPEED, AREA_SPEED = 4.0, 2.0
#: Standard deviations of the random change in one second: of velocities (sides, areas a second) and of the aspect.
CENTRE_CHANGE, AREA_CHANGE, ASPECT_CHANGE = 4.0, 2.0, 0.2
#: Time between detections for which the errors above hold, seconds.
CANONICAL_S = 0.05
#: The smallest width and height, pixels: a box without area has no aspect.
MIN_SIDE = 1e-3


class Tracker:
    """Call :meth:`step` with the detections of one time after another.

    Example:
        >>> tracker = Tracker()
        >>> tracker.step(0, [[10, 10, 30, 40]], [0.9], [0])
        array([0])
        >>> tracker.step(5_000, [[60, 60, 80, 80], [11, 10, 31, 40]], [0.8, 0.9], [0, 0])
        array([1, 0])
    """

    def __init__(self, min_overlap: float = MIN_OVERLAP, max_age_us: int = MAX_AGE_US, begin_score: float = 0.0):
        """Args:
        min_overlap: the smallest IoU, above 0.
        max_age_us: a track ends after this time without a detection.
        begin_score: the smallest score that begins a track; weaker detections can only continue one.
        """
        if not 0 < min_overlap <= 1 or max_age_us < 0:
            raise FateError(
                f"got an overlap of {min_overlap} and an age of {max_age_us} µs; expected 0 to 1, and 0 or more"
            )
        self.min_overlap, self.max_age_us, self.begin_score = float(min_overlap), int(max_age_us), float(begin_score)
        self._next_id = 0
        self.reset()

    def reset(self) -> None:
        """Remove all tracks; their ids are not used again."""
        self._t_us: int | None = None
        self._filters = np.zeros((0, FILTER_SIZE))
        self._ids, self._classes, self._seen_us = (np.zeros(0, np.int64) for _ in range(3))

    @property
    def track_ids(self) -> Ints:
        """Ids of the current tracks: [M]."""
        return self._ids.copy()

    @property
    def boxes(self) -> Floats:
        """Their estimated boxes now: [M, 4] xyxy, pixels; also of tracks without a detection at this time."""
        return filter_boxes(self._filters)

    def step(self, t_us: SupportsIndex, boxes: ArrayLike, scores: ArrayLike, class_ids: ArrayLike) -> Ints:
        """Return the track id of each detection, [N] int64; -1 if it belongs to none and is too weak to begin one.

        Times ``t_us`` increase from step to step; boxes [N, 4] are xyxy in pixels.
        """
        now = clip_time(t_us)
        detected, strengths, classes = _detections(boxes, scores, class_ids)
        noise = 1.0
        if self._t_us is not None:
            seconds = (now - self._t_us) / 1e6
            if seconds <= 0:
                raise FateError(f"a step at {now} µs was asked for after one at {self._t_us} µs; expected a later time")
            noise = max(1.0, CANONICAL_S / seconds)
            is_alive = now - self._seen_us <= self.max_age_us
            if not is_alive.all():
                self._filters, self._ids = self._filters[is_alive], self._ids[is_alive]
                self._classes, self._seen_us = self._classes[is_alive], self._seen_us[is_alive]
            predict_filters(self._filters, seconds)
        self._t_us = now
        estimated = filter_boxes(self._filters)
        overlaps, tracks, ambiguous = _overlaps(estimated, self._classes, detected, classes, self.min_overlap)
        # All classes are assigned at once: a pair of two classes, or of too small an IoU, counts 0 and is discarded, so
        # the best assignment is also the best of each class.
        if ambiguous:
            from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (it takes 0.4 s to load)

            rows, columns = linear_sum_assignment(overlaps, maximize=True)
            paired = overlaps[rows, columns] > 0
            tracks[:] = -1
            tracks[columns[paired]] = rows[paired]
        found = tracks >= 0
        update_filters(self._filters, tracks[found], detected[found], noise)
        self._seen_us[tracks[found]] = now
        ids = np.full(len(detected), -1, np.int64)
        ids[found] = self._ids[tracks[found]]
        new = ~found & (strengths >= self.begin_score)
        count = int(np.count_nonzero(new))
        if count:
            ids[new] = np.arange(self._next_id, self._next_id + count)
            self._next_id += count
            self._filters = np.concatenate([self._filters, new_filters(detected[new])])
            self._ids = np.concatenate([self._ids, ids[new]])
            self._classes = np.concatenate([self._classes, classes[new]])
            self._seen_us = np.concatenate([self._seen_us, np.full(count, now, np.int64)])
        return ids


def _detections(boxes: Any, scores: Any, class_ids: Any) -> tuple[Floats, Floats, Ints]:
    corners = np.ascontiguousarray(boxes, np.float64)
    corners = corners.reshape(0, 4) if not corners.size else corners
    strengths, classes = np.asarray(scores, np.float64), np.asarray(class_ids, np.int64)
    shapes = corners.shape, strengths.shape, classes.shape
    if shapes != ((len(corners), 4), (len(corners),), (len(corners),)):
        raise FateError(f"boxes, scores and classes of shapes {shapes} were given; expected [N, 4], [N] and [N]")
    if not np.isfinite(corners).all():
        raise FateError("a box with a coordinate that is not finite was given; expected pixels")
    return corners, strengths, classes


@compiled
def _overlaps(
    tracks: Floats, track_classes: Ints, boxes: Floats, class_ids: Ints, min_overlap: float
) -> tuple[Floats, Ints, bool]:
    """IoU [M, N], 0 for pairs that are not allowed; the track [N] of each detection; and whether there is a choice.

    Usually no track and no detection has two candidates, and the Hungarian method is not needed.
    """
    overlaps = np.zeros((len(tracks), len(boxes)))
    partner = np.full(len(boxes), -1, np.int64)
    ambiguous = False
    for m in range(len(tracks)):
        choices = 0
        x1, y1, x2, y2 = tracks[m]
        area = (x2 - x1) * (y2 - y1)
        for n in range(len(boxes)):
            width = min(x2, boxes[n, 2]) - max(x1, boxes[n, 0])
            height = min(y2, boxes[n, 3]) - max(y1, boxes[n, 1])
            if width <= 0 or height <= 0 or track_classes[m] != class_ids[n]:
                continue
            shared = width * height
            union = area + (boxes[n, 2] - boxes[n, 0]) * (boxes[n, 3] - boxes[n, 1]) - shared
            if shared >= min_overlap * union:
                overlaps[m, n] = shared / union
                ambiguous |= choices > 0 or partner[n] >= 0
                choices += 1
                partner[n] = m
    return overlaps, partner, ambiguous


@compiled
def new_filters(boxes: Floats) -> Floats:
    """Filters [N, 17] of new tracks whose first boxes are [N, 4] xyxy.

    Values are written one by one: numba needs 2.6 s to compile the check of an assignment to a slice.
    """
    filters = np.zeros((len(boxes), FILTER_SIZE))
    for n in range(len(boxes)):
        filter, measured = filters[n], _measure(boxes[n])
        side, area, aspect = math.sqrt(measured[2]), measured[2], measured[3]
        for i in range(4):
            filter[i] = measured[i]
        for i in range(2):
            filter[VARIANCE + i] = (CENTRE_ERROR * side) ** 2
            filter[VELOCITY_VARIANCE + i] = (CENTRE_SPEED * side) ** 2
        filter[VARIANCE + 2] = (AREA_ERROR * area) ** 2
        filter[VARIANCE + 3] = (ASPECT_ERROR * aspect) ** 2
        filter[VELOCITY_VARIANCE + 2] = (AREA_SPEED * area) ** 2
    return filters


@compiled
def _measure(box: Floats) -> Floats:
    """(cx, cy, area, aspect = width / height) of a box [4] xyxy."""
    width, height = max(box[2] - box[0], MIN_SIDE), max(box[3] - box[1], MIN_SIDE)
    return np.array([(box[0] + box[2]) / 2, (box[1] + box[3]) / 2, width * height, width / height])


@compiled
def predict_filters(filters: Floats, seconds: float) -> None:
    """Predict all filters [M, 17] after some time, in place."""
    for n in range(len(filters)):
        filter = filters[n]
        area, aspect = filter[2], filter[3]
        change = (CENTRE_CHANGE**2 * area, CENTRE_CHANGE**2 * area, (AREA_CHANGE * area) ** 2)
        if area + seconds * filter[VELOCITY + 2] <= 0:  # SORT's rule: the area stays above 0
            filter[VELOCITY + 2] = 0.0
        for i in range(3):
            covariance, of_velocity = filter[COVARIANCE + i], filter[VELOCITY_VARIANCE + i]
            filter[i] += seconds * filter[VELOCITY + i]
            filter[VARIANCE + i] += seconds * (2 * covariance + seconds * of_velocity) + change[i] * seconds**3 / 3
            filter[COVARIANCE + i] += seconds * of_velocity + change[i] * seconds**2 / 2
            filter[VELOCITY_VARIANCE + i] += change[i] * seconds
        filter[VARIANCE + 3] += (ASPECT_CHANGE * aspect) ** 2 * seconds


@compiled
def update_filters(filters: Floats, rows: NDArray[np.int64], boxes: Floats, noise: float) -> None:
    """Update the filters at ``rows`` [N] of all filters [M, 17] with detections [N, 4] xyxy, in place.

    ``noise`` is the variance of these detections divided by that of detections at 20 Hz.
    """
    for n in range(len(rows)):
        filter, measured = filters[rows[n]], _measure(boxes[n])
        area, aspect = filter[2], filter[3]
        centre = CENTRE_ERROR**2 * area
        errors = (centre, centre, (AREA_ERROR * area) ** 2, (ASPECT_ERROR * aspect) ** 2)
        for i in range(4):
            variance, surprise = filter[VARIANCE + i], measured[i] - filter[i]
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
def filter_boxes(filters: Floats) -> Floats:
    """Estimated boxes [M, 4] xyxy of the filters [M, 17]."""
    boxes = np.empty((len(filters), 4))
    for n in range(len(filters)):
        width = math.sqrt(filters[n, 2] * filters[n, 3])
        height = filters[n, 2] / width
        boxes[n, 0], boxes[n, 2] = filters[n, 0] - width / 2, filters[n, 0] + width / 2
        boxes[n, 1], boxes[n, 3] = filters[n, 1] - height / 2, filters[n, 1] + height / 2
    return boxes
