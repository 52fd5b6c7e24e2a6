"""The manifest of a simulated dataset: what was asked for, what is finished, and how to recognise every file.

``manifest.json`` is rewritten after each finished recording, whole or not at all. A stopped
run continues from it: a recording that is not in it does not exist. It holds neither dates nor durations, so the same
arguments give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fate.data.manifests import MANIFEST, SCHEMAS, SIMULATED, write_manifest
from fate.errors import FateError, FormatError
from fate.files import MissingFileError, read_bytes
from fate.json_files import finite_number, list_of, names_of, object_of, parse_json, whole_number
from fate.simulation.art.catalogue import SPLITS, Split
from fate.simulation.writing.request import Request, check_seconds
from fate.version import __version__

FORMAT, SCHEMA = SIMULATED, SCHEMAS[SIMULATED]


@dataclass(frozen=True)
class FileEntry:
    """A file by its content."""

    bytes: int
    sha256: str  #: hexadecimal

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """The entry of a file on disk."""
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file.tell(), digest.hexdigest())

    def is_at(self, path: Path) -> bool:
        """Whether a file of this size is there; its hash is not looked at."""
        return path.is_file() and path.stat().st_size == self.bytes


@dataclass(frozen=True)
class RecordingEntry:
    """A finished recording."""

    index: int
    name: str
    split: Split
    seed: int  #: of its scene
    seconds: float
    device: str  #: that it was made on; a GPU rounds differently, so its bytes differ from a CPU's
    fate: str  #: version that made it
    label_hz: int
    events: int
    on_events: int
    boxes: dict[str, int]  #: rows of the label file, by class
    truth_boxes: dict[str, int]  #: rows at 200 Hz, by class
    camera: dict[str, Any]  #: thresholds, bursts, and what else differs from the profile's preset
    files: dict[str, FileEntry]  #: by path inside the dataset
    at_rest: bool = False  #: whether its camera stands still


@dataclass(frozen=True)
class PreviewEntry:
    """A preview video."""

    file: FileEntry
    of: tuple[str, ...]  #: the names of the recordings it shows


@dataclass(frozen=True)
class Manifest:
    """The arguments, recordings and previews of a simulated dataset."""

    request: Request
    classes: tuple[str, ...] = ()  #: name of each class id; empty until there is a recording
    sensor: tuple[int, int] | None = None  #: (height, width)
    camera: dict[str, Any] = field(default_factory=dict)  #: the profile's preset
    recordings: tuple[RecordingEntry, ...] = ()  #: finished ones, in order of their index
    previews: dict[str, PreviewEntry] = field(default_factory=dict)  #: by split

    def with_recording(self, entry: RecordingEntry) -> Manifest:
        """One more recording."""
        entries = [*self.recordings, entry]
        return replace(self, recordings=tuple(sorted(entries, key=lambda each: each.index)))

    def with_preview(self, split: str, entry: PreviewEntry) -> Manifest:
        """Another preview for a split."""
        previews = self.previews | {split: entry}
        return replace(self, previews={name: previews[name] for name in SPLITS if name in previews})

    def still_there(self, folder: Path) -> Manifest:
        """Without the recordings and previews whose files are gone or have another size."""
        kept = tuple(
            entry for entry in self.recordings if all(file.is_at(folder / name) for name, file in entry.files.items())
        )
        names = {entry.name for entry in kept}
        previews = {
            split: preview
            for split, preview in self.previews.items()
            if names.issuperset(preview.of) and preview.file.is_at(preview_path(folder, split))
        }
        return replace(self, recordings=kept, previews=previews)

    def totals(self, split: str | None = None) -> dict[str, Any]:
        """Sums over all recordings, or over those of a split."""
        entries = [entry for entry in self.recordings if split in (None, entry.split)]
        return {
            "recordings": len(entries),
            "seconds": round(sum(entry.seconds for entry in entries), 6),
            "events": sum(entry.events for entry in entries),
            "on_events": sum(entry.on_events for entry in entries),
            "boxes": _summed(self.classes, (entry.boxes for entry in entries)),
            "truth_boxes": _summed(self.classes, (entry.truth_boxes for entry in entries)),
            "bytes": sum(file.bytes for entry in entries for file in entry.files.values()),
        }

    def to_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "fate": __version__,
            "arguments": asdict(self.request),
            "classes": list(self.classes),
            "sensor": None if self.sensor is None else dict(zip(("height", "width"), self.sensor, strict=True)),
            "truth_hz": 200,
            "camera": self.camera,
            "totals": {"all": self.totals(), **{split: self.totals(split) for split in SPLITS}},
            "previews": {split: asdict(preview) for split, preview in self.previews.items()},
            "recordings": [asdict(entry) for entry in self.recordings],
        }

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``; a reader sees the old one or the new one, never half of one."""
        write_manifest(folder, self.to_dict())


def load_manifest(folder: str | os.PathLike[str]) -> Manifest | None:
    """The manifest of a dataset folder, or None if the folder has none."""
    path = Path(folder) / MANIFEST
    try:
        data = read_bytes(path, "the manifest of a simulated dataset")
    except MissingFileError:
        return None
    document = parse_json(data, str(path), "the manifest of a simulated dataset; get it again, or give another folder")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f"{path}: is not the manifest of a simulated dataset; give another folder")
    schema = document.get("schema")
    if schema != SCHEMA:
        raise FormatError(f"{path}: has schema {schema!r:.40}; this FATE knows {SCHEMA}; update FATE")
    try:
        return _from_dict(document)
    except FateError as error:
        raise FormatError(f"{path}: is damaged: {error}; get it again, or give another folder") from None


def _from_dict(document: dict[str, Any]) -> Manifest:
    """Check every value that is used later, so that a damaged manifest is refused here and nowhere else."""
    arguments = _values(Request, document.get("arguments"), "arguments")
    shares = tuple(list_of(arguments.get("shares"), "arguments.shares"))
    classes = names_of(document.get("classes"), "classes")
    recordings = [
        _recording(entry, f"recordings[{number}]")
        for number, entry in enumerate(list_of(document.get("recordings"), "recordings"))
    ]
    if len({entry.index for entry in recordings}) < len(recordings):
        raise FormatError("recordings has two entries of one index; expected each once")
    previews = object_of(document.get("previews"), "previews").items()
    return Manifest(
        Request(**{**arguments, "shares": shares}),
        classes,
        _sensor(document.get("sensor")),
        object_of(document.get("camera"), "camera"),
        tuple(recordings),
        {_split(split, "a preview"): _preview(preview, f"previews.{split:.40}") for split, preview in previews},
    )


def _recording(value: object, where: str) -> RecordingEntry:
    entry = _values(RecordingEntry, value, where)

    def whole(name: str, low: int = 0) -> int:
        return whole_number(entry.get(name), f"{where}.{name}", low, 2**63 - 1)

    at_rest = entry.get("at_rest", False)
    if not isinstance(at_rest, bool):
        raise FormatError(f"{where}.at_rest is {at_rest!r:.40}; expected true or false")
    files = object_of(entry.get("files"), f"{where}.files").items()
    return RecordingEntry(
        whole("index"),
        _text(entry.get("name"), f"{where}.name"),
        _split(entry.get("split"), where),
        whole("seed"),
        check_seconds(finite_number(entry.get("seconds"), f"{where}.seconds")),
        _text(entry.get("device"), f"{where}.device"),
        _text(entry.get("fate"), f"{where}.fate"),
        whole("label_hz", 1),
        whole("events"),
        whole("on_events"),
        _counts(entry.get("boxes"), f"{where}.boxes"),
        _counts(entry.get("truth_boxes"), f"{where}.truth_boxes"),
        object_of(entry.get("camera"), f"{where}.camera"),
        {_inside(name, where): _file(file, f"{where}.files") for name, file in files},
        at_rest,
    )


def _preview(value: object, where: str) -> PreviewEntry:
    preview = _values(PreviewEntry, value, where)
    return PreviewEntry(_file(preview.get("file"), f"{where}.file"), names_of(preview.get("of"), f"{where}.of"))


def _file(value: object, where: str) -> FileEntry:
    file = _values(FileEntry, value, where)
    size = whole_number(file.get("bytes"), f"{where}: bytes", 0, 2**63 - 1)
    return FileEntry(size, _text(file.get("sha256"), f"{where}: sha256"))


def _values(kind: type, value: object, where: str) -> dict[str, Any]:
    """An object whose names are fields of a dataclass; other names are refused."""
    found, known = object_of(value, where), {each.name for each in fields(kind)}
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise FormatError(f"{where} has {unknown!r:.40}; expected only {', '.join(sorted(known))}")
    return found


def _counts(value: object, where: str) -> dict[str, int]:
    counts = object_of(value, where).items()
    return {name: whole_number(count, f"{where}: {name:.40}", 0, 2**63 - 1) for name, count in counts}


def _sensor(value: object) -> tuple[int, int] | None:
    if value is None:  # no recording is finished
        return None
    size = object_of(value, "sensor")
    height, width = (whole_number(size.get(side), f"sensor.{side}", 1, 65_536) for side in ("height", "width"))
    return height, width


def _split(value: object, where: str) -> Split:
    split = next((each for each in SPLITS if each == value), None)
    if split is None:
        raise FormatError(f"{where} is of the split {value!r:.40}; expected one of {', '.join(SPLITS)}")
    return split


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where} is {value!r:.40}; expected a text")
    return value


def _inside(name: str, where: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FormatError(f"{where} lists the file {name!r:.40}; expected a path inside the dataset")
    return name


def _summed(classes: tuple[str, ...], counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total = dict.fromkeys(classes, 0)
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total


def preview_path(folder: Path, split: str) -> Path:
    """Where the preview of a split is."""
    return folder / split / "preview.mp4"
