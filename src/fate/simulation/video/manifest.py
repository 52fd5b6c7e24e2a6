"""The manifest of a dataset that is made from video: that of a simulated dataset, with the videos as its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from fate.simulation.art.catalogue import Split
from fate.simulation.writing.manifest import Count, Manifest, RecordingEntry, Seconds, Side, file_facts


@dataclass(frozen=True)
class VideoInput:
    """A video, or a webcam, with its labels."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    video: str  #: name of the file, or ``webcam 0``
    sha256: str  #: of the file; empty for a webcam
    labels: str = ""  #: name of the file; empty if there is none
    labels_sha256: str = ""

    @staticmethod
    def of(source: str | int, labels: str = "") -> VideoInput:
        """The input with these files."""
        if isinstance(source, int):
            return VideoInput(f"webcam {source}", "")
        own = (Path(labels).name, file_facts(Path(labels)).sha256) if labels else ()
        return VideoInput(Path(source).name, file_facts(Path(source)).sha256, *own)


@dataclass(frozen=True)
class VideoRequest:
    """The arguments that decide what a dataset from video holds."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "strict": True}

    camera: str  #: name of the preset
    sensor: tuple[Side, Side]  #: (height, width)
    split: Split  #: of all recordings
    seed: Count
    seconds: Seconds | None  #: longest time that is taken of each video
    videos: tuple[VideoInput, ...]
    profile: Literal["video"] = "video"


@dataclass(frozen=True, kw_only=True)
class VideoEntry(RecordingEntry):
    """A finished recording of a video."""

    source: VideoInput
    frames: Count
    cuts_us: tuple[Count, ...]  #: times of the first frames after a cut
    dropped: dict[str, Count]  #: boxes of other classes that were left out, by class


@dataclass(frozen=True)
class VideoManifest(Manifest):
    """The arguments and recordings of a dataset from video."""

    from_video: ClassVar = True

    request: VideoRequest  # type: ignore[assignment]
    recordings: tuple[VideoEntry, ...] = ()
