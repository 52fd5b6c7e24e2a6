"""The compiled loops of ``nms`` for the CPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled, inlined

#: The least logit that a detection can have, of class and of objectness, so that most predictions need no sigmoid; the
#: least product of the two probabilities; the largest overlap; width and height of the sensor.
Limits = tuple[np.float32, np.float32, np.float32, np.float32, np.float32]


@inlined
def _sigmoid(logit: np.float32) -> np.float32:
    probability: np.float32 = np.float32(1) / (np.float32(1) + np.exp(-logit))
    return probability


@compiled
def sigmoids(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sigmoid of logits [M]."""
    found = np.empty(len(logits), np.float32)
    for m in range(len(logits)):
        found[m] = _sigmoid(logits[m])
    return found


@compiled
def choose_boxes(
    boxes: NDArray[np.float32],
    class_logits: NDArray[np.float32],
    objectness: NDArray[np.float32],
    limits: Limits,
    by_product: bool,
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """The columns of ``nms.Detections`` of a window.

    Args:
        boxes: [Q, 4], xyxy in pixels.
        class_logits, objectness: logits [Q, classes] and [Q]. A prediction that is not a number is left out.
        limits: of detections.
        by_product: whether the score is the product.
    """
    least, confidence, max_overlap, width, height = limits
    index, class_ids = np.empty(len(boxes), np.int64), np.empty(len(boxes), np.int64)
    probabilities, products = np.empty((2, len(boxes)), np.float32), np.empty(len(boxes), np.float32)
    found = 0
    for q in range(len(boxes)):
        if not objectness[q] >= least:
            continue
        best, best_class = class_logits[q, 0], 0
        for c in range(1, class_logits.shape[1]):
            here = class_logits[q, c]
            if here > best or np.isnan(here):
                best, best_class = here, c
        if not best >= least:
            continue
        score, there = _sigmoid(best), _sigmoid(objectness[q])
        if score * there >= confidence:
            index[found], class_ids[found], products[found] = q, best_class, score * there
            probabilities[0, found], probabilities[1, found] = score, there
            found += 1
    order = np.argsort(-products[:found], kind="mergesort")  # stable
    corners, ids = np.empty((1, 4, found), np.float32), np.empty((1, found), np.int32)
    for k in range(found):
        for side in range(4):
            corners[0, side, k] = boxes[index[order[k]], side]
        ids[0, k] = class_ids[order[k]]
    clipped, kept = _finish(corners, ids, max_overlap, width, height)
    chosen = order[kept]
    scores = products[chosen] if by_product else probabilities[0][chosen]
    return clipped, scores, class_ids[chosen], probabilities[1][chosen]


@compiled
def finish_rows(
    rows: NDArray[np.float32], limits: Limits, by_product: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """The columns of ``nms.Detections`` of a window, as ``choose_boxes``, of proposals that are sorted already.

    Args:
        rows: [K, 8], best first: xyxy in pixels, confidence (-1 if there is none), score, class, objectness.
        limits: of detections.
        by_product: whether the score is the confidence.
    """
    _, _, max_overlap, width, height = limits
    count = 0
    while count < len(rows) and rows[count, 4] >= 0:
        count += 1
    corners, ids = np.empty((1, 4, count), np.float32), np.empty((1, count), np.int32)
    for k in range(count):
        for side in range(4):
            corners[0, side, k] = rows[k, side]
        ids[0, k] = np.int32(rows[k, 6])
    clipped, kept = _finish(corners, ids, max_overlap, width, height)
    scores, objectness = np.empty(len(kept), np.float32), np.empty(len(kept), np.float32)
    class_ids = np.empty(len(kept), np.int64)
    for number in range(len(kept)):
        row = kept[number]
        scores[number] = rows[row, 4] if by_product else rows[row, 5]
        class_ids[number], objectness[number] = ids[0, row], rows[row, 7]
    return clipped, scores, class_ids, objectness


@compiled
def _finish(
    corners: NDArray[np.float32],
    ids: NDArray[np.int32],
    max_overlap: np.float32,
    width: np.float32,
    height: np.float32,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Suppress boxes [1, 4, K] that overlap, clip the others, and return those with area and their indices."""
    count, nothing = ids.shape[1], np.float32(0)
    areas, stays = np.empty((1, count), np.float32), np.ones((1, count), np.int32)
    for k in range(count):
        areas[0, k] = (corners[0, 2, k] - corners[0, 0, k]) * (corners[0, 3, k] - corners[0, 1, k])
    if max_overlap < np.inf:  # else no pair needs to be compared
        suppress_boxes(corners, areas, ids, max_overlap, stays)
    clipped, kept, number = np.empty((count, 4), np.float32), np.empty(count, np.int64), 0
    for k in range(count):
        left, top = min(max(corners[0, 0, k], nothing), width), min(max(corners[0, 1, k], nothing), height)
        right, bottom = min(max(corners[0, 2, k], nothing), width), min(max(corners[0, 3, k], nothing), height)
        if stays[0, k] and right > left and bottom > top:
            clipped[number, 0], clipped[number, 1], clipped[number, 2], clipped[number, 3] = left, top, right, bottom
            kept[number] = k
            number += 1
    return clipped[:number].copy(), kept[:number].copy()


@compiled
def suppress_boxes(
    corners: NDArray[np.float32],
    areas: NDArray[np.float32],
    class_ids: NDArray[np.int32],
    max_overlap: np.float32,
    stays: NDArray[np.int32],
) -> None:
    """Apply the rule of ``nms`` from the best box down, in place.

    Corners are [N, 4, K]; areas, class_ids and stays (0 or 1) are [N, K].

    Copies, slices and conditional expressions show the compiler that arrays share no memory, that no index is negative
    and that there are no branches: it then compares several boxes at once. Expressions of whole arrays would take it
    seconds. Results equal those of ``boxes`` to the bit.
    """
    nothing = np.float32(0)
    for window in range(len(stays)):
        left, top = corners[window, 0].copy(), corners[window, 1].copy()
        right, bottom = corners[window, 2].copy(), corners[window, 3].copy()
        area, ids, here = areas[window].copy(), class_ids[window].copy(), stays[window].copy()
        for best in range(len(here)):
            if not here[best]:
                continue
            x1, y1, x2, y2, own_area, own_id = left[best], top[best], right[best], bottom[best], area[best], ids[best]
            lefts, tops, rights, bottoms = left[best + 1 :], top[best + 1 :], right[best + 1 :], bottom[best + 1 :]
            other_areas, others, alive = area[best + 1 :], ids[best + 1 :], here[best + 1 :]
            for k in range(len(alive)):
                width = (x2 if x2 < rights[k] else rights[k]) - (x1 if x1 > lefts[k] else lefts[k])
                height = (y2 if y2 < bottoms[k] else bottoms[k]) - (y1 if y1 > tops[k] else tops[k])
                common = width * height
                too_much = common > max_overlap * (own_area + other_areas[k] - common)
                beaten = (width > nothing) & (height > nothing) & too_much & (others[k] == own_id)
                alive[k] &= np.int32(not beaten)
        for k in range(len(here)):
            stays[window, k] = here[k]
