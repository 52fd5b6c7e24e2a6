"""The sequences of a dataset in RVT's layout: found, looked at, and brought to one size."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import h5py

from fate.data.assembly import Assembled
from fate.data.box_files import box_file_fault
from fate.data.class_maps import Classes, ClassMap, class_map
from fate.data.findings import THREADS, Finding
from fate.data.kinds import public_kind
from fate.data.layout import SPLITS
from fate.data.rvt_layout import RvtSequence, image_table
from fate.errors import FateError, FormatError, MissingDependencyError
from fate.events.events import Sensor
from fate.files import readable_folders
from fate.formats.hdf5.layout import damage_is_a_format_error

REPRESENTATIONS = "event_representations_v2"
LABELS = "labels_v2"
#: The representation that RVT trains on; others are used where they are the only one.
USUAL = "stacked_histogram_dt=50_nbins=10"
WHOLE, HALF = "event_representations.h5", "event_representations_ds2_nearest.h5"

LOOKED_AT = 20  # things in a folder, to tell whether it holds sequences
_UNMAPPED = ClassMap((), ())


class SequenceFiles(NamedTuple):
    """Where one sequence lies."""

    name: str
    split: str | None
    images: Path  #: the HDF5 file
    labels: Path | None

    @property
    def downscale(self) -> int:
        """2 where the histograms are of half resolution."""
        return 2 if self.images.name == HALF else 1


@readable_folders("sequences")
def holds_histograms(root: Path) -> bool:
    """Whether a folder is, or holds splits or sequences of, RVT's layout; looks into a few folders only."""
    if not root.is_dir():
        return False
    if (root / REPRESENTATIONS).is_dir():
        return True
    for folder, _ in _split_folders(root):
        with os.scandir(folder) as children:  # of a public dataset thousands of files, none of which is looked at
            first = next((child.path for child in islice(children, LOOKED_AT) if child.is_dir()), None)
        if first is not None and Path(first, REPRESENTATIONS).is_dir():
            return True
    return False


@readable_folders("sequences")
def find_sequences(root: Path, split: str | None, downscale: int | None) -> tuple[list[SequenceFiles], list[Finding]]:
    """All sequences in order of name, and a fault for each folder that is none.

    Args:
        root: the dataset, a split, or one sequence.
        split: keep only that one.
        downscale: 1 or 2 to ask for that resolution; None for half where it is there.
    """
    if (root / REPRESENTATIONS).is_dir():
        splits = {root: SPLITS.get(root.absolute().parent.name.lower())}
    else:
        splits = {child: name for folder, name in _split_folders(root) for child in folder.iterdir() if child.is_dir()}
    wanted = None if split is None else SPLITS[split]
    sequences, left_out = [], []
    for folder in sorted(splits):
        if wanted is not None and splits[folder] != wanted:
            continue
        name = folder.relative_to(root).as_posix() if folder != root else root.absolute().name
        images = _images(folder, downscale)
        if isinstance(images, str):
            left_out.append(Finding("damaged", f"{name}: left out: {images}", splits[folder]))
            continue
        labels = folder / LABELS / "labels.npz"
        sequences.append(SequenceFiles(name, splits[folder], images, labels if labels.is_file() else None))
    return sequences, left_out


def _split_folders(root: Path) -> list[tuple[Path, str | None]]:
    """Folders in which sequences lie, with the split of each."""
    with os.scandir(root) as children:
        inside = [Path(child.path) for child in children if child.name.lower() in SPLITS and child.is_dir()]
    if inside:
        return [(child, SPLITS[child.name.lower()]) for child in sorted(inside)]
    return [(root, SPLITS.get(root.resolve().name.lower()))]


def _images(folder: Path, downscale: int | None) -> Path | str:
    """The file of images of a sequence, or why there is none."""
    home = folder / REPRESENTATIONS
    if not home.is_dir():
        return f"it has no folder {REPRESENTATIONS}"
    kinds = sorted(child for child in home.iterdir() if child.is_dir())
    chosen = home / USUAL if home / USUAL in kinds else kinds[0] if len(kinds) == 1 else None
    if chosen is None:
        return f"it has {len(kinds)} representations and none is {USUAL}"
    names = {None: (HALF, WHOLE), 1: (WHOLE,), 2: (HALF,)}.get(downscale, ())
    file = next((chosen / name for name in names if (chosen / name).is_file()), None)
    return file or f"{chosen.name} holds no {' or '.join(names) or f'images divided by {downscale}'}"


def open_sequence(files: SequenceFiles, class_map: ClassMap) -> RvtSequence:
    """The sequence, its file of images looked at: number, shape, type and filter."""
    with damage_is_a_format_error(files.images), h5py.File(files.images, "r") as file:
        images, _, height, width = image_table(files.images, file).shape
    scale = files.downscale
    full = Sensor(int(height) * scale, int(width) * scale)
    found = RvtSequence(files.name, files.split, files.images, files.labels, class_map, full, scale)
    if not 0 < found.num_images <= images:
        raise FormatError(f"{files.images}: holds {images} images, and {found.num_images} end times; get it again")
    return found


def assemble_sequences(root: Path, split: str | None, classes: Classes | None, downscale: int | None) -> Assembled:
    """Look at all sequences and keep those of one size.

    Args:
        root: the dataset, a split, or one sequence.
        split: keep only that one.
        classes: as for ``open_dataset``; None for those of the public dataset with that sensor.
        downscale: 1 or 2 to ask for that resolution; None for half where it is there.
    """
    if not root.is_dir():
        raise FateError(f"{root}: no such folder; give a dataset in RVT's layout")
    files, left_out = find_sequences(root, split, downscale)
    if not files:
        reason = left_out[0].sentence if left_out else f"no folder in it holds {REPRESENTATIONS}"
        of_split = f" of the split {split!r}" if split else ""
        raise FateError(f"{root}: has no sequences in RVT's layout{of_split}; {reason}")
    findings = left_out
    with ThreadPoolExecutor(THREADS) as pool:
        seen = list(pool.map(_look, files))
    findings += [each for each in seen if isinstance(each, Finding)]
    sequences = [each for each in seen if isinstance(each, RvtSequence)]
    if not sequences:
        raise FateError(f"{root}: no sequence can be read; {findings[-1].sentence}")
    sensor = Counter(sequence.full_sensor for sequence in sequences).most_common(1)[0][0]
    kind = public_kind(sensor)
    if kind is None and classes is None:
        raise FateError(f"{root}: its histograms are of a {sensor} sensor, neither Gen1 nor 1Mpx; pass classes=[...]")
    mapped = class_map(classes, kind, str(root))
    scale = Counter(one.downscale for one in sequences if one.full_sensor == sensor).most_common(1)[0][0]
    recordings = []
    for one in sequences:
        if (one.full_sensor, one.downscale) != (sensor, scale):
            shown = f"{one.sensor} of {one.full_sensor}"
            sentence = f"{one.name}: left out: it is {shown}, the others are of {sensor}"
            findings.append(Finding("sensor", sentence, one.split))
            continue
        fault = "" if one.label_file is None else box_file_fault(one.label_file)
        if fault:
            sentence = f"{one.name}: its labels are not used: {one.label_file}: {fault}"
            findings.append(Finding("bad labels", sentence, one.split))
        elif one.label_file is None:
            sentence = f"{one.name}: has no labels; it serves detection, not training"
            findings.append(Finding("no labels", sentence, one.split))
        recordings.append(replace(one, class_map=mapped, label_file=None if fault else one.label_file))
    return Assembled(tuple(recordings), mapped, sensor, tuple(findings))


def _look(files: SequenceFiles) -> RvtSequence | Finding:
    try:
        return open_sequence(files, _UNMAPPED)
    except MissingDependencyError:
        raise  # one for all: nothing can be read without it
    except FateError as error:
        return Finding("damaged", f"{files.name}: left out: {error}", files.split)
