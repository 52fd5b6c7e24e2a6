"""The frames of an evaluation: labelled times, the truth at each and the predictions that belong to it.

The rules are those of Prophesee's toolbox, in its order: filter truth and predictions, take every time at which truth
is left as one frame, and give it the predictions within the tolerance, so that a prediction may belong to several
frames where labels are dense. A protocol may instead keep labelled frames without truth, and take the nearest
prediction only. Rows of classes that are not evaluated make a frame, as they do in the toolbox, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fate.boxes.matching import expanded, nearest_times, rows_at, rows_within
from fate.errors import FateError
from fate.evaluation.box_tables import REASONS, BoxTable
from fate.evaluation.protocols import Protocol


@dataclass(frozen=True)
class FrameRows:
    """Boxes that belong to frames: N rows, in order of frames."""

    frame: NDArray[np.int64]  #: [N] number of the frame, from 0
    class_id: NDArray[np.int64]  #: [N]
    xywh: NDArray[np.float64]  #: [N, 4] pixels
    area: NDArray[np.float64]  #: [N] square pixels
    score: NDArray[np.float64]  #: [N]

    def __len__(self) -> int:
        return len(self.frame)

    @staticmethod
    def joined(parts: Sequence[FrameRows]) -> FrameRows:
        """One behind the other."""
        if not parts:
            none = np.zeros(0, np.int64)
            return FrameRows(none, none, np.zeros((0, 4)), np.zeros(0), np.zeros(0))
        return FrameRows(
            np.concatenate([part.frame for part in parts]),
            np.concatenate([part.class_id for part in parts]),
            np.concatenate([part.xywh for part in parts]),
            np.concatenate([part.area for part in parts]),
            np.concatenate([part.score for part in parts]),
        )


@dataclass(frozen=True)
class Frames:
    """All frames of an evaluation, and what happened on the way to them."""

    num_frames: int
    truth: FrameRows
    predictions: FrameRows
    looked: int  #: predictions' times that were looked at: at least one a frame, more where a window holds several
    several: int  #: frames that hold predictions of more than one time
    unanswered: int  #: frames to which no time of a prediction belongs
    step_us: float | None  #: median time between two predictions, µs
    num_truth: int  #: boxes given
    num_predictions: int  #: boxes given
    truth_dropped: dict[str, int]  #: boxes by reason
    predictions_dropped: dict[str, int]  #: boxes by reason


class FrameCollector:
    """Frames while recordings are added to them, one after another: none is held but for what belongs to a label."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.tolerance_us = protocol.time_tolerance_us()
        self.count = self.looked = self.several = self.unanswered = self.num_truth = self.num_predictions = 0
        self.truth: list[FrameRows] = []
        self.predictions: list[FrameRows] = []
        self.truth_dropped, self.predictions_dropped = dict.fromkeys(REASONS, 0), dict.fromkeys(REASONS, 0)
        self.steps: list[NDArray[np.int64]] = []
        self.meets = False  # whether predictions and labels of some recording share a span of time
        self.apart: tuple[int, int] | None = None  # first times of a recording in which they do not

    def add(self, truth: BoxTable, predictions: BoxTable, start_us: int = 0) -> None:
        """The next recording, which begins at ``start_us``."""
        protocol = self.protocol
        after_us = seen_after_us = start_us + protocol.skip_us
        if protocol.time_rule == "nearest":  # the first label that counts may have its prediction just before
            seen_after_us -= self.tolerance_us
        kept_truth, dropped = truth.filtered(protocol, after_us)
        kept, dropped_too = predictions.filtered(protocol, seen_after_us, protocol.score_floor)
        self.num_truth += len(truth)
        self.num_predictions += len(predictions)
        for reason in REASONS:
            self.truth_dropped[reason] += dropped[reason]
            self.predictions_dropped[reason] += dropped_too[reason]
        times = truth.times_us if protocol.count_empty else np.unique(kept_truth.t_us)
        times = times[times > after_us]
        seen_us = predictions.times_us[predictions.times_us > seen_after_us]
        if len(predictions.times_us) and len(truth.times_us):
            (first, last), (begin, end) = predictions.times_us[[0, -1]].tolist(), truth.times_us[[0, -1]].tolist()
            near = first <= end + self.tolerance_us and last >= begin - self.tolerance_us
            self.meets |= near
            self.apart = self.apart or (None if near else (first, begin))
        self.steps.append(np.diff(predictions.times_us))
        self._take(self.truth, kept_truth, *rows_at(kept_truth.t_us, times))
        self._take(self.predictions, kept, *self._belonging(seen_us, times, kept))
        self.count += len(times)

    def _belonging(
        self, seen_us: NDArray[np.int64], times: NDArray[np.int64], kept: BoxTable
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ranges of the rows of predictions that belong to each frame."""
        if self.protocol.time_rule == "window":
            first, last = rows_within(seen_us, times, self.tolerance_us)
            answers = last - first
            ranges = rows_within(kept.t_us, times, self.tolerance_us)
        else:
            nearest = nearest_times(seen_us, times, self.tolerance_us)
            answers = (nearest >= 0).astype(np.int64)
            # a frame without an answer asks for a time at which there is no row: that range is empty
            nothing = np.iinfo(np.int64).min
            wanted = np.where(nearest >= 0, seen_us[nearest] if len(seen_us) else nothing, nothing)
            ranges = rows_at(kept.t_us, wanted)
        self.looked += int(np.maximum(answers, 1).sum())
        self.several += int(np.count_nonzero(answers > 1))
        self.unanswered += int(np.count_nonzero(answers == 0))
        return ranges

    def _take(self, into: list[FrameRows], table: BoxTable, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """Rows of known classes, frame by frame."""
        frame, row = expanded(first, last)
        known = table.class_id[row] >= 0
        frame, row = frame[known], row[known]
        into.append(
            FrameRows(frame + self.count, table.class_id[row], table.xywh[row], table.area[row], table.score[row])
        )

    def frames(self) -> Frames:
        """All frames that were added."""
        if self.count and self.apart is not None and not self.meets:
            # times of another unit or origin would look like a blind detector
            prediction, label = self.apart
            raise FateError(
                f"no prediction lies in the time of the labels: the first one is at {prediction} µs, the first label "
                f"at {label} µs; expected whole microseconds from the same origin"
            )
        steps = np.concatenate(self.steps) if self.steps else np.zeros(0, np.int64)
        return Frames(
            num_frames=self.count,
            truth=FrameRows.joined(self.truth),
            predictions=FrameRows.joined(self.predictions),
            looked=self.looked,
            several=self.several,
            unanswered=self.unanswered,
            step_us=float(np.median(steps)) if len(steps) else None,
            num_truth=self.num_truth,
            num_predictions=self.num_predictions,
            truth_dropped=self.truth_dropped,
            predictions_dropped=self.predictions_dropped,
        )
