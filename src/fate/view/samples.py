"""A picture of labels and predictions in single windows, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fate.boxes.labels import Labels
from fate.data.clips import CANONICAL_US
from fate.data.dataset import Dataset
from fate.data.rvt_layout import RvtSequence
from fate.evaluation.evaluate import AtRate
from fate.events.events import Events
from fate.view.drawing import draw_boxes, draw_events, enlargement, side_by_side

RECORDINGS = 3  # in a picture
THRESHOLD = 0.3  # score of the predictions that are drawn
EVENTS_US = 20_000  # events of this time before a label are drawn
SETTLED_US = 500_000  # windows after this time are preferred, because the state is empty at the start


def draw_samples(at: AtRate, dataset: Dataset, path: Path) -> None:
    """Draw labels and predictions in the window with most boxes of a few recordings, and write the picture."""
    rows = []
    for recording in dataset.labelled[:RECORDINGS]:
        labels, predicted = recording.labels, at.run.predictions.get(recording.name) if at.run else None
        if predicted is None or not len(labels):
            continue
        times, counts = np.unique(labels.t_us, return_counts=True)
        late = times >= recording.start_us + SETTLED_US
        chosen = np.where(late, counts, 0) if late.any() else counts
        time = int(times[np.argmax(chosen)])
        known_us = predicted.labelled_us
        near = known_us[np.argmin(np.abs(known_us - time))] if len(known_us) else None
        factor = enlargement(recording.sensor)
        picture = draw_events(_events_before(recording, time), factor=factor)
        truth = _boxed(picture, labels.at(time), dataset, factor, with_scores=False)
        found = picture if near is None else _boxed(picture, predicted.at(int(near)), dataset, factor, with_scores=True)
        captions = [f"{recording.name} at {time / 1e6:.2f} s: labels", f"found at {at.hz:g} Hz"]
        rows.append(side_by_side([truth, found], captions))
    if rows:
        Image.fromarray(np.concatenate(rows)).save(path)


def _events_before(recording: Any, time_us: int) -> Events:
    """Return the events before a time; from an image, one event per non-zero pixel, of the more frequent polarity."""
    if not isinstance(recording, RvtSequence):
        with recording.open() as reader:
            events: Events = reader.read(time_us - EVENTS_US, time_us)
            return events
    images, _ = recording.read_images(time_us - CANONICAL_US, time_us)
    sensor = images.shape[2:]
    if not len(images):
        return Events.empty(sensor)
    off, on = images[-1].reshape(2, -1, *sensor).sum(axis=1, dtype=np.int64)
    y, x = np.nonzero(off + on)
    return Events(np.full(len(x), time_us - 1), x, y, (on > off)[y, x], sensor)


def _boxed(picture: Any, boxes: Labels, dataset: Dataset, factor: int, with_scores: bool) -> Any:
    chosen = np.flatnonzero(boxes.score >= THRESHOLD)
    names = [dataset.classes[number] for number in boxes.class_id[chosen]]
    texts = [f"{name} {score:.2f}" for name, score in zip(names, boxes.score[chosen], strict=True)]
    return draw_boxes(picture, boxes.boxes[chosen], labels=texts if with_scores else names,
                      class_ids=boxes.class_id[chosen].tolist(), scale=factor)  # fmt: skip
