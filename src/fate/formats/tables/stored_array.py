"""One array in NumPy's file format, read by rows from any store of bytes.

The format: the bytes ``\\x93NUMPY``, a version, and a short text that gives the type, the shape and the order, then
the numbers. Types that need unpickling are refused; sizes are what the header claims, for the caller to compare
with what is there.
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fate.errors import FormatError

MAX_HEADER_BYTES = 64 * 1024  # numpy itself writes and reads at most 10 000

# what a damaged header raises: it is read as Python literals and turned into a type, neither of which is narrower
_DAMAGE = (
    ValueError,
    TypeError,
    SyntaxError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)


class Bytes(Protocol):
    """Bytes read by position: a file, or a member of an archive."""

    size: int

    def read(self, position: int, num_bytes: int) -> bytes:
        """Up to ``num_bytes`` from ``position``; fewer only at the end."""


class Rows(NamedTuple):
    """Rows of ``width`` numbers (or one record, or one number) of a type, from ``start`` on."""

    data: Bytes
    start: int
    dtype: np.dtype[Any]
    width: int = 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * self.width

    def read(self, first: int, last: int) -> NDArray[Any]:
        """Rows ``first`` to ``last`` (not included): [n], or [n, width] where there are several numbers a row."""
        num_bytes = (last - first) * self.row_bytes
        values = np.frombuffer(self.data.read(self.start + first * self.row_bytes, num_bytes), self.dtype)
        return values if self.width == 1 else values.reshape(-1, self.width)


class StoredArray:
    """The header of an array, and how to get at its rows."""

    def __init__(self, name: object, data: Bytes) -> None:
        self._name, self._data = name, data
        self.shape, self.column_by_column, self.dtype, self.start = _header(name, data)
        self.num_rows = self.shape[0] if self.shape else 1
        self.row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self.num_bytes = self.dtype.itemsize * math.prod(self.shape)  # claimed
        if self.row_bytes == 0:
            raise FormatError(f"{name}: has rows of no bytes ({self.dtype}, shape {self.shape}); expected numbers")
        self.column_by_column &= len(self.shape) > 1

    def rows(self) -> Rows:
        """The rows of a one-dimensional array, or of a two-dimensional one stored row by row."""
        return Rows(self._data, self.start, self.dtype, math.prod(self.shape[1:]))

    def column(self, i: int) -> Rows:
        """Column ``i`` of a two-dimensional array stored column by column (Fortran order)."""
        return Rows(self._data, self.start + i * self.num_rows * self.dtype.itemsize, self.dtype)

    def check_numbers(self, *fields: str) -> None:
        """Refuse anything but integers, floats and truth values in the array, or in the named fields of it."""
        types = [self.dtype] if not fields else [self.dtype[field] for field in fields]
        for dtype in types:
            if dtype.kind not in "iufb":
                raise FormatError(f"{self._name}: holds values of type {dtype}; expected integers or floats")


def _header(name: object, data: Bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether the order is Fortran's, type, and where the numbers start."""
    stream = io.BytesIO(data.read(0, MAX_HEADER_BYTES))
    try:
        version = npy.read_magic(stream)
        # version 3 is version 2 with names in UTF-8: the names that are looked for are ASCII, the same in both
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about files of Python 2, which read all the same
            shape, fortran, dtype = read(stream)
        if version not in ((1, 0), (2, 0), (3, 0)) or any(isinstance(n, bool) or n < 0 for n in shape):
            raise ValueError
    except _DAMAGE:
        raise FormatError(f"{name}: has no readable NumPy header; it is damaged or cut short, copy it again") from None
    if dtype.hasobject:
        raise FormatError(
            f"{name}: holds Python objects, which could run code when loaded and are never read; save plain numbers (an"
            " array of one type, or a structured array)"
        )
    return shape, fortran, dtype, stream.tell()
