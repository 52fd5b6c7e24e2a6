"""Events of one sensor, in time order: the value type that all other parts use; and the size of a sensor.

Events are a structure of arrays rather than an array of structures, because every consumer (encoders, writers,
statistics) reads single columns. The invariants are checked once, here; inside the package ``Events.trusted`` skips
the check for columns that a reader has already checked.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fate.errors import FateError, FormatError, import_optional, warn
from fate.events.window import MAX_TIME_US, clip_time

if TYPE_CHECKING:
    from torch import Tensor

MAX_SIDE = 65_536  # coordinates are uint16


class Sensor(NamedTuple):
    """Size of a sensor in pixels, rows first; equal to the plain tuple ``(height, width)``."""

    height: int
    width: int

    @classmethod
    def of(cls, size: Sequence[int]) -> Sensor:
        """``(height, width)`` as a checked :class:`Sensor`."""
        try:
            height, width = (operator.index(side) for side in size)
        except (TypeError, ValueError):
            raise FateError(f"sensor {size!r} was given; expected (height, width) in pixels") from None
        if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
            raise FateError(f"sensor {height}×{width} was given; each side must be 1 to {MAX_SIDE} pixels")
        return cls(height, width)

    def __str__(self) -> str:
        return f"{self.width}×{self.height}"  # width first, as people write 1280×720


#: The sensors of the two public driving datasets.
GEN1_SENSOR = Sensor(240, 304)
MPX_SENSOR = Sensor(720, 1280)
#: The frame in which simulated recordings of many sensors are written.
COMMON_FRAME = Sensor(240, 320)

#: Sensors on the market, the smallest first, for files and arrays that do not give theirs.
KNOWN_SENSORS = (
    Sensor(128, 128),  # iniVation DVS128
    Sensor(180, 240),  # iniVation DAVIS240
    GEN1_SENSOR,  # Prophesee Gen1 (ATIS)
    Sensor(240, 320),  # iniVation DVXplorer Lite
    Sensor(260, 346),  # iniVation DAVIS346
    Sensor(320, 320),  # Prophesee GenX320
    Sensor(480, 640),  # Prophesee Gen3, iniVation DVXplorer
    MPX_SENSOR,  # Prophesee Gen4, Sony IMX636
)


_COLUMNS = ("t_us", "x", "y", "p")

#: Names that libraries and files give to the columns.
ALIASES: dict[str, tuple[str, ...]] = {
    "t": ("t", "ts", "t_us", "time", "times", "timestamp", "timestamps", "time_us", "timestamp_us"),
    "x": ("x", "xs", "x_pos", "column"),
    "y": ("y", "ys", "y_pos", "row"),
    "p": ("p", "ps", "pol", "polarity", "polarities", "on"),
}

Layout = Literal["metavision", "tonic", "dv"]
#: Fields and types as each library has them, with the column of :class:`Events` that each holds.
LAYOUTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "metavision": (("x", "<u2", "x"), ("y", "<u2", "y"), ("p", "<i2", "p"), ("t", "<i8", "t_us")),
    "tonic": (("x", "<i2", "x"), ("y", "<i2", "y"), ("t", "<i8", "t_us"), ("p", "?", "p")),
    "dv": (("timestamp", "<i8", "t_us"), ("x", "<i2", "x"), ("y", "<i2", "y"), ("polarity", "i1", "p")),
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Events:
    """Events sorted by time and inside the sensor. Immutable: the columns are read-only arrays."""

    t_us: NDArray[np.int64]  #: [E] microseconds, never decreasing
    x: NDArray[np.uint16]  #: [E] column, 0 at the left
    y: NDArray[np.uint16]  #: [E] row, 0 at the top
    p: NDArray[np.uint8]  #: [E] 1 for ON, 0 for OFF
    sensor: Sensor  #: (height, width) in pixels

    def __init__(self, t_us: ArrayLike, x: ArrayLike, y: ArrayLike, p: ArrayLike, sensor: Sequence[int]) -> None:
        size = Sensor.of(sensor)
        time, column, row, polarity = map(_integers, _COLUMNS, (t_us, x, y, p))
        lengths = [len(time), len(column), len(row), len(polarity)]
        if len(set(lengths)) != 1:
            raise FateError(f"t_us, x, y, p have lengths {lengths}; expected four columns of one length")
        _refuse_first(
            (column < 0) | (column >= size.width) | (row < 0) | (row >= size.height),
            lambda i: f"outside the {size} sensor (x = {column[i]}, y = {row[i]})",
        )
        _refuse_first((polarity != 0) & (polarity != 1), lambda i: f"of polarity {polarity[i]}, not 0 or 1")
        if len(time):
            _refuse_first(np.abs(time) >= MAX_TIME_US, lambda i: f"at {time[i]} µs, beyond ± 2^62 µs; check the unit")
            _refuse_first(
                np.concatenate(([False], time[1:] < time[:-1])),
                lambda i: f"earlier than the one before ({time[i]} after {time[i - 1]} µs); sort by time first",
            )
        self._fill(time, column.astype(np.uint16), row.astype(np.uint16), polarity.astype(np.uint8), size)

    def _fill(self, t_us: Any, x: Any, y: Any, p: Any, sensor: Sensor) -> None:
        for name, column in zip(_COLUMNS, (t_us, x, y, p), strict=True):
            view = column.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)
        object.__setattr__(self, "sensor", sensor)

    @classmethod
    def trusted(
        cls,
        t_us: NDArray[np.int64],
        x: NDArray[np.uint16],
        y: NDArray[np.uint16],
        p: NDArray[np.uint8],
        sensor: Sensor,
    ) -> Events:
        """Make events without checks or copies, from columns of the final types that a reader has checked."""
        events = object.__new__(cls)
        events._fill(t_us, x, y, p, sensor)
        return events

    @classmethod
    def empty(cls, sensor: Sequence[int]) -> Events:
        """No events, E = 0."""
        return cls([], [], [], [], sensor)

    @classmethod
    def concatenate(cls, pieces: Sequence[Events]) -> Events:
        """Pieces of one sensor joined in the given order, each starting no earlier than the one before."""
        if not pieces:
            raise FateError("nothing to concatenate; give at least one Events (Events.empty(sensor) for none)")
        sensor = pieces[0].sensor
        previous = None
        for i, piece in enumerate(pieces):
            if piece.sensor != sensor:
                raise FateError(f"piece {i} is of a {piece.sensor} sensor, piece 0 of a {sensor} one")
            if len(piece):
                if previous is not None and piece.t_us[0] < previous:
                    raise FateError(f"piece {i} starts at {piece.t_us[0]} µs, before {previous} µs; sort them")
                previous = piece.t_us[-1]
        if len(pieces) == 1:
            return pieces[0]
        t_us, x, y, p = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in _COLUMNS)
        return cls.trusted(t_us, x, y, p, sensor)

    @classmethod
    def from_structured(cls, array: NDArray[Any], sensor: Sequence[int] | None = None) -> Events:
        """Return events of a numpy array with named fields, as Metavision, tonic and dv-processing have them.

        Args:
            array: [E] with fields for time in µs (``t``, ``timestamp``), ``x``, ``y`` and polarity (``p``,
                ``polarity``; 1 for ON, 0 or -1 for OFF), in any order, sorted by time.
            sensor: ``(height, width)`` in pixels. Unless given, the smallest known sensor that holds all events is
                taken, with a warning.

        Example:
            >>> array = np.array([(3, 1, 1, 50)], [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])
            >>> Events.from_structured(array, sensor=(480, 640))
            Events(1 on 640×480, 50…50 µs, 0 s, 100 % ON)
        """
        table = np.asarray(array)
        names = table.dtype.names
        roles = find_roles(names) if names else None
        if names is None or roles is None or table.ndim != 1:
            raise FateError(
                f"an array of shape {table.shape} with {f'the fields {names}' if names else f'type {table.dtype}'} was"
                " given; expected one dimension and fields for t, x, y and p (or timestamp and polarity)"
            )
        t, x, y, p = (table[names[roles[role]]] for role in "txyp")
        if p.dtype.kind == "i":
            p = np.where(p == -1, 0, p)  # some libraries write OFF as -1
        if sensor is None:
            if not len(table):
                raise FateError(
                    "an array without events was given, so its sensor size is unknown; pass sensor=(height, width)"
                )
            sensor = guess_sensor(int(x.max()), int(y.max()), "the array")
        return cls(t, x, y, p, sensor)

    def to_structured(self, columns: Layout = "metavision") -> NDArray[Any]:
        """Return a numpy array [E] with the fields and types of another library.

        Args:
            columns: ``"metavision"`` for x, y, p, t; ``"tonic"`` for x, y, t, p; ``"dv"`` for timestamp, x, y,
                polarity (dv-processing).
        """
        if columns not in LAYOUTS:
            raise FateError(f"columns={columns!r} was given; expected one of {', '.join(LAYOUTS)}")
        table = np.empty(len(self), [(field, kind) for field, kind, _ in LAYOUTS[columns]])
        for field, kind, name in LAYOUTS[columns]:
            values = getattr(self, name)
            if kind == "<i2" and len(values) and values.max() > np.iinfo(np.int16).max:
                raise FateError(f"{name} = {values.max()} does not fit into the 16-bit signed {name} of {columns}")
            table[field] = values
        return table

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with the columns t_us, x, y and p. Needs ``pip install pandas``."""
        pandas = import_optional("pandas", "Events.to_pandas")  # it takes a second to load
        return pandas.DataFrame({name: getattr(self, name) for name in _COLUMNS})

    def to_torch(self) -> dict[str, Tensor]:
        """Return one tensor [E] per column, on the CPU: ``t_us``, ``x``, ``y`` and ``p``, all int64.

        They are columns rather than one table [E, 4], because times in µs do not fit into float32. As int64, ``x`` and
        ``y`` are indices into an image. The tensors are copies and may be changed.

        Example:
            >>> columns = Events([5, 7], [1, 2], [0, 3], [1, 0], sensor=(4, 4)).to_torch()
            >>> columns["x"]
            tensor([1, 2])
        """
        import torch  # noqa: PLC0415  (it takes seconds to load)

        return {name: torch.from_numpy(getattr(self, name).astype(np.int64)) for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self.t_us)

    def __getitem__(self, part: slice) -> Events:
        """Return a run of events, ``events[10:20]``, as views; a negative step would reverse time and is refused."""
        if not isinstance(part, slice) or (part.step is not None and part.step < 1):
            raise FateError(f"events[{part!r}]: expected a forward slice such as events[10:20]")
        return Events.trusted(self.t_us[part], self.x[part], self.y[part], self.p[part], self.sensor)

    def between(self, start_us: int, end_us: int) -> Events:
        """Return events with ``start_us <= t < end_us``, as views, in O(log E)."""
        first, last = (int(self.t_us.searchsorted(clip_time(t))) for t in (start_us, end_us))
        return self[first : max(first, last)]

    def shifted(self, offset_us: int) -> Events:
        """Return the events with ``offset_us`` added to every time."""
        return Events.trusted(self.t_us + np.int64(offset_us), self.x, self.y, self.p, self.sensor)

    def inside(self, x1: int, y1: int, x2: int, y2: int) -> Events:
        """Return events in the rectangle ``x1 <= x < x2, y1 <= y < y2``; coordinates and sensor stay as they are."""
        return self.where((self.x >= x1) & (self.x < x2) & (self.y >= y1) & (self.y < y2))

    def where(self, keep: NDArray[np.bool_]) -> Events:
        """Return the events for which ``keep`` [E] is true."""
        kept = np.flatnonzero(keep)  # found once; a mask would be read for each column
        if len(kept) == len(self):
            return self
        return Events.trusted(self.t_us[kept], self.x[kept], self.y[kept], self.p[kept], self.sensor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Events):
            return NotImplemented
        return self.sensor == other.sensor and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS
        )

    __hash__ = None  # type: ignore[assignment]  # arrays inside: equality by value, no hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Events.trusted, (self.t_us, self.x, self.y, self.p, self.sensor))

    def __repr__(self) -> str:
        if not len(self):
            return f"Events(none, {self.sensor})"
        start, last = int(self.t_us[0]), int(self.t_us[-1])
        on = 100 * float(np.count_nonzero(self.p)) / len(self)
        return f"Events({len(self):,} on {self.sensor}, {start}…{last} µs, {(last - start) / 1e6:.6g} s, {on:.0f} % ON)"


def _integers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Return one column as a fresh int64 array; refuse anything that would lose a value."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise FateError(f"{name} has shape {array.shape}; expected one dimension")
    if array.size and array.dtype.kind not in "iub":
        raise FateError(f"{name} has type {array.dtype}; expected integers (times are microseconds)")
    if array.size and array.dtype == np.uint64 and int(array.max()) > np.iinfo(np.int64).max:
        raise FateError(f"{name} holds {int(array.max())}, more than 64-bit signed integers carry")
    return array.astype(np.int64)


def _refuse_first(bad: NDArray[np.bool_], describe: Any) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        raise FateError(
            f"{int(bad.sum())} of {len(bad)} events refused; the first, index {first}, is {describe(first)}"
        )


def find_roles(names: Sequence[str]) -> dict[str, int] | None:
    """Positions of t, x, y and p among the names of columns, or None if one of the four is missing.

    Upper and lower case are the same, quotes around a name are ignored.
    """
    plain = [name.strip().strip("\"'").strip().lower() for name in names]
    found = {}
    for role, aliases in ALIASES.items():
        positions = [plain.index(alias) for alias in aliases if alias in plain]
        if not positions:
            return None
        found[role] = positions[0]
    return found


def guess_sensor(x_max: int, y_max: int, name: object) -> Sensor:
    """Return the smallest known sensor with a pixel at ``(x_max, y_max)``, and warn that the size is a guess.

    Raise an error that asks for the size if no known sensor is large enough. ``name`` is the file, for messages.
    """
    fitting = [sensor for sensor in KNOWN_SENSORS if x_max < sensor.width and y_max < sensor.height]
    if not fitting:
        raise FormatError(
            f"{name}: does not give its sensor size, and events reach x = {x_max}, y = {y_max}, beyond every"
            f" known sensor (the largest is {KNOWN_SENSORS[-1]}); pass sensor=(height, width)"
        )
    sensor = fitting[0]
    warn(
        f"{name}: does not give its sensor size; {sensor} is the smallest known sensor that fits (x up to {x_max}, y up"
        f" to {y_max}); pass sensor=(height, width) to set it"
    )
    return sensor
