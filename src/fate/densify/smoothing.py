"""Smooths tracks, and corrects them with the ground truth that confirms them.

Smoothing: each detection is moved onto the straight line that fits its neighbours of the track best, with Gaussian
weights of standard deviation ``smooth_us``.

Correction: the errors of a detector last for a while (a box that is too wide, or late). At an annotated time the error
is known: ground truth minus the line between the detections before and after. It is subtracted from the detections,
interpolated between annotated times, and constant before the first and after the last one.

Boxes are represented by centre and logarithms of width and height, so that they stay boxes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.densify.interpolation import Bools, Floats, Ints

#: Smallest width and height whose logarithm is taken, pixels.
MIN_SIDE = 1e-3
#: Neighbours that are further away than this many ``smooth_us`` have no weight.
REACH = 4
#: Detections that are smoothed at once.
CHUNK = 256


def smooth_tracks(tracks: Labels, true: Bools, smooth_us: int, correct: bool = True) -> NDArray[np.float32]:
    """Boxes [N, 4] of all rows; those of detections are smoothed (unless ``smooth_us`` is 0) and corrected.

    ``true`` [N] says which rows are ground truth.
    """
    boxes = tracks.boxes.copy()
    if not len(boxes):
        return boxes
    values = _to_values(boxes)
    rows = np.lexsort((tracks.t_us, tracks.track_id))
    ends = np.flatnonzero(np.diff(tracks.track_id[rows])) + 1
    for part in np.split(rows, ends):
        seen, known = part[~true[part]], part[true[part]]
        if not len(seen):
            continue
        times = tracks.t_us[seen]
        path = smooth(times, values[seen], smooth_us) if smooth_us else values[seen]
        between = (tracks.t_us[known] >= times[0]) & (tracks.t_us[known] <= times[-1])  # otherwise the error is unknown
        if correct and between.any():
            known = known[between]
            error = values[known] - _interpolate(tracks.t_us[known], times, path)
            path = path + _interpolate(times, tracks.t_us[known], error)
        boxes[seen] = _to_boxes(path)
    return boxes


def smooth(times_us: Ints, values: Floats, smooth_us: int) -> Floats:
    """Values [T, D] of one track at increasing times [T], each on the line that fits its neighbours best."""
    result = np.empty_like(values)
    for start in range(0, len(times_us), CHUNK):
        own = slice(start, start + CHUNK)
        low, high = times_us[own][0] - REACH * smooth_us, times_us[own][-1] + REACH * smooth_us
        near = slice(*np.searchsorted(times_us, [low, high + 1]).tolist())
        distance = (times_us[near] - times_us[own, None]) / smooth_us
        weight = np.exp(-0.5 * distance**2)
        total, first, second = weight.sum(1), (weight * distance).sum(1), (weight * distance**2).sum(1)
        spread = total * second - first**2
        alone = spread < 1e-9 * total**2  # one point has no line
        line = second[:, None] * (weight @ values[near]) - first[:, None] * ((weight * distance) @ values[near])
        result[own] = np.where(alone[:, None], values[own], line / np.where(alone, 1.0, spread)[:, None])
    return result


def _interpolate(times_us: Ints, known_us: Ints, values: Floats) -> Floats:
    """Values [T, 4] interpolated between known times, and constant outside."""
    return np.stack([np.interp(times_us, known_us, column) for column in values.T], 1)


def _to_values(boxes: NDArray[np.float32]) -> Floats:
    """[N, 4] xyxy → centre, and logarithms of width and height."""
    low, high = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    return np.concatenate([(low + high) / 2, np.log(np.maximum(high - low, MIN_SIDE))], 1)


def _to_boxes(values: Floats) -> NDArray[np.float32]:
    half = np.exp(values[:, 2:]) / 2
    return np.concatenate([values[:, :2] - half, values[:, :2] + half], 1).astype(np.float32)
