"""Damage that knows what it damages: values of JSON documents replaced, lost, doubled or wrapped, and text cut."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: What a value becomes: other types, other signs, numbers that no type holds, text that no file should hold.
POOL: tuple[Any, ...] = (
    None, True, False, 0, -1, 3, 2**31, 2**63, -(2**70), 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x",
    "car", "../..", "/etc/passwd", "\ud800", "a\x00b", "1", [], {}, [None], [[]], {"a": 1}, [1, 2, 3, 4], [[1, 2], [3]],
    {"0": []},
)  # fmt: skip


def replace_member(archive: Path, member: str, data: bytes) -> None:
    """Put other bytes into a member of a zip archive, with the right checksum."""
    with zipfile.ZipFile(archive) as old:
        members = {name: old.read(name) for name in old.namelist()}
    assert member in members
    with zipfile.ZipFile(archive, "w") as new:
        for name, content in {**members, member: data}.items():
            new.writestr(name, content)


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def damaged(document: Any, number: int, seed: int = 0) -> Iterator[str]:
    """Texts of ``number`` damaged copies of a document, the same for the same seed, and a few that are always tried."""
    yield from ("", "{", "[]", "null", "5", '"text"', "[" * 100_000, "{}", "{" * 50, '{"a":' * 100_000)
    random = np.random.default_rng(seed)
    places = list(_places(document))
    for count in range(number):
        copied = copy.deepcopy(document)
        for _ in range(int(random.integers(1, 3))):
            _change(copied, places[int(random.integers(len(places)))], random)
        text = json.dumps(copied)
        if count % 20 == 0:
            text = text[: int(random.integers(len(text)))]
        elif count % 20 == 1:
            text = text.replace('"format"', json.dumps("deep") + ": " + json.dumps(nested(900)) + ', "format"', 1)
        yield text


def _places(document: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside: Any = ()
    if isinstance(document, dict):
        inside = document.items()
    elif isinstance(document, list):
        inside = enumerate(document)
    for key, value in inside:
        yield (*here, key)
        yield from _places(value, (*here, key))


def _change(document: Any, place: tuple[Any, ...], random: np.random.Generator) -> None:
    try:
        for key in place[:-1]:
            document = document[key]
        value = document[place[-1]]
    except (LookupError, TypeError):
        return  # an earlier change took it away
    if not isinstance(document, dict | list):
        return
    choice = int(random.integers(10))
    if choice == 0:
        del document[place[-1]]
    elif choice == 1:
        document[place[-1]] = [value]
    elif choice == 2:
        document[place[-1]] = {"value": value}
    elif choice == 3 and isinstance(value, list):
        document[place[-1]] = value + value
    elif choice == 4 and isinstance(value, int | float) and not isinstance(value, bool):
        document[place[-1]] = -value
    else:
        document[place[-1]] = copy.deepcopy(POOL[int(random.integers(len(POOL)))])
