"""``manifest.json`` of a dataset: the simulator leaves one, and so does ``fate prepare``. Read, not believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from fate.data.layout import SPLITS
from fate.data.listing import FORMAT, MANIFEST, SCHEMA
from fate.errors import FormatError
from fate.files import MissingFileError, read_bytes
from fate.json_files import parse_json
from fate.whole_files import write_whole

SIMULATED = FORMAT
PREPARED = "fate-prepared-dataset"
SCHEMAS = {SIMULATED: SCHEMA, PREPARED: 1}


class Found(NamedTuple):
    """A manifest that is one of ours."""

    format: str  #: ``SIMULATED`` or ``PREPARED``
    folder: Path
    document: dict[str, Any]

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / MANIFEST

    def damaged(self, error: Exception) -> FormatError:
        """What to raise where it is not as expected."""
        return _damaged(self.path, error)


def find_manifest(place: Path) -> Found | None:
    """The manifest of a dataset, of the dataset that a split's folder belongs to, or the file itself; None for none."""
    if place.name == MANIFEST and place.is_file():
        return _read(place)
    if not place.is_dir():
        return None
    whole = place.absolute()
    folders = [whole, whole.parent] if whole.name.lower() in SPLITS else [whole]
    return next((found for folder in folders if (found := _read(folder / MANIFEST)) is not None), None)


def _read(path: Path) -> Found | None:
    try:
        data = read_bytes(path, "the manifest of a dataset")
    except MissingFileError:
        return None
    known = next((name for name in SCHEMAS if name.encode() in data), None)
    if known is None:  # others call their files so too
        return None
    document = parse_json(data, f"{path}: is damaged", "the manifest of a dataset that FATE made; make it again")
    if not isinstance(document, dict) or document.get("format") != known:
        return None
    schema = document.get("schema")
    if schema != SCHEMAS[known]:
        raise FormatError(
            f"{path}: has schema {schema!r}, and {SCHEMAS[known]} is known; update FATE, or make it again"
        )
    return Found(known, path.parent, document)


def _damaged(path: Path, error: Exception) -> FormatError:
    return FormatError(f"{path}: is damaged ({type(error).__name__}: {error}); make it again")


def write_manifest(folder: Path, document: dict[str, Any]) -> None:
    """Write ``manifest.json``; a reader sees the old one or the new one, never half of one."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / MANIFEST, f"{text}\n".encode("utf-8", "backslashreplace"))
