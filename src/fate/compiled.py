"""Loops compiled to machine code on first use, and kept on disk for the next time where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiler(**options: Any) -> Callable[[Function], Function]:
    def compile_function(function: Function) -> Function:
        try:
            return cast(Function, njit(nogil=True, cache=True, **options)(function))
        except RuntimeError:  # numba found no folder to keep it in
            return cast(Function, njit(nogil=True, **options)(function))

    return compile_function


#: Compiles a function with numba. It runs without Python's lock, so threads can share the work. The compiled code is
#: kept beside the source or in the user's cache folder; if neither can be written, each process compiles it again.
compiled = _compiler()
#: The same for long sums: a product and a sum may be rounded once instead of twice; no divisor is 0.
compiled_sums = _compiler(error_model="numpy", fastmath={"contract"})
#: The same if, besides, all numbers are finite.
compiled_finite_sums = _compiler(error_model="numpy", fastmath={"contract", "nnan", "nsz"})


def inlined(function: Function) -> Function:
    """Compile a small function of an innermost loop; its body is put in the place of each call.

    A call that passes arrays costs more than a few additions do, because of their reference counts.
    """
    return cast(Function, njit(nogil=True, inline="always")(function))
