"""Interpolates boxes between labelled times, on a straight line from one box of an object to the next.

``interpolate`` is the baseline for dense labels, made without any event; tracked labels must be better. It knows
nothing about objects that appear and disappear between two labelled times, nor about the time before the first and
after the last one. The exact boxes of the simulator, 5 ms apart, are brought to any time by the same function.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from fate.boxes.iou import expand_ranges, iou, xywh_of
from fate.boxes.labels import Labels, LabelSource

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Lowest IoU of the boxes of one object at neighbouring labelled times, if it has no track.
MIN_OVERLAP = 0.1


def interpolate(labels: Labels, times_us: ArrayLike) -> Labels:
    """Labels at other times.

    Boxes of two neighbouring labelled times belong to one object if track and class agree. Boxes without a track are
    paired by class so that the sum of their IoU is largest. Rows at labelled times are kept as they are; between two
    times, each pair gives a row with the lower one of its scores. Times outside the labelled span are not labelled.
    The times of the result [T] may have any order.
    """
    requested = np.unique(np.asarray(times_us, np.int64))
    known = labels.labelled_us
    if not len(known):
        return replace(labels, labelled_us=known)
    requested = requested[(requested >= known[0]) & (requested <= known[-1])]
    kept = labels.select(np.isin(labels.t_us, requested))
    first, second = pairs(labels)
    which, times = times_between(labels.t_us[first], labels.t_us[second], requested)
    first, second = first[which], second[which]
    x1, y1, x2, y2 = boxes_between(labels.t_us, labels.boxes, first, second, times).T
    made = Labels.from_unsorted(
        {
            "t_us": times, "x1": x1, "y1": y1, "x2": x2, "y2": y2, "class_id": labels.class_id[first],
            "track_id": labels.track_id[first], "score": np.minimum(labels.score[first], labels.score[second]),
            "source": np.full(len(times), LabelSource.INTERPOLATED),
        },
        labelled_us=np.setdiff1d(requested, known), classes=labels.classes, sensor=labels.sensor,
    )  # fmt: skip
    return Labels.concatenate([replace(kept, labelled_us=np.intersect1d(requested, known)), made])


def pairs(labels: Labels) -> tuple[Ints, Ints]:
    """Rows of one object at neighbouring labelled times: the earlier ones [P] and the later ones [P]."""
    frame = np.searchsorted(labels.labelled_us, labels.t_us)
    order = np.lexsort((frame, labels.class_id, labels.track_id))
    order = order[labels.track_id[order] >= 0]
    here, there = order[:-1], order[1:]
    same = (labels.track_id[here] == labels.track_id[there]) & (labels.class_id[here] == labels.class_id[there])
    same &= frame[here] + 1 == frame[there]
    found = [np.stack([here[same], there[same]])]
    without = np.flatnonzero(labels.track_id < 0)
    rows = np.split(without, np.flatnonzero(np.diff(frame[without])) + 1)
    for earlier, later in pairwise(rows):
        if frame[earlier[0]] + 1 == frame[later[0]]:
            found.append(_by_overlap(labels, earlier, later))
    first, second = np.concatenate(found, axis=1).astype(np.int64)
    return first, second


def _by_overlap(labels: Labels, earlier: Ints, later: Ints) -> Ints:
    """The best pairs among rows of two times: [2, P]."""
    worth = iou(xywh_of(labels.boxes[earlier])[:, None], xywh_of(labels.boxes[later])[None])
    same_class = labels.class_id[earlier][:, None] == labels.class_id[later][None]
    worth = np.where((worth >= MIN_OVERLAP) & same_class, worth, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    paired = worth[rows, columns] > 0
    return np.stack([earlier[rows[paired]], later[columns[paired]]])


def times_between(first_us: Ints, second_us: Ints, times_us: Ints) -> tuple[Ints, Ints]:
    """The sorted times strictly inside each of P spans, concatenated: index of the span [Q] and time [Q]."""
    start, end = np.searchsorted(times_us, first_us, "right"), np.searchsorted(times_us, second_us, "left")
    which, index = expand_ranges(start.astype(np.int64), end.astype(np.int64))
    return which, times_us[index]


def boxes_between(
    t_us: Ints, boxes: NDArray[np.float32], first: Ints, second: Ints, times_us: Ints
) -> NDArray[np.float32]:
    """Boxes [Q, 4] interpolated between rows ``first`` and ``second`` [Q] of a table, at these times [Q]."""
    before, after = t_us[first], t_us[second]
    share = ((times_us - before) / np.maximum(after - before, 1))[:, None]
    return np.asarray((1 - share) * boxes[first].astype(np.float64) + share * boxes[second], np.float32)
