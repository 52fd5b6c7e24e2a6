"""Find the recordings of a dataset and the label files that belong to them.

Known layouts, which may be mixed:

- the public layout: ``train|val|test/<name>_td.dat`` with ``<name>_bbox.npy`` beside it (and, from the simulator,
  ``<name>_truth.npz`` with boxes at 200 Hz);
- a flat folder, or any tree of folders, of recordings that :func:`fate.open_recording` opens, each with a label file
  of the same stem beside it or in a folder ``labels`` beside it or beside its folder: ``X.raw`` with ``X_bbox.npy``,
  ``X.npz``, ``X.json`` or a folder ``X`` of YOLO text;
- a folder per recording, which then gives the name: ``<name>/events.h5`` with ``labels.npz``, ``bbox.npy`` or
  ``tracks.npy``.

Tables (``.npy``, ``.npz``, ``.csv``, ``.txt``) may hold events or labels; their head tells which.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from fate.boxes.npz import DAMAGE
from fate.data.box_files import Clock
from fate.data.class_maps import Classes
from fate.data.findings import Finding
from fate.data.labelled_recording import EventOptions, LabelledRecording
from fate.errors import FateError, warn
from fate.events.events import Sensor
from fate.files import readable_folders, walk_folders

#: The split that each name of a folder means.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}

#: Suffixes of files that hold events and nothing else.
EVENT_SUFFIXES = (".dat", ".raw", ".hdf5", ".h5", ".aedat", ".aedat2", ".aedat4", ".es", ".bag", ".mcap", ".db3")
#: Suffixes of files that may hold events or labels.
TABLE_SUFFIXES = (".npy", ".npz", ".csv", ".txt")

#: Files and folders of the largest dataset; labels as YOLO text have a file for each image.
MAX_ENTRIES = 1_000_000

_EVENT_ENDINGS = ("_td", "_cd", "_events")
#: How label files are named after their recording, best first: hand-made or public labels before anything derived.
_LABEL_NAMES = (
    *("{}_bbox.npy", "{}_labels.npy", "{}_bbox.npz", "{}_labels.npz", "{}.npz"),
    *("{}.json", "{}_labels.json", "{}_bbox.json"),
    *("{}_tracks.npy", "{}.npy", "{}", "{}_labels"),
)
_LABEL_NAMES_OF_A_FOLDER = ("bbox.npy", "labels.npy", "tracks.npy", "labels.npz", "labels.json", "labels")
_LABEL_ENDINGS = ("_bbox", "_labels", "_truth", "_bbox_times", "_labels_times", "_tracks")


@dataclass(frozen=True)
class RecordingPaths:
    """One recording of a dataset, the files that belong to it, and what is needed to read them."""

    name: str  #: path inside the dataset without suffix, such as ``"train/drive_0003"``
    split: str | None  #: ``"train"``, ``"val"``, ``"test"``, or None if the folders do not say
    events: Path  #: the events, or the images of a sequence in RVT's layout
    labels: Path | None = None
    truth: Path | None = None  #: dense exact boxes, from the simulator
    options: EventOptions = field(default_factory=EventOptions)
    clock: Clock = field(default_factory=Clock)
    ignored_labels: tuple[Path, ...] = ()  #: further label files of the recording


@dataclass(frozen=True)
class DatasetFiles:
    """A dataset before its recordings are opened: its files, and what it says about them."""

    name: str
    root: Path
    kind: str  #: one of ``fate.data.opening.KINDS``
    protocol: str  #: the evaluation protocol that goes with it
    recordings: tuple[RecordingPaths, ...]
    classes: Classes | None = None  #: None for the classes of the kind, or those that the label files name
    sensor: Sensor | None = None  #: the expected (height, width) of the camera
    downscale: int = 1
    source: Path | None = None  #: the YAML file that describes the dataset
    findings: tuple[Finding, ...] = ()  #: faults that are known so far


def dataset_root(path: Path) -> Path:
    """The folder of a dataset; for a single recording, the folder that it is in."""
    return path.parent if _is_bag(path) or path.is_file() else path


def check_split(name: str) -> str:
    """``"train"``, ``"val"`` or ``"test"``; anything else is refused."""
    if name not in SPLITS:
        raise FateError(f"split {name!r} was given; expected train, val or test")
    return SPLITS[name]


Some = TypeVar("Some", RecordingPaths, LabelledRecording)


def keep_split(recordings: Sequence[Some], split: str, where: object) -> tuple[Some, ...]:
    """The recordings of one split; none at all is refused, in a sentence that begins with ``where``."""
    kept = tuple(recording for recording in recordings if recording.split == check_split(split))
    if not kept:
        present = {recording.split for recording in recordings}
        listed = ", ".join(each for each in ("train", "val", "test") if each in present)
        known = listed or "none: no folder is called train, val or test"
        raise FateError(f"{where}: has no recordings of the split {split!r}; its splits are {known}")
    return kept


@readable_folders("recordings")
def find_recordings(path: str | os.PathLike[str], split: str | None = None) -> tuple[RecordingPaths, ...]:
    """The recordings under ``path``, in order of name: a folder in one of the layouts above, or one recording."""
    root = Path(path)
    if split is not None:
        check_split(split)
    if _is_bag(root) or root.is_file():
        return (_find_labels(root, root.parent),)
    if not root.is_dir():
        fault = "is neither a folder nor a file" if root.exists() else "no such folder or file"
        raise FateError(f"{path}: {fault}; give the folder of a dataset, or one recording")
    found = [_find_labels(file, root) for file in _event_files(root)]
    count = Counter(recording.name for recording in found)
    for index, one in enumerate(found):
        if count[one.name] > 1:  # two files with one stem, such as drive.raw and drive.dat, get their whole names
            found[index] = replace(one, name=(Path(one.name).parent / one.events.name).as_posix())
    recordings = tuple(sorted(found, key=lambda recording: recording.name))
    if not recordings:
        raise FateError(
            f"{root}: has no event recordings; looked, in all folders below, for {' '.join(EVENT_SUFFIXES)}, tables of"
            " events and ROS bags (RVT's histograms are none); give the folder of a dataset, or one recording"
        )
    kept = recordings if split is None else keep_split(recordings, split, path)
    if twice := [one for one in kept if one.ignored_labels]:
        first = twice[0]
        more = f" ({len(twice) - 1} more recordings have several, too)" if len(twice) > 1 else ""
        warn(
            f"{first.name}: has several label files; {first.labels} is used, and {first.ignored_labels[0]} is"
            f" not{more}: remove or rename what is not meant"
        )
    return kept


def _event_files(root: Path) -> Iterator[Path]:
    """Files that hold events, sorted; links to folders are followed, and each folder is listed once."""
    seen: set[str] = set()
    for folder, folders, files in walk_folders(root, "recordings", limit=MAX_ENTRIES, follow_links=True):
        here = Path(folder)
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        shown = sorted(name for name in folders if not name.startswith("."))
        bags = [name for name in shown if _is_bag(here / name)]
        yield from (here / name for name in bags)
        folders[:] = [name for name in shown if name not in bags]
        for name in sorted(files):
            if not name.startswith(".") and _holds_events(here / name):
                yield here / name


def _is_bag(path: Path) -> bool:
    """A ROS 2 bag is a folder."""
    return path.is_dir() and (path / "metadata.yaml").is_file()


def _holds_events(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in EVENT_SUFFIXES:
        # RVT's preprocessed frames: histograms, from which events cannot be had back
        return not path.name.startswith("event_representations")
    if suffix not in TABLE_SUFFIXES or path.stem.endswith(_LABEL_ENDINGS):
        return False
    try:
        if path.exists() and not path.is_file():  # a pipe, say: reading it could block for ever
            return False
        if suffix == ".npy":
            return _npy_holds_events(path)
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                members = {name.removesuffix(".npy") for name in archive.namelist()}
            return not members & {"class_id", "labels", "boxes"}
        return _text_holds_events(path)
    except DAMAGE:
        return True  # damaged: opening it will say how


def _npy_holds_events(path: Path) -> bool:
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    if dtype.names is not None:
        return not {"w", "h", "class_id"} & set(dtype.names)
    return len(shape) == 2 and shape[1] == 4  # anything else is a table of something else: timestamps, an image


def _text_holds_events(path: Path) -> bool:
    """Four numbers in a row are an event; YOLO text has five or more, prose has none."""
    with open(path, "rb") as file:
        head = file.read(4096).decode("utf-8", "replace")
    for line in head.splitlines()[:20]:
        cells = [cell for cell in re.split(r"[\s,;]+", line.strip()) if cell]
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            continue
        if numbers:
            return len(numbers) == 4
    return False


def _find_labels(events: Path, root: Path) -> RecordingPaths:
    """The recording of an event file under ``root``, with the label files that belong to it."""
    stem = _stem(events)
    generic = stem in ("events", "")  # the folder gives the name
    inside = events.parent.relative_to(root) if events.parent != root else Path()
    folder = inside.parent if generic and inside.name else inside
    parts = [*reversed([part.lower() for part in inside.parts]), root.name.lower()]
    split = next((SPLITS[part] for part in parts if part in SPLITS), None)
    names = list(_LABEL_NAMES_OF_A_FOLDER) if generic else [name.format(stem) for name in _LABEL_NAMES]
    folders = [events.parent, events.parent / "labels", events.parent.parent / "labels"]
    candidates = [each_folder / name for each_folder in folders for name in names]
    labels = next((path for path in candidates if _may_be_labels(path, events)), None)
    named = [path for path in candidates if path.stem.endswith(("_bbox", "_labels")) and path.is_file()]
    ignored = tuple(path for path in named if labels in named and path != labels)
    truth = events.parent / ("truth.npz" if generic else f"{stem}_truth.npz")
    name = (folder / (events.parent.name if generic else stem)).as_posix()
    return RecordingPaths(name, split, events, labels, truth if truth.is_file() else None, ignored_labels=ignored)


def _stem(path: Path) -> str:
    """``drive_td.dat`` and ``drive_td.dat.h5`` → ``drive``; ``events.h5`` stays ``events``."""
    name = path.name
    while (suffix := Path(name).suffix.lower()) in (*EVENT_SUFFIXES, *TABLE_SUFFIXES) and Path(name).stem:
        name = name[: -len(suffix)]
    for ending in _EVENT_ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return name


def _may_be_labels(path: Path, events: Path) -> bool:
    if path == events:
        return False
    if path.is_dir():
        return any(child.suffix == ".txt" or child.name == "fate.json" for child in path.iterdir())
    if not path.is_file():
        return False
    plain = path.suffix.lower() in (".npy", ".npz") and not path.stem.endswith(_LABEL_ENDINGS)
    return not (plain and _holds_events(path))
