"""Find the recordings of a dataset and the labels that belong to them, in whatever way the files lie.

Known ways, which may be mixed:

- the public layout: ``train|val|test/<name>_td.dat`` with ``<name>_bbox.npy`` beside it (and, from the simulator,
  ``<name>_truth.npz`` with boxes at 200 Hz);
- a flat folder, or any tree of folders, of recordings that :func:`fate.open_recording` opens, each with a label file
  of the same stem beside it or in a folder ``labels`` beside it or beside its folder: ``X.raw`` with ``X_bbox.npy``,
  ``X.npz``, ``X.json`` or a folder ``X`` of YOLO text;
- a folder per recording, which then gives the name: ``<name>/events.h5`` with ``labels.npz``, ``bbox.npy`` or
  ``tracks.npy``.

Tables (``.npy``, ``.npz``, ``.csv``, ``.txt``) may be events or labels; a look at their head tells which.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fate.boxes.npz import DAMAGE
from fate.errors import FateError
from fate.files import readable_folders, walk_folders

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
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
    "{}_bbox.npy",
    "{}_labels.npy",
    "{}_bbox.npz",
    "{}_labels.npz",
    "{}.npz",
    "{}.json",
    "{}_labels.json",
    "{}_bbox.json",
    "{}_tracks.npy",
    "{}.npy",
    "{}",
    "{}_labels",
)
_LABEL_NAMES_OF_A_FOLDER = ("bbox.npy", "labels.npy", "tracks.npy", "labels.npz", "labels.json", "labels")
_LABEL_ENDINGS = ("_bbox", "_labels", "_truth", "_bbox_times", "_labels_times", "_tracks")


@dataclass(frozen=True)
class Entry:
    """One recording of a dataset and the files that belong to it."""

    name: str  #: path inside the dataset without suffix, such as ``"train/drive_0003"``
    split: str | None  #: ``"train"``, ``"val"``, ``"test"``, or None where the folders do not say
    events: Path
    labels: Path | None = None
    truth: Path | None = None  #: dense exact boxes, from the simulator


@dataclass(frozen=True)
class Layout:
    """The recordings of a dataset, in order of name."""

    root: Path
    entries: tuple[Entry, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that occur, in the usual order."""
        found = {entry.split for entry in self.entries}
        return tuple(split for split in ("train", "val", "test") if split in found)


@readable_folders("recordings")
def find_recordings(path: str | os.PathLike[str], split: str | None = None) -> Layout:
    """The recordings under ``path``: a dataset folder, or a single recording.

    Args:
        path: a folder in one of the layouts above, or one file.
        split: keep only ``"train"``, ``"val"`` or ``"test"``.
    """
    root = Path(path)
    if split is not None and split not in SPLITS:
        raise FateError(f"split {split!r} was given; expected train, val or test")
    if _is_bag(root) or root.is_file():
        return Layout(root.parent, (_entry(root, root.parent),))
    if not root.exists():
        raise FateError(f"{path}: no such folder or file; give the folder of a dataset, or one recording")
    if not root.is_dir():
        raise FateError(f"{path}: is neither a folder nor a file; give the folder of a dataset, or one recording")
    entries = _unique_names([_entry(file, root) for file in _event_files(root)])
    if not entries:
        raise FateError(_nothing_found(root))
    if split is None:
        return Layout(root, entries)
    kept = tuple(entry for entry in entries if entry.split == SPLITS[split])
    if not kept:
        found = ", ".join(Layout(root, entries).splits) or "none: no folder is called train, val or test"
        raise FateError(f"{path}: has no recordings of the split {split!r}; its splits are {found}")
    return Layout(root, kept)


def _event_files(root: Path) -> Iterator[Path]:
    """Files that hold events, sorted; links to folders are followed, each folder once."""
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
        if path.exists() and not path.is_file():  # a pipe, say: looking into it could take for ever
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


def _entry(events: Path, root: Path) -> Entry:
    stem = _stem(events)
    generic = stem in ("events", "")
    shown = events.parent.name if generic else stem
    inside = events.parent.relative_to(root) if events.parent != root else Path()
    home = inside.parent if generic and inside.name else inside
    parts = [*reversed([part.lower() for part in inside.parts]), root.name.lower()]
    split = next((SPLITS[part] for part in parts if part in SPLITS), None)
    names = list(_LABEL_NAMES_OF_A_FOLDER) if generic else [name.format(stem) for name in _LABEL_NAMES]
    places = [events.parent, events.parent / "labels", events.parent.parent / "labels"]
    labels = next(
        (place / name for place in places for name in names if _may_be_labels(place / name, events)),
        None,
    )
    truth = events.parent / ("truth.npz" if generic else f"{stem}_truth.npz")
    return Entry((home / shown).as_posix(), split, events, labels, truth if truth.is_file() else None)


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


def _unique_names(entries: list[Entry]) -> tuple[Entry, ...]:
    """Two files of one stem, ``drive.raw`` and ``drive.dat``, are called by their whole names."""
    names = [entry.name for entry in entries]
    renamed = [
        Entry((Path(entry.name).parent / entry.events.name).as_posix(), *_rest(entry))
        if names.count(entry.name) > 1
        else entry
        for entry in entries
    ]
    return tuple(sorted(renamed, key=lambda entry: entry.name))


def _rest(entry: Entry) -> tuple[str | None, Path, Path | None, Path | None]:
    return entry.split, entry.events, entry.labels, entry.truth


def _nothing_found(root: Path) -> str:
    looked = f"looked, in all folders below, for {' '.join(EVENT_SUFFIXES)}, tables of events and ROS bags"
    if next(root.rglob("event_representations*"), None) is not None:
        return (
            f"{root}: holds RVT's preprocessed histograms and no events ({looked}); give the folder of the recordings"
            " they were made from"
        )
    return f"{root}: has no event recordings; {looked}; give the folder of a dataset, or one recording"
