"""Datasets, read in place: Gen1 and 1Mpx as published, simulated ones, RVT's histograms, and your own.

    dataset = fate.open_dataset("gen1", "train")
    for recording in dataset.labelled:
        with recording.open() as events:
            events.read(0, 50_000)
        recording.labels

Nothing is converted, and opening decodes no file: folders are listed, and the header and the last records of each
recording are read (:mod:`fate.data.opening`). A recording that cannot be used is left out and named in
``dataset.faults``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fate.data.findings import LACKING, LOOK_BACK_US, Finding, check_recordings, sentences
from fate.data.labelled_recording import LabelledRecording
from fate.data.layout import check_split, keep_split
from fate.errors import FateError
from fate.events.events import Sensor


@dataclass(frozen=True)
class Dataset:
    """The usable recordings of a dataset, and what is wrong with the others. Made by :func:`open_dataset`."""

    name: str  #: the name of its folder or YAML file
    root: Path  #: its folder
    classes: tuple[str, ...]  #: the name of each class id
    sensor: Sensor  #: (height, width) that models see, after downscaling
    downscale: int  #: this many pixels along each side become one
    recordings: tuple[LabelledRecording, ...]  #: in order of name
    kind: str = "own"  #: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"rvt"`` or ``"own"``
    #: the evaluation protocol that goes with it: ``"gen1"``, ``"1mpx"``, ``"sim"`` or ``"custom"``
    protocol: str = "custom"
    findings: tuple[Finding, ...] = ()  #: the faults found so far
    labels_checked: bool = False  #: whether all label files have been read
    source: Path | None = None  #: the path that ``open_dataset`` was given

    @property
    def holds(self) -> Literal["events", "histograms"]:
        """``"histograms"`` for RVT's layout."""
        return "histograms" if self.kind == "rvt" else "events"

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """A sentence for each fault. The first access reads all label files, unless ``fate prepare`` has done so."""
        return sentences((self if self.labels_checked else self.checked()).findings)

    def refuse_without_classes(self) -> None:
        """Refuse a dataset whose label files name no class, with the first fault as the probable cause."""
        if not self.classes:
            cause = f" ({self.faults[0]})" if self.faults else ""
            raise FateError(
                f"{self.root}: no class is known{cause}; expected label files with class names; repair them, or name"
                " the classes in classes.txt or in a dataset.yaml"
            )

    def refuse_without_labels(self, need: str) -> None:
        """Refuse a dataset without a labelled time inside a recording, with the first fault as the probable cause.

        ``need`` ends the error: what labels are needed for.
        """
        for recording in self.labelled:
            times = recording.labels.labelled_us
            if ((times >= recording.start_us - LOOK_BACK_US) & (times <= recording.end_us + LOOK_BACK_US)).any():
                return
        cause = f" ({self.faults[0]})" if self.faults else ""
        unused = "no label lies inside its recording" if self.labelled else "no recording has labels"
        raise FateError(f"{self.source or self.root}: {unused}{cause}; {need}")

    def checked(self) -> Dataset:
        """Read all label files once, and decode recordings whose length is not known otherwise.

        Recordings with unreadable labels become unlabelled ones; those that cannot be read are left out.
        """
        if self.labels_checked:
            return self
        recordings, found = check_recordings(self.recordings)
        return replace(self, recordings=recordings, findings=(*self.findings, *found), labels_checked=True)

    @property
    def labelled(self) -> tuple[LabelledRecording, ...]:
        """The recordings with labels, which training and evaluation use."""
        return tuple(recording for recording in self.recordings if recording.labelled)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that occur, in the usual order."""
        found = {recording.split for recording in self.recordings}
        return tuple(split for split in ("train", "val", "test") if split in found)

    def split(self, name: str) -> Dataset:
        """The recordings of one split, with their faults."""
        kept = keep_split(self.recordings, name, self.root)
        findings = tuple(finding for finding in self.findings if finding.split in (None, check_split(name)))
        return replace(self, recordings=kept, findings=findings)

    def __len__(self) -> int:
        return len(self.recordings)

    def __iter__(self) -> Iterator[LabelledRecording]:
        return iter(self.recordings)

    def __getitem__(self, name: str) -> LabelledRecording:
        """The recording of that name."""
        found = next((recording for recording in self.recordings if recording.name == name), None)
        if found is None:
            first = f", such as {self.recordings[0].name!r}" if self.recordings else ""
            raise FateError(f"{self.root}: has no recording {name!r}; names are paths inside the dataset{first}")
        return found

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}, {self.kind}, {len(self)} recordings, {len(self.labelled)} with labels,"
            f" {self.sensor}, {'/'.join(self.classes) or 'no classes'})"
        )


def sharded(recordings: Sequence[LabelledRecording], shard: tuple[int, int]) -> tuple[LabelledRecording, ...]:
    """Shard i of n: every n-th recording from the i-th on, so that several processes or machines share the work."""
    number, count = shard
    if not 1 <= number <= count:
        raise FateError(f"shard {number}/{count} was given; expected 1/{count} to {count}/{count}")
    kept = tuple(recordings[number - 1 :: count])
    if not kept:
        raise FateError(f"shard {number}/{count} of {len(recordings)} recordings is empty; give fewer shards")
    return kept


@dataclass(frozen=True)
class DataFaults:
    """The faults of the datasets of one training run. Made by :func:`data_faults`.

    A dataset is incomplete if a file is missing, cannot be read or ends early, if labels lie beyond the end of their
    recording, or if boxes have a class without a name. Small, clipped or odd boxes and recordings without labels are
    reported, but the dataset still counts as complete.
    """

    path: Path  #: folder or YAML file of the first dataset
    findings: tuple[Finding, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """A sentence for each fault, with long lists of one kind cut short."""
        return sentences(self.findings)

    @property
    def missing(self) -> list[str]:
        """A sentence for each fault that makes the data incomplete."""
        return list(dict.fromkeys(finding.sentence for finding in self.findings if finding.kind in LACKING))

    def tell(self, *outputs: Callable[[str], object]) -> None:
        """Write each fault to each output, such as ``print``."""
        for fault in self.shown:
            for write in outputs:
                write(f"dataset: {fault}")

    def refuse(self, allow_missing: bool) -> None:
        """Raise FateError if the data is incomplete, unless the user accepts that."""
        if self.missing and not allow_missing:
            others = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
            raise FateError(
                f"{self.path}: the data is incomplete: {self.missing[0]}{others}; mend the data, or accept it as it is"
                " with allow_missing=True"
            )

    def to_dict(self) -> dict[str, object]:
        """Plain values, for ``data.json``."""
        faults = list(dict.fromkeys(finding.sentence for finding in self.findings))
        return {"complete": not self.missing, "faults": faults, "missing": self.missing}


def data_faults(*datasets: Dataset) -> DataFaults:
    """Collect the faults of some datasets, each sentence once; label files that were not read yet are read."""
    checked = [dataset.checked() for dataset in datasets]
    findings = dict.fromkeys(finding for dataset in checked for finding in dataset.findings)
    return DataFaults(datasets[0].source or datasets[0].root, tuple(findings))
