"""Predictions for many recordings: :class:`Predictions`, read from the files that detectors write.

===========================  =============================================================================
on disk                      how it is read
===========================  =============================================================================
``*.npz`` of FATE            predictions for a whole dataset, or a label file of one recording
``*.npz`` of box arrays      Prophesee's arrays under ``<recording>|dt``, as published with some detectors
``*.json``                   COCO results with a recording and a time for each image
``*.npy``                    Prophesee's boxes of one recording
a folder                     all of these in it and below it, merged
===========================  =============================================================================

A file of one recording gives it the file's own name, without endings such as ``_bbox``. Times at which a detector found
nothing count: FATE's file and COCO's images list them; Prophesee's boxes need a ``_times.npy`` beside them for that.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes import coco, npz, prophesee
from fate.boxes.label_files import naming_errors, read_labels, recognise, times_path
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError, list_names
from fate.files import check_regular, walk_folders
from fate.json_files import read_json
from fate.whole_files import write_whole

#: Files and folders of the largest folder of predictions.
MAX_ENTRIES = 100_000
SUFFIXES = (".npz", ".npy", ".json")
_ENDINGS = ("_bbox", "_labels", "_predictions", "_detections", "_td")
_NO_EMPTY = "boxes in Prophesee's format do not tell when nothing was found: per minute at rest is of frames with boxes"
_MARGIN_US = 100_000  # a stream's last window may end this long after the last event: two hops at 20 Hz

PathLike = str | os.PathLike[str]


class Predictions(dict[str, Labels]):
    """Labels with scores by name of the recording; ``labelled_us`` are the times of the detector's outputs.

    ``facts`` are what the file says about itself (model, rate, …); ``notes`` are what was dropped or assumed while
    reading, one sentence each.
    """

    def __init__(
        self, tables: Mapping[str, Labels], facts: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
    ) -> None:
        super().__init__(tables)
        self.facts, self.notes = dict(facts or {}), tuple(notes)

    def __repr__(self) -> str:
        boxes = sum(len(labels) for labels in self.values())
        return f"Predictions({len(self)} recordings, {boxes} boxes)"


def read_predictions(
    path: PathLike, *, images: PathLike | None = None, classes: Sequence[str] | None = None
) -> Predictions:
    """Read predictions from a file or a folder, recognised by content.

    Args:
        path: see the table above.
        images: for a COCO list of results alone: the COCO file that lists images and categories.
        classes: names of the class ids, for files without them (Prophesee's).
    """
    source = Path(path)
    if not source.exists():
        raise FateError(f"{source}: no such file or folder; give predictions as npz, json, npy or a folder of them")
    if not source.is_dir():
        return _read_file(source, source.name, images, classes)
    listed = walk_folders(source, "predictions", limit=MAX_ENTRIES)
    files = sorted(Path(folder, name) for folder, _, names in listed for name in names if not name.startswith("."))
    files = [file for file in files if file.suffix.lower() in SUFFIXES and not file.stem.endswith("_times")]
    files = [file for file in files if file.is_file()]
    if not files:
        raise FateError(f"{source}: the folder holds no .npz, .npy or .json; give a folder of predictions")
    return merge_predictions([_read_file(each, each.relative_to(source).as_posix(), images, classes) for each in files])


def _read_file(file: Path, name: str, images: PathLike | None, classes: Sequence[str] | None) -> Predictions:
    """Read one file; ``test/drive_3_bbox.npy`` is the name of a file of the recording ``test/drive_3``."""
    check_regular(file, "predictions")
    name = name.removesuffix(file.suffix)
    name = next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
    assumed: tuple[str, ...] = ()
    if classes:
        listed = ", ".join(f"{index} {each}" for index, each in enumerate(classes))
        assumed = (f"the predictions have class ids without names, which were read as {listed}",)
    with naming_errors(file, "predictions"):
        kind = _kind_of(file)
        if kind == "coco":
            listing = None if images is None else read_json(Path(images), "COCO's images and categories")
            return Predictions(*coco.decode_results(file.read_bytes(), name, str(file), listing))
        if images is not None:
            raise FateError("a list of images goes with COCO results alone; leave images out")
        if kind in ("predictions", "archive"):
            with file.open("rb") as stream:
                if kind == "predictions":
                    return Predictions(*npz.decode_predictions(stream))
                arrays = prophesee.read_archive(stream, "dt")
            tables = {}
            for recording, array in arrays.items():
                with naming_errors(Path(f"{recording}|dt"), "boxes"):
                    labels = prophesee.decode_array(array, name=f"{file} {recording}")
                    tables[recording] = replace(labels, classes=None if classes is None else tuple(classes))
            return Predictions(tables, notes=(_NO_EMPTY, *assumed))
        labels = read_labels(file)
        notes: tuple[str, ...] = () if kind == "labels" or times_path(file).exists() else (_NO_EMPTY,)
        if labels.classes is None and classes is not None:
            labels, notes = replace(labels, classes=tuple(classes)), (*notes, *assumed)
        return Predictions({name: labels}, notes=notes)


def _kind_of(file: Path) -> str | None:
    """Recognise the format by the first bytes; an npz, by its members, is "predictions", "archive" or "labels"."""
    with file.open("rb") as stream:
        kind = recognise(stream.read(64))
    if kind != "npz":
        return kind
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except npz.DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error
    if npz.PREDICTION_MEMBER in names:
        return "predictions"
    return "archive" if any(name.endswith("|dt.npy") for name in names) else "labels"


def write_predictions(
    path: PathLike, predictions: Mapping[str, Labels], facts: Mapping[str, Any] | None = None
) -> None:
    """Write all predictions into one npz for :func:`read_predictions`; the file is complete or is not written.

    Args:
        path: ends in ``.npz``.
        predictions: by recording; all with the same classes and sensor.
        facts: further values to store (model, rate, hash of the data), as JSON can hold them.
    """
    target = Path(path)
    with naming_errors(target, "predictions"):
        if target.suffix.lower() != ".npz":
            raise FateError(f"has suffix {target.suffix!r}; predictions are written as .npz; rename it")
        content = npz.encode_predictions(predictions, {**getattr(predictions, "facts", {}), **(facts or {})})
    write_whole(target, content)


def merge_predictions(parts: Sequence[Mapping[str, Labels]]) -> Predictions:
    """Merge shards of a dataset: they hold different recordings, or different times of the same recordings.

    Facts on which all parts agree are kept; a note names the others, except ``shard``, which always differs.
    """
    if not parts:
        raise FateError("no predictions were given to merge; expected at least one part")
    tables: dict[str, list[Labels]] = {}
    for part in parts:
        for name, labels in part.items():
            tables.setdefault(name, []).append(labels)
    merged = {}
    for name, several in tables.items():
        try:
            merged[name] = several[0] if len(several) == 1 else Labels.concatenate(several)
        except FateError as error:
            raise FateError(f"predictions of {name} come in {len(several)} parts that do not fit: {error}") from error
    with_facts = [part for part in parts if isinstance(part, Predictions)]  # others say nothing about themselves
    notes = [note for part in with_facts for note in part.notes]
    facts: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in with_facts for key in part.facts):
        values = [part.facts.get(key) for part in with_facts]
        if all(value == values[0] for value in values):
            facts[key] = values[0]
        elif key != "shard":
            notes.append(f"parts differ in {key}: {', '.join(dict.fromkeys(map(str, values)))}")
    return Predictions(merged, facts, list(dict.fromkeys(notes)))


def fit_predictions(predictions: Mapping[str, Labels], recordings: Mapping[str, tuple[int, int] | None]) -> Predictions:
    """Predictions under the names of a dataset's recordings; notes count what lies outside the dataset.

    A name that the dataset does not have is matched by its last part: ``drive_3`` fits ``test/drive_3`` if no other
    recording has this last part.

    Args:
        predictions: by name.
        recordings: (start_us, end_us) of each recording of the dataset; None if it is not known.
    """
    by_last_part: dict[str, list[str]] = {}
    for name in recordings:
        by_last_part.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    tables: dict[str, Labels] = {}
    unknown: list[str] = []
    outside = inside = 0
    for given, labels in predictions.items():
        similar = by_last_part.get(given.rsplit("/", 1)[-1], [])
        if given not in recordings and len(similar) != 1:
            unknown.append(given)
            continue
        name = given if given in recordings else similar[0]
        if name in tables:
            raise FateError(f"predictions name recording {name!r} twice, once as {given!r}; rename or drop one")
        span = recordings[name]
        tables[name] = labels if span is None else labels.between(span[0], span[1] + _MARGIN_US)
        inside += len(tables[name].labelled_us)
        outside += len(labels.labelled_us) - len(tables[name].labelled_us)
    if unknown and not tables:
        raise FateError(
            f"predictions are for {len(unknown)} recordings, such as {unknown[0]!r}, and none of them is among the "
            f"{len(recordings)} of the dataset, such as {next(iter(recordings), None)!r}; rename them"
        )
    if outside and not inside:
        raise FateError(
            f"all {outside} times of the predictions lie outside their recordings; expected whole microseconds "
            "from the same origin as the events; convert them"
        )
    notes = list(getattr(predictions, "notes", ()))
    if unknown:
        notes.append(
            f"{len(unknown)} recordings that the dataset does not have were left out: {list_names(unknown, 3)}"
        )
    if outside:
        notes.append(f"{outside} times outside the recordings were left out")
    return Predictions(tables, getattr(predictions, "facts", {}), notes)


def read_box_archive(path: PathLike) -> tuple[dict[str, NDArray[np.void]], dict[str, NDArray[np.void]]]:
    """Ground truth and detections of an npz with ``<recording>|gt`` and ``<recording>|dt``, as structured arrays.

    :func:`~fate.evaluation.scores.evaluate_boxes` takes such arrays as they are: widths keep every digit.
    """
    with naming_errors(Path(path), "an npz"), Path(path).open("rb") as file:
        return prophesee.read_archive(file, "gt"), prophesee.read_archive(file, "dt")
