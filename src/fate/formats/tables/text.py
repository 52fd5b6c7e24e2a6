"""Tables of events in text: CSV (comma, semicolon) and TXT (tab, spaces), one event a line.

Lines that start with ``#`` or ``%`` are comments; those before the first row may give the sensor:
``%geometry:1280,720`` (OpenEB), ``# sensor 1280x720`` (FATE), ``# width 1280``. A first row of two numbers,
``240 180``, is the size as well (width first), as some public datasets have it. A row of names, which may stand in a
comment, names the columns (and may give the size: faery's ``t,x@1280,y@720,on``); without names the order is
recognised, OpenEB's x,y,p,t and the datasets' "t x y p" first. Times are µs, or seconds where they are not whole
numbers; the unit is decided once, from the first rows.

Numbers are read digit by digit as integers, never through floats, so a Unix time such as 1600000000.123456 s comes
out as exactly 1600000000123456 µs; what is finer than 1 µs is rounded to the nearest, ties to even.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fate.compiled import compiled
from fate.errors import FateError, FormatError
from fate.events.events import find_roles
from fate.formats.decoder import Columns, Decoder
from fate.formats.source import ByteFile, ByteSource, Options, sensor_of_sides
from fate.formats.tables.fields import ROLES, TEXT_ORDERS, TimeUnit, find_unit, given_order, given_unit, recognise_order
from fate.quantities import parse_number
from fate.text import grouped

HEAD_BYTES = 256 * 1024  # looked at to find names, the order of columns and the unit of time
SAMPLE_ROWS = 4096
LAST_LINES_BYTES = 64 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SIDE_BY_SIDE = re.compile(r"\b(?:geometry|sensor|resolution)\b\W*(\d+)\s*[x×,;\s]\s*(\d+)", re.IGNORECASE)
ONE_SIDE = re.compile(r"\b(width|height)\b\W*(\d+)", re.IGNORECASE)


SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13
COMMENT_MARKS = ("#", "%")
HASH, PERCENT, PLUS, MINUS, DOT, ZERO = 35, 37, 43, 45, 46, 48
NO_NUMBER, NOT_WHOLE, TOO_LARGE = 1, 2, 3
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
        is_comment = data[i] == HASH or data[i] == PERCENT
        if is_comment or data[i] == NEWLINE or (data[i] == RETURN and data[i + 1] == NEWLINE):
            while data[i] != NEWLINE:
                i += 1
            i += 1
            state[0] += 1
            state[1] += is_comment
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
            if field == last_field:
                goes_on = at_end
            elif delimiter == SPACE:
                goes_on = i > blanks and not at_end
            else:
                goes_on = data[i] == delimiter
                i += 1
            if not goes_on:
                fault[0] = NO_NUMBER
                fault[1] = field
                return n
        i += 2 if data[i] == RETURN else 1
        state[0] += 1
        n += 1
    return n


@dataclass(eq=False)
class TextDecoder(Decoder):
    """Lines of numbers: CSV, or columns separated by blanks. Blank lines and comments (``#``, ``%``) are skipped."""

    format = "CSV"
    start = (0,)
    skipped_kinds = ("comment lines",)
    columns: str = "txyp"  # the order of the columns; ``-`` for a column to leave out
    delimiter: str = ","  # or ";", or " " for any run of spaces and tabs
    time_unit: str | TimeUnit = "us"  # "s", "ms", "us" or "ns"
    name: object = "stream"  # messages start with it
    lines_before: int = 0  # lines of the file that are not fed to the decoder, for messages

    def __post_init__(self) -> None:
        given_order(self.columns.replace("-", ""))
        if self.delimiter not in (",", ";", " "):
            raise FateError(f"delimiter={self.delimiter!r} was given; expected ',', ';' or ' ' (spaces and tabs)")
        self.unit = given_unit(self.time_unit) if isinstance(self.time_unit, str) else self.time_unit
        self._roles = np.array([ROLES.find(role) for role in self.columns.lower()], np.int64)
        super().__post_init__()

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
            where = f"{self.name}: line {grouped(int(self.state[0]) + 1)}, {shown(line)}"
            role = self.columns[fault[1]]
            unit = ' of µs; pass time_unit="s" or the unit that it has' if role == "t" else ""
            reason = {
                NO_NUMBER: f"no number of its own in column {fault[1] + 1} ({role})",
                NOT_WHOLE: f"a {role} that is no whole number{unit}",
                TOO_LARGE: f"a {role} that is more than 64-bit integers carry",
            }[int(fault[0])]
            order = self.columns if len(self.columns) < 20 else f"{self.columns[:20]}…"
            raise FormatError(f"{where}, has {reason}; expected the {len(self.columns)} columns {order}")
        return Columns(*table[:, :n]), used


def shown(line: bytes) -> str:
    """Quote a line for a message: printable, and not too long."""
    text = line.decode("utf-8", "replace").strip()
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")


Size = tuple[str, str]  # height and width of the sensor, as the file gives them


class Preamble(NamedTuple):
    """The lines before the first row."""

    num_bytes: int
    num_lines: int
    size: Size | None
    names: list[str]  # of the columns; empty if they have no names
    delimiter: str


def open_text(file: ByteFile, options: Options) -> ByteSource:
    """Open a CSV or TXT file."""
    path, head = file.path, file.read(0, HEAD_BYTES)
    preamble = read_preamble(path, head)
    lines = head[preamble.num_bytes :].split(b"\n")
    if len(head) < file.size and len(lines) > 1:
        lines.pop()  # it may be cut
    texts = (line.decode("utf-8", "replace").strip() for line in lines)
    filled = (text for text in texts if text and not text.startswith(COMMENT_MARKS))
    # a faulty row is refused later, when it is decoded
    rows = [text.split(preamble.delimiter.strip() or None) for text in islice(filled, SAMPLE_ROWS)]
    columns, how = _columns(path, rows, preamble.names, options)
    unit = _unit(columns, rows, preamble.names, options)
    decoder = TextDecoder(
        columns=columns, delimiter=preamble.delimiter, time_unit=unit, name=path, lines_before=preamble.num_lines
    )
    notes = {"columns": f"{columns} ({how})", "time unit": unit.note}
    sensor = options.sensor or (sensor_of_sides(path, *preamble.size) if preamble.size else None)
    # A last line without a newline that can be read as a row is taken for whole; but if time is written last and goes
    # back there, the line was cut inside that number.
    start = max(preamble.num_bytes, file.size - LAST_LINES_BYTES)
    *others, last = file.read(start, file.size - start).split(b"\n")
    is_whole = False
    with suppress(FormatError):
        times = decoder.fresh().decode(last + b"\n")[0].t.tolist()
        is_whole = bool(last.strip())
        if columns.endswith("t") and times and len(others) > 1:
            before = decoder.fresh().decode(others[-1] + b"\n")[0].t.tolist()
            is_whole = not before or times[-1] >= before[-1]
    return ByteSource(file, decoder, preamble.num_bytes, sensor, notes, b"\n" if is_whole else b"")


# ---- before the first row -----------------------------------------------------------------------------------


def read_preamble(path: Path, head: bytes) -> Preamble:
    """Find the comments, the size and the names at the start of ``head``."""
    position = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    num_lines, delimiter = 0, ","
    comments: list[str] = []
    names: list[str] = []
    size: Size | None = None
    while position < len(head):
        end = head.find(b"\n", position)
        after = len(head) if end < 0 else end + 1
        line = head[position:after].decode("utf-8", "replace").strip()
        if line.startswith(COMMENT_MARKS):
            comments.append(line[1:].strip())
        elif line:
            cells, delimiter = split_cells(line)
            in_comments = [split_cells(comment)[0] for comment in reversed(comments)]
            named = [words for words in in_comments if len(words) == len(cells) and find_roles(words) is not None]
            if len(cells) == 2 and cells[0].isdigit() and cells[1].isdigit() and not num_lines:
                size = (cells[1], cells[0])
            elif named or all(parse_number(cell) is not None for cell in cells):
                names = named[0] if named else []
                break
            else:  # a row of names, which may carry the size, as in x@1280 and y@720
                parts = [cell.partition("@") for cell in cells]
                sizes = {name.strip().lower(): side for name, _, side in parts if side}
                if sizes.keys() == {"x", "y"}:
                    cells, size = [name for name, _, _ in parts], (sizes["y"], sizes["x"])
                if find_roles(cells) is None:
                    raise FormatError(
                        f"{path}: is a text file, and its line {num_lines + 1}, {shown(head[position:after])}, is"
                        " neither a row of numbers nor a row of names that has t, x, y and p; give the recording itself"
                    )
                position, num_lines, names = after, num_lines + 1, cells
                break
        position, num_lines = after, num_lines + 1
    return Preamble(position, num_lines, size or _size_in_comments(comments), names, delimiter)


def _size_in_comments(comments: list[str]) -> Size | None:
    """Return the sensor size that comments give, on one line or on two."""
    sides: dict[str, str] = {}
    for comment in comments:
        if match := SIDE_BY_SIDE.search(comment):
            return match[2], match[1]
        for side, value in ONE_SIDE.findall(comment):
            sides.setdefault(side.lower(), value)
    return (sides["height"], sides["width"]) if len(sides) == 2 else None


def split_cells(line: str) -> tuple[list[str], str]:
    """Return the cells of a line, and the delimiter between them."""
    for delimiter in (";", ","):
        if delimiter in line:
            return [cell.strip() for cell in line.split(delimiter)], delimiter
    return line.split(), " "


# ---- the first rows -------------------------------------------------------------------------------


def _columns(path: Path, rows: list[list[str]], names: list[str], options: Options) -> tuple[str, str]:
    """Return one letter per column, and how they were found."""
    num_columns = len(names) or (len(rows[0]) if rows else 4)
    if names and not options.columns:
        roles = find_roles(names) or {}
        letters = {position: role for role, position in roles.items()}
        return "".join(letters.get(i, "-") for i in range(num_columns)), "named"
    if num_columns != 4:
        raise FormatError(
            f"{path}: has {num_columns} columns, {shown(' '.join(names or rows[0]).encode())}; expected four, or a"
            " first row that names t, x, y and p and no columns=TXYP"
        )
    if options.columns:
        return given_order(options.columns), "as given"
    numbers = [[parse_number(cell) for cell in row] for row in rows if len(row) == 4]
    readable = [row for row in numbers if None not in row]
    if not readable:
        return ROLES, "recognised"
    return recognise_order(path, np.array(readable, np.float64), TEXT_ORDERS), "recognised"


def _unit(columns: str, rows: list[list[str]], names: list[str], options: Options) -> TimeUnit:
    """Return the unit of time of the whole file: given, named, or recognised in the first rows."""
    column = columns.index("t")
    cells = [row[column].strip() for row in rows if len(row) == len(columns)]
    times = [time for cell in cells if (time := parse_number(cell)) is not None and math.isfinite(time)]
    integers = not any(mark in cell.lower() for cell in cells for mark in ".e")
    whole = all(time.is_integer() for time in times)
    return find_unit(options.time_unit, names[column] if names else "", whole, integers)
