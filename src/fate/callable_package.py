"""Packages that can be called like the command whose name they have.

``fate.densify``, ``fate.models`` and ``fate.view`` are packages, and they are commands too. Python binds the name to
the package as soon as anything imports from it, so a function of the same name in ``fate`` would disappear. The package
itself is therefore callable, with the signature and the documentation of a function.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package with the call, the signature and the documentation of a function."""

    def _function(self) -> Callable[..., Any]:
        module, _, name = self.__dict__["_called"].partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        package = self.__dict__.get("__doc__") or ""
        return f"{inspect.getdoc(self._function())}\n\nThis name is also a package: {package}"


def make_callable(name: str, function: str) -> None:
    """Let calls of the package ``name`` go to ``function``, written ``module:name``; used in its ``__init__``."""
    sys.modules[name].__dict__["_called"] = function
    sys.modules[name].__class__ = CallablePackage
