"""A detector made of the truth: boxes with errors that last, scores, misses, and clutter that comes and goes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fate.boxes.labels import Labels, LabelSource
from fate.densify.interpolation import interpolate

CLASSES, SENSOR = ("car", "pedestrian"), (240, 304)


def straight_truth(seconds: float = 3.0, seed: int = 0, count: int = 5) -> Labels:
    """Exact boxes at 200 Hz of objects that come, move with some acceleration, and go."""
    random = np.random.default_rng(seed)
    rows = []
    every = np.arange(5_000, round(seconds * 1e6) + 1, 5_000)
    for track in range(count):
        first, last = np.sort(random.uniform(0, seconds, 2)) * 1e6 if track else (0, seconds * 1e6)
        times = every[(every >= first) & (every <= last)]
        t = times / 1e6
        cx = random.uniform(60, 240) + random.uniform(-25, 25) * t + random.uniform(-25, 25) * t**2
        size = random.uniform(25, 60, 2)
        top = 20 + 40 * track
        keep = (cx > 40) & (cx < 264)
        x1, x2 = (cx - size[0] / 2)[keep], (cx + size[0] / 2)[keep]
        rows.append(
            np.stack([times[keep], x1, x1 * 0 + top, x2, x1 * 0 + top + size[1], x1 * 0 + track % 2, x1 * 0 + track])
        )
    t_us, x1, y1, x2, y2, classes, tracks = np.concatenate(rows, axis=1)
    columns = {"t_us": t_us.astype(np.int64), "x1": x1, "y1": y1, "x2": x2, "y2": y2,
               "class_id": classes.astype(int), "track_id": tracks.astype(int)}  # fmt: skip
    return Labels.from_unsorted(columns, labelled_us=every, classes=CLASSES, sensor=SENSOR)


def sparse(truth: Labels, every_us: int = 500_000) -> Labels:
    """What annotators would label."""
    times = truth.labelled_us[truth.labelled_us % every_us == 0]
    return Labels.concatenate([truth.at(int(time)) for time in times])


def seen(
    truth: Labels, times_us: NDArray[np.int64], seed: int = 0, error: float = 0.04, clutter: float = 2.0
) -> Labels:
    """Detections at these times; ``clutter`` false objects a second, which last 0.1 s on average."""
    random = np.random.default_rng(seed)
    exact = interpolate(truth, times_us)
    boxes, score = exact.boxes.astype(np.float64), np.zeros(len(exact))
    for track in np.unique(exact.track_id):
        rows = np.flatnonzero(exact.track_id == track)
        place, level = random.normal(size=4), random.normal()
        for row, dt in zip(rows, np.diff(exact.t_us[rows], prepend=0) / 1e6, strict=True):
            same = np.exp(-dt / 0.06)  # windows of 50 ms share their events: errors last
            place = same * place + np.sqrt(1 - same**2) * random.normal(size=4)
            level = same * level + np.sqrt(1 - same**2) * random.normal()
            score[row] = 1 / (1 + np.exp(-1.5 - 1.5 * level))
            boxes[row] += error * (1.5 - score[row]) * np.tile(boxes[row, 2:] - boxes[row, :2], 2) * place
    found = [(exact.t_us, boxes, exact.class_id, score)]
    for _ in range(random.poisson(clutter * (times_us[-1] - times_us[0]) / 1e6)):
        begin = random.uniform(times_us[0], times_us[-1])
        lives = times_us[(times_us >= begin) & (times_us <= begin + 1e6 * random.exponential(0.1))]
        corner = random.uniform([0, 0], [250, 180])
        place = np.tile(np.concatenate([corner, corner + random.uniform(15, 50, 2)]), (len(lives), 1))
        found.append((lives, place, np.full(len(lives), random.integers(2)), random.uniform(0.2, 0.9, len(lives))))
    t_us, boxes, classes, score = (np.concatenate(column) for column in zip(*found, strict=True))
    keep = score >= 0.1
    x1, y1, x2, y2 = boxes[keep].T
    return Labels.from_unsorted(
        {"t_us": t_us[keep], "x1": x1, "y1": y1, "x2": np.maximum(x2, x1), "y2": np.maximum(y2, y1),
         "class_id": classes[keep].astype(int), "score": score[keep],
         "source": np.full(int(keep.sum()), LabelSource.TRACKED)},
        labelled_us=times_us, classes=CLASSES, sensor=SENSOR,
    )  # fmt: skip
