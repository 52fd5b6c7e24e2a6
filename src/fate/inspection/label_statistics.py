"""Statistics and faults of the boxes of one recording.

Figures: sizes, speeds along tracks, track lives, boxes a frame, label rate. Faults: boxes without events, frozen
tracks, boxes out of the frame or without area, boxes that occur twice, labels outside the time of the recording.
Labels once a second are too sparse for motion and faults. If there are exact boxes at 200 Hz too, as in simulated
datasets, speeds, lives and faults are taken from those.

A scene that stands still makes no events, so a parked car in it is no fault. A labelled frame is called *standing* when
fewer than 1 % of the pixels fired in the 50 ms before it (noise alone makes about 0.5 %). Boxes without events are
distinguished by that, and a box that itself moves along its track must have events in any case. Frozen tracks are
distinguished by the events inside their box: at a red light cars drive past parked ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels, label_rate_hz
from fate.data.box_files import MARGIN_PX
from fate.data.findings import LOOK_BACK_US, describe_time_mismatch
from fate.events.events import Events
from fate.formats.recording import Recording
from fate.progress import Progress

STANDING_SHARE = 0.01  # pixels that fired in that time, below which the scene stands
STILL_SHARE = 0.03  # pixels inside a box that fired in that time, below which nothing moves in it
FROZEN_US = 1_000_000  # a box this long on the very same pixels is frozen
MOVING_PX_S = 10.0  # a box at this speed makes events
SPEED_GAP_US = 1_500_000  # labels of a track further apart say nothing about its speed
TRUTH_SPEED_US = 50_000  # exact boxes are compared over this time: an edge that jumps by a pixel is no speed
SAME_BOX_PX = 0.05  # label files round: the public ones hold a corner and a size
TRUTH_MOVING_PX_S = 20.0  # in that time a pixel, which no jump of one edge moves a centre by

#: Kinds of faults, and what each means.
FAULTS = {
    "without events": f"no event inside in the {LOOK_BACK_US // 1000} ms before it, though the scene or the box moves",
    "without events, standing": "the same while scene and box stand, where that is to be expected",
    "frozen": f"a track on the very same pixels for {FROZEN_US // 1_000_000} s or more, though something in it moves",
    "frozen, standing": "the same while nothing in it moves, where that is to be expected",
    "out of frame": f"an edge more than {MARGIN_PX:.0f} px outside the sensor",
    "no area": "a width or height of zero",
    "twice": "the same box of the same class at the same time as another",
    "outside the recording": f"labelled more than {LOOK_BACK_US // 1000} ms before the first or after the last event",
}


@dataclass(frozen=True)
class Fault:
    """One box or track that looks wrong."""

    kind: str  #: a key of ``FAULTS``
    t_us: int
    class_id: int
    track_id: int
    box: tuple[float, float, float, float]  #: xyxy in pixels

    @property
    def area(self) -> float:
        """Area of the box in square pixels."""
        x1, y1, x2, y2 = self.box
        return (x2 - x1) * (y2 - y1)


@dataclass(frozen=True)
class LabelStatistics:
    """The boxes of one recording; arrays are kept so that datasets can be put together. N boxes, V speeds, K tracks."""

    num_boxes: int
    num_times: int  #: labelled times, with or without boxes
    rate_hz: float  #: labelled times a second (from the median step); 0 with fewer than two
    class_id: NDArray[np.int32]  #: [N]
    size: NDArray[np.float32]  #: [N, 2] width and height, px
    boxes_per_time: NDArray[np.int64]  #: [labelled times]
    speed: NDArray[np.float32]  #: [V] px/s, of the centre between consecutive labelled times of a track
    speed_class: NDArray[np.int32]  #: [V]
    life_s: NDArray[np.float32]  #: [K] from the first to the last label of a track
    life_class: NDArray[np.int32]  #: [K]
    checked: dict[str, int]  #: how many boxes or tracks each kind of fault was looked for in
    counts: dict[str, int]  #: faults found, by kind
    faults: tuple[Fault, ...]  #: the largest box of each kind first, at most ten of a kind
    truth_hz: float | None = None  #: rate of the exact boxes, if speeds, lives and faults come from these

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the arrays."""
        names = ("num_boxes", "num_times", "rate_hz", "truth_hz", "checked")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"faults": self.counts, "worst": [vars(fault) for fault in self.faults]}


def label_statistics(
    recording: Recording,
    labels: Labels,
    *,
    truth: Labels | None = None,
    frames: int = 200,
    progress: Progress | None = None,
) -> LabelStatistics:
    """Measure and check the boxes of a recording that are not neutral.

    Args:
        recording: open, with at least one event.
        labels: boxes of the recording.
        truth: exact boxes of the same objects at many more times, for speeds, lives and faults.
        frames: number of labelled times, evenly spread, at which boxes are compared with events.
        progress: called with the share that is done.
    """
    labels, truth = labels.objects, None if truth is None else truth.objects
    dense = labels if truth is None else truth
    apart, moving = 1, MOVING_PX_S
    if truth is not None:  # as many steps between labelled times as fit into TRUTH_SPEED_US
        apart, moving = max(1, round(TRUTH_SPEED_US * label_rate_hz(truth) / 1e6)), TRUTH_MOVING_PX_S
    speed, speed_rows = track_speeds(dense, apart)
    first, last = _stretches(dense, frozen=False)
    found = _Findings(dense)
    _check_geometry(found, recording)
    _check_events(found, recording, frames, speed_rows[speed > moving], progress)
    begins, ends = (np.searchsorted(labels.t_us, labels.labelled_us, side) for side in ("left", "right"))
    boxes = labels.boxes.astype(np.float64)
    return LabelStatistics(
        num_boxes=len(labels),
        num_times=len(labels.labelled_us),
        rate_hz=label_rate_hz(labels),
        class_id=labels.class_id,
        size=(boxes[:, 2:] - boxes[:, :2]).astype(np.float32),
        boxes_per_time=ends - begins,
        speed=speed,
        speed_class=dense.class_id[speed_rows],
        life_s=((dense.t_us[last] - dense.t_us[first]) / 1e6).astype(np.float32),
        life_class=dense.class_id[first],
        checked=found.checked,
        counts={kind: len(rows) for kind, rows in found.rows.items()},
        faults=found.worst(10),
        truth_hz=None if truth is None else label_rate_hz(truth),
    )


def track_speeds(labels: Labels, apart: int = 1) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Speeds of box centres in px/s, [V], and the row that each one ends at, [V].

    Rows of a track are taken in time order, each with the one ``apart`` rows before it; pairs more than 1.5 s apart and
    rows without a track are left out.
    """
    order = _by_track(labels)
    a, b = order[:-apart], order[apart:]
    step_us = labels.t_us[b] - labels.t_us[a]
    pair = (labels.track_id[a] == labels.track_id[b]) & (step_us > 0) & (step_us <= SPEED_GAP_US)
    a, b = a[pair], b[pair]
    x = (labels.x1 + labels.x2).astype(np.float64) / 2
    y = (labels.y1 + labels.y2).astype(np.float64) / 2
    distance = np.hypot(x[b] - x[a], y[b] - y[a])
    return (distance / (step_us[pair] / 1e6)).astype(np.float32), b


def _by_track(labels: Labels) -> NDArray[np.intp]:
    """Rows that have a track, by track and then by time."""
    order = np.lexsort((labels.t_us, labels.track_id))
    return order[labels.track_id[order] >= 0]


def _stretches(labels: Labels, *, frozen: bool) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First and last row of each track, [K]; if ``frozen``, of each stretch of a track on the same whole pixels."""
    order = _by_track(labels)
    pixels = np.rint(labels.boxes[order]).astype(np.int64) if frozen else np.zeros((len(order), 0), np.int64)
    key = np.column_stack([labels.track_id[order], pixels])
    starts = np.flatnonzero(np.append(True, (key[1:] != key[:-1]).any(axis=1))[: len(order)])
    ends = np.append(starts, len(order))[1:] - 1
    return order[starts], order[ends]


class _Findings:
    """Rows of ``labels`` with a fault, by kind, and the number of rows that were checked."""

    def __init__(self, labels: Labels) -> None:
        self.labels, self.boxes = labels, labels.boxes.astype(np.float64)
        self.rows: dict[str, list[int]] = {kind: [] for kind in FAULTS}
        self.checked = dict.fromkeys(FAULTS, 0)

    def mark(self, kind: str, bad: NDArray[np.bool_]) -> None:
        """Record a check of all rows; those with ``bad`` [N] have the fault."""
        self.checked[kind] = len(bad)
        self.rows[kind] = np.flatnonzero(bad).tolist()

    def worst(self, most: int) -> tuple[Fault, ...]:
        """The faults with the largest boxes of each kind."""
        listed = []
        for kind, rows in self.rows.items():
            columns = (getattr(self.labels, name)[rows].tolist() for name in ("t_us", "class_id", "track_id"))
            boxes = map(tuple, self.boxes[rows].tolist())
            faults = [Fault(kind, *cells) for cells in zip(*columns, boxes, strict=True)]
            listed += sorted(faults, key=lambda fault: -fault.area)[:most]
        return tuple(listed)


def _check_geometry(found: _Findings, recording: Recording) -> None:
    """Find the faults that boxes show without their events."""
    labels, boxes = found.labels, found.boxes
    height, width = recording.sensor
    limits = np.array([width, height], np.float64) + MARGIN_PX
    before, behind = (boxes[:, :2] < -MARGIN_PX).any(axis=1), (boxes[:, 2:] > limits).any(axis=1)
    found.mark("out of frame", np.asarray(before | behind))
    found.mark("no area", np.asarray((boxes[:, 2:] <= boxes[:, :2]).any(axis=1)))
    found.mark(
        "outside the recording",
        (labels.t_us < recording.start_us - LOOK_BACK_US) | (labels.t_us > recording.end_us + LOOK_BACK_US),
    )
    start_us = labels.t_us[0] if len(labels) else 0  # float64 holds differences of times exactly
    key = np.column_stack([(labels.t_us - start_us).astype(np.float64), labels.class_id, boxes])
    first = np.unique(key, axis=0, return_index=True)[1]
    found.mark("twice", ~np.isin(np.arange(len(labels)), first))


def _check_events(
    found: _Findings, recording: Recording, frames: int, moving: NDArray[np.intp], progress: Progress | None
) -> None:
    """Compare boxes with the events before them; ``moving`` are the rows of boxes that move along their track."""
    labels = found.labels
    start, end = recording.start_us, recording.end_us
    inside = (labels.labelled_us >= min(start + LOOK_BACK_US, end)) & (labels.labelled_us <= end + LOOK_BACK_US)
    times = labels.labelled_us[inside]
    if len(times) > frames:
        times = times[np.linspace(0, len(times) - 1, frames).round().astype(np.intp)]
    moves = np.zeros(len(labels), np.bool_)
    moves[moving] = True
    for index, time in enumerate(times.tolist()):
        fired = _fired(recording.read(time - LOOK_BACK_US, time))
        standing = np.count_nonzero(fired) < STANDING_SHARE * fired.size
        for row in range(*(int(np.searchsorted(labels.t_us, time, side)) for side in ("left", "right"))):
            kind = "without events" + (", standing" if standing and not moves[row] else "")
            found.checked[kind] += 1
            if not _inside(fired, found.boxes[row]).any():
                found.rows[kind].append(row)
        if progress:
            progress((index + 1) / len(times))
    runs, tracks = frozen_runs(labels)
    for first, last in runs:
        middle = (int(labels.t_us[first]) + int(labels.t_us[last])) // 2
        inside = _inside(_fired(recording.read(middle - LOOK_BACK_US, middle)), found.boxes[first])
        is_still = np.count_nonzero(inside) < STILL_SHARE * max(inside.size, 1)
        found.rows["frozen, standing" if is_still else "frozen"].append(first)
    found.checked["frozen"] = found.checked["frozen, standing"] = tracks


def frozen_runs(labels: Labels) -> tuple[list[tuple[int, int]], int]:
    """First and last row of each stretch of 1 s or more of a track on the same pixels, and the number of tracks."""
    first, last = _stretches(labels, frozen=True)
    long = labels.t_us[last] - labels.t_us[first] >= FROZEN_US
    runs = list(zip(first[long].tolist(), last[long].tolist(), strict=True))
    return runs, len(np.unique(labels.track_id[first]))


def _fired(events: Events) -> NDArray[np.bool_]:
    """[H, W] pixels with an event."""
    fired = np.zeros(events.sensor, np.bool_)
    fired[events.y, events.x] = True
    return fired


def _inside(fired: NDArray[np.bool_], box: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The part of the map in the box; pixels that it covers in part count."""
    height, width = fired.shape
    x1, y1 = np.clip(np.floor(box[:2]), 0, (width, height)).astype(np.intp)
    x2, y2 = np.clip(np.ceil(box[2:]), 0, (width, height)).astype(np.intp)
    return fired[y1:y2, x1:x2]


# ---- what does not fit together in the files of one recording ---------------------------------------------------


def find_mismatches(recording: Recording, labels: Labels, truth: Labels | None) -> list[str]:
    """A sentence for each thing that does not fit together: sensors, clocks, lengths, labels and exact boxes.

    ``truth`` are exact boxes of the same objects; None if there are none.
    """
    tables = [labels] if truth is None else [labels, truth]
    sizes = {table.sensor for table in tables if table.sensor is not None} - {tuple(recording.sensor)}
    notes = [
        f"labels are of a {width}×{height} sensor, events of a {recording.sensor} one"
        for height, width in sorted(sizes)
    ]
    times = np.concatenate([table.labelled_us for table in tables])
    if mismatch := describe_time_mismatch(times, recording.start_us, recording.end_us):
        notes.append(mismatch)
    if truth is not None and truth is not labels:
        shared = np.intersect1d(labels.labelled_us, truth.labelled_us)
        tracks = bool((labels.track_id >= 0).all())  # some label files have none
        differ = [time for time in shared.tolist() if not _same_boxes(labels.at(time), truth.at(time), tracks)]
        if differ:  # one of the two files was changed
            notes.append(
                f"at {len(differ)} of {len(shared)} times the label file and the exact boxes beside it differ, first at"
                f" {differ[0] / 1e6:.3f} s; speeds and faults are those of the exact boxes"
            )
    return notes


def _same_boxes(one: Labels, other: Labels, tracks: bool) -> bool:
    """Whether two tables have the same boxes and classes, and the same tracks if these count, in any order."""
    keys = [np.column_stack([each.class_id, each.track_id * tracks, each.boxes]) for each in (one, other)]
    first, second = (rows[np.lexsort(rows[:, 3::-1].T)] for rows in keys)
    return len(first) == len(second) and bool((np.abs(first - second) <= SAME_BOX_PX).all())
