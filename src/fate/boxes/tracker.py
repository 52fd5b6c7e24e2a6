"""SORT: detections of one time after another get the number of the object they belong to.

A Kalman filter (``kalman.py``) says where each track's box should be now; the Hungarian method pairs tracks and
detections of one class so that the sum of their overlaps is largest, no pair overlapping by less than ``min_overlap``.
What is left over begins a track; a track that has not been seen for ``max_age_us`` ends. Nothing looks ahead, so the
same tracker serves labels and live cameras. All limits are times, not numbers of frames: tracks are alike at any rate.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from fate.boxes import kalman
from fate.compiled import compiled
from fate.errors import FateError
from fate.events.window import clip_time

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: IoU of a track's expected box and a detection, from which they may be one object.
MIN_OVERLAP = 0.3
#: How long a track lives on unseen, µs: five steps of 20 Hz.
MAX_AGE_US = 250_000


class Tracker:
    """Give it the detections of one time after another.

    Example:
        >>> tracker = Tracker()
        >>> tracker.step(0, [[10, 10, 30, 40]], [0.9], [0])
        array([0])
        >>> tracker.step(5_000, [[60, 60, 80, 80], [11, 10, 31, 40]], [0.8, 0.9], [0, 0])
        array([1, 0])
    """

    def __init__(self, min_overlap: float = MIN_OVERLAP, max_age_us: int = MAX_AGE_US, begin_score: float = 0.0):
        """Args:
        min_overlap: the least IoU, above 0.
        max_age_us: how long a track lives on unseen.
        begin_score: the least score that begins a track; weaker detections may only go on with one.
        """
        if not 0 < min_overlap <= 1 or max_age_us < 0:
            raise FateError(
                f"a tracker with an overlap of {min_overlap} and an age of {max_age_us} µs was asked for; expected more"
                " than 0 up to 1, and 0 or more"
            )
        self.min_overlap, self.max_age_us, self.begin_score = float(min_overlap), int(max_age_us), float(begin_score)
        self.reset()

    def reset(self) -> None:
        """Forget everything; numbers begin at 0 again."""
        self._t_us: int | None = None
        self._next_id = 0
        self._filters = np.zeros((0, kalman.NUMBERS))
        self._ids, self._classes, self._seen_us = (np.zeros(0, np.int64) for _ in range(3))

    @property
    def track_ids(self) -> Ints:
        """The tracks that live: [M]."""
        return self._ids.copy()

    @property
    def boxes(self) -> Floats:
        """Where they are believed to be, now: [M, 4] xyxy, pixels; also of those not seen just now."""
        return kalman.boxes_of(self._filters)

    @property
    def class_ids(self) -> Ints:
        """Their classes: [M]."""
        return self._classes.copy()

    def step(self, t_us: SupportsIndex, boxes: ArrayLike, scores: ArrayLike, class_ids: ArrayLike) -> Ints:
        """The track of each detection, [N] int64; -1 where it belongs to none and is too weak to begin one.

        Args:
            t_us: when; later than the step before.
            boxes: [N, 4] xyxy, pixels.
            scores: [N].
            class_ids: [N].
        """
        now = clip_time(t_us)
        seen, strengths, classes = _detections(boxes, scores, class_ids)
        noise = 1.0
        if self._t_us is not None:
            seconds = (now - self._t_us) / 1e6
            if seconds <= 0:
                raise FateError(f"a step at {now} µs was asked for after one at {self._t_us} µs; expected a later time")
            noise = max(1.0, kalman.CANONICAL_S / seconds)
            self._forget(now)
            kalman.predict(self._filters, seconds)
        self._t_us = now
        tracks = self._associate(seen, classes)
        found = tracks >= 0
        kalman.correct(self._filters, tracks[found], seen[found], noise)
        self._seen_us[tracks[found]] = now
        ids = np.full(len(seen), -1, np.int64)
        ids[found] = self._ids[tracks[found]]
        self._begin(now, ids, seen, classes, ~found & (strengths >= self.begin_score))
        return ids

    def _associate(self, boxes: Floats, class_ids: Ints) -> Ints:
        """The row of the track that each detection belongs to, -1 for none: [N].

        Classes are settled together: pairs of two classes, or of too little overlap, are worth nothing, and a pair
        worth nothing is none. So the best pairing of all is the best of each class.
        """
        overlaps, tracks, unclear = _overlaps(
            kalman.boxes_of(self._filters), self._classes, boxes, class_ids, self.min_overlap
        )
        if unclear:
            rows, columns = linear_sum_assignment(overlaps, maximize=True)
            paired = overlaps[rows, columns] > 0
            tracks[:] = -1
            tracks[columns[paired]] = rows[paired]
        return tracks

    def _begin(self, now: int, ids: Ints, boxes: Floats, class_ids: Ints, new: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(new))
        if not count:
            return
        ids[new] = np.arange(self._next_id, self._next_id + count)
        self._next_id += count
        self._filters = np.concatenate([self._filters, kalman.begin(boxes[new])])
        self._ids = np.concatenate([self._ids, ids[new]])
        self._classes = np.concatenate([self._classes, class_ids[new]])
        self._seen_us = np.concatenate([self._seen_us, np.full(count, now, np.int64)])

    def _forget(self, now: int) -> None:
        """Tracks end that have not been seen for too long."""
        lives = now - self._seen_us <= self.max_age_us
        if not lives.all():
            self._filters, self._ids = self._filters[lives], self._ids[lives]
            self._classes, self._seen_us = self._classes[lives], self._seen_us[lives]


def _detections(boxes: Any, scores: Any, class_ids: Any) -> tuple[Floats, Floats, Ints]:
    seen = np.ascontiguousarray(boxes, np.float64)
    seen = seen.reshape(0, 4) if not seen.size else seen
    strengths, classes = np.asarray(scores, np.float64), np.asarray(class_ids, np.int64)
    if seen.ndim != 2 or seen.shape[1] != 4 or strengths.shape != seen.shape[:1] or classes.shape != seen.shape[:1]:
        raise FateError(
            f"boxes of shape {seen.shape}, scores {strengths.shape} and classes {classes.shape} were given; expected"
            " [N, 4], [N] and [N]"
        )
    if not np.isfinite(seen).all():
        raise FateError("a box with a coordinate that is not finite was given; expected pixels")
    return seen, strengths, classes


@compiled
def _overlaps(
    tracks: Floats, track_classes: Ints, boxes: Floats, class_ids: Ints, min_overlap: float
) -> tuple[Floats, Ints, bool]:
    """IoU [M, N], 0 for pairs that may not be; the track of each detection; and whether that needs settling.

    Most of the time no track and no detection has a choice, and then there is nothing to settle.
    """
    overlaps = np.zeros((len(tracks), len(boxes)))
    partner = np.full(len(boxes), -1, np.int64)
    unclear = False
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
                unclear |= choices > 0 or partner[n] >= 0
                choices += 1
                partner[n] = m
    return overlaps, partner, unclear
