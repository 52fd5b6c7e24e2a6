"""Predictions for many recordings: :class:`Predictions`, read from any of the files that detectors leave behind.

===========================  =============================================================================
what lies on disk            how it is read
===========================  =============================================================================
``*.npz`` of ours            one file for a whole dataset, :mod:`fate.boxes.prediction_npz`
``*.npz``, a label file      one recording, named after the file
``*.npz`` of box arrays      Prophesee's arrays under ``<recording>|dt``, as published with some detectors
``*.json``                   COCO results with a recording and a time for each image,
                             :mod:`fate.boxes.prediction_coco`
``*.npy``                    Prophesee's boxes of one recording, named after the file without ``_bbox``
a folder                     all of these in it and below, put together
===========================  =============================================================================

Times at which a detector looked and found nothing count: our file and COCO's images list them, Prophesee's boxes cannot
without a ``_times.npy`` beside them.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes import prediction_coco, prediction_npz, prediction_prophesee
from fate.boxes.label_files import read_labels
from fate.boxes.label_npz import DAMAGE
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError
from fate.files import check_regular, walk_folders
from fate.whole_files import write_whole

#: Files and folders of the largest folder of predictions.
MAX_ENTRIES = 100_000
SUFFIXES = (".npz", ".npy", ".json")
_ENDINGS = ("_bbox", "_labels", "_predictions", "_detections", "_td")
_NAMED = 3  # recordings that a note names
_NO_EMPTY = "boxes in Prophesee's format do not tell when nothing was found: per minute at rest is of frames with boxes"
_MARGIN_US = 100_000  # a stream's last window may end this long after the last event: two hops at 20 Hz


@dataclass(frozen=True, eq=False)
class Predictions(Mapping[str, Labels]):
    """Labels with scores by name of the recording; ``labelled_us`` are the times at which something was predicted."""

    tables: dict[str, Labels]
    facts: dict[str, Any] = field(default_factory=dict)  #: what the file says about itself: model, rate, …
    notes: tuple[str, ...] = ()  #: what was left out or guessed on the way, one sentence each

    def __getitem__(self, name: str) -> Labels:
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        boxes = sum(len(labels) for labels in self.tables.values())
        return f"Predictions({len(self)} recordings, {boxes} boxes)"


def read_predictions(
    path: str | os.PathLike[str], *, images: str | os.PathLike[str] | None = None, classes: Sequence[str] | None = None
) -> Predictions:
    """Predictions from a file or a folder, recognised by content.

    Args:
        path: see the table above.
        images: for a COCO list of results alone: the COCO file that lists images and categories.
        classes: names of the class ids, for files that have none (Prophesee's).
    """
    source = Path(path)
    if not source.exists():
        raise FateError(f"{source}: no such file or folder; give predictions as npz, json, npy or a folder of them")
    if not source.is_dir():
        return _read_file(source, _name_of(source.name), images, classes)
    listed = walk_folders(source, "predictions", limit=MAX_ENTRIES)
    files = sorted(Path(folder, name) for folder, _, names in listed for name in names)
    files = [file for file in files if _is_predictions(file)]
    if not files:
        raise FateError(f"{source}: the folder holds no .npz, .npy or .json; give a folder of predictions")
    parts = [_read_file(file, _name_of(file.relative_to(source).as_posix()), images, classes) for file in files]
    return merge_predictions(parts)


def _is_predictions(file: Path) -> bool:
    hidden = file.name.startswith(".")
    return file.suffix.lower() in SUFFIXES and not hidden and not file.stem.endswith("_times") and file.is_file()


def _name_of(file: str) -> str:
    """``test/drive_3_bbox.npy`` to ``test/drive_3``."""
    stem = file[: -len(Path(file).suffix)] if Path(file).suffix else file
    return next((stem.removesuffix(ending) for ending in _ENDINGS if stem.endswith(ending)), stem)


def _read_file(
    file: Path, name: str, images: str | os.PathLike[str] | None, classes: Sequence[str] | None
) -> Predictions:
    check_regular(file, "predictions")
    try:
        kind = _kind_of(file)
        if kind == "json":
            return Predictions(*prediction_coco.read(file, name, None if images is None else Path(images)))
        if images is not None:
            raise FateError("a list of images goes with COCO results alone; leave images out")
        if kind == "ours":
            return Predictions(*prediction_npz.read(file))
        if kind == "archive":
            tables = prediction_prophesee.read_archive_labels(file, "dt", classes)
            return Predictions(tables, notes=(_NO_EMPTY, *_nameless(classes)))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FateError(f"{file}: {reason}; expected predictions; check the path") from error
    except FateError as error:
        raise type(error)(f"{file}: {error}") from error
    labels = read_labels(file)
    nameless = labels.classes is None
    # a _times.npy beside the boxes lists what they cannot
    told = kind == "npz" or file.with_name(f"{file.stem}_times.npy").exists()
    notes = (*(() if told else (_NO_EMPTY,)), *(_nameless(classes) if nameless else ()))
    return Predictions({name: read_labels(file, classes=classes) if nameless else labels}, notes=notes)


def _nameless(classes: Sequence[str] | None) -> tuple[str, ...]:
    """A note on what class ids without names were taken for."""
    if not classes:
        return ()
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(classes))
    return (f"the predictions have class ids without names, which were read as {listed}",)


def _kind_of(file: Path) -> str:
    """ "json", "ours", "archive" or "labels": what the first bytes, and the names in an archive, say."""
    with file.open("rb") as stream:
        head = stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] in (b"{", b"["):
        return "json"
    if not head.startswith(b"PK"):
        return "npy"
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error
    if prediction_npz.MARK in names:
        return "ours"
    return "archive" if any(name.endswith("|dt.npy") for name in names) else "npz"


def write_predictions(
    path: str | os.PathLike[str], predictions: Mapping[str, Labels], facts: Mapping[str, Any] | None = None
) -> None:
    """Write all predictions into one npz that :func:`read_predictions` gives back; never half of a file.

    Args:
        path: ends in ``.npz``.
        predictions: by recording; all with the same classes and sensor.
        facts: what should be known about them later (model, rate, hash of the data), as JSON can hold it.
    """
    target = Path(path)
    known = dict(predictions.facts) if isinstance(predictions, Predictions) else {}
    try:
        if target.suffix.lower() != ".npz":
            raise FateError(f"has suffix {target.suffix!r}; predictions are written as .npz; rename it")
        content = prediction_npz.encode(predictions, {**known, **(facts or {})})
    except FateError as error:
        raise type(error)(f"{target}: {error}") from error
    write_whole(target, content)


def merge_predictions(parts: Sequence[Mapping[str, Labels]]) -> Predictions:
    """Put shards together: other recordings, or other times of the same ones.

    Facts on which all parts agree are kept; a note names the others, but for ``shard``, which differs of course.
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
    told = [part.facts for part in parts if isinstance(part, Predictions)]
    notes = [note for part in parts if isinstance(part, Predictions) for note in part.notes]
    facts: dict[str, Any] = {}
    for key in dict.fromkeys(key for each in told for key in each):
        values = [each.get(key) for each in told]
        if all(value == values[0] for value in values):
            facts[key] = values[0]
        elif key != "shard":
            notes.append(f"parts differ in {key}: {', '.join(dict.fromkeys(map(str, values)))}")
    return Predictions(merged, facts, tuple(dict.fromkeys(notes)))


def fit_predictions(predictions: Mapping[str, Labels], recordings: Mapping[str, tuple[int, int] | None]) -> Predictions:
    """Predictions under the names of a dataset, without what lies outside it; notes say what was left out.

    A name is taken as it is, or, where only the folder in front differs, by its last part: ``drive_3`` fits
    ``test/drive_3`` if no other recording is called so.

    Args:
        predictions: by name.
        recordings: (start_us, end_us) of each recording of the dataset; None where that is not known.
    """
    by_last: dict[str, list[str]] = {}
    for name in recordings:
        by_last.setdefault(name.rsplit("/", 1)[-1], []).append(name)
    tables: dict[str, Labels] = {}
    unknown: list[str] = []
    outside = inside = 0
    for given, labels in predictions.items():
        similar = by_last.get(given.rsplit("/", 1)[-1], [])
        if given not in recordings and len(similar) != 1:
            unknown.append(given)
            continue
        name = given if given in recordings else similar[0]
        if name in tables:
            raise FateError(f"predictions name recording {name!r} twice, once as {given!r}; rename or drop one")
        kept = _within(labels, recordings[name])
        outside += len(labels.labelled_us) - len(kept.labelled_us)
        inside += len(kept.labelled_us)
        tables[name] = kept
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
    notes = list(predictions.notes) if isinstance(predictions, Predictions) else []
    if unknown:
        listed = ", ".join(unknown[:_NAMED]) + (", …" if len(unknown) > _NAMED else "")
        notes.append(f"{len(unknown)} recordings that the dataset does not have were left out: {listed}")
    if outside:
        notes.append(f"{outside} times outside the recordings were left out")
    return Predictions(tables, dict(predictions.facts) if isinstance(predictions, Predictions) else {}, tuple(notes))


def _within(labels: Labels, span: tuple[int, int] | None) -> Labels:
    return labels if span is None else labels.between(span[0], span[1] + _MARGIN_US)


def read_box_archive(
    path: str | os.PathLike[str],
) -> tuple[dict[str, NDArray[np.void]], dict[str, NDArray[np.void]]]:
    """Truth and predictions of an npz with ``<recording>|gt`` and ``<recording>|dt``, as the arrays that lie in it.

    :func:`~fate.evaluation.scores.evaluate_boxes` takes such arrays as they are: widths keep every digit.
    """
    source = Path(path)
    try:
        return prediction_prophesee.read_archive(source, "gt"), prediction_prophesee.read_archive(source, "dt")
    except OSError as error:
        raise FateError(
            f"{source}: {(error.strerror or str(error)).lower()}; expected an npz; check the path"
        ) from error
    except FateError as error:
        raise type(error)(f"{source}: {error}") from error
