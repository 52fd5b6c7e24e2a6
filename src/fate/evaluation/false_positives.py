"""False positives per minute: in labelled frames, and at rest, when no object is in view.

AP hardly changes with false positives in empty scenes, because frames without ground truth are few or left out. Two
rates count them at one score threshold, as a detector is used:

- *in labelled frames*: predictions without a match (an IoU of 0.5 or more with an unmatched ground truth of their
  class), per frame, times the number of frames in a minute.
- *at rest*: all predictions in spans without objects, per minute. A span is a run of labelled times without any box
  (before the filters of the protocol), at most a second apart; predictions after its first and up to its last time
  count. Its duration is one hop for each prediction time in it, or the whole span if the predictions cannot list times
  without boxes (Prophesee's arrays).

A persistent false positive counts once for each prediction, so ten times as often at 200 Hz as at 20 Hz. The share of
frames with a false positive does not grow with the rate in this way, and is reported too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import assign_to_truth, is_duplicate
from fate.evaluation.calibration import Matches
from fate.evaluation.labelled_frames import MIN_OVERLAP, BoxTable, Frames
from fate.evaluation.protocols import Protocol
from fate.models.nms import MAX_OVERLAP

#: Nothing is known between labels further apart than this; public labels come at least once a second.
REST_GAP_US = 1_000_000

#: Boxes in frames, of ``FRAME_ROW``.
Rows: TypeAlias = "np.recarray[Any, Any]"


@dataclass(frozen=True)
class FalsePositives:
    """Counts of wrong predictions with a score of at least the threshold."""

    threshold: float  #: smallest score
    count: int  #: predictions in labelled frames without a match
    frames: int  #: times of predictions in labelled frames
    frames_with: int  #: labelled frames with at least one
    num_frames: int  #: labelled frames
    per_minute: float | None  #: count / frames · frames of a minute; None if the rate is not known
    found: int  #: predictions in labelled frames with a match
    missed: int  #: ground truth without a match
    rest_count: int  #: predictions at rest
    rest_seconds: float  #: duration of the spans without objects
    rest_frames: int  #: times of predictions in them
    rest_frames_with: int  #: those with at least one prediction
    rest_per_minute: float | None  #: None if there are no such spans or no predictions


class RestCounter:
    """Counts predictions at rest over recordings."""

    def __init__(self, protocol: Protocol, threshold: float) -> None:
        self.protocol, self.threshold = protocol, threshold
        self.count = self.frames = self.frames_with = 0
        self.duration_us = 0.0

    def add(self, truth: BoxTable, predictions: BoxTable, start_us: int = 0) -> None:
        """Add a recording that begins at ``start_us``."""
        spans = spans_at_rest(truth, start_us + self.protocol.skip_us)
        if not len(spans):
            return
        wrong = predictions.score >= max(self.threshold, self.protocol.score_floor)
        wrong &= predictions.is_large_enough(self.protocol) & (predictions.class_id >= 0)
        times = predictions.t_us[wrong]
        inside = _inside(times, spans)
        self.count += int(np.count_nonzero(inside))
        self.frames_with += len(np.unique(times[inside]))
        frames = int(np.count_nonzero(_inside(predictions.times_us, spans)))
        self.frames += frames
        if predictions.has_empty_times:
            step_us = self.protocol.hop_us
            if step_us is None:
                step_us = int(np.median(np.diff(predictions.times_us))) if len(predictions.times_us) > 1 else 0
            self.duration_us += frames * step_us
        else:
            self.duration_us += float((spans[:, 1] - spans[:, 0]).sum())


def matches(frames: Frames, num_classes: int) -> Matches:
    """Which predictions in labelled frames are right, of those that ``fate detect`` shows and that can be judged.

    Left out are duplicates, which ``fate detect`` suppresses for all heads (heads without objectness keep them in AP),
    and predictions that match no ground truth that counts, but one that is too small for the protocol: whether the
    prediction itself is above the limit is a matter of a pixel. Duplicates are found among the predictions that the
    protocol keeps, also among those on neutral boxes, clipped to the sensor; at its border and limits, a few are others
    than those of ``fate detect``. A protocol that collects the predictions of several times in a frame keeps them all.
    """
    found, kept = frames.all_predictions, ~frames.is_on_neutral
    if frames.protocol.time_rule == "nearest":
        group = found.frame * num_classes + found.class_id
        kept = kept & ~is_duplicate(group, found.xywh, found.score, MAX_OVERLAP)
    found = found[kept].view(np.recarray)
    right = _assigned(frames.truth, found, num_classes) >= 0
    unmatched: Rows = found[~right].view(np.recarray)
    is_judged = right.copy()
    is_judged[~right] = _assigned(frames.small_truth, unmatched, num_classes) < 0
    return Matches(found.score[is_judged].astype(np.float64), right[is_judged])


def _assigned(truth: Rows, found: Rows, num_classes: int) -> NDArray[np.int64]:
    """The ground truth that each prediction matches, -1 if none."""
    groups = [rows.frame * num_classes + rows.class_id for rows in (truth, found)]
    return assign_to_truth(groups[0], truth.xywh, groups[1], found.xywh, found.score, MIN_OVERLAP)


def false_positives(frames: Frames, rest: RestCounter, num_classes: int) -> FalsePositives:
    """Count false positives in labelled frames, and combine them with those at rest."""
    threshold, protocol = rest.threshold, rest.protocol
    truth, found = frames.truth, frames.predictions
    found = found[found.score >= max(threshold, protocol.score_floor)]
    wrong = _assigned(truth, found, num_classes) < 0
    count = int(np.count_nonzero(wrong))
    step_us = protocol.hop_us or frames.step_us  # without a rate, the median step of the predictions
    return FalsePositives(
        threshold=threshold,
        count=count,
        frames=frames.num_times,
        frames_with=len(np.unique(found.frame[wrong])),
        num_frames=frames.counts.frames,
        per_minute=count / frames.num_times * 60e6 / step_us if frames.num_times and step_us else None,
        found=len(found) - count,
        missed=len(truth) - (len(found) - count),
        rest_count=rest.count,
        rest_seconds=rest.duration_us / 1e6,
        rest_frames=rest.frames,
        rest_frames_with=rest.frames_with,
        rest_per_minute=rest.count / rest.duration_us * 60e6 if rest.duration_us else None,
    )


def spans_at_rest(truth: BoxTable, start_us: int) -> NDArray[np.int64]:
    """[S, 2] first and last time of each run of labelled times later than ``start_us`` without a single box."""
    times = truth.times_us[truth.times_us > start_us]
    empty = ~np.isin(times, truth.t_us)
    # an interval between two labels is at rest where both are empty and close together
    quiet = empty[1:] & empty[:-1] & (np.diff(times) <= REST_GAP_US)
    edges = np.diff(np.concatenate([[0], quiet.astype(np.int8), [0]]))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return np.stack([times[first], times[last]], axis=1) if len(first) else np.zeros((0, 2), np.int64)


def _inside(times_us: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N] whether a time lies in (first, last] of one of the spans [S, 2], which are disjoint and sorted."""
    index = np.searchsorted(spans[:, 0], times_us, "left") - 1
    return np.asarray((index >= 0) & (times_us <= spans[np.maximum(index, 0), 1]))
