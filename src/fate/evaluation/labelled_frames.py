"""The frames of an evaluation: labelled times, each with its ground truth and the predictions that belong to it.

The rules are those of Prophesee's toolbox, in its order: filter ground truth and predictions, make a frame of every
time with ground truth left, and give it all predictions within the tolerance. (One may belong to several frames.) A
protocol may instead keep labelled frames without ground truth, and take only the nearest prediction. For predictions
at a known rate, only labelled times at which a window ends are frames (:func:`times_at_window_ends`). As in the
toolbox, rows of classes that are not evaluated make a frame and nothing else.

Predictions on neutral boxes (:mod:`fate.boxes.labels`) are in no frame: those that match no ground truth of their class
with an IoU of 0.5 or more, in order of falling score, and of which at least half lies in a neutral box. So no metric
counts them, neither as right nor as wrong.

Metrics are decided at thresholds, so rounding to float32 must not change sizes: a width of 32 pixels from two rounded
corners may be 31.99999 and fall into another size class. A :class:`BoxTable` therefore has x, y, width and height in
float64. Prophesee's arrays hold widths and are taken as they are, which gives all digits of the toolbox; a size from
the corners of ``Labels`` is rounded to eighths of a pixel if it is as near to one as float32 allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import assign_to_truth, expand_ranges, find_rows, intersection, pairs_of_groups
from fate.boxes.labels import NEUTRAL_SHARE, Labels
from fate.boxes.prophesee import time_and_score_fields
from fate.data.class_maps import class_map, plain
from fate.errors import FateError, list_names
from fate.evaluation.protocols import Protocol

#: The boxes of one recording: labels, or a structured array with the fields of a ``_bbox.npy``.
BoxesLike: TypeAlias = Labels | NDArray[Any]

#: Why a box was dropped, in the order in which the reasons are checked.
REASONS = {
    "early": "in the skipped start",
    "low score": "below the score floor",
    "small": "below the limits of size",
    "unknown class": "of a class that is not evaluated",
}

#: Smallest IoU of a prediction with the object that it matches.
MIN_OVERLAP = 0.5

_PARTS = 8  # sizes are rounded to eighths of a pixel: limits are whole numbers, and resolutions may be halved twice


@dataclass(frozen=True)
class BoxTable:
    """N boxes of one recording, sorted by time, at some of L times."""

    t_us: NDArray[np.int64]  #: [N]
    xywh: NDArray[np.float64]  #: [N, 4] left, top, width, height in pixels
    area: NDArray[np.float64]  #: [N] square pixels
    class_id: NDArray[np.int64]  #: [N] into the classes of the evaluation; -1 for a class that is not among them
    score: NDArray[np.float64]  #: [N]
    times_us: NDArray[np.int64]  #: [L] sorted, distinct; holds every time of a row
    has_empty_times: bool  #: whether ``times_us`` lists times without a box; structured arrays cannot
    is_neutral: NDArray[np.bool_]  #: [N] whether a box of ground truth is neutral; its class is -1

    def __len__(self) -> int:
        return len(self.t_us)

    def is_large_enough(self, protocol: Protocol) -> NDArray[np.bool_]:
        """[N] whether a box passes the protocol's limits of size."""
        width, height = self.xywh[:, 2:].T
        side = (width >= protocol.min_side) & (height >= protocol.min_side)
        # squared in float32, as the toolbox does: at the very limit the digits decide
        squared = width.astype(np.float32) ** 2 + height.astype(np.float32) ** 2
        return np.asarray(side & (squared >= np.float32(protocol.min_diagonal**2)))

    def filtered(self, protocol: Protocol, after_us: int, floor: float = 0.0) -> tuple[BoxTable, dict[str, int]]:
        """The rows later than ``after_us`` that count, and how many were dropped for each of ``REASONS``.

        A row is dropped for one reason. Rows of an unknown class stay: their times are frames of the evaluation.
        Neutral boxes are in no count.
        """
        early = self.t_us <= after_us
        low = ~early & (self.score < floor)
        small = ~early & ~low & ~self.is_large_enough(protocol)
        kept = ~(early | low | small)
        counts = (early, low, small, kept & (self.class_id < 0))
        counted = ~self.is_neutral
        dropped = {reason: int(np.count_nonzero(rows & counted)) for reason, rows in zip(REASONS, counts, strict=True)}
        return self._select(kept), dropped

    def select_too_small(self, protocol: Protocol, after_us: int) -> BoxTable:
        """The rows later than ``after_us`` that are dropped for their size alone."""
        return self._select((self.t_us > after_us) & ~self.is_large_enough(protocol))

    def select_neutral(self, after_us: int) -> BoxTable:
        """The neutral boxes later than ``after_us``, of any size."""
        return self._select((self.t_us > after_us) & self.is_neutral)

    def _select(self, rows: NDArray[np.bool_]) -> BoxTable:
        names = ("t_us", "xywh", "area", "class_id", "score", "is_neutral")
        columns = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **columns)


def box_table(boxes: BoxesLike, classes: Sequence[str], whose: str) -> BoxTable:
    """The boxes of one recording as a table; labels with class names are matched by name.

    An error calls the boxes ``whose``, such as ``"predictions of drive_3"``.
    """
    if isinstance(boxes, Labels):
        return _from_labels(boxes, classes, whose)
    if isinstance(boxes, np.ndarray) and boxes.dtype.names is not None and boxes.ndim == 1:
        return _from_array(boxes, len(classes), whose)
    raise FateError(f"{whose}: {type(boxes).__name__} was given; expected Labels or a structured array of boxes")


def _from_labels(labels: Labels, classes: Sequence[str], whose: str) -> BoxTable:
    if labels.classes is not None and not {*map(plain, labels.classes)} & {*map(plain, classes)}:
        raise FateError(
            f"{whose}: classes {list_names(labels.classes)} were given; expected some of {', '.join(classes)};"
            " rename them"
        )
    class_ids, _ = class_map(classes).ids_of(labels)
    is_neutral = class_ids == len(classes)
    corners = labels.boxes
    left_top, right_bottom = corners[:, :2].astype(np.float64), corners[:, 2:].astype(np.float64)
    size = right_bottom - left_top
    rounding = np.spacing(np.maximum(np.abs(corners[:, :2]), np.abs(corners[:, 2:])))
    simple = np.rint(size * _PARTS) / _PARTS
    size = np.where(np.abs(size - simple) <= rounding, simple, size)
    return BoxTable(
        labels.t_us,
        np.concatenate([left_top, size], axis=1),
        size[:, 0] * size[:, 1],
        np.where(is_neutral, -1, class_ids).astype(np.int64),
        labels.score.astype(np.float64),
        labels.labelled_us,
        has_empty_times=True,
        is_neutral=is_neutral,
    )


def _from_array(array: NDArray[Any], num_classes: int, whose: str) -> BoxTable:
    try:
        time, score = time_and_score_fields(array.dtype.names or ())
    except FateError as error:
        raise FateError(f"{whose}: {error}") from error
    times = array[time]
    if len(array) and times.dtype.kind not in "iu":
        raise FateError(f"{whose}: times of dtype {times.dtype} were given; expected whole microseconds")
    order = np.argsort(times, kind="stable")
    rows = array[order]
    # in float32, which the toolbox computes in
    sides = [rows[name].astype(np.float32) for name in ("x", "y", "w", "h")]
    xywh = np.stack(sides, axis=1).astype(np.float64)
    scores = np.ones(len(rows)) if score is None else rows[score].astype(np.float64)
    bad = ~(np.isfinite(xywh).all(axis=1) & np.isfinite(scores))
    if bad.any():
        raise FateError(f"{whose}: row {int(order[np.argmax(bad)])} holds a box or score that is no finite number")
    ids = rows["class_id"].astype(np.int64)
    sorted_us = times[order].astype(np.int64)
    return BoxTable(
        sorted_us,
        xywh,
        (sides[2] * sides[3]).astype(np.float64),
        np.where(ids < num_classes, ids, -1),
        scores,
        np.unique(sorted_us),
        has_empty_times=False,
        is_neutral=np.zeros(len(rows), np.bool_),
    )


#: A box that belongs to a frame: index of the frame, class, left, top, width and height in pixels, area, score.
FRAME_ROW = np.dtype([("frame", "i8"), ("class_id", "i8"), ("xywh", "f8", 4), ("area", "f8"), ("score", "f8")])


@dataclass
class FrameCounts:
    """The numbers of recordings, frames and boxes of an evaluation."""

    recordings: int = 0
    labelled: int = 0  #: labelled times after the skipped start, whether or not a window ends at them
    frames: int = 0  #: labelled times that were evaluated: those at which a window ends
    truth: int = 0  #: boxes of ground truth in the frames
    predictions: int = 0  #: predictions in the frames; one that belongs to two frames counts twice
    truth_by_class: dict[str, int] = field(default_factory=dict)
    predictions_by_class: dict[str, int] = field(default_factory=dict)
    given_truth: int = 0  #: boxes before anything was dropped
    given_predictions: int = 0
    truth_dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))  #: boxes by reason
    predictions_dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))


class Frames:
    """All frames of an evaluation, added one recording after another; only boxes that belong to a frame are kept."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol, self.tolerance_us = protocol, protocol.time_tolerance_us()
        self.counts = FrameCounts()
        self.num_times = 0  #: times of predictions in the frames: at least one a frame, more if a window holds several
        self.num_several = 0  #: frames with predictions of more than one time
        self.num_unanswered = 0  #: frames without any time of predictions
        self._truth: list[NDArray[np.void]] = []
        self._small: list[NDArray[np.void]] = []
        self._neutral: list[NDArray[np.void]] = []
        self._predictions: list[NDArray[np.void]] = []
        self._steps: list[NDArray[np.int64]] = []
        self._spans_meet = False  # whether predictions and labels of some recording share a span of time
        self._apart: tuple[int, int] | None = None  # first times of a recording whose spans do not meet
        self._distances: list[int] = []  # least distance of a labelled time from the end of a window, by recording

    @cached_property
    def truth(self) -> np.recarray[Any, Any]:
        """Ground truth of all frames, [N] of ``FRAME_ROW``; read it after the last recording was added."""
        return np.concatenate([np.zeros(0, FRAME_ROW), *self._truth]).view(np.recarray)

    @cached_property
    def small_truth(self) -> np.recarray[Any, Any]:
        """Objects in the frames that are too small to count, [N] of ``FRAME_ROW``; one box on each is no error."""
        return np.concatenate([np.zeros(0, FRAME_ROW), *self._small]).view(np.recarray)

    @cached_property
    def predictions(self) -> np.recarray[Any, Any]:
        """Predictions of all frames but those on neutral boxes, [N] of ``FRAME_ROW``.

        Read them after the last recording was added.
        """
        return self.all_predictions[~self.is_on_neutral].view(np.recarray)

    @cached_property
    def all_predictions(self) -> np.recarray[Any, Any]:
        """Predictions of all frames, [M] of ``FRAME_ROW``."""
        return np.concatenate([np.zeros(0, FRAME_ROW), *self._predictions]).view(np.recarray)

    @cached_property
    def is_on_neutral(self) -> NDArray[np.bool_]:
        """[M] whether each of all predictions is on a neutral box, and is left out."""
        neutral = np.concatenate([np.zeros(0, FRAME_ROW), *self._neutral]).view(np.recarray)
        if not len(neutral):
            return np.zeros(len(self.all_predictions), np.bool_)
        return _lie_in_neutral(self.all_predictions, neutral, self.truth)

    @property
    def num_neutral(self) -> int:
        """Predictions on neutral boxes, which are left out."""
        return int(np.count_nonzero(self.is_on_neutral))

    @property
    def step_us(self) -> float | None:
        """Median time between two predictions, µs; None if there are no two."""
        steps = np.concatenate([np.zeros(0, np.int64), *self._steps])
        return float(np.median(steps)) if len(steps) else None

    def add(
        self,
        truth: BoxTable,
        predictions: BoxTable,
        start_us: int = 0,
        times_us: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a recording that begins at ``start_us``; only at the labelled ``times_us``, if given."""
        protocol, counts = self.protocol, self.counts
        after_us = seen_after_us = start_us + protocol.skip_us
        if protocol.time_rule == "nearest":  # the first label that counts may have its prediction just before
            seen_after_us -= self.tolerance_us
        kept_truth, dropped = truth.filtered(protocol, after_us)
        kept, dropped_too = predictions.filtered(protocol, seen_after_us, protocol.score_floor)
        counts.given_truth += int(np.count_nonzero(~truth.is_neutral))
        counts.given_predictions += len(predictions)
        for reason in REASONS:
            counts.truth_dropped[reason] += dropped[reason]
            counts.predictions_dropped[reason] += dropped_too[reason]
        times = truth.times_us if protocol.count_empty else np.unique(kept_truth.t_us)
        times = times[times > after_us]
        counts.labelled += len(times)
        times = times if times_us is None else times[np.isin(times, times_us)]
        if protocol.time_rule == "nearest" and protocol.hop_us is not None:
            times, distance = times_at_window_ends(times, predictions.times_us, protocol.hop_us, self.tolerance_us)
            self._distances += [] if distance is None else [distance]
        seen_us = predictions.times_us[predictions.times_us > seen_after_us]
        if len(predictions.times_us) and len(truth.times_us):
            (first, last), (begin, end) = predictions.times_us[[0, -1]].tolist(), truth.times_us[[0, -1]].tolist()
            near = first <= end + self.tolerance_us and last >= begin - self.tolerance_us
            self._spans_meet |= near
            self._apart = self._apart or (None if near else (first, begin))
        self._steps.append(np.diff(predictions.times_us))
        self._truth.append(self._rows(kept_truth, *find_rows(kept_truth.t_us, times, times)))
        small = truth.select_too_small(protocol, after_us)
        self._small.append(self._rows(small, *find_rows(small.t_us, times, times)))
        neutral = truth.select_neutral(after_us)
        neutral = replace(neutral, class_id=np.zeros(len(neutral), np.int64))  # as if known: their class has no meaning
        self._neutral.append(self._rows(neutral, *find_rows(neutral.t_us, times, times)))
        self._predictions.append(self._rows(kept, *self._prediction_rows(seen_us, times, kept)))
        counts.frames += len(times)

    def _prediction_rows(
        self, seen_us: NDArray[np.int64], times: NDArray[np.int64], kept: BoxTable
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ranges of the rows of predictions that belong to each frame: first, last."""
        if self.protocol.time_rule == "window":
            low, high = times - self.tolerance_us, times + self.tolerance_us
            first, last = find_rows(seen_us, low, high)
            answers = last - first
            rows = find_rows(kept.t_us, low, high)
        else:
            nearest = nearest_times(seen_us, times, self.tolerance_us)
            answers = (nearest >= 0).astype(np.int64)
            no_time = np.iinfo(np.int64).min  # has no rows
            requested = np.where(nearest >= 0, seen_us[nearest] if len(seen_us) else no_time, no_time)
            rows = find_rows(kept.t_us, requested, requested)
        self.num_times += int(np.maximum(answers, 1).sum())
        self.num_several += int(np.count_nonzero(answers > 1))
        self.num_unanswered += int(np.count_nonzero(answers == 0))
        return rows

    def _rows(self, table: BoxTable, first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.void]:
        """The rows of known classes in the range of each frame, as ``FRAME_ROW``."""
        frame, row = expand_ranges(first, last)
        known = table.class_id[row] >= 0
        rows = np.zeros(np.count_nonzero(known), FRAME_ROW)
        rows["frame"] = frame[known] + self.counts.frames
        for name in ("class_id", "xywh", "area", "score"):
            rows[name] = getattr(table, name)[row[known]]
        return rows

    def check_times(self) -> None:
        """Refuse predictions whose times never meet those of the labels."""
        if self.counts.labelled and self._apart is not None and not self._spans_meet:
            prediction, label = self._apart
            raise FateError(
                f"no prediction lies in the time of the labels: the first one is at {prediction} µs, the first label "
                f"at {label} µs; expected whole microseconds from the same origin"
            )
        if self.counts.labelled and not self.counts.frames and self._distances:
            raise FateError(
                f"no label lies within {self.tolerance_us / 1000:g} ms of the end of a window; the nearest one is"
                f" {min(self._distances) / 1000:g} ms away; make predictions at the times of the labels, or allow more"
                " with label_tolerance_us=5000"
            )


def _lie_in_neutral(
    found: np.recarray[Any, Any], neutral: np.recarray[Any, Any], truth: np.recarray[Any, Any]
) -> NDArray[np.bool_]:
    """[N] whether each prediction matches no ground truth and lies in a neutral box of its frame, by half or more."""
    inside = np.zeros(len(found), np.bool_)
    left, right = pairs_of_groups(found.frame, neutral.frame)
    share = intersection(found.xywh[left], neutral.xywh[right]) / np.maximum(found.area[left], np.finfo(float).tiny)
    inside[left[share >= NEUTRAL_SHARE]] = True
    classes = 1 + max(int(rows.class_id.max(initial=0)) for rows in (found, truth))
    groups = [rows.frame * classes + rows.class_id for rows in (truth, found)]
    matched = assign_to_truth(groups[0], truth.xywh, groups[1], found.xywh, found.score, MIN_OVERLAP) >= 0
    return inside & ~matched


def times_at_window_ends(
    labelled_us: NDArray[np.int64], ends_us: NDArray[np.int64], hop_us: int, tolerance_us: int
) -> tuple[NDArray[np.int64], int | None]:
    """The labelled times at which a window ends, within the tolerance; of several at one end, the nearest.

    Windows end at ``ends_us`` [W], and a whole number of hops away from the nearest of these: a detector that leaves
    out windows does not leave out their labels. Also returns the least distance of a labelled time from the end of a
    window, µs. Without any prediction, all labelled times are returned, and None.
    """
    if not len(labelled_us) or not len(ends_us):
        return labelled_us, None
    nearest = ends_us[nearest_times(ends_us, labelled_us, np.iinfo(np.int64).max)]
    left_out = nearest + (labelled_us - nearest + hop_us // 2) // hop_us * hop_us
    end = np.where(np.abs(labelled_us - nearest) <= tolerance_us, nearest, left_out)
    distance = np.abs(labelled_us - end)
    order = np.lexsort((distance, end))
    first = np.ones(len(order), bool)
    first[1:] = end[order][1:] != end[order][:-1]
    chosen = order[first]
    return np.sort(labelled_us[chosen[distance[chosen] <= tolerance_us]]), int(distance.min())


def nearest_times(times_us: NDArray[np.int64], requested_us: NDArray[np.int64], tolerance_us: int) -> NDArray[np.int64]:
    """The index of the nearest of ``times_us`` [N] for each of ``requested_us`` [G]; -1 if none is near enough.

    Times are sorted and distinct. Of two equally near ones the earlier is taken: it contains less of what comes after
    the label.
    """
    if not len(times_us):
        return np.full(len(requested_us), -1, np.int64)
    after = np.searchsorted(times_us, requested_us, "left")
    before = np.maximum(after - 1, 0)
    after = np.minimum(after, len(times_us) - 1)
    to_before, to_after = np.abs(requested_us - times_us[before]), np.abs(times_us[after] - requested_us)
    nearest = np.where(to_before <= to_after, before, after).astype(np.int64)
    nearest[np.minimum(to_before, to_after) > tolerance_us] = -1
    return nearest
