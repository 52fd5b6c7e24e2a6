"""Open a dataset: find its files and its kind, read the head of every file, and make one list of recordings.

========  ==========================================================================================
gen1      ``_td.dat`` with ``_bbox.npy``, 304 × 240, ids 0 and 1
1mpx      the same, 1280 × 720, ids 0 to 6, of which three are used, at half resolution
sim       what ``fate simulate`` writes: ``manifest.json`` has the classes
rvt       RVT's preprocessed histograms (:mod:`fate.data.rvt_layout`)
own       any recordings with any labels: a YAML file (:mod:`fate.data.yaml_datasets`), or a folder with
          ``classes.txt`` or with labels that have class names
========  ==========================================================================================

A YAML file or a manifest says which kind it is. For other folders, the sensor, the file names and the class ids do.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from fate.data import manifests
from fate.data.box_files import box_file_fault, read_box_file
from fate.data.class_maps import (
    EXPECTED_RECORDINGS,
    PUBLIC,
    Classes,
    ClassMap,
    checked_names,
    class_map,
    plain,
    public_kind,
)
from fate.data.compact_files import compact_path
from fate.data.dataset import Dataset
from fate.data.findings import THREADS, Finding
from fate.data.labelled_recording import FileHead, LabelledRecording, Span, check_downscale, read_head
from fate.data.layout import SPLITS, DatasetFiles, RecordingPaths, check_split, dataset_root, find_recordings
from fate.data.rvt_layout import RvtSequence, find_sequences, holds_histograms, image_downscale, open_sequence
from fate.data.yaml_datasets import find_yaml, read_dataset_yaml
from fate.errors import FateError, FateWarning, MissingDependencyError, warn
from fate.events.events import Sensor
from fate.files import read_text

KINDS = ("gen1", "1mpx", "sim", "rvt", "own")
CLASSES_FILE = "classes.txt"

PUBLISHED_ENDINGS = ("_td.dat", "_td.dat.h5")  # event files as published, and as RVT's users convert them
SAMPLED_RECORDINGS = 8  # recordings that are read to find out the kind of a dataset
SAMPLED_LABELS = 5  # label files that are read to find class names and ids


def open_dataset(
    path: str | os.PathLike[str],
    split: str | None = None,
    *,
    kind: str | None = None,
    classes: Classes | None = None,
    downscale: int | None = None,
    sensor: Sequence[int] | None = None,
) -> Dataset:
    """Open a dataset in place.

    Args:
        path: a folder of recordings with their labels, a YAML file that lists them, one recording, or what
            ``fate prepare`` has written.
        split: only ``"train"``, ``"val"`` or ``"test"``.
        kind: ``"gen1"``, ``"1mpx"``, ``"sim"``, ``"rvt"`` or ``"own"``, if the files do not tell.
        classes: names of the dataset's classes; only these are kept, and their order gives the class ids. If the
            label files have ids without names, the list names id 0, id 1 and so on. A mapping from names to the ids
            in the label files replaces the names of the dataset.
        downscale: this many pixels along each side become one. The default is 2 for 1Mpx and 1 for others.
        sensor: (height, width) of the camera, for files that do not say.

    Example:
        >>> dataset = fate.open_dataset("gen1", "train")                          # doctest: +SKIP
        >>> dataset = fate.open_dataset("1mpx", classes={"vehicle": (2, 3, 4)})   # doctest: +SKIP
    """
    folder, requested = Path(path), None if split is None else check_split(split)
    if kind is not None and kind not in KINDS:
        raise FateError(f"kind {kind!r} was given; expected one of {', '.join(KINDS)}")
    scale = None if downscale is None else check_downscale(downscale)
    size = None if sensor is None else Sensor.of(sensor)
    yaml = find_yaml(folder) if kind in (None, "own") else None
    manifest = None if yaml else manifests.find_manifest(folder)
    if manifest is not None and manifest.format == manifests.PREPARED:
        dataset = open_prepared(manifest, kind, classes, scale)
        dataset = dataset if requested is None else dataset.split(requested)
    else:
        if yaml is not None:
            files = read_dataset_yaml(yaml, requested)
            files = replace(files, sensor=size or files.sensor)
        elif kind == "rvt" or (kind is None and holds_histograms(folder)):
            sequences, findings = find_sequences(folder, requested, scale)
            name = folder.resolve().name
            files = DatasetFiles(name, folder, "rvt", "custom", tuple(sequences), findings=tuple(findings))
        else:
            files = _describe_folder(folder, requested, kind, classes, size)
        dataset = _open_recordings(files if scale is None else replace(files, downscale=scale), classes)
    left_out = [finding for finding in dataset.findings if finding.kind in ("damaged", "sensor")]
    if left_out:  # other faults are in ``dataset.faults``
        total = len(dataset) + len(left_out)
        more = f" and {len(left_out) - 1} more, see dataset.faults" if len(left_out) > 1 else ""
        warn(f"{dataset.root}: {len(left_out)} of {total} recordings are left out: {left_out[0].sentence}{more}")
    return replace(dataset, source=folder)


def as_dataset(
    dataset: str | os.PathLike[str] | Dataset,
    split: str | None = None,
    *,
    kind: str | None = None,
    usual: str | None = None,
    sensor: Sequence[int] | None = None,
) -> Dataset:
    """Open a dataset, or take one that is open already.

    Args:
        dataset: an open dataset, or a path for ``open_dataset``.
        split: ``"train"``, ``"val"`` or ``"test"`` for this part only, ``"all"`` for everything.
        kind: see ``open_dataset``; for a path only.
        usual: the split to use if ``dataset`` is a path, has this split, and ``split`` is None.
        sensor: (height, width) of the camera, for files that do not say; for a path only.
    """
    requested = None if split == "all" else split
    if isinstance(dataset, Dataset):
        if kind not in (None, dataset.kind):
            raise FateError(f"{dataset.root}: is open as {dataset.kind}, and kind={kind!r} was given; leave it out")
        return dataset if requested is None else dataset.split(requested)
    opened = open_dataset(dataset, requested, kind=kind, sensor=sensor)
    return opened.split(usual) if split is None and usual is not None and usual in opened.splits else opened


def path_of(dataset: str | os.PathLike[str] | Dataset) -> tuple[Path, str | None]:
    """Path and split (None for all) of a dataset, for functions that open the files themselves.

    An open dataset must be whole or one split, without other classes or another size.
    """
    if not isinstance(dataset, Dataset):
        return Path(dataset), None
    location = dataset.source or dataset.root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # the same warnings as when it was opened the first time
        whole = open_dataset(location)
    names = [recording.name for recording in dataset]
    if (whole.classes, whole.downscale) == (dataset.classes, dataset.downscale):
        for split in (None, *whole.splits):
            if names == [recording.name for recording in whole if split in (None, recording.split)]:
                return location, split
    raise FateError(
        f"{location}: the dataset given is a selection (recordings, classes or downscale) of what is there; expected"
        " the whole dataset or one split of it"
    )


# ---- which files, and which kind --------------------------------------------------------------------------------


def _describe_folder(
    path: Path, split: str | None, kind: str | None, classes: Classes | None, sensor: Sensor | None
) -> DatasetFiles:
    """Find the recordings of a folder; a few of them are read to find out the kind if ``kind`` is None."""
    manifest = manifests.find_manifest(path if path.is_dir() or path.name == manifests.MANIFEST else path.parent)
    if manifest is not None and manifest.format == manifests.SIMULATED and kind in (None, "sim"):
        return _describe_simulated(manifest, path, split)
    if kind == "sim":
        raise FateError(f"{path}: has no manifest.json of a simulated dataset; give a folder that fate simulate made")
    recordings = find_recordings(path, split)
    name, root = path.resolve().name, dataset_root(path)
    names = read_classes_file(root) if kind in (None, "own") else None
    chosen = kind or ("own" if names else _recognise(path, recordings, classes))
    if chosen == "own":
        return DatasetFiles(name, root, "own", "custom", recordings, names, sensor)
    public = PUBLIC[chosen]
    lonely = tuple(find_lonely_labels(path, recordings, split))
    size = sensor or public.sensor
    return DatasetFiles(name, root, chosen, chosen, recordings, None, size, public.downscale, findings=lonely)


def find_lonely_labels(
    folder: Path, recordings: Sequence[RecordingPaths], split: str | None = None
) -> Iterator[Finding]:
    """A fault for each label file of Gen1 or 1Mpx, or of one split, whose recording is missing."""
    known = {paths.labels for paths in recordings}
    for path in sorted(folder.rglob("*_bbox.npy")) if folder.is_dir() else ():
        if path not in known:
            parts = path.relative_to(folder).parts
            own = SPLITS.get(parts[0].lower()) or SPLITS.get(folder.name.lower())
            if split is None or own == SPLITS[split]:
                yield Finding("missing", f"{'/'.join(parts)}: the recording of these labels is missing", own)


def _describe_simulated(manifest: manifests.Manifest, path: Path, split: str | None) -> DatasetFiles:
    """The files of a simulated dataset, with a fault for each that is missing or cut short; videos do not count."""
    folder = path.parent if path.name == manifests.MANIFEST else path
    recordings = find_recordings(folder, split)
    content = manifest.parse(_Simulated)
    profile = PUBLIC.get(content.arguments.profile)
    listing = manifests.find_listing(folder, split)
    findings = [Finding("missing", listing.fault)] if listing is not None and listing.fault else []
    for name, fault in [] if listing is None else listing.changes(hashed=False):
        if not name.endswith(".mp4"):
            findings.append(Finding("missing", f"{name}: {fault}", SPLITS.get(name.split("/")[0])))
    return DatasetFiles(
        name=path.resolve().name,
        root=dataset_root(folder),
        kind="sim",
        protocol="sim",
        recordings=recordings,
        classes=content.classes,
        sensor=content.sensor,
        downscale=1 if profile is None else profile.downscale,
        findings=tuple(findings),
    )


class _Arguments(BaseModel):
    profile: str


class _Simulated(BaseModel):
    """The keys of a simulated dataset's manifest that concern all recordings."""

    classes: tuple[str, ...]
    sensor: manifests.Size | None
    arguments: _Arguments


def read_classes_file(folder: Path) -> tuple[str, ...] | None:
    """The class names in ``classes.txt``, one per line, of a folder or of the dataset whose split it is.

    Returns None if there is no such file.
    """
    folders = [folder, folder.absolute().parent] if folder.absolute().name.lower() in SPLITS else [folder]
    path = next((each / CLASSES_FILE for each in folders if (each / CLASSES_FILE).is_file()), None)
    if path is None:
        return None
    lines = read_text(path, "one class name a line").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise FateError(f"{path}: is empty; expected one class name a line")
    return names


def _recognise(path: Path, recordings: Sequence[RecordingPaths], classes: Classes | None) -> str:
    """Whether a folder is gen1, 1mpx or own, from a few of its recordings; raises FateError if it could be either."""
    step = max(1, len(recordings) // SAMPLED_RECORDINGS)
    sampled = recordings[::step][:SAMPLED_RECORDINGS]
    heads = _read_heads(sampled, "own")
    sensors = Counter(head.sensor for head, _ in heads if isinstance(head, FileHead) and head.sensor)
    sensor = sensors.most_common(1)[0][0] if sensors else None
    kind = public_kind(sensor)
    if kind is None or sensor is None:
        return "own"
    readable = [each.labels for each, (_, label_fault) in zip(sampled, heads, strict=True) if not label_fault]
    names, ids_of_files = _sample_labels(readable, sensor)
    if names is not None:
        return "own"
    named = all(each.events.name.lower().endswith(PUBLISHED_ENDINGS) for each in sampled)
    fitting = sum(
        ids <= set(PUBLIC[kind].ids.values()) for ids in ids_of_files
    )  # one file with other ids is only a fault
    if named and 2 * fitting >= len(ids_of_files):
        return kind
    ids = set().union(*ids_of_files)
    if not ids or classes is not None:  # without boxes the kind makes no difference
        return "own"
    shown = ", ".join(map(str, sorted(ids)[:10]))
    raise FateError(
        f"{path}: could be {kind} or a dataset of your own ({sensor}, class ids {shown}); pass kind={kind!r}, or"
        " classes=[...] with the name of each class id"
    )


# ---- from files to recordings -----------------------------------------------------------------------------------


def _open_recordings(described: DatasetFiles, classes: Classes | None) -> Dataset:
    """Read the head of every file, choose one sensor for all, and name the recordings that are left out."""
    findings = list(described.findings)

    def add(kind: str, paths: RecordingPaths, sentence: str) -> None:
        findings.append(Finding(kind, f"{paths.name}: {sentence}", paths.split))

    listed = _drop_duplicates(described.recordings, findings)
    heads = _read_heads(listed, described.kind)
    readable, faults = [], []
    for paths, (head, label_fault) in zip(listed, heads, strict=True):
        if isinstance(head, str):
            add("damaged", paths, f"left out: {head}")
            faults.append(head)
        else:
            readable.append((paths, head, label_fault))
    if not readable:
        more = f" (and {len(faults) - 1} more like it)" if len(faults) > 1 else ""
        raise FateError(f"{described.root}: no recording can be read; {faults[0]}{more}")
    sensor = _choose_sensor(described, [head.sensor for _, head, _ in readable], findings)
    label_files = [paths.labels for paths, _, label_fault in readable if not label_fault]
    mapped = _choose_classes(described, classes, label_files, sensor)
    is_rvt = described.kind == "rvt"
    scales = [image_downscale(paths.events) if is_rvt else described.downscale for paths, _, _ in readable]
    downscale = Counter(scales).most_common(1)[0][0]
    recordings: list[LabelledRecording] = []
    for (paths, head, label_fault), scale in zip(readable, scales, strict=True):
        if head.sensor not in (None, sensor):
            add("sensor", paths, f"left out: it is {head.sensor}, the others are {sensor}")
            continue
        if scale != downscale:
            add("sensor", paths, f"left out: it is divided by {scale}, the others by {downscale}")
            continue
        if head.cut:
            add("cut", paths, f"ends early: {head.cut}")
        if label_fault:
            add("bad labels", paths, f"its labels are not used: {label_fault}")
        elif paths.labels is None:
            kind = "missing" if described.kind in PUBLIC else "no labels"
            add(kind, paths, "has no labels; it can be used for detection, not for training")
        usable = replace(paths, labels=None) if label_fault else paths
        recordings.append(_make_recording(described.kind, usable, head, mapped, sensor, scale))
    findings += missing_recordings(described.kind, listed, least_share=0.5)
    protocol = public_kind(sensor) or "custom" if is_rvt else described.protocol
    first = recordings[0]
    facts = first.class_map.names, first.sensor, first.downscale, tuple(recordings), described.kind, protocol
    return Dataset(described.name, described.root, *facts, tuple(findings))


def missing_recordings(
    kind: str, recordings: Iterable[RecordingPaths | manifests.PreparedRecording], least_share: float = 0.0
) -> Iterator[Finding]:
    """Splits of a public dataset that lack recordings; one with less than ``least_share`` of them is a sample."""
    counts = Counter(each.split for each in recordings)
    for split, number in EXPECTED_RECORDINGS.get(kind, {}).items():
        there = counts[split]
        if least_share * number <= there < number:
            yield Finding("missing", f"{split}: {number - there} of {number} published recordings are missing", split)


def _make_recording(
    kind: str, paths: RecordingPaths, head: FileHead, mapped: ClassMap, sensor: Sensor, downscale: int
) -> LabelledRecording:
    return (RvtSequence if kind == "rvt" else LabelledRecording)(
        name=paths.name,
        split=paths.split,
        events_file=paths.events,
        label_file=paths.labels,
        class_map=mapped,
        full_sensor=sensor,
        downscale=downscale,
        truth_file=paths.truth,
        event_options=paths.options if head.sensor else paths.options._replace(sensor=sensor),
        clock=paths.clock,
        known_span=head.span,
    )


def _read_heads(listed: Sequence[RecordingPaths], kind: str) -> list[tuple[FileHead | str, str]]:
    """For each recording the head of its events, or why they cannot be read; and why its labels cannot be read."""

    def read(paths: RecordingPaths) -> tuple[FileHead | str, str]:
        label_fault = "" if paths.labels is None else box_file_fault(paths.labels)
        label_fault = f"{paths.labels}: {label_fault}" if label_fault else ""
        try:
            if kind == "rvt":
                sequence = open_sequence(paths)
                return FileHead(sequence.full_sensor, sequence.span), label_fault
            return read_head(paths.events, paths.options), label_fault
        except FateError as error:
            if kind == "rvt" and isinstance(error, MissingDependencyError):
                raise  # no sequence can be read without it
            return str(error), label_fault

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read, listed))


def _drop_duplicates(recordings: Sequence[RecordingPaths], findings: list[Finding]) -> list[RecordingPaths]:
    """Keep one of the recordings that share a label file, such as ``drive_td.dat`` and ``drive_td.dat.h5``."""
    owners: dict[Path, RecordingPaths] = {}
    kept = []
    for paths in sorted(recordings, key=lambda each: (each.events.suffix.lower() != ".dat", each.name)):
        if paths.labels is not None and paths.labels in owners:
            other = owners[paths.labels].name
            sentence = f"{paths.name}: left out: it has the same labels as {other}, which is used"
            findings.append(Finding("twice", sentence, paths.split))
            continue
        if paths.labels is not None:
            owners[paths.labels] = paths
        kept.append(paths)
    return sorted(kept, key=lambda each: each.name)


def _choose_sensor(described: DatasetFiles, sensors: Sequence[Sensor | None], findings: list[Finding]) -> Sensor:
    """The sensor of the dataset: the expected one if any file has it or no file says, else the most frequent one."""
    sizes = Counter(sensor for sensor in sensors if sensor is not None)
    if described.sensor is not None and (not sizes or described.sensor in sizes):
        return described.sensor
    if not sizes:
        raise FateError(
            f"{described.root}: no recording says how large its sensor is; pass sensor=(height, width), or write"
            " sensor: WIDTHxHEIGHT into the YAML of the dataset"
        )
    sensor = sizes.most_common(1)[0][0]
    if described.sensor is not None:
        findings.append(Finding("other", f"its recordings are {sensor}, while {described.kind} is {described.sensor}"))
    return sensor


def _choose_classes(
    described: DatasetFiles, requested: Classes | None, label_files: Sequence[Path | None], sensor: Sensor
) -> ClassMap:
    """The classes of the dataset, or those of them that the user asked for by name."""
    where = str(described.source or described.root)
    if isinstance(requested, Mapping):
        return class_map(requested)
    public = public_kind(sensor) if described.kind == "rvt" else described.kind
    if public is None and requested is None:
        raise FateError(f"{where}: its histograms are of a {sensor} sensor, neither Gen1 nor 1Mpx; pass classes=[...]")
    if described.kind == "rvt" or public in PUBLIC:
        return class_map(requested, public, where)
    if described.classes is not None:
        known = class_map(described.classes)
        return known if requested is None else known.select(requested, where)
    names, ids_of_files = _sample_labels(label_files, sensor)
    if names is not None and requested is not None:
        if not {plain(name) for name in checked_names(requested)} <= {plain(name) for name in names}:
            names, _ = _sample_labels(label_files, sensor, len(label_files))  # another file may have the name
        return class_map(names).select(requested, where)
    if names is not None or requested is not None:  # without names in the files, the list gives each id one
        return class_map(names if requested is None else requested)
    ids = set().union(*ids_of_files)
    if not ids:
        return class_map(())
    raise FateError(
        f"{where}: its labels have class ids ({', '.join(map(str, sorted(ids)[:10]))}) and no names; pass"
        " classes=[...], or write one name a line into classes.txt in that folder"
    )


def _sample_labels(
    files: Sequence[Path | None], sensor: Sensor, number: int = SAMPLED_LABELS
) -> tuple[tuple[str, ...] | None, list[set[int]]]:
    """Read ``number`` of the label files for their class names and ids.

    Returns the class names of the files, None if no file has names, and the ids that occur in each file. Names of the
    first file come first; names that differ only in spelling occur once.
    """
    existing = [file for file in files if file is not None]
    step = max(1, len(existing) // max(number, 1))
    first: tuple[str, ...] | None = None
    others: dict[str, str] = {}
    ids = list[set[int]]()
    for file in existing[::step][:number]:
        try:
            labels = read_box_file(file, sensor)
        except FateError:
            continue  # reported when the labels of its recording are read
        first = first or labels.classes
        others |= {plain(name): name for name in labels.classes or ()}
        ids.append(set(labels.class_id.tolist()))
    if first is None or number <= SAMPLED_LABELS:
        return first, ids
    own = {plain(name) for name in first}
    return (*first, *(name for key, name in others.items() if key not in own)), ids


# ---- what ``fate prepare`` has written --------------------------------------------------------------------------


def _changes(root: Path, entry: manifests.PreparedRecording) -> Iterator[Finding]:
    """A fault for each file of a recording that is missing or of another size than when the dataset was prepared."""
    for name, state in entry.files.items():
        try:
            size = (root / name).stat().st_size
        except OSError:
            yield Finding("missing", f"{entry.name}: {name} is missing since the dataset was prepared", entry.split)
            continue
        if size != state.bytes:
            sentence = f"{entry.name}: {name} had {state.bytes} bytes when it was prepared, and has {size} now"
            yield Finding("missing", f"{sentence}; get it again, or run fate prepare again", entry.split)


def open_prepared(
    manifest: manifests.Manifest, kind: str | None = None, classes: Classes | None = None, downscale: int | None = None
) -> Dataset:
    """Open a dataset from the manifest of ``fate prepare``; its files are only asked for their sizes.

    The other arguments are those of ``open_dataset``; ``kind`` is refused if the dataset was prepared as another one.
    """
    content = manifest.parse(manifests.PreparedDataset)
    # the absolute path, or the path relative to the manifest if both were moved
    moved = os.path.normpath(manifest.path.parent / content.source.from_here)
    root = next((Path(path) for path in (content.source.path, moved) if os.path.isdir(path)), None)
    if root is None:
        raise FateError(
            f"{manifest.path}: was prepared from {content.source.path}, which does not exist; bring it back, or run"
            " fate prepare again with the folder where it is now"
        )
    findings = list(content.faults)
    if not content.finished:
        known = len(content.recordings)
        sentence = f"{manifest.path}: fate prepare did not finish, and knows {known} recordings; run it again"
        findings.append(Finding("missing", sentence))
    usable, sensor = [], content.sensor
    for entry in content.recordings:
        if entry.usable:
            changes = list(_changes(root, entry))
            findings += changes
            usable += [] if changes else [entry]
    if sensor is None or not usable:
        raise FateError(f"{manifest.path}: lists no usable recording; see its faults, or prepare it again")
    if kind not in (None, content.kind):
        raise FateError(f"{manifest.path}: was prepared as {content.kind}, and kind={kind!r} was given; leave it out")
    if content.kind == "rvt" and downscale not in (None, usable[0].downscale):
        raise FateError(
            f"{manifest.path}: was prepared for histograms divided by {usable[0].downscale}; leave downscale out"
        )
    public = public_kind(sensor)
    mapped = class_map(classes, public, str(manifest.path))
    recordings = []
    for entry in usable:
        labels = root / entry.labels if entry.labelled and entry.labels else None
        truth = root / entry.truth if entry.truth else None
        paths = RecordingPaths(entry.name, entry.split, root / entry.events, labels, truth)
        head = FileHead(sensor if entry.says_sensor else None, Span(entry.start_us, entry.end_us, entry.num_events))
        scale = entry.downscale if content.kind == "rvt" else downscale or PUBLIC[content.kind].downscale
        recording = _make_recording(content.kind, paths, head, mapped, sensor, scale)
        if entry.compact_bytes and scale == PUBLIC[content.kind].downscale:
            compact = compact_path(manifest.path.parent, entry.name)
            if compact.is_file() and compact.stat().st_size == entry.compact_bytes:
                recording = replace(recording, compact_file=compact)
            else:
                sentence = f"{entry.name}: its compact file is missing or changed; run fate prepare --compact again"
                findings.append(Finding("compact", sentence, entry.split))
        recordings.append(recording)
    protocol = content.kind if content.kind in PUBLIC else public or "custom"
    first = recordings[0]
    facts = mapped.names, first.sensor, first.downscale, tuple(recordings), content.kind, protocol
    return Dataset(content.name, root, *facts, tuple(findings), labels_checked=True)
