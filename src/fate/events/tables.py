"""Names and types of the columns of events in tables of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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
