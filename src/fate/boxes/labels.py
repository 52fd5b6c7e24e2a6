"""The boxes of one recording: :class:`Labels`, an immutable table of rows and labelled times.

Time is whole microseconds. A box is xyxy in pixels of the original sensor: x to the right, y down,
origin at the top left. *Not labelled* and *labelled, empty* are different: a time in ``labelled_us``
without rows is known to have no objects; about a time outside ``labelled_us`` nothing is known.

Boxes of the class ``neutral`` (:data:`NEUTRAL`) hold what is neither an object of the other classes nor background,
such as a lorry where cars are looked for. Datasets and detectors never list this class. A predicted box that belongs to
no object, and of whose area a share of :data:`NEUTRAL_SHARE` or more lies in a neutral box, is neither right nor wrong:
the losses leave out its score, and evaluation leaves out the prediction.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, SupportsIndex, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fate.errors import FateError
from fate.events.events import Sensor

#: Name of the class of neutral boxes, in label files and in tables.
NEUTRAL = "neutral"
#: Least share of its area in a neutral box that makes a predicted box neither right nor wrong; COCO's rule for regions
#: to be ignored.
NEUTRAL_SHARE = 0.5


def is_neutral_name(name: str) -> bool:
    """Whether a class name is that of neutral boxes; case does not matter."""
    return name.strip().lower() == NEUTRAL


class LabelSource(IntEnum):
    """The origin of a row."""

    GROUND_TRUTH = 0
    TRACKED = 1
    INTERPOLATED = 2


class Column(NamedTuple):
    """A column of the table: its type, its smallest and largest value, and the default where it may be left out."""

    dtype: DTypeLike
    low: float
    high: float
    expected: str  #: the allowed values in words, for errors
    default: int | None = None


_INT64 = np.iinfo(np.int64)
_TIMES = Column(np.int64, _INT64.min, _INT64.max, "times are whole microseconds of an integer dtype")
_LARGEST = float(np.finfo(np.float32).max)
_PIXELS = Column(np.float32, -_LARGEST, _LARGEST, "coordinates are finite numbers in pixels")
_CLASS_IDS = Column(np.int32, 0, 2**31 - 1, "class ids are 0 or larger (int32)")
_TRACK_IDS = Column(np.int64, -1, _INT64.max, "track ids are 0 or larger, or -1 for none (int64)", -1)
_SCORES = Column(np.float32, 0, 1, "scores lie in 0 to 1", 1)
_SOURCES = Column(np.uint8, 0, max(LabelSource), "sources are 0 (ground truth), 1 (tracked) or 2 (interpolated)", 0)

#: The columns of the table.
COLUMNS: dict[str, Column] = {
    "t_us": _TIMES,
    **dict.fromkeys(("x1", "y1", "x2", "y2"), _PIXELS),
    "class_id": _CLASS_IDS,
    "track_id": _TRACK_IDS,
    "score": _SCORES,
    "source": _SOURCES,
}


class About(TypedDict, total=False):
    """What labels say about all rows together."""

    classes: Sequence[str] | None  #: the name of each class id
    sensor: tuple[int, int] | None  #: (height, width) in pixels


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Labels:
    """All boxes of one recording, sorted by time; N rows at some of L labelled times.

    All values are checked on construction; the arrays are read-only copies. ``Labels(t_us, *boxes.T, class_id)``
    takes (N, 4) boxes. ``==`` compares values; ``dataclasses.replace`` makes a changed copy.
    """

    t_us: NDArray[np.int64]  #: (N,) microseconds, sorted, each one in ``labelled_us``
    x1: NDArray[np.float32]  #: (N,) pixels, left edge
    y1: NDArray[np.float32]  #: (N,) pixels, top edge
    x2: NDArray[np.float32]  #: (N,) pixels, right edge, >= x1
    y2: NDArray[np.float32]  #: (N,) pixels, bottom edge, >= y1
    class_id: NDArray[np.int32]  #: (N,) >= 0, and below ``len(classes)`` if classes are known
    track_id: NDArray[np.int64]  #: (N,) >= 0, or -1 for none
    score: NDArray[np.float32]  #: (N,) in [0, 1]; 1 for ground truth
    source: NDArray[np.uint8]  #: (N,) a :class:`LabelSource`
    labelled_us: NDArray[np.int64]  #: (L,) microseconds, strictly increasing
    classes: tuple[str, ...] | None  #: the name of each class id
    sensor: tuple[int, int] | None  #: (height, width) in pixels

    def __init__(
        self,
        t_us: ArrayLike,
        x1: ArrayLike,
        y1: ArrayLike,
        x2: ArrayLike,
        y2: ArrayLike,
        class_id: ArrayLike,
        track_id: ArrayLike | None = None,
        score: ArrayLike | None = None,
        source: ArrayLike | None = None,
        *,
        labelled_us: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        sensor: tuple[int, int] | None = None,
    ) -> None:
        """Columns (N,); by default no tracks, score 1, ground truth, labelled at the times of the rows."""
        given = (t_us, x1, y1, x2, y2, class_id, track_id, score, source)
        names = _class_names(classes)
        columns = _checked_columns(dict(zip(COLUMNS, given, strict=True)), names)
        times = columns["t_us"]
        backwards = times[1:] < times[:-1]
        if backwards.any():
            row = int(np.argmax(backwards)) + 1
            jump = f"{times[row]} after {times[row - 1]}"
            raise FateError(f"row {row} has t_us {jump}; rows are sorted by time; use Labels.from_unsorted")
        labelled = np.unique(times) if labelled_us is None else _column("labelled_us", labelled_us, _TIMES)
        stuck = np.flatnonzero(labelled[1:] <= labelled[:-1])
        if len(stuck):
            raise FateError(
                f"labelled_us has {labelled[stuck[0] + 1]} after {labelled[stuck[0]]}; "
                "labelled times increase strictly; sort them and drop repeats with np.unique"
            )
        _refuse(~np.isin(times, labelled), "t_us", times, "the time of each row is in labelled_us")
        self._set(columns, labelled, names, None if sensor is None else tuple(Sensor.of(sensor)))

    def _set(self, columns: Mapping[str, NDArray[Any]], labelled_us: NDArray[np.int64], *about: Any) -> Labels:
        """Store columns that are already checked, read-only; ``about`` is classes and sensor."""
        for name, values in (*columns.items(), ("labelled_us", labelled_us)):
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        for name, value in zip(("classes", "sensor"), about, strict=True):
            object.__setattr__(self, name, value)
        return self

    def _part(self, rows: slice | NDArray[np.bool_], times: slice) -> Labels:
        """Some rows and labelled times; they are already checked, so views of the columns suffice."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return _restore(columns, self.labelled_us[times], self.classes, self.sensor)

    @classmethod
    def empty(cls, labelled_us: ArrayLike = (), **about: Unpack[About]) -> Labels:
        """No boxes at all; each time in ``labelled_us`` (L,) is labelled and empty."""
        return cls((), (), (), (), (), (), labelled_us=labelled_us, **about)

    @classmethod
    def from_unsorted(
        cls,
        columns: Mapping[str, ArrayLike | None],
        *,
        labelled_us: ArrayLike | None = None,
        **about: Unpack[About],
    ) -> Labels:
        """From columns by name; rows and labelled times are sorted, rows stably."""
        # checked before sorting, so that an error gives the row of the input
        checked = _checked_columns(columns, _class_names(about.get("classes")))
        order = np.argsort(checked["t_us"], kind="stable")
        labelled = None if labelled_us is None else np.sort(_column("labelled_us", labelled_us, _TIMES))
        return cls(**{name: values[order] for name, values in checked.items()}, labelled_us=labelled, **about)

    @classmethod
    def concatenate(cls, parts: Sequence[Labels]) -> Labels:
        """Merge tables that share classes and sensor and no labelled time."""
        if not parts:
            raise FateError("got no labels to concatenate; at least one is needed; use Labels.empty()")
        first = parts[0]
        for index, part in enumerate(parts):
            for name in ("classes", "sensor"):
                given, expected = getattr(part, name), getattr(first, name)
                if given != expected:
                    raise FateError(f"part {index} has {name} {given}; part 0 {expected}; make them agree")
        times, counts = np.unique(np.concatenate([part.labelled_us for part in parts]), return_counts=True)
        if (counts > 1).any():
            shared = times[np.argmax(counts > 1)]
            raise FateError(
                f"time {shared} us is labelled in two parts; a time is labelled once; cut one with between()"
            )
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
        return cls.from_unsorted(columns, labelled_us=times, classes=first.classes, sensor=first.sensor)

    def with_boxes(self, boxes: NDArray[np.floating[Any]]) -> Labels:
        """Return the same rows with other boxes [N, 4] xyxy in pixels."""
        return replace(self, **dict(zip(("x1", "y1", "x2", "y2"), boxes.T, strict=True)))

    def __len__(self) -> int:
        """The number of boxes, N."""
        return len(self.t_us)

    @property
    def boxes(self) -> NDArray[np.float32]:
        """(N, 4) float32 xyxy in pixels, a read-only copy."""
        boxes = np.stack([self.x1, self.y1, self.x2, self.y2], axis=1)
        boxes.flags.writeable = False
        return boxes

    @property
    def is_neutral(self) -> NDArray[np.bool_]:
        """(N,) whether a row is neutral: of the class named ``neutral``, in capitals or not."""
        ids = [number for number, name in enumerate(self.classes or ()) if is_neutral_name(name)]
        return np.asarray(np.isin(self.class_id, ids))

    @property
    def objects(self) -> Labels:
        """The rows that are not neutral, without that class if it is the last; every labelled time is kept."""
        if not any(map(is_neutral_name, self.classes or ())):
            return self
        names = self.classes or ()
        names = names[:-1] if is_neutral_name(names[-1]) else names
        kept = ~self.is_neutral
        return _restore({name: getattr(self, name)[kept] for name in COLUMNS}, self.labelled_us, names, self.sensor)

    def is_labelled(self, t_us: SupportsIndex) -> bool:
        """Whether exactly this time is labelled, with or without boxes."""
        time = _time(t_us)
        index = int(np.searchsorted(self.labelled_us, time))
        return index < len(self.labelled_us) and int(self.labelled_us[index]) == time

    def at(self, t_us: SupportsIndex) -> Labels:
        """Return the rows at this labelled time, possibly none; a time that is not labelled is an error."""
        time = _time(t_us)
        if not self.is_labelled(time):
            raise FateError(f"time {time} us is not labelled ({self}); ask is_labelled() or use between()")
        first, last = (int(np.searchsorted(self.t_us, time, side)) for side in ("left", "right"))
        index = int(np.searchsorted(self.labelled_us, time))
        return self._part(slice(first, last), slice(index, index + 1))

    def between(self, start_us: SupportsIndex, end_us: SupportsIndex) -> Labels:
        """Return rows and labelled times in [start_us, end_us): views, found in O(log n)."""
        start, end = _time(start_us), _time(end_us)
        if end < start:
            raise FateError(f"got start_us {start} after end_us {end}; a span starts first; swap them")
        bounds = np.array([start, end], np.int64)
        rows, times = (slice(*np.searchsorted(each, bounds).tolist()) for each in (self.t_us, self.labelled_us))
        return self._part(rows, times)

    def select(self, mask: ArrayLike) -> Labels:
        """Return the rows where ``mask`` (N,) bool is true; every labelled time is kept."""
        keep = np.asarray(mask)
        if keep.shape != self.t_us.shape or keep.dtype != np.bool_:
            raise FateError(
                f"got a mask of shape {keep.shape} and dtype {keep.dtype}; select() takes one bool for each "
                f"of {len(self)} rows; compare a column, e.g. labels.score > 0.5"
            )
        return self._part(keep, slice(None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Labels):
            return NotImplemented
        same_facts = self.classes == other.classes and self.sensor == other.sensor
        return same_facts and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in (*COLUMNS, "labelled_us")
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value of large arrays: hashing would be slow

    def __reduce__(self) -> tuple[Any, ...]:
        columns = {name: getattr(self, name) for name in COLUMNS}
        return _restore, (columns, self.labelled_us, self.classes, self.sensor)

    def __repr__(self) -> str:
        parts = [f"{len(self)} {'box' if len(self) == 1 else 'boxes'}"]
        if len(self.labelled_us):
            parts[0] += f" at {len(np.unique(self.t_us))} of {len(self.labelled_us)} labelled times"
            parts.append(f"{self.labelled_us[0] / 1e6:.3f}-{self.labelled_us[-1] / 1e6:.3f} s")
        else:
            parts.append("no labelled times")
        tracks = len(np.unique(self.track_id[self.track_id >= 0]))
        if tracks:
            parts.append(f"{tracks} {'track' if tracks == 1 else 'tracks'}")
        if self.classes:
            parts.append("classes " + "/".join(self.classes))
        return f"Labels({', '.join(parts)})"


def _restore(columns: Mapping[str, NDArray[Any]], labelled_us: NDArray[np.int64], *about: Any) -> Labels:
    """Return a table of checked columns, for parts of a table and for pickle."""
    return object.__new__(Labels)._set(columns, labelled_us, *about)


def _checked_columns(given: Mapping[str, ArrayLike | None], classes: tuple[str, ...] | None) -> dict[str, NDArray[Any]]:
    """Return the nine columns in their dtypes, of one length and checked; a missing column gets its default."""
    unknown = [name for name in given if name not in COLUMNS]
    if unknown:
        raise FateError(f"got a column {unknown[0]!r}; columns are {', '.join(COLUMNS)}; rename or drop it")
    columns: dict[str, NDArray[Any]] = {}
    for name, column in COLUMNS.items():
        values, rows = given.get(name), len(columns.get("t_us", ()))
        if values is None and column.default is None:
            raise FateError(f"column {name} is missing; only track_id, score and source may be left out; add it")
        columns[name] = np.full(rows, column.default, column.dtype) if values is None else _column(name, values, column)
        if name != "t_us" and len(columns[name]) != rows:
            raise FateError(
                f"column {name} has {len(columns[name])} rows and t_us has {rows}; "
                "all columns have the same length; give one value per box"
            )
    for low, high in (("x1", "x2"), ("y1", "y2")):
        swapped = columns[high] < columns[low]
        if swapped.any():
            row = int(np.argmax(swapped))
            values = f"{low} {columns[low][row]} and {high} {columns[high][row]}"
            raise FateError(f"row {row} has {values}; {high} is at least {low}; swap them or drop the row")
    if classes is not None:
        ids, known = columns["class_id"], f"there are {len(classes)} classes, counted from 0"
        _refuse(ids >= len(classes), "class_id", ids, known)
    return columns


def _column(name: str, values: Any, column: Column) -> NDArray[Any]:
    """Return a checked (n,) copy; floats are rounded to the type of the column."""
    try:
        given = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise FateError(f"column {name} is no array ({error}); {column.expected}; give a list") from error
    if given.ndim != 1:
        raise FateError(f"column {name} has shape {given.shape}; columns are one-dimensional; flatten it")
    target = np.dtype(column.dtype)
    # numpy gives an empty list the dtype float64
    if given.size and given.dtype.kind not in ("iu" if target.kind in "iu" else "iuf"):
        raise FateError(f"column {name} has dtype {given.dtype}; {column.expected}; convert it first")
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, which is refused
        compared = given if target.kind in "iu" else given.astype(target)
    _refuse(~((compared >= column.low) & (compared <= column.high)), name, compared, column.expected)
    return compared.astype(target)


def _refuse(bad: NDArray[np.bool_], name: str, values: NDArray[Any], expected: str) -> None:
    """Raise an error for the first bad row, if any."""
    if bad.any():
        row = int(np.argmax(bad))
        raise FateError(f"row {row} has {name} {values[row]}; {expected}; fix the row or drop it")


def _class_names(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Checked names: distinct, printable and without outer spaces, so that every format can hold them."""
    if classes is None:
        return None
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise FateError(f"got classes {classes!r}; classes are a list of names; e.g. ['car', 'pedestrian']")
    names = tuple(classes)
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
            raise FateError(f"class {index} is named {name!r}; names are one line of text; rename it")
        if name in names[:index]:
            raise FateError(f"class {index} is named {name!r} like one before; names differ; rename it")
    return tuple(str(name) for name in names)


def _time(t_us: SupportsIndex) -> int:
    """Return one time as an int that fits int64."""
    try:
        time = operator.index(t_us)
    except TypeError:
        raise FateError(f"got time {t_us!r}; times are whole microseconds; use int()") from None
    if not _INT64.min <= time <= _INT64.max:
        raise FateError(f"got time {time}; times are int64 microseconds; check its unit")
    return time


def label_rate_hz(labels: Labels) -> float:
    """Labelled times a second, from the median step; 0 with fewer than two."""
    steps = np.diff(labels.labelled_us)
    return 1e6 / float(np.median(steps)) if len(steps) else 0.0
