"""RVT's preprocessed datasets: histograms of 50 ms and the boxes at some of their ends, read in place.

    <root>/{train,val,test}/<sequence>/
        event_representations_v2/stacked_histogram_dt=50_nbins=10/
            event_representations.h5               "data" [T, 20, H, W] uint8, blosc: needs hdf5plugin
            event_representations_ds2_nearest.h5   the same at half resolution (1Mpx)
            timestamps_us.npy                      [T] when each window ends
            objframe_idx_2_repr_idx.npy            [F] the window of each labelled time
        labels_v2/
            labels.npz                             "labels" as in _bbox.npy, in pixels of the camera
            timestamps_us.npy                      [F] the labelled times

Events cannot be had back from histograms: such a dataset goes with histogram encoders only.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from fate.boxes import prophesee
from fate.boxes.labels import Labels
from fate.boxes.npz import DAMAGE
from fate.data.event_files import EventReader, Span
from fate.data.labelled_recording import LabelledRecording
from fate.errors import FateError, FormatError, missing_packages
from fate.files import MissingFileError, check_regular
from fate.formats.hdf5.layout import damage_is_a_format_error, refuse_other_files

WINDOW_US = 50_000  # where the folder's name does not say


@dataclass(frozen=True)
class RvtSequence(LabelledRecording):
    """One sequence of RVT's layout: images (histograms) instead of events. ``events_file`` is the file of images."""

    @property
    def num_images(self) -> int:
        """T."""
        return len(self.timestamps_us)

    @cached_property
    def timestamps_us(self) -> NDArray[np.int64]:
        """[T] int64, µs: when the window of each image ends."""
        return _times(self.events_file.parent / "timestamps_us.npy")

    @cached_property
    def label_images(self) -> NDArray[np.int64]:
        """[F] int64: the number of the image that ends at each labelled time."""
        path = self.events_file.parent / "objframe_idx_2_repr_idx.npy"
        places = _array(path)
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise FormatError(f"{path}: holds {places.dtype} of shape {places.shape}; expected numbers of images")
        return places.astype(np.int64)

    @property
    def window_us(self) -> int:
        """How long the events of an image were gathered, from the name of its folder."""
        match = re.search(r"_dt=(\d+)_", self.events_file.parent.name)
        return int(match[1]) * 1000 if match else WINDOW_US

    @cached_property
    def span(self) -> Span:
        """From the start of the first window to the end of the last one; the number of events is not known."""
        if self.known_span is not None:
            return self.known_span
        times = self.timestamps_us
        return Span(int(times[0]) - self.window_us, int(times[-1]), 0) if len(times) else Span(0, 0, 0)

    def measure(self) -> tuple[Span, str]:
        """The span; files of images tell their number at their head, so none ends early unnoticed."""
        return self.span, ""

    @property
    def num_events(self) -> int:
        """Not known."""
        raise self._no_events()

    def open(self) -> EventReader:
        """There is nothing to open: events cannot be had back."""
        raise self._no_events()

    def _no_events(self) -> FateError:
        return FateError(
            f"{self.name}: holds histograms, from which events cannot be had back; use read_images with a histogram"
            " encoder, or open the recordings that they were made from"
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
    settings = data.id.get_create_plist()
    for number in range(settings.get_nfilters()):
        code = int(settings.get_filter(number)[0])
        if not h5py.h5z.filter_avail(code):
            _load_plugin(path, code)
    return data


def _load_plugin(path: Path, code: int) -> None:
    """Register the filters of hdf5plugin; refuse a file whose filter is not among them."""
    try:
        importlib.import_module("hdf5plugin")
    except ImportError:
        raise missing_packages(f"{path}: reading images with the HDF5 filter {code}", ("hdf5plugin",)) from None
    if not h5py.h5z.filter_avail(code):
        raise FormatError(f"{path}: its images use the HDF5 filter {code}, which hdf5plugin does not have")


def _times(path: Path) -> NDArray[np.int64]:
    times = _array(path)
    if times.ndim != 1 or times.dtype.kind not in "iu" or (times[1:] < times[:-1]).any():
        raise FormatError(
            f"{path}: holds {times.dtype} of shape {times.shape}; expected times in µs that never go back"
        )
    return times.astype(np.int64)


def _array(path: Path) -> NDArray[Any]:
    try:
        check_regular(path, "an array of a sequence")
    except MissingFileError:
        raise FormatError(f"{path}: is missing; get the sequence again") from None
    try:
        array = np.load(path, allow_pickle=False)
    except DAMAGE as error:
        raise FormatError(f"{path}: is damaged ({error}); get it again") from error
    if not isinstance(array, np.ndarray):
        raise FormatError(f"{path}: is an archive; expected one array")
    return array
