"""A folder of dense labels: a manifest, and a label file for each rate and recording.

::

    OUT/manifest.json                       model and hash of its weights, dataset, options, rates, version
    OUT/labels/200hz/train/drive_3.npz      labels in FATE's own format, as ``fate.read_labels`` reads it
    OUT/predictions/50000us/train/drive_3.npz   predictions of the detector, used again for further rates and curves

Files are written completely or not at all, and a finished recording is not computed again. Several processes may write
to one folder, each its own recordings. A different model, dataset or option is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fate.boxes.label_files import naming_errors, read_labels, write_labels
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError, warn
from fate.json_files import finite_number, list_of, object_of, read_json, whole_number, write_json
from fate.processes import lock_folder

FORMAT, VERSION = "fate-dense-labels", 1
#: Parts of the manifest that all labels of one folder share.
SAME = ("model", "dataset", "options")


@dataclass(frozen=True)
class DenseLabels:
    """Dense labels on disk."""

    root: Path  #: the folder
    manifest: Mapping[str, Any]  #: model, dataset, options, rates

    @property
    def rates(self) -> tuple[float, ...]:
        """Rates in Hz, in increasing order."""
        return tuple(sorted(float(hz) for hz in self.manifest["rates"]))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by id."""
        return tuple(self.manifest["dataset"]["classes"])

    @property
    def thresholds(self) -> dict[str, float]:
        """The score threshold of each class."""
        options = self.manifest["options"]
        try:
            known, other = object_of(options.get("thresholds"), "thresholds"), options.get("other_threshold")
            return {name: finite_number(known.get(name, other), f"threshold of {name}") for name in self.classes}
        except FormatError as error:
            raise FormatError(f"{self.root / 'manifest.json'}: is damaged: {error}; make the labels again") from None

    def has(self, recording: str, hz: float) -> bool:
        """Whether the labels of a recording at a rate exist."""
        return label_file(self.root, recording, hz).is_file()

    def labels(self, recording: str, hz: float) -> Labels:
        """Return the labels of a recording, by its name in the dataset, at a rate."""
        if float(hz) not in self.rates or not self.has(recording, hz):
            known = ", ".join(f"{rate:g}" for rate in self.rates)
            raise FateError(
                f"{self.root}: has no labels of {recording} at {hz:g} Hz (its rates are {known}); run fate densify --hz"
                f" {hz:g} again, with all its shards: it goes on where it stopped"
            )
        return read_labels(label_file(self.root, recording, hz))

    def predictions(self, recording: str, step_us: int) -> Labels | None:
        """Predictions of streams with that step; None if they were not kept."""
        file = prediction_file(self.root, recording, step_us)
        return read_labels(file) if file.is_file() else None

    def add_predictions(self, recording: str, step_us: int, new: Labels) -> Labels:
        """Store predictions of some streams with that step beside the stored ones, and return both.

        At equal times the new ones replace the old.
        """
        with lock_folder(self.root):  # without locks a second process may lose predictions; they are recomputed
            stored = self.predictions(recording, step_us)
            if stored is not None:
                kept = stored.select(~np.isin(stored.t_us, new.labelled_us))
                kept = replace(kept, labelled_us=np.setdiff1d(stored.labelled_us, new.labelled_us))
                new = Labels.concatenate([kept, new])
            write_in_folder(prediction_file(self.root, recording, step_us), new)
        return new


def open_dense_labels(path: str | os.PathLike[str]) -> DenseLabels:
    """Open a folder that ``fate densify`` has written."""
    root = Path(path)
    manifest = _read_manifest(root / "manifest.json")
    if manifest is None:
        raise FateError(f"{root}: has no manifest.json; expected a folder that fate densify has written")
    return DenseLabels(root, manifest)


def begin_dense_labels(path: str | os.PathLike[str], facts: Mapping[str, Any], rates: Iterable[float]) -> DenseLabels:
    """Open a folder to write to: a new one, or one begun by the same model with the same options.

    Args:
        path: the folder.
        facts: ``model``, ``dataset``, ``options`` and further values, as JSON can hold them.
        rates: in Hz; they are added to those of the folder.
    """
    root = Path(path)
    given = json.loads(json.dumps(facts))  # as JSON returns it: lists for tuples
    with naming_errors(root, "a folder for dense labels"):
        root.mkdir(parents=True, exist_ok=True)
    with lock_folder(root) as locked:
        if not locked:
            warn(f"{root}: this disk cannot be locked; start one run at a time on it")
        stored = _read_manifest(root / "manifest.json")
        if stored is None and any(each.name != ".lock" for each in root.iterdir()):
            raise FateError(f"{root}: holds files and no manifest.json; give a new or empty folder for dense labels")
        for part in SAME:
            differs = None if stored is None else find_difference(stored[part], given[part], part)
            if differs:
                raise FateError(
                    f"{root}: was begun with other settings: {differs}; give another folder, or the same ones"
                )
        all_rates = sorted({float(hz) for hz in [*(stored or {}).get("rates", ()), *rates]})
        manifest = {"format": FORMAT, "version": VERSION, **given, **(stored or {}), "rates": all_rates}
        if manifest != stored:
            write_json(root / "manifest.json", manifest)
        return DenseLabels(root, manifest)


def find_difference(old: Any, new: Any, name: str) -> str | None:
    """Return the first difference of two trees of plain values, in words; None if they are equal."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        differences = (
            find_difference(old.get(key), new.get(key), f"{name}.{key}") for key in sorted(old.keys() | new.keys())
        )
        return next((each for each in differences if each), None)
    was, now = (json.dumps(value, ensure_ascii=False) for value in (old, new))
    return None if old == new else f"{name} was {was:.80} and is {now:.80}"


def label_file(root: Path, recording: str, hz: float) -> Path:
    """Return the file with the labels of a recording at a rate."""
    return _inside(root / "labels" / f"{hz:g}hz", recording)


def prediction_file(root: Path, recording: str, step_us: int) -> Path:
    """Return the file with the predictions of a recording in streams of that step."""
    return _inside(root / "predictions" / f"{step_us}us", recording)


def write_in_folder(file: Path, labels: Labels) -> None:
    """Write a label file, and create its folder."""
    with naming_errors(file.parent, "a folder for labels"):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_labels(file, labels, format="npz")


def _inside(folder: Path, recording: str) -> Path:
    name = PurePosixPath(recording)
    if not name.name or name.is_absolute() or ".." in name.parts:
        raise FateError(f"a recording called {recording!r} was given; expected a name inside the dataset")
    return folder / name.parent / f"{name.name}.npz"


def _read_manifest(file: Path) -> dict[str, Any] | None:
    """Read and check the manifest; return None if the file does not exist."""
    if not file.exists():
        return None
    what = "the manifest of fate densify"
    manifest = read_json(file, what)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{file}: is no manifest of dense labels; expected a folder that fate densify has written")
    try:
        if whole_number(manifest.get("version"), "version", 0, 2**31) > VERSION:
            raise FormatError("is of a newer FATE")
        for part in SAME:
            object_of(manifest.get(part), part)
        for hz in list_of(manifest.get("rates"), "rates"):
            if not 0 < finite_number(hz, "a rate") <= 1e6:
                raise FormatError(f"a rate is {hz} Hz; expected more than 0")
        Labels.empty(classes=list_of(manifest["dataset"].get("classes"), "dataset.classes", str))
    except FateError as error:
        raise FormatError(f"{file}: is damaged, or of a newer FATE: {error}; make the labels again") from None
    return manifest
