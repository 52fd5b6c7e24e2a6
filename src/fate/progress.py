"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

#: Called with the share of the work that is done, 0 to 1.
Fraction = Callable[[float], None]
