"""FATE's own box files: npz archives of the labels of one recording, or of the predictions for a dataset.

Both kinds hold ``format``, ``version`` (1), the columns of :class:`Labels`, ``labelled_us`` and, if they are known,
``classes`` (text) and ``sensor`` (height, width). A label file ("fate-labels") holds one recording. A prediction file
("fate-predictions") holds the concatenated rows of several: ``recordings`` lists their names, ``rows`` and ``times``
[recordings + 1] the offsets of their rows and labelled times, and ``facts`` is JSON text. Nothing is pickled.
"""

from __future__ import annotations

import io
import json
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import COLUMNS, Labels
from fate.errors import FateError, FormatError, list_names
from fate.json_files import parse_json

LABELS, PREDICTIONS, VERSION = "fate-labels", "fate-predictions", 1
#: An array that only prediction files have.
PREDICTION_MEMBER = "recordings.npy"

#: What numpy raises for a damaged npy or npz. It evaluates the header of an array as Python text, and zipfile
#: adds its own errors, so the list is long; it was found by changing bytes of valid files.
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

MAX_RATIO, MAX_SMALL = 200, 64 << 20  # box tables compress by far less; a few repeated rows may compress by more

Arrays = dict[str, NDArray[Any]]


def encode_labels(labels: Labels) -> bytes:
    """Return the bytes of a label file; equal labels give equal bytes."""
    return _encode(LABELS, [labels], {})


def encode_predictions(tables: Mapping[str, Labels], facts: Mapping[str, Any]) -> bytes:
    """Return the bytes of a prediction file; the tables by recording share classes and sensor, facts are for JSON."""
    parts = list(tables.values())
    for fact in ("classes", "sensor"):
        values = {getattr(labels, fact) for labels in parts}
        if len(values) > 1:
            given = " and ".join(sorted(map(str, values)))
            raise FateError(f"recordings have {fact} {given}; predictions of one file share them; make them agree")
    try:
        text = json.dumps(dict(facts), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise FateError(f"the facts cannot be written as JSON ({error}); give plain values") from error
    header = {
        "facts": np.array(text),
        "recordings": np.array(list(tables), dtype=np.str_),
        "rows": np.cumsum([0, *(len(labels) for labels in parts)], dtype=np.int64),
        "times": np.cumsum([0, *(len(labels.labelled_us) for labels in parts)], dtype=np.int64),
    }
    return _encode(PREDICTIONS, parts, header)


def _encode(format: str, parts: Sequence[Labels], header: Mapping[str, NDArray[Any]]) -> bytes:
    arrays = {"format": np.array(format), "version": np.array(VERSION), **header}
    first = parts[0] if parts else Labels.empty()
    for name in (*COLUMNS, "labelled_us"):
        arrays[name] = np.concatenate([getattr(labels, name) for labels in parts or [first]])
    if first.classes is not None:
        arrays["classes"] = np.array(first.classes, dtype=np.str_)
    if first.sensor is not None:
        arrays["sensor"] = np.array(first.sensor, dtype=np.int64)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
    return buffer.getvalue()


def decode_labels(file: BinaryIO) -> Labels:
    """Read a label file that :func:`encode_labels` made."""
    return _table(_read(file, LABELS), slice(None), slice(None))


def decode_predictions(file: BinaryIO) -> tuple[dict[str, Labels], dict[str, Any]]:
    """Read a prediction file that :func:`encode_predictions` made: predictions by recording, and the facts."""
    arrays = _read(file, PREDICTIONS, "recordings", "rows", "times")
    names = arrays["recordings"].tolist()
    spans = []
    for offsets, counted in ((arrays["rows"], "t_us"), (arrays["times"], "labelled_us")):
        rising = offsets.dtype.kind == "i" and len(offsets) == len(names) + 1 and (np.diff(offsets) >= 0).all()
        if not rising or offsets[0] != 0 or offsets[-1] != len(arrays[counted]):
            raise FormatError(f"does not divide {counted} into {len(names)} recordings; write it again")
        spans.append([slice(*span) for span in pairwise(offsets.tolist())])
    tables = {}
    for name, rows, times in zip(names, *spans, strict=True):
        try:
            tables[str(name)] = _table(arrays, rows, times)
        except FateError as error:
            raise FormatError(f"recording {name}: {error}") from error
    if len(tables) != len(names):
        raise FormatError("names a recording twice; write it again")
    text = _scalar(arrays, "facts")
    facts = parse_json(text, "facts", "what write_predictions wrote") if isinstance(text, str) else {}
    return tables, facts if isinstance(facts, dict) else {}


def _read(file: BinaryIO, format: str, *header: str) -> Arrays:
    """Read the arrays of a file of that format, and check that all lists of the format are there."""
    arrays = load_arrays(file)
    if format == LABELS and _scalar(arrays, "format") == PREDICTIONS:
        raise FormatError(
            "holds predictions of a detector, which are no ground truth; give labels that a person made or corrected"
        )
    if _scalar(arrays, "format") != format:
        raise FormatError(
            f"is an npz with the keys {list_names(sorted(arrays)) or '(none)'}; expected format {format!r}; give a "
            f"file made by write_{format.removeprefix('fate-')}"
        )
    version = _scalar(arrays, "version")
    if version != VERSION:
        raise FormatError(f"has version {version}; this FATE reads version {VERSION}; update FATE")
    for name in (*header, *COLUMNS, "labelled_us"):
        if name not in arrays or arrays[name].ndim != 1:
            raise FormatError(f"has no list {name}; the format {format!r} has one; write it again")
    return arrays


def _table(arrays: Arrays, rows: slice, times: slice) -> Labels:
    about: dict[str, Any] = {}
    for name, kind in (("classes", "U"), ("sensor", "i")):
        array = arrays.get(name)
        if array is not None and (array.ndim != 1 or array.dtype.kind != kind):
            raise FormatError(f"array {name} has dtype {array.dtype}, shape {array.shape}; write it again")
        about[name] = None if array is None else tuple(array.tolist())
    columns: dict[str, Any] = {name: arrays[name][rows] for name in COLUMNS}
    return Labels(**columns, labelled_us=arrays["labelled_us"][times], **about)


def load_arrays(file: BinaryIO, ending: str = "") -> Arrays:
    """Read the arrays of an npz by name; a member that is not an array is refused.

    Args:
        file: the archive, open for reading. One that claims to unpack to far more than its size is refused.
        ending: only arrays whose name ends like this are read.
    """
    arrays = {}
    try:
        size = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
        if claimed > MAX_RATIO * size + MAX_SMALL:
            raise FormatError(f"claims to unpack {size} bytes to {claimed}; it is damaged; get it again")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                if name.endswith(ending):
                    arrays[name] = stored[name]
                    if not isinstance(arrays[name], np.ndarray):  # numpy returns the bare bytes
                        raise FormatError(f"member {name!r} is no array; it is damaged; get it again")
    except FateError:
        raise
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error
    return arrays


def _scalar(arrays: Arrays, name: str) -> Any:
    """Return the value of a zero-dimensional array; None if there is no such array."""
    array = arrays.get(name)
    return array.item() if array is not None and array.ndim == 0 else None
