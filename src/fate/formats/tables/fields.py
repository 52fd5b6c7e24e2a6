"""The columns of a table of events in any file: their names, their order and the unit of time.

A table has the four columns t, x, y, p, found by name where it has names. Where it has none, the order is
recognised by content (:func:`recognise_order`) or said by the user (``columns="txyp"``). Times become int64 µs:
integers are µs; numbers that are not whole are seconds; ``time_unit`` overrides both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError, FormatError, list_names, warn
from fate.events.events import MAX_SIDE
from fate.text import grouped

ROLES = "txyp"
ARRAY_ORDERS = ("txyp", "xytp", "xypt")  # most common first
TEXT_ORDERS = ("xypt", "txyp", "xytp")  # OpenEB's order first, then that of the public event-camera datasets
ASK_FOR_ORDER = 'pass columns="txyp", in the order of the file'
BY_FAR = 8  # times larger than every other column: a time, even where the rows are not sorted
MAX_INT64 = int(np.iinfo(np.int64).max)
NO_NUMBER = "which is not a number"
TOO_LARGE = "which is more than 64-bit integers carry (times are counted in µs)"


class TimeUnit(NamedTuple):
    """``10 ** power`` µs. ``exact``: it was taken for granted, so a value that is no whole µs is an error."""

    power: int
    exact: bool
    note: str


POWERS = {"s": 6, "ms": 3, "us": 0, "ns": -3}


def given_unit(time_unit: str) -> TimeUnit:
    """Return the unit of time that the user gave."""
    if time_unit not in POWERS:
        raise FateError(f"time_unit={time_unit!r} was given; expected {list_names(POWERS)}")
    return TimeUnit(POWERS[time_unit], False, f"{time_unit} (as given)")


def find_unit(asked: str | None, column: str, whole: bool, integers: bool) -> TimeUnit:
    """Find the unit of time: given by the user, by the name of the column (``t_us``), or by the numbers.

    Whole numbers are µs, whether stored as ``integers`` or only ``whole``; others are seconds.
    """
    if asked:
        return given_unit(asked)
    if column.strip().strip("\"'").lower().endswith("_us"):
        return TimeUnit(0, False, "us (by its name)")
    if integers or whole:
        return TimeUnit(0, True, "us (integers)" if integers else "us (all whole numbers)")
    return TimeUnit(6, False, "s (not whole numbers)")


def warn_of_coarse_times(name: object, times: NDArray[Any], unit: TimeUnit) -> None:
    """Warn if times are floats whose steps, at the size of these times, are longer than 1 µs."""
    step_us = float(np.spacing(np.abs(times).max())) * 10.0**unit.power
    if step_us > 1:
        warn(
            f"{name}: keeps time as {times.dtype.name}, in steps of {step_us:.3g} µs at this size; finer times are"
            " lost: save them as int64 µs"
        )


# ---- which column is which ----------------------------------------------------------------------------------


def given_order(columns: str) -> str:
    """Check the order of columns that the user gave: each of t, x, y, p once."""
    order = "".join(letter for letter in columns.lower() if letter not in " ,;")
    if sorted(order) != sorted(ROLES):
        raise FateError(f'columns={columns!r} was given; expected each of t, x, y, p once, such as columns="txyp"')
    return order


def recognise_order(name: object, sample: NDArray[Any], common: Sequence[str]) -> str:
    """Recognise the order of the four columns, such as ``"xypt"``, by what they hold.

    Polarity holds only 0 and 1, or only -1 and 1; x and y are whole and fit a sensor, x before y; time never
    decreases or is by far the largest. Where that leaves a choice (files of a few rows), the common orders come
    first; an unusual order needs every sign in its favour.

    Args:
        name: the file, for messages.
        sample: [R, 4] rows from all over the file, in file order.
        common: orders to prefer, best first.
    """
    rows = sample[np.isfinite(sample).all(axis=1)]
    if not len(rows):
        return common[0]  # nothing to misread; rows that are not finite are refused when they are read
    columns = [rows[:, i] for i in range(4)]
    polarity = [bool(np.isin(c, (0, 1)).all() or np.isin(c, (-1, 1)).all()) for c in columns]
    whole = [bool((c == np.rint(c)).all()) for c in columns]
    on_sensor = [whole[i] and bool(((c >= 0) & (c < MAX_SIDE)).all()) for i, c in enumerate(columns)]
    rising = [bool((c[1:] >= c[:-1]).all()) for c in columns]
    largest = [float(np.abs(c.astype(np.float64)).max()) for c in columns]
    by_far = [largest[i] >= BY_FAR * max(1.0, *(largest[j] for j in range(4) if j != i)) for i in range(4)]

    orders = ["".join(order) for order in permutations(ROLES) if order.index("x") < order.index("y")]
    orders = [order for order in orders if polarity[order.index("p")]]
    for fits in (on_sensor, whole):  # a few coordinates outside every sensor are no matter of order
        possible = [order for order in orders if fits[order.index("x")] and fits[order.index("y")]]
        if possible:
            break
    if len(possible) == 1:
        return possible[0]
    time = {order: order.index("t") for order in possible}
    usual = [order for order in common if order in possible]
    sorted_usual = [order for order in usual if rising[time[order]]]
    far_usual = [order for order in usual if by_far[time[order]]]
    both = [order for order in possible if rising[time[order]] and by_far[time[order]]]
    agreed = [order for order in sorted_usual if order in both]
    for best in (agreed, [] if far_usual else sorted_usual, [] if sorted_usual else far_usual):
        if best:
            return best[0]
    if len(both) == 1 and not usual:
        return both[0]
    raise FormatError(f"{name}: the numbers do not show which columns are t, x, y and p; {ASK_FOR_ORDER}")


# ---- numbers as integers ------------------------------------------------------------------------------------


def whole_numbers(name: object, role: str, values: NDArray[Any], first_row: int) -> NDArray[Any]:
    """Return a column as native integers; refuse anything that is not a whole number, with its row."""
    where = (name, role, first_row)
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        _refuse(values > MAX_INT64, where, values, TOO_LARGE)
        return values.astype(np.int64)
    if values.dtype.kind in "iu":
        return values.astype(values.dtype.newbyteorder("="), copy=False)
    values = values.astype(np.float64)
    _refuse(~np.isfinite(values), where, values, NO_NUMBER)
    remedy = "give pixel coordinates as the sensor has them"
    if role == "t":
        remedy = 'times are µs; pass time_unit="s" or the unit that it has'
    _refuse(values != np.rint(values), where, values, f"which is no whole number; {remedy}")
    _refuse(np.abs(values) >= 2.0**63, where, values, TOO_LARGE)
    return values.astype(np.int64)


def microseconds(name: object, values: NDArray[Any], unit: TimeUnit, first_row: int) -> NDArray[np.int64]:
    """Times as int64 µs, rounded to the nearest where the unit is given or seconds."""
    where = (name, "t", first_row)
    if values.dtype.kind == "f" and not unit.exact:
        values = values.astype(np.float64)
        _refuse(~np.isfinite(values), where, values, NO_NUMBER)
        with np.errstate(over="ignore"):  # an infinite product is refused in the next line
            scaled = np.rint(values * 10.0**unit.power if unit.power >= 0 else values / 10.0**-unit.power)
        _refuse(np.abs(scaled) >= 2.0**63, where, values, TOO_LARGE)
        return scaled.astype(np.int64)
    times: NDArray[np.int64] = whole_numbers(name, "t", values, first_row).astype(np.int64, copy=False)
    if unit.power > 0:
        factor = 10**unit.power
        limit = MAX_INT64 // factor
        _refuse((times > limit) | (times < -limit), where, times, TOO_LARGE)
        return times * np.int64(factor)
    if unit.power < 0:
        divisor = 10**-unit.power
        quotient, rest = np.divmod(times, divisor)
        quotient += (2 * rest > divisor) | ((2 * rest == divisor) & (quotient % 2 != 0))  # ties to even, as np.rint
        return quotient
    return times


def _refuse(bad: NDArray[np.bool_], where: tuple[object, str, int], values: NDArray[Any], what: str) -> None:
    """Raise for the first bad value; ``where`` is the file, the role of the column and the number of its first row."""
    if bad.any():
        name, role, first_row = where
        i = int(np.argmax(bad))
        raise FormatError(f"{name}: row {grouped(first_row + i)} has {role} = {values[i]}, {what}")
