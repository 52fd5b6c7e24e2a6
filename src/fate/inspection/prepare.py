"""``prepare`` checks every file of a public dataset once, builds the time indexes and writes a manifest.

Nothing is converted or copied, except that compact files can be written on request. Files that are missing or broken
are named, and the rest is used. A second run examines only files that have changed (size and time of change), also if
the first run was stopped.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fate.boxes.labels import Labels
from fate.data import manifests
from fate.data.box_files import Clock, box_file_fault, load_boxes, read_box_file
from fate.data.class_maps import PUBLIC, class_map, public_kind
from fate.data.compact_files import BYTES_PER_EVENT, compact_path, write_compact
from fate.data.findings import LACKING, Finding, box_findings, sentences
from fate.data.labelled_recording import EventOptions, LabelledRecording, check_recording, read_head
from fate.data.layout import RecordingPaths, find_recordings
from fate.data.manifests import FileState, PreparedRecording
from fate.data.opening import find_lonely_labels, missing_recordings, open_prepared
from fate.data.rvt_layout import LABELS, find_sequences, open_sequence
from fate.errors import FateError, FateWarning, MissingDependencyError
from fate.events.events import Sensor
from fate.files import open_regular
from fate.formats.recording import describe_tail
from fate.inspection.label_statistics import find_mismatches, label_statistics
from fate.json_files import whole_number
from fate.progress import Progress, ignore
from fate.text import format_table, grouped, plural
from fate.version import __version__

KINDS = (*PUBLIC, "rvt")
SPLITS_OR_NONE = ("train", "val", "test", None)
SAVE_EVERY_S = 30.0  # a run that is stopped loses at most this much work

CHECKED_FRAMES = 20  # labelled times of a recording at which boxes are compared with events
#: Faults of boxes that are reported; those that are normal in a scene without motion are not.
REPORTED_FAULTS = ("without events", "frozen", "no area", "twice", "outside the recording")

#: The figures of a recording that could not be read.
NOT_READ: dict[str, Any] = {
    **{"readable": False, "labelled": False, "sensor": None, "says_sensor": True, "downscale": 1},
    **{"start_us": 0, "end_us": 0, "num_events": 0, "labelled_times": 0, "boxes": {}, "faults": [], "files": {}},
}

#: Datasets of which only the total hours are published.
EXPECTED_HOURS: dict[str, float] = {"1mpx": 14.65}


@dataclass(frozen=True)
class Preparation:
    """The content of ``manifest.json``. Made by :func:`prepare`."""

    folder: Path
    document: dict[str, Any]

    @property
    def faults(self) -> tuple[str, ...]:
        """A sentence for each fault, with long lists of one kind cut short."""
        return sentences(Finding(**each) for each in self.document["faults"])

    @property
    def missing(self) -> tuple[str, ...]:
        """A sentence for each fault that makes the dataset incomplete."""
        return tuple(self.document["missing"])

    def text(self) -> str:
        """Everything as plain text: a table with a row for each split and one for all, then the faults."""
        totals = self.document["totals"]
        names = list(totals["all"]["boxes"])
        rows = [("split", "recordings", "usable", "labelled", "hours", "Mev", *names, "GB")]
        for split, total in totals.items():
            numbers = (grouped(total[name]) for name in ("recordings", "usable", "labelled"))
            boxes = (grouped(total["boxes"].get(name, 0)) for name in names)
            hours, millions = f"{total['seconds'] / 3600:.2f}", f"{total['events'] / 1e6:.1f}"
            rows.append((split, *numbers, hours, millions, *boxes, f"{total['bytes'] / 1e9:.2f}"))
        faults = [f"fault: {sentence}" for sentence in self.faults] or ["nothing is missing or broken"]
        if self.missing:
            faults.append(f"the dataset is incomplete: {len(self.missing)} of these faults leave something out")
        hashed = "" if self.document["hashed"] else ", without hashes"
        lines = [f"manifest written to {self.folder / manifests.MANIFEST}{hashed}"]
        sizes = [size for entry in self.document["recordings"] if (size := entry["compact_bytes"])]
        if sizes:
            size = f"{sum(sizes) / 1e9:.2f} GB in {self.folder / 'events'}"
            lines.append(f"compact files of {plural(len(sizes), 'recording')}: {size}")
        return "\n".join([format_table(rows), "", *faults, "", *lines])


def prepare(
    kind: str,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    workers: int | None = None,
    hashed: bool = True,
    compact: bool = False,
    progress: Progress | None = None,
    compacting: Progress | None = None,
) -> Preparation:
    """Check a public dataset and write a manifest, so that it opens at once and reads quickly.

    Args:
        kind: ``"gen1"``, ``"1mpx"`` or ``"rvt"``.
        source: the folder of the dataset, which is not changed.
        target: a folder for ``manifest.json``; :func:`fate.open_dataset` takes it in place of ``source``.
        workers: recordings that are examined in parallel; the default is one per core, at most 4.
        hashed: whether the SHA-256 of all files is computed.
        compact: whether compact files are written to ``target``: all events at the resolution of training, four bytes
            each, indexed by time. Training on a GPU then reads only these.
        progress: called with the bytes that are done and the total.
        compacting: called with the events that are written to compact files and the total.

    Example:
        >>> print(fate.prepare("gen1", "/data/gen1", "gen1-prepared").text())      # doctest: +SKIP
    """
    if kind not in KINDS:
        raise FateError(f"kind {kind!r} was given; expected one of {', '.join(KINDS)}")
    if compact and kind == "rvt":
        raise FateError("compact files were asked for; histograms have none: prepare the recordings themselves")
    threads = min(4, os.cpu_count() or 1) if workers is None else whole_number(workers, "workers", 1, 256)
    root, home = Path(os.path.abspath(source)), Path(os.path.abspath(target))
    recordings, findings = _find(kind, root)
    old = _earlier(kind, root, home)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FateError(f"{target}: no folder can be made there ({error.strerror}); choose another place") from None
    run = _Run(kind, root, home, hashed, old, findings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FateWarning)  # repairs of single recordings are among the faults
        run.go(recordings, threads, progress or ignore)
        if compact:
            return Preparation(home, write_compact_files(home, threads, compacting or ignore))
    return Preparation(home, run.document(finished=True))


def _find(kind: str, root: Path) -> tuple[Sequence[RecordingPaths], list[Finding]]:
    """The recordings or sequences of a dataset, and what is known to be missing."""
    if kind == "rvt":
        return find_sequences(root)
    recordings = find_recordings(root)
    if not root.is_dir():
        raise FateError(f"{root} is not a folder; give the folder of the dataset")
    return recordings, list(find_lonely_labels(root, recordings))


def _earlier(kind: str, root: Path, home: Path) -> dict[str, PreparedRecording]:
    """Entries of an earlier run by name; any other manifest is not replaced."""
    path = home / manifests.MANIFEST
    if not path.exists():
        return {}
    found = manifests.find_manifest(path)
    if found is None or found.format != manifests.PREPARED:
        raise FateError(f"{path}: is there already, and fate prepare did not write it; choose another folder")
    content = found.parse(manifests.PreparedDataset)
    if (content.kind, content.source.path) != (kind, str(root)):
        raise FateError(f"{path}: is of {content.kind} in {content.source.path}; choose another folder, or delete it")
    return {entry.name: entry for entry in content.recordings}


@dataclass
class _Run:
    """One run: examines recordings and keeps the manifest up to date."""

    kind: str
    root: Path
    home: Path
    hashed: bool
    old: dict[str, PreparedRecording]
    findings: list[Finding]
    done: dict[str, PreparedRecording] = field(default_factory=dict)

    def go(self, recordings: Sequence[RecordingPaths], threads: int, progress: Progress) -> None:
        """Examine all recordings; the manifest is written from time to time, and when the run ends or is stopped."""
        gone = sorted(set(self.old) - {paths.name for paths in recordings})
        self.findings += [
            Finding("missing", f"{name}: was there before and is missing now", self.old[name].split) for name in gone
        ]
        states: dict[str, dict[str, FileState]] = {}
        for paths in recordings:
            files = states[paths.name] = {}
            for path in recording_files(paths, self.kind):
                with suppress(OSError):  # deleted since it was listed: the examination reports it
                    found = path.stat()
                    state = FileState(bytes=found.st_size, mtime_ns=found.st_mtime_ns)
                    files[path.relative_to(self.root).as_posix()] = state
        sizes = {name: sum(state.bytes for state in files.values()) for name, files in states.items()}
        jobs = {paths.name: partial(self._one, paths, states[paths.name]) for paths in recordings}
        save = partial(self._save, finished=False)
        for name, entry in _run_in_threads(jobs, sizes, threads, save, progress):
            self.done[name] = entry
        self._save(finished=True)

    def _save(self, finished: bool) -> None:
        manifests.write_manifest(self.home, self.document(finished))

    def _one(self, paths: RecordingPaths, states: dict[str, FileState]) -> PreparedRecording:
        """The entry of a recording: that of an earlier run if nothing has changed since."""
        before = self.old.get(paths.name)
        if before is not None:
            then, now = (
                {name: (state.bytes, state.mtime_ns) for name, state in files.items()}
                for files in (before.files, states)
            )
            is_hashed = all(state.sha256 for state in before.files.values())
            is_same = then == now and (is_hashed or not self.hashed)
            if is_same and (self.kind == "rvt" or has_index(self.root, before, self.kind)):
                return before
        entry = examine(self.root, paths, self.kind)
        for name, state in states.items() if self.hashed else ():
            try:
                with open_regular(self.root / name) as file:
                    state.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            except (OSError, FateError):
                state.sha256 = None  # it cannot be read, which the examination reports
        entry.files = states
        return entry

    def document(self, finished: bool) -> dict[str, Any]:
        """The manifest of the recordings examined so far; ``finished`` if these are all."""
        entries = [self.done[name] for name in sorted(self.done)]
        published = PUBLIC[self.kind].sensor if self.kind in PUBLIC else None
        sizes = Counter((entry.sensor, entry.downscale) for entry in entries if entry.readable)
        sensor, downscale = sizes.most_common(1)[0][0] if sizes else (None, 1)
        if (published, 1) in sizes:
            sensor, downscale = published, 1
        findings = [fault for entry in entries for fault in entry.faults]
        if sensor is not None and published not in (None, sensor):
            findings.append(Finding("other", f"its recordings are {sensor}, while {self.kind} is {published}"))
        for entry in entries:
            entry.usable = entry.readable and (entry.sensor, entry.downscale) == (sensor, downscale)
            if entry.readable and not entry.usable:
                sentence = f"{entry.name}: left out: it is {entry.sensor}, the others {sensor}"
                findings.append(Finding("sensor", sentence, entry.split))
        parts = {split or "no split": [each for each in entries if each.split == split] for split in SPLITS_OR_NONE}
        totals = {name: self._total(part) for name, part in (*parts.items(), ("all", entries)) if part or name == "all"}
        faults = [*(self._missing(totals) if finished else ()), *self.findings, *findings]
        missing = [each.sentence for each in faults if each.kind in LACKING]
        return manifests.PreparedDataset(
            fate=__version__,
            kind=self.kind,
            name=self.root.name,
            source=manifests.SourceFolder(path=str(self.root), from_here=_relative(self.root, self.home)),
            finished=finished,
            complete=finished and not missing,
            missing=missing,
            hashed=self.hashed,
            sensor=sensor,
            totals=totals,
            faults=faults,
            recordings=entries,
        ).to_dict()

    def _total(self, entries: list[PreparedRecording]) -> dict[str, Any]:
        """Totals of some recordings."""
        boxes: Counter[str] = Counter(dict.fromkeys(PUBLIC[self.kind].ids if self.kind in PUBLIC else (), 0))
        for entry in entries:
            boxes.update(entry.boxes)
        return {
            "recordings": len(entries),
            "usable": sum(entry.usable for entry in entries),
            "labelled": sum(entry.usable and entry.labelled for entry in entries),
            "seconds": sum(entry.end_us - entry.start_us for entry in entries) / 1e6,
            "events": sum(entry.num_events for entry in entries),
            "boxes": dict(boxes),
            "files": sum(len(entry.files) for entry in entries),
            "bytes": sum(state.bytes for entry in entries for state in entry.files.values()),
        }

    def _missing(self, totals: dict[str, Any]) -> Iterator[Finding]:
        """Published recordings that are missing."""
        yield from missing_recordings(self.kind, self.done.values())
        hours = EXPECTED_HOURS.get(self.kind)
        if hours is not None and totals["all"]["seconds"] < 3600 * (hours - 0.05):
            there = totals["all"]["seconds"] / 3600
            yield Finding("missing", f"{there:.2f} of {hours} published hours are here; the rest is missing")


Result = TypeVar("Result")


def _run_in_threads(
    jobs: Mapping[str, Callable[[], Result]],
    sizes: Mapping[str, int],
    threads: int,
    save: Callable[[], None],
    progress: Progress,
) -> Iterator[tuple[str, Result]]:
    """Run jobs in threads, and yield the name and the result of each as soon as it is done.

    Args:
        jobs: by name.
        sizes: the work of each job, for ``progress``, which is called with the work that is done and the total.
        threads: jobs that run in parallel.
        save: called from time to time, and if a job fails or the run is stopped.
        progress: called after each job.
    """
    done, total, saved = 0, max(sum(sizes.values()), 1), time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(job): name for name, job in jobs.items()}
        try:
            for future in as_completed(waiting):
                name = waiting[future]
                yield name, future.result()
                done += sizes[name]
                progress(done, total)
                if time.monotonic() - saved > SAVE_EVERY_S:
                    save()
                    saved = time.monotonic()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            save()
            raise


def _relative(root: Path, home: Path) -> str:
    """The path from the manifest to the dataset; empty if there is none, as on another drive."""
    try:
        return Path(os.path.relpath(root, home)).as_posix()
    except ValueError:
        return ""


# ---- the examination of one recording ---------------------------------------------------------------------------


def examine(root: Path, paths: RecordingPaths, kind: str) -> PreparedRecording:
    """Read a recording or sequence of the dataset in ``root`` completely, and compare its labels with it."""
    files = {
        name: None if path is None else path.relative_to(root).as_posix()
        for name, path in (("events", paths.events), ("labels", paths.labels), ("truth", paths.truth))
    }
    known: dict[str, Any] = {"name": paths.name, "split": paths.split, **files}
    entry = PreparedRecording(**known, **NOT_READ)
    try:
        if kind == "rvt":
            _examine_sequence(entry, paths)
        else:
            _examine_events(entry, paths, kind)
    except FateError as error:
        if kind == "rvt" and isinstance(error, MissingDependencyError):
            raise  # no sequence can be read without it
        entry.add_fault("damaged", f"left out: {error}")
    return entry


def _examine_events(entry: PreparedRecording, paths: RecordingPaths, kind: str) -> None:
    """Decode a recording of Gen1 or 1Mpx, store its time index, and compare its labels with its events."""
    entry.says_sensor = read_head(paths.events, EventOptions()).sensor is not None
    with _options(entry, kind).open(paths.events) as recording:
        check_recording(recording)
        sensor, index = recording.sensor, recording.index()
        entry.readable, entry.sensor = True, sensor
        entry.start_us, entry.end_us, entry.num_events = recording.start_us, recording.end_us, recording.num_events
        if outside := index.tally.outside:
            entry.add_fault("repaired", f"{outside} events outside {sensor} are dropped when it is read")
        if back := index.tally.back:
            entry.add_fault("repaired", f"time goes back {back} times; events are sorted when it is read")
        if tail := describe_tail(index.tail, recording.format):
            entry.add_fault("cut", f"ends early: {tail}; all before is read")

        def read(path: Path) -> Labels:
            if fault := box_file_fault(path):
                raise FateError(f"{path}: {fault}")
            return read_box_file(path, sensor)

        labels = _examine_labels(entry, sensor, paths.labels, read, kind)
        if labels is not None:
            counts = label_statistics(recording, labels, frames=CHECKED_FRAMES).counts
            wrong = [f"{counts[fault]} {fault}" for fault in REPORTED_FAULTS if counts[fault]]
            if wrong:
                entry.add_fault("boxes", f"some of {len(labels)} boxes look wrong: {', '.join(wrong)}")
            for note in find_mismatches(recording, labels, None):
                entry.add_fault("clock", note)


def _examine_sequence(entry: PreparedRecording, paths: RecordingPaths) -> None:
    """Check a sequence of histograms: shapes, times, number of images, the first and the last image, and the boxes."""
    sequence = open_sequence(paths)
    times, sensor = sequence.timestamps_us, sequence.full_sensor
    sequence.images(0, 1)
    sequence.images(len(times) - 1, len(times))  # the last one: downloads end early
    entry.readable, entry.sensor, entry.downscale = True, sensor, sequence.downscale
    entry.start_us, entry.end_us, entry.num_events = sequence.span

    def read(path: Path) -> Labels:
        labels, images = sequence.read_label_file(path), sequence.label_images
        if len(images) and not (images.min() >= 0 and images.max() < sequence.num_images):
            raise FateError(f"{path}: belongs to images up to {images.max()}, and there are {sequence.num_images}")
        return labels

    labels = _examine_labels(entry, sensor, paths.labels, read, public_kind(sensor))
    if labels is not None:
        apart = len(np.setdiff1d(labels.labelled_us, times[sequence.label_images]))
        if apart:
            entry.add_fault("clock", f"{apart} of {len(labels.labelled_us)} labelled times are at the end of no image")


def _options(entry: PreparedRecording, kind: str) -> EventOptions:
    return EventOptions(None if entry.says_sensor else PUBLIC[kind].sensor)


def _examine_labels(
    entry: PreparedRecording, sensor: Sensor, path: Path | None, read: Callable[[Path], Labels], kind: str | None
) -> Labels | None:
    """Read the label file by ``read``, count its boxes and name their faults; returns None without usable labels.

    ``kind`` is the public dataset that names the class ids; None if there is none.
    """
    if path is None:
        entry.add_fault("missing", "has no labels; it can be used for detection, not for training")
        return None
    try:
        raw = read(path)
        boxes = load_boxes(raw, str(path), class_map(None, kind), sensor, 1, Clock())
    except FateError as error:
        entry.add_fault("bad labels", f"its labels are not used: {error}")
        return None
    names = {number: name for name, number in PUBLIC[kind].ids.items()} if kind else {}
    ids, counts = np.unique(raw.class_id, return_counts=True)
    entry.labelled, entry.labelled_times = True, len(raw.labelled_us)
    entry.boxes = {names.get(i, f"id {i}"): n for i, n in zip(ids.tolist(), counts.tolist(), strict=True)}
    if kind is not None:
        entry.faults += box_findings(entry.name, entry.split, boxes)
    return raw


def has_index(root: Path, entry: PreparedRecording, kind: str) -> bool:
    """Whether an unchanged recording can still be read; its time index is built again if it is gone."""
    if not entry.readable:
        return True
    try:
        with _options(entry, kind).open(root / entry.events) as recording:
            recording.index()
    except FateError:
        return False
    return True


# ---- files ------------------------------------------------------------------------------------------------------


def recording_files(paths: RecordingPaths, kind: str) -> list[Path]:
    """All files of a recording or sequence that exist."""
    labels, folder = paths.labels, paths.events.parent
    others = [labels, paths.truth]
    if kind == "rvt":
        others += [folder / "timestamps_us.npy", folder / "objframe_idx_2_repr_idx.npy"]
        others.append(folder.parent.parent / LABELS / "timestamps_us.npy")
    elif labels is not None:
        others.append(labels.with_name(f"{labels.stem}_times.npy"))
    return [paths.events, *(path for path in others if path and path.is_file())]


# ---- compact files: events at the resolution of training, four bytes each ---------------------------------------


def write_compact_files(home: Path, threads: int, progress: Progress) -> dict[str, Any]:
    """Write the compact file of each usable recording that has none, and enter it in the manifest, which is returned.

    Args:
        home: folder of the manifest.
        threads: recordings that are written in parallel.
        progress: called with the number of events that are written, and the total.
    """
    manifest = manifests.find_manifest(home)
    if manifest is None:
        raise FateError(f"{home}: has no manifest; run fate prepare first")
    content = manifest.parse(manifests.PreparedDataset)
    entries = {entry.name: entry for entry in content.recordings}
    missing = [each for each in open_prepared(manifest).recordings if each.compact_file is None]
    sizes = {each.name: each.num_events for each in missing}
    needed, free = BYTES_PER_EVENT * sum(sizes.values()), shutil.disk_usage(home).free
    if needed > free:
        raise FateError(
            f"{home}: its disk has {free / 1e9:.1f} GB left, and the compact files need {needed / 1e9:.1f} GB; make"
            " room, or choose another folder. The dataset itself can be used without them"
        )
    progress(0, max(sum(sizes.values()), 1))

    def save() -> None:
        manifests.write_manifest(home, content.to_dict())

    jobs = {each.name: partial(_write_compact, home, each) for each in missing}
    for name, num_bytes in _run_in_threads(jobs, sizes, threads, save, progress):
        entries[name].compact_bytes = num_bytes
    save()
    return content.to_dict()


def _write_compact(home: Path, recording: LabelledRecording) -> int:
    """Write one compact file, and return its size in bytes."""
    path = compact_path(home, recording.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with recording.open() as reader:
        write_compact(path, reader.read, recording.sensor, *recording.span)
    return path.stat().st_size
