"""A simulated dataset beside its own manifest: are all files there, whole, and the ones that were written?

``manifest.json`` lists every file with its size and SHA-256. Only what that takes is read here, and nothing in it is
believed: a path that leads out of the dataset is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fate.data.layout import SPLITS
from fate.progress import Progress

MANIFEST = "manifest.json"
FORMAT = "fate-simulated-dataset"
SCHEMA = 1

_CHUNK = 1 << 20  # bytes hashed at a time: files may be larger than memory


@dataclass(frozen=True)
class ListedFile:
    """A file as the manifest has it."""

    name: str  #: path inside the dataset
    bytes: int
    sha256: str  #: hexadecimal


@dataclass(frozen=True)
class Comparison:
    """How the files of a dataset compare with its manifest."""

    manifest: Path
    num_files: int  #: that were compared
    flags: tuple[str, ...]  #: a sentence for each that is missing, cut short or changed, or about the manifest itself

    @property
    def summary(self) -> str:
        """One line about all of them."""
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
        """Files that are gone or cut short, and what is wrong with each; sizes are looked at, no file is read."""
        for file in self.files:
            path = self.manifest.parent / file.name
            try:
                size = path.stat().st_size if path.is_file() else None
            except OSError as error:
                yield file, f"cannot be read ({error.strerror})"
                continue
            if size is None or size < file.bytes:
                yield file, _size_flag(size, file)

    def compare(self, progress: Progress) -> Comparison:
        """Look at the size of every file, and at the hash of those that have the right one.

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

            flag = _flag(self.manifest.parent / file.name, file, report)
            if flag:
                flags.append(f"{file.name}: {flag}")
            before += file.bytes
        progress(1.0)
        return Comparison(self.manifest, len(self.files), tuple(flags))


def find_listing(dataset: str | os.PathLike[str], split: str | None = None) -> Listing | None:
    """The files of a dataset that its manifest lists; None where there is no manifest of a simulated dataset.

    Args:
        dataset: its folder, the folder of one split, or one recording, whose files alone are listed then.
        split: only files of ``"train"``, ``"val"`` or ``"test"``.
    """
    given = Path(os.path.abspath(dataset))
    folder = given if given.is_dir() else given.parent
    places = [folder, folder.parent] if folder.name in SPLITS else [folder]
    for place in places:
        manifest = place / MANIFEST
        try:
            if not manifest.is_file():
                continue
            data = manifest.read_bytes()
            if data and FORMAT.encode() not in data:  # others call their files so too
                continue
            files = tuple(_wanted(_document(data), place, given, split))
        except OSError as error:
            return Listing(manifest, (), f"{MANIFEST}: cannot be read ({error.strerror}), so no file was compared")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            return Listing(manifest, (), f"{MANIFEST}: is damaged ({reason}), so no file was compared with it")
        return Listing(manifest, files) if files else None
    return None


def _document(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    if document.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {document.get('schema')!r}, and {SCHEMA} is known")
    return document


def _wanted(document: dict[str, Any], home: Path, given: Path, split: str | None) -> Iterator[ListedFile]:
    """Files in ``given``; of a single recording those that belong to it."""
    groups = [(entry["split"], entry["files"]) for entry in document["recordings"]]
    groups += [(name, {f"{name}/preview.mp4": entry["file"]}) for name, entry in document["previews"].items()]
    for of_split, files in groups:
        if split is not None and of_split != SPLITS[split]:
            continue
        listed = [_listed(name, facts) for name, facts in files.items()]
        single = any(home / file.name == given for file in listed)
        yield from (file for file in listed if single or (home / file.name).is_relative_to(given))


def _listed(name: str, facts: dict[str, Any]) -> ListedFile:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it lists {name!r}, which is no path inside the dataset")
    size, digest = facts["bytes"], facts["sha256"]
    if not isinstance(size, int) or size < 0 or not isinstance(digest, str):
        raise ValueError(f"it lists {name!r} with no size and hash")
    return ListedFile(name, size, digest)


def _flag(path: Path, file: ListedFile, report: Callable[[int], None]) -> str:
    """What is wrong with a file; empty where nothing is. ``report`` is called with the bytes that are done."""
    try:
        size = path.stat().st_size if path.is_file() else None
        if size != file.bytes:
            return _size_flag(size, file)
        digest, done = hashlib.sha256(), 0
        with open(path, "rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                done += len(chunk)
                report(done)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if digest.hexdigest() == file.sha256 else "has changed: its SHA-256 is not the one that is listed"


def _size_flag(size: int | None, file: ListedFile) -> str:
    """What a size in bytes that is not the listed one means; None for a file that is not there."""
    listed = _bytes(file.bytes)
    if size is None:
        return f"is missing; it is listed with {listed}"
    kind = "is cut short" if size < file.bytes else "has changed"
    return f"{kind}: it has {_bytes(size)} and is listed with {listed}"


def _bytes(number: int) -> str:
    return f"{number:,} bytes".replace(",", " ")
