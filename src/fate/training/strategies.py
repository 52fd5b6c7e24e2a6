"""The paper's training strategies: which rates and labels a detector is trained with, and with which losses.

    supervised       20 Hz, the labels of the dataset
    multi_frequency  every rate of the curriculum, each label at the window that ends nearest to it
    consistency      multi_frequency and a consistency loss with a mean teacher at 20 Hz
    interpolation    every rate, labels at every window, interpolated between those of the dataset
    fat              every rate, labels at every window from detection and tracking (phase 1), and the mean teacher
    any_rate         fat with windows of any length from the hop to 50 ms; not in the paper

Each strategy is a small class that overrides what differs. The detection loss is that of the detector's head; the
weight w_v of each target is defined in ``make_targets``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fate.boxes.dense_labels import open_dense_labels
from fate.boxes.labels import Labels, LabelSource
from fate.data.clips import Grid, Timing
from fate.data.dataset import Dataset
from fate.data.loading import LabelsOf
from fate.densify.interpolation import interpolate
from fate.errors import FateError
from fate.events.window import window_us
from fate.models.detector import Detector
from fate.models.outputs import Outputs, Targets, mean_over_processes
from fate.rates import CANONICAL_US
from fate.training.config import EXACT, TrainConfig
from fate.training.consistency import consistency, select_teacher_predictions

#: Of the clips whose windows are not as long as the hop, the share whose windows are 50 ms long.
CANONICAL_SHARE = 2 / 3


@dataclass(frozen=True)
class Curriculum:
    """The paper's linear curriculum, which draws the timing of each clip (appendix, "Linear Curriculum Schedule").

        p_r(f_i) = ((1 − α_r) · 1[f_i = f_min] + α_r · w_i) / Z_r,    α_r = r / R,    w_i = i / |F|

    with r the epoch, R their number and i = 1 … |F| the index of a rate in rising order. Training starts at 20 Hz
    alone; towards the end, the probability of each rate is proportional to its index. ``first_alpha``
    and ``last_alpha`` replace the first and the last value of α, 0 and 1. It is a plain value: workers get copies.

    Windows are as long as the hop, the paper's case. With ``hop_share`` < 1 their length is drawn too, independently of
    the rate: this share of the clips has windows as long as the hop; two thirds of the others have the canonical 50 ms,
    which is what overlapping windows have at every rate; the rest lies between, evenly in the logarithm of the length.
    """

    rates: Sequence[float]  #: F in rising order, Hz
    epochs: int  #: R
    epoch_batches: int  #: batches in an epoch
    hop_share: float = 1.0  #: share of clips with windows as long as the hop; the others have hop < window ≤ 50 ms
    first_alpha: float = 0.0  #: α in the first epoch
    last_alpha: float = 1.0  #: α after the last epoch

    def probabilities(self, epoch: float) -> NDArray[np.float64]:
        """Probability p_r of every rate in epoch r, 0 to R - 1."""
        alpha = self.first_alpha + (self.last_alpha - self.first_alpha) * min(max(epoch / self.epochs, 0.0), 1.0)
        weights = np.arange(1, len(self.rates) + 1) / len(self.rates)
        lowest = np.arange(len(self.rates)) == 0
        mass = (1 - alpha) * lowest + alpha * weights
        return np.asarray(mass / mass.sum(), np.float64)

    def __call__(self, batch: int, rate_quantile: float, window_quantile: float) -> Timing:
        """The timing of one clip in the batch of that index.

        The quantiles are in [0, 1). The rate is the inverse of the cumulative p_r at the first one; the second one
        draws the length of windows.
        """
        sums = np.cumsum(self.probabilities(batch // self.epoch_batches))
        index = int(np.searchsorted(sums, rate_quantile * sums[-1], side="right"))
        hz = float(self.rates[min(index, len(self.rates) - 1)])
        if self.hop_share == 1:
            return Timing(hz)
        hop, longer = window_us(hz), 1 - self.hop_share
        if hop >= CANONICAL_US or window_quantile < CANONICAL_SHARE * longer:
            return Timing(hz, max(hop, CANONICAL_US))
        if window_quantile < CANONICAL_SHARE * longer + self.hop_share:
            return Timing(hz, hop)
        between = 1 - (1 - window_quantile) / ((1 - CANONICAL_SHARE) * longer)  # 0 to 1, even
        return Timing(hz, round(hop * (CANONICAL_US / hop) ** between))


class Strategy:
    """Train at the rates of the configuration, with the labels of the dataset: supervised and multi_frequency."""

    #: Whether the strategy has a consistency loss with a mean teacher.
    has_teacher = False
    #: Whether the length of windows is drawn too.
    any_window = False

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.settings = config, config.strategy

    @property
    def teaches(self) -> bool:
        """Whether the consistency loss is used; at a single rate teacher and student see the same windows."""
        return self.has_teacher and len(self.settings.rates) > 1 and self.settings.consistency_weight > 0

    def check(self, dataset: Dataset) -> None:
        """Refuse a dataset that the strategy cannot use, before training begins."""

    def timing(self) -> Curriculum:
        """The curriculum, which draws the rate and the window length of each clip."""
        run, settings = self.config.run, self.settings
        return Curriculum(
            self.config.rates, run.epochs, run.epoch_steps * run.accumulate,
            settings.hop_share if self.any_window else 1.0, settings.first_alpha, settings.last_alpha,
        )  # fmt: skip

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Labels by recording and rate; ``own`` are the labels of the dataset, after its rules for training."""
        return own

    def consistency(self, detector: Detector, student: Outputs, teacher: Outputs) -> dict[str, Tensor]:
        """The terms of L_cons for the N windows that both have seen, multiplied by their weight."""
        selected = select_teacher_predictions(teacher, self.settings.consistency_score)
        count = mean_over_processes(torch.full((), float(len(student.boxes)), device=student.boxes.device))
        terms = consistency(selected, student, detector.frame.padded, count)
        return {name: self.settings.consistency_weight * term for name, term in terms.items()}


class Consistency(Strategy):
    """Add a consistency loss between the student at its rate and a mean teacher at the canonical rate."""

    has_teacher = True


class Interpolation(Strategy):
    """Train at every rate, with labels at every window, interpolated linearly between labelled times."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Labels interpolated at the ends of all windows of a rate."""
        return partial(_interpolated_labels, tuple(recordings), own)


class FAT(Consistency):
    """Frequency-Aware Training: dense labels from tracking and the consistency loss."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """The dense labels of phase 1, or exact ones; at a rate without dense labels, the labels of the dataset."""
        if self.settings.labels == EXACT:
            return partial(_exact_labels, tuple(recordings))
        return partial(_dense_labels, str(self.settings.labels), tuple(recordings), own)

    def check(self, dataset: Dataset) -> None:
        """Refuse dense labels of other classes, and rates or recordings without dense labels."""
        if self.settings.labels == EXACT:
            without = [each.name for each in dataset.labelled if each.truth_file is None]
            if without:
                raise FateError(
                    f"strategy.labels = {EXACT} was given, and {len(without)} of {len(dataset.labelled)} recordings,"
                    f" such as {without[0]}, have no exact boxes, which only fate simulate makes; give a folder"
                    " of labels that fate densify has written"
                )
            return
        _opened.cache_clear()  # phase 1 may have been run again
        dense, requested = _opened(str(self.settings.labels)), self.settings.rates
        if dense.classes != dataset.classes:
            raise FateError(
                f"{dense.root}: dense labels of {', '.join(dense.classes)}, and the dataset has"
                f" {', '.join(dataset.classes)}; expected those that fate densify made of this dataset"
            )
        rates = [hz for hz in requested if hz in dense.rates or hz != requested[0]]
        pairs = [(each.name, hz) for hz in rates for each in dataset.labelled]
        missing = [(name, hz) for name, hz in pairs if hz not in dense.rates or not dense.has(name, hz)]
        if missing:
            name, hz = missing[0]
            number, more = (len({part[index] for part in missing}) for index in (0, 1))
            raise FateError(
                f"{dense.root}: has no labels of {number} of {len(dataset.labelled)} recordings at {more} of the"
                f" strategy.rates, such as {name} at {hz:g} Hz; run fate densify on this dataset again with --hz {hz:g}"
                " and all its shards, or give strategy.rates"
            )


class AnyRate(FAT):
    """FAT with window length and hop drawn separately: the student learns any combination of both."""

    any_window = True


STRATEGIES: dict[str, type[Strategy]] = {
    "supervised": Strategy,
    "multi_frequency": Strategy,
    "consistency": Consistency,
    "interpolation": Interpolation,
    "fat": FAT,
    "any_rate": AnyRate,
}


_opened = lru_cache(maxsize=4)(open_dense_labels)


def _dense_labels(folder: str, recordings: Sequence[Any], own: LabelsOf, number: int, hz: float) -> Labels | None:
    """Labels of a folder that ``fate densify`` wrote; every worker process opens it itself."""
    dense = _opened(folder)
    return dense.labels(recordings[number].name, hz) if hz in dense.rates else own(number, hz)


def _exact_labels(recordings: Sequence[Any], number: int, hz: float) -> Labels | None:
    """The exact boxes of a simulated recording, which are 5 ms apart, at the ends of the windows of a rate."""
    recording = recordings[number]
    grid = Grid.of(recording, hz)
    ends = [grid.end_us(index) for index in range(grid.count(recording.end_us))]
    labels = interpolate(recording.truth, ends)
    return replace(labels, source=np.full(len(labels), LabelSource.GROUND_TRUTH))


def _interpolated_labels(recordings: Sequence[Any], own: LabelsOf, number: int, hz: float) -> Labels | None:
    """Labels between the labelled times of a recording, at the ends of the windows of a rate."""
    recording, labels = recordings[number], own(number, hz)
    if labels is None:
        return None
    grid = Grid.of(recording, hz)
    annotated = grid.labelled(labels.labelled_us)  # these windows keep the annotated boxes
    ends = [grid.end_us(index) for index in range(grid.count(recording.end_us)) if index not in annotated]
    return interpolate(labels, np.concatenate([labels.labelled_us, np.array(ends, np.int64)]))


def make_targets(labels: Labels | None) -> Targets | None:
    """The targets of one window, each with its weight w_v in the detection loss: the only place that defines it.

    Neutral boxes are apart from the others, and have no weight.

    w_v is 1 for ground truth, and the score p_v of the label for generated labels (the paper's equation for w_v). The
    losses in ``models/heads/yolox.py`` and ``models/heads/rtdetr.py`` multiply their terms by it. A window without
    ``labels`` (None) is not labelled.
    """
    if labels is None:
        return None
    is_neutral = labels.is_neutral
    neutral, labels = labels.boxes[is_neutral], labels.objects
    weights = np.where(labels.source == LabelSource.GROUND_TRUTH, 1.0, labels.score).astype(np.float32)
    boxes, ids = torch.from_numpy(labels.boxes.copy()), torch.from_numpy(labels.class_id.astype(np.int64))
    return Targets.of(boxes, ids, torch.from_numpy(weights), torch.from_numpy(neutral))
