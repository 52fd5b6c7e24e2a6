"""A torch dataset of (events, boxes), to train other models than those of FATE."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from torch.utils.data import Dataset as TorchDataset

from fate.boxes.labels import Labels
from fate.data.dataset import Dataset
from fate.data.loading import ClipReader
from fate.data.opening import as_dataset
from fate.errors import FateError, list_names, warn
from fate.events.events import Events
from fate.rates import CANONICAL_HZ, CANONICAL_US


class EventDataset(TorchDataset[tuple[Events, Labels]]):
    """One item per labelled time of a dataset: the events before it, and the boxes at it.

    ``dataset[i]`` is ``(events, boxes)``: the :class:`fate.Events` of ``[t - window_us, t)`` and the
    :class:`fate.Labels` at the labelled time t, in pixels of ``sensor``. Times that are labelled and have no object are
    items too. Files are read when an item is asked for, and each worker of a ``DataLoader`` opens its own.

    Args:
        dataset: a folder, a YAML file, or an open dataset; its labelled recordings are used.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``. Unless given, a path means its train split if it has
            one, and an open dataset means all of it.
        window_us: length of the window before each label, in µs.

    Example:
        >>> dataset = fate.EventDataset("drives", "train", window_us=50_000)               # doctest: +SKIP
        >>> loader = DataLoader(dataset, 8, shuffle=True, num_workers=4, collate_fn=dataset.collate)  # doctest: +SKIP
        >>> for events, boxes in loader:  # two lists of 8                                  # doctest: +SKIP
        ...     images = [my_image(each.to_torch()) for each in events]
    """

    def __init__(
        self, dataset: str | os.PathLike[str] | Dataset, split: str | None = None, *, window_us: int = CANONICAL_US
    ) -> None:
        if not isinstance(window_us, int) or window_us < 1:
            raise FateError(f"window_us={window_us!r} was given; expected a whole number of microseconds, 1 or more")
        self.source = as_dataset(dataset, split, usual="train").checked()  #: the dataset; its ``faults`` are sentences
        self.window_us = window_us
        self.classes = self.source.classes  #: names of the class ids
        self.sensor = self.source.sensor  #: (height, width) in pixels
        recordings = self.source.labelled
        if not recordings:
            cause = f" ({self.source.faults[0]})" if self.source.faults else ""
            raise FateError(f"{self.source.root}: no recording has labels{cause}; items are events with boxes")
        if self.source.holds == "histograms":
            raise FateError(f"{self.source.root}: holds histograms and no events; give a dataset of recordings")
        if self.source.faults:
            warn(f"{self.source.root}: {list_names(self.source.faults, 3)}; fate inspect lists everything")
        self._reader = ClipReader(recordings, self.sensor)
        self._times = [recording.labels.labelled_us for recording in recordings]
        self._ends = list(accumulate(len(times) for times in self._times))
        self._process = os.getpid()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[Events, Labels]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} was asked for; the dataset has {len(self)}")  # ends a for loop
        if os.getpid() != self._process:  # a forked worker must not share the positions of open files
            self._reader, self._process = replace(self._reader), os.getpid()
        index %= len(self)
        number = bisect_right(self._ends, index)
        time = int(self._times[number][index - self._ends[number]])
        labels = self._reader.labels(number, CANONICAL_HZ)
        if labels is None:
            raise FateError(f"{self._reader.recordings[number].name}: has no labels any more; open the dataset again")
        return self._reader.reader(number).read(time - self.window_us, time), labels.objects.at(time)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": replace(self._reader)}  # without open files

    @staticmethod
    def collate(items: Sequence[tuple[Events, Labels]]) -> tuple[list[Events], list[Labels]]:
        """Join items to a batch of two lists, because windows have different numbers of events; for ``DataLoader``."""
        events, boxes = zip(*items, strict=True)
        return list(events), list(boxes)
