"""Boxes in Prophesee's format: a structured array of 40 bytes per row in a ``_bbox.npy``, or many in one npz.

The array cannot express "labelled, empty", and tools count rows by file size, so times without boxes are stored in a
second file beside it (see :mod:`fate.boxes.label_files`): an int64 array of all labelled times. An npz archive holds
the arrays of many recordings, ``<recording>|gt`` for ground truth and ``<recording>|dt`` for detections.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.boxes.npz import DAMAGE, load_arrays
from fate.errors import FateError, FormatError, list_names, warn

#: The names of each dialect in the order of its published files: 1 Mpx ("t") and Gen1 ("ts").
DIALECTS = {
    "t": ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence"),
    "ts": ("ts", "x", "y", "w", "h", "class_id", "confidence", "track_id"),
}

#: The value of the unsigned ``track_id`` of this format for "no track" (-1 in :class:`Labels`).
NO_TRACK = 0xFFFFFFFF


def decode(data: bytes, times: bytes | None = None, name: str = "boxes") -> Labels:
    """Boxes from the bytes of a ``_bbox.npy`` in either dialect, without classes and sensor.

    ``times`` are the bytes of the sidecar, if there is one; a warning calls the file ``name``.
    """
    return decode_array(load_array(data), None if times is None else decode_times(times), name)


def decode_array(table: NDArray[Any], labelled_us: NDArray[np.int64] | None = None, name: str = "boxes") -> Labels:
    """Boxes from a structured array; the fields are read by name. Arguments as for :func:`decode`."""
    names = table.dtype.names
    if names is None or table.ndim != 1:
        raise FormatError(
            f"holds an array of shape {table.shape} and dtype {table.dtype}; Prophesee boxes are one-dimensional with "
            f"the fields {', '.join(DIALECTS['t'])}; give the _bbox.npy file"
        )
    time, confidence = time_and_score_fields(names)
    used = {time, "x", "y", "w", "h", "class_id", "track_id", confidence, "source"}
    ignored = [field for field in names if field not in used]
    if ignored:
        warn(f"{name}: ignored the unknown fields {list_names(ignored)}")

    left, top, width, height = (_pixels(table, field) for field in ("x", "y", "w", "h"))
    bad = ~((width >= 0) & (height >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise FormatError(f"row {row} has w {width[row]} and h {height[row]}; sizes are 0 or larger; fix or drop it")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is named by the check of Labels
        right, bottom = left + width, top + height
    columns = {
        "t_us": table[time],
        "x1": left,
        "y1": top,
        "x2": right,
        "y2": bottom,
        "class_id": table["class_id"],
        "track_id": _tracks(table["track_id"]) if "track_id" in names else None,
        "score": table[confidence] if confidence else None,
        "source": table["source"] if "source" in names else None,
    }
    labels = Labels.from_unsorted(columns)
    if (table[time][1:] < table[time][:-1]).any():
        warn(f"{name}: sorted {len(table)} boxes by time, they were not")
    missing = np.setdiff1d(labels.t_us, labels.t_us if labelled_us is None else labelled_us)
    if len(missing):
        raise FormatError(
            f"has boxes at {missing[0]} us, a time its _times.npy sidecar does not list; "
            "the sidecar lists every labelled time; write both again or delete the sidecar"
        )
    return labels if labelled_us is None else replace(labels, labelled_us=labelled_us)


def time_and_score_fields(names: Sequence[str]) -> tuple[str, str | None]:
    """Return the names of the time and of the score (None if missing); refuse if a required field is missing."""
    time = "ts" if "ts" in names and "t" not in names else "t"
    for field in (time, "x", "y", "w", "h", "class_id"):
        if field not in names:
            raise FormatError(f"has fields {list_names(names)}; field {field} is missing; add it")
    return time, next((name for name in ("class_confidence", "confidence") if name in names), None)


def read_archive(file: BinaryIO, kind: Literal["gt", "dt"]) -> dict[str, NDArray[np.void]]:
    """Return the structured arrays of an npz by recording: ground truth ("gt") or detections ("dt")."""
    arrays = load_arrays(file, ending=f"|{kind}")
    if not arrays:
        raise FormatError(f"is an npz without arrays named '<recording>|{kind}'; give an archive of boxes")
    return {name.removesuffix(f"|{kind}"): array for name, array in arrays.items()}


def decode_times(data: bytes) -> NDArray[np.int64]:
    """(L,) int64 labelled times in microseconds from the bytes of a sidecar."""
    times = load_array(data)
    if times.dtype != np.int64 or times.ndim != 1 or (times[1:] <= times[:-1]).any():
        raise FormatError(
            f"the _times.npy sidecar holds an array of shape {times.shape} and dtype {times.dtype}; expected "
            "strictly increasing int64 times in microseconds; move that file away"
        )
    return times


def encode(labels: Labels, dialect: str = "t") -> bytes:
    """Return the bytes of a ``_bbox.npy``; ``dialect`` is "t" (newer) or "ts" (older names)."""
    if dialect not in DIALECTS:
        raise FateError(f"got dialect {dialect!r}; it is 't' (newer files) or 'ts' (older files); choose one")
    tracks = labels.track_id
    if (tracks >= NO_TRACK).any():
        row = int(np.argmax(tracks >= NO_TRACK))
        raise FateError(
            f"row {row} has track_id {tracks[row]}; npy boxes hold 0 to {NO_TRACK - 1}; renumber the tracks"
        )
    columns = {
        dialect: labels.t_us,
        "x": labels.x1,
        "y": labels.y1,
        "w": _size("x", labels.x1, labels.x2),
        "h": _size("y", labels.y1, labels.y2),
        "class_id": labels.class_id,
        "track_id": np.where(tracks < 0, NO_TRACK, tracks),
        "class_confidence" if dialect == "t" else "confidence": labels.score,
        "source": labels.source,
    }
    # The source lies in the padding, so that a row keeps its 40 bytes. Without it, a file of plain ground truth stays
    # byte for byte what Prophesee tools write.
    with_source = bool((labels.source != LabelSource.GROUND_TRUTH).any())
    names = [*DIALECTS[dialect], *(["source"] if with_source else [])]
    kinds = {dialect: "<i8", "class_id": "<u4", "track_id": "<u4", "source": "u1"}
    formats, offsets = [kinds.get(name, "<f4") for name in names], [0, *range(8, 4 * len(names) + 4, 4)]
    table = np.zeros(len(labels), {"names": names, "formats": formats, "offsets": offsets, "itemsize": 40})
    for name in names:
        table[name] = columns[name]
    return _save(table)


def encode_times(labels: Labels) -> bytes | None:
    """Return the bytes of the sidecar, or None if every labelled time has boxes."""
    has_boxes = np.array_equal(np.unique(labels.t_us), labels.labelled_us)
    return None if has_boxes else _save(labels.labelled_us)


def _size(axis: str, low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N,) sizes with ``low + size == high`` in float32 wherever a float32 does it, else the nearest size."""
    with np.errstate(over="ignore"):
        size = high - low
    if not np.isfinite(size).all():
        row = int(np.argmin(np.isfinite(size)))
        span = f"{axis}1 {low[row]} to {axis}2 {high[row]}"
        raise FateError(f"row {row} spans {span}; sizes fit float32; fix or drop it")
    best = size.copy()
    for neighbour in (np.nextafter(size, np.float32(np.inf)), np.nextafter(size, np.float32(0))):
        better = (low + best != high) & (low + neighbour == high)
        best[better] = neighbour[better]
    return best


def _pixels(table: NDArray[Any], name: str) -> NDArray[np.float32]:
    """Return a field as (N,) float32: the format adds x and w in float32, whatever type the file has."""
    values = table[name]
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise FormatError(f"field {name} has dtype {table.dtype[name]}; expected one number per row; fix it")
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _tracks(values: NDArray[Any]) -> NDArray[Any]:
    """Return the track field with NO_TRACK as -1; the check of Labels refuses what does not fit int64."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 4 or (values > np.iinfo(np.int64).max).any():
        return values
    return np.where(values == NO_TRACK, -1, values.astype(np.int64))


def _save(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def load_array(data: bytes) -> NDArray[Any]:
    """Read the array of an npy file without unpickling; an archive of arrays is refused."""
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npy ({error}); it is damaged; get it again") from error
    if not isinstance(array, np.ndarray):
        raise FormatError("is a zip archive of arrays; expected one npy array; give the .npy file")
    return array
