"""From a label file to the boxes of a dataset: times on the clock of the events, classes and pixels of the dataset.

Boxes that are clipped or dropped are counted, so that they can be reported.
"""

from __future__ import annotations

import ast
import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.coco import category_ids
from fate.boxes.label_files import naming_errors, read_labels, recognise
from fate.boxes.labels import Labels, LabelSource
from fate.boxes.npz import DAMAGE
from fate.boxes.yolo import META_FILE
from fate.data.class_maps import ClassMap, plain
from fate.errors import FateError, FormatError
from fate.events.events import Sensor
from fate.events.window import MAX_TIME_US
from fate.json_files import whole_number

MARGIN_PX = 1.0  # a box may extend this far beyond the frame without being counted
MAX_HEAD_BYTES = 4096  # of the header of a box array; published files have 300

#: Microseconds in a unit of time that label files may use, as a fraction.
US_PER_UNIT: dict[str, tuple[int, int]] = {"us": (1, 1), "ms": (1000, 1), "s": (1_000_000, 1), "ns": (1, 1000)}


@dataclass(frozen=True)
class Clock:
    """Converts times of a label file to times of the events."""

    unit: str = "us"  #: time unit of the label file: us, ms, s or ns
    offset_us: int = 0  #: added afterwards

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str) or self.unit not in US_PER_UNIT:
            raise FateError(f"label_time_unit {self.unit!r} was given; expected one of {', '.join(US_PER_UNIT)}")
        whole_number(self.offset_us, "label_offset_us, in microseconds,", -MAX_TIME_US, MAX_TIME_US)

    def convert(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times in µs on the clock of the events."""
        factor, divisor = US_PER_UNIT[self.unit]
        if np.abs(times.astype(np.float64)).max(initial=0) >= MAX_TIME_US // factor:
            raise FormatError(
                f"labels have a time of {int(times[-1])} {self.unit}; that is beyond all times; check the unit"
            )
        return times * np.int64(factor) // np.int64(divisor) + np.int64(self.offset_us)


@dataclass(frozen=True)
class Boxes:
    """The boxes of one label file as the dataset has them."""

    labels: Labels
    clipped: int = 0  #: boxes that extend beyond the frame by more than a pixel; clipped
    outside: int = 0  #: of these, boxes completely outside, which were dropped
    unknown: dict[str, int] = field(default_factory=dict)  #: number of dropped boxes by unknown class
    renamed: dict[str, str] = field(default_factory=dict)  #: names in the file that became others by their ids


def load_boxes(raw: Labels, name: str, class_map: ClassMap, full: Sensor, downscale: int, clock: Clock) -> Boxes:
    """Boxes of a label file, as :func:`read_box_file` gives them, in the classes, pixels and time of a dataset.

    An error begins with ``name``, the file. ``full`` is the (height, width) of the camera, in whose pixels the file is;
    squares with ``downscale`` pixels along a side become one pixel.
    """
    if raw.sensor is not None and raw.sensor != tuple(full):
        raise FormatError(f"{name}: labels are of a {Sensor(*raw.sensor)} sensor, events of a {full} one")
    class_ids, unknown = class_map.ids_of(raw)
    renamed = class_map.renamed(raw)
    ours = {plain(each) for each in class_map.names}
    for theirs, by_id in renamed.items():
        if plain(theirs) in ours:
            raise FormatError(
                f"{name}: its class {theirs} has an id that the dataset gives to {by_id}; give classes as a list,"
                f" [{', '.join(class_map.names)}], so that they are found by their names, or correct the ids"
            )
    boxes = raw.boxes.astype(np.float64)
    frame = np.array([full.width, full.height, full.width, full.height], np.float64)
    beyond = ((boxes < -MARGIN_PX) | (boxes > frame + MARGIN_PX)).any(axis=1)
    clipped = np.clip(boxes, 0, frame)
    had_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    outside = had_area & (clipped[:, 2:] <= clipped[:, :2]).any(axis=1)
    keep = (class_ids >= 0) & ~outside
    scaled = (clipped[keep] / downscale).astype(np.float32)
    others = (column[keep] for column in (class_ids, raw.track_id, raw.score, raw.source))
    labelled_us, small = np.unique(clock.convert(raw.labelled_us)), small_sensor(full, downscale)
    columns = (clock.convert(raw.t_us[keep]), *scaled.T, *others)
    classes, sensor = class_map.label_classes(raw), (small.height, small.width)
    labels = Labels(*columns, labelled_us=labelled_us, classes=classes, sensor=sensor)
    beyond &= class_ids >= 0
    return Boxes(labels, int(np.count_nonzero(beyond)), int(np.count_nonzero(beyond & outside)), unknown, renamed)


def small_sensor(full: Sensor, downscale: int) -> Sensor:
    """The sensor after downscaling; an incomplete last row or column counts."""
    return Sensor(-(-full.height // downscale), -(-full.width // downscale))


def read_box_file(path: Path, full: Sensor, by_id: bool = False) -> Labels:
    """Read a label file of any format.

    Args:
        path: the file, or a folder of YOLO text.
        full: (height, width) of the camera in pixels, for YOLO text without it.
        by_id: whether the user gave classes by their ids. Class ids of a COCO file are then its category ids; otherwise
            they count its categories from 0.
    """
    plain_text = path.is_dir() and not (path / META_FILE).exists()
    labels = read_labels(path, sensor=(full.height, full.width) if plain_text else None)
    _refuse_detections(path, labels)
    if not by_id or path.is_dir():
        return labels
    with naming_errors(path, "labels", FormatError):
        data = path.read_bytes()
        ids = category_ids(data, str(path)) if recognise(data) == "coco" else None
    return labels if ids is None else replace(labels, class_id=np.array(ids, np.int32)[labels.class_id], classes=None)


def _refuse_detections(path: Path, labels: Labels) -> None:
    """Refuse boxes with scores that no person gave: a detector would learn from itself, or be measured with itself.

    Prophesee's own labels have scores too (``class_confidence``), so that npy files are accepted.
    """
    scored = (labels.score < 1) & (labels.source == LabelSource.GROUND_TRUTH)
    if path.suffix.lower() != ".npy" and scored.any():
        row = int(np.argmax(scored))
        raise FormatError(
            f"{path}: box {row} has the score {labels.score[row]:.2g}, so the file holds detections, which are no"
            " ground truth; give labels that a person made or corrected (fate label-kit)"
        )


def box_file_fault(path: Path) -> str:
    """Why a label file cannot be read, judged by its header and size; empty if nothing is wrong.

    Text (COCO, YOLO) is not checked, because that requires reading all of it.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return "is a device or a pipe; expected labels"
        if path.suffix.lower() == ".npy":
            return _npy_fault(path)
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path):
                return ""
        path.stat()
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except DAMAGE as error:
        return f"is damaged ({error})"
    return ""


def _npy_fault(path: Path) -> str:
    """Compare the array's shape and type with the size of the file: downloads may be incomplete."""
    with open(path, "rb") as file:
        major = np.lib.format.read_magic(file)[0]
        length = int.from_bytes(file.read(2 if major == 1 else 4), "little")
        head = file.read(min(length, MAX_HEAD_BYTES)).decode("latin-1").strip()
        start = file.tell()
        size = file.seek(0, 2)
    described: Any = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", head))  # Python 2 wrote 12L
    dtype, shape = np.lib.format.descr_to_dtype(described["descr"]), described["shape"]
    if dtype.names is None or len(shape) != 1:
        return f"holds {dtype} of shape {shape}, not a list of boxes"
    expected = start + int(shape[0]) * dtype.itemsize
    return f"is cut short: it has {size} bytes of {expected}" if size < expected else ""
