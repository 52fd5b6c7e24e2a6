"""Names of parameters in the public checkpoints, turned into ours.

Each model keeps its own short list of rules beside its code. A rule is a pattern and its replacement, as in ``re.sub``;
every rule whose pattern matches is applied, in the order of the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

#: (pattern, replacement) pairs.
Rules = tuple[tuple[str, str], ...]
Value = TypeVar("Value")


def rename(key: str, rules: Rules) -> str:
    """One name."""
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


def renamed(entries: Mapping[str, Value], rules: Rules, prefix: str = "") -> dict[str, Value]:
    """All entries under ``prefix`` (taken off first), by their new names."""
    return {rename(key.removeprefix(prefix), rules): value for key, value in entries.items() if key.startswith(prefix)}


def under(prefix: str, rules: Rules) -> Rules:
    """The same rules for names that lie deeper, under ``prefix``; ^ in a pattern then means there."""
    return tuple((f"(?<=^{re.escape(prefix)}){p[1:]}" if p.startswith("^") else p, r) for p, r in rules)


def differences(given: Iterable[str], expected: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names that are missing and names nobody expects."""
    there, wanted = set(given), set(expected)
    return sorted(wanted - there), sorted(there - wanted)
