"""A short video of each split: what the sensor gives, and the exact boxes on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from fate.boxes.label_files import read_labels
from fate.formats.opening import open_recording
from fate.simulation.writing.manifest import Manifest, PreviewEntry, RecordingEntry, file_facts, preview_path
from fate.simulation.writing.recording_files import ENDINGS
from fate.view.drawing import Picture, draw_boxes, draw_events, enlargement
from fate.view.video import VideoWriter

FPS = 25
FRAME_US = 1_000_000 // FPS
WINDOW_US = 50_000  # events of this time before a frame are in it
LONGEST_US = 10_000_000


def shown_in(split: str, manifest: Manifest) -> list[RecordingEntry]:
    """Return the recordings that the preview of a split shows: the first ones, up to ten seconds."""
    entries = [entry for entry in manifest.recordings if entry.split == split]
    return entries[: -(-LONGEST_US // manifest.request.duration_us)]


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
                names = [(truth.classes or ())[each] for each in rows.class_id]
                picture = draw_boxes(
                    picture, rows.boxes, labels=names, class_ids=rows.class_id, thickness=max(1, factor), scale=factor
                )
            yield picture
