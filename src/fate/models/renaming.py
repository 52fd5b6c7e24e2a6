"""Names of parameters in the public checkpoints, turned into ours.

Each model keeps its own short list of rules beside its code. A rule is a pattern and its replacement, as in ``re.sub``;
every rule whose pattern matches is applied, in the order of the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
