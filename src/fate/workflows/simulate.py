"""Simulated datasets: labelled recordings in the layout of the public ones, as many as wanted, from a seed.

    manifest = simulate("drives", recordings=12, seconds=10, profile="gen1", seed=0)

A dataset is a folder of ``train|val|test/<name>_td.dat`` with ``<name>_bbox.npy`` and ``<name>_truth.npz`` beside it, a
``preview.mp4`` in each split, and ``manifest.json``. A run that was stopped continues when it is started
again: recordings in the manifest are kept, all others are made again, and on a CPU the bytes are the same.

A shard of a dataset is made in a hidden folder of it, ``.shard-1of4``, which is such a dataset itself. The next run
without a shard moves its recordings into the dataset. So shards may run at the same time, also on several machines.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fate.boxes.drawing import Picture, draw_events, draw_labels, enlargement
from fate.boxes.label_files import read_labels
from fate.data.manifests import MANIFEST
from fate.errors import FateError, warn
from fate.formats.opening import open_recording
from fate.processes import lock_folder
from fate.progress import Progress
from fate.simulation.art.catalogue import SPLITS, Split
from fate.simulation.writing import request as requests
from fate.simulation.writing.manifest import (
    AnyManifest,
    Manifest,
    PreviewEntry,
    RecordingEntry,
    file_facts,
    load_manifest,
    preview_path,
)
from fate.simulation.writing.recording_files import ENDINGS, RecordingFiles, box_times, clear_leftovers, preset_values
from fate.simulation.writing.request import SHARES, RecordingJob, Request
from fate.view.video import VideoWriter
from fate.workflows.spread import beside, open_spread, run_shards

if TYPE_CHECKING:  # torch takes seconds to load, and refusing bad arguments should not wait for it
    from fate.simulation.render.scene import RecordedPiece

#: Previews: pictures a second, time between two pictures, time whose events a picture shows, and longest time in µs.
FPS, FRAME_US, WINDOW_US, LONGEST_US = 25, 40_000, 50_000, 10_000_000


def simulate(
    folder: str | os.PathLike[str],
    recordings: int = 12,
    seconds: float = 10.0,
    profile: str = "gen1",
    seed: int = 0,
    *,
    device: str = "cpu",
    threads: int | None = None,
    preview: bool = True,
    shares: tuple[float, float, float] = SHARES,
    at_rest: float = 0.0,
    shard: tuple[int, int] = (1, 1),
    devices: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Make a dataset, or continue one that was begun with the same arguments.

    Args:
        folder: a new or empty folder, or one with such a dataset. Its manifest is rewritten after each recording.
        recordings: how many in all splits together; a larger number than before adds recordings.
        seconds: length of each, up to 3600. Labels of ``gen1`` come at 1, 2 or 4 Hz: give 1 or more.
        profile: ``"gen1"`` (304 × 240, cars and pedestrians), ``"1mpx"`` (1280 × 720, two-wheelers too),
            ``"park"`` (240 × 180, vans, cyclists and dogs), or ``"mixed"`` (every recording with a sensor of its own,
            in a frame of 320 × 240; the classes of ``"1mpx"``).
        seed: of the dataset; the same seed gives the same bytes on CPUs.
        device: ``"cpu"``, or ``"cuda"`` to simulate many recordings side by side.
        threads: CPU threads; all cores by default. The bytes do not depend on it.
        preview: whether each split gets a video of up to ten seconds.
        shares: of the recordings for train, val and test; from three recordings on, each with a share has one.
        at_rest: share of the recordings whose camera stands beside the street instead of driving; 0 to 1.
            ``mixed`` draws it for each recording.
        shard: (i, n): only every n-th recording, from the i-th on, without previews. When all shards are done, a call
            without a shard brings them together.
        devices: several of them, which share the recordings, in place of ``device`` and ``shard``: ``"all"`` GPUs
            of this machine, ``"cuda:0,cuda:1"``, ``"cpu,cpu"``, or ``"slurm:8"`` for eight jobs of a SLURM cluster.
        slurm: options of ``sbatch`` for these jobs, such as ``{"partition": "gpu", "time": 600}``.
        progress: called with the simulated seconds so far and in total.

    Returns:
        The manifest of the finished dataset, or of the shard.
    """
    request = Request(profile, seed, seconds, recordings, shares, at_rest)
    requests.check_switch("preview", preview)
    requests.check_machine(device if devices is None else "cpu", threads)
    home = requests.check_folder(folder)
    finished = {entry.index for entry in _existing_manifest(home, request).recordings}
    number, count = shard
    if not 1 <= number <= count:
        raise FateError(f"shard {number}/{count} was given; expected 1/{count} to {count}/{count}")
    own = home if count == 1 else home / f".shard-{number}of{count}"
    done = finished | _finished_in_shards(home, request)
    num_done = len(done) if count == 1 else len(_existing_manifest(own, request).recordings)
    requests.check_room(home, request, -(-request.recordings // count) - num_done)
    jobs = request.jobs()
    if devices is not None:
        spread = open_spread(devices, slurm)
        make = partial(
            simulate, home, recordings, seconds, profile, seed, device=spread.device,
            threads=threads or spread.threads, shares=shares, at_rest=at_rest,
        )  # fmt: skip
        all_shards = spread.shards(len(jobs))
        missing = [(i, n) for i, n in all_shards if any(job.index not in done for job in jobs[i - 1 :: n])]
        run_shards(make, missing, spread, beside(home), progress)
    if count > 1:
        jobs = [job for job in jobs[number - 1 :: count] if job.index not in finished]
        home, preview = own, False
    make_folder(home)
    with lock_folder(home, wait_s=0) as locked:
        if not locked:
            warn(f"{home}: this disk cannot be locked; start one run at a time on it")
        manifest = _existing_manifest(home, request)
        if count == 1:
            manifest = _with_shards(home, manifest)
        clear_leftovers(home, manifest)
        manifest.save(home)  # first of all: a run that stops early has to be recognised
        for split in sorted({job.split for job in jobs}):
            make_folder(home / split)
        run = _DatasetRun(home, manifest, jobs, device, progress)
        try:
            run.make_recordings(threads)
            for split in SPLITS if preview else ():
                run.manifest = with_preview(home, run.manifest, split)
        except (FateError, OSError) as error:
            text = describe_fault(error, home)
            kept = f"{len(run.manifest.recordings)} of {len(jobs)} recordings"
            raise FateError(f"{text}; {kept} are finished and kept, and the same command goes on from there") from error
        finally:
            run.discard_unfinished()
        return run.manifest


class _DatasetRun:
    """One run: writes the pieces of all recordings and keeps the manifest up to date."""

    def __init__(
        self, home: Path, manifest: Manifest, jobs: list[RecordingJob], device: str, progress: Progress | None
    ) -> None:
        self.home, self.manifest, self.device, self.progress = home, manifest, device, progress
        self.all_jobs = jobs
        finished = {entry.index for entry in manifest.recordings}
        self.jobs = [job for job in self.all_jobs if job.index not in finished]
        self._open: dict[int, RecordingFiles] = {}
        self._done_us = dict.fromkeys(finished, manifest.request.duration_us)

    def make_recordings(self, threads: int | None) -> None:
        """Make the missing recordings. A separate thread writes a piece while the next one is simulated."""
        self._report()
        pieces = simulate_pieces(self.jobs, self.manifest.request, self.device, threads)
        with ThreadPoolExecutor(1, "dataset-writer") as writer, closing(pieces):
            written: Future[None] | None = None
            for piece in pieces if self.jobs else ():
                if written is not None:
                    written.result()
                written = writer.submit(self.write_piece, piece)
            if written is not None:
                written.result()

    def write_piece(self, piece: RecordedPiece) -> None:
        """Write a piece; ``piece.recording`` is an index into ``jobs``."""
        job = self.jobs[piece.recording]
        if job.index not in self._open:
            self._open[job.index] = RecordingFiles(self.home, job, piece.scene)
        self._open[job.index].take(piece)
        if piece.last:
            self._finish(job)
        elif len(piece.boxes.t_us):
            self._done_us[job.index] = int(piece.boxes.t_us[-1])
        self._report()

    def _finish(self, job: RecordingJob) -> None:
        files, manifest = self._open[job.index], self.manifest
        if manifest.classes != files.scene.classes:  # none yet, or those of a version without neutral boxes
            camera, frame = preset_values(manifest.request.profile), files.scene.frame
            manifest = replace(manifest, classes=files.scene.classes, sensor=(frame.height, frame.width), camera=camera)
        entries = [*manifest.recordings, files.finish(self.device, manifest.camera)]
        manifest = replace(manifest, recordings=tuple(sorted(entries, key=lambda entry: entry.index)))
        manifest.save(self.home)
        self.manifest = manifest
        del self._open[job.index]
        self._done_us[job.index] = manifest.request.duration_us

    def discard_unfinished(self) -> None:
        """Remove the files of recordings that are not finished."""
        for files in self._open.values():
            with suppress(OSError):  # the next run removes what cannot be removed now
                files.discard()

    def _report(self) -> None:
        if self.progress is not None:
            total = self.manifest.request.duration_us * len(self.all_jobs)
            self.progress(sum(self._done_us.values()) / 1e6, total / 1e6)


def simulate_pieces(
    jobs: Sequence[RecordingJob], request: Request, device: str, threads: int | None
) -> Generator[RecordedPiece, None, None]:
    """Simulate the recordings of ``jobs``."""
    from fate.simulation.camera.recorder import record_many  # noqa: PLC0415  (loads torch)
    from fate.simulation.render.scene import Scene  # noqa: PLC0415

    makers = [partial(Scene, job.seed, request.profile, job.split, request.seconds, job.at_rest) for job in jobs]
    yield from record_many(makers, box_times, device, threads)


def _shard_folders(home: Path) -> list[Path]:
    return sorted(path for path in home.glob(".shard-*of*") if path.is_dir())


def _finished_in_shards(home: Path, request: Request) -> set[int]:
    """The numbers of the recordings that shards have finished and that are not in the dataset yet."""
    return {entry.index for part in _shard_folders(home) for entry in _existing_manifest(part, request).recordings}


def _with_shards(home: Path, manifest: Manifest) -> Manifest:
    """Move the finished recordings of all shards into the dataset, and return its manifest with them."""
    for part in _shard_folders(home):
        with lock_folder(part, wait_s=0):  # refuses a shard that is being made
            found, known = _existing_manifest(part, manifest.request), {entry.index for entry in manifest.recordings}
            new = [entry for entry in found.recordings if entry.index not in known]
            for name in (name for entry in new for name in entry.files):
                make_folder((home / name).parent)
                os.replace(part / name, home / name)
            if new:
                facts = {name: getattr(found, name) for name in ("classes", "sensor", "camera")}
                entries = sorted([*manifest.recordings, *new], key=lambda entry: entry.index)
                manifest = replace(manifest, **facts, recordings=tuple(entries))
                manifest.save(home)
            shutil.rmtree(part)
    return manifest


def _existing_manifest(home: Path, request: Request) -> Manifest:
    """The manifest of what the folder already holds; raises if it holds something else."""
    known = load_manifest(home)
    if known is None:
        refuse_other_files(home)
        return Manifest(request)
    for name in ("profile", "seed", "seconds", "shares", "at_rest"):
        there, asked = getattr(known.request, name), getattr(request, name)
        if there != asked:
            raise FateError(
                f"{home}: holds a dataset with {name} {_plain(there)}, and {name} {_plain(asked)} was asked for; give"
                f" {_plain(there)} to go on with it, or another folder"
            )
    manifest = replace(known, request=request).still_there(home)
    beyond = [entry for entry in manifest.recordings if entry.index >= request.recordings]
    if beyond:
        raise FateError(
            f"{home}: holds recordings up to number {beyond[-1].index + 1}, and {request.recordings} were asked for;"
            f" finished ones are never removed: ask for {beyond[-1].index + 1} or more, or give another folder"
        )
    return manifest


def refuse_other_files(home: Path) -> None:
    """Raise if a folder without a manifest holds files."""
    try:
        names = [path.name for path in home.iterdir()] if home.is_dir() else []
    except OSError as error:
        raise FateError(f"{home}: cannot be looked into ({error.strerror}); give another folder") from None
    files = [name for name in names if not name.startswith(".") and name != "lost+found"]  # as on a fresh disk
    if files:
        raise FateError(
            f"{home}: holds {files[0]!r} and no {MANIFEST} of a simulated dataset; give a new or empty folder"
        )


def _plain(value: Any) -> str:
    return "/".join(f"{share:g}" for share in value) if isinstance(value, tuple) else f"{value}"


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, if they do not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parent = next(each for each in folder.absolute().parents if each.is_dir())
        raise FateError(
            f"{folder}: no folder can be made in {parent} ({error.strerror}); give one on a disk that can be written"
        ) from None


def describe_fault(error: FateError | OSError, folder: Path) -> str:
    """A fault of a run in words, with the file that the system names, or else the folder of the dataset."""
    return f"{error.filename or folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def shown_in(split: str, manifest: Manifest) -> list[RecordingEntry]:
    """Return the recordings that the preview of a split shows: the first ones, up to ten seconds."""
    shown, left_us = [], LONGEST_US
    for entry in manifest.recordings:
        if entry.split == split and left_us > 0:
            shown.append(entry)
            left_us -= round(entry.seconds * 1e6)
    return shown


def with_preview(home: Path, manifest: AnyManifest, split: Split) -> AnyManifest:
    """The manifest with the preview of a split, which is written if it is missing; warns if it cannot be written."""
    shown = shown_in(split, manifest)
    known = manifest.previews.get(split)
    if not shown or (known is not None and known.of == tuple(entry.name for entry in shown)):
        return manifest
    try:
        previews = manifest.previews | {split: make_preview(home, split, shown)}
    except FateError as error:
        warn(f"{split} has no preview: {error}")
        return manifest
    manifest = replace(manifest, previews={name: previews[name] for name in SPLITS if name in previews})
    manifest.save(home)
    return manifest


def make_preview(folder: Path, split: str, entries: Sequence[RecordingEntry]) -> PreviewEntry:
    """Write ``<split>/preview.mp4`` from finished recordings, at their real speed."""
    target = preview_path(folder, split)
    left = LONGEST_US // FRAME_US
    video: VideoWriter | None = None
    with ExitStack() as stack:
        for entry in entries:
            for frame in _frames(folder, entry, left):
                video = video or stack.enter_context(VideoWriter(target, FPS, frame.shape[:2]))
                video.write(frame)
                left -= 1
    return PreviewEntry(file_facts(target), tuple(entry.name for entry in entries))


def _frames(folder: Path, entry: RecordingEntry, most: int) -> Iterator[Picture]:
    """Pictures of one recording, 40 ms apart; one that is shorter than a window gives a single picture."""
    base = folder / entry.split / entry.name
    truth = read_labels(f"{base}{ENDINGS['truth']}")
    duration_us = round(entry.seconds * 1e6)
    times = list(range(WINDOW_US, duration_us + 1, FRAME_US)) or [duration_us]
    with open_recording(f"{base}{ENDINGS['events']}", cache=False) as recording:
        factor = enlargement(recording.sensor)
        for time in times[:most]:
            picture = draw_events(recording.read(time - WINDOW_US, time), factor=factor)
            index = int(np.searchsorted(truth.labelled_us, time, side="right")) - 1
            if index >= 0:  # boxes of the last labelled time; there is none in the first 5 ms
                rows = truth.at(int(truth.labelled_us[index]))
                picture = draw_labels(picture, rows, factor, thickness=max(1, factor))
            yield picture
