"""Fits the calibration of scores to matches with ground truth; ``inference.score_calibration`` applies it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from fate.errors import FateError
from fate.inference.score_calibration import ScoreCalibration

#: Precision on validation data that the default threshold gives.
PRECISION = 0.9
#: Groups with equally many right predictions that the curve is fitted to, and the fewest predictions that this needs.
GROUPS, FEWEST = 20, 200
#: Smallest rise of a chance over all confidences together, so that the order of boxes stays.
RISE = 1e-3
#: Groups of confidences in a reliability curve.
BINS = 10


class Matches(NamedTuple):
    """N predictions in labelled frames that can be judged, without duplicates; see ``false_positives.matches``."""

    confidence: NDArray[np.float64]  #: [N]
    right: NDArray[np.bool_]  #: [N] whether it matched ground truth of its class with an IoU ≥ 0.5

    def reliability(self) -> list[tuple[float, float, int]]:
        """Mean confidence, share that is right, and number of predictions, in tenths of confidence that hold any."""
        tenth = np.minimum((self.confidence * BINS).astype(np.int64), BINS - 1)
        members = [tenth == index for index in range(BINS)]
        return [
            (float(self.confidence[own].mean()), float(self.right[own].mean()), int(own.sum()))
            for own in members
            if own.any()
        ]


def fit_calibration(parts: Sequence[Matches]) -> tuple[ScoreCalibration, str]:
    """The calibration for predictions of several rates together, and a sentence about its threshold.

    The threshold is the lowest one from which on a share of ``PRECISION`` of the predictions is right.
    """
    confidence, right = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(right) < FEWEST or not right.any() or right.all():
        raise FateError(
            f"{len(right)} predictions, {int(right.sum())} of them right, cannot calibrate scores; expected {FEWEST} or"
            " more, right and wrong ones: give more validation data, or train for longer"
        )
    order = np.argsort(-confidence, kind="stable")
    confidence, right = confidence[order], right[order]
    found = np.cumsum(right)
    ends = np.unique(np.searchsorted(found, np.linspace(0, found[-1], GROUPS + 1)[1:-1]) + 1)  # most are wrong and low
    groups = [group for group in np.split(np.arange(len(right)), ends) if len(group)][::-1]  # rising
    middle = np.array([confidence[group].mean() for group in groups])
    share = isotonic_regression([right[group].mean() for group in groups], weights=[len(group) for group in groups]).x
    middle, first = np.unique(middle, return_index=True)
    knots = np.concatenate([[0.0], middle[(middle > 0) & (middle < 1)], [1.0]])
    chances = np.interp(knots, middle, share[first])
    chances[0] = 0.0
    chances = (1 - RISE) * np.clip(chances, 0, 1) + RISE * knots
    precision = found / np.arange(1, len(right) + 1)
    reached = np.flatnonzero(precision >= PRECISION)
    last = int(reached[-1]) if len(reached) else int(np.argmax(precision))
    fitted = ScoreCalibration(tuple(knots.tolist()), tuple(chances.tolist()))
    threshold = round(float(fitted(confidence[last : last + 1])[0]), 6)
    said = f"threshold {threshold:.3f}: precision {precision[last]:.2f} in {len(right)} predictions"
    if not len(reached):
        said += f"; {PRECISION:g} is reached nowhere"
    return ScoreCalibration(fitted.confidences, fitted.chances, threshold), said
