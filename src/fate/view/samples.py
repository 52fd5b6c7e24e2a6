"""Labels beside predictions in single windows, as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fate.boxes.labels import Labels
from fate.data.batches import ImageSource
from fate.data.clips import CANONICAL_US
from fate.data.dataset import Dataset
from fate.evaluation.evaluate import AtRate
from fate.events.events import Events
from fate.view.drawing import draw_boxes, draw_events, enlargement, side_by_side

#: Recordings shown in a picture, and the score from which a prediction is drawn.
SHOWN, DRAWN_FROM = 3, 0.3
#: Of the events drawn before a label, µs.
DRAWN_US = 20_000
#: From when on windows are shown, where there are such, µs.
SETTLED_US = 500_000


def draw_samples(at: AtRate, dataset: Dataset, path: Path) -> None:
    """Labels beside predictions in the window with most boxes of a few recordings, as a picture."""
    rows = []
    for recording in dataset.labelled[:SHOWN]:
        labels, said = recording.labels, at.run.predictions.get(recording.name) if at.run else None
        if said is None or not len(labels):
            continue
        times, counts = np.unique(labels.t_us, return_counts=True)
        late = times >= recording.start_us + SETTLED_US  # by then a memory knows something
        chosen = np.where(late, counts, 0) if late.any() else counts
        time = int(times[np.argmax(chosen)])
        near = said.labelled_us[np.argmin(np.abs(said.labelled_us - time))] if len(said.labelled_us) else None
        factor = enlargement(recording.sensor)
        picture = draw_events(_events_before(recording, time), factor=factor)
        truth = _boxed(picture, labels.at(time), dataset, factor, with_scores=False)
        found = picture if near is None else _boxed(picture, said.at(int(near)), dataset, factor, with_scores=True)
        captions = [f"{recording.name} at {time / 1e6:.2f} s: labels", f"found at {at.hz:g} Hz"]
        rows.append(side_by_side([truth, found], captions))
    if rows:
        Image.fromarray(np.concatenate(rows)).save(path)


def _events_before(recording: Any, time_us: int) -> Events:
    """What led to a time; of an image, an event where it counts any, of the polarity that it counts more of."""
    if not isinstance(recording, ImageSource):
        with recording.open() as reader:
            events: Events = reader.read(time_us - DRAWN_US, time_us)
            return events
    images, _ = recording.read_images(time_us - CANONICAL_US, time_us)
    sensor = images.shape[2:]
    if not len(images):
        return Events.empty(sensor)
    off, on = images[-1].reshape(2, -1, *sensor).sum(axis=1, dtype=np.int64)
    y, x = np.nonzero(off + on)
    return Events(np.full(len(x), time_us - 1), x, y, (on > off)[y, x], sensor)


def _boxed(picture: Any, boxes: Labels, dataset: Dataset, factor: int, with_scores: bool) -> Any:
    chosen = np.flatnonzero(boxes.score >= DRAWN_FROM)
    names = [dataset.classes[number] for number in boxes.class_id[chosen]]
    texts = [f"{name} {score:.2f}" for name, score in zip(names, boxes.score[chosen], strict=True)]
    return draw_boxes(picture, boxes.boxes[chosen], labels=texts if with_scores else names,
                      class_ids=boxes.class_id[chosen].tolist(), scale=factor)  # fmt: skip
