"""IoU of boxes, and the assignment of predictions to ground truth by it.

IoU is computed only for pairs of rows that share a group (such as a frame and a class), never for all boxes with all
others. Rows are sorted, so the rows of one group are a range ``[first, last)``; :func:`expand_ranges` lists the members
of many ranges without a loop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def iou(left: Floats, right: Floats) -> Floats:
    """IoU of boxes [..., 4] (x, y, width, height) with boxes of the same or a broadcast shape; 0 without any area."""
    shared = intersection(left, right)
    union = left[..., 2] * left[..., 3] + right[..., 2] * right[..., 3] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0))


def intersection(left: Floats, right: Floats) -> Floats:
    """Common area of boxes [..., 4] (x, y, width, height) with boxes of the same or a broadcast shape."""
    corner = np.maximum(left[..., :2], right[..., :2])
    size = np.minimum(left[..., :2] + left[..., 2:], right[..., :2] + right[..., 2:]) - corner
    return np.where((size > 0).all(axis=-1), size[..., 0] * size[..., 1], 0.0)


def xywh_of(xyxy: NDArray[np.floating]) -> Floats:
    """Boxes [..., 4] (x1, y1, x2, y2) as (x, y, width, height) in float64."""
    corners = xyxy.astype(np.float64)
    return np.concatenate([corners[..., :2], corners[..., 2:] - corners[..., :2]], axis=-1)


def expand_ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return the members of G ranges ``[first, last)``, concatenated: index of the range [P], and member [P]."""
    counts = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(first), dtype=np.int64), counts)
    before = np.cumsum(counts) - counts
    return which, np.arange(len(which), dtype=np.int64) - before[which] + first[which]


def find_rows(sorted_values: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the range of sorted values [N] between ``low`` and ``high`` [G], both included: first [G], last [G]."""
    first = np.searchsorted(sorted_values, low, "left").astype(np.int64)
    return first, np.searchsorted(sorted_values, high, "right").astype(np.int64)


def pairs_of_groups(left_group: Ints, right_group: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of rows of one group: rows on the left [P], in order, and rows on the right [P]."""
    order = np.argsort(right_group, kind="stable")
    left, index = expand_ranges(*find_rows(right_group[order], left_group, left_group))
    return left, order[index].astype(np.int64)


def assign_to_truth(
    truth_group: Ints, truth_xywh: Floats, group: Ints, xywh: Floats, score: Floats, min_overlap: float = 0.5
) -> Ints:
    """Assign each prediction [N] to a ground truth by COCO's rule at one threshold: its index, or -1 for none.

    Predictions are assigned from the highest score down (the first given wins a tie); each takes the ground truth of
    its group with the largest IoU among those not yet taken, if that is at least ``min_overlap``. Groups, [M] and [N],
    are frame and class in one number; boxes, [M, 4] and [N, 4], are in pixels.
    """
    ranked = np.argsort(-score, kind="stable")
    left, right = pairs_of_groups(group[ranked], truth_group)
    overlap = iou(xywh[ranked][left], truth_xywh[right])
    enough = overlap >= min(min_overlap, 1 - 1e-10)  # COCO's: a perfect box counts at a threshold of 1
    left, right, overlap = left[enough], right[enough], overlap[enough]
    # the best first; among equals the last one given, as in COCO
    order = np.lexsort((-right, -overlap, left))
    taken = np.zeros(len(truth_group), np.bool_)
    assigned = np.full(len(group), -1, np.int64)
    done = -1
    for prediction, truth in zip(left[order].tolist(), right[order].tolist(), strict=True):
        if prediction != done and not taken[truth]:
            taken[truth] = True
            assigned[ranked[prediction]] = truth
            done = prediction
    return assigned


def is_duplicate(group: Ints, xywh: Floats, score: Floats, max_overlap: float) -> NDArray[np.bool_]:
    """[N] whether a prediction overlaps a better one of its group by more than an IoU (greedy NMS).

    A duplicate suppresses no other prediction; the first given wins a tie.
    """
    order = np.lexsort((-score, group))
    duplicate = np.zeros(len(group), np.bool_)
    first = np.searchsorted(group[order], np.unique(group))
    ends = np.append(first, len(group)).astype(np.int64)
    _find_duplicates(ends, np.ascontiguousarray(xywh[order], np.float64), max_overlap, order, duplicate)
    return duplicate


@compiled
def _find_duplicates(ends: Ints, xywh: Floats, max_overlap: float, order: Ints, duplicate: NDArray[np.bool_]) -> None:
    """Mark duplicates, in place: the rows of group g are ``ends[g]`` to ``ends[g + 1]``, best first."""
    for g in range(len(ends) - 1):
        for worse in range(ends[g] + 1, ends[g + 1]):
            x, y, width, height = xywh[worse, 0], xywh[worse, 1], xywh[worse, 2], xywh[worse, 3]
            for better in range(ends[g], worse):
                if duplicate[order[better]]:
                    continue
                left, top, other_width, other_height = (
                    xywh[better, 0],
                    xywh[better, 1],
                    xywh[better, 2],
                    xywh[better, 3],
                )
                across = min(x + width, left + other_width) - max(x, left)
                down = min(y + height, top + other_height) - max(y, top)
                common = max(across, 0.0) * max(down, 0.0)
                if common > max_overlap * (width * height + other_width * other_height - common):
                    duplicate[order[worse]] = True
                    break
