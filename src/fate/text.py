"""Numbers, plurals and file names as plain text: one place, so that all commands and pages write them alike.

Nothing here imports another module of FATE, so that every part of the package can use it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Container, Iterable, Sequence


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun; ``nouns`` is the plural, if it is not the singular with an "s".

    Example:
        >>> plural(1, "frame"), plural(0, "box", "boxes"), plural(1204, "event")
        ('1 frame', '0 boxes', '1 204 events')
    """
    return f"{grouped(count)} {noun if count == 1 else nouns or noun + 's'}"


def grouped(value: int) -> str:
    """A whole number with a space between groups of three digits.

    Example:
        >>> grouped(1204331)
        '1 204 331'
    """
    return f"{value:,}".replace(",", " ")


def significant(value: float, digits: int = 2) -> str:
    """A number with at least this many significant digits, never in scientific notation.

    Example:
        >>> significant(0.0342), significant(1.27), significant(48.3), significant(3105.5), significant(0.0)
        ('0.034', '1.3', '48', '3 106', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    for _ in range(2):  # rounding may carry to the next power of ten: 0.0999 is 0.10
        decimals = digits - 1 - math.floor(math.log10(abs(value)))
        value = round(value, max(decimals, 0)) or value
    if decimals <= 0:
        return grouped(round(value))
    return f"{value:.{decimals}f}"


def duration(seconds: float) -> str:
    """A time with the unit that fits it.

    Example:
        >>> duration(0.0483), duration(1.27), duration(64.2), duration(3105.5), duration(7300)
        ('48 ms', '1.3 s', '64 s', '51 min 46 s', '2 h 2 min')
    """
    if abs(seconds) < 9.95e-4:
        return f"{significant(1e6 * seconds)} µs"
    if abs(seconds) < 0.995:
        return f"{significant(1e3 * seconds)} ms"
    if abs(seconds) < 120:
        return f"{significant(seconds)} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def frequency(per_second: float, noun: str, nouns: str | None = None) -> str:
    """A rate as text; a rate below one per second is given as the time between two events.

    Example:
        >>> frequency(48.2, "window"), frequency(0.19, "window"), frequency(0, "window")
        ('48 windows per second', 'one window every 5.3 s', 'no windows')
    """
    several = nouns or noun + "s"
    if not per_second > 0:
        return f"no {several}"
    if per_second < 0.995:
        return f"one {noun} every {duration(1 / per_second)}"
    return f"{significant(per_second)} {noun if significant(per_second) == '1.0' else several} per second"


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(format_markdown_table(("model", "ms"), [("fate-s", "4.1")]))
        | model | ms |
        |---|---|
        | fate-s | 4.1 |
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def or_dash(value: float | None, spec: str) -> str:
    """A number in the format ``spec``, or a dash for one that is not known.

    Example:
        >>> or_dash(0.1234, ".1%"), or_dash(None, ".1%")
        ('12.3%', '–')
    """
    return "–" if value is None else format(value, spec)


def encodable(text: str) -> str:
    r"""Text that UTF-8 can hold: bytes of a file name that are not UTF-8 become escapes.

    Python keeps such bytes as lone surrogates, which no file or page can store.

    Example:
        >>> encodable("bad\udcff.dat")
        'bad\\xff.dat'
    """
    if text.isascii():
        return text
    return "".join(_escaped(char) if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)


def one_line(text: str) -> str:
    r"""Text on one line: line breaks and other characters that do not print become escapes.

    Example:
        >>> one_line("two\nlines, bad\udcff.dat")
        'two\\nlines, bad\\xff.dat'
    """
    text = encodable(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def format_table(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> str:
    """Rows of cells, as many in each, as text: columns have equal width and are two spaces apart.

    Columns whose index is in ``left`` are aligned to the left, the others to the right.

    Example:
        >>> print(format_table([("name", "boxes"), ("car", "12")]))
        name  boxes
        car      12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def nearest_name(given: object, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, for an error; None if no name is similar.

    Example:
        >>> nearest_name("fate_s", ["fate-s", "fate-e"]), nearest_name("bicycle", ["car"])
        ('fate-s', None)
    """
    simple = {re.sub(r"[\s_-]", "", name.lower()): name for name in reversed([*known])}
    near = difflib.get_close_matches(re.sub(r"[\s_-]", "", str(given).lower()), simple, n=1, cutoff=0.4)
    return simple[near[0]] if near else None


def suggest_name(given: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean …?", or nothing if no known name is similar."""
    near = nearest_name(given, known)
    return f"; did you mean {near!r}?" if near else ""


def _escaped(surrogate: str) -> str:
    byte = ord(surrogate) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else f"\\u{ord(surrogate):04x}"
