"""The paper's training strategies: which rates and labels a detector is trained with, and with which losses.

    supervised       20 Hz, the labels of the dataset
    multi_frequency  every rate of the curriculum, each label at the window that ends nearest to it
    consistency      multi_frequency and a consistency loss with a mean teacher at 20 Hz
    interpolation    every rate, labels at every window, interpolated between those of the dataset
    fat              every rate, labels at every window from detection and tracking (phase 1), and the mean teacher
    any_rate         fat with windows of any length from the hop to 50 ms; not in the paper

Each strategy is a small class that overrides what differs. The detection loss is that of the detector's head; the
weight w_v of each target is defined in ``training.targets``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fate.boxes.dense_labels import DenseLabels, open_dense_labels
from fate.boxes.labels import Labels
from fate.data.batches import LabelsOf
from fate.data.clips import DrawTiming, Grid
from fate.data.dataset import Dataset
from fate.densify.interpolation import interpolate
from fate.errors import FateError
from fate.models.detector import Detector
from fate.models.heads.targets import mean_over_processes
from fate.models.outputs import Outputs, Targets
from fate.training.config import StrategyConfig, TrainConfig
from fate.training.consistency import consistency, select_teacher_predictions
from fate.training.curriculum import AnyWindow, Curriculum, OneRate


@dataclass(frozen=True)
class Agreement:
    """Outputs of student and teacher for the N windows that both have seen."""

    student: Outputs
    teacher: Outputs


class Supervised:
    """Train at the canonical rate, with the labels of the dataset."""

    #: Whether the strategy has a consistency loss with a mean teacher.
    has_teacher = False

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    @property
    def settings(self) -> StrategyConfig:
        """The section ``strategy`` of the configuration."""
        return self.config.strategy

    @property
    def teaches(self) -> bool:
        """Whether the consistency loss is used; at a single rate teacher and student see the same windows."""
        return self.has_teacher and len(self.settings.rates) > 1

    def check(self, dataset: Dataset) -> None:
        """Refuse a dataset that the strategy cannot use, before training begins."""

    def timing(self) -> DrawTiming:
        """The function that draws the rate and the window length of a clip."""
        return OneRate(self.settings.rates[0])

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Labels by recording and rate.

        Args:
            recordings: the recordings of the dataset.
            own: the labels of the dataset, after its rules for training.
        """
        return own

    def terms(self, detector: Detector, outputs: Outputs, targets: Sequence[Targets | None]) -> dict[str, Tensor]:
        """The terms of L_det, the loss of the detector's head on labelled windows."""
        return detector.loss(outputs, targets)

    def agreement(self, detector: Detector, windows: Agreement) -> dict[str, Tensor]:
        """The terms of L_cons; none without a teacher."""
        return {}


class MultiFrequency(Supervised):
    """Train at every rate of the curriculum, with the labels of the dataset."""

    def timing(self) -> DrawTiming:
        """Draw a rate of the curriculum; windows are as long as the hop."""
        return self.curriculum()

    def curriculum(self) -> Curriculum:
        """The curriculum: the share of each rate by epoch."""
        run = self.config.run
        return Curriculum(self.settings.rates, run.epochs, run.epoch_steps * run.accumulate)


class Consistency(MultiFrequency):
    """Add a consistency loss between the student at its rate and a mean teacher at the canonical rate."""

    has_teacher = True

    def agreement(self, detector: Detector, windows: Agreement) -> dict[str, Tensor]:
        """KL divergence and L1 over matched predictions, multiplied by their weight."""
        selected = select_teacher_predictions(windows.teacher, self.settings.consistency_score)
        boxes = windows.student.boxes
        count = mean_over_processes(torch.full((), float(len(boxes)), device=boxes.device))
        terms = consistency(selected, windows.student, detector.frame.padded, count)
        return {name: self.settings.consistency_weight * term for name, term in terms.items()}


class Interpolation(MultiFrequency):
    """Train at every rate, with labels at every window, interpolated linearly between labelled times."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Labels interpolated at the ends of all windows of a rate."""
        return _Interpolated(tuple(recordings), own)


class FAT(Consistency):
    """Frequency-Aware Training: dense labels from tracking and the consistency loss."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """The dense labels of phase 1; at a rate without them, the labels of the dataset."""
        return _Tracked(self._folder, tuple(recordings), own)

    def check(self, dataset: Dataset) -> None:
        """Refuse dense labels of other classes, and rates or recordings without dense labels."""
        _opened.cache_clear()  # phase 1 may have been run again
        dense, wanted = _opened(self._folder), self.settings.rates
        if dense.classes != dataset.classes:
            raise FateError(
                f"{dense.root}: dense labels of {', '.join(dense.classes)}, and the dataset has"
                f" {', '.join(dataset.classes)}; expected those that fate densify made of this dataset"
            )
        lacking = [hz for hz in wanted[1:] if hz not in dense.rates]
        if lacking:
            there, more = (" ".join(f"{hz:g}" for hz in rates) for rates in (dense.rates, lacking))
            raise FateError(
                f"{dense.root}: has labels at {there or 'no'} Hz, and strategy.rates wants {more} Hz too; run fate"
                f" densify again with --hz {more}, or give strategy.rates"
            )
        rates = [hz for hz in wanted if hz in dense.rates]
        missing = [(each.name, hz) for each in dataset.labelled for hz in rates if not dense.has(each.name, hz)]
        if missing:
            name, hz = missing[0]
            raise FateError(
                f"{dense.root}: has no labels of {len({name for name, _ in missing})} of {len(dataset.labelled)}"
                f" recordings, such as {name} at {hz:g} Hz; run fate densify on this dataset again, with all its shards"
            )

    @property
    def _folder(self) -> str:
        if self.settings.labels is None:
            raise FateError(
                "fat was asked for without dense labels; make them with fate densify, then strategy.labels=DIR"
            )
        return self.settings.labels


class AnyRate(FAT):
    """FAT with window length and hop drawn separately: the student learns any combination of both."""

    def timing(self) -> DrawTiming:
        """Draw a rate of the curriculum and a window length from the hop to 50 ms."""
        return AnyWindow(self.curriculum())


STRATEGIES: dict[str, type[Supervised]] = {
    "supervised": Supervised,
    "multi_frequency": MultiFrequency,
    "consistency": Consistency,
    "interpolation": Interpolation,
    "fat": FAT,
    "any_rate": AnyRate,
}


def make_strategy(config: TrainConfig) -> Supervised:
    """The strategy that a configuration names."""
    return STRATEGIES[config.strategy.name](config)


@dataclass(frozen=True)
class _Tracked:
    """Labels of a folder that ``fate densify`` wrote; every worker process opens it itself."""

    folder: str
    recordings: tuple[Any, ...]
    own: LabelsOf

    def __call__(self, number: int, hz: float) -> Labels | None:
        dense = _opened(self.folder)
        return dense.labels(self.recordings[number].name, hz) if hz in dense.rates else self.own(number, hz)


@lru_cache(maxsize=4)
def _opened(folder: str) -> DenseLabels:
    return open_dense_labels(folder)


@dataclass(frozen=True)
class _Interpolated:
    """Labels between the labelled times of a recording, at the ends of the windows of a rate."""

    recordings: tuple[Any, ...]
    own: LabelsOf

    def __call__(self, number: int, hz: float) -> Labels | None:
        recording, labels = self.recordings[number], self.own(number, hz)
        if labels is None:
            return None
        grid = Grid.of(recording, hz)
        annotated = grid.labelled(labels.labelled_us)  # these windows keep the annotated boxes
        ends = [grid.end_us(number) for number in range(grid.count(recording.end_us)) if number not in annotated]
        return interpolate(labels, np.concatenate([labels.labelled_us, np.array(ends, np.int64)]))
