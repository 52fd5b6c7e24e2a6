"""RVT's preprocessed datasets, read in place: histograms of 50 ms windows, and boxes at the ends of some windows.

    <root>/{train,val,test}/<sequence>/
        event_representations_v2/stacked_histogram_dt=50_nbins=10/
            event_representations.h5               "data" [T, 20, H, W] uint8, blosc: needs hdf5plugin
            event_representations_ds2_nearest.h5   the same at half resolution (1Mpx)
            timestamps_us.npy                      [T] when each window ends
            objframe_idx_2_repr_idx.npy            [F] the window of each labelled time
        labels_v2/
            labels.npz                             "labels" as in _bbox.npy, in pixels of the camera
            timestamps_us.npy                      [F] the labelled times

Events cannot be recovered from histograms, so such a dataset works with histogram encoders only.
"""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.boxes import prophesee
from fate.boxes.labels import Labels
from fate.boxes.npz import DAMAGE
from fate.data.class_maps import ClassMap
from fate.data.findings import Finding
from fate.data.labelled_recording import EventReader, LabelledRecording, Span
from fate.data.layout import SPLITS, RecordingPaths
from fate.errors import FateError, FormatError
from fate.events.events import Sensor
from fate.files import MissingFileError, check_regular, readable_folders
from fate.formats.hdf5.events import check_filters, damage_is_a_format_error, refuse_other_files

REPRESENTATIONS = "event_representations_v2"
LABELS = "labels_v2"
#: The representation that RVT trains on. Another one is used if it is the only one.
USUAL_REPRESENTATION = "stacked_histogram_dt=50_nbins=10"
FULL_SIZE, HALF_SIZE = "event_representations.h5", "event_representations_ds2_nearest.h5"
WINDOW_US = 50_000  # used if the name of the folder does not say

_SCANNED = 20  # files of a folder that are listed to find out whether it holds sequences


@readable_folders("sequences")
def holds_histograms(root: Path) -> bool:
    """Whether a folder is a sequence of RVT's layout, or holds sequences or splits of them."""
    if not root.is_dir():
        return False
    if (root / REPRESENTATIONS).is_dir():
        return True
    for folder, _ in _split_folders(root):
        with os.scandir(folder) as children:  # a public dataset has thousands of files; only the first are listed
            first = next((child.path for child in islice(children, _SCANNED) if child.is_dir()), None)
        if first is not None and Path(first, REPRESENTATIONS).is_dir():
            return True
    return False


@readable_folders("sequences")
def find_sequences(
    root: Path, split: str | None = None, downscale: int | None = None
) -> tuple[list[RecordingPaths], list[Finding]]:
    """All sequences of a dataset, a split or one sequence, by name, and a fault for each folder that is not a sequence.

    ``downscale`` is 1 or 2 for that resolution, or None for half resolution if it exists.
    """
    if not root.is_dir():
        raise FateError(f"{root}: no such folder; give a dataset in RVT's layout")
    if (root / REPRESENTATIONS).is_dir():
        splits = {root: SPLITS.get(root.absolute().parent.name.lower())}
    else:
        splits = {child: name for folder, name in _split_folders(root) for child in folder.iterdir() if child.is_dir()}
    sequences, findings = [], []
    for folder in sorted(splits):
        if split is not None and splits[folder] != SPLITS[split]:
            continue
        name = folder.relative_to(root).as_posix() if folder != root else root.absolute().name
        images = _find_images(folder, downscale)
        if isinstance(images, str):
            findings.append(Finding("damaged", f"{name}: left out: {images}", splits[folder]))
            continue
        labels = folder / LABELS / "labels.npz"
        sequences.append(RecordingPaths(name, splits[folder], images, labels if labels.is_file() else None))
    if not sequences:
        reason = findings[0].sentence if findings else f"no folder in it holds {REPRESENTATIONS}"
        of_split = f" of the split {split!r}" if split else ""
        raise FateError(f"{root}: has no sequences in RVT's layout{of_split}; {reason}")
    return sequences, findings


def _split_folders(root: Path) -> list[tuple[Path, str | None]]:
    """Folders that contain sequences, each with its split."""
    with os.scandir(root) as children:
        inside = [Path(child.path) for child in children if child.name.lower() in SPLITS and child.is_dir()]
    if inside:
        return [(child, SPLITS[child.name.lower()]) for child in sorted(inside)]
    return [(root, SPLITS.get(root.resolve().name.lower()))]


def _find_images(folder: Path, downscale: int | None) -> Path | str:
    """The file of images of a sequence, or a description of why there is none."""
    home = folder / REPRESENTATIONS
    if not home.is_dir():
        return f"it has no folder {REPRESENTATIONS}"
    kinds = sorted(child for child in home.iterdir() if child.is_dir())
    usual = home / USUAL_REPRESENTATION
    chosen = usual if usual in kinds else kinds[0] if len(kinds) == 1 else None
    if chosen is None:
        return f"it has {len(kinds)} representations and none is {USUAL_REPRESENTATION}"
    names = {None: (HALF_SIZE, FULL_SIZE), 1: (FULL_SIZE,), 2: (HALF_SIZE,)}.get(downscale, ())
    file = next((chosen / name for name in names if (chosen / name).is_file()), None)
    return file or f"{chosen.name} holds no {' or '.join(names) or f'images divided by {downscale}'}"


def image_downscale(images: Path) -> int:
    """2 if a file of images is of half resolution, else 1."""
    return 2 if images.name == HALF_SIZE else 1


def open_sequence(paths: RecordingPaths) -> RvtSequence:
    """Open a sequence without classes; the number, shape, type and filter of its images are checked."""
    with damage_is_a_format_error(paths.events), h5py.File(paths.events, "r") as file:
        images, _, height, width = image_table(paths.events, file).shape
    downscale = image_downscale(paths.events)
    sensor = Sensor(int(height) * downscale, int(width) * downscale)
    no_classes = ClassMap((), ())
    found = RvtSequence(paths.name, paths.split, paths.events, paths.labels, no_classes, sensor, downscale)
    times = found.timestamps_us
    if not 0 < len(times) <= images:
        raise FormatError(f"{paths.events}: holds {images} images, and {len(times)} end times; get it again")
    # from the start of the first window to the end of the last one; the number of events is not known
    return replace(found, known_span=Span(int(times[0]) - found.window_us, int(times[-1]), 0))


@dataclass(frozen=True)
class RvtSequence(LabelledRecording):
    """One sequence of RVT's layout: images (histograms) instead of events. ``events_file`` is the file of images."""

    @property
    def num_images(self) -> int:
        """Number of images, T."""
        return len(self.timestamps_us)

    @cached_property
    def timestamps_us(self) -> NDArray[np.int64]:
        """[T] int64, µs: when the window of each image ends."""
        path = self.events_file.parent / "timestamps_us.npy"
        times = _whole_numbers(path, "times in µs")
        if (times[1:] < times[:-1]).any():
            raise FormatError(f"{path}: its times go back; get the sequence again")
        return times

    @cached_property
    def label_images(self) -> NDArray[np.int64]:
        """[F] int64: the index of the image that ends at each labelled time."""
        return _whole_numbers(self.events_file.parent / "objframe_idx_2_repr_idx.npy", "indices of images")

    @property
    def window_us(self) -> int:
        """Length of the window of one image, from the name of the folder."""
        match = re.search(r"_dt=(\d+)_", self.events_file.parent.name)
        return int(match[1]) * 1000 if match else WINDOW_US

    @property
    def num_events(self) -> int:
        """Raises FateError: the number of events is not known."""
        raise self._no_events()

    def open(self) -> EventReader:
        """Raises FateError: events cannot be recovered from histograms."""
        raise self._no_events()

    def _no_events(self) -> FateError:
        return FateError(
            f"{self.name}: holds histograms, from which events cannot be recovered; use read_images with a histogram"
            " encoder, or open the recordings that they were computed from"
        )

    def images(self, first: int, last: int) -> NDArray[np.uint8]:
        """Images ``first`` to ``last`` (not included): [last − first, 20, H, W] uint8."""
        if not 0 <= first <= last <= self.num_images:
            raise FateError(
                f"{self.name}: images {first} to {last} were asked for; there are {self.num_images}, counted from 0"
            )
        with damage_is_a_format_error(self.events_file), h5py.File(self.events_file, "r") as file:
            data = image_table(self.events_file, file)
            if len(data) < last:
                raise FormatError(f"{self.events_file}: holds {len(data)} images, and {self.num_images} end times")
            found: NDArray[np.uint8] = data[first:last]
        return found

    def read_images(self, start_us: int, end_us: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Images whose windows end in ``(start_us, end_us]`` and the times at which they end."""
        first, last = np.searchsorted(self.timestamps_us, [start_us, end_us], side="right").tolist()
        return self.images(first, max(first, last)), self.timestamps_us[first : max(first, last)]

    def read_label_file(self, path: Path) -> Labels:
        """The boxes of ``labels.npz``; RVT's filters have been applied to them already."""
        check_regular(path, "labels of RVT")
        try:
            with zipfile.ZipFile(path) as archive:
                boxes = archive.read("labels.npy")
        except DAMAGE as error:
            raise FormatError(f"{path}: cannot be read as RVT's labels ({error}); get it again") from error
        try:
            return prophesee.decode(boxes, name=str(path))
        except FateError as error:
            raise FormatError(f"{path}: {error}") from error


def image_table(path: Path, file: Any) -> Any:
    """The dataset ``data`` of an open file, which must be histograms that can be read here."""
    if not isinstance(file.get("data", getlink=True), h5py.HardLink) or not isinstance(file["data"], h5py.Dataset):
        raise FormatError(f"{path}: has no table 'data'; expected RVT's histograms")
    data = file["data"]
    refuse_other_files(path, data)
    if data.ndim != 4 or data.dtype != np.uint8:
        raise FormatError(f"{path}: 'data' is {data.dtype} of shape {data.shape}; expected uint8 [T, 20, H, W]")
    check_filters(path, data)
    return data


def _whole_numbers(path: Path, what: str) -> NDArray[np.int64]:
    """A file of whole numbers [N]."""
    try:
        check_regular(path, "an array of a sequence")
        array = np.load(path, allow_pickle=False)
    except (MissingFileError, *DAMAGE) as error:
        raise FormatError(f"{path}: is missing or damaged ({error}); get the sequence again") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        held = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "an archive"
        raise FormatError(f"{path}: holds {held}; expected {what}")
    return array.astype(np.int64)
