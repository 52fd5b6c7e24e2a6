"""What ``fate prepare`` has written about a dataset, read back: where it lies, what it holds, what is wrong with it.

With it a dataset opens without a look at any of its recordings: sensors, spans and faults are known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any

from fate.data.class_maps import Classes, ClassMap, class_map
from fate.data.event_files import EventOptions, Span
from fate.data.findings import KINDS, Finding
from fate.data.kinds import PUBLIC_SETS, public_kind
from fate.data.labelled_recording import LabelledRecording
from fate.data.manifests import Found
from fate.data.rvt_layout import RvtSequence
from fate.errors import FateError
from fate.events.events import Sensor

#: What goes wrong where a manifest is not as it was written.
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Prepared:
    """A prepared dataset. Made by :func:`read`."""

    manifest: Path
    root: Path  #: of the recordings
    name: str
    kind: str  #: ``"gen1"``, ``"1mpx"`` or ``"rvt"``
    sensor: Sensor  #: of the camera
    entries: tuple[dict[str, Any], ...]  #: of the recordings that can be used, as in the manifest
    findings: tuple[Finding, ...]

    @property
    def protocol(self) -> str:
        """The evaluation that goes with it."""
        return self.kind if self.kind in PUBLIC_SETS else public_kind(self.sensor) or "custom"

    def recordings(self, classes: Classes | None, downscale: int | None) -> tuple[LabelledRecording, ...]:
        """Its recordings, as :func:`fate.open_dataset` gives them.

        Args:
            classes: None for those of the public dataset.
            downscale: None for that of the public dataset, or that of the histograms.
        """
        mapped = class_map(classes, public_kind(self.sensor), str(self.manifest))
        if self.kind != "rvt":
            scale = downscale or PUBLIC_SETS[self.kind].downscale
            return tuple(self._recording(entry, mapped, scale) for entry in self.entries)
        sequences = tuple(self._sequence(entry, mapped) for entry in self.entries)
        if downscale not in (None, sequences[0].downscale):
            raise FateError(
                f"{self.manifest}: was prepared for histograms divided by {sequences[0].downscale}; leave downscale out"
            )
        return sequences

    def _recording(self, entry: dict[str, Any], mapped: ClassMap, downscale: int) -> LabelledRecording:
        return LabelledRecording(
            name=entry["name"],
            split=entry["split"],
            events_file=inside(self.root, entry["events"]),
            label_file=inside(self.root, entry["labels"]) if entry["labelled"] else None,
            class_map=mapped,
            full_sensor=self.sensor,
            downscale=downscale,
            truth_file=inside(self.root, entry["truth"]) if entry["truth"] else None,
            event_options=EventOptions(None if entry["says_sensor"] else self.sensor),
            known_span=_span(entry),
        )

    def _sequence(self, entry: dict[str, Any], mapped: ClassMap) -> RvtSequence:
        return RvtSequence(
            name=entry["name"],
            split=entry["split"],
            events_file=inside(self.root, entry["events"]),
            label_file=inside(self.root, entry["labels"]) if entry["labelled"] else None,
            class_map=mapped,
            full_sensor=self.sensor,
            downscale=int(entry["downscale"]),
            known_span=_span(entry),
        )


def _span(entry: dict[str, Any]) -> Span:
    return Span(int(entry["start_us"]), int(entry["end_us"]), int(entry["num_events"]))


def read(found: Found) -> Prepared:
    """A prepared dataset from its manifest; the folder of the recordings must be there, nothing else is looked at."""
    document = found.document
    try:
        sensor = Sensor.of((document["sensor"]["height"], document["sensor"]["width"])) if document["sensor"] else None
        findings = tuple(Finding(**each) for each in document["faults"] if is_finding(each))
        usable = tuple(entry for entry in document["recordings"] if entry["usable"])
        if len(findings) < len(document["faults"]) or not all(map(is_sound, document["recordings"])):
            raise ValueError("a recording or a fault in it is not as fate prepare writes them")
        kind, source = document["kind"], document["source"]
        if kind not in (*PUBLIC_SETS, "rvt"):
            raise ValueError(f"kind {kind!r}")
        root = source_folder(found.folder, source)
        if not document.get("finished", document["complete"]):
            known = len(document["recordings"])
            sentence = f"{found.path}: fate prepare did not finish, and knows {known} recordings; run it again"
            findings = (*findings, Finding("missing", sentence))
        if sensor is None or not usable:
            raise FateError(f"{found.path}: lists no recording that can be used; see its faults, or prepare it again")
        made = Prepared(found.path, root, document["name"], kind, sensor, usable, findings)
        made.recordings({}, None)  # every entry is as it was written
    except FateError:
        raise
    except _DAMAGE as error:
        raise found.damaged(error) from error
    return made


def source_folder(home: Path, source: dict[str, str]) -> Path:
    """The folder of the recordings: as it was called, else as seen from the manifest, where both were moved."""
    places = [Path(source["path"]), Path(os.path.normpath(home / source["from_here"]))]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise FateError(
            f"{home}: was prepared from {places[0]}, which is not there; bring it back, or run fate prepare again with"
            " the folder where it is now"
        )
    return folder


def inside(root: Path, name: str) -> Path:
    """A path of the manifest, which must not lead out of the dataset."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"it lists {name!r}, which is no path inside the dataset")
    return root / path


def is_sound(entry: object) -> bool:
    """Whether an entry of a manifest has all its parts, each of its type: a damaged one is examined again."""
    if not isinstance(entry, dict) or not all(
        key in entry and isinstance(entry[key], kinds) and (bool in kinds or not isinstance(entry[key], bool))
        for key, kinds in _PARTS.items()
    ):
        return False
    size, counts = entry["sensor"], (entry["downscale"], entry["num_events"], entry["labelled_times"])
    return (
        entry["split"] in (None, "train", "val", "test")
        and (size is None or (size.keys() == {"height", "width"} and all(type(side) is int for side in size.values())))
        and not (entry["readable"] and size is None)
        and all(count >= 0 for count in counts)
        and all(isinstance(number, int) for number in entry["boxes"].values())
        and all(isinstance(fault, dict) and is_finding(fault) for fault in entry["faults"])
        and all(isinstance(state, dict) and _is_state(state) for state in entry["files"].values())
    )


_PARTS: dict[str, tuple[type, ...]] = {
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


def is_finding(fault: dict[str, Any]) -> bool:
    """Whether plain values are those of a :class:`Finding`."""
    texts = isinstance(fault.get("kind"), str) and isinstance(fault.get("sentence"), str)
    return (
        texts
        and fault.keys() == {"kind", "sentence", "split"}
        and fault["kind"] in KINDS
        and fault["split"] in (None, "train", "val", "test")
    )


def _is_state(state: dict[str, Any]) -> bool:
    return (
        state.keys() == {"bytes", "mtime_ns", "sha256"}
        and all(type(state[key]) is int for key in ("bytes", "mtime_ns"))
        and isinstance(state["sha256"], str | None)
    )
