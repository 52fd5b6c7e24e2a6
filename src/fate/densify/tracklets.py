"""Makes dense labels from the detections at every time and the sparse ground truth.

1. Detections of at least ``track_score`` enter the tracker, time after time. At annotated times the ground truth enters
   instead; it *confirms* the tracks that contain one of its boxes.
2. A tracklet is kept if it has at least ``min_steps · f / 20`` rows (0.3 s at any rate) or is confirmed.
3. It is labelled from its first to its last row of ground truth or above the threshold of the class. Weaker detections
   in between count too, and gaps are filled by interpolation: the low threshold keeps tracks whole, the high one
   decides what is an object.
4. Ground truth is complete at its times: between two annotated times a tracklet counts only if one of the two confirms
   it. (This does not apply to recordings without ground truth.)
5. Tracks are smoothed, and corrected with the ground truth that confirms them (``smoothing.py``).
6. Annotated times keep their ground truth alone. All other times of the rate are labelled, also without objects.

A detection keeps its score (source ``TRACKED``). A filled gap (``INTERPOLATED``) has the score ``track_score``, since
the detector scored lower there. :func:`paper_options` gives phase 1 as the paper describes it, without these additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.boxes.tracking import MAX_AGE_US, MIN_OVERLAP, Tracker
from fate.densify.interpolation import Bools, Ints, boxes_between, times_between
from fate.densify.smoothing import smooth_tracks
from fate.errors import FateError
from fate.events.window import WindowGrid

#: Lowest score of a label, by class.
THRESHOLDS: Mapping[str, float] = {"car": 0.6, "pedestrian": 0.3, "two wheeler": 0.3}


@dataclass(frozen=True)
class TrackletOptions:
    """How detections become labels."""

    track_score: float = 0.3  #: lowest score of a detection that enters the tracker
    #: lowest score of a label, by the name of the class
    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(THRESHOLDS))
    other_threshold: float = 0.5  #: lowest score of a label of any other class
    min_overlap: float = MIN_OVERLAP  #: lowest IoU of a track and its next detection
    max_gap_us: int = MAX_AGE_US  #: longest gap in a track
    min_steps: int = 6  #: lowest number of rows of a tracklet at 20 Hz
    with_truth: bool = True  #: whether the sparse ground truth enters the tracker and confirms tracks
    smooth_us: int = 100_000  #: standard deviation of the smoothing along a track; 0 for none
    bend: bool = True  #: whether ground truth corrects the boxes of the tracks that it confirms
    filter_first: bool = False  #: whether detections below the threshold of their class are dropped before tracking
    interpolate_scores: bool = False  #: whether filled gaps have interpolated scores instead of ``track_score``

    def __post_init__(self) -> None:
        scores = {"the score of tracking": self.track_score, "the threshold of other classes": self.other_threshold}
        scores |= {f"the threshold of {name}": value for name, value in self.thresholds.items()}
        for what, value in scores.items():
            if not 0 <= value <= 1:
                raise FateError(f"{what} is {value}; expected 0 to 1")
        if self.min_steps < 1 or self.max_gap_us < 0 or self.smooth_us < 0:
            raise FateError(
                f"tracklets of {self.min_steps} steps with gaps of {self.max_gap_us} µs, smoothed over"
                f" {self.smooth_us} µs, were asked for; expected at least 1, and 0 or more"
            )

    def threshold(self, classes: Sequence[str]) -> NDArray[np.float64]:
        """The threshold of each class [classes]; at least the score of tracking."""
        found = [max(self.thresholds.get(name, self.other_threshold), self.track_score) for name in classes]
        return np.array(found, np.float64)

    def least_steps(self, hz: float) -> int:
        """Lowest number of rows of a tracklet at this rate."""
        return max(1, math.ceil(self.min_steps * hz / 20 - 1e-9))


def paper_options(thresholds: Mapping[str, float] = THRESHOLDS) -> TrackletOptions:
    """Phase 1 as in the paper's text, with these thresholds by class."""
    return TrackletOptions(
        thresholds=thresholds, with_truth=False, smooth_us=0, bend=False, filter_first=True, interpolate_scores=True
    )


def dense_labels(
    predictions: Labels, truth: Labels, grid: WindowGrid, count: int, hz: float, options: TrackletOptions
) -> Labels:
    """Labels of one recording at one rate, at all times but those that represent an annotated time.

    ``grid`` has the windows of the rate, of which the first ``count`` are labelled; ``predictions`` are at all their
    times, with scores. ``truth`` is the sparse ground truth, which may be empty.
    """
    times = grid.ends_us(count)
    unseen = np.setdiff1d(times, predictions.labelled_us)
    if len(unseen):
        raise FateError(f"predictions lack {len(unseen)} of {count} times, such as {unseen[0]} µs; sweep them first")
    taken = [number for number in grid.labelled(truth.labelled_us) if number < count]
    free = np.setdiff1d(np.delete(times, taken), truth.labelled_us)
    lowest: NDArray[np.float64] | float = options.track_score
    if options.filter_first:
        names = truth.classes or [""] * (int(predictions.class_id.max(initial=0)) + 1)
        lowest = options.threshold(names)[predictions.class_id]
    tracked = free if options.with_truth else times  # without ground truth, tracks continue at annotated times too
    seen = predictions.select((predictions.score >= lowest) & np.isin(predictions.t_us, tracked))
    seen = replace(seen, labelled_us=tracked, classes=truth.classes, sensor=truth.sensor)
    parts = [seen, replace(truth, score=np.ones_like(truth.score))] if options.with_truth else [seen]
    annotated = truth.labelled_us if options.with_truth else np.zeros(0, np.int64)
    tracks = _track(Labels.concatenate(parts), options)
    made = _make_labels(tracks, free, annotated, options, hz)
    first_id = int(truth.track_id.max(initial=-1)) + 1  # ids of the ground truth's own tracks are not used
    return replace(made, track_id=made.track_id + first_id)


def _track(labels: Labels, options: TrackletOptions) -> Labels:
    """Number the tracks; returns the same rows with track ids."""
    tracker = Tracker(options.min_overlap, options.max_gap_us)
    ends = np.searchsorted(labels.t_us, labels.labelled_us, "right")
    boxes, scores, classes = labels.boxes, labels.score, labels.class_id
    ids, start = np.full(len(labels), -1, np.int64), 0
    for time, end in zip(labels.labelled_us.tolist(), ends.tolist(), strict=True):
        ids[start:end] = tracker.step(time, boxes[start:end], scores[start:end], classes[start:end])
        start = end
    return replace(labels, track_id=ids)


def _make_labels(tracks: Labels, free_us: Ints, annotated_us: Ints, options: TrackletOptions, hz: float) -> Labels:
    """The tracklets that are kept, with filled gaps, where ground truth confirms them, at ``free_us`` only."""
    true = np.isin(tracks.t_us, annotated_us)
    rows = _kept_rows(tracks, true, options, hz)
    boxes = smooth_tracks(tracks, true, options.smooth_us, options.bend)
    follows = tracks.track_id[rows[1:]] == tracks.track_id[rows[:-1]]
    first, second = rows[:-1][follows], rows[1:][follows]
    which, times = times_between(tracks.t_us[first], tracks.t_us[second], free_us)
    first, second = first[which], second[which]
    filled = boxes_between(tracks.t_us, boxes, first, second, times)
    boxes, t_us = np.concatenate([boxes[rows], filled]), np.concatenate([tracks.t_us[rows], times])
    track, class_id = (np.concatenate([of[rows], of[first]]) for of in (tracks.track_id, tracks.class_id))
    filled_score = np.full(len(times), options.track_score)
    if options.interpolate_scores:
        share = (times - tracks.t_us[first]) / (tracks.t_us[second] - tracks.t_us[first])
        filled_score = (1 - share) * tracks.score[first] + share * tracks.score[second]
    score = np.concatenate([tracks.score[rows], filled_score])
    source = np.repeat([LabelSource.TRACKED, LabelSource.INTERPOLATED], [len(rows), len(times)])
    keep = np.isin(t_us, free_us)
    if len(annotated_us):
        keep &= _confirmed(track, t_us, annotated_us, ~keep)
    x1, y1, x2, y2 = boxes[keep].T
    columns = {"t_us": t_us, "class_id": class_id, "track_id": track, "score": score, "source": source}
    columns = {name: values[keep] for name, values in columns.items()}
    return Labels.from_unsorted(
        {**columns, "x1": x1, "y1": y1, "x2": x2, "y2": y2},
        labelled_us=free_us, classes=tracks.classes, sensor=tracks.sensor,
    )  # fmt: skip


def _kept_rows(tracks: Labels, true: Bools, options: TrackletOptions, hz: float) -> Ints:
    """Rows of the tracklets that are kept, each from its first to its last row above the threshold; track by track."""
    rows = np.lexsort((tracks.t_us, tracks.track_id))
    if not len(rows):
        return rows
    starts = np.flatnonzero(np.r_[True, np.diff(tracks.track_id[rows]) != 0])
    lengths = np.diff(np.r_[starts, len(rows)])
    names = tracks.classes or [""] * (int(tracks.class_id.max()) + 1)
    above = true | (tracks.score >= options.threshold(names)[tracks.class_id])
    index = np.arange(len(rows))
    first = np.minimum.reduceat(np.where(above[rows], index, len(rows)), starts)
    last = np.maximum.reduceat(np.where(above[rows], index, -1), starts)
    stays = (lengths >= options.least_steps(hz)) | np.logical_or.reduceat(true[rows], starts)
    of = np.repeat(np.arange(len(starts)), lengths)
    return np.asarray(rows[stays[of] & (index >= first[of]) & (index <= last[of])])


def _confirmed(track: Ints, t_us: Ints, annotated_us: Ints, true: Bools) -> Bools:
    """Rows [N] whose track has ground truth (``true``) at the annotated time before or after them."""
    tracks, number = np.unique(track, return_inverse=True)
    confirms = np.zeros((len(tracks), len(annotated_us) + 2), np.bool_)  # one more column at either end
    after = np.searchsorted(annotated_us, t_us, "left") + 1
    confirms[number[true], after[true]] = True
    return np.asarray(confirms[number, after - 1] | confirms[number, after])
