"""The manifest of a simulated dataset: its arguments, its finished recordings, and size and hash of every file.

``manifest.json`` is rewritten after each finished recording, whole or not at all. A stopped run continues from it, and
makes every recording that it does not list. It holds neither dates nor run times, so the same arguments give the same
bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from fate.data.manifests import MANIFEST, SCHEMAS, SIMULATED, FileFacts, InsidePath, find_manifest, write_manifest
from fate.errors import FormatError
from fate.json_files import describe_invalid
from fate.simulation.art.catalogue import SPLITS, Split
from fate.simulation.writing.request import Request, check_seconds
from fate.version import __version__

_STRICT = ConfigDict(extra="forbid", strict=True)

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, AfterValidator(check_seconds)]
Side = Annotated[int, Field(ge=1, le=65_536)]


def file_facts(path: Path) -> FileFacts:
    """Return the entry of a file on disk."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return FileFacts(bytes=file.tell(), sha256=digest.hexdigest())


@dataclass(frozen=True)
class RecordingEntry:
    """A finished recording."""

    __pydantic_config__: ClassVar = _STRICT

    index: Count
    name: str
    split: Split
    seed: Count  #: of its scene
    seconds: Seconds
    device: str  #: that it was made on; a GPU rounds differently, so its bytes differ from a CPU's
    fate: str  #: version that made it
    label_hz: Annotated[Count, Field(ge=1)]
    events: Count
    on_events: Count
    boxes: dict[str, Count]  #: rows of the label file, by class
    truth_boxes: dict[str, Count]  #: rows at 200 Hz, by class
    camera: dict[str, Any]  #: thresholds, bursts, and what else differs from the profile's preset
    files: dict[InsidePath, FileFacts]  #: by path inside the dataset
    at_rest: bool = False  #: whether its camera was asked to stand still
    shows: str = ""  #: the kind of its scene in a few words


@dataclass(frozen=True)
class PreviewEntry:
    """A preview video."""

    __pydantic_config__: ClassVar = _STRICT

    file: FileFacts
    of: tuple[str, ...]  #: the names of the recordings it shows


@dataclass(frozen=True)
class Manifest:
    """The arguments, recordings and previews of a simulated dataset."""

    __pydantic_config__: ClassVar = _STRICT
    from_video: ClassVar = False  #: whether the recordings are made from video

    request: Request
    classes: tuple[str, ...] = ()  #: name of each class id; empty until there is a recording
    sensor: tuple[Side, Side] | None = None  #: (height, width)
    camera: dict[str, Any] = field(default_factory=dict)  #: the profile's preset; empty if it has none
    recordings: tuple[RecordingEntry, ...] = ()  #: finished ones, in order of their index
    previews: dict[Split, PreviewEntry] = field(default_factory=dict)  #: by split

    def still_there(self, folder: Path) -> Self:
        """Return the manifest without the recordings and previews whose files are gone or have another size."""

        def is_whole(file: FileFacts, path: Path) -> bool:
            return path.is_file() and path.stat().st_size == file.bytes

        kept = tuple(
            entry
            for entry in self.recordings
            if all(is_whole(file, folder / name) for name, file in entry.files.items())
        )
        names = {entry.name for entry in kept}
        previews = {
            split: preview
            for split, preview in self.previews.items()
            if names.issuperset(preview.of) and is_whole(preview.file, preview_path(folder, split))
        }
        return replace(self, recordings=kept, previews=previews)

    def totals(self, split: str | None = None) -> dict[str, Any]:
        """Return sums over all recordings, or over the recordings of a split."""
        entries = [entry for entry in self.recordings if split in (None, entry.split)]
        return {
            "recordings": len(entries),
            "seconds": round(sum(entry.seconds for entry in entries), 6),
            "events": sum(entry.events for entry in entries),
            "on_events": sum(entry.on_events for entry in entries),
            **{
                name: {each: sum(getattr(entry, name).get(each, 0) for entry in entries) for each in self.classes}
                for name in ("boxes", "truth_boxes")
            },
            "bytes": sum(file.bytes for entry in entries for file in entry.files.values()),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        values = TypeAdapter(type(self)).dump_python(self)
        return {
            "format": SIMULATED,
            "schema": SCHEMAS[SIMULATED],
            "fate": __version__,
            "arguments": values["request"],
            "classes": list(self.classes),
            "sensor": None if self.sensor is None else dict(zip(("height", "width"), self.sensor, strict=True)),
            "truth_hz": 200,
            "camera": self.camera,
            "totals": {"all": self.totals(), **{split: self.totals(split) for split in SPLITS}},
            "previews": values["previews"],
            "recordings": values["recordings"],
        }

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``; a reader sees the old one or the new one, never half of one."""
        write_manifest(folder, self.to_dict())


AnyManifest = TypeVar("AnyManifest", bound=Manifest)


def load_manifest(folder: str | os.PathLike[str], kind: type[AnyManifest] = Manifest) -> AnyManifest | None:  # type: ignore[assignment]
    """The manifest of a dataset folder, or None if the folder has none; ``kind`` is what it should be."""
    path = Path(folder) / MANIFEST
    found = find_manifest(path)
    if found is None or found.format != SIMULATED:
        if not os.path.lexists(path):
            return None
        raise FormatError(f"{path}: is not the manifest of a simulated dataset; give another folder")
    document = json.loads(found.data)
    arguments = document.get("arguments")
    if isinstance(arguments, dict) and ("videos" in arguments) != kind.from_video:
        there, asked = ("drives", "video") if kind.from_video else ("video", "drives")
        raise FormatError(f"{path}: is that of a dataset from {there}, and {asked} was asked for; give another folder")
    read = {name: document.get(name) for name in ("classes", "camera", "recordings", "previews", "sensor")}
    if isinstance(read["sensor"], dict):
        read["sensor"] = [read["sensor"].get(side) for side in ("height", "width")]
    try:
        manifest = TypeAdapter(kind).validate_json(json.dumps({**read, "request": arguments}))
    except ValidationError as error:
        problem = describe_invalid(error).replace("request", "arguments", 1)
        raise FormatError(f"{path}: is damaged: {problem}; get it again, or give another folder") from None
    if len({entry.index for entry in manifest.recordings}) < len(manifest.recordings):
        raise FormatError(f"{path}: is damaged: two recordings have one index; get it again, or give another folder")
    return manifest


def preview_path(folder: Path, split: str) -> Path:
    """Where the preview of a split is."""
    return folder / split / "preview.mp4"
