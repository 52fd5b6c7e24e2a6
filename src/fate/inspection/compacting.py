"""Write the compact files of a prepared dataset: its events at the resolution of training, four bytes each."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fate.data import manifests
from fate.data.compact_files import BYTES_PER_EVENT, compact_path, write_compact
from fate.data.labelled_recording import LabelledRecording
from fate.data.opening import open_prepared
from fate.errors import FateError
from fate.progress import Progress

SAVE_EVERY_S = 30.0  # a run that is stopped loses at most this much of the manifest


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
    _refuse_full_disk(home, missing)
    total, done, saved = max(sum(each.num_events for each in missing), 1), 0, time.monotonic()
    progress(0, total)
    with ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(_write, home, recording): recording for recording in missing}
        try:
            for future in as_completed(waiting):
                recording = waiting[future]
                entries[recording.name].compact_bytes = future.result()
                done += recording.num_events
                progress(done, total)
                if time.monotonic() - saved > SAVE_EVERY_S:
                    manifests.write_manifest(home, content.to_dict())
                    saved = time.monotonic()
        finally:
            pool.shutdown(cancel_futures=True)
            manifests.write_manifest(home, content.to_dict())
    return content.to_dict()


def _write(home: Path, recording: LabelledRecording) -> int:
    """Write one compact file, and return its size in bytes."""
    path = compact_path(home, recording.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with recording.open() as reader:
        write_compact(path, reader.read, recording.sensor, *recording.span)
    return path.stat().st_size


def _refuse_full_disk(home: Path, recordings: Sequence[LabelledRecording]) -> None:
    needed = BYTES_PER_EVENT * sum(each.num_events for each in recordings)
    free = shutil.disk_usage(home).free
    if needed > free:
        raise FateError(
            f"{home}: its disk has {free / 1e9:.1f} GB left, and the compact files need {needed / 1e9:.1f} GB; make"
            " room, or choose another folder. The dataset itself can be used without them"
        )
