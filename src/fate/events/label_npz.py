"""FATE's own label file to and from bytes: an npz archive that holds everything :class:`Labels` knows.

Keys: ``format`` ("fate-labels"), ``version`` (1), one array per column, ``labelled_us``, and, where known,
``classes`` (text) and ``sensor`` (height, width). Nothing is pickled.
"""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.errors import FormatError, list_names
from fate.events.labels import COLUMNS, Labels

FORMAT = "fate-labels"
VERSION = 1

#: What numpy raises for a damaged npy or npz. It evaluates the header of an array as Python text, and zipfile
#: adds its own errors, so the list is long; found by changing bytes of good files.
DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    OSError,
    RuntimeError,  # includes NotImplementedError: an unknown compression, an encryption flag
    OverflowError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)

MAX_RATIO, MAX_SMALL = 200, 64 << 20  # labels shrink by far less; a few repeated rows may shrink by more


def encode(labels: Labels) -> bytes:
    """The bytes of a compressed npz; the same labels always give the same bytes."""
    arrays: dict[str, Any] = {"format": np.array(FORMAT), "version": np.array(VERSION)}
    arrays |= {name: getattr(labels, name) for name in (*COLUMNS, "labelled_us")}
    if labels.classes is not None:
        arrays["classes"] = np.array(labels.classes, dtype=np.str_)
    if labels.sensor is not None:
        arrays["sensor"] = np.array(labels.sensor, dtype=np.int64)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def decode(data: bytes) -> Labels:
    """Labels from the bytes of :func:`encode`."""
    arrays = _load(data)
    if _scalar(arrays, "format") != FORMAT:
        raise FormatError(
            f"is an npz with the keys {list_names(sorted(arrays)) or '(none)'}; a label file has format "
            f"{FORMAT!r}; give a file made by write_labels"
        )
    version = _scalar(arrays, "version")
    if version != VERSION:
        raise FormatError(f"has version {version}; this FATE reads version {VERSION}; update FATE")
    for name in (*COLUMNS, "labelled_us"):
        if name not in arrays:
            raise FormatError(f"has no array {name}; a label file holds every column; write it again")
    return Labels(
        **{name: arrays[name] for name in COLUMNS},
        labelled_us=arrays["labelled_us"],
        classes=_listed(arrays, "classes", "U"),
        sensor=_listed(arrays, "sensor", "i"),
    )


def _load(data: bytes) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive_:
            claimed = sum(member.file_size for member in archive_.infolist())
        if claimed > MAX_RATIO * len(data) + MAX_SMALL:
            raise FormatError(f"claims to unpack {len(data)} bytes to {claimed}; it is damaged; get it again")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files if isinstance(archive[name], np.ndarray)}
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error


def _scalar(arrays: dict[str, NDArray[Any]], name: str) -> Any:
    """The value of a zero-dimensional array, None where there is none."""
    array = arrays.get(name)
    return array.item() if array is not None and array.ndim == 0 else None


def _listed(arrays: dict[str, NDArray[Any]], name: str, kind: str) -> Any:
    """An optional one-dimensional array as a tuple of plain values; Labels checks them."""
    array = arrays.get(name)
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind != kind:
        raise FormatError(f"array {name} has dtype {array.dtype}, shape {array.shape}; write it again")
    return tuple(array.tolist())
