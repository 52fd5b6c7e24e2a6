"""Loops compiled to machine code on first use, and kept on disk for the next time where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

#: A product and a sum may be rounded once instead of twice; there is no NaN; 0 has no sign.
FINITE = {"contract", "nnan", "nsz"}

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba; it runs without Python's lock, so threads can share the work.

    Compiled code is kept beside the source or in the user's cache folder. Where neither can be written (a container
    without a home, say), it is compiled again in each process.
    """
    try:
        return cast(Function, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # numba found no place to keep it
        return cast(Function, njit(nogil=True)(function))


def compiled_contracted(function: Function) -> Function:
    """The same for long sums of finite numbers, whose divisors are never 0."""
    try:
        return cast(Function, njit(nogil=True, cache=True, error_model="numpy", fastmath=FINITE)(function))
    except RuntimeError:  # numba found no place to keep it
        return cast(Function, njit(nogil=True, error_model="numpy", fastmath=FINITE)(function))


def inlined(function: Function) -> Function:
    """The same for a small function in the innermost loop of compiled code: its body is put in the caller's place.

    A call that passes arrays costs more than a few additions do, for their reference counts.
    """
    return cast(Function, njit(nogil=True, inline="always")(function))
