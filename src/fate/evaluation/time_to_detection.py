"""Time to detection: the delay from the time an object comes into view to its first correct box.

It needs exact boxes at many times; simulated recordings have them every 5 ms, with the visible share of each object.
An object (track)

- *appears* at the first time at which at least half of it is visible and its box passes the size limits of the
  protocol, if one is given. Objects in view at the start of the recording are counted and left out;
- is *found* by the first later prediction with its class, a score of at least 0.5, and an IoU of at least 0.5 with its
  box, interpolated to the time of the prediction (there is no box while the object is hidden between two times of
  ground truth). A prediction counts for one object only: the one of its class with the largest IoU;
- is *missed* if it is never found.

The *delay* is the time of that prediction, the end of its window, minus the time of appearance; the latency of the
computation is not included. A perfect detector has a mean delay of half a hop, 25 ms at 20 Hz and 2.5 ms at 200 Hz.
Quantiles are of the found objects, so read them together with the share of missed ones.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.iou import expand_ranges
from fate.boxes.iou import iou as iou_of
from fate.boxes.label_files import naming_errors, read_labels
from fate.boxes.labels import Labels
from fate.boxes.npz import load_arrays
from fate.errors import FateError, FormatError
from fate.evaluation.labelled_frames import BoxTable, box_table
from fate.evaluation.protocols import Protocol

NEVER = np.iinfo(np.int64).max  # the time of something that does not happen
#: Smallest score and IoU of a correct box, and smallest visible share of an object in view.
THRESHOLD = MIN_OVERLAP = MIN_VISIBLE = 0.5
_GAP = 1.5  # median steps of the ground truth; an object was hidden between boxes further apart


@dataclass(frozen=True)
class DenseTruth:
    """Exact boxes of one recording at many times."""

    labels: Labels  #: N rows, each with a track
    visible: NDArray[np.float32]  #: [N] visible share of the object

    def __post_init__(self) -> None:
        if self.visible.shape != self.labels.t_us.shape:
            raise FateError(
                f"{len(self.visible)} visible shares were given for {len(self.labels)} boxes; give one each"
            )


def read_dense_truth(path: str | os.PathLike[str]) -> DenseTruth:
    """Read the ``_truth.npz`` of a simulated recording; boxes of any other label file count as fully visible."""
    labels = read_labels(path)
    visible: NDArray[Any] = np.ones(len(labels), np.float32)
    if zipfile.is_zipfile(path):
        with naming_errors(Path(path), "ground truth", FormatError), Path(path).open("rb") as file:
            visible = load_arrays(file, ending="visible").get("visible", visible)
    if visible.dtype.kind != "f" or visible.shape != labels.t_us.shape:
        raise FormatError(f"{path}: has {visible.shape} visible shares for {len(labels)} boxes; write it again")
    return DenseTruth(labels, visible.astype(np.float32))


@dataclass(frozen=True)
class DetectionDelays:
    """Delays of K objects that appeared."""

    classes: tuple[str, ...]
    at_start: int  #: objects in view at the start of their recording, left out
    never_half: int  #: objects that were never half visible and large enough
    delay_ms: NDArray[np.float64]  #: [K] NaN for an object that was missed
    class_id: NDArray[np.int64]  #: [K]
    life_ms: NDArray[np.float64]  #: [K] from the appearance to the last box of ground truth

    def __len__(self) -> int:
        return len(self.delay_ms)

    @property
    def missed(self) -> int:
        """Objects that were never found."""
        return int(np.count_nonzero(np.isnan(self.delay_ms)))

    def quantile_ms(self, share: float) -> float | None:
        """A quantile of the delays of the *found* objects; None if none was found."""
        found = self.delay_ms[~np.isnan(self.delay_ms)]
        return float(np.quantile(found, share)) if len(found) else None

    def found_within(self, milliseconds: float) -> float | None:
        """The share of *all* objects found within this time; None if none appeared."""
        return float(np.count_nonzero(self.delay_ms <= milliseconds) / len(self)) if len(self) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; objects that were left out are counted only for all classes together."""
        by_class = {}
        for index, name in enumerate(self.classes):
            rows = self.class_id == index
            of_class = replace(self, **{key: getattr(self, key)[rows] for key in ("delay_ms", "class_id", "life_ms")})
            by_class[name] = of_class._summary()
        left_out = {"at_start": self.at_start, "never_half_visible": self.never_half}
        return {**self._summary(), **left_out, "by_class": by_class}

    def _summary(self) -> dict[str, Any]:
        return {
            "objects": len(self),
            "median_ms": self.quantile_ms(0.5),
            "p90_ms": self.quantile_ms(0.9),
            "missed": self.missed,
            "missed_share": self.missed / len(self) if len(self) else None,
            "found_within_100_ms": self.found_within(100.0),
        }


def time_to_detection(
    truth: Mapping[str, DenseTruth],
    predictions: Mapping[str, Labels],
    classes: Sequence[str],
    *,
    protocol: Protocol | None = None,
) -> DetectionDelays:
    """Delays of all objects of all recordings, for predictions at one rate.

    Args:
        truth: dense, by recording.
        predictions: by recording, with the end of the window as time. Without them, all its objects are missed.
        classes: names of class ids; labels with class names are matched by name.
        protocol: for its size limits, which the box of an appearing object must pass; None: any size.
    """
    parts: list[tuple[NDArray[Any], ...]] = []
    at_start = never = 0
    for name, dense in truth.items():
        class_id, appeared, ended, found = _objects(
            dense, predictions.get(name, Labels.empty()), classes, name, protocol
        )
        in_view = appeared < NEVER
        first_us = dense.labels.labelled_us[0] if len(dense.labels.labelled_us) else 0
        present = in_view & (appeared <= first_us)
        never += int(np.count_nonzero(~in_view))
        at_start += int(np.count_nonzero(present))
        delay = np.where(found < NEVER, (found - appeared) / 1000, np.nan)
        life = (ended - appeared) / 1000
        parts.append(tuple(each[in_view & ~present] for each in (delay, class_id, life)))
    empty = (np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    columns = (np.concatenate(column) for column in zip(empty, *parts, strict=True))
    return DetectionDelays(tuple(classes), at_start, never, *columns)


def _objects(
    dense: DenseTruth, predictions: Labels, classes: Sequence[str], name: str, protocol: Protocol | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The class of each of K objects, and in µs when it appeared, had its last box, and was found (NEVER if not)."""
    labels = dense.labels
    if (labels.track_id < 0).any():
        raise FateError(f"truth of {name}: a box has no track; objects are identified by tracks; add them")
    table = box_table(labels, classes, f"truth of {name}")
    in_view = dense.visible >= MIN_VISIBLE
    if protocol is not None:
        in_view &= table.is_large_enough(protocol)
    rows = np.lexsort((labels.t_us, labels.track_id))
    rows = rows[table.class_id[rows] >= 0]
    times, class_id = labels.t_us[rows], table.class_id[rows]
    tracks, first, owner = np.unique(labels.track_id[rows], return_index=True, return_inverse=True)
    appeared, found = np.full(len(tracks), NEVER), np.full(len(tracks), NEVER)
    np.minimum.at(appeared, owner, np.where(in_view[rows], times, NEVER))
    # each box with the next one of its object, or with itself if there is none near enough
    step = np.median(np.diff(labels.labelled_us)) if len(labels.labelled_us) > 1 else 0.0
    following = np.arange(len(rows))
    following[:-1] += (owner[1:] == owner[:-1]) & (np.diff(times) <= _GAP * step)
    seen = box_table(predictions.select(predictions.score >= THRESHOLD), classes, f"predictions of {name}")
    box, row = _correct_boxes(seen, times, table.xywh[rows], class_id, following)
    counts = seen.t_us[row] >= appeared[owner[box]]
    np.minimum.at(found, owner[box[counts]], seen.t_us[row[counts]])
    return class_id[first], appeared, times[np.flatnonzero(np.diff(owner, append=-1))], found


def _correct_boxes(
    predictions: BoxTable,
    times: NDArray[np.int64],
    xywh: NDArray[np.float64],
    class_id: NDArray[np.int64],
    following: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of a box of ground truth, of N, and a correct prediction between it and the box ``following`` [N] it."""
    # predictions in [from, to) of each pair of boxes; of a single box, those at its time
    behind = np.maximum(times[following], times + 1)
    box, row = expand_ranges(*(np.searchsorted(predictions.t_us, each).astype(np.int64) for each in (times, behind)))
    same = class_id[box] == predictions.class_id[row]
    box, row = box[same], row[same]
    length = np.maximum(times[following] - times, 1)[box]
    share = ((predictions.t_us[row] - times[box]) / length)[:, None]
    expected = (1 - share) * xywh[box] + share * xywh[following[box]]
    iou = iou_of(predictions.xywh[row], expected)
    # a prediction counts for the object with the largest IoU, whether that has appeared yet or not
    order = np.lexsort((-iou, row))
    box, row, iou = box[order], row[order], iou[order]
    correct = iou >= MIN_OVERLAP
    correct[1:] &= row[1:] != row[:-1]
    return box[correct], row[correct]
