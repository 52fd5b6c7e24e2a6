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

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fate.data.class_maps import Classes
from fate.data.findings import LACKING, Finding, check_recordings, sentences
from fate.data.labelled_recording import LabelledRecording, check_downscale
from fate.data.layout import check_split, keep_split
from fate.data.opening import KINDS, open_files
from fate.errors import FateError, FateWarning, warn
from fate.events.events import Sensor

Holds = Literal["events", "histograms"]


@dataclass(frozen=True)
class Dataset:
    """The usable recordings of a dataset, and what is wrong with the others. Made by :func:`open_dataset`.

    Attributes:
        name: the name of its folder or YAML file.
        root: its folder.
        classes: the name of each class id.
        sensor: (height, width) that models see, after downscaling.
        downscale: this many pixels along each side become one.
        recordings: in order of name.
        kind: one of ``fate.data.opening.KINDS``.
        protocol: the evaluation protocol that goes with it: ``"gen1"``, ``"1mpx"``, ``"sim"`` or ``"custom"``.
        holds: ``"events"``, or ``"histograms"`` for RVT's layout.
        findings: the faults found so far.
        labels_checked: whether all label files have been read.
        source: the path that ``open_dataset`` was given.
    """

    name: str
    root: Path
    classes: tuple[str, ...]
    sensor: Sensor
    downscale: int
    recordings: tuple[LabelledRecording, ...]
    kind: str = "own"
    protocol: str = "custom"
    holds: Holds = "events"
    findings: tuple[Finding, ...] = ()
    labels_checked: bool = False
    source: Path | None = None

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


def open_dataset(
    path: str | os.PathLike[str],
    split: str | None = None,
    *,
    kind: str | None = None,
    classes: Classes | None = None,
    downscale: int | None = None,
    sensor: Sequence[int] | None = None,
) -> Dataset:
    """Open a dataset in place.

    Args:
        path: a folder of recordings with their labels, a YAML file that lists them, one recording, or what
            ``fate prepare`` has written.
        split: only ``"train"``, ``"val"`` or ``"test"``.
        kind: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"rvt"`` or ``"own"``, if the files do not tell.
        classes: names of the dataset's classes; only these are kept, and their order gives the class ids. If the
            label files have ids without names, the list names id 0, id 1 and so on. A mapping from names to the ids
            in the label files replaces the names of the dataset.
        downscale: this many pixels along each side become one. The default is 2 for 1Mpx and 1 for others.
        sensor: (height, width) of the camera, for files that do not say.

    Example:
        >>> dataset = fate.open_dataset("gen1", "train")                          # doctest: +SKIP
        >>> dataset = fate.open_dataset("1mpx", classes={"vehicle": (2, 3, 4)})   # doctest: +SKIP
    """
    folder, requested = Path(path), None if split is None else check_split(split)
    if kind is not None and kind not in KINDS:
        raise FateError(f"kind {kind!r} was given; expected one of {', '.join(KINDS)}")
    scale = None if downscale is None else check_downscale(downscale)
    size = None if sensor is None else Sensor.of(sensor)
    files, recordings = open_files(folder, requested, kind, classes, scale, size)
    first = recordings[0]
    dataset = Dataset(
        name=files.name,
        root=files.root,
        classes=first.class_map.names,
        sensor=first.sensor,
        downscale=first.downscale,
        recordings=recordings,
        kind=files.kind,
        protocol=files.protocol,
        holds="histograms" if files.kind == "rvt" else "events",
        findings=files.findings,
        labels_checked=files.is_prepared,
        source=folder,
    )
    if files.is_prepared and requested is not None:
        dataset = dataset.split(requested)
    _warn_of_left_out(dataset)
    return dataset


def as_dataset(
    dataset: str | os.PathLike[str] | Dataset,
    split: str | None = None,
    *,
    kind: str | None = None,
    usual: str | None = None,
    sensor: Sequence[int] | None = None,
) -> Dataset:
    """Open a dataset, or take one that is open already.

    Args:
        dataset: an open dataset, or a path for ``open_dataset``.
        split: ``"train"``, ``"val"`` or ``"test"`` for this part only, ``"all"`` for everything.
        kind: see ``open_dataset``; for a path only.
        usual: the split to use if ``dataset`` is a path, has this split, and ``split`` is None.
        sensor: (height, width) of the camera, for files that do not say; for a path only.
    """
    requested = None if split == "all" else split
    if isinstance(dataset, Dataset):
        if kind not in (None, dataset.kind):
            raise FateError(f"{dataset.root}: is open as {dataset.kind}, and kind={kind!r} was given; leave it out")
        return dataset if requested is None else dataset.split(requested)
    opened = open_dataset(dataset, requested, kind=kind, sensor=sensor)
    return opened.split(usual) if split is None and usual is not None and usual in opened.splits else opened


def path_of(dataset: str | os.PathLike[str] | Dataset) -> tuple[Path, str | None]:
    """Path and split (None for all) of a dataset, for functions that open the files themselves.

    Args:
        dataset: a path, or a dataset that was opened whole or as one split, without other classes or another size.
    """
    if not isinstance(dataset, Dataset):
        return Path(dataset), None
    location = dataset.source or dataset.root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # the same warnings as when it was opened the first time
        whole = open_dataset(location)
    for split in (None, *whole.splits):
        part = whole if split is None else whole.split(split)
        if _identity(part) == _identity(dataset):
            return location, split
    raise FateError(
        f"{location}: the dataset given is a selection (recordings, classes or downscale) of what is there; expected"
        " the whole dataset or one split of it"
    )


def _identity(dataset: Dataset) -> tuple[object, ...]:
    return dataset.classes, dataset.downscale, tuple(recording.name for recording in dataset.recordings)


def sharded(recordings: Sequence[LabelledRecording], shard: tuple[int, int]) -> tuple[LabelledRecording, ...]:
    """Shard i of n: every n-th recording from the i-th on, so that several processes or machines share the work."""
    number, count = shard
    if not 1 <= number <= count:
        raise FateError(f"shard {number}/{count} was given; expected 1/{count} to {count}/{count}")
    kept = tuple(recordings[number - 1 :: count])
    if not kept:
        raise FateError(f"shard {number}/{count} of {len(recordings)} recordings is empty; give fewer shards")
    return kept


def _warn_of_left_out(dataset: Dataset) -> None:
    """Warn once about recordings that are left out; other faults are in ``dataset.faults``."""
    left_out = [finding for finding in dataset.findings if finding.kind in ("damaged", "sensor")]
    if left_out:
        total = len(dataset) + len(left_out)
        more = f" and {len(left_out) - 1} more, see dataset.faults" if len(left_out) > 1 else ""
        warn(f"{dataset.root}: {len(left_out)} of {total} recordings are left out: {left_out[0].sentence}{more}")


@dataclass(frozen=True)
class DataFaults:
    """The faults of the datasets of one training run. Made by :func:`data_faults`.

    A dataset is incomplete if a file is missing, cannot be read or ends early, if labels lie beyond the end of their
    recording, or if boxes have a class without a name. Small, clipped or odd boxes and recordings without labels are
    reported, but the dataset still counts as complete.
    """

    path: str  #: of the first dataset
    every: tuple[str, ...]  #: a sentence for each fault
    shown: tuple[str, ...]  #: the same, with long lists of one kind cut short
    missing: tuple[str, ...]  #: those that make the data incomplete

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
        return {"complete": not self.missing, "faults": list(self.every), "missing": list(self.missing)}


def data_faults(*datasets: Dataset) -> DataFaults:
    """Collect the faults of some datasets, each sentence once; label files that were not read yet are read."""
    checked = [dataset.checked() for dataset in datasets]
    findings = tuple(dict.fromkeys(finding for dataset in checked for finding in dataset.findings))
    return DataFaults(
        str(datasets[0].root),
        tuple(dict.fromkeys(finding.sentence for finding in findings)),
        sentences(findings),
        tuple(dict.fromkeys(finding.sentence for finding in findings if finding.kind in LACKING)),
    )
