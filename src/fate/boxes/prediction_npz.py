"""Our file of predictions: one compressed npz for a whole dataset.

Keys: ``format`` ("fate-predictions"), ``version`` (1), ``facts`` (JSON text), ``recordings`` (names), the columns of
:class:`Labels` of all recordings one behind the other with ``rows`` [recordings + 1] telling where each begins,
``labelled_us`` in the same way with ``times`` [recordings + 1], and, where known, ``classes`` and ``sensor``. Nothing
is pickled.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.boxes.label_npz import listed, load_arrays, scalar
from fate.boxes.labels import COLUMNS, Labels
from fate.errors import FateError, FormatError
from fate.json_files import parse_json

FORMAT = "fate-predictions"
VERSION = 1
#: A member that only these files have.
MARK = "recordings.npy"


def encode(predictions: Mapping[str, Labels], facts: Mapping[str, Any]) -> bytes:
    """The bytes of a file of predictions."""
    content = io.BytesIO()
    np.savez_compressed(content, **_arrays(predictions, facts))
    return content.getvalue()


def _arrays(predictions: Mapping[str, Labels], facts: Mapping[str, Any]) -> dict[str, Any]:
    tables = list(predictions.values())
    for fact in ("classes", "sensor"):
        values = {getattr(labels, fact) for labels in tables}
        if len(values) > 1:
            given = " and ".join(sorted(map(str, values)))
            raise FateError(f"recordings have {fact} {given}; predictions of one file share them; make them agree")
    try:
        text = json.dumps(dict(facts), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise FateError(f"the facts cannot be written as JSON ({error}); give plain values") from error
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT),
        "version": np.array(VERSION),
        "facts": np.array(text),
        "recordings": np.array(list(predictions), dtype=np.str_),
        "rows": _offsets([len(labels) for labels in tables]),
        "times": _offsets([len(labels.labelled_us) for labels in tables]),
    }
    for name, dtype in {**COLUMNS, "labelled_us": np.int64}.items():
        arrays[name] = np.concatenate([np.zeros(0, dtype), *(getattr(labels, name) for labels in tables)])
    first = tables[0] if tables else Labels.empty()
    if first.classes is not None:
        arrays["classes"] = np.array(first.classes, dtype=np.str_)
    if first.sensor is not None:
        arrays["sensor"] = np.array(first.sensor, dtype=np.int64)
    return arrays


def _offsets(counts: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def read(path: Path) -> tuple[dict[str, Labels], dict[str, Any]]:
    """Labels by recording, and the facts."""
    with path.open("rb") as file:
        arrays = load_arrays(file, path.stat().st_size)
    kind, version = (scalar(arrays, name) for name in ("format", "version"))
    if kind != FORMAT:
        raise FormatError(f"is an npz of format {kind!r}; predictions have {FORMAT!r}; use write_predictions")
    if version != VERSION:
        raise FormatError(f"has version {version}; this FATE reads version {VERSION}; update FATE")
    for name in ("recordings", "rows", "times", "labelled_us", *COLUMNS):
        if name not in arrays or arrays[name].ndim != 1:
            raise FormatError(f"has no list {name}; a file of predictions holds every column; write it again")
    names = arrays["recordings"].tolist()
    rows, times = (_checked_offsets(arrays, name, counted, len(names)) for name, counted in
                   (("rows", "t_us"), ("times", "labelled_us")))  # fmt: skip
    classes = listed(arrays, "classes", "U")
    sensor = listed(arrays, "sensor", "i")
    tables = {}
    for place, name in enumerate(names):
        mine, looked = slice(rows[place], rows[place + 1]), slice(times[place], times[place + 1])
        try:
            tables[str(name)] = Labels(
                **{column: arrays[column][mine] for column in COLUMNS},
                labelled_us=arrays["labelled_us"][looked],
                classes=classes,
                sensor=sensor,
            )
        except FateError as error:
            raise FormatError(f"recording {name}: {error}") from error
    if len(tables) != len(names):
        raise FormatError("names a recording twice; write it again")
    return tables, _facts(arrays)


def _checked_offsets(arrays: dict[str, NDArray[Any]], name: str, counted: str, num: int) -> list[int]:
    offsets = arrays[name]
    whole = offsets.dtype.kind == "i" and len(offsets) == num + 1 and (np.diff(offsets) >= 0).all()
    if not whole or offsets[0] != 0 or offsets[-1] != len(arrays[counted]):
        raise FormatError(f"array {name} does not cut {counted} into {num} recordings; write it again")
    return [int(value) for value in offsets]


def _facts(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    text = scalar(arrays, "facts")
    facts = parse_json(text, "facts", "what write_predictions wrote") if isinstance(text, str) else {}
    return facts if isinstance(facts, dict) else {}
