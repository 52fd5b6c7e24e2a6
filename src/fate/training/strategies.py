"""The paper's training strategies: what rates a detector sees, what labels, and what else it learns from.

    supervised       20 Hz, the labels there are
    multi_frequency  every rate of the curriculum, each label at the window that ends nearest to it
    consistency      the same, and a mean teacher at 20 Hz that the student agrees with
    interpolation    every rate, labels at every window by interpolating those there are
    fat              every rate, labels at every window by detecting and tracking (phase 1), and the mean teacher
    any_rate         fat, with windows of any length from the hop to 50 ms; ours, not the paper's

Each is a small class; what it does not say, the one above it does. Losses are those of the detector's own head, with
the weight w_v of every target: 1 for ground truth, its score for a generated label (the paper's equation for w_v).
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
from fate.boxes.labels import Labels, LabelSource
from fate.data.batches import LabelsOf
from fate.data.clips import DrawTiming, Grid
from fate.data.dataset import Dataset
from fate.densify.interpolation import interpolate
from fate.errors import FateError
from fate.models.detector import Detector
from fate.models.heads.targets import mean_over_processes
from fate.models.outputs import Outputs, Targets
from fate.training.config import StrategyConfig, TrainConfig
from fate.training.consistency import consistency, followed
from fate.training.curriculum import AnyWindow, Curriculum, OneRate


@dataclass(frozen=True)
class Agreement:
    """Windows that teacher and student have both looked at; of N of them."""

    student: Outputs
    teacher: Outputs


class Supervised:
    """The detector at its canonical rate, from the labels there are."""

    #: Whether the student also follows a mean teacher.
    has_teacher = False

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    @property
    def settings(self) -> StrategyConfig:
        """The strategy's part of the configuration."""
        return self.config.strategy

    @property
    def teaches(self) -> bool:
        """Whether there is something to follow: at one rate teacher and student see the same."""
        return self.has_teacher and len(self.settings.rates) > 1

    def check(self, dataset: Dataset) -> None:
        """Refuse a dataset, or what goes with it, before training begins rather than epochs later."""

    def timing(self) -> DrawTiming:
        """What draws the rate and the window length of a clip."""
        return OneRate(self.settings.rates[0])

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Labels by recording and rate.

        Args:
            recordings: of the dataset.
            own: their own labels, by the dataset's rules for training.
        """
        return own

    def terms(self, detector: Detector, outputs: Outputs, targets: Sequence[Targets | None]) -> dict[str, Tensor]:
        """L_det: the loss of the detector's head on labelled windows, term by term."""
        return detector.loss(outputs, targets)

    def agreement(self, detector: Detector, windows: Agreement) -> dict[str, Tensor]:
        """L_cons, where there is a teacher."""
        return {}


class MultiFrequency(Supervised):
    """Every rate of the curriculum, the labels there are."""

    def timing(self) -> DrawTiming:
        """A rate of the curriculum; windows are as long as the hop."""
        return self.curriculum()

    def curriculum(self) -> Curriculum:
        """The shares of the rates, epoch by epoch."""
        run = self.config.run
        return Curriculum(self.settings.rates, run.epochs, run.epoch_steps * run.accumulate)


class Consistency(MultiFrequency):
    """A mean teacher at the canonical rate that the student, at its own, agrees with."""

    has_teacher = True

    def agreement(self, detector: Detector, windows: Agreement) -> dict[str, Tensor]:
        """KL and L1 over matched predictions, times their weight."""
        wanted = followed(windows.teacher, self.settings.consistency_score)
        boxes = windows.student.boxes
        count = mean_over_processes(torch.full((), float(len(boxes)), device=boxes.device))
        terms = consistency(wanted, windows.student, detector.frame.padded, count)
        return {name: self.settings.consistency_weight * term for name, term in terms.items()}


class Interpolation(MultiFrequency):
    """Every rate, and labels at every window between two labelled times, on straight lines."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Interpolated at the ends of all windows of a rate."""
        return _Interpolated(tuple(recordings), own)


class FAT(Consistency):
    """Frequency-Aware Training: dense labels from tracking, and the mean teacher."""

    def labels(self, recordings: Sequence[Any], own: LabelsOf) -> LabelsOf:
        """Those of phase 1; at the canonical rate, where phase 1 was not run for it, the recordings' own."""
        return _Tracked(self._folder, tuple(recordings), own)

    def check(self, dataset: Dataset) -> None:
        """Labels of these classes are there at every rate but the canonical one, of every recording."""
        _opened.cache_clear()  # phase 1 may have been run since
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
    """FAT with windows that are longer than the hop in three of four clips: the student learns any of both."""

    def timing(self) -> DrawTiming:
        """A rate of the curriculum, and a window length from the hop to 50 ms."""
        return AnyWindow(self.curriculum())


STRATEGIES: dict[str, type[Supervised]] = {
    "supervised": Supervised,
    "multi_frequency": MultiFrequency,
    "consistency": Consistency,
    "interpolation": Interpolation,
    "fat": FAT,
    "any_rate": AnyRate,
}


def strategy_of(config: TrainConfig) -> Supervised:
    """The strategy a configuration asks for."""
    return STRATEGIES[config.strategy.name](config)


def targets_of(labels: Labels | None) -> Targets | None:
    """What is to be seen in a window, with w_v: 1 for ground truth, p_v (the label's score) for what was generated."""
    if labels is None:
        return None
    weights = np.where(labels.source == LabelSource.GROUND_TRUTH, 1.0, labels.score).astype(np.float32)
    boxes, ids = torch.from_numpy(labels.boxes.copy()), torch.from_numpy(labels.class_id.astype(np.int64))
    return Targets.of(boxes, ids, torch.from_numpy(weights))


@dataclass(frozen=True)
class _Tracked:
    """Labels of a folder that ``fate densify`` wrote; opened where it is used, so that workers can have it."""

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
        stands_for_one = grid.labelled(labels.labelled_us)  # there the annotated boxes stay as they are
        ends = [grid.end_us(number) for number in range(grid.count(recording.end_us)) if number not in stands_for_one]
        return interpolate(labels, np.concatenate([labels.labelled_us, np.array(ends, np.int64)]))
