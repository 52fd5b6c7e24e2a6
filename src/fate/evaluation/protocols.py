"""The rules of an evaluation: :class:`Protocol`, a named object that is printed with every table.

The same boxes give different metrics under different rules, and publications seldom state theirs. Every rule that
changes a metric is a field here, and ``str(protocol)`` lists them all.

``gen1`` and ``1mpx`` are the rules of Prophesee's toolbox on its two public datasets: the same filters for ground truth
and predictions, the first half second skipped, every prediction within ± 50 ms of a label, frames without ground truth
left out. (The script shipped with the toolbox has other values; these are those of the library, the paper and RVT.)
``sim`` is for simulated data: labelled, empty frames count, and each window is compared with one labelled time, the
nearest within 2 ms of its end. :meth:`Protocol.at` gives any protocol this time rule for a stream of predictions at a
rate: ± 50 ms would hold many predictions of one object, which at 200 pixels a second moves 10 pixels in 50 ms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from fate.errors import FateError
from fate.events.events import COMMON_FRAME, GEN1_SENSOR, MPX_SENSOR, Sensor
from fate.events.window import LABEL_TOLERANCE_US, window_us
from fate.text import nearest_name

#: "window": all predictions within the tolerance of a label; "nearest": those of one time, the nearest within it, and
#: if the rate of the predictions is known, each window is compared with at most one labelled time.
TimeRule = Literal["window", "nearest"]

MPX_HALF_SENSOR = Sensor(360, 640)

Size = Annotated[float, Field(ge=0, lt=math.inf)]
Microseconds = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The rules of an evaluation; every field may be changed with :func:`dataclasses.replace`."""

    name: Annotated[str, Field(min_length=1)] = "custom"
    sensor: Sensor | None = None  #: (height, width) for which the sizes below are meant; None: any
    min_diagonal: Size = 0.0  #: pixels; smaller boxes are dropped, truth and predictions alike
    min_side: Size = 0.0  #: pixels; boxes with a shorter side are dropped, truth and predictions alike
    skip_us: Microseconds = 500_000  #: boxes up to this time after the start of a recording are dropped
    time_rule: TimeRule = "nearest"
    #: largest distance in time of a prediction from its label; None: ``label_tolerance_us``, at most half a hop
    tolerance_us: Microseconds | None = None
    #: for predictions at a rate: labelled times further than this from the end of every window are not used
    label_tolerance_us: Microseconds = LABEL_TOLERANCE_US
    score_floor: Annotated[float, Field(ge=0, le=1)] = 0.001  #: predictions below are dropped; a higher floor lowers AP
    #: predictions of one class in a frame that count, highest scores first
    max_detections: Annotated[int, Field(ge=1)] = 100
    classes: tuple[str, ...] | None = None  #: names of class ids 0, 1, … if the caller has none
    count_empty: bool = True  #: whether labelled frames without ground truth count, with their false positives
    hz: float | None = None  #: rate of predictions; None: that of the predictions
    window_us: Microseconds | None = None  #: window length of one prediction; None: that of the predictions

    def __post_init__(self) -> None:
        if self.sensor is not None:
            object.__setattr__(self, "sensor", Sensor.of(self.sensor))
        if isinstance(self.classes, list):
            object.__setattr__(self, "classes", tuple(self.classes))
        for name, adapter in _adapters().items():
            value = getattr(self, name)
            try:
                adapter.validate_python(value, strict=True)
            except ValidationError as error:
                expected = error.errors(include_url=False)[0]["msg"].lower()
                raise FateError(f"a protocol with {name} {value!r} was given; {expected}") from None
        if self.hz is not None:
            window_us(self.hz)

    @property
    def hop_us(self) -> int | None:
        """Time between two predictions, µs; None if the rate is not fixed."""
        return None if self.hz is None else window_us(self.hz)

    def time_tolerance_us(self) -> int:
        """Largest distance in time of a prediction from its label, µs."""
        if self.tolerance_us is not None:
            return self.tolerance_us
        if self.hop_us is None:
            raise FateError(
                f"protocol {self.name!r} compares labels with the windows that end at them and has no rate; "
                "use protocol.at(hz) or set tolerance_us"
            )
        return min(self.label_tolerance_us, self.hop_us // 2)

    def at(self, hz: float, window: int | None = None) -> Protocol:
        """The same rules for a stream of predictions at ``hz``: each window is compared with one labelled time.

        That time is the nearest to the end of the window, at most ``label_tolerance_us`` away.
        ``window`` is the window length in µs, if it is not 1 / hz.
        """
        length = window_us(hz) if window is None else window
        return replace(self, hz=hz, window_us=length, time_rule="nearest", tolerance_us=None)

    def lines(self) -> list[str]:
        """All rules in words, for printing with every table."""
        sensor = "any sensor" if self.sensor is None else f"boxes of {self.sensor} pixels"
        sizes = f"diagonal ≥ {self.min_diagonal:g} px and sides ≥ {self.min_side:g} px, truth and predictions alike"
        if not (self.min_diagonal or self.min_side):
            sizes = "of any size"
        left_out = "only those with truth left after the filters; others are left out with their false positives"
        return [
            f"protocol {self.name} ({sensor})",
            f"  boxes    {sizes}",
            f"  times    later than {self.skip_us / 1e6:g} s after the recording's start; {self._times_in_words()}",
            f"  scores   ≥ {self.score_floor:g}; at most {self.max_detections} boxes of a class in a frame",
            f"  classes  {'those of the dataset' if self.classes is None else ', '.join(self.classes)}",
            f"  frames   {'all labelled ones, empty ones too' if self.count_empty else left_out}",
            f"  windows  {self._windows_in_words()}",
        ]

    def _times_in_words(self) -> str:
        if self.tolerance_us is None:
            limit = self.label_tolerance_us if self.hop_us is None else self.time_tolerance_us()
            most = ", at most half a hop," if self.hop_us is None and limit > LABEL_TOLERANCE_US else ""
            return f"at each window the nearest label within ± {limit / 1000:g} ms{most} of its end"
        which = "every" if self.time_rule == "window" else "the nearest"
        return f"{which} prediction within ± {self.tolerance_us / 1000:g} ms of a label"

    def _windows_in_words(self) -> str:
        if self.hop_us is None:
            return "as the predictions have them"
        length = "an unknown time" if self.window_us is None else f"{self.window_us / 1000:g} ms"
        return f"{length} of events, every {self.hop_us / 1000:g} ms ({self.hz:g} Hz), stamped at their end"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` is the inverse."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Protocol:
        """From plain values; an unknown key is an error that names the nearest known one."""
        known = [field.name for field in fields(Protocol)]
        for key in values:
            if key not in known:
                near = nearest_name(key, known)
                hint = f"did you mean {near}?" if near else f"fields are {', '.join(known)}"
                raise FateError(f"a protocol with {key!r} was given; there is no such field; {hint}")
        return Protocol(**values)


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """What checks each field by its type."""
    hints = get_type_hints(Protocol, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name]) for field in fields(Protocol)}


_TOOLBOX: dict[str, Any] = {"time_rule": "window", "tolerance_us": 50_000, "count_empty": False}

#: Fields that differ from the defaults, by name of the protocol.
_RULES: dict[str, dict[str, Any]] = {
    "gen1": {**_TOOLBOX, "classes": ("car", "pedestrian")},
    "1mpx": {**_TOOLBOX, "classes": ("pedestrian", "two wheeler", "car")},
    "sim": {},
}

#: (min_diagonal, min_side) in pixels for the sensors of each protocol, its own sensor first. At half the resolution of
#: 1 Mpx the limits are halved, as in RVT. Other simulated sensors have the limits of Gen1 in proportion to their width.
_SIZES: dict[str, dict[Sensor, tuple[float, float]]] = {
    "gen1": {GEN1_SENSOR: (30.0, 10.0)},
    "1mpx": {MPX_SENSOR: (60.0, 20.0), MPX_HALF_SENSOR: (30.0, 10.0)},
    "sim": {
        GEN1_SENSOR: (30.0, 10.0),
        COMMON_FRAME: (30.0, 10.0),
        MPX_SENSOR: (60.0, 20.0),
        MPX_HALF_SENSOR: (30.0, 10.0),
    },
}

NAMES = tuple(_RULES)


def named_protocol(name: str, /, sensor: tuple[int, int] | None = None, **changes: Any) -> Protocol:
    """A protocol by name, with changes if any.

    >>> print(named_protocol("1mpx", tolerance_us=40_000).lines()[1].strip())
    boxes    diagonal ≥ 60 px and sides ≥ 20 px, truth and predictions alike

    Args:
        name: "gen1", "1mpx", "sim", or "custom" (no filters by size).
        sensor: (height, width) of the boxes, which determines the size limits: those of "1mpx" at (360, 640) are half
            of those at (720, 1280); "sim" takes any size. None: the dataset's own.
        changes: fields of :class:`Protocol`; the name of a changed protocol says so unless a name is given.
    """
    if name == "custom":
        return Protocol.from_dict({"sensor": sensor, **changes})
    if name not in _RULES:
        raise FateError(f"protocol {name!r} was given; names are {', '.join(NAMES)} and custom")
    sizes = _SIZES[name]
    size = next(iter(sizes)) if sensor is None else Sensor.of(sensor)
    if name == "sim" and size not in sizes:  # a simulated camera may have any size
        scale = size.width / GEN1_SENSOR.width
        sizes = {size: (round(30 * scale), round(10 * scale))}
    if size not in sizes:
        known = ", ".join(map(str, sizes))
        raise FateError(
            f"protocol {name!r} was asked for boxes of {size} pixels; it has sizes for {known}; "
            "use 'custom' with min_diagonal and min_side"
        )
    diagonal, side = sizes[size]
    rules = {"name": name, "sensor": size, "min_diagonal": diagonal, "min_side": side, **_RULES[name]}
    protocol = Protocol.from_dict({**rules, **changes})
    if "name" not in changes and protocol != Protocol(**rules):
        protocol = replace(protocol, name=f"{name}, changed")
    return protocol
