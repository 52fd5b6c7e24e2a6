"""The files of one simulated recording, written while it is simulated, in the layout of the public datasets.

``<name>_td.dat`` holds the events, ``<name>_bbox.npy`` the boxes at the rate of the public labels, and
``<name>_truth.npz`` the boxes every 5 ms, with the visible share of each (``visible``) beside the columns of every
label file.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fate.boxes import npz
from fate.boxes.label_files import write_labels
from fate.boxes.labels import Labels
from fate.errors import FateError
from fate.formats.saving import open_writer
from fate.simulation.arrays import Float32, Int64
from fate.simulation.art.catalogue import SPLITS
from fate.simulation.camera.camera_model import PRESETS, CameraModel, camera_preset
from fate.simulation.writing.manifest import Manifest, RecordingEntry, file_facts
from fate.simulation.writing.request import RecordingJob
from fate.version import __version__
from fate.whole_files import write_whole

if TYPE_CHECKING:  # torch takes seconds to load, and refusing bad arguments should not wait for it
    from fate.events.events import Events, Sensor
    from fate.simulation.camera.random_sensor import RandomSensor
    from fate.simulation.render.scene import BoxesAt, Scene

TRUTH_US = 5000  # 200 Hz

ENDINGS = {"events": "_td.dat", "labels": "_bbox.npy", "times": "_bbox_times.npy", "truth": "_truth.npz"}

#: Camera parameters listed for every recording; others are listed if they differ from the preset.
ALWAYS_LISTED = ("threshold_on", "threshold_off", "bursts")

#: Names of the files of a recording, and of the drafts of all files.
_OURS = re.compile(
    r"sim_\w+_\d{6,}_(td\.dat|bbox\.npy|bbox_times\.npy|truth\.npz)"
    r"|\.(sim_\w+_\d{6,}_\w+|preview|manifest)\.(dat|npy|npz|mp4|json)\..*(part|tmp)"
)


def label_times(duration_us: int, label_hz: int) -> Int64:
    """Return the times of the label file in µs, k / label_hz from k = 1 up: public files have none at 0."""
    counts = np.arange(1, duration_us * label_hz // 1_000_000 + 2)
    times = np.rint(counts * 1e6 / label_hz).astype(np.int64)
    return times[times <= duration_us]


def truth_times(duration_us: int) -> Int64:
    """Return the times of the exact boxes in µs, every 5 ms from 5 ms up."""
    return np.arange(TRUTH_US, duration_us + 1, TRUTH_US, dtype=np.int64)


def box_times(scene: Scene) -> Int64:
    """Return all times in µs at which the files need the boxes of a scene, sorted."""
    return np.union1d(label_times(scene.duration_us, scene.label_hz), truth_times(scene.duration_us))


def camera_values(camera: CameraModel) -> dict[str, Any]:
    """Return the parameters of a camera for the manifest, which holds the sensor separately."""
    return {name: value for name, value in asdict(camera).items() if name != "sensor"}


def preset_values(profile: str) -> dict[str, Any]:
    """Return the parameters that the recordings of a profile share, for the manifest."""
    return camera_values(camera_preset(profile)) if profile in PRESETS else {}


class Recorded(Protocol):
    """What is recorded: a simulated scene, or a video."""

    frame: Sensor  #: (height, width) of the events
    classes: tuple[str, ...]
    camera: CameraModel
    duration_us: int
    label_hz: int
    random_sensor: RandomSensor | None  #: the sensor of a recording that has one of its own

    @property
    def shows(self) -> str:
        """The kind of scene in a few words."""


class Piece(Protocol):
    """The next events of a recording, and boxes at the next times."""

    @property
    def events(self) -> Events: ...

    @property
    def boxes(self) -> BoxesAt: ...


class RecordingFiles:
    """Writes the files of one recording; they are valid once the manifest lists them."""

    def __init__(self, folder: Path, job: RecordingJob, scene: Recorded) -> None:
        self.job, self.scene = job, scene
        self.paths = {kind: folder / job.split / f"{job.name}{ending}" for kind, ending in ENDINGS.items()}
        self.events = self.on_events = 0
        self._rows: list[tuple[NDArray[Any], ...]] = []  # of each piece: t_us, and the columns of its boxes
        self._writer = open_writer(self.paths["events"], scene.frame)

    def take(self, piece: Piece) -> None:
        """Write the next events of the recording, and keep the boxes at the next of :func:`box_times`."""
        self._writer.write(piece.events)
        self.events += len(piece.events)
        self.on_events += int(np.count_nonzero(piece.events.p))
        t_us, count, boxes = piece.boxes
        self._rows.append((np.repeat(t_us, count), *boxes))

    def finish(
        self, device: str, preset: dict[str, Any], labelled_us: tuple[Int64, Int64] | None = None
    ) -> RecordingEntry:
        """Complete all files and return their manifest entry.

        ``preset`` holds the profile's camera parameters. ``labelled_us`` are the times of the label file and of the
        exact boxes; by default they follow from ``label_hz`` and the length of the recording.
        """
        self._writer.close()
        t_us, boxes, class_id, track_id, visible = (np.concatenate(column) for column in zip(*self._rows, strict=True))

        def table(labelled_us: Int64) -> tuple[Labels, Float32]:
            rows = np.isin(t_us, labelled_us)
            columns = (t_us[rows], *boxes[rows].T, class_id[rows], track_id[rows])
            names, sensor = self.scene.classes, self.scene.frame
            return Labels(*columns, labelled_us=labelled_us, classes=names, sensor=sensor), visible[rows]

        duration_us, label_hz = self.scene.duration_us, self.scene.label_hz
        label_us, truth_us = labelled_us or (label_times(duration_us, label_hz), truth_times(duration_us))
        (labels, _), (truth, visible) = table(label_us), table(truth_us)
        write_labels(self.paths["labels"], labels)
        write_whole(self.paths["truth"], truth_bytes(truth, visible))
        job, values = self.job, camera_values(self.scene.camera)
        if self.scene.random_sensor is not None:
            values |= self.scene.random_sensor.values()
        return RecordingEntry(
            **vars(job),
            seconds=duration_us / 1e6,
            device=device,
            fate=__version__,
            label_hz=label_hz,
            events=self.events,
            on_events=self.on_events,
            boxes=_by_class(labels),
            truth_boxes=_by_class(truth),
            camera={name: values[name] for name in values if name in ALWAYS_LISTED or preset.get(name) != values[name]},
            shows=self.scene.shows,
            files={f"{job.split}/{path.name}": file_facts(path) for path in self.paths.values() if path.exists()},
        )

    def discard(self) -> None:
        """Remove what was written."""
        self._writer.discard()
        for path in self.paths.values():
            path.unlink(missing_ok=True)


def truth_bytes(labels: Labels, visible: Float32) -> bytes:
    """A label file with one more member: ``visible`` [N] float32, the visible share of each row."""
    column = io.BytesIO()
    np.save(column, visible, allow_pickle=False)
    archive = io.BytesIO(npz.encode_labels(labels))
    with zipfile.ZipFile(archive, "a") as file:
        # the oldest date a zip archive can hold, as numpy gives its members: the same boxes give the same bytes
        member = zipfile.ZipInfo("visible.npy", (1980, 1, 1, 0, 0, 0))
        member.external_attr = 0o600 << 16
        file.writestr(member, column.getvalue(), zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _by_class(labels: Labels) -> dict[str, int]:
    names = labels.classes or ()
    counts = np.bincount(labels.class_id, minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def clear_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove unfinished files of a stopped run, and files of recordings that the manifest does not list.

    Only names that the simulator itself gives are touched.
    """
    listed = {folder / name for entry in manifest.recordings for name in entry.files}
    folders = [each for each in (folder, *(folder / split for split in SPLITS)) if each.is_dir()]
    for path in (path for each in folders for path in sorted(each.iterdir()) if path.is_file()):
        if path not in listed and _OURS.fullmatch(path.name):
            try:
                path.unlink()
            except OSError as error:
                raise FateError(
                    f"{path}: is left from a stopped run and cannot be removed ({error.strerror}); remove it"
                ) from None
