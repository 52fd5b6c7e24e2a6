"""Which prediction belongs to which label: by time, and by overlap. Arrays throughout, no loop over frames.

Rows are kept in order of time, so "the rows of this frame" is a range ``[first, last)`` of them; :func:`expanded`
turns many ranges into pairs. Overlap is computed for pairs alone, never for all boxes with all others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def expanded(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The members of G ranges ``[first, last)`` one behind the other: which range [P], and which member [P]."""
    counts = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(first), dtype=np.int64), counts)
    before = np.cumsum(counts) - counts
    return which, np.arange(len(which), dtype=np.int64) - before[which] + first[which]


def rows_at(times_us: Ints, wanted_us: Ints) -> tuple[Ints, Ints]:
    """Ranges of sorted ``times_us`` [N] that equal each of ``wanted_us`` [G]: first [G], last [G]."""
    return _range(times_us, wanted_us, wanted_us)


def rows_within(times_us: Ints, wanted_us: Ints, tolerance_us: int) -> tuple[Ints, Ints]:
    """Ranges of sorted ``times_us`` [N] at most ``tolerance_us`` from each of ``wanted_us`` [G], both ends included.

    Ranges overlap where wanted times are close together: a row may belong to several of them.
    """
    return _range(times_us, wanted_us - tolerance_us, wanted_us + tolerance_us)


def _range(times_us: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    first = np.searchsorted(times_us, low, "left").astype(np.int64)
    return first, np.searchsorted(times_us, high, "right").astype(np.int64)


def nearest_times(times_us: Ints, wanted_us: Ints, tolerance_us: int) -> Ints:
    """For each of ``wanted_us`` [G] the position of the nearest of ``times_us`` [N], -1 where none is near enough.

    Times are sorted and distinct. Between two that are equally near the earlier one is taken: it saw less of what comes
    after the label.
    """
    if not len(times_us):
        return np.full(len(wanted_us), -1, np.int64)
    after = np.searchsorted(times_us, wanted_us, "left")
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(times_us) - 1)
    to_before, to_after = np.abs(wanted_us - times_us[before]), np.abs(times_us[after] - wanted_us)
    nearest = np.where(to_before <= to_after, before, after).astype(np.int64)
    nearest[np.minimum(to_before, to_after) > tolerance_us] = -1
    return nearest


def overlap(left: Floats, right: Floats) -> Floats:
    """IoU of P pairs of boxes [P, 4] (x, y, width, height); 0 where both have no area."""
    corner = np.maximum(left[:, :2], right[:, :2])
    size = np.minimum(left[:, :2] + left[:, 2:], right[:, :2] + right[:, 2:]) - corner
    shared = np.where((size > 0).all(axis=1), size[:, 0] * size[:, 1], 0.0)
    union = left[:, 2] * left[:, 3] + right[:, 2] * right[:, 3] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros(len(shared)), where=union > 0))


def pairs_of_groups(left_group: Ints, right_group: Ints) -> tuple[Ints, Ints]:
    """All pairs of rows that are of one group: rows on the left [P], in order, and rows on the right [P]."""
    order = np.argsort(right_group, kind="stable")
    first, last = rows_at(right_group[order], left_group)
    left, place = expanded(first, last)
    return left, order[place].astype(np.int64)


def found_truth(
    truth_group: Ints, truth_xywh: Floats, group: Ints, xywh: Floats, score: Floats, min_overlap: float = 0.5
) -> Ints:
    """The truth [N] that each prediction is assigned to, -1 for none: COCO's rule at one threshold.

    Predictions take their turn from the highest score down (the first given wins a tie); each takes the truth of its
    group that it overlaps most among those still free, if that is at least ``min_overlap``.

    Args:
        truth_group: [M] what a truth belongs to: frame and class in one number.
        truth_xywh: [M, 4] pixels.
        group: [N] the same for predictions.
        xywh: [N, 4] pixels.
        score: [N].
        min_overlap: IoU that is enough.
    """
    turn = np.argsort(-score, kind="stable")
    left, right = pairs_of_groups(group[turn], truth_group)
    iou = overlap(xywh[turn][left], truth_xywh[right])
    enough = iou >= min(min_overlap, 1 - 1e-10)  # COCO's: a perfect box counts at a threshold of 1
    left, right, iou = left[enough], right[enough], iou[enough]
    # best truth first; among equals the last one given, as COCO has it
    order = np.lexsort((-right, -iou, left))
    taken = np.zeros(len(truth_group), np.bool_)
    assigned = np.full(len(group), -1, np.int64)
    done = -1
    for prediction, truth in zip(left[order].tolist(), right[order].tolist(), strict=True):
        if prediction != done and not taken[truth]:
            taken[truth] = True
            assigned[turn[prediction]] = truth
            done = prediction
    return assigned
