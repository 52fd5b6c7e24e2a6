"""FATE's own label file to and from bytes: an npz archive that holds everything :class:`Labels` knows.

Keys: ``format`` ("fate-labels"), ``version`` (1), one array per column, ``labelled_us``, and, where known,
``classes`` (text) and ``sensor`` (height, width). Nothing is pickled.
"""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import COLUMNS, Labels
from fate.errors import FateError, FormatError, list_names

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
    arrays = load_arrays(io.BytesIO(data), len(data))
    if scalar(arrays, "format") != FORMAT:
        raise FormatError(
            f"is an npz with the keys {list_names(sorted(arrays)) or '(none)'}; a label file has format "
            f"{FORMAT!r}; give a file made by write_labels"
        )
    version = scalar(arrays, "version")
    if version != VERSION:
        raise FormatError(f"has version {version}; this FATE reads version {VERSION}; update FATE")
    for name in (*COLUMNS, "labelled_us"):
        if name not in arrays:
            raise FormatError(f"has no array {name}; a label file holds every column; write it again")
    return Labels(
        **{name: arrays[name] for name in COLUMNS},
        labelled_us=arrays["labelled_us"],
        classes=listed(arrays, "classes", "U"),
        sensor=listed(arrays, "sensor", "i"),
    )


def load_arrays(file: BinaryIO, size: int) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz; a member that is no array is refused, since numpy would give its bare bytes.

    Args:
        file: the archive, open for reading.
        size: of the archive in bytes; one that claims to unpack to far more is refused.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
        if claimed > MAX_RATIO * size + MAX_SMALL:
            raise FormatError(f"claims to unpack {size} bytes to {claimed}; it is damaged; get it again")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                array = stored[name]
                if not isinstance(array, np.ndarray):
                    raise FormatError(f"member {name!r} is no array; it is damaged; get it again")
                arrays[name] = array
    except FateError:
        raise
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error
    return arrays


def scalar(arrays: dict[str, NDArray[Any]], name: str) -> Any:
    """Return the value of a zero-dimensional array, or None if there is no such array."""
    array = arrays.get(name)
    return array.item() if array is not None and array.ndim == 0 else None


def listed(arrays: dict[str, NDArray[Any]], name: str, kind: str) -> Any:
    """Return an optional one-dimensional array as a tuple of plain values; Labels checks them.

    Args:
        arrays: of the archive, by name.
        name: of the array.
        kind: numpy's letter for the kind of its values, such as ``"U"`` for text.
    """
    array = arrays.get(name)
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind != kind:
        raise FormatError(f"array {name} has dtype {array.dtype}, shape {array.shape}; write it again")
    return tuple(array.tolist())
