"""``manifest.json`` of a dataset. ``fate simulate`` writes one, and so does ``fate prepare``.

Nothing in a manifest is trusted: types are checked, and a path that leads out of the dataset is refused. A simulated
dataset lists every file with its size and SHA-256, so its files can be compared with the list.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any, NamedTuple

from fate.data.findings import KINDS
from fate.data.layout import SPLITS
from fate.errors import FateError, FormatError
from fate.files import MissingFileError, read_bytes
from fate.json_files import parse_json
from fate.progress import Progress
from fate.text import grouped
from fate.whole_files import write_whole

MANIFEST = "manifest.json"
SIMULATED = "fate-simulated-dataset"
PREPARED = "fate-prepared-dataset"
SCHEMAS = {SIMULATED: 1, PREPARED: 1}

#: Errors that reading a value of a damaged manifest may raise.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)

_CHUNK_BYTES = 1 << 20  # files are hashed in chunks, since they may be larger than memory


class Manifest(NamedTuple):
    """A manifest that FATE wrote."""

    format: str  #: ``SIMULATED`` or ``PREPARED``
    folder: Path
    document: dict[str, Any]

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / MANIFEST

    def damaged(self, error: Exception) -> FormatError:
        """The error to raise if a value in it is not as expected."""
        return FormatError(f"{self.path}: is damaged ({type(error).__name__}: {error}); make it again")


def find_manifest(path: Path) -> Manifest | None:
    """Read the manifest of a dataset.

    Args:
        path: the manifest itself, the folder of a dataset, or the folder of one split in it.

    Returns:
        None if there is no manifest, or another program wrote it.
    """
    if path.name == MANIFEST and path.is_file():
        return _read_manifest(path)
    if not path.is_dir():
        return None
    folders = _possible_folders(path.absolute())
    return next((found for folder in folders if (found := _read_manifest(folder / MANIFEST)) is not None), None)


def _possible_folders(folder: Path) -> list[Path]:
    """A folder, and the dataset that it belongs to if it is called like a split."""
    return [folder, folder.parent] if folder.name.lower() in SPLITS else [folder]


def _read_manifest(path: Path) -> Manifest | None:
    try:
        data = read_bytes(path, "the manifest of a dataset")
    except MissingFileError:
        return None
    known = next((name for name in SCHEMAS if name.encode() in data), None)
    if known is None:  # other programs use this file name too
        return None
    document = parse_json(data, f"{path}: is damaged", "the manifest of a dataset that FATE made; make it again")
    if not isinstance(document, dict) or document.get("format") != known:
        return None
    schema = document.get("schema")
    if schema != SCHEMAS[known]:
        raise FormatError(
            f"{path}: its schema is {schema!r:.40}, and {SCHEMAS[known]} is known; update FATE, or make it again"
        )
    return Manifest(known, path.parent, document)


def write_manifest(folder: Path, document: dict[str, Any]) -> None:
    """Write ``manifest.json``; a reader sees the old one or the new one, never half of one."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / MANIFEST, f"{text}\n".encode("utf-8", "backslashreplace"))


def inside(root: Path, name: str) -> Path:
    """A path that a manifest lists; raises ValueError if it leads out of the dataset."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it lists {name!r}, which is no path inside the dataset")
    return root / path


# ---- the files of a simulated dataset ---------------------------------------------------------------------------


class ListedFile(NamedTuple):
    """A file as the manifest lists it."""

    name: str  #: path inside the dataset
    bytes: int
    sha256: str  #: hexadecimal


@dataclass(frozen=True)
class Comparison:
    """How the files of a dataset compare with its manifest."""

    manifest: Path
    num_files: int  #: number of files compared
    flags: tuple[str, ...]  #: a sentence for each file that is missing, cut short or changed, or about the manifest

    @property
    def summary(self) -> str:
        """One line about all files."""
        if not self.num_files:
            return "files were not compared with the manifest"
        if not self.flags:
            return f"{self.manifest.name}: all {self.num_files} files have the size and SHA-256 that it lists"
        return f"{self.manifest.name}: {len(self.flags)} of {self.num_files} files are not as it lists them"


@dataclass(frozen=True)
class Listing:
    """The files that a manifest lists, or why it cannot be used."""

    manifest: Path
    files: tuple[ListedFile, ...]
    fault: str = ""  #: a sentence

    def missing(self) -> Iterator[tuple[ListedFile, str]]:
        """Files that are missing or cut short, each with a description; only sizes are checked."""
        for file in self.files:
            path = self.manifest.parent / file.name
            try:
                size = path.stat().st_size if path.is_file() else None
            except OSError as error:
                yield file, f"cannot be read ({error.strerror})"
                continue
            if size is None or size < file.bytes:
                yield file, _describe_size(size, file)

    def compare(self, progress: Progress) -> Comparison:
        """Check the size of every file, and the hash of those with the right size.

        Args:
            progress: called with the share of the bytes that is done.
        """
        if self.fault:
            return Comparison(self.manifest, 0, (self.fault,))
        total = max(1, sum(file.bytes for file in self.files))
        flags, before = [], 0
        for file in self.files:

            def report(done: int, before: int = before) -> None:
                progress((before + done) / total)

            flag = _compare_file(self.manifest.parent / file.name, file, report)
            if flag:
                flags.append(f"{file.name}: {flag}")
            before += file.bytes
        progress(1.0)
        return Comparison(self.manifest, len(self.files), tuple(flags))


def find_listing(dataset: str | os.PathLike[str], split: str | None = None) -> Listing | None:
    """The files of a simulated dataset as its manifest lists them.

    Args:
        dataset: its folder, the folder of one split, or one recording. Only files in it, or files of that recording,
            are listed.
        split: only files of ``"train"``, ``"val"`` or ``"test"``.

    Returns:
        None if there is no manifest of a simulated dataset.
    """
    given = Path(os.path.abspath(dataset))
    for folder in _possible_folders(given if given.is_dir() else given.parent):
        path = folder / MANIFEST
        try:
            if not path.is_file():
                continue
            if not path.stat().st_size:
                raise ValueError("it is empty")
            manifest = _read_manifest(path)
            if manifest is None or manifest.format != SIMULATED:
                continue
            files = tuple(_listed_files(manifest.document, folder, given, split))
        except OSError as error:
            return Listing(path, (), f"{MANIFEST}: cannot be read ({error.strerror}), so no file was compared")
        except DAMAGE as error:
            reason = str(error).removeprefix(f"{path}: ") if isinstance(error, FateError) else f"is damaged ({error})"
            return Listing(path, (), f"{MANIFEST}: {reason}; no file was compared with it")
        return Listing(path, files) if files else None
    return None


def _listed_files(document: dict[str, Any], root: Path, given: Path, split: str | None) -> Iterator[ListedFile]:
    """Files in the folder ``given``, or those of the recording that ``given`` belongs to."""
    groups = [(entry["split"], entry["files"]) for entry in document["recordings"]]
    groups += [(name, {f"{name}/preview.mp4": entry["file"]}) for name, entry in document["previews"].items()]
    for group_split, files in groups:
        if split is not None and group_split != SPLITS[split]:
            continue
        listed = [_listed_file(root, name, facts) for name, facts in files.items()]
        is_recording = any(root / file.name == given for file in listed)
        yield from (file for file in listed if is_recording or (root / file.name).is_relative_to(given))


def _listed_file(root: Path, name: str, facts: dict[str, Any]) -> ListedFile:
    inside(root, name)
    size, digest = facts["bytes"], facts["sha256"]
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str):
        raise ValueError(f"it lists {name!r} with no size and hash")
    return ListedFile(name, size, digest)


def _compare_file(path: Path, file: ListedFile, report: Callable[[int], None]) -> str:
    """What is wrong with a file; empty if nothing is. ``report`` is called with the bytes that are done."""
    try:
        size = path.stat().st_size if path.is_file() else None
        if size != file.bytes:
            return _describe_size(size, file)
        digest, done = hashlib.sha256(), 0
        with open(path, "rb") as content:
            while chunk := content.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                report(done)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if digest.hexdigest() == file.sha256 else "has changed: its SHA-256 is not the one that is listed"


def _describe_size(size: int | None, file: ListedFile) -> str:
    """What it means that a file has ``size`` bytes, None for a missing file, and not the listed number."""
    listed = f"{grouped(file.bytes)} bytes"
    if size is None:
        return f"is missing; it is listed with {listed}"
    kind = "is cut short" if size < file.bytes else "has changed"
    return f"{kind}: it has {grouped(size)} bytes and is listed with {listed}"


# ---- the entries of a prepared dataset --------------------------------------------------------------------------

_ENTRY_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "split": (str, NoneType),
    "events": (str,),
    "labels": (str, NoneType),
    "truth": (str, NoneType),
    "readable": (bool,),
    "labelled": (bool,),
    "sensor": (dict, NoneType),
    "says_sensor": (bool,),
    "downscale": (int,),
    "start_us": (int,),
    "end_us": (int,),
    "num_events": (int,),
    "labelled_times": (int,),
    "boxes": (dict,),
    "faults": (list,),
    "files": (dict,),
}


def is_valid_entry(entry: object) -> bool:
    """Whether the entry of a recording has all its fields, each of its type."""
    if not isinstance(entry, dict) or not all(
        key in entry and isinstance(entry[key], types) and (bool in types or not isinstance(entry[key], bool))
        for key, types in _ENTRY_TYPES.items()
    ):
        return False
    size, counts = entry["sensor"], (entry["downscale"], entry["num_events"], entry["labelled_times"])
    return (
        entry["split"] in (None, "train", "val", "test")
        and (size is None or (size.keys() == {"height", "width"} and all(type(side) is int for side in size.values())))
        and not (entry["readable"] and size is None)
        and all(count >= 0 for count in counts)
        and all(isinstance(number, int) for number in entry["boxes"].values())
        and all(is_valid_finding(fault) for fault in entry["faults"])
        and all(_is_valid_state(state) for state in entry["files"].values())
    )


def is_valid_finding(fault: object) -> bool:
    """Whether plain values are those of a :class:`fate.data.findings.Finding`."""
    return (
        isinstance(fault, dict)
        and fault.keys() == {"kind", "sentence", "split"}
        and isinstance(fault["sentence"], str)
        and isinstance(fault["kind"], str)
        and fault["kind"] in KINDS
        and fault["split"] in (None, "train", "val", "test")
    )


def _is_valid_state(state: object) -> bool:
    return (
        isinstance(state, dict)
        and state.keys() == {"bytes", "mtime_ns", "sha256"}
        and all(type(state[key]) is int for key in ("bytes", "mtime_ns"))
        and isinstance(state["sha256"], str | None)
    )
