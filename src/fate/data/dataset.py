"""Datasets read in place: Gen1 and 1Mpx as published, simulated ones, RVT's histograms, and one's own.

    dataset = fate.open_dataset("gen1", "train")
    for recording in dataset.labelled:
        with recording.open() as events:
            events.read(0, 50_000)
        recording.labels

Nothing is converted, and opening goes through no file: folders are listed, and of each recording the head and the last
records are read. A recording that cannot be used is left out, and named in ``dataset.faults``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from fate.data import kinds, own, prepared, rvt_sequences
from fate.data.assembly import Draft, assemble
from fate.data.box_files import small_sensor
from fate.data.class_maps import Classes
from fate.data.event_files import check_downscale
from fate.data.findings import Finding, check_recordings, sentences
from fate.data.labelled_recording import LabelledRecording
from fate.data.layout import SPLITS
from fate.data.manifests import PREPARED, find_manifest
from fate.errors import FateError, FateWarning, warn
from fate.events.events import Sensor

Holds = Literal["events", "histograms"]


@dataclass(frozen=True)
class Dataset:
    """The recordings of a dataset that can be used, and what is wrong with the others. Made by :func:`open_dataset`.

    Attributes:
        name: of its folder or YAML file.
        root: where it lies.
        classes: the name of each class id.
        sensor: (height, width) of what models see, after downscaling.
        downscale: pixels along a side of those that become one.
        recordings: in order of name.
        kind: one of ``fate.data.kinds.KINDS``.
        protocol: the evaluation that goes with it: ``"gen1"``, ``"1mpx"``, ``"sim"`` or ``"custom"``.
        holds: ``"events"``, or ``"histograms"`` for RVT's layout.
        findings: what was found wrong so far.
        labels_checked: whether all label files have been read.
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
    source: Path | None = None  #: what ``open_dataset`` was given

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """A sentence for each fault. The first use reads all label files, unless ``fate prepare`` has done so."""
        return sentences((self if self.labels_checked else self.checked()).findings)

    def checked(self) -> Dataset:
        """The same with all label files read once, and recordings gone through whose length nothing else tells.

        Recordings with unreadable labels count as unlabelled, those that cannot be read are left out.
        """
        if self.labels_checked:
            return self
        recordings, found = check_recordings(self.recordings)
        return replace(self, recordings=recordings, findings=(*self.findings, *found), labels_checked=True)

    @property
    def labelled(self) -> tuple[LabelledRecording, ...]:
        """Recordings for training and evaluation."""
        return tuple(recording for recording in self.recordings if recording.labelled)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that occur, in the usual order."""
        found = {recording.split for recording in self.recordings}
        return tuple(split for split in ("train", "val", "test") if split in found)

    def split(self, name: str) -> Dataset:
        """The part of one split, with its own faults."""
        wanted = _split(name)
        kept = tuple(recording for recording in self.recordings if recording.split == wanted)
        if not kept:
            raise FateError(f"{self.root}: has no recordings of the split {name!r}; its splits are {self._shown()}")
        findings = tuple(each for each in self.findings if each.split in (None, wanted))
        return replace(self, recordings=kept, findings=findings)

    def _shown(self) -> str:
        return ", ".join(self.splits) or "none: no folder is called train, val or test"

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
    """Open a dataset where it lies.

    Args:
        path: a folder of recordings with their labels, a YAML file that lists them, one recording, or what
            ``fate prepare`` has written.
        split: only ``"train"``, ``"val"`` or ``"test"``.
        kind: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"rvt"`` or ``"own"``, where it cannot be told from the files.
        classes: names of the dataset's classes; only these are kept, and their order gives the class ids. Where the
            label files have ids and nothing gives them names, the list names id 0, id 1 and so on. A mapping from names
            to the ids in the label files replaces the names of the dataset.
        downscale: pixels along a side of those that become one; 2 for 1Mpx, else 1, unless given.
        sensor: (height, width) of the camera, for files that do not say.

    Example:
        >>> dataset = fate.open_dataset("gen1", "train")                          # doctest: +SKIP
        >>> dataset = fate.open_dataset("1mpx", classes={"vehicle": (2, 3, 4)})   # doctest: +SKIP
    """
    place, wanted = Path(path), None if split is None else _split(split)
    if kind is not None and kind not in kinds.KINDS:
        raise FateError(f"kind {kind!r} was given; expected one of {', '.join(kinds.KINDS)}")
    scale = None if downscale is None else check_downscale(downscale)
    size = None if sensor is None else Sensor.of(sensor)
    described = own.yaml_of(place) if kind in (None, "own") else None
    manifest = None if described else find_manifest(place)
    if described is not None:
        draft = own.draft_from_yaml(described, wanted)
        draft = replace(draft, wanted=classes, sensor=size or draft.sensor)
        dataset = _of_draft(draft, scale)
    elif manifest is not None and manifest.format == PREPARED:
        dataset = _of_prepared(prepared.read(manifest), kind, classes, scale)
        dataset = dataset if wanted is None else dataset.split(wanted)
    elif kind == "rvt" or (kind is None and rvt_sequences.holds_histograms(place)):
        dataset = _of_histograms(place, wanted, classes, scale)
    else:
        dataset = _of_draft(kinds.draft_of(place, wanted, kind, classes, size), scale)
    _warn(dataset)
    return replace(dataset, source=place)


def as_dataset(
    dataset: str | os.PathLike[str] | Dataset,
    split: str | None = None,
    *,
    kind: str | None = None,
    usual: str | None = None,
    sensor: Sequence[int] | None = None,
) -> Dataset:
    """The dataset that is meant.

    Args:
        dataset: an open dataset, or what ``open_dataset`` takes as path.
        split: ``"train"``, ``"val"`` or ``"test"`` for this part only, ``"all"`` for everything.
        kind: see ``open_dataset``; for a path only.
        usual: the split to take where the dataset is given by its path, has this split, and ``split`` is None.
        sensor: (height, width) of the camera, for files that do not say; for a path only.
    """
    wanted = None if split == "all" else split
    if isinstance(dataset, Dataset):
        if kind not in (None, dataset.kind):
            raise FateError(f"{dataset.root}: is open as {dataset.kind}, and kind={kind!r} was given; leave it out")
        return dataset if wanted is None else dataset.split(wanted)
    opened = open_dataset(dataset, wanted, kind=kind, sensor=sensor)
    return opened.split(usual) if split is None and usual is not None and usual in opened.splits else opened


def path_of(dataset: str | os.PathLike[str] | Dataset) -> tuple[Path, str | None]:
    """Path and split (None for all) of a dataset, for functions that open the files themselves.

    Args:
        dataset: a path, or a dataset that was opened whole or as one split, without other classes or another size.
    """
    if not isinstance(dataset, Dataset):
        return Path(dataset), None
    place = dataset.source or dataset.root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # the same warnings as when it was opened the first time
        whole = open_dataset(place)
    for split in (None, *whole.splits):
        part = whole if split is None else whole.split(split)
        if _identity(part) == _identity(dataset):
            return place, split
    raise FateError(
        f"{place}: the dataset given is a selection (recordings, classes or downscale) of what is there; expected the"
        " whole dataset or one split of it"
    )


def _identity(dataset: Dataset) -> tuple[object, ...]:
    return dataset.classes, dataset.downscale, tuple(recording.name for recording in dataset.recordings)


def sharded(recordings: Sequence[LabelledRecording], shard: tuple[int, int]) -> tuple[LabelledRecording, ...]:
    """Shard i of n: every n-th recording, from the i-th on, for work that several processes or machines share."""
    number, count = shard
    if not 1 <= number <= count:
        raise FateError(f"shard {number}/{count} was given; expected 1/{count} to {count}/{count}")
    kept = tuple(recordings[number - 1 :: count])
    if not kept:
        raise FateError(f"shard {number}/{count} of {len(recordings)} recordings is empty; give fewer shards")
    return kept


def _split(name: str) -> str:
    if name not in SPLITS:
        raise FateError(f"split {name!r} was given; expected train, val or test")
    return SPLITS[name]


def _of_draft(draft: Draft, downscale: int | None) -> Dataset:
    if downscale is not None:
        draft = replace(draft, downscale=downscale)
    made = assemble(draft)
    return Dataset(
        name=draft.name,
        root=draft.root,
        classes=made.class_map.names,
        sensor=small_sensor(made.sensor, draft.downscale),
        downscale=draft.downscale,
        recordings=made.recordings,
        kind=draft.kind,
        protocol=draft.protocol,
        findings=made.findings,
    )


def _of_histograms(root: Path, split: str | None, classes: Classes | None, downscale: int | None) -> Dataset:
    made = rvt_sequences.assemble_sequences(root, split, classes, downscale)
    first = made.recordings[0]
    return Dataset(
        name=root.resolve().name,
        root=root,
        classes=made.class_map.names,
        sensor=first.sensor,
        downscale=first.downscale,
        recordings=made.recordings,
        kind="rvt",
        protocol=kinds.public_kind(made.sensor) or "custom",
        holds="histograms",
        findings=made.findings,
    )


def _of_prepared(facts: prepared.Prepared, kind: str | None, classes: Classes | None, downscale: int | None) -> Dataset:
    """Without a look at any file: the manifest knows."""
    if kind not in (None, facts.kind):
        raise FateError(f"{facts.manifest}: was prepared as {facts.kind}, and kind={kind!r} was given; leave it out")
    recordings = facts.recordings(classes, downscale)
    return Dataset(
        name=facts.name,
        root=facts.root,
        classes=recordings[0].class_map.names,
        sensor=recordings[0].sensor,
        downscale=recordings[0].downscale,
        recordings=recordings,
        kind=facts.kind,
        protocol=facts.protocol,
        holds="histograms" if facts.kind == "rvt" else "events",
        findings=facts.findings,
        labels_checked=True,
    )


def _warn(dataset: Dataset) -> None:
    """What was left out is said once, on opening; the rest is in ``faults``."""
    left_out = [each for each in dataset.findings if each.kind in ("damaged", "sensor")]
    if left_out:
        whole = len(dataset) + len(left_out)
        more = f" and {len(left_out) - 1} more, see dataset.faults" if len(left_out) > 1 else ""
        warn(f"{dataset.root}: {len(left_out)} of {whole} recordings are left out: {left_out[0].sentence}{more}")
