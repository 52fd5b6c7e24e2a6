"""Calibrated scores: what a detector reports is the chance that the box is right.

A calibration is a rising curve from confidence (objectness · class, or class for heads without objectness) to the share
of boxes of that confidence that matched an object in validation data, IoU ≥ 0.5. It comes from ``fate evaluate
--calibrate`` and is kept in the header of the weights, with the threshold that gives a precision of 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError

#: Lowest score of a detection for weights without a calibration.
THRESHOLD = 0.4


@dataclass(frozen=True)
class ScoreCalibration:
    """Piecewise linear and rising, so the order of boxes stays."""

    confidences: tuple[float, ...] = (0.0, 1.0)
    chances: tuple[float, ...] = (0.0, 1.0)  #: that a box of each confidence is right
    threshold: float = THRESHOLD  #: default lowest chance

    def __post_init__(self) -> None:
        both = np.array([self.confidences, self.chances], np.float64)
        rises = both.shape[1] >= 2 and bool((np.diff(both) > 0).all())
        if not rises or both.min() < 0 or both.max() > 1 or not 0 <= self.threshold <= 1:
            raise FateError(
                f"a calibration from {self.confidences} to {self.chances} with threshold {self.threshold} was given;"
                " expected rising numbers from 0 to 1"
            )

    def __call__(self, confidences: NDArray[Any]) -> NDArray[Any]:
        """The chance that boxes of these confidences are right, in the type of the confidences."""
        if self.chances == self.confidences:
            return confidences
        return np.asarray(np.interp(confidences, self.confidences, self.chances), confidences.dtype)

    def confidence(self, chance: float) -> float:
        """The confidence of boxes with this chance."""
        return chance if self.chances == self.confidences else float(np.interp(chance, self.chances, self.confidences))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the header of weights."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def of(card: Mapping[str, Any]) -> ScoreCalibration:
        """The calibration in the header of weights; scores stay as they are if there is none."""
        if (stated := card.get("calibration")) is None:
            return ScoreCalibration()
        return ScoreCalibration(tuple(stated["confidences"]), tuple(stated["chances"]), float(stated["threshold"]))
