"""Tracks made smooth, and bent so that they pass through the truth which confirms them.

What moves does not jump: each detection is put on the straight line that lies best among its neighbours of the track,
near ones counting most (a Gaussian of ``smooth_us``).

What a detector gets wrong about an object beyond that it gets wrong for a while: a box too wide, a little late, a roof
left out. At an annotated time the error is known: truth against the straight line from the detection before to the one
after. It is taken off the detections of the track, on a straight line between two annotated times, and as it is before
the first and after the last.

Boxes are centres, and logarithms of width and height, so that they stay boxes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Boxes are taken to be at least this large, px, where their logarithm is.
LEAST = 1e-3
#: Neighbours further off than so many ``smooth_us`` do not count.
REACH = 4
#: Detections that are smoothed at once.
CHUNK = 256


def bent(tracks: Labels, true: Bools, smooth_us: int, bend: bool = True) -> NDArray[np.float32]:
    """Boxes [N, 4] of all rows, those of detections smoothed and corrected.

    Args:
        tracks: rows with the numbers of their tracks.
        true: [N] which rows are truth.
        smooth_us: how near neighbours are; 0 to leave jitter as it is.
        bend: whether truth corrects the tracks that it confirms.
    """
    boxes = tracks.boxes.copy()
    if not len(boxes):
        return boxes
    places = _places(boxes)
    rows = np.lexsort((tracks.t_us, tracks.track_id))
    ends = np.flatnonzero(np.diff(tracks.track_id[rows])) + 1
    for part in np.split(rows, ends):
        seen, known = part[~true[part]], part[true[part]]
        if not len(seen):
            continue
        times = tracks.t_us[seen]
        path = smoothed(times, places[seen], smooth_us) if smooth_us else places[seen]
        between = (tracks.t_us[known] >= times[0]) & (tracks.t_us[known] <= times[-1])  # else no error can be told
        if bend and between.any():
            known = known[between]
            error = places[known] - _at(tracks.t_us[known], times, path)
            path = path + _at(times, tracks.t_us[known], error)
        boxes[seen] = _boxes(path)
    return boxes


def smoothed(times_us: Ints, values: Floats, smooth_us: int) -> Floats:
    """Values [T, D] of one track, each on the best straight line among its neighbours.

    Args:
        times_us: [T] increasing.
        values: [T, D].
        smooth_us: standard deviation of the weights.
    """
    result = np.empty_like(values)
    for start in range(0, len(times_us), CHUNK):
        own = slice(start, start + CHUNK)
        low, high = times_us[own][0] - REACH * smooth_us, times_us[own][-1] + REACH * smooth_us
        near = slice(*np.searchsorted(times_us, [low, high + 1]).tolist())
        away = (times_us[near] - times_us[own, None]) / smooth_us
        weight = np.exp(-0.5 * away**2)
        total, first, second = weight.sum(1), (weight * away).sum(1), (weight * away**2).sum(1)
        spread = total * second - first**2
        alone = spread < 1e-9 * total**2  # no line through one point
        line = second[:, None] * (weight @ values[near]) - first[:, None] * ((weight * away) @ values[near])
        result[own] = np.where(alone[:, None], values[own], line / np.where(alone, 1.0, spread)[:, None])
    return result


def _at(times_us: Ints, known_us: Ints, values: Floats) -> Floats:
    """Values [T, 4] on straight lines between known ones, and as the first or last outside."""
    return np.stack([np.interp(times_us, known_us, column) for column in values.T], 1)


def _places(boxes: NDArray[np.float32]) -> Floats:
    """[N, 4] xyxy → centre, and logarithms of width and height."""
    low, high = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    return np.concatenate([(low + high) / 2, np.log(np.maximum(high - low, LEAST))], 1)


def _boxes(places: Floats) -> NDArray[np.float32]:
    half = np.exp(places[:, 2:]) / 2
    return np.concatenate([places[:, :2] - half, places[:, :2] + half], 1).astype(np.float32)
