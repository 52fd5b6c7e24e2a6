"""``manifest.json`` of a dataset. ``fate simulate`` writes one, and so does ``fate prepare``.

Nothing in a manifest is trusted: types are checked, and a path that leads out of the dataset is refused. A simulated
dataset lists every file with its size and SHA-256, so its files can be compared with the list.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field, NonNegativeInt, PlainSerializer, ValidationError

from fate.data.findings import KINDS, Finding
from fate.data.layout import SPLITS
from fate.errors import FateError, FormatError
from fate.events.events import Sensor
from fate.files import MissingFileError, read_bytes
from fate.json_files import describe_invalid, parse_json, write_json
from fate.progress import Progress, ignore
from fate.text import grouped

MANIFEST = "manifest.json"
SIMULATED = "fate-simulated-dataset"
PREPARED = "fate-prepared-dataset"
SCHEMAS = {SIMULATED: 1, PREPARED: 1}

Model = TypeVar("Model", bound=BaseModel)


class Manifest(NamedTuple):
    """A manifest that FATE wrote."""

    format: str  #: ``SIMULATED`` or ``PREPARED``
    path: Path
    data: bytes

    def parse(self, model: type[Model]) -> Model:
        """Its content; raises FormatError if anything in it is not as expected."""
        try:
            return model.model_validate_json(self.data, strict=True)
        except ValidationError as error:
            raise FormatError(
                f"{self.path}: is damaged: {describe_invalid(error)}; delete it, and make it again"
            ) from None


def find_manifest(path: Path) -> Manifest | None:
    """Read the manifest of a dataset: ``path`` is the manifest itself, the folder of the dataset, or one of its splits.

    Returns None if there is no manifest, or another program wrote it.
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
    return Manifest(known, path, data)


def write_manifest(folder: Path, document: dict[str, Any]) -> None:
    """Write ``manifest.json``; a reader sees the old one or the new one, never half of one."""
    write_json(folder / MANIFEST, document)


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it lists {name!r}, which is no path inside the dataset")
    return name


def _known(finding: Finding) -> Finding:
    if finding.kind not in KINDS:
        raise ValueError(f"{finding.kind!r} is no kind of fault")
    return finding


Split = Annotated[str, Field(pattern="^(train|val|test)$")]
InsidePath = Annotated[str, AfterValidator(_inside)]
Fault = Annotated[Finding, AfterValidator(_known), PlainSerializer(Finding._asdict)]
Size = Annotated[Sensor, AfterValidator(Sensor.of), PlainSerializer(Sensor._asdict)]


# ---- the files of a simulated dataset ---------------------------------------------------------------------------


class FileFacts(BaseModel):
    """A file as the manifest lists it."""

    bytes: NonNegativeInt
    sha256: str  #: hexadecimal

    def describe_change(self, path: Path, hashed: bool = True) -> str:
        """Whether the file is missing, cut short or changed, in words; empty if it is as listed.

        If not ``hashed``, the content is not compared, and only a file that is missing or cut short is noticed.
        """
        listed = f"{grouped(self.bytes)} bytes"
        try:
            if not path.is_file():
                return f"is missing; it is listed with {listed}"
            size = path.stat().st_size
            if size < self.bytes or (hashed and size > self.bytes):
                kind = "is cut short" if size < self.bytes else "has changed"
                return f"{kind}: it has {grouped(size)} bytes and is listed with {listed}"
            with open(path, "rb") as content:
                if hashed and hashlib.file_digest(content, "sha256").hexdigest() != self.sha256:
                    return "has changed: its SHA-256 is not the one that is listed"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return ""


class _SimulatedRecording(BaseModel):
    split: str
    files: dict[InsidePath, FileFacts]


class _Preview(BaseModel):
    file: FileFacts


class _SimulatedFiles(BaseModel):
    recordings: list[_SimulatedRecording]
    previews: dict[InsidePath, _Preview]


class _RecordingCamera(BaseModel):
    name: str
    split: str
    camera: dict[str, Any]


class _Cameras(BaseModel):
    recordings: list[_RecordingCamera]


def simulated_sensors(dataset: Path, names: Iterable[str]) -> list[Sensor]:
    """The sensors of recordings of a simulated dataset that have sensors of their own, each once.

    ``names`` of recordings have the split first: ``"train/sim_mixed_000003"``. Other recordings have no sensor here.
    """
    manifest = find_manifest(dataset)
    if manifest is None or manifest.format != SIMULATED:
        return []
    entries = {f"{entry.split}/{entry.name}": entry.camera for entry in manifest.parse(_Cameras).recordings}
    sizes = (entries[name].get("sensor") for name in names if name in entries)
    return sorted({Sensor.of(size) for size in sizes if size is not None})


@dataclass(frozen=True)
class Listing:
    """The files that the manifest of a simulated dataset lists, or why it cannot be used."""

    manifest: Path
    files: dict[str, FileFacts] = field(default_factory=dict)  #: by path inside the dataset
    fault: str = ""  #: a sentence

    def changes(self, hashed: bool = True, progress: Progress = ignore) -> Iterator[tuple[str, str]]:
        """The name of each file that is not as listed, with a description; see :meth:`FileFacts.describe_change`.

        After each file, ``progress`` is called with the share of the bytes that is done.
        """
        total, done = max(1, sum(facts.bytes for facts in self.files.values())), 0
        for name, facts in self.files.items():
            if change := facts.describe_change(self.manifest.parent / name, hashed):
                yield name, change
            done += facts.bytes
            progress(done / total)

    def compare(self, progress: Progress = ignore) -> tuple[str, ...]:
        """A sentence for each file that is missing, cut short or changed, or about a manifest that cannot be used."""
        changes = tuple(f"{name}: {change}" for name, change in self.changes(progress=progress))
        progress(1.0)
        return (self.fault,) if self.fault else changes


def find_listing(dataset: str | os.PathLike[str], split: str | None = None) -> Listing | None:
    """The files of a simulated dataset as its manifest lists them; None if there is no such manifest.

    Args:
        dataset: its folder, the folder of one split, or one recording. Only files in it, or files of that recording,
            are listed.
        split: only files of ``"train"``, ``"val"`` or ``"test"``.
    """
    given = Path(os.path.abspath(dataset))
    for folder in _possible_folders(given if given.is_dir() else given.parent):
        path = folder / MANIFEST
        try:
            if path.is_file() and not path.stat().st_size:
                raise FormatError(f"{path}: is damaged (it is empty)")
            manifest = _read_manifest(path) if path.is_file() else None
            if manifest is None or manifest.format != SIMULATED:
                continue
            content = manifest.parse(_SimulatedFiles)
        except (OSError, FateError) as error:
            reason = str(error).removeprefix(f"{path}: ")
            return Listing(path, fault=f"{MANIFEST}: {reason}; no file was compared with it")
        groups = [(entry.split, entry.files) for entry in content.recordings]
        groups += [(name, {f"{name}/preview.mp4": entry.file}) for name, entry in content.previews.items()]
        files: dict[str, FileFacts] = {}
        for group_split, listed in groups:
            if split is None or group_split == SPLITS[split]:
                is_recording = any(folder / name == given for name in listed)
                inside = (name for name in listed if is_recording or (folder / name).is_relative_to(given))
                files |= {name: listed[name] for name in inside}
        return Listing(path, files) if files else None
    return None


# ---- what ``fate prepare`` writes -------------------------------------------------------------------------------


class FileState(BaseModel):
    """A file by its size and time of change, so that the next run examines only what has changed."""

    bytes: int
    mtime_ns: int
    sha256: str | None = None  #: None if it was not computed, or the file could not be read


class PreparedRecording(BaseModel):
    """The result of the examination of one recording. Paths are inside the dataset."""

    name: str
    split: Split | None
    events: InsidePath
    labels: InsidePath | None
    truth: InsidePath | None
    readable: bool
    labelled: bool
    sensor: Size | None  #: size of the camera's sensor
    says_sensor: bool  #: whether the file itself says its sensor
    downscale: NonNegativeInt
    start_us: int
    end_us: int
    num_events: NonNegativeInt
    labelled_times: NonNegativeInt
    boxes: dict[str, int]  #: by class
    faults: list[Fault]
    files: dict[str, FileState]
    compact_bytes: NonNegativeInt = 0  #: size of its compact file; 0 if there is none
    usable: bool = False  #: readable, and of the same size as the others

    def add_fault(self, kind: str, sentence: str) -> None:
        """Add a fault; the sentence follows the name of the recording."""
        self.faults.append(Finding(kind, f"{self.name}: {sentence}", self.split))


class SourceFolder(BaseModel):
    """Where the recordings are."""

    path: str  #: absolute
    from_here: str  #: relative to the manifest; empty if there is no such path, as on another drive


class PreparedDataset(BaseModel):
    """The content of the manifest of a prepared dataset."""

    fate: str  #: version
    kind: Annotated[str, Field(pattern="^(gen1|1mpx|rvt)$")]
    name: str
    source: SourceFolder
    finished: bool  #: whether all recordings were examined
    complete: bool  #: finished, and nothing is missing
    missing: list[str]  #: a sentence for each fault that makes the dataset incomplete
    hashed: bool
    sensor: Size | None
    totals: dict[str, dict[str, Any]]  #: by split, and of all
    faults: list[Fault]
    recordings: list[PreparedRecording]

    def to_dict(self) -> dict[str, Any]:
        """The document that is written."""
        return {"format": PREPARED, "schema": SCHEMAS[PREPARED], **self.model_dump()}
