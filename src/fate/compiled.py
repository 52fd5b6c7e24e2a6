"""Loops compiled to machine code on first use, and kept on disk for the next time where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile ``function`` with numba; it runs without Python's lock, so threads can share the work.

    Compiled code is kept beside the source or in the user's cache folder. Where neither can be written (a container
    without a home, say), it is compiled again in each process.
    """
    return _kept(function)


def compiled_sums(function: Function) -> Function:
    """The same for long sums: a product and a sum may be rounded once instead of twice; no divisor is 0."""
    return _kept(function, error_model="numpy", fastmath={"contract"})


def compiled_finite_sums(function: Function) -> Function:
    """The same where, besides, all numbers are finite."""
    return _kept(function, error_model="numpy", fastmath={"contract", "nnan", "nsz"})


def _kept(function: Function, **options: Any) -> Function:
    try:
        return cast(Function, njit(nogil=True, cache=True, **options)(function))
    except RuntimeError:  # numba found no place to keep it
        return cast(Function, njit(nogil=True, **options)(function))


def inlined(function: Function) -> Function:
    """The same for a small function in the innermost loop of compiled code: its body is put in the caller's place.

    A call that passes arrays costs more than a few additions do, for their reference counts.
    """
    return cast(Function, njit(nogil=True, inline="always")(function))
