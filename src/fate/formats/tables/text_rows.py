"""Rows of numbers in text, as columns of integers: the decoder, without files.

Numbers are read digit by digit as integers, never through floats, so a Unix time such as 1600000000.123456 s comes
out as exactly 1600000000123456 µs; what is finer than 1 µs is rounded to the nearest, ties to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError, FormatError, list_names
from fate.formats.columns import Columns
from fate.formats.decoder import Decoder, OutOfBounds
from fate.formats.tables.fields import ROLES, TimeUnit, given_order, given_unit
from fate.text import grouped

SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13
COMMENT_MARKS = b"#%"
HASH, PERCENT, PLUS, MINUS, DOT, ZERO = 35, 37, 43, 45, 46, 48
TOO_FEW, TOO_MANY, NO_NUMBER, NOT_WHOLE, TOO_LARGE = 1, 2, 3, 4, 5
MAX_INT64 = np.iinfo(np.int64).max
TENTH = MAX_INT64 // 10  # a number up to here can take one more digit below 8
MAX_EXPONENT = 400  # beyond it every number is 0 or too large
POWERS_OF_TEN = 10 ** np.arange(19, dtype=np.int64)
SHOWN_CHARACTERS = 60


@compiled
def _number(data: Any, i: int, power: int, exact: bool, tens: Any) -> Any:
    """The number at ``data[i]`` times ``10 ** power`` as an integer, where it ends, and a fault (0: none).

    ``data`` ends with a newline, which ends every number, so no index runs out of it.
    """
    negative = data[i] == MINUS
    if negative or data[i] == PLUS:
        i += 1
    mantissa = np.int64(0)
    shift = np.int64(power)  # value = mantissa * 10 ** shift
    lost = False  # whether digits other than 0 did not fit the mantissa
    full = False
    digits = 0
    fraction = False
    while True:
        digit = np.int64(data[i]) - ZERO
        if 0 <= digit <= 9:
            digits += 1
            if not full and (mantissa < TENTH or (mantissa == TENTH and digit <= 7)):
                mantissa = mantissa * 10 + digit
                shift -= fraction
            else:
                full = True
                lost |= digit != 0
                shift += not fraction
        elif data[i] == DOT and not fraction:
            fraction = True
        else:
            break
        i += 1
    if digits == 0:
        return 0, i, NO_NUMBER
    if data[i] | 32 == 101:  # e or E
        i += 1
        down = data[i] == MINUS
        if down or data[i] == PLUS:
            i += 1
        if not 0 <= np.int64(data[i]) - ZERO <= 9:
            return 0, i, NO_NUMBER
        exponent = np.int64(0)
        while 0 <= np.int64(data[i]) - ZERO <= 9:
            exponent = min(exponent * 10 + np.int64(data[i]) - ZERO, np.int64(MAX_EXPONENT))
            i += 1
        shift += -exponent if down else exponent
    if mantissa == 0 and not lost:
        return 0, i, 0
    if shift >= 0:
        if lost or shift > 18 or mantissa > MAX_INT64 // tens[shift]:
            return 0, i, TOO_LARGE
        mantissa *= tens[shift]
        return (-mantissa if negative else mantissa), i, 0
    if -shift > 18:
        rest_is_zero = False
        half = 5 * tens[18]  # of 10 ** 19, which no mantissa reaches
        quotient = np.int64(-shift == 19 and (mantissa > half or (mantissa == half and lost)))
    else:
        divisor = tens[-shift]
        quotient = mantissa // divisor
        rest = mantissa - quotient * divisor
        rest_is_zero = rest == 0 and not lost
        half = divisor - rest  # compared with rest: their sum, twice the rest, could pass the largest integer
        if rest > half or (rest == half and (lost or quotient & 1)):
            quotient += 1
    if exact and not rest_is_zero:
        return 0, i, NOT_WHOLE
    return (-quotient if negative else quotient), i, 0


@compiled
def _rows(
    data: Any, roles: Any, delimiter: int, power: int, exact: bool, tens: Any, out: Any, state: Any, fault: Any
) -> int:
    """Rows of ``data`` (uint8, whole lines: it ends with a newline) → ``out`` [4, lines] int64; returns their number.

    ``roles``: for every field of a row, the row of ``out`` it goes to, or -1. ``delimiter``: the byte between fields;
    a space stands for any run of spaces and tabs. ``state``: lines so far, comment lines so far. ``fault``: what is
    wrong with the line after those, and in which field; 0 if nothing is.
    """
    n = 0
    i = 0
    last_field = roles.shape[0] - 1
    while i < data.shape[0]:
        while data[i] == SPACE or data[i] == TAB:
            i += 1
        if data[i] == NEWLINE or (data[i] == RETURN and data[i + 1] == NEWLINE):
            i += 2 if data[i] == RETURN else 1
            state[0] += 1
            continue
        if data[i] == HASH or data[i] == PERCENT:
            while data[i] != NEWLINE:
                i += 1
            i += 1
            state[0] += 1
            state[1] += 1
            continue
        for field in range(last_field + 1):
            while data[i] == SPACE or data[i] == TAB:
                i += 1
            role = roles[field]
            if role >= 0:
                # nearly every number is a short run of digits: that one here, the others with all care
                start = i
                value = np.int64(0)
                while 0 <= np.int64(data[i]) - ZERO <= 9 and i - start < 18:
                    value = value * 10 + (np.int64(data[i]) - ZERO)
                    i += 1
                ends = data[i] == delimiter or data[i] <= SPACE
                if i == start or not ends or (role == 0 and power != 0):
                    if role == 0:
                        value, i, wrong = _number(data, start, power, exact, tens)
                    else:
                        value, i, wrong = _number(data, start, 0, True, tens)
                    if wrong:
                        fault[0] = wrong
                        fault[1] = field
                        if wrong == NO_NUMBER and (data[i] == NEWLINE or data[i] == RETURN):
                            fault[0] = TOO_FEW
                        return n
                out[role, n] = value
            else:
                while data[i] != delimiter and data[i] != NEWLINE and data[i] != RETURN:
                    if delimiter == SPACE and data[i] == TAB:
                        break
                    i += 1
            blanks = i
            while data[i] == SPACE or data[i] == TAB:
                i += 1
            at_end = data[i] == NEWLINE or (data[i] == RETURN and data[i + 1] == NEWLINE)
            if field < last_field:
                if at_end:
                    fault[0] = TOO_FEW
                elif delimiter == SPACE:
                    if i == blanks:
                        fault[0] = NO_NUMBER
                elif data[i] == delimiter:
                    i += 1
                else:
                    fault[0] = NO_NUMBER
            elif not at_end:
                fault[0] = TOO_MANY if data[i] == delimiter or (delimiter == SPACE and i > blanks) else NO_NUMBER
            if fault[0]:
                fault[1] = field
                return n
        i += 2 if data[i] == RETURN else 1
        state[0] += 1
        n += 1
    return n


class TextDecoder(Decoder):
    """Lines of numbers: CSV, or columns with blanks between. Blank lines and comments (``#``, ``%``) are passed over.

    Args:
        sensor: ``(height, width)``, for streams.
        columns: the order of the columns, such as ``"txyp"``; ``-`` for a column to leave out.
        delimiter: ``","``, ``";"`` or ``" "`` (any run of spaces and tabs).
        time_unit: a unit (``"s"``, ``"ms"``, ``"us"``, ``"ns"``).
        name: what messages start with.
        lines_before: lines of the file that are not fed to the decoder, for messages.
    """

    format = "CSV"
    state_size = 1
    skipped_kinds = ("comment lines",)

    def __init__(
        self,
        sensor: Sequence[int] | None = None,
        *,
        out_of_bounds: OutOfBounds = "raise",
        columns: str = "txyp",
        delimiter: str = ",",
        time_unit: str | TimeUnit = "us",
        name: object = "stream",
        lines_before: int = 0,
    ) -> None:
        given_order(columns.replace("-", ""))
        if delimiter not in (",", ";", " "):
            raise FateError(f"delimiter={delimiter!r} was given; expected ',', ';' or ' ' (spaces and tabs)")
        if isinstance(time_unit, str) and time_unit not in ("s", "ms", "us", "ns"):
            raise FateError(f"time_unit={time_unit!r} was given; expected 's', 'ms', 'us' or 'ns'")
        self.columns, self.delimiter, self.name, self.lines_before = columns, delimiter, name, lines_before
        self.unit = given_unit(time_unit) if isinstance(time_unit, str) else time_unit
        self._roles = np.array([ROLES.find(role) for role in columns.lower()], np.int64)
        super().__init__(sensor, out_of_bounds=out_of_bounds)

    def initial_state(self) -> NDArray[np.int64]:
        state = super().initial_state()
        state[0] = self.lines_before
        return state

    def decode(self, data: bytes) -> tuple[Columns, int]:
        used = data.rfind(b"\n") + 1
        table = np.empty((4, data.count(b"\n")), np.int64)
        fault = np.zeros(2, np.int64)
        lines = self.state[0]
        n = _rows(
            np.frombuffer(data, np.uint8, used),
            self._roles,
            ord(self.delimiter),
            self.unit.power,
            self.unit.exact,
            POWERS_OF_TEN,
            table,
            self.state,
            fault,
        )
        if fault[0]:
            line = data.split(b"\n", int(self.state[0] - lines) + 1)[-2]
            raise FormatError(self._sentence(int(fault[0]), int(fault[1]), line))
        return Columns(*table[:, :n]), used

    def _sentence(self, fault: int, field: int, line: bytes) -> str:
        role = self.columns[field]
        wanted = f"{len(self.columns)} columns ({list_names(self.columns)})"
        unit = 'pass time_unit="s" or the unit that it has'
        reason = {
            TOO_FEW: f"has fewer than the {wanted} expected",
            TOO_MANY: f"has more than the {wanted} expected",
            NO_NUMBER: f"has no number that can be read in column {field + 1} ({role}) of {wanted}",
            NOT_WHOLE: f"has a {role} that is no whole number" + (f" of µs; {unit}" if role == "t" else ""),
            TOO_LARGE: f"has a {role} that is more than 64-bit integers carry",
        }[fault]
        return f"{self.name}: line {grouped(int(self.state[0]) + 1)}, {shown(line)}, {reason}"


def shown(line: bytes) -> str:
    """A line as messages quote it: printable, and not too long."""
    text = line.decode("utf-8", "replace").strip()
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")
