"""False positives per minute: of the frames that are labelled, and at rest, where nothing is to be seen at all.

AP hardly feels a detector that sees ghosts in empty streets, because frames without truth are few or left out. A driver
does. Two figures, both at one score threshold, the way a detector is used:

- *in labelled frames*: predictions that find no truth (IoU below 0.5 with any free one of their class), per frame and
  per minute. Labelled frames are a sample of all: per minute is per frame times the frames of a minute.
- *at rest*: all predictions in stretches in which truth has no object, per minute that the detector looked at them. A
  stretch is a run of labelled times without any box (before the filters of the protocol: a small car is no ghost) that
  are at most a second apart; every prediction after its first and up to its last time counts, whether labelled at that
  time or not. A detector looked as often as its predictions list a time, found or not, each for one hop; where they
  cannot list times without boxes (Prophesee's arrays), it is taken to have looked all the time.

A ghost that stays counts once for each prediction, so ten times as often at 200 Hz as at 20 Hz. The share of frames
with a false positive does not grow with the rate alone, and is given beside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import assign_to_truth
from fate.evaluation.labelled_frames import BoxTable, Frames
from fate.evaluation.protocols import Protocol

#: Labels further apart say nothing about the time between them; the public ones come once a second at least.
REST_GAP_US = 1_000_000
MIN_OVERLAP = 0.5


@dataclass(frozen=True)
class FalsePositives:
    """How many predictions above a threshold are wrong."""

    threshold: float  #: scores from this up
    count: int  #: predictions in labelled frames that find no truth
    frames: int  #: predictions' times that were looked at for them
    frames_with: int  #: labelled frames that hold at least one
    num_frames: int  #: labelled frames
    per_minute: float | None  #: count / frames · frames of a minute; None where no rate is known
    found: int  #: predictions in labelled frames that find a truth
    missed: int  #: truth that no prediction finds
    rest_count: int  #: predictions at rest
    rest_seconds: float  #: time in stretches without any object that was looked at
    rest_frames: int  #: predictions' times in them
    rest_frames_with: int  #: those that hold at least one prediction
    rest_per_minute: float | None  #: None where truth has no such stretch, or nobody looked

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class RestCounter:
    """Predictions where nothing is to be seen, summed over recordings."""

    def __init__(self, protocol: Protocol, threshold: float) -> None:
        self.protocol, self.threshold = protocol, threshold
        self.count = self.frames = self.frames_with = 0
        self.looked_us = 0.0

    def add(self, truth: BoxTable, predictions: BoxTable, start_us: int = 0) -> None:
        """The next recording, which begins at ``start_us``; the denser its truth, the surer what is at rest."""
        spans = stretches_at_rest(truth, start_us + self.protocol.skip_us)
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
            self.looked_us += frames * step_us
        else:
            self.looked_us += float((spans[:, 1] - spans[:, 0]).sum())


def false_positives(
    frames: Frames, rest: RestCounter, protocol: Protocol, num_classes: int, threshold: float
) -> FalsePositives:
    """Put the figures together.

    Args:
        frames: labelled frames with their predictions.
        rest: what was found at rest.
        protocol: for the rate of predictions; where it has none, the predictions' own median step is taken.
        num_classes: how many there are.
        threshold: scores from this up, the same as for ``rest``.
    """
    chosen = frames.predictions.score >= max(threshold, protocol.score_floor)
    group = frames.predictions.frame * num_classes + frames.predictions.class_id
    assigned = assign_to_truth(
        frames.truth.frame * num_classes + frames.truth.class_id,
        frames.truth.xywh,
        group[chosen],
        frames.predictions.xywh[chosen],
        frames.predictions.score[chosen],
        MIN_OVERLAP,
    )
    wrong = assigned < 0
    count, found = int(np.count_nonzero(wrong)), int(np.count_nonzero(~wrong))
    step_us = protocol.hop_us or frames.step_us
    return FalsePositives(
        threshold=threshold,
        count=count,
        frames=frames.num_times,
        frames_with=len(np.unique(frames.predictions.frame[chosen][wrong])),
        num_frames=frames.num_frames,
        per_minute=count / frames.num_times * 60e6 / step_us if frames.num_times and step_us else None,
        found=found,
        missed=len(frames.truth) - found,
        rest_count=rest.count,
        rest_seconds=rest.looked_us / 1e6,
        rest_frames=rest.frames,
        rest_frames_with=rest.frames_with,
        rest_per_minute=rest.count / rest.looked_us * 60e6 if rest.looked_us else None,
    )


def stretches_at_rest(truth: BoxTable, start_us: int) -> NDArray[np.int64]:
    """[S, 2] first and last time of each run of labelled times later than ``start_us`` without a single box."""
    times = truth.times_us[truth.times_us > start_us]
    empty = ~np.isin(times, truth.t_us)
    # an interval between two labels is at rest where both are empty and close together
    quiet = empty[1:] & empty[:-1] & (np.diff(times) <= REST_GAP_US)
    edges = np.diff(np.concatenate([[0], quiet.astype(np.int8), [0]]))
    first, behind = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return np.stack([times[first], times[behind]], axis=1) if len(first) else np.zeros((0, 2), np.int64)


def _inside(times_us: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N] whether a time lies in (first, last] of one of the spans [S, 2], which are apart and in order."""
    place = np.searchsorted(spans[:, 0], times_us, "left") - 1
    return np.asarray((place >= 0) & (times_us <= spans[np.maximum(place, 0), 1]))
