"""Names of parameters in the public checkpoints and in ours: one table for each public layout, in ``layouts.yaml``.

A rule is a pattern and its replacement, as in ``re.sub``. Every rule whose pattern matches is applied, in the order of
the table. Tables have one entry for each part of our detector; its rules apply to names below the part's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml

#: (pattern, replacement) pairs.
Rules = tuple[tuple[str, str], ...]
Value = TypeVar("Value")


def rename(key: str, rules: Rules) -> str:
    """Apply the rules to one name."""
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


def rename_entries(
    entries: Mapping[str, Value], rules: Rules, prefix: str = "", new_prefix: str = ""
) -> dict[str, Value]:
    """All entries below ``prefix``, which ``new_prefix`` replaces, by their new names."""
    return {
        new_prefix + rename(key.removeprefix(prefix), rules): value
        for key, value in entries.items()
        if key.startswith(prefix)
    }


_FILE = Path(__file__).with_name("layouts.yaml")
_TABLES: dict[str, dict[str, Rules]] = {
    layout: {part: tuple(map(tuple, rules)) for part, rules in parts.items()}
    for layout, parts in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
}
RVT, EVRT_DETR = _TABLES["RVT"], _TABLES["EVRT_DETR"]
#: Neck and head have the names of EvRT-DETR after these rules.
TRANSFORMERS = {
    part: rules if part == "backbone" else (*rules, *EVRT_DETR[part]) for part, rules in _TABLES["TRANSFORMERS"].items()
}
#: Entries of EvRT-DETR's encoder that are no weights: the position table of its one image size.
EVRT_DETR_IGNORED = r"^pos_embed\d$"
