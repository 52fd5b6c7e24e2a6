"""JSON files: reading trusts nothing in a file that may be damaged, and every fault is one sentence."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fate.errors import FormatError
from fate.files import read_bytes
from fate.whole_files import write_whole

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_DEPTH = 64  # our files have a few levels; deeper nesting would overflow the stack


def read_json(path: Path, what: str) -> Any:
    """Read a JSON file; errors end with ``what`` it should be, such as ``"a file of fate detect --json"``."""
    return parse_json(read_bytes(path, what), str(path), what)


def parse_json(data: bytes | str, where: str, what: str) -> Any:
    """Parse JSON, as text or UTF-8 with or without a byte order mark; NaN, infinity and deep nesting are refused.

    An error begins with ``where`` the text is and ends with ``what`` it should be.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        content = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"{where}: is not whole JSON ({error}); expected {what}") from None
    if _depth_exceeds(content, MAX_DEPTH):
        raise FormatError(f"{where}: is nested more than {MAX_DEPTH} levels deep; expected {what}")
    return content


def read_object(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = read_json(path, what)
    if not isinstance(content, dict):
        raise FormatError(f"{path}: holds {type(content).__name__}; expected {what}")
    return content


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write plain values as a JSON file, whole or not at all; ``"-"`` is standard output."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode("utf-8", "backslashreplace"), text=True)


def describe_invalid(error: ValidationError) -> str:
    """The first finding of pydantic in words: the key, what was given, and what was expected."""
    found = error.errors(include_url=False, include_context=False)[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part:.40}" for part in found["loc"])
    return f"{key.removeprefix('.')} is {found['input']!r:.40} ({found['msg']:.300})"


def whole_number(value: object, name: str, low: int, high: int) -> int:
    """A whole number between two limits, both included; anything else is refused."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _unexpected(value, name, f"a whole number from {low} to {high}")
    return value


def finite_number(value: object, name: str) -> float:
    """A number that float64 can hold; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:  # nor NaN
        raise _unexpected(value, name, "a finite number")
    return float(value)


def list_of(value: object, name: str, kind: type = object) -> list[Any]:
    """A list of values of a ``kind``; anything else is refused."""
    if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
        raise _unexpected(value, name, "a list" if kind is object else "a list of names")
    return value


def object_of(value: object, name: str) -> dict[str, Any]:
    """An object, which Python calls a dict; anything else is refused."""
    if not isinstance(value, dict):
        raise _unexpected(value, name, "an object")
    return value


def _unexpected(value: object, name: str, expected: str) -> FormatError:
    return FormatError(f"{name} is {value!r:.40}; expected {expected}")


def _finite(text: str) -> float:
    """Parse a number with a point or an exponent, NaN or Infinity; 1e400 would become infinite and is refused too."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text:.40}, which is not a finite number of 64 bits")
    return value


def _depth_exceeds(content: Any, limit: int) -> bool:
    """Whether lists and objects nest deeper; level by level, so that the depth of the stack does not matter."""
    level = [content]
    for _ in range(limit):
        level = [each for each in level if isinstance(each, dict | list)]
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return any(isinstance(each, dict | list) for each in level)
