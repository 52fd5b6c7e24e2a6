"""Events as tables of other libraries: numpy arrays with named fields, and pandas."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, missing_packages, warn
from fate.events.sensors import smallest_known_sensor

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


def columns_of(
    array: NDArray[Any], sensor: Sequence[int] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], Sequence[int]]:
    """t, x, y, p and the sensor of a structured array; see :meth:`Events.from_structured`."""
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
        sensor = smallest_known_sensor(int(x.max()), int(y.max()), "the array")
        warn(
            f"the array does not give its sensor size; {sensor} is the smallest known sensor that fits (x up to"
            f" {x.max()}, y up to {y.max()}); pass sensor=(height, width) to set it"
        )
    return t, x, y, p, sensor


def structured(events: Mapping[str, NDArray[Any]], columns: Layout) -> NDArray[Any]:
    """A structured array as another library has it; see :meth:`Events.to_structured`.

    Args:
        events: the columns t_us, x, y and p, [E] each.
        columns: the library.
    """
    if columns not in LAYOUTS:
        raise FateError(f"columns={columns!r} was given; expected one of {', '.join(LAYOUTS)}")
    layout = LAYOUTS[columns]
    table = np.empty(len(events["t_us"]), [(field, kind) for field, kind, _ in layout])
    for field, kind, name in layout:
        values = events[name]
        if kind == "<i2" and len(values) and values.max() > np.iinfo(np.int16).max:
            raise FateError(f"{name} = {values.max()} does not fit into the 16-bit signed {name} of {columns}")
        table[field] = values
    return table


def data_frame(events: Mapping[str, NDArray[Any]]) -> Any:
    """A pandas DataFrame; see :meth:`Events.to_pandas`."""
    try:
        pandas = importlib.import_module("pandas")  # optional, and it takes a second to load
    except ImportError:
        raise missing_packages("Events.to_pandas", ("pandas",)) from None
    return pandas.DataFrame(dict(events))
