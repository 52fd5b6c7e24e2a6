"""FATE: object detection with event cameras at any rate from 20 to 200 Hz.

``__init__.pyi`` lists the public names. They are imported on first use, so that ``import fate`` and ``fate --help``
stay fast.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from fate.version import __version__ as __version__

_LISTED = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
#: Packages that have the name of a command, and can be called like it.
_PACKAGES = ("densify", "models", "view")
#: The module of each public name.
_HOME = {
    name: module
    for module, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", _LISTED, re.MULTILINE)
    if name not in (*_PACKAGES, "__version__")
}

__all__ = sorted({*_HOME, *_PACKAGES})  # noqa: PLE0605  (a list of texts)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fate.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fate' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PACKAGES})
