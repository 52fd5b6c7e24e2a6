"""``prepare`` checks every file of a public dataset once, builds the time indexes and writes a manifest.

Nothing is converted or copied. Files that are missing or broken are named, and the rest is used. A second run examines
only files that have changed (size and time of change), also if the first run was stopped.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fate.data.class_maps import PUBLIC
from fate.data.findings import LACKING, Finding, sentences
from fate.data.layout import RecordingPaths, find_recordings
from fate.data.manifests import (
    MANIFEST,
    PREPARED,
    FileState,
    PreparedDataset,
    PreparedRecording,
    SourceFolder,
    find_manifest,
    write_manifest,
)
from fate.data.opening import PUBLIC_SETS
from fate.data.rvt_layout import find_sequences
from fate.errors import FateError, FateWarning
from fate.inspection import examination
from fate.progress import Progress, ignore
from fate.text import format_table, grouped
from fate.version import __version__

KINDS = (*PUBLIC_SETS, "rvt")
SPLITS_OR_NONE = ("train", "val", "test", None)
SAVE_EVERY_S = 30.0  # a run that is stopped loses at most this much work

#: Recordings in each split as published. The Gen1 paper counts 1460 for training; the files that are given out are
#: 1459 (prophesee-automotive-dataset-toolbox, issue 42).
EXPECTED_RECORDINGS: dict[str, dict[str, int]] = {"gen1": {"train": 1459, "val": 429, "test": 470}}
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
        written = f"manifest written to {self.folder / MANIFEST}{hashed}"
        return "\n".join([format_table(rows), "", *faults, "", written])


def prepare(
    kind: str,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    workers: int | None = None,
    hashed: bool = True,
    progress: Progress | None = None,
) -> Preparation:
    """Check a public dataset and write a manifest, so that it opens at once and reads quickly.

    Args:
        kind: ``"gen1"``, ``"1mpx"`` or ``"rvt"``.
        source: the folder of the dataset, which is not changed.
        target: a folder for ``manifest.json``; :func:`fate.open_dataset` takes it in place of ``source``.
        workers: recordings that are examined in parallel; the default is one per core, at most 4.
        hashed: whether the SHA-256 of all files is computed.
        progress: called with the bytes that are done and the total.

    Example:
        >>> print(fate.prepare("gen1", "/data/gen1", "gen1-prepared").text())      # doctest: +SKIP
    """
    if kind not in KINDS:
        raise FateError(f"kind {kind!r} was given; expected one of {', '.join(KINDS)}")
    threads = min(4, os.cpu_count() or 1) if workers is None else workers
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 256:
        raise FateError(f"workers {workers!r} was given; expected a whole number from 1 to 256")
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
    return Preparation(home, run.document(finished=True))


def _find(kind: str, root: Path) -> tuple[Sequence[RecordingPaths], list[Finding]]:
    """The recordings or sequences of a dataset, and what is known to be missing."""
    if kind == "rvt":
        return find_sequences(root)
    recordings = find_recordings(root)
    if not root.is_dir():
        raise FateError(f"{root}: is not a folder; give the folder of the dataset")
    known = {paths.labels for paths in recordings}
    lonely = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*_bbox.npy")) if path not in known]
    return recordings, [Finding("missing", f"{name}: the recording of these labels is missing") for name in lonely]


def _earlier(kind: str, root: Path, home: Path) -> dict[str, PreparedRecording]:
    """Entries of an earlier run by name; any other manifest is not replaced."""
    path = home / MANIFEST
    if not path.exists():
        return {}
    found = find_manifest(path)
    if found is None or found.format != PREPARED:
        raise FateError(f"{path}: is there already, and fate prepare did not write it; choose another folder")
    content = found.parse(PreparedDataset)
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
        states = {
            paths.name: examination.file_states(self.root, examination.recording_files(paths, self.kind))
            for paths in recordings
        }
        sizes = {name: sum(state.bytes for state in files.values()) for name, files in states.items()}
        total, finished, saved = sum(sizes.values()), 0, time.monotonic()
        with ThreadPoolExecutor(threads) as pool:
            waiting = {pool.submit(self._one, paths, states[paths.name]): paths.name for paths in recordings}
            try:
                for future in as_completed(waiting):
                    name = waiting[future]
                    self.done[name] = future.result()
                    finished += sizes[name]
                    progress(finished, max(total, 1))
                    if time.monotonic() - saved > SAVE_EVERY_S:
                        write_manifest(self.home, self.document(finished=False))
                        saved = time.monotonic()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                write_manifest(self.home, self.document(finished=False))
                raise
        write_manifest(self.home, self.document(finished=True))

    def _one(self, paths: RecordingPaths, states: dict[str, FileState]) -> PreparedRecording:
        """The entry of a recording: that of an earlier run if nothing has changed since."""
        before = self.old.get(paths.name)
        same = before is not None and examination.is_unchanged(before.files, states, self.hashed)
        if before is not None and same and (self.kind == "rvt" or examination.has_index(self.root, before, self.kind)):
            return before
        entry = examination.examine(self.root, paths, self.kind)
        if self.hashed:
            examination.hash_files(self.root, states)
        entry.files = states
        return entry

    def document(self, finished: bool) -> dict[str, Any]:
        """The manifest of the recordings examined so far; ``finished`` if these are all."""
        entries = [self.done[name] for name in sorted(self.done)]
        published = PUBLIC_SETS[self.kind].sensor if self.kind in PUBLIC_SETS else None
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
        return PreparedDataset(
            fate=__version__,
            kind=self.kind,
            name=self.root.name,
            source=SourceFolder(path=str(self.root), from_here=_relative(self.root, self.home)),
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
        boxes: Counter[str] = Counter(dict.fromkeys(PUBLIC.get(self.kind, {}), 0))
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
        for split, number in EXPECTED_RECORDINGS.get(self.kind, {}).items():
            there = totals.get(split, {"recordings": 0})["recordings"]
            if there < number:
                yield Finding(
                    "missing", f"{split}: {number - there} of {number} published recordings are missing", split
                )
        hours = EXPECTED_HOURS.get(self.kind)
        if hours is not None and totals["all"]["seconds"] < 3600 * (hours - 0.05):
            there = totals["all"]["seconds"] / 3600
            yield Finding("missing", f"{there:.2f} of {hours} published hours are here; the rest is missing")


def _relative(root: Path, home: Path) -> str:
    """The path from the manifest to the dataset; empty if there is none, as on another drive."""
    try:
        return Path(os.path.relpath(root, home)).as_posix()
    except ValueError:
        return ""
