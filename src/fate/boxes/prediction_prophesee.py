"""Archives of Prophesee's box arrays: one npz for many recordings, ``<recording>|gt`` for truth, ``|dt`` for found."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fate.boxes import label_prophesee
from fate.boxes.label_npz import DAMAGE, MAX_RATIO, MAX_SMALL
from fate.boxes.labels import Labels
from fate.errors import FateError, FormatError

Kind = Literal["gt", "dt"]


def read_archive(path: Path, kind: Kind) -> dict[str, NDArray[np.void]]:
    """Structured arrays by recording, in the archive's order."""
    arrays = {}
    for name, data in _members(path, kind).items():
        try:
            arrays[name] = label_prophesee.load_array(data)
        except FateError as error:
            raise type(error)(f"{name}|{kind} {error}") from error
    return arrays


def read_archive_labels(path: Path, kind: Kind, classes: Sequence[str] | None = None) -> dict[str, Labels]:
    """The same as labels, checked row by row; ``classes`` are the names of the class ids, if known."""
    tables = {}
    for name, data in _members(path, kind).items():
        try:
            tables[name] = replace(
                label_prophesee.decode(data, name=f"{path} {name}"), classes=None if classes is None else tuple(classes)
            )
        except FateError as error:
            raise type(error)(f"{name}|{kind} {error}") from error
    return tables


def _members(path: Path, kind: Kind) -> dict[str, bytes]:
    ending = f"|{kind}.npy"
    try:
        with zipfile.ZipFile(path) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
            if claimed > MAX_RATIO * path.stat().st_size + MAX_SMALL:
                raise FormatError(f"claims to unpack to {claimed} bytes; it is damaged; get it again")
            members = {
                name.removesuffix(ending): archive.read(name) for name in archive.namelist() if name.endswith(ending)
            }
    except FateError:
        raise
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise FormatError(f"cannot be read as npz ({error}); it is damaged; get it again") from error
    if not members:
        raise FormatError(f"is an npz without arrays named '<recording>|{kind}'; give an archive of boxes")
    return members
