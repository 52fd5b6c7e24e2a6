"""What kind of dataset is this? Told by its manifest or YAML, else by its sensor, file names and class ids.

========  ==========================================================================================
gen1      ``_td.dat`` with ``_bbox.npy``, 304 × 240, ids 0 and 1
1mpx      the same, 1280 × 720, ids 0 to 6, of which three are used, at half resolution
sim       what ``fate simulate`` makes: ``manifest.json`` has the classes
rvt       RVT's preprocessed histograms (:mod:`fate.data.rvt_layout`)
own       any recordings with any labels: a YAML file, or a folder with ``classes.txt`` or labels that have names
========  ==========================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fate.data.assembly import Draft, Files, look_at_all, sample_labels
from fate.data.class_maps import GEN1, MPX, Classes
from fate.data.findings import Finding
from fate.data.layout import SPLITS, Entry, find_recordings
from fate.data.listing import MANIFEST, find_listing
from fate.data.manifests import SIMULATED, Found, find_manifest
from fate.errors import FateError
from fate.events.events import Sensor
from fate.events.sensors import GEN1_SENSOR, MPX_SENSOR

KINDS = ("gen1", "1mpx", "sim", "rvt", "own")
CLASSES_FILE = "classes.txt"

PUBLISHED = ("_td.dat", "_td.dat.h5")  # endings of event files as given out, and as RVT's users convert them
LOOKED_AT = 8  # recordings whose sensor is asked for, to tell the kind


class Public(NamedTuple):
    """A public dataset."""

    sensor: Sensor
    downscale: int
    ids: frozenset[int]


PUBLIC_SETS: Mapping[str, Public] = MappingProxyType(
    {
        "gen1": Public(GEN1_SENSOR, 1, frozenset(GEN1.values())),
        "1mpx": Public(MPX_SENSOR, 2, frozenset(MPX.values())),
    }
)


def public_kind(sensor: Sensor | None) -> str | None:
    """The public dataset of that sensor."""
    return next((name for name, public in PUBLIC_SETS.items() if public.sensor == sensor), None)


def draft_of(path: Path, split: str | None, kind: str | None, classes: Classes | None, sensor: Sensor | None) -> Draft:
    """What is known of the dataset in ``path`` without opening its recordings, but for a few to tell its kind."""
    simulated = find_manifest(path if path.is_dir() or path.name == MANIFEST else path.parent)
    if simulated is not None and simulated.format == SIMULATED and kind in (None, "sim"):
        return _simulated(simulated, path, split, classes)
    if kind == "sim":
        raise FateError(f"{path}: has no manifest.json of a simulated dataset; give a folder that fate simulate made")
    layout = find_recordings(path, split)
    name = path.resolve().name
    files = tuple(Files(entry) for entry in layout.entries)
    listed = classes_file(path if path.is_dir() else path.parent) if kind in (None, "own") else None
    chosen = kind or ("own" if listed else _recognise(path, layout.entries, classes))
    if chosen == "own":
        return Draft(name, layout.root, "own", "custom", files, listed, sensor, wanted=classes)
    public = PUBLIC_SETS[chosen]
    size = sensor or public.sensor
    return Draft(name, layout.root, chosen, chosen, files, None, size, public.downscale, wanted=classes)


def classes_file(folder: Path) -> tuple[str, ...] | None:
    """The names in ``classes.txt`` of a folder, or of the dataset whose split it is, one a line; None for none."""
    places = [folder, folder.absolute().parent] if folder.absolute().name.lower() in SPLITS else [folder]
    path = next((place / CLASSES_FILE for place in places if (place / CLASSES_FILE).is_file()), None)
    if path is None:
        return None
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FateError(f"{path}: cannot be read ({error}); expected one class name a line, in UTF-8") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise FateError(f"{path}: is empty; expected one class name a line")
    return names


def _simulated(found: Found, path: Path, split: str | None, classes: Classes | None) -> Draft:
    layout = find_recordings(path.parent if path.name == MANIFEST else path, split)
    try:
        names = tuple(found.document["classes"])
        size, profile = found.document["sensor"], found.document["arguments"]["profile"]
        sensor = None if size is None else Sensor.of((size["height"], size["width"]))
        downscale = PUBLIC_SETS[profile].downscale if profile in PUBLIC_SETS else 1
    except (LookupError, TypeError, AttributeError) as error:
        raise found.damaged(error) from error
    files = tuple(Files(entry) for entry in layout.entries)
    name = path.resolve().name
    missing = tuple(_missing_files(path, split))
    return Draft(
        name, layout.root, "sim", "sim", files, names, sensor, downscale, wanted=classes, findings=missing
    )  # fmt: skip


def _missing_files(path: Path, split: str | None) -> Iterator[Finding]:
    """Files of a simulated dataset that its manifest lists and that are gone or cut short; previews are no data."""
    listing = find_listing(path.parent if path.name == MANIFEST else path, split)
    if listing is None:
        return
    if listing.fault:
        yield Finding("missing", listing.fault)
    for file, fault in listing.missing():
        if file.name.endswith(".mp4"):
            continue
        yield Finding("missing", f"{file.name}: {fault}", SPLITS.get(file.name.split("/")[0]))


def _recognise(path: Path, entries: tuple[Entry, ...], classes: Classes | None) -> str:
    """gen1, 1mpx or own, from a few of the recordings; an error where it could be either."""
    step = max(1, len(entries) // LOOKED_AT)
    some = look_at_all([Files(entry) for entry in entries[::step][:LOOKED_AT]])
    sizes = Counter(each.look.sensor for each in some if each.look and each.look.sensor)
    sensor = sizes.most_common(1)[0][0] if sizes else None
    kind = public_kind(sensor)
    if kind is None or sensor is None:
        return "own"
    names, found = sample_labels([each.files.entry.labels for each in some if not each.label_fault], sensor)
    if names is not None:
        return "own"
    named = all(each.files.entry.events.name.lower().endswith(PUBLISHED) for each in some)
    fitting = sum(each <= PUBLIC_SETS[kind].ids for each in found)  # a single odd file is a fault, not another dataset
    if named and 2 * fitting >= len(found):
        return kind
    ids = set().union(*found)
    if not ids or classes is not None:  # without boxes nothing hangs on the kind
        return "own"
    shown = ", ".join(map(str, sorted(ids)[:10]))
    raise FateError(
        f"{path}: could be {kind} or a dataset of your own ({sensor}, class ids {shown}); pass kind={kind!r}, or"
        " classes=[...] with the name of each class id"
    )
