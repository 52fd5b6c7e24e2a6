"""FAT phase 1: a detector sweeps over dense times, its boxes become tracks, tracks become labels at every rate.

``fate.densify(detector, dataset, out, hz)`` is :func:`fate.densify.making.densify`: commands are called by their name
from Python too, and this one shares it with its package.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fate.densify.making import Densified


class _CallablePackage(ModuleType):
    def __call__(self, *given: Any, **options: Any) -> Densified:
        """:func:`fate.densify.making.densify`."""
        from fate.densify.making import densify  # noqa: PLC0415  (a package that is only looked at loads nothing)

        return densify(*given, **options)


sys.modules[__name__].__class__ = _CallablePackage
