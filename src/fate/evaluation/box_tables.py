"""Boxes as an evaluation sees them: x, y, width and height in float64, from :class:`Labels` or from Prophesee's arrays.

Figures are decided at thresholds, so sizes must not change by a float32 step on the way. ``Labels`` hold corners, and a
width of 32 pixels that comes back from two rounded corners may be 31.99999 and belong to another class of size;
Prophesee's arrays hold the widths themselves. Both are taken here: arrays as they are, which gives the toolbox's digits
to the last, and labels with the rule that a size within float32's rounding of a whole number of eighths of a pixel is
that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels
from fate.data.class_maps import plain
from fate.errors import FateError, list_names
from fate.evaluation.protocols import Protocol

#: The boxes of one recording: a table of ours, or a structured array with the fields of a ``_bbox.npy``.
BoxesLike: TypeAlias = Labels | NDArray[Any]

#: Why a box was dropped, in the order in which the reasons are looked for.
REASONS = {
    "early": "in the skipped start",
    "low score": "below the score floor",
    "small": "below the limits of size",
    "unknown class": "of a class that is not evaluated",
}


_PARTS = 8  # of a pixel: limits are whole numbers, and boxes of halved and quartered resolutions are parts of them


@dataclass(frozen=True)
class BoxTable:
    """N boxes of one recording, sorted by time; L times that were looked at."""

    t_us: NDArray[np.int64]  #: [N]
    xywh: NDArray[np.float64]  #: [N, 4] left, top, width, height in pixels
    area: NDArray[np.float64]  #: [N] square pixels
    class_id: NDArray[np.int64]  #: [N] into the classes of the evaluation; -1 for a class that is not among them
    score: NDArray[np.float64]  #: [N]
    times_us: NDArray[np.int64]  #: [L] sorted, distinct; holds every time of a row
    tells_empty: bool  #: whether times without a box are among them; arrays have no place for those

    def __len__(self) -> int:
        return len(self.t_us)

    def select(self, keep: NDArray[np.bool_] | NDArray[np.int64]) -> BoxTable:
        """Some rows; all times stay."""
        return BoxTable(
            self.t_us[keep],
            self.xywh[keep],
            self.area[keep],
            self.class_id[keep],
            self.score[keep],
            self.times_us,
            self.tells_empty,
        )

    def is_large_enough(self, protocol: Protocol) -> NDArray[np.bool_]:
        """[N] whether a box passes the protocol's limits of size."""
        width, height = self.xywh[:, 2:].T
        side = (width >= protocol.min_side) & (height >= protocol.min_side)
        # squared in float32, as the toolbox does: at the very limit the digits decide
        squared = width.astype(np.float32) ** 2 + height.astype(np.float32) ** 2
        return np.asarray(side & (squared >= np.float32(protocol.min_diagonal**2)))

    def filtered(self, protocol: Protocol, after_us: int, floor: float = 0.0) -> tuple[BoxTable, dict[str, int]]:
        """The rows later than ``after_us`` that count, and how many were dropped for each of ``REASONS``.

        A row is dropped for one reason. Rows of an unknown class stay: they make their frame one that was looked at.
        """
        early = self.t_us <= after_us
        low = ~early & (self.score < floor)
        small = ~early & ~low & ~self.is_large_enough(protocol)
        kept = ~(early | low | small)
        counts = (early, low, small, kept & (self.class_id < 0))
        dropped = {reason: int(np.count_nonzero(rows)) for reason, rows in zip(REASONS, counts, strict=True)}
        return self.select(kept), dropped


def box_table(boxes: BoxesLike, classes: Sequence[str], whose: str) -> BoxTable:
    """The boxes of one recording, whatever holds them.

    Args:
        boxes: labels, or an array with the fields t, x, y, w, h, class_id and class_confidence (or ts, confidence).
        classes: names of the ids that are evaluated. Labels with names of their own are matched by name.
        whose: what an error calls them, such as ``"predictions of drive_3"``.
    """
    if isinstance(boxes, Labels):
        return _from_labels(boxes, classes, whose)
    if isinstance(boxes, np.ndarray) and boxes.dtype.names is not None and boxes.ndim == 1:
        return _from_array(boxes, len(classes), whose)
    raise FateError(f"{whose}: {type(boxes).__name__} was given; expected Labels or a structured array of boxes")


def _from_labels(labels: Labels, classes: Sequence[str], whose: str) -> BoxTable:
    corners = labels.boxes
    left_top, right_bottom = corners[:, :2].astype(np.float64), corners[:, 2:].astype(np.float64)
    size = right_bottom - left_top
    rounding = np.spacing(np.maximum(np.abs(corners[:, :2]), np.abs(corners[:, 2:])))
    simple = np.rint(size * _PARTS) / _PARTS
    size = np.where(np.abs(size - simple) <= rounding, simple, size)
    return BoxTable(
        labels.t_us,
        np.concatenate([left_top, size], axis=1),
        size[:, 0] * size[:, 1],
        class_ids(labels.class_id, labels.classes, classes, whose),
        labels.score.astype(np.float64),
        labels.labelled_us,
        tells_empty=True,
    )


def _from_array(array: NDArray[Any], num_classes: int, whose: str) -> BoxTable:
    names = array.dtype.names or ()
    time = "t" if "t" in names else "ts"
    score = next((name for name in ("class_confidence", "confidence") if name in names), None)
    for name in (time, "x", "y", "w", "h", "class_id"):
        if name not in names:
            raise FateError(f"{whose}: fields {list_names(names)} were given; field {name} is missing")
    times = array[time]
    if len(array) and times.dtype.kind not in "iu":
        raise FateError(f"{whose}: times of dtype {times.dtype} were given; expected whole microseconds")
    order = np.argsort(times, kind="stable")
    rows = array[order]
    # in float32, which the toolbox computes in
    sides = [rows[name].astype(np.float32) for name in ("x", "y", "w", "h")]
    xywh = np.stack(sides, axis=1).astype(np.float64)
    scores = np.ones(len(rows)) if score is None else rows[score].astype(np.float64)
    bad = ~(np.isfinite(xywh).all(axis=1) & np.isfinite(scores))
    if bad.any():
        raise FateError(f"{whose}: row {int(order[np.argmax(bad)])} holds a box or score that is no finite number")
    ids = rows["class_id"].astype(np.int64)
    sorted_us = times[order].astype(np.int64)
    return BoxTable(
        sorted_us,
        xywh,
        (sides[2] * sides[3]).astype(np.float64),
        np.where(ids < num_classes, ids, -1),
        scores,
        np.unique(sorted_us),
        tells_empty=False,
    )


def class_ids(
    ids: NDArray[np.int32], given: Sequence[str] | None, wanted: Sequence[str], whose: str
) -> NDArray[np.int64]:
    """Ids [N] among the names ``given``, or nameless, as ids among ``wanted``; -1 for those that are not wanted."""
    own = ids.astype(np.int64)
    if given is None:
        return np.where(own < len(wanted), own, -1)
    if tuple(given) == tuple(wanted):
        return own
    places = {plain(name): place for place, name in enumerate(wanted)}
    if not any(plain(name) in places for name in given):
        raise FateError(
            f"{whose}: classes {list_names(given)} were given; expected some of {', '.join(wanted)}; rename them"
        )
    return np.array([places.get(plain(name), -1) for name in given], np.int64)[own]
